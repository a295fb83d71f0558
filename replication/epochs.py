"""Histories of epochs: which master wrote which part of a log, and where two logs part. A pure module.

A broker's history is that of a log of which its own log is a beginning. So a slave takes its master's history as a
whole before it appends anything: an entry that starts at or behind its own end has not begun there yet. Histories are
kept in ``epochFileCheckpoint`` (:mod:`penstock.formats.epochs`).
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.formats.epochs import ENTRIES_MAX, Epoch, check
from penstock.proto.errors import WrongStore


class EpochHistory:
    """The epochs of one log, oldest first: epochs rise strictly, starts never fall. Immutable."""

    def __init__(self, entries: Iterable[Epoch] = ()) -> None:
        """Raises ``ValueError`` when the entries are not such a history."""
        self.entries = tuple(Epoch(*entry) for entry in entries)
        check(self.entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochHistory) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.entries)

    def __repr__(self) -> str:
        return f"EpochHistory({', '.join(f'{entry.epoch}@{entry.start}' for entry in self.entries)})"

    @property
    def latest(self) -> int:
        """The newest epoch; 0 in an empty history."""
        return self.entries[-1].epoch if self.entries else 0

    @property
    def latest_start(self) -> int:
        """Where the newest epoch begins; 0 when there is none."""
        return self.entries[-1].start if self.entries else 0

    def begin(self, epoch: int, start: int) -> EpochHistory:
        """The history with one more epoch. The oldest entries beyond the limit are forgotten.

        Raises ``ValueError`` when the epoch is no later than the last one, or starts before it.
        """
        return EpochHistory((*self.entries[-(ENTRIES_MAX - 1) :], Epoch(epoch, start)))

    def truncate_to(self, end: int) -> EpochHistory:
        """The history of the same log cut at ``end``; an epoch of which nothing is left is forgotten."""
        return EpochHistory(entry for entry in self.entries if entry.start < end)

    def lead(self, epoch: int, end: int) -> EpochHistory:
        """The history of a log that ends at ``end``, whose owner becomes master in ``epoch`` now.

        What was written behind ``end`` in earlier epochs is not in this log and will not be; epochs without a byte
        leave no trace, so that a master that starts often does not fill the history.

        Raises:
            ValueError: the epoch is no later than the last one.
        """
        if epoch <= self.latest:
            raise ValueError(f"epoch {epoch} cannot begin after epoch {self.latest}")
        return self.truncate_to(end).begin(epoch, end)

    def check_leads(self, log_end: int, path: str) -> None:
        """Raise unless a log that ends at ``log_end`` has all of this history, as a master's must.

        Raises:
            WrongStore: an epoch starts behind the end: the broker had not caught up with it, or its log lost bytes.
        """
        if self.entries and self.entries[-1].start > log_end:
            last = self.entries[-1]
            raise WrongStore(
                f"{path}: epoch {last.epoch} begins at {last.start}, the log ends at {log_end}: it lacks what earlier "
                "masters wrote, so this broker may follow a master and not be one; give the log back its end from "
                "another replica, or delete the file to go on without those bytes",
                path=path,
            )

    def shown_below(self, end: int) -> int:
        """The newest epoch that has begun where a reader has everything below ``end``; 0 without one."""
        for epoch, start in reversed(self.entries):
            if start <= end:
                return epoch
        return 0

    def end_of_epoch(self, epoch: int) -> int | None:
        """Where this log has what was written after ``epoch``; None if it has nothing of that."""
        return next((entry.start for entry in self.entries if entry.epoch > epoch), None)

    def end_of(self, index: int, log_end: int) -> int:
        """Where entry ``index`` ends in a log that ends at ``log_end``."""
        return min(self.entries[index + 1].start, log_end) if index + 1 < len(self.entries) else log_end


def common_end(one: EpochHistory, one_end: int, other: EpochHistory, other_end: int) -> int | None:
    """The end of what two logs share, or None if their histories cannot tell.

    The newest epoch with equal number and start on both sides was written by one master, so both logs
    agree up to the smaller of its two ends. Without such an epoch, logs whose histories are known from offset 0 on
    have nothing in common.
    """
    starts = {entry: index for index, entry in enumerate(other.entries)}
    for index in range(len(one.entries) - 1, -1, -1):
        matching = starts.get(one.entries[index])
        if matching is not None:
            return min(one.end_of(index, one_end), other.end_of(matching, other_end))
    whole = all(history.entries and history.entries[0].start == 0 for history in (one, other))
    return 0 if whole else None


class EpochsInMemory:
    """A history in memory only, for logs in memory only."""

    def __init__(self, history: EpochHistory | None = None) -> None:
        self.history = history or EpochHistory()

    def replace(self, history: EpochHistory) -> None:
        """Hold another history."""
        self.history = history
