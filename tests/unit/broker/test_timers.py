from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.broker.core.dispatch import apply
from penstock.broker.core.metrics import Counters
from penstock.broker.core.producers import ProducerTable
from penstock.broker.core.state import State, Topic, deleted_topic
from penstock.broker.core.state_log import StateLog
from penstock.broker.features.later.timer_table import Run, TimerTable, imported_run
from penstock.broker.features.later.timer_wheel import COARSE_MS, FINE_MS, TimerWheel
from penstock.broker.features.later.timers import PAGE_COUNT, Timers
from penstock.broker.store import Store
from penstock.formats.record.layout import Record, decode_record
from penstock.formats.record.properties import decode_properties, encode_properties
from penstock.proto import names
from penstock.proto.errors import CorruptBatch, DiskFull, FlowControl, InvalidArgument, MessageTooLarge
from tests.support.broker.broker_parts import FakeRole, in_loop
from tests.support.broker.stores import HOST, batch, dispatch_all, store_config
from tests.support.clock import ManualClock
from tests.support.golden import GOLDEN

START = 1_700_000_000_000
ORDERS = Topic("orders", 4, 4)


class Node:
    """A store, its tables and its timers; ``restarted`` has the store alone."""

    def __init__(self, root: Path, clock: ManualClock | None = None, **settings: Any) -> None:
        self.root = root
        self.clock = clock or ManualClock(START)
        self.store = Store.open(store_config(root, segment_bytes=1 << 20), clock=self.clock, deletes=deleted_topic)
        self.producers = ProducerTable()
        self.state = State(self.producers)
        for result in self.store.replay(0):
            apply(result, self.state, self.producers)
        self.state_log = StateLog(self.state, self.store, HOST, lambda end: None)
        self.role = FakeRole()
        self.timers = Timers(
            self.store,
            self.state,
            self.producers,
            self.state_log,
            self.role,
            Counters(),
            on_appended=lambda end: None,
            clock=self.clock,
            **({"page_bytes_max": 1 << 18, "delay_ms_max": 86_400_000, "waiting_max": 1 << 20} | settings),
        )

    def restarted(self, *, unclean: bool = False) -> Node:
        if unclean:
            self.store.abandon()
        else:
            self.store.close()
        return Node(self.root, self.clock)

    def dispatch(self) -> None:
        for result in dispatch_all(self.store):
            apply(result, self.state, self.producers)

    def later(
        self, bodies: Sequence[bytes], delays_s: Sequence[float], *, topic: str = "orders", queue_id: int = 0
    ) -> None:
        """Append messages for later and dispatch them."""
        records = later_batch(bodies, [START + int(1000 * delay) for delay in delays_s], topic=topic, queue_id=queue_id)
        self.store.append(names.TIMER_TOPIC, records, queues=1)
        self.dispatch()

    async def turn(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        await self.timers.turn()
        self.dispatch()

    def records(self, topic: str = "orders", queue_id: int = 0) -> list[Record]:
        self.dispatch()
        low, high = self.store.reader.queue_range(topic, queue_id)
        picked = self.store.picker.locate(topic, queue_id, np.arange(low, high))
        data = self.store.picker.join(picked).tobytes()
        ends = np.cumsum(picked.sizes)
        return [decode_record(data[end - size : end]) for end, size in zip(ends, picked.sizes, strict=True)]

    def bodies(self, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
        return [record.body for record in self.records(topic, queue_id)]


def later_properties(topic: str, queue_id: int, due: int) -> bytes:
    where = {"REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
    return encode_properties({"TIMER_DELIVER_MS": str(due), "TIMER_OUT_MS": str(due)} | where)


def later_batch(bodies: Sequence[bytes], due: Sequence[int], *, topic: str = "orders", queue_id: int = 0) -> bytes:
    properties = [later_properties(topic, queue_id, at) + encode_properties({"TAGS": "t"}) for at in due]
    return batch(names.TIMER_TOPIC, bodies, properties=properties, mark=(7, 0, 0, 1))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "store")
    made.state_log.put_topic(ORDERS)
    made.dispatch()
    yield made
    made.store.close()


def test_messages_come_at_their_times_in_their_order(node: Node) -> None:
    @in_loop
    async def run() -> None:
        node.later([b"c", b"a", b"b"], [30, 10, 20], queue_id=2)
        await node.turn(9.9)
        assert node.bodies(queue_id=2) == []
        await node.turn(0.1)
        assert node.bodies(queue_id=2) == [b"a"]
        await node.turn(60)
        assert node.bodies(queue_id=2) == [b"a", b"b", b"c"]
        assert node.timers.delivered == 3

    run()


def test_a_delivered_message_is_as_it_was_sent(node: Node) -> None:
    @in_loop
    async def run() -> None:
        node.later([b"body"], [1])
        await node.turn(2)
        record = node.records()[0]
        properties = decode_properties(record.properties)
        assert (record.topic, record.queue_id, record.queue_offset) == ("orders", 0, 0)
        assert record.born_host == HOST
        assert properties.pop(names.PRODUCER_PROPERTY)
        assert properties == {"TIMER_DELIVER_MS": str(START + 1000), "TIMER_OUT_MS": str(START + 1000), "TAGS": "t"}

    run()


def test_what_is_overdue_comes_at_once_and_queues_that_went_are_replaced(node: Node) -> None:
    @in_loop
    async def run() -> None:
        node.later([b"past"], [-5], queue_id=3)
        node.state_log.put_topic(Topic("orders", 2, 2))
        await node.turn()
        assert node.bodies(queue_id=1) == [b"past"]

    run()


def test_a_new_master_knows_what_waits_and_delivers_nothing_twice(node: Node) -> None:
    @in_loop
    async def run() -> None:
        node.later([b"a", b"b", b"c"], [10, 20, 4000])
        await node.turn(15)
        again = node.restarted(unclean=True)
        try:
            await again.turn()
            assert again.bodies() == [b"a"]
            await again.turn(10)
            assert again.bodies() == [b"a", b"b"]
            await again.turn(8000)
            assert again.bodies() == [b"a", b"b", b"c"]
        finally:
            again.store.close()

    run()


@pytest.mark.parametrize("failing_at", [0, 1, 2])
def test_a_run_that_was_cut_short_is_finished_by_whoever_comes(node: Node, failing_at: int) -> None:
    @in_loop
    async def run() -> None:
        count = 2 * PAGE_COUNT + 10
        bodies = [b"%d" % number for number in range(count)]
        node.later(bodies, [1 + number / count for number in range(count)])
        append, left = node.store.append, [failing_at]

        def failing(topic: str, records: Any, **settings: Any) -> Any:
            if topic == "orders":
                left[0] -= 1
                if left[0] < 0:
                    raise DiskFull("no space")
            return append(topic, records, **settings)

        node.store.append = failing  # type: ignore[method-assign]
        with pytest.raises(DiskFull):
            await node.turn(5)
        assert len(node.bodies()) == failing_at * PAGE_COUNT
        node.later([b"late"], [3])  # due as well, and not in that run
        again = node.restarted(unclean=True)
        try:
            await again.turn()
            await again.turn()
            assert again.bodies() == [*bodies, b"late"]
        finally:
            again.store.close()

    run()


def test_a_clock_that_goes_back_brings_nothing_early_and_nothing_twice(node: Node) -> None:
    @in_loop
    async def run() -> None:
        node.later([b"a", b"d"], [500, 2000])
        await node.turn(1000)
        node.clock.set_wall(START + 10_000)
        node.later([b"b", b"c"], [5, 600])
        await node.turn()
        assert node.bodies() == [b"a", b"b"]
        again = node.restarted(unclean=True)
        try:
            await again.turn()
            assert again.bodies() == [b"a", b"b"]
            assert again.state.timers.last.before == ((START + 1_000_000, 2),)
            again.clock.set_wall(START + 700_000)
            await again.turn()
            assert again.bodies() == [b"a", b"b", b"c"]
            again.clock.set_wall(START + 3_000_000)
            await again.turn()
            assert again.bodies() == [b"a", b"b", b"c", b"d"]
            assert len(again.state.timers.last.delivered()) == 1
        finally:
            again.store.close()

    run()


def test_a_run_that_cannot_be_recorded_is_begun_again(node: Node) -> None:
    @in_loop
    async def run() -> None:
        node.later([b"a", b"b"], [1, 100])
        append = node.store.append

        def failing(topic: str, records: Any, **settings: Any) -> Any:
            raise DiskFull("no space")

        node.store.append = failing  # type: ignore[method-assign]
        with pytest.raises(DiskFull):
            await node.turn(5)
        node.store.append = append  # type: ignore[method-assign]
        await node.turn()
        assert node.bodies() == [b"a"]

    run()


def test_a_role_that_changes_in_the_middle_ends_a_delivery(node: Node) -> None:
    @in_loop
    async def run() -> None:
        count = 2 * PAGE_COUNT
        bodies = [b"%d" % number for number in range(count)]
        node.later(bodies, [1 + number / count for number in range(count)])
        append = node.store.append

        def turning(topic: str, records: Any, **settings: Any) -> Any:
            placed = append(topic, records, **settings)
            if topic == "orders":
                node.timers.on_role(None)
                node.timers.on_role(node.state_log)  # master again before the delivery looks
            return placed

        node.store.append = turning  # type: ignore[method-assign]
        await node.turn(5)
        assert len(node.bodies()) == PAGE_COUNT
        node.store.append = append  # type: ignore[method-assign]
        await node.turn()
        assert node.bodies() == bodies

    run()


def test_a_failed_append_is_made_good_by_the_same_broker(node: Node) -> None:
    @in_loop
    async def run() -> None:
        node.later([b"a"], [1])
        append = node.store.append

        def failing(topic: str, records: Any, **settings: Any) -> Any:
            raise DiskFull("no space")

        node.store.append = failing  # type: ignore[method-assign]
        with pytest.raises(DiskFull):
            await node.turn(5)
        node.store.append = append  # type: ignore[method-assign]
        await node.turn()
        assert node.bodies() == [b"a"]

    run()


def test_nothing_is_delivered_while_too_few_replicas_are_there(node: Node) -> None:
    @in_loop
    async def run() -> None:
        node.later([b"a"], [1])
        node.role.enough = False
        await node.turn(5)
        assert node.bodies() == []
        node.role.enough = True
        await node.turn()
        assert node.bodies() == [b"a"]

    run()


def test_a_slave_turns_no_wheel_and_begins_as_master_with_all_that_waits(node: Node) -> None:
    @in_loop
    async def run() -> None:
        node.timers.on_role(None)
        node.later([b"a"], [1])
        await node.turn(5)
        assert node.bodies() == []
        node.timers.on_role(node.state_log)
        await node.turn()
        assert node.bodies() == [b"a"]

    run()


def test_messages_of_a_deleted_topic_go_with_it(node: Node) -> None:
    @in_loop
    async def run() -> None:
        node.state_log.put_topic(Topic("kept", 1, 1))
        node.later([b"a"], [1])
        node.later([b"b"], [1], topic="kept")
        node.state_log.delete_topic("orders")
        node.dispatch()
        await node.turn(5)
        assert node.bodies("kept") == [b"b"]
        assert (node.timers.delivered, node.timers.dropped) == (1, 1)

    run()


def test_retention_keeps_the_log_from_the_first_message_that_waits(node: Node) -> None:
    @in_loop
    async def run() -> None:
        assert node.timers.first_waiting() is None
        node.later([b"a"], [10])
        position = node.store.picker.locate(names.TIMER_TOPIC, 0, np.arange(1)).positions[0]
        await node.turn()
        assert node.timers.first_waiting() == position
        node.later([b"b"], [100])
        await node.turn(20)
        await node.turn(60)  # the run is recorded as delivered
        assert node.timers.first_waiting() > position  # type: ignore[operator]
        await node.turn(60)
        await node.turn(60)
        assert node.timers.first_waiting() is None
        assert node.bodies() == [b"a", b"b"]

    run()


def test_what_cannot_be_delivered_is_refused_by_name(node: Node) -> None:
    def check(records: bytes) -> None:
        node.timers.check(memoryview(records), ORDERS)

    check(later_batch([b"a"], [START + 1000]))
    with pytest.raises(InvalidArgument, match=r"record 1 .* more than 86400 s \(timerMaxDelaySec\)"):
        check(later_batch([b"a", b"b"], [START, START + 86_401_000]))
    with pytest.raises(CorruptBatch, match=r"record 0 .* other topic"):
        check(later_batch([b"a"], [START], topic="others"))
    with pytest.raises(CorruptBatch, match="bad queue"):
        check(later_batch([b"a"], [START], queue_id=4))
    with pytest.raises(CorruptBatch, match="other topic"):
        check(batch(names.TIMER_TOPIC, [b"a"]))
    without_time = encode_properties({"REAL_TOPIC": "orders", "REAL_QID": "0", "TIMER_OUT_MS": "soon"})
    with pytest.raises(CorruptBatch, match="bad time"):
        check(batch(names.TIMER_TOPIC, [b"a"], properties=[without_time]))
    long = later_properties("orders", 0, START) + encode_properties({"x": "y" * 32_600})
    with pytest.raises(MessageTooLarge, match="leave no room"):
        check(batch(names.TIMER_TOPIC, [b"a"], properties=[long]))


def test_too_many_that_wait_are_refused(tmp_path: Path) -> None:
    node = Node(tmp_path / "store", waiting_max=1)
    node.state_log.put_topic(ORDERS)

    @in_loop
    async def run() -> None:
        node.later([b"a"], [10])
        await node.turn()
        with pytest.raises(FlowControl, match="timerMessagesMax"):
            node.timers.check(memoryview(later_batch([b"a"], [START])), ORDERS)

    run()
    node.store.close()


def test_the_table_survives_snapshots_and_repetitions() -> None:
    table, again = TimerTable(), TimerTable()
    run = Run(3, ((9, 4), (5, 6)), 7, 8, 2)
    table.apply(100, "TIMER_RUN", run.to_json())
    table.apply(50, "TIMER_RUN", Run(2).to_json())
    assert (table.last, table.position) == (run, 100)
    again.load(json.loads("{" + "".join(table.pieces()) + "}"))
    assert again.last == run
    assert list(again.repeated(200)) == [("TIMER_RUN", run.to_json())]
    assert list(table.repeated(100)) == []


def test_a_store_of_rocketmq_goes_on_where_its_timers_were() -> None:
    run = imported_run(GOLDEN / "normal" / "config" / "timercheck")
    assert run == Run(1, ((1795222791000, 34),), 1795222791000, 34)
    assert imported_run(GOLDEN / "normal" / "config" / "nothing") is None


def test_the_wheel_gives_back_all_that_is_due_whenever_it_is_asked() -> None:
    seed = 20
    random = np.random.default_rng(seed)
    wheel, waiting, given = TimerWheel(), {}, 0
    now = START
    for _ in range(200):
        count = int(random.integers(0, 50))
        due = now + random.integers(-FINE_MS, 3 * COARSE_MS, count)
        offsets = np.arange(given, given + count)
        given += count
        waiting.update(zip(offsets.tolist(), due.tolist(), strict=True))
        wheel.add(due, offsets)
        now += int(random.choice([100, FINE_MS, COARSE_MS // 2, 2 * COARSE_MS], p=[0.7, 0.2, 0.09, 0.01]))
        times, taken = wheel.take(now)
        expected = {offset: at for offset, at in waiting.items() if at <= now}
        assert dict(zip(taken.tolist(), times.tolist(), strict=True)) == expected, f"seed {seed}"
        for offset in expected:
            del waiting[offset]
        assert len(wheel) == len(waiting)
        assert wheel.first_offset() == min(waiting, default=None)
