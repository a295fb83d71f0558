"""What is made of a store that was not closed: one fact, or one step of a scan, a line."""

from __future__ import annotations

from penstock.broker.store.recovery.recovery import MarkTracker, is_refused, plan, was_synced
from penstock.formats.checkpoint import Positions

LOG = {"log_min": 0, "log_end": 3000, "segment_bytes": 1000}


def decided(lines: list[str]) -> list[str]:
    """One answer a line; a scan's answer is where the log ends."""
    if lines[0] == "scan":
        return _scanned(lines[1:])
    return [_judged(line) if line.startswith("damage") else _planned(line) for line in lines]


def _judged(line: str) -> str:
    """``damage at=100 [later=500] [size=…] [sector lost] [synced=…|of another program]``."""
    given = _numbers(line)
    synced = None if "another program" in line else given.get("synced", 0)
    known = None if synced is None else was_synced(given["at"], given.get("size", 0), synced)
    refused = is_refused(later=given.get("later"), sector_lost="sector lost" in line, was_synced=known)
    return "refuse" if refused else "cut"


def _planned(line: str) -> str:
    """``clean|crashed [aborted] end=… derived=… [min=…]``, or ``no checkpoint``."""
    given = _numbers(line)
    known = None
    if "no checkpoint" not in line:
        known = Positions(
            clean=line.startswith("clean"),
            end=given["end"],
            flushed=given["end"],
            derived=given["derived"],
            min_offset=given.get("min", 0),
        )
    made = plan(known, aborted="aborted" in line, **LOG)
    scan = "believe the log" if made.clean else f"scan from {made.scan_from}"
    return f"{scan}, dispatch from {'its beginning' if made.derived is None else made.derived}"


def _scanned(steps: list[str]) -> list[str]:
    tracker, found = MarkTracker(), []
    for step in steps:
        given = _numbers(step)
        match step.split()[0]:
            case "records":
                tracker.on_records(int(step.split()[1]))
            case "batch":
                tracker.on_mark(given["at"], given["of"], given["seen"])
            case "file":
                tracker.on_file_end()
            case "end":
                found.append(f"cut at {tracker.cut_at(given['at'])}")
    return found


def _numbers(line: str) -> dict[str, int]:
    return {name: int(value) for name, _, value in (word.partition("=") for word in line.split()) if value}
