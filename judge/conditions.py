"""What a drill did and found beside its history: everything else that the judge needs, as one JSON document."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .history import DamagedHistory

Column = npt.NDArray[Any]

FILE = "conditions.json"
MODES = ("async", "flush", "sync", "durable")
UNREPLICATED = ("async", "flush")
"""Modes that wait for no replica, and so may lose what was acknowledged shortly before a fault."""
LOSS_WINDOW_NS = 2_000_000_000
"""How long before a fault those modes may lose what was acknowledged."""
RETURN_NS = 2_000_000_000
"""How long after a heal a slave may still answer in its master's place."""


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which something was broken. Nanoseconds of the monotonic clock, half-open."""

    what: str = ""
    target: str = ""
    start_ns: int = 0
    end_ns: int = 0


@dataclass(frozen=True, slots=True)
class LogComparison:
    """Two logs of a shard over their common range ``[start, end)``. ``difference`` is -1 where they agree."""

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
    """One clean stop that was asked for. ``exit_code`` is None if another program had started the process."""

    name: str
    seconds: float
    exit_code: int | None
    killed: bool = False
    abort_marker: bool = False
    scanned: bool = False  # the next start had to look for the log's end, as after a crash


@dataclass(slots=True, kw_only=True)
class Conditions:
    """One drill, except its history. The defaults are those of a run without faults that no document describes."""

    drill: str = ""
    seed: int = 0
    mode: str = "durable"
    shards: list[str] = field(default_factory=list)
    queues: int = 0  # per shard
    command: str = ""
    began_ns: int = 0
    ended_ns: int = 0
    windows: list[Window] = field(default_factory=list)
    breaks_delivery: bool = False  # consumers, brokers or links died: what was not committed comes again
    duplicates_allowed: int = 0
    recovery_limit_ms: int | None = None  # for a shard to take messages again; None: not judged
    recovery_why: str = ""  # why it is not judged
    recovery_target_ms: int | None = None
    able: list[Window] = field(default_factory=list)
    """Times in which a shard (``target``) had enough brokers that answered and had everything acknowledged."""
    able_limit_ms: int | None = None  # for such a shard to acknowledge again; None: not judged
    commit_interval_ms: int = 1000
    far_ms: int | None = None  # nothing is read again from further back while no consumer dies; None: not judged
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

    @property
    def is_replicated(self) -> bool:
        """True if an acknowledgement waits for a replica."""
        return self.mode not in UNREPLICATED

    def is_broken(self, at_ns: int) -> bool:
        """True if that was in a fault, or so shortly after it that clients may not have turned back yet."""
        return any(each.start_ns <= at_ns < each.end_ns + RETURN_NS for each in self.windows)

    def may_lose(self, acknowledged_ns: Column) -> Column:
        """Which of these acknowledgements the mode does not stand for, as they came at a fault or shortly before it."""
        found = np.zeros(len(acknowledged_ns), np.bool_)
        for window in () if self.is_replicated else self.windows:
            found |= (acknowledged_ns >= window.start_ns - LOSS_WINDOW_NS) & (acknowledged_ns < window.end_ns)
        return found

    def save(self, folder: Path) -> None:
        """Write the document as a whole or not at all."""
        draft = folder / f"{FILE}.new"
        draft.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")
        os.replace(draft, folder / FILE)


_LISTS: dict[str, Any] = {
    "windows": Window,
    "able": Window,
    "logs": LogComparison,
    "stores": StoreFinding,
    "footprints": Footprint,
    "stops": Stop,
}


def load_conditions(folder: Path) -> Conditions:
    """What :meth:`Conditions.save` wrote; fields that are missing have their defaults.

    Raises DamagedHistory: the file is missing or is something else; the field and its value are named.
    """
    path = folder / FILE
    try:
        document = json.loads(path.read_text())
        _check(document)
        for name, kind in _LISTS.items():
            document[name] = [kind(**each) for each in document.get(name, [])]
        return Conditions(**document)
    except (OSError, ValueError, TypeError) as error:
        raise DamagedHistory(f"{path}: not the conditions of a drill: {error}") from error


def _check(document: Any) -> None:
    """Nothing, if the fields that decide verdicts are what they should be, where they are given."""
    if not isinstance(document, dict):
        raise ValueError(f"{_shortened(document)} is no object with the field mode")
    if document.get("mode", MODES[0]) not in MODES:
        raise ValueError(f"mode is {_shortened(document['mode'])}: expected one of {', '.join(MODES)}")
    for name in ("duplicates_allowed", "commit_interval_ms"):
        _check_whole(name, document.get(name, 0), 0)
    windows = document.get("windows", [])
    if not isinstance(windows, list):
        raise ValueError(f"windows is {_shortened(windows)}: expected a list of faults")
    for number, window in enumerate(windows):
        _check_window(f"windows[{number}]", window)


def _check_window(name: str, window: Any) -> None:
    if not isinstance(window, dict):
        raise ValueError(f"{name} is {_shortened(window)}: expected an object with start_ns and end_ns")
    for each in ("start_ns", "end_ns"):
        if each not in window:
            raise ValueError(f"{name} has no {each}: expected nanoseconds of the monotonic clock")
        _check_whole(f"{name}.{each}", window[each])
    if window["end_ns"] < window["start_ns"]:
        raise ValueError(f"{name} ends at {window['end_ns']}, before its start_ns {window['start_ns']}")
    for each in ("what", "target"):
        if not isinstance(window.get(each, ""), str):
            raise ValueError(f"{name}.{each} is {_shortened(window[each])}: expected a text")


def _check_whole(name: str, value: Any, least: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        bound = "" if least is None else f" of {least} or more"
        raise ValueError(f"{name} is {_shortened(value)}: expected a whole number{bound}")


def _shortened(value: Any) -> str:
    return json.dumps(value)[:60]
