"""What one group is given of one queue: a table that follows from ops, in the order in which they lie in the log."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from penstock.proto.wire.pop_pb2 import RECEIPT_EXPIRED, RECEIPT_OK, RECEIPT_UNKNOWN

from .ops import NOTHING, Kind, Longs, Op, Rows

Flags = np.ndarray[Any, np.dtype[np.bool_]]

NEVER: Final = 1 << 62
PARKED: Final = 0
"""The visible time of messages of the retry topic that nobody has asked for; their check point is the hash of
their own topic."""
GIVEN_BACK: Final = -1
"""The check point of messages whose receivers have not begun with them: the next one gets them, until they are due."""


class PopQueue:
    """Messages in flight, and where new ones begin; event loop only.

    Everything below :attr:`low` is finished. Of an orderly group a message that is acknowledged stays as long as one
    before it is not: they come again together.
    """

    def __init__(self, group: str, topic: str, queue_id: int, begin: int) -> None:
        """``begin``: everything below is finished."""
        self.group, self.topic, self.queue_id = group, topic, queue_id
        self.next = begin
        self.is_orderly = False
        self.attempt = ""  # of the batch that is out, as its receiver called it
        self.brought, self.brought_s = 0, 0.0  # up to which offset old records were brought into memory, and when
        self.floor = NEVER  # offset of the first op that says anything of what is in flight
        self.due_ms = NEVER  # when the first one is visible again
        self.rows = Rows(*[NOTHING] * 5)
        self._base = begin

    def __len__(self) -> int:
        return len(self.rows.offsets)

    @property
    def low(self) -> int:
        """The first offset that is not finished."""
        return int(self.rows.offsets[0]) if len(self) else self.next

    def is_blocked(self, now_ms: int) -> bool:
        """True if an orderly group must wait for what it was given."""
        rows = self.rows
        is_out = (rows.visible > now_ms) & (rows.finished == 0) & (rows.points != GIVEN_BACK)
        return self.is_orderly and bool(is_out.any())

    def due(self, now_ms: int) -> Longs:
        """The offsets whose time is over."""
        visible = self.rows.visible
        found: Longs = self.rows.offsets[(visible != PARKED) & (visible <= now_ms)]
        return found

    def exhausted(self, now_ms: int, tries_max: int) -> Longs:
        """Of an orderly group, the offsets whose time is over and that were given again ``tries_max`` times."""
        rows = self.rows
        is_due = (rows.visible <= now_ms) & (rows.points != GIVEN_BACK)
        found: Longs = rows.offsets[is_due & (rows.finished == 0) & (rows.times >= tries_max)]
        return found

    def parked(self, homes: Longs) -> Longs:
        """The offsets of parked messages of these topics, by hash."""
        rows = self.rows
        found: Longs = rows.offsets[(rows.visible == PARKED) & np.isin(rows.points, homes)]
        return found

    def given_back(self) -> Longs:
        """The offsets that wait because their receivers gave them back."""
        found: Longs = self.rows.offsets[self.rows.points == GIVEN_BACK]
        return found

    def times_of(self, offsets: Longs, kind: Kind) -> Longs:
        """How often each, which is in flight, was given out before, if an op of that kind gives it out now."""
        at = np.searchsorted(self.rows.offsets, offsets)
        found: Longs = self.rows.times[at]
        return found + self._was_begun(at) if kind is Kind.AGAIN else found

    def statuses(self, offsets: Longs, point: int, until_ms: int, now_ms: int, op_end: int) -> tuple[Longs, Flags]:
        """The ``ReceiptStatus`` of receipts of one check point, and which of them are of messages in flight.

        ``until_ms``: as long as they said to be good for. ``op_end``: no check point is there yet, or behind.
        """
        rows = self.rows
        at = np.minimum(np.searchsorted(rows.offsets, offsets), max(len(self) - 1, 0))
        if len(self):
            is_here = rows.offsets[at] == offsets
            is_same = is_here & (rows.points[at] == point) & (rows.visible[at] > now_ms)
            is_live = is_same & (rows.finished[at] == 0)
        else:
            is_here = is_same = is_live = np.zeros(len(offsets), np.bool_)
        was_done = ~is_here & (until_ms > now_ms) & (offsets < self.next)
        status = np.where(is_same | was_done, RECEIPT_OK, RECEIPT_EXPIRED)
        status[(offsets >= self.next) | (point >= op_end)] = RECEIPT_UNKNOWN
        return status, is_live & (status == RECEIPT_OK)

    def apply(self, op: Op, point: int) -> None:
        """Take what the op at the offset ``point`` of the queue of ops says."""
        if op.kind is Kind.STATE:
            assert op.rows is not None
            self.rows, self.next, self.is_orderly = op.rows, max(op.next, self._base), op.is_orderly
            self._keep(self.rows.offsets >= self._base)
            self.floor = point
        elif op.kind in (Kind.POP, Kind.PARK):
            if op.kind is Kind.PARK:
                at = self._places(op.offsets)
                self.rows.visible[at], self.rows.points[at] = op.at_ms, GIVEN_BACK
            self._add(op, point)
        elif op.kind in (Kind.CHANGE, Kind.AGAIN):
            self._change(op, point)
        elif op.kind is Kind.DONE and self.is_orderly:
            self.rows.finished[self._places(op.offsets)] = 1
        else:
            kept = np.ones(len(self), np.bool_)
            kept[self._places(op.offsets)] = False
            self._keep(kept)
        if self.is_orderly:  # what is finished stays as long as one before it is not
            waiting = np.flatnonzero(self.rows.finished == 0)
            self._keep(np.arange(len(self)) >= (waiting[0] if len(waiting) else len(self)))
        alive = self.rows.visible[(self.rows.visible != PARKED) & (self.rows.finished == 0)]
        self.due_ms = int(alive.min()) if len(alive) else NEVER
        if not len(self):
            self.floor = NEVER

    def state(self) -> Op:
        """All of it."""
        return Op(
            *(Kind.STATE, self.group, self.topic, self.queue_id, NOTHING, self.next),
            is_orderly=self.is_orderly,
            rows=self.rows,
        )

    def _add(self, op: Op, point: int) -> None:
        offsets = op.offsets[op.offsets >= self.next]
        self.is_orderly = op.is_orderly
        self.floor = min(self.floor, point)
        is_parked = op.kind is Kind.PARK
        count = len(offsets)
        added = (
            offsets,
            np.full(count, PARKED if is_parked else op.at_ms),
            np.full(count, op.at_ms if is_parked else point),
            np.zeros(count, np.int64),
            np.zeros(count, np.int64),
        )
        is_behind = not len(self) or not count or offsets[0] > self.rows.offsets[-1]
        self.rows = Rows(*(np.concatenate(pair) for pair in zip(self.rows, added, strict=True)))
        if not is_behind:  # parked ones lie between those that are given out
            order = np.argsort(self.rows.offsets)
            self.rows = Rows(*(column[order] for column in self.rows))
        self.next = max(self.next, op.next)

    def _change(self, op: Op, point: int) -> None:
        at, rows = self._places(op.offsets), self.rows
        was_begun = self._was_begun(at)
        rows.visible[at], rows.points[at], rows.finished[at] = op.at_ms, point, 0
        if op.kind is Kind.AGAIN:
            rows.times[at] += was_begun

    def _was_begun(self, at: Longs) -> Flags:
        """Which of them somebody was given and did not give back."""
        found: Flags = (self.rows.visible[at] != PARKED) & (self.rows.points[at] != GIVEN_BACK)
        return found

    def _places(self, offsets: Longs) -> Longs:
        """Where those of ``offsets`` that are in flight are."""
        if not len(self):
            return NOTHING
        at = np.minimum(np.searchsorted(self.rows.offsets, offsets), len(self) - 1)
        found: Longs = at[self.rows.offsets[at] == offsets]
        return found

    def _keep(self, kept: Flags) -> None:
        if not kept.all():
            self.rows = Rows(*(column[kept] for column in self.rows))
