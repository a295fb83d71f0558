"""``python -m tests.cluster.failover.run_drills``: a series of drills; its figures go to ``RESULTS.md`` after each one.

Without arguments: every drill with 20 seeds, as long as ``penstock drill`` does them. ``--drill master-kill:20`` (may
be repeated) names drills and how many seeds each; what comes behind ``--`` are options of ``penstock drill``, such as
``--steady 1.5 --fault 4 --shards 1``. ``--minutes`` ends a part of a long series; the next part goes on where that one
stopped, since every result is kept in ``--records``. What went wrong keeps its histories, logs and stores in ``--dir``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from penstock.drill.catalogue import DRILLS

PAGE = Path(__file__).with_name("RESULTS.md")
HEAD = """# Failover drills

Written by `python -m tests.cluster.failover.run_drills` (`make test-drills`); do not edit. Each drill starts a
fresh cluster, runs load, breaks one thing, heals it, drains and judges invariants I1-I20 (`penstock drill --help`).
"""
KEPT = (
    *("drill", "seed", "ok", "mode", "counts", "outages", "target_ms", "able_longest_ms", "windows", "verdicts"),
    *("failed", "skipped"),
)

Record = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Do what is left of the series; 1 when an invariant was violated or a drill broke off."""
    given = parsed(arguments)
    records = [json.loads(line) for line in given.records.read_text().splitlines()] if given.records.exists() else []
    done = {(each["drill"], each["seed"], each["options"]) for each in records}
    options = shlex.join(given.options)
    earlier = given.earlier.read_text() if given.earlier else ""
    deadline = time.monotonic() + given.minutes * 60
    with open(given.records, "a") as output:
        for name, seed in wanted(given.drill or [f"{name}:20" for name in DRILLS], given.seed):
            if (name, seed, options) in done:
                continue
            if time.monotonic() > deadline:
                print("the time is up; the same command goes on from here")
                break
            record = drill(name, seed, given.dir, options)
            records.append(record)
            output.write(json.dumps(record) + "\n")
            output.flush()
            given.page.write_text(page(records, given.note, earlier))
            print(f"{name} seed {seed}: {verdict(record)} ({record['seconds']:.0f} s)", flush=True)
    given.page.write_text(page(records, given.note, earlier))
    return 0 if all(each["ok"] for each in records) else 1


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.failover.run_drills", description=__doc__)
    parser.add_argument("--drill", action="append", metavar="NAME[:SEEDS]")
    parser.add_argument("--seed", type=int, default=1, help="the first of each drill")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no drill later than that")
    parser.add_argument("--dir", default=None, help="for clusters; a temporary directory")
    parser.add_argument("--records", type=Path, default=None, help="JSON lines; kept in --dir")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--earlier", type=Path, help="the page of a series whose records are gone, to be kept below")
    parser.add_argument("--note", action="append", default=[], help="a figure that was measured beside, for the page")
    parser.add_argument("options", nargs="*", metavar="-- OPTIONS")
    given = parser.parse_args(arguments)
    given.dir = given.dir or tempfile.mkdtemp(prefix="penstock-drills-")
    os.makedirs(given.dir, exist_ok=True)
    given.records = given.records or Path(given.dir) / "records.jsonl"
    return given


def wanted(chosen: Sequence[str], first: int) -> list[tuple[str, int]]:
    """(drill, seed), seed by seed, so that a series that ends early has some of every drill."""
    counts = {name: int(count or 1) for name, _, count in (each.partition(":") for each in chosen)}
    for name in counts:
        if name not in DRILLS:
            raise SystemExit(f"no drill {name!r}: {', '.join(DRILLS)}")
    rounds = range(max(counts.values()))
    return [(name, first + index) for index in rounds for name, count in counts.items() if index < count]


def drill(name: str, seed: int, directory: str, options: str) -> Record:
    """One drill in a process of its own."""
    command = [sys.executable, "-m", "penstock.cli", "drill", name, "--dir", directory, "--seed", str(seed), "--json"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--drop-stores", *shlex.split(options)], check=False, capture_output=True, text=True
    )
    try:
        document: dict[str, Any] = json.loads(done.stdout)["drills"][0]
    except ValueError:
        document = {"drill": name, "seed": seed, "ok": False, "failed": done.stderr.strip()[-300:] or "no output"}
    kept = {key: document[key] for key in KEPT if key in document}
    kept["steps"] = sum(note.startswith("step ") for note in document.get("notes", []))
    return {**kept, "options": options, "seconds": round(time.monotonic() - began, 1)}


def verdict(record: Record) -> str:
    """One line of one drill."""
    if "verdicts" not in record:
        return str(record.get("skipped") or record["failed"])
    broken = [each["invariant"] for each in record["verdicts"] if each["holds"] is False]
    return f"violated {', '.join(broken)}" if broken else "all held"


def page(records: Sequence[Record], notes: Sequence[str], earlier: str) -> str:
    """The whole page, with an ``earlier`` one below."""
    done = [each for each in records if "verdicts" in each]
    lines = [HEAD, *conditions(done), "", "## Figures", "", *figures(done), *(f"- {note}" for note in notes), ""]
    lines += [
        "## Drills",
        "",
        "The longest outage of a drill is the longest time in which one shard acknowledged nothing.",
        "",
        "| Drill | Rounds | All held | Acknowledged | Refused | Unknown | Delivered again | Longest outage, ms: "
        "median | worst | Target |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    names = dict.fromkeys(each["drill"] for each in records)
    lines += [row(name, [each for each in records if each["drill"] == name]) for name in names]
    lines += random_drills([each for each in done if each.get("able_longest_ms") is not None])
    wrong = [each for each in records if not each["ok"]]
    if wrong:
        lines += ["", "## What did not hold", ""]
    for each in wrong:
        lines.append(f"- {each['drill']} seed {each['seed']}: {verdict(each)}")
        for found in each.get("verdicts", []):
            if found["holds"] is False:
                lines.append(f"  - {found['invariant']}: {found['examples'][0]}")
    if earlier:
        lines += ["", "# An earlier series", *earlier.removeprefix(HEAD).rstrip().split("\n")]
    return "\n".join(lines) + "\n"


def conditions(done: Sequence[Record]) -> list[str]:
    """On what, and with which options."""
    memory = psutil.virtual_memory().total / (1 << 30)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}"
    lines = [f"Machine: {machine}; all processes of a drill on it, clients included, the stores on one disk."]
    for options in dict.fromkeys(each["options"] for each in done):
        count = sum(each["options"] == options for each in done)
        lines.append(f"Options `{options or 'none'}`: {count} drills.")
    return lines


def figures(done: Sequence[Record]) -> list[str]:
    """What the series was made for."""
    lines = []
    for mode in dict.fromkeys(each["mode"] for each in done):
        these = [each for each in done if each["mode"] == mode]
        acknowledged = sum(each["counts"]["acknowledged"] for each in these)
        lost = sum(v["violations"] for each in these for v in each["verdicts"] if v["invariant"] == "I1")
        lines.append(f"- `{mode}`: {len(these)} drills, {acknowledged:,} messages acknowledged, {lost:,} of them lost.")
    steady = [each for each in done if not DRILLS[each["drill"]].breaks_delivery]
    again = sum(each["counts"]["duplicates"] for each in steady)
    received = sum(each["counts"]["received"] for each in steady)
    lines.append(f"- Duplicates in drills whose fault does not touch deliveries: {again} of {received:,}.")
    for name, what in (
        ("master-kill", "Kill of a master"),
        ("master-freeze", "Freeze of a master"),
        ("partition-master", "Partition of a master"),
        ("planned-switch", "Planned switch"),
    ):
        these = [each for each in done if each["drill"] == name and each["windows"]]
        same = [longest(each, own=True) for each in these]
        other = [value for each in these if (value := longest(each, own=False)) is not None]
        for shard, values in (("same", [value for value in same if value is not None]), ("other", other)):
            if values:
                lines.append(
                    f"- {what}, {shard} shard without an acknowledgement: median {statistics.median(values):,.0f} ms, "
                    f"worst {max(values):,.0f} ms of {len(values)} drills."
                )
        refused = sum(each["counts"]["refused"] for each in these)
        unknown = sum(each["counts"]["unknown"] for each in these)
        if these:
            lines.append(f"  Sends refused {refused}, unknown {unknown}.")
    return lines


def longest(record: Record, *, own: bool) -> float | None:
    """The longest outage of the shard that the fault met, or of the others."""
    target = record["windows"][0]["target"]
    found = [each["longest_ms"] for each in record["outages"] if target.startswith(each["shard"]) == own]
    return max(found, default=None)


def row(name: str, records: Sequence[Record]) -> str:
    """One drill's line of the table."""
    done = [each for each in records if "verdicts" in each]
    if not done:
        return f"| {name} | 0 | {verdict(records[0])} | | | | | | | |"
    worst = [max(outage["longest_ms"] for outage in each["outages"]) for each in done]
    sums = [sum(each["counts"][what] for each in done) for what in ("acknowledged", "refused", "unknown", "duplicates")]
    target = done[0]["target_ms"]
    cells = [name, str(len(records)), str(sum(each["ok"] for each in records)), *(f"{each:,}" for each in sums)]
    cells += [f"{statistics.median(worst):,.0f}", f"{max(worst):,.0f}", f"{target:,}" if target else ""]
    return f"| {' | '.join(cells)} |"


def random_drills(done: Sequence[Record]) -> list[str]:
    """The table of the random sequences."""
    if not done:
        return []
    lines = [
        "",
        "## Random sequences",
        "",
        "Able is a shard of which enough brokers answer and have everything confirmed.",
        "",
        "| Drill | Seed | Steps | Faults | Acknowledged | Lost or moved | Out of order | Stored twice, or read again "
        "from far back | Longest without an acknowledgement while able, ms |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for each in done:
        wrong = {found["invariant"]: found["violations"] for found in each["verdicts"]}
        numbers = (each["seed"], each["steps"], len(each["windows"]), each["counts"]["acknowledged"])
        numbers += (wrong["I1"], wrong["I4"], wrong["I7"], round(each["able_longest_ms"]))
        lines.append(f"| {each['drill']} | {' | '.join(f'{number:,}' for number in numbers)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
