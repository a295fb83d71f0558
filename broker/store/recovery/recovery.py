"""What to make of a store that was not closed: decisions only, no files.

After a crash of the process everything appended is there. After a power cut, of what was not synced any pages may
be missing, in any order: a missing page shows the zeros that the file was made with (or that recovery wrote behind
its end). So:

| Found | Meaning |
|---|---|
| nothing sound behind the first damage | a torn tail: cut there |
| the same, but what is damaged was synced | cut there, and kept beside: this store may lack what was acknowledged |
| sound records behind it, damage below what is known to be synced | corruption: refuse, keep all bytes |
| sound records behind it, no lost sector in the damaged stretch | corruption: something else wrote there |
| sound records behind it, a sector without its end there, nothing known to be synced | a power cut's torn tail: cut |
| a marked batch with fewer records than its mark says, at the end | cut whole: it was never acknowledged |
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.formats.checkpoint import Positions

_HEAD_BYTES = 8


def is_refused(*, later: int | None, sector_lost: bool, was_synced: bool | None) -> bool:
    """True if damage must be looked at by somebody; otherwise the log ends there.

    ``later``: where a sound record begins behind it. ``sector_lost``: an aligned sector between the two ends in zeros.
    ``was_synced``: what lay there is known to have been synced; None: another program wrote the store.
    """
    return later is not None and (was_synced is not False or not sector_lost)


def was_synced(offset: int, size: int, synced: int) -> bool:
    """True if the record at ``offset`` was synced to its end, when everything below ``synced`` was.

    ``size``: what its first bytes say, 0 if they say nothing that can be true; then it counts from these bytes on.
    """
    return offset + (size or _HEAD_BYTES) <= synced


@dataclass(frozen=True, slots=True)
class Plan:
    """How to open: where the log is scanned from (None: nowhere) and from where it is dispatched again."""

    clean: bool
    scan_from: int | None
    derived: int | None  # None: the queues are believed entry by entry, and everything is dispatched again


def plan(positions: Positions | None, *, aborted: bool, log_min: int, log_end: int, segment_bytes: int) -> Plan:
    """The plan for a store whose log files span ``[log_min, log_end)``."""
    if positions is None or positions.min_offset > max(positions.derived, log_end) or positions.derived > log_end:
        return Plan(False, log_min, None)
    if positions.clean and not aborted and positions.end <= log_end:
        return Plan(True, None, positions.derived)
    start = max(log_min, positions.min_offset, positions.derived - positions.derived % segment_bytes)
    return Plan(False, start, positions.derived)


@dataclass(slots=True)
class MarkTracker:
    """Follows the producer marks of a scan, to know whether the last batch is whole."""

    start: int = -1
    missing: int = 0

    def on_mark(self, start: int, count: int, following: int) -> None:
        """A batch of ``count`` records begins at ``start``; ``following`` records of it (and others) were seen."""
        self.start = start
        self.missing = max(0, count - following)

    def on_records(self, count: int) -> None:
        """Records without a mark."""
        self.missing = max(0, self.missing - count)

    def on_file_end(self) -> None:
        """Batches do not span files: what is missing will not come."""
        self.missing = 0

    def cut_at(self, end: int) -> int:
        """Where the log must end, given that its last record ends at ``end``."""
        return self.start if self.missing else end
