"""What one group is given of one queue: a table that follows from ops, in the order in which they lie in the log."""

from __future__ import annotations

from typing import Final

import numpy as np

from .kernels import GIVEN_BACK, NEVER, PARKED, look, take
from .ops import NOTHING, Kind, Longs, Op, Rows

ROWS_FIRST: Final = 64
_EMPTY: Final = np.empty((5, 0), np.int64)


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
        self._table = _EMPTY  # of the kernels
        self._count = 0  # of its rows, in use
        self._given_back = 0  # of them
        self._base = begin

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Rows:
        """What is in flight: views, good until the next op is applied."""
        return Rows(*self._table[:, : self._count])

    @property
    def low(self) -> int:
        """The first offset that is not finished."""
        return int(self._table[0, 0]) if self._count else self.next

    def is_blocked(self, now_ms: int) -> bool:
        """True if an orderly group must wait for what it was given."""
        if not self.is_orderly:
            return False
        rows = self.rows
        return bool(((rows.visible > now_ms) & (rows.finished == 0) & (rows.points != GIVEN_BACK)).any())

    def due(self, now_ms: int) -> Longs:
        """The offsets whose time is over."""
        rows = self.rows
        found: Longs = rows.offsets[(rows.visible != PARKED) & (rows.visible <= now_ms)]
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
        if not self._given_back:
            return NOTHING
        rows = self.rows
        found: Longs = rows.offsets[rows.points == GIVEN_BACK]
        return found

    def times_of(self, offsets: Longs, kind: Kind) -> Longs:
        """How often each, which is in flight, was given out before, if an op of that kind gives it out now."""
        rows = self.rows
        at = np.searchsorted(rows.offsets, offsets)
        found: Longs = rows.times[at]
        was_begun = (rows.visible[at] != PARKED) & (rows.points[at] != GIVEN_BACK)
        return found + was_begun if kind is Kind.AGAIN else found

    def statuses(self, offsets: Longs, point: int, until_ms: int, now_ms: int, op_end: int) -> tuple[Longs, Longs]:
        """The ``ReceiptStatus`` of receipts of one check point, and the offsets of those of messages in flight.

        ``offsets`` ascend. ``until_ms``: as long as they said to be good for. ``op_end``: no check point is there yet,
        or behind.
        """
        statuses, live = np.empty(len(offsets), np.int64), np.empty(len(offsets), np.int64)
        said = point, until_ms, now_ms, self.next, op_end
        return statuses, live[: look(self._table, self._count, offsets, *said, statuses, live)]

    def put_off(self, by_ms: int) -> None:
        """Have what waits for a time come so much later by the clock."""
        visible = self.rows.visible
        visible[visible != PARKED] += by_ms
        self.due_ms += by_ms if self.due_ms != NEVER else 0

    def apply(self, op: Op, point: int) -> None:
        """Take what the op at the offset ``point`` of the queue of ops says."""
        if op.kind is Kind.STATE:
            assert op.rows is not None
            self.next, self.is_orderly, self.floor = max(op.next, self._base), op.is_orderly, point
            first = int(np.searchsorted(op.rows.offsets, self._base))
            self._table = np.array([column[first:] for column in op.rows])
            self._count = len(op.rows.offsets) - first
            self._take(op, point)
        elif op.kind in (Kind.POP, Kind.PARK):
            self.is_orderly = op.is_orderly
            self.floor = min(self.floor, point)
            self._make_room(self._count + len(op.offsets))
            self._take(op, point)
            self.next = max(self.next, op.next)
        else:
            self._take(op, point)
        if not self._count:
            self._table, self.floor = _EMPTY, NEVER

    def state(self) -> Op:
        """All of it."""
        return Op(
            *(Kind.STATE, self.group, self.topic, self.queue_id, NOTHING, self.next),
            is_orderly=self.is_orderly,
            rows=self.rows,
        )

    def _take(self, op: Op, point: int) -> None:
        said = op.offsets, op.at_ms, point, self.next, self.is_orderly
        self._count, self.due_ms, self._given_back = take(self._table, self._count, op.kind.value, *said)

    def _make_room(self, count: int) -> None:
        """``count``: of rows."""
        if count > self._table.shape[1]:
            table = np.empty((5, max(ROWS_FIRST, count + count // 2)), np.int64)
            table[:, : self._count] = self._table[:, : self._count]
            self._table = table
