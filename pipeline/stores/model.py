"""What a listing of a store says. Plain data, which travels to the workers; no kernels are loaded here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Damage(NamedTuple):
    """Bytes ``[start, end)`` of the log that are no sound records; sound ones, or nothing, follow at ``end``."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the log, and up to where it is read. ``end``: a position in the file, not above ``size``."""

    path: str
    start: int  # log position of the first byte
    size: int
    end: int
    is_sealed: bool  # another file follows: it has to end with a blank record


@dataclass(frozen=True, slots=True)
class Store:
    """One listed store. ``gaps`` are log files that are missing.

    ``queues_complete``: its consume queues are known to reach as far as its log is read.
    """

    root: str
    broker_name: str
    files: tuple[LogFile, ...]
    segment_bytes: int
    is_open: bool
    tail: str
    gaps: tuple[Damage, ...] = ()
    queues_complete: bool = False

    @property
    def end(self) -> int:
        """Log position behind the last byte that is read."""
        return self.files[-1].start + self.files[-1].end if self.files else 0
