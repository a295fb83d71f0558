"""How far the delivery of messages for later has come: a table derived from state records.

Tag ``TIMER_RUN``, body as :meth:`Run.to_json`. A *run* is what is delivered together: every message that is due at
``until_ms`` or before and whose offset in the timer topic's queue is below ``end``, and that was in no earlier run.
That a run is recorded before it is delivered makes it the same messages whoever delivers it, after a crash or on
another broker; and its batches carry producer marks with the run's number, so each message is delivered once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.formats.rocketmq_config import timer_progress

from ...core.tables.table import LOADED, StateRecord, Table
from .timer_wheel import Longs

TIMER_RUN: Final = "TIMER_RUN"


@dataclass(frozen=True, slots=True)
class Run:
    """``before``: time and end of earlier runs, all of which is delivered; few pairs, one of them for what was rolled.
    ``floor``: nothing below that offset waits, or is in this run. ``count``: how many messages it has, 0 if that is not
    known. ``is_rolled``: they become records of the timer topic again, and wait on.
    """

    number: int = 0
    before: tuple[tuple[int, int], ...] = ()
    until_ms: int = -1
    end: int = 0
    floor: int = 0
    count: int = 0
    is_rolled: bool = False

    def delivered(self) -> tuple[tuple[int, int], ...]:
        """``before`` of what comes behind this run, without pairs that say less than another one."""
        mine = (self.until_ms, self.end)
        kept = [(ms, end) for ms, end in self.before if ms > mine[0] or end > mine[1]]
        return (*kept, mine)

    def is_before(self, due: Longs, offsets: Longs) -> npt.NDArray[np.bool_]:
        """Which of the messages are delivered by earlier runs."""
        found = np.zeros(len(due), np.bool_)
        for ms, end in self.before:
            found |= (due <= ms) & (offsets < end)
        return found

    def to_json(self) -> dict[str, Any]:
        """The body of a ``TIMER_RUN`` record."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Run:
        """The run of such a body. Raises KeyError, TypeError or ValueError if it is no run's."""
        return cls(
            number=int(document["number"]),
            before=tuple((int(ms), int(end)) for ms, end in document["before"]),
            until_ms=int(document["until_ms"]),
            end=int(document["end"]),
            floor=int(document["floor"]),
            count=int(document.get("count", 0)),
            is_rolled=bool(document.get("is_rolled", False)),
        )


class TimerTable(Table):
    """The last run of one broker."""

    file_name = "timerRuns.json"
    kinds = frozenset({TIMER_RUN})

    def __init__(self) -> None:
        super().__init__()
        self.last = Run()
        self.position = LOADED  # of its record

    def apply(self, position: int, kind: str, document: Mapping[str, Any]) -> None:
        run = Run.from_json(document)
        if position >= self.base and position > self.position:
            self.last, self.position = run, position
            self.changes += 1

    def repeated(self, position: int) -> Iterator[StateRecord]:
        if self.last.number and self.position < position:
            yield TIMER_RUN, self.last.to_json()

    def load(self, document: Mapping[str, Any], log_end: int) -> None:
        self.last, self.position = Run.from_json(document["last"]), LOADED

    def import_from(self, directory: Path) -> None:
        """Messages for later that RocketMQ has rolled on, or cancelled, are not known from its progress."""
        told = timer_progress(directory)
        if told is not None:
            before = (*self.last.before, (told.due_ms, told.end))
            # A run that was cut short before RocketMQ came is still to be finished.
            own = self.last if self.last.number else Run(1, (), *told)
            self.last = replace(own, before=before, count=0)
            self.changes += 1

    def pieces(self) -> Iterator[str]:
        yield '\t"last":'
        yield json.dumps(self.last.to_json())
