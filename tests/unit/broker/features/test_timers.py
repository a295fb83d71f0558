from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.broker.core.tables.topics import Topic
from penstock.broker.features.later import timers as timers_module
from penstock.broker.features.later.later import Later
from penstock.broker.features.later.timer_table import Run, TimerTable
from penstock.broker.features.later.timer_wheel import COARSE_MS, FINE_MS, TimerWheel
from penstock.broker.features.later.timers import RUN_COUNT
from penstock.formats.record.properties import decode_properties, encode_properties
from penstock.proto import names
from penstock.proto.errors import CorruptBatch, DiskFull, FlowControl, Forbidden, InvalidArgument, MessageTooLarge
from penstock.runtime.clock import BELIEVED_S
from tests.support.broker.kit import in_loop
from tests.support.broker.stores import HOST, batch
from tests.support.broker.timing import ORDERS, START, Node, later_batch, later_properties
from tests.support.golden import GOLDEN


@in_loop
async def test_messages_come_at_their_times_in_their_order(node: Node) -> None:
    node.later([b"c", b"a", b"b"], [30, 10, 20], queue_id=2)
    await node.turn(9.9)
    assert node.delivered(queue_id=2) == []
    await node.turn(0.1)
    assert node.delivered(queue_id=2) == [b"a"]
    await node.turn(60)
    assert node.delivered(queue_id=2) == [b"a", b"b", b"c"]
    assert node.timers.delivered == 3


@in_loop
async def test_a_delivered_message_is_as_it_was_sent(node: Node) -> None:
    node.later([b"body"], [1])
    await node.turn(2)
    record = node.records()[0]
    properties = decode_properties(record.properties)
    assert (record.topic, record.queue_id, record.queue_offset) == ("orders", 0, 0)
    assert record.born_host == HOST
    assert properties.pop(names.PRODUCER_PROPERTY)
    assert properties == {"TIMER_DELIVER_MS": str(START + 1000), "TIMER_OUT_MS": str(START + 1000), "TAGS": "t"}


@in_loop
async def test_what_is_overdue_comes_at_once_and_queues_that_went_are_replaced(node: Node) -> None:
    node.later([b"past"], [-5], queue_id=3)
    node.put_topic(Topic("orders", 2, 2))
    await node.turn()
    assert node.delivered(queue_id=1) == [b"past"]


@in_loop
async def test_a_new_master_knows_what_waits_and_delivers_nothing_twice(node: Node) -> None:
    node.later([b"a", b"b", b"c"], [10, 20, 4000])
    await node.turn(15)
    again = node.reopened(unclean=True)
    try:
        await again.turn()
        assert again.delivered() == [b"a"]
        await again.turn(10)
        assert again.delivered() == [b"a", b"b"]
        await again.turn(8000)
        assert again.delivered() == [b"a", b"b", b"c"]
    finally:
        again.close()


@pytest.mark.parametrize("failing_at", [0, 1, 2])
@in_loop
async def test_a_run_that_was_cut_short_is_finished_by_whoever_comes(node: Node, failing_at: int) -> None:
    count = 2 * RUN_COUNT + 10
    bodies = [b"%d" % number for number in range(count)]
    node.later(bodies, [1 + number / count for number in range(count)])
    node.fail_appends(failing_at, "orders")
    with pytest.raises(DiskFull):
        await node.turn(5)
    assert failing_at * (RUN_COUNT - 2) <= len(node.delivered()) <= failing_at * RUN_COUNT
    node.later([b"late"], [3])  # due as well, and not in that run
    again = node.reopened(unclean=True)
    try:
        await again.turn()
        await again.turn()
        assert again.delivered() == [*bodies, b"late"]
    finally:
        again.close()


@pytest.mark.parametrize("full", ["orders", "other"])
@in_loop
async def test_a_run_that_was_cut_short_between_two_topics_comes_once_to_each(node: Node, full: str) -> None:
    node.put_topic(Topic("other", 1, 1))
    node.later([b"a", b"b"], [1, 2])
    node.later([b"c"], [1], topic="other")
    node.fail_appends(to=full)
    with pytest.raises(DiskFull):
        await node.turn(5)
    again = node.reopened(unclean=True)
    try:
        await again.turn()
        await again.turn()
        assert (again.delivered(), again.delivered("other")) == ([b"a", b"b"], [b"c"])
    finally:
        again.close()


@in_loop
async def test_a_clock_that_goes_back_brings_nothing_early_and_nothing_twice(node: Node) -> None:
    node.later([b"a", b"d"], [500, 2000])
    await node.turn(1000)
    node.manual.set_wall(START + 10_000)
    node.later([b"b", b"c"], [5, 600])
    await node.turn()
    assert node.delivered() == [b"a", b"b"]
    again = node.reopened(unclean=True)
    try:
        await again.turn()
        assert again.delivered() == [b"a", b"b"]
        assert again.tables[TimerTable].last.before == ((START + 1_000_000, 2),)
        await again.turn(690)
        assert again.delivered() == [b"a", b"b", b"c"]
        await again.turn(2300)
        assert again.delivered() == [b"a", b"b", b"c", b"d"]
        assert len(again.tables[TimerTable].last.delivered()) == 1
    finally:
        again.close()


@in_loop
async def test_a_clock_that_is_set_ahead_for_a_while_brings_nothing_early(node: Node) -> None:
    node.later([b"a", b"b"], [100, 3000])
    await node.turn(1)
    node.manual.set_wall(START + 3_600_000)
    for _ in range(3):
        await node.turn(1)
    node.manual.set_wall(START + 4_000)
    await node.turn()
    assert node.delivered() == []
    await node.turn(96)
    assert node.delivered() == [b"a"]
    node.manual.set_wall(START + 3_600_000)  # and this time it stays so
    await node.turn(1)
    await node.turn(BELIEVED_S)
    assert node.delivered() == [b"a", b"b"]


@in_loop
async def test_a_run_is_finished_by_a_broker_with_other_limits_and_fewer_files(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bodies = [b"%03d" % number + b"." * 20_000 for number in range(120)]
    for start in range(0, 120, 10):
        delays = [(120 - number) / 8 for number in range(start, start + 10)]  # the newest come first
        node.later(bodies[start : start + 10], delays)
    node.fail_appends(4, "orders")
    monkeypatch.setattr(timers_module, "RUN_BYTES", 100_000)
    with pytest.raises(DiskFull):
        await node.turn(50)
    done = node.delivered()
    assert 0 < len(done) < 40
    node.close(unclean=True)
    monkeypatch.setattr(timers_module, "RUN_BYTES", 150_000)
    again = Node(node.root, node.manual, maxMessageSize=1 << 17)
    try:
        removal = again.store.removal
        end = removal.files()[0].end
        kept = removal.first_from(names.TIMER_TOPIC, 0, end)
        assert 20 < kept < 80
        removal.take_out(end)
        for _ in removal.align():
            continue
        await again.turn()
        await again.turn()
        assert again.delivered() == list(reversed(bodies[kept:]))
        assert f"are gone, their log files were deleted offsets=0..{kept - 1}" in caplog.text
    finally:
        again.close()


@pytest.mark.parametrize("is_rolled", [False, True])
def test_what_is_due_together_may_be_larger_than_a_log_file(
    node: Node, monkeypatch: pytest.MonkeyPatch, is_rolled: bool
) -> None:
    monkeypatch.setattr(timers_module, "RUN_BYTES", 4 << 20)  # a log file has 1 MiB

    @in_loop
    async def run() -> None:
        bodies = [b"%03d" % number + b"." * 20_000 for number in range(120)]
        for start in range(0, 120, 10):
            node.later(bodies[start : start + 10], [10] * 10)
        if is_rolled:
            node.timers.make_way(node.store.end_offset)
            await node.turn()
            assert node.timers.rolled == 120
        await node.turn(20)
        assert (node.delivered(), node.timers.dropped) == (bodies, 0)

    run()


@in_loop
async def test_a_run_that_cannot_be_recorded_is_begun_again(node: Node) -> None:
    node.later([b"a", b"b"], [1, 100])
    left = node.fail_appends()
    with pytest.raises(DiskFull):
        await node.turn(5)
    left[0] = 100
    await node.turn()
    assert node.delivered() == [b"a"]


@in_loop
async def test_a_role_that_changes_in_the_middle_ends_a_delivery(node: Node) -> None:
    count = 2 * RUN_COUNT
    bodies = [b"%d" % number for number in range(count)]
    node.later(bodies, [1 + number / count for number in range(count)])
    with node.changing_role_at("orders"):
        await node.turn(5)
    assert len(node.delivered()) == RUN_COUNT
    await node.turn()
    assert node.delivered() == bodies


@in_loop
async def test_a_failed_append_is_made_good_by_the_same_broker(node: Node) -> None:
    node.later([b"a"], [1])
    left = node.fail_appends(1)  # the run is recorded
    with pytest.raises(DiskFull):
        await node.turn(5)
    left[0] = 100
    await node.turn()
    assert node.delivered() == [b"a"]


@in_loop
async def test_nothing_is_delivered_while_too_few_replicas_are_there(node: Node) -> None:
    node.later([b"a"], [1])
    node.role.enough = False
    await node.turn(5)
    assert node.delivered() == []
    node.role.enough = True
    await node.turn()
    assert node.delivered() == [b"a"]


@in_loop
async def test_a_slave_turns_no_wheel_and_begins_as_master_with_all_that_waits(node: Node) -> None:
    node.change_role(master=False)
    node.later([b"a"], [1])
    await node.turn(5)
    assert node.delivered() == []
    node.change_role(master=True)
    await node.turn()
    assert node.delivered() == [b"a"]


@in_loop
async def test_messages_of_a_deleted_topic_go_with_it(node: Node) -> None:
    node.put_topic(Topic("kept", 1, 1))
    node.later([b"a"], [1])
    node.later([b"b"], [1], topic="kept")
    node.delete_topic("orders")
    node.dispatch()
    await node.turn(5)
    assert node.delivered("kept") == [b"b"]
    assert (node.timers.delivered, node.timers.dropped) == (1, 1)


def test_what_cannot_be_delivered_is_refused_by_name(node: Node) -> None:
    def check(records: bytes) -> None:
        node[Later].check(memoryview(records), ORDERS)

    check(later_batch([b"a"], [START + 1000]))
    with pytest.raises(InvalidArgument, match=r"record 1 .* more than 86400 s \(timerMaxDelaySec\)"):
        check(later_batch([b"a", b"b"], [START, START + 86_401_000]))
    with pytest.raises(CorruptBatch, match=r"record 0 .* other topic"):
        check(later_batch([b"a"], [START], topic="others"))
    with pytest.raises(Forbidden, match="bad queue"):
        check(later_batch([b"a"], [START], queue_id=4))
    with pytest.raises(CorruptBatch, match="other topic"):
        check(batch(names.TIMER_TOPIC, [b"a"]))
    without_time = encode_properties({"REAL_TOPIC": "orders", "REAL_QID": "0", "TIMER_OUT_MS": "soon"})
    with pytest.raises(CorruptBatch, match="bad time"):
        check(batch(names.TIMER_TOPIC, [b"a"], properties=[without_time]))
    long = later_properties("orders", 0, START) + encode_properties({"x": "y" * 32_600})
    with pytest.raises(MessageTooLarge, match="leave no room"):
        check(batch(names.TIMER_TOPIC, [b"a"], properties=[long]))


@in_loop
async def test_too_many_that_wait_are_refused(tmp_path: Path) -> None:
    node = Node(tmp_path / "store", timerMessagesMax=1)
    node.later([b"a"], [10])
    await node.turn()
    with pytest.raises(FlowControl, match="timerMessagesMax"):
        node[Later].check(memoryview(later_batch([b"a"], [START])), ORDERS)


def test_a_store_of_rocketmq_goes_on_where_its_timers_were(tmp_path: Path) -> None:
    table = TimerTable()
    table.import_from(tmp_path)
    assert table.last == Run(), "no timercheck"
    table.import_from(GOLDEN / "normal" / "config")
    assert table.last == Run(1, ((1795222791000, 34),), 1795222791000, 34)


def test_what_rocketmq_delivered_in_between_is_not_delivered_again() -> None:
    """The store was Penstock's, then RocketMQ's, and comes back: ``timerRuns.json`` is what Penstock left."""
    table, own = TimerTable(), Run(7, ((500, 20),), 1000, 30, 12, 3)
    table.load({"last": own.to_json()}, 0)
    table.import_from(GOLDEN / "normal" / "config")
    assert table.last == Run(7, ((500, 20), (1795222791000, 34)), 1000, 30, 12), "its own run may be unfinished"
    assert table.changes, "the next start finds it in the file, too"
    due, offsets = np.array([1795222791000, 1795222791000, 1795222791001]), np.array([33, 34, 33])
    assert table.last.is_before(due, offsets).tolist() == [True, False, False]


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
