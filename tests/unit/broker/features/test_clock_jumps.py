"""The wall clock of a master is set, for minutes or to and fro, while messages wait for their time.

What was promised goes by the right time, which passes for producers and consumers: nothing is early, nothing is later
than the clock was wrong, and halves are asked about as if nothing had been.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.broker.features.exactly_once import staging
from penstock.broker.features.exactly_once.exactly_once import ExactlyOnce
from penstock.broker.features.exactly_once.staging_table import StagingTable
from penstock.formats.record.layout import decode_record
from penstock.proto import names
from penstock.runtime.clock import BELIEVED_S
from tests.support.broker import popping, transacting
from tests.support.broker.kit import Kit, in_loop
from tests.support.broker.stores import batch, bodies, read, split
from tests.support.broker.timing import START, later_batch
from tests.support.clock import ManualClock
from tests.support.waiting import eventually
from tests.unit.broker.features.levels import kit as levels

SENT_UNTIL_S, EVERY_S = 200, 12
LATER_S, LEVEL, LEVEL_S, INVISIBLE_S, ASKED_S, ASKED_AGAIN_S = 15, 3, 10, 30, 6, 30
HOUR_S = 3600

Offset = Callable[[int], int]
"""How far the wall clock is ahead, by the second."""


def for_minutes(offset_s: int) -> Offset:
    return lambda now_s: offset_s if 60 <= now_s < 160 else 0


def to_and_fro(now_s: int) -> int:
    return 1 if now_s % 2 else -1


class Jumping:
    """Brokers with one clock, which is wrong at times, and what happened to their messages at which second."""

    def __init__(self, root: Path, offset_s: Offset) -> None:
        self.now_s = 0
        self.due: dict[str, int] = {}
        self.came: dict[str, int] = {}
        self.asked: dict[str, list[int]] = {}
        self._offset_s = offset_s
        self._clock = ManualClock(START)
        self._waiting = levels.Node(root, self._clock)
        self._poppers = popping.Node(manual=self._clock)
        self._producers = transacting.opened(manual=self._clock)
        self._poppers.add_topic()
        self._producers.join()

    async def second(self, *, sends: bool) -> None:
        self._clock.set_wall(START + 1000 * (self.now_s + self._offset_s(self.now_s)))
        if sends:
            await self._send()
        await self._waiting.turn()
        await self._poppers.pass_s(0)
        await self._producers.pass_s(0)
        for node, topic in ((self._waiting, "orders"), (self._poppers, popping.RETRY)):
            for body in bodies(node.store, topic, 0) if node.store.reader.queue_range(topic, 0)[1] else ():
                self.came.setdefault(body.decode(), self.now_s)
        while self._producers.asked:
            for record in split(self._producers.asked.pop().records):
                self.asked.setdefault(decode_record(record).body.decode(), []).append(self.now_s)
        self._clock.advance(1)
        self.now_s += 1

    def store_times(self) -> list[int]:
        return [record.store_timestamp_ms for record in read(self._waiting.store, "orders")]

    async def _send(self) -> None:
        now_s = self.now_s
        later, level, popped, half = (f"{what} at {now_s}" for what in ("later", "level", "popped", "half"))
        self.due |= {later: now_s + LATER_S, level: now_s + LEVEL_S, popped: now_s + INVISIBLE_S}
        records = later_batch([later.encode()], [START + 1000 * self.due[later]])
        self._waiting.store.append(names.TIMER_TOPIC, records, queues=1)
        self._waiting.delay(LEVEL, [level.encode()])
        self._poppers.store.append("orders", batch("orders", [popped.encode()]), queues=4)
        self._poppers.settle()
        await self._poppers.receive(invisible_ms=INVISIBLE_S * 1000)
        await self._producers.halves([half.encode()])
        self.asked[half] = [now_s]


@pytest.mark.parametrize(
    ("offset_s", "late_s", "until_s"),
    [
        pytest.param(for_minutes(HOUR_S), 1, 300, id="an hour ahead"),
        pytest.param(for_minutes(-HOUR_S), 480, 600, id="an hour back"),  # until six minutes after it is right again
        pytest.param(to_and_fro, 2, 300, id="a second to and fro"),
    ],
)
@in_loop
async def test_nothing_is_early_nor_later_than_the_clock_was_wrong(
    offset_s: Offset, late_s: int, until_s: int, tmp_path: Path
) -> None:
    it = Jumping(tmp_path, offset_s)
    while it.now_s < until_s:
        await it.second(sends=it.now_s < SENT_UNTIL_S and it.now_s % EVERY_S == 0)
    assert it.came.keys() == it.due.keys()
    late = {body: it.came[body] - due for body, due in it.due.items()}
    most = {body: 2 if body.startswith("popped") else late_s for body in late}  # which was given for a duration
    assert {body: by_s for body, by_s in late.items() if not 0 <= by_s <= most[body]} == {}
    times = it.store_times()
    assert times == sorted(times)
    for half, (sent, first, *again) in it.asked.items():
        assert abs(first - sent - ASKED_S) <= 2, half  # small jumps are followed
        waits = {after - before for before, after in itertools.pairwise([first, *again])}
        assert waits <= {ASKED_AGAIN_S, ASKED_AGAIN_S + 1}, half


def test_staged_data_outlasts_a_clock_that_is_set_ahead_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "LOOK_S", 0.001)

    @in_loop
    async def run() -> None:
        clock = ManualClock(START)
        node = Kit(clock=clock)
        node.add_topic()
        await node[ExactlyOnce].writers.open_writer("w", "r1")
        await node.stage()
        looking = asyncio.create_task(node[ExactlyOnce].staging.run())
        clock.set_wall(START + 30 * 86_400_000)
        await eventually(lambda: node.core.clock.is_behind)
        assert node.tables[StagingTable].staged
        clock.advance(BELIEVED_S)
        await eventually(lambda: not node.tables[StagingTable].staged)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

    run()
