"""What a master knows of halves: how each is decided, and when the open ones are due to be asked about. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from penstock.proto.wire import transactions_pb2 as wire

Longs = np.ndarray[Any, np.dtype[np.int64]]
States = np.ndarray[Any, np.dtype[np.uint8]]

OPEN, ENDED, RENEWED = int(wire.OPEN), int(wire.ENDED), int(wire.RENEWED)
KNOWN_MAX: Final = 1 << 20
"""How decided halves were decided is known for so many; a byte of memory each."""
_LOOKED_AT: Final = 4096


def _none() -> Longs:
    return np.empty(0, np.int64)


@dataclass(slots=True)
class Waiting:
    """Open halves, a row each, by ascending offset.

    ``firsts``: the offset of a half's first record, which is its own for one that was never stored anew. ``groups``:
    hashes of producers' groups. ``times``: how often somebody was asked.
    """

    offsets: Longs = field(default_factory=_none)
    firsts: Longs = field(default_factory=_none)
    due: Longs = field(default_factory=_none)
    times: Longs = field(default_factory=_none)
    groups: Longs = field(default_factory=_none)

    def __len__(self) -> int:
        return len(self.offsets)

    def part(self, chosen: Any) -> Waiting:
        """The rows ``chosen``, by place or by truth."""
        return Waiting(*(column[chosen] for column in self.columns()))

    def columns(self) -> tuple[Longs, ...]:
        """All columns, as they are declared."""
        return self.offsets, self.firsts, self.due, self.times, self.groups

    def and_more(self, other: Waiting) -> Waiting:
        """The rows of both, by offset."""
        columns = [np.concatenate(pair) for pair in zip(self.columns(), other.columns(), strict=True)]
        if len(self) and len(other) and other.offsets[0] < self.offsets[-1]:
            order = np.argsort(columns[0], kind="stable")
            columns = [column[order] for column in columns]
        return Waiting(*columns)


class Halves:
    """The halves of one queue from :attr:`base` on."""

    def __init__(self, base: int, floor: int) -> None:
        """Nothing is known yet of those in ``[base, floor)`` but that they are decided."""
        self.base = base
        self.scanned = floor  # below it every open half is in `waiting`; whoever scans writes it
        self.waiting = Waiting()
        self._floor = floor  # no half below it is open
        self.end = base  # behind the last half that is known
        self._states: States = np.empty(0, np.uint8)
        self._grow(floor, ENDED)

    @property
    def floor(self) -> int:
        """The offset of the first open half; the end where none is open."""
        while self._floor < self.end:
            at = self._floor - self.base
            part = self._states[at : min(at + _LOOKED_AT, self.end - self.base)]
            found = np.flatnonzero(part == OPEN)
            if len(found):
                self._floor += int(found[0])
                break
            self._floor += len(part)
        return self._floor

    @property
    def open_count(self) -> int:
        """How many are open, of those that have been scanned."""
        return int((self.states(self.waiting.offsets) == OPEN).sum())

    def grow(self, end: int) -> None:
        """Halves came; they are open."""
        if end <= self.end:
            return
        self._grow(end, OPEN)
        surplus = self.floor - 2 * KNOWN_MAX - self.base
        if surplus > 0:
            self._states = self._states[surplus + KNOWN_MAX :].copy()
            self.base += surplus + KNOWN_MAX

    def know_from(self, first: int) -> None:
        """How those from ``first`` on are decided will be known, unless they are too many."""
        more = self.base - max(first, self.floor - KNOWN_MAX)
        if more > 0:
            self._states = np.concatenate([np.full(more, ENDED, np.uint8), self._states])
            self.base -= more

    def states(self, offsets: Longs) -> States:
        """The state of each; ENDED for those below :attr:`base`. None may lie behind the end."""
        at = offsets - self.base
        if not len(at) or at.min() >= 0:
            return self._states[at]
        found: States = np.full(len(offsets), ENDED, np.uint8)
        known = at >= 0
        found[known] = self._states[at[known]]
        return found

    def decide(self, offsets: Longs, state: int) -> None:
        """These are decided now."""
        at = offsets - self.base
        self._states[at[(at >= 0) & (at < self.end - self.base)]] = state

    def current(self, firsts: Longs) -> Longs:
        """The offsets of the open records of halves that are known by their first ones."""
        waiting = self.waiting
        renewed = np.flatnonzero(waiting.firsts != waiting.offsets)
        if not len(renewed):
            return firsts
        known, now = waiting.firsts[renewed], waiting.offsets[renewed]
        order = np.argsort(known, kind="stable")
        known, now = known[order], now[order]
        at = np.maximum(np.searchsorted(known, firsts, side="right") - 1, 0)  # the newest record of each
        return np.where(known[at] == firsts, now[at], firsts)

    def firsts(self, offsets: Longs) -> Longs:
        """The first record's offset of each open half."""
        waiting = self.waiting
        if not len(waiting):
            return offsets
        at = np.minimum(np.searchsorted(waiting.offsets, offsets), len(waiting) - 1)
        return np.where(waiting.offsets[at] == offsets, waiting.firsts[at], offsets)

    def add(self, found: Waiting) -> None:
        """Note open halves, unless they are noted already."""
        mine = self.waiting.offsets
        if len(mine) and len(found) and found.offsets[0] <= mine[-1]:
            at = np.minimum(np.searchsorted(mine, found.offsets), len(mine) - 1)
            found = found.part(mine[at] != found.offsets)
        self.waiting = self.waiting.and_more(found)

    def prune(self) -> None:
        """Forget the rows of those that are decided."""
        is_open = self.states(self.waiting.offsets) == OPEN
        if not is_open.all():
            self.waiting = self.waiting.part(is_open)

    def supersede(self, keys: Longs) -> None:
        """Let the last one alone be open of records that stand for one half.

        ``keys``: hashes of the unique keys of the rows in :attr:`waiting`, 0 without: RocketMQ's records of a half that
        it stored anew have the same one, and do not name the first record.
        """
        waiting = self.waiting
        told = np.where(keys == 0, -1 - waiting.offsets, keys)[::-1]
        _, newest, places = np.unique(told, return_index=True, return_inverse=True)
        last = (len(told) - 1 - newest)[places[::-1]]  # of each row the place of the last one with its key
        is_anew = (waiting.times[last] > 0) | (waiting.firsts[last] != waiting.offsets[last])
        is_old = is_anew & (last != np.arange(len(told)))
        self.decide(waiting.offsets[is_old], RENEWED)
        self.waiting = waiting.part(~is_old)

    def _grow(self, end: int, state: int) -> None:
        if end <= self.end:
            return
        needed = end - self.base
        if needed > len(self._states):
            more = np.empty(max(needed, 2 * len(self._states)), np.uint8)
            more[: self.end - self.base] = self._states[: self.end - self.base]
            self._states = more
        self._states[self.end - self.base : needed] = state
        self.end = end
