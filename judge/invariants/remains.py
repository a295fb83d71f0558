"""I10, I11, I13, I14, and what logs and the machine tell: what a drill found when it was over."""

from __future__ import annotations

from collections.abc import Mapping

from ..conditions import Conditions, Footprint, Stop
from ..verdict import Verdict, not_judged, verdict

GROWTH = 0.10
SLACK = {"own_mib": 48.0, "files": 12.0, "threads": 8.0}
"""What a process may grow by on top of :data:`GROWTH`: arenas of the allocator, pools of threads, log files opened."""
STOP_LIMIT_S = 5.0


def replicas(conditions: Conditions) -> Verdict:
    """I10: the logs of a shard are the same bytes over their common range, and so are the committed offsets."""
    if not conditions.logs:
        return not_judged("I10", "no shard has two replicas")
    problems = []
    for each in conditions.logs:
        if each.difference >= 0:
            problems.append(f"{each.shard}: {each.left} and {each.right} differ from log position {each.difference}")
        elif each.end <= each.start:
            problems.append(
                f"{each.shard}: {each.left} and {each.right} have no common range ({each.start} to {each.end})"
            )
        if each.offsets_differ:
            problems.append(f"{each.shard}: {each.left} and {each.right}: {each.offsets_differ}")
    compared = sum(max(each.end - each.start, 0) for each in conditions.logs)
    return verdict("I10", len(conditions.logs), problems, note=f"{compared / 1e6:,.1f} MB compared")


def stores(conditions: Conditions) -> Verdict:
    """I11: ``store verify`` found nothing in any data directory."""
    if not conditions.stores:
        return not_judged("I11", "no data directory was checked")
    problems = [f"{each.name}: {problem}" for each in conditions.stores for problem in each.problems]
    return verdict("I11", sum(each.records for each in conditions.stores), problems)


def footprints(conditions: Conditions) -> Verdict:
    """I13: a process needs no more after the recovery than before the fault."""
    if not conditions.footprints:
        return not_judged("I13", "no process was measured")
    most: dict[str, float] = {}  # files by kind
    for each in conditions.footprints:
        most[_kind(each)] = max(most.get(_kind(each), 0.0), each.before.get("files", 0.0))
    problems = []
    for each in conditions.footprints:
        # Clients use any nameserver, and whoever is master: all of them may come to one that had none before.
        problems += _grown(each, {**each.before, "files": most[_kind(each)]})
    return verdict("I13", len(conditions.footprints), problems)


def _kind(each: Footprint) -> str:
    """The nameservers' name, or the broker group's: without the number of the process."""
    return each.name.rpartition("-")[0]


def _grown(each: Footprint, before: Mapping[str, float]) -> list[str]:
    grown = []
    for name, slack in SLACK.items():
        was, now = before.get(name), each.after.get(name)
        if was is not None and now is not None and now > was * (1 + GROWTH) + slack:
            grown.append(f"{each.name}: {name} grew from {was:,.0f} to {now:,.0f}")
    return grown


def stops(conditions: Conditions) -> Verdict:
    """I14: SIGTERM ends a process within 5 s, with exit code 0, without the marker of a crash or a scan afterwards."""
    if not conditions.stops:
        return not_judged("I14", "nothing was stopped: the cluster was there before and stays")
    problems = [problem for each in conditions.stops for problem in _unclean(each)]
    slowest = max(each.seconds for each in conditions.stops)
    return verdict("I14", len(conditions.stops), problems, note=f"slowest {slowest:.1f} s")


def _unclean(each: Stop) -> list[str]:
    if each.killed:
        return [f"{each.name} did not end within {each.seconds:.1f} s and was killed"]
    found = []
    if each.seconds > STOP_LIMIT_S:
        found.append(f"{each.name} took {each.seconds:.1f} s to end")
    if each.exit_code:
        found.append(f"{each.name} ended with exit code {each.exit_code}")
    if each.abort_marker:
        found.append(f"{each.name} left its abort marker")
    if each.scanned:
        found.append(f"{each.name} had to scan its log at the next start")
    return found


def log_lines(conditions: Conditions) -> Verdict:
    """No ERROR line that the drill does not explain."""
    return verdict("LOG", len(conditions.error_lines), conditions.error_lines)


def leftovers(conditions: Conditions) -> Verdict:
    """Faults heal and processes end, whatever happened."""
    return verdict("END", len(conditions.leftovers), conditions.leftovers)
