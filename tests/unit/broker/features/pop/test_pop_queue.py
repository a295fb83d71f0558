"""What is in flight of a queue, beside a dictionary that is told the same ops."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest

from penstock.broker.features.pop.kernels import GIVEN_BACK, NEVER, PARKED
from penstock.broker.features.pop.ops import Kind, Longs, Op, Rows
from penstock.broker.features.pop.queue import PopQueue
from penstock.proto.wire.pop_pb2 import RECEIPT_EXPIRED, RECEIPT_OK, RECEIPT_UNKNOWN

HOMES = (7, 11)
TURNS = 300


@dataclass(frozen=True)
class Row:
    visible: int
    point: int
    times: int = 0
    is_finished: bool = False

    @property
    def was_begun(self) -> bool:
        return self.visible != PARKED and self.point != GIVEN_BACK


class Model:
    """The same, message by message."""

    def __init__(self, begin: int) -> None:
        self.base = self.next = begin
        self.rows: dict[int, Row] = {}
        self.is_orderly = False

    def apply(self, op: Op, point: int) -> None:
        offsets = op.offsets.tolist()
        if op.kind is Kind.STATE:
            assert op.rows is not None
            columns = zip(*(column.tolist() for column in op.rows), strict=True)
            self.rows = {row[0]: Row(row[1], row[2], row[3], bool(row[4])) for row in columns if row[0] >= self.base}
            self.next, self.is_orderly = max(op.next, self.base), op.is_orderly
        elif op.kind in (Kind.POP, Kind.PARK):
            self.is_orderly = op.is_orderly
            for offset in offsets:
                if offset >= self.next:
                    self.rows[offset] = Row(PARKED, op.at_ms) if op.kind is Kind.PARK else Row(op.at_ms, point)
                elif op.kind is Kind.PARK and offset in self.rows:
                    self.rows[offset] = replace(self.rows[offset], visible=op.at_ms, point=GIVEN_BACK)
            self.next = max(self.next, op.next)
        else:
            for offset in [offset for offset in offsets if offset in self.rows]:
                self._change(op, offset, point)
        if self.is_orderly:
            for offset in sorted(self.rows):
                if not self.rows[offset].is_finished:
                    break
                del self.rows[offset]

    def _change(self, op: Op, offset: int, point: int) -> None:
        row = self.rows[offset]
        if op.kind in (Kind.CHANGE, Kind.AGAIN):
            times = row.times + (op.kind is Kind.AGAIN and row.was_begun)
            self.rows[offset] = Row(op.at_ms, point, times)
        elif op.kind is Kind.RENEW:
            self.rows[offset] = replace(row, visible=op.at_ms)
        elif op.kind is Kind.DONE and self.is_orderly:
            self.rows[offset] = replace(row, is_finished=True)
        else:
            del self.rows[offset]

    def status(self, offset: int, point: int, until_ms: int, now_ms: int, op_end: int) -> tuple[int, bool]:
        row = self.rows.get(offset)
        if offset >= self.next or point >= op_end:
            return RECEIPT_UNKNOWN, False
        if row is None:
            return (RECEIPT_OK if until_ms > now_ms else RECEIPT_EXPIRED), False
        is_good = row.point == point and row.visible > now_ms
        return (RECEIPT_OK if is_good else RECEIPT_EXPIRED), is_good and not row.is_finished


def longs(values: list[int]) -> Longs:
    return np.array(sorted(values), np.int64)


def columns_of(rows: Rows) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in rows), strict=True))


def check(queue: PopQueue, model: Model, point: int, random_: random.Random) -> None:
    rows = sorted(model.rows.items())
    assert columns_of(queue.rows) == [
        (offset, row.visible, row.point, row.times, int(row.is_finished)) for offset, row in rows
    ]
    assert (len(queue), queue.next, queue.is_orderly) == (len(rows), model.next, model.is_orderly)
    assert queue.low == (rows[0][0] if rows else model.next)
    assert queue.given_back().tolist() == [offset for offset, row in rows if row.point == GIVEN_BACK]
    due = [row.visible for _, row in rows if row.visible != PARKED and not row.is_finished]
    assert queue.due_ms == min(due, default=NEVER)
    asked = longs(random_.sample(range(model.next + 3), min(model.next + 3, random_.randint(1, 8))))
    points = [row.point for _, row in rows if row.point >= 0] or [0]
    said = random_.choice([*points, point + 1]), random_.randint(0, 40), random_.randint(0, 40), point + 1
    statuses, live = queue.statuses(asked, *said)
    wanted = [model.status(offset, *said) for offset in asked.tolist()]
    assert statuses.tolist() == [status for status, _ in wanted]
    assert live.tolist() == [offset for offset, (_, is_live) in zip(asked.tolist(), wanted, strict=True) if is_live]


def some_ops(model: Model, random_: random.Random, *, is_orderly: bool) -> list[Op]:
    """Those of one record: what is parked on the way to what is given out comes first."""
    kind = random_.choice([Kind.POP, Kind.POP, *(each for each in Kind if each is not Kind.STATE)])
    op = Op(kind, "g", "t", 0, longs([]), at_ms=random_.randint(1, 40), is_orderly=is_orderly)
    if kind is Kind.POP:
        new = list(range(model.next, model.next + random_.randint(0, 8)))
        parked = {offset: random_.choice((0, 0, *HOMES)) for offset in new}
        ops = [
            op._replace(kind=Kind.PARK, offsets=longs(found), at_ms=home, next=model.next)
            for home in HOMES
            if (found := [offset for offset in new if parked[offset] == home])
        ]
        given = longs([offset for offset in new if not parked[offset] and random_.random() < 0.9])
        return [*ops, op._replace(offsets=given, next=model.next + len(new))]
    known = list(model.rows)
    strange = random_.sample(range(model.next), min(model.next, 2))
    chosen = random_.sample(known, random_.randint(0, len(known))) + strange
    return [op._replace(offsets=longs(list(set(chosen))), is_orderly=model.is_orderly)]


@pytest.mark.parametrize("is_orderly", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_a_queue_is_what_its_ops_say(seed: int, is_orderly: bool) -> None:
    random_ = random.Random(seed)
    queue, model = PopQueue("g", "t", 0, 3), Model(3)
    for point in range(TURNS):
        for op in some_ops(model, random_, is_orderly=is_orderly):
            queue.apply(op, point)
            model.apply(op, point)
        check(queue, model, point, random_)
        if random_.random() < 0.05:
            state = queue.state()
            queue = PopQueue("g", "t", 0, model.base)
            queue.apply(state, point)
            model.apply(state, point)
            check(queue, model, point, random_)


def test_messages_that_are_parked_between_others_come_in_their_places() -> None:
    queue, model = PopQueue("g", "t", 0, 0), Model(0)
    parked = Op(Kind.PARK, "g", "t", 0, longs([1, 3, 5]), at_ms=7, next=0)
    given = Op(Kind.POP, "g", "t", 0, longs([0, 2, 4, 6]), at_ms=30, next=7)
    for op in (parked, given):
        queue.apply(op, 1)
        model.apply(op, 1)
    assert queue.rows.offsets.tolist() == sorted(model.rows)
