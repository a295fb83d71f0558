"""What a drill did and found beside its history: everything else that the checker needs, as one JSON document."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = "conditions.json"


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which something was broken. Nanoseconds of the monotonic clock, half-open."""

    what: str
    target: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class LogComparison:
    """The logs of two brokers of a shard over their common range ``[start, end)``. ``difference`` -1: none."""

    shard: str
    left: str
    right: str
    start: int
    end: int
    difference: int = -1
    offsets_differ: str = ""  # committed offsets that are not the same


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """What ``store verify`` said of one data directory."""

    name: str
    path: str
    records: int
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Resources of one process before the fault and after the recovery."""

    name: str
    same_process: bool  # false: it was started again between the two
    before: dict[str, float]
    after: dict[str, float]


@dataclass(frozen=True, slots=True)
class Stop:
    """One clean stop that was asked for. ``exit_code`` None: not known, another program had started it."""

    name: str
    seconds: float
    exit_code: int | None
    killed: bool = False
    abort_marker: bool = False
    scanned: bool = False  # the next start had to look for the log's end, as after a crash


@dataclass(slots=True, kw_only=True)
class Conditions:
    """One drill, except its history."""

    drill: str
    seed: int
    mode: str
    shards: list[str]
    queues: int  # per shard
    command: str
    began_ns: int = 0
    ended_ns: int = 0
    windows: list[Window] = field(default_factory=list)
    breaks_delivery: bool = False  # consumers, brokers or links died: what was not committed comes again
    duplicates_allowed: int = 0
    recovery_limit_ms: int | None = None  # for a shard to take messages again; None: not judged
    recovery_why: str = ""  # why it is not judged
    recovery_target_ms: int | None = None
    commit_interval_ms: int = 1000
    settled_s: float | None = None  # from the heal until everything served and nothing was left to consume
    settle_limit_s: float = 30.0
    unsettled: list[str] = field(default_factory=list)
    logs: list[LogComparison] = field(default_factory=list)
    stores: list[StoreFinding] = field(default_factory=list)
    footprints: list[Footprint] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    error_lines: list[str] = field(default_factory=list)  # ERROR lines of logs that the drill does not explain
    leftovers: list[str] = field(default_factory=list)  # processes, mounts, namespaces
    notes: list[str] = field(default_factory=list)

    @property
    def fault_start_ns(self) -> int:
        """When the first fault began; the end of the drill without any."""
        return min((window.start_ns for window in self.windows), default=self.ended_ns)

    @property
    def fault_end_ns(self) -> int:
        """When the last one was healed."""
        return max((window.end_ns for window in self.windows), default=self.ended_ns)

    def save(self, folder: Path) -> None:
        """Write the document as a whole or not at all."""
        draft = folder / f"{FILE}.new"
        draft.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")
        os.replace(draft, folder / FILE)


_LISTS: dict[str, Any] = {
    "windows": Window,
    "logs": LogComparison,
    "stores": StoreFinding,
    "footprints": Footprint,
    "stops": Stop,
}


def load_conditions(folder: Path) -> Conditions:
    """What :meth:`Conditions.save` wrote.

    Raises:
        ValueError: the file is missing or is something else.
    """
    path = folder / FILE
    try:
        document: dict[str, Any] = json.loads(path.read_text())
        for name, kind in _LISTS.items():
            document[name] = [kind(**each) for each in document.get(name, [])]
        return Conditions(**document)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: not the conditions of a drill: {error}") from error
