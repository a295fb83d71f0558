"""Histories of epochs: which master wrote which part of a log, and where two logs part.

A pure module. The text form is RocketMQ's ``epochFileCheckpoint``:

| Line | Content |
|---|---|
| 1 | number of entries |
| 2 | CRC-32 of everything after this line, masked with ``0x7FFFFFFF``, decimal |
| 3… | ``epoch-startOffset``, one entry per line, oldest first |

Example (three changes of leader)::

    3
    642014906
    1-0
    2-12712
    3-26618

A broker's history is that of a log of which its own log is a beginning. So a slave takes its master's history as a
whole before it appends anything: an entry that starts at or behind its own end has not begun there yet.

Source: RocketMQ EpochFileCache, CheckpointFile.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from penstock.proto.errors import Corrupt, WrongStore

ENTRIES_MAX = 1000  # RocketMQ's limit of a handshake

_ENTRY = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")
_INT64_MAX = (1 << 63) - 1


class Epoch(NamedTuple):
    """One master's time: it wrote the log from ``start`` on, up to the next entry's start."""

    epoch: int
    start: int


class EpochHistory:
    """The epochs of one log, oldest first: epochs rise strictly, starts never fall. Immutable."""

    def __init__(self, entries: Iterable[Epoch] = ()) -> None:
        """Raises ``ValueError`` when the entries are not such a history."""
        self.entries = tuple(Epoch(*entry) for entry in entries)
        if len(self.entries) > ENTRIES_MAX:
            raise ValueError(f"{len(self.entries)} epochs: at most {ENTRIES_MAX} are kept")
        for entry in self.entries:
            if not (0 <= entry.epoch <= _INT64_MAX and 0 <= entry.start <= _INT64_MAX):
                raise ValueError(f"epoch {entry.epoch} at {entry.start}: neither may be negative or above 2^63-1")
        for one, following in zip(self.entries, self.entries[1:], strict=False):
            if following.epoch <= one.epoch or following.start < one.start:
                raise ValueError(f"epoch {following.epoch} at {following.start} follows {one.epoch} at {one.start}")

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


def encode(history: EpochHistory) -> bytes:
    """The content of ``epochFileCheckpoint``."""
    rest = "".join(f"{entry.epoch}-{entry.start}\n" for entry in history.entries).encode()
    return f"{len(history.entries)}\n{_crc(rest)}\n".encode() + rest


def decode(content: bytes, path: str) -> EpochHistory:
    """The history in ``content``; ``path`` is for the error.

    Raises:
        Corrupt: not such a file, or its CRC is wrong.
    """
    head = content.split(b"\n", 2)
    try:
        if len(head) != 3:
            raise ValueError("fewer than two lines")
        count, crc, rest = int(head[0]), int(head[1]), head[2]
        if crc != _crc(rest):
            raise ValueError(f"crc {crc}, computed {_crc(rest)}")
        lines = rest.decode("ascii").splitlines()
        if len(lines) != count:
            raise ValueError(f"{len(lines)} entries, line 1 says {count}")
        return EpochHistory(_entry(line) for line in lines)
    except (ValueError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"{path}: not an epoch file: {error}; kept as it is: restore it from {path}.bak, which is as it was one "
            "epoch before, or from a replica",
            path=path,
        ) from error


def _entry(line: str) -> Epoch:
    match = _ENTRY.fullmatch(line)
    if match is None:
        raise ValueError(f"line {line[:40]!r} is not epoch-startOffset")
    return Epoch(int(match[1]), int(match[2]))


def _crc(data: bytes) -> int:
    return zlib.crc32(data) & 0x7FFFFFFF


class EpochsInMemory:
    """A history in memory only, for logs in memory only."""

    def __init__(self, history: EpochHistory | None = None) -> None:
        self.history = history or EpochHistory()

    def replace(self, history: EpochHistory) -> None:
        """Hold another history."""
        self.history = history
