"""Messages with a delay level: RocketMQ's schedule topic, delivered once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.broker.core.tables.topics import Topic
from penstock.broker.features.later.later import Later
from penstock.broker.features.levels import level_queues
from penstock.broker.features.levels.level_table import LevelTable
from penstock.broker.features.levels.levels import DelayLevels
from penstock.formats.columns import Column
from penstock.formats.destination import Delayed
from penstock.formats.record.layout import decode_record
from penstock.formats.record.properties import decode_properties
from penstock.formats.rocketmq_config import parse_rocketmq_json
from penstock.proto import names
from penstock.proto.errors import CorruptBatch, DiskFull, Forbidden, InvalidArgument, MessageTooLarge
from tests.support import golden
from tests.support.broker.kit import Kit, in_loop
from tests.support.broker.stores import batch, read, split
from tests.support.clock import ManualClock
from tests.unit.broker.features.levels.kit import Node, delayed


@in_loop
async def test_messages_come_when_their_levels_are_over(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.delay(3, [b"ten"], queue_id=2)
    node.delay(1, [b"one"], queue_id=2)
    await node.turn(0.9)
    assert node.delivered(queue_id=2) == []
    await node.turn(0.1)
    assert node.delivered(queue_id=2) == [b"one"]
    node.delay(3, [b"and ten"], queue_id=2)
    await node.turn(9)
    assert node.delivered(queue_id=2) == [b"one", b"ten"]
    assert node.queues.waiting() == [(3, 1)]
    await node.turn(1)
    assert node.delivered(queue_id=2) == [b"one", b"ten", b"and ten"]
    assert node.queues.delivered == 3


@in_loop
async def test_a_delivered_message_is_as_it_was_sent_and_names_its_level(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.delay(1, [b"body"])
    await node.turn(1)
    record = node.records()[0]
    properties = decode_properties(record.properties)
    assert properties.pop(names.PRODUCER_PROPERTY)
    assert (record.topic, record.queue_id, record.body) == ("orders", 0, b"body")
    assert properties == {"DELAY": "1", "TAGS": "t"}


@in_loop
async def test_what_clients_send_is_taken_and_other_levels_are_refused_by_name(tmp_path: Path) -> None:
    node = Node(tmp_path)
    feature, orders = node[DelayLevels], Topic("orders", 4, 4)
    properties, queue_ids = Delayed("orders", 18).place(Column.of([b"TAGS\x01t\x02"]), np.zeros(1, np.int32))
    sent = batch(names.SCHEDULE_TOPIC, [b"x"], queue_ids.tolist(), properties=[bytes(properties.data)])
    feature.check(memoryview(sent), orders)
    assert feature.target(orders) == (names.SCHEDULE_TOPIC, 18)
    with pytest.raises(InvalidArgument, match=r"record 0 .*none of 1\.\.18, .*messageDelayLevel"):
        feature.check(memoryview(delayed(19, [b"x"])), orders)
    sent = batch(names.SCHEDULE_TOPIC, [b"x"], 3, properties=[bytes(properties.data)])
    with pytest.raises(InvalidArgument, match="delay level"):
        feature.check(memoryview(sent), orders)
    with pytest.raises(CorruptBatch, match="other topic"):
        feature.check(memoryview(delayed(1, [b"x"], topic="order")), orders)
    with pytest.raises(Forbidden, match="bad queue"):
        feature.check(memoryview(delayed(1, [b"x"], queue_id=4)), orders)
    with pytest.raises(MessageTooLarge, match="no room for what delivery adds"):
        feature.check(memoryview(delayed(1, [b"x"], long="x" * 32_690)), orders)
    with pytest.raises(CorruptBatch, match="no record"):
        feature.check(memoryview(b"x" * 100), orders)


@pytest.mark.parametrize("unclean", [True, False])
@in_loop
async def test_whoever_goes_on_delivers_nothing_twice(tmp_path: Path, unclean: bool) -> None:
    node = Node(tmp_path)
    node.delay(1, [b"a", b"b"])
    await node.turn(0.5)
    node.delay(1, [b"c"])
    await node.turn(0.5)
    again = node.reopened(unclean=unclean)
    await again.turn()
    assert again.delivered() == [b"a", b"b"]
    await again.turn(0.5)
    assert again.delivered() == [b"a", b"b", b"c"]


@pytest.mark.parametrize("failing_at", range(8))
def test_a_delivery_that_is_cut_short_anywhere_is_finished_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_at: int
) -> None:
    monkeypatch.setattr(level_queues, "BATCH_COUNT", 3)
    monkeypatch.setattr(level_queues, "RECORD_S", 0.0)

    @in_loop
    async def run() -> None:
        node = Node(tmp_path)
        node.put_topic(Topic("other", 1, 1))
        for number in range(5):
            node.delay(1, [b"%d" % number])
            node.delay(1, [b"o%d" % number], topic="other")
        node.fail_appends(failing_at)
        node.manual.advance(2)
        with pytest.raises(DiskFull):
            await node.queues.turn()
        again = node.reopened(unclean=True)
        again.delay(1, [b"5"])
        await again.turn(2)
        assert again.delivered() == [b"%d" % number for number in range(6)]
        assert again.delivered("other") == [b"o%d" % number for number in range(5)]
        from_the_log = Kit.restarted(again, features=(Later, DelayLevels), clock=again.manual)
        await from_the_log[DelayLevels].queues.turn()
        assert again.delivered() == [b"%d" % number for number in range(6)]

    run()


@in_loop
async def test_a_new_master_knows_from_the_log_alone_what_is_delivered(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.delay(1, [b"a"])
    await node.turn(1)
    node.change_role(master=False)
    node.delay(1, [b"b"])
    await node.turn(1)
    assert node.delivered() == [b"a"]  # a slave delivers nothing
    node.change_role(master=True)
    await node.turn()
    assert node.delivered() == [b"a", b"b"]


@in_loop
async def test_nothing_is_delivered_before_all_is_known_or_while_replicas_are_missing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.delay(1, [b"a"])
    node.role.enough = False
    await node.turn(5)
    assert node.delivered() == []
    node.role.enough, node.role.holds = True, True
    node.journal.put("DELAY_OFFSETS", {"offsets": {"1": 1}})  # unconfirmed: somebody has delivered it
    node.change_role(master=False)
    node.change_role(master=True)
    await node.queues.turn()
    assert read(node.store, "orders") == []
    node.role.holds = False
    await node.turn()
    assert node.delivered() == []


@in_loop
async def test_the_progress_is_rocketmqs_file_in_valid_json(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.delay(1, [b"a", b"b"])
    node.delay(2, [b"c"])
    await node.turn(1)
    await node[DelayLevels].stop()
    node.snapshots.write_all(node.store.dispatched_offset)
    found = json.loads((tmp_path / "config/delayOffset.json").read_text())
    assert found["offsetTable"] == {"1": 2}
    assert found["dataVersion"]["stateVersion"] == 0


def test_messages_that_wait_in_a_store_of_rocketmqs_are_delivered_once(tmp_path: Path) -> None:
    root = golden.unpack("normal", tmp_path / "store")
    before = parse_rocketmq_json((root / "config/delayOffset.json").read_text())["offsetTable"]
    assert before == {"1": 7, "2": 1, "3": 1, "5": 1, "17": 0, "18": 0}

    @in_loop
    async def run() -> None:
        clock = ManualClock(1_795_222_700_000)
        sizes = {"segment_bytes": 65536, "consume_queue_bytes": 800, "index_slots": 100, "index_entries": 400}
        node = Node(root, clock, sizes=sizes)
        had = [len(node.records("GoldDelay", queue_id)) for queue_id in (0, 1)]
        assert node.queues.waiting() == [(17, 1), (18, 2)]
        await node.turn()
        assert [len(node.records("GoldDelay", queue_id)) for queue_id in (0, 1)] == had
        await node.turn(3_600)
        timers = node[Later].timers.delivered
        assert timers  # those by time, within the same hour
        came = [record.body for queue_id in (0, 1) for record in node.records("GoldDelay", queue_id)[had[queue_id] :]]
        assert [body for body in came if body.startswith(b"level")] == [b"level 17"]
        await node.turn(3_600)
        came = [record.body for queue_id in (0, 1) for record in node.records("GoldDelay", queue_id)[had[queue_id] :]]
        assert sorted(body for body in came if body.startswith(b"level")) == [b"level 17", b"level 18", b"level 30"]
        assert node.tables[LevelTable].offsets == {1: 7, 2: 1, 3: 1, 5: 1, 17: 1, 18: 2}

    run()


@pytest.mark.parametrize("failing_at", [None, 0, 1, 2, 3])
def test_what_waits_in_old_files_is_moved_and_comes_at_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_at: int | None
) -> None:
    monkeypatch.setattr(level_queues, "BATCH_COUNT", 2)
    monkeypatch.setattr(level_queues, "RECORD_S", 0.0)

    @in_loop
    async def run() -> None:
        node = Node(tmp_path)
        for number in range(5):
            node.delay(14, [b"%d" % number])
            node.manual.advance(1)
        (hold,) = node[DelayLevels].holds()
        assert hold.make_way is not None
        hold.make_way(node.store.end_offset)
        if failing_at is None:
            await node.queues.turn()
            assert node.queues.moved == 5
            node.dispatch()
        else:
            node.fail_appends(failing_at)
            with pytest.raises(DiskFull):
                await node.queues.turn()
            node = node.reopened(unclean=True)
        await node.turn()
        await node.turn(594)
        assert node.delivered() == []
        await node.turn(3)
        assert sorted(node.delivered()) == [b"0", b"1", b"2"]
        await node.turn(60)
        assert sorted(node.delivered()) == [b"%d" % number for number in range(5)]
        record = node.records()[0]
        assert decode_properties(record.properties)["DELAY"] == "14"

    run()


def test_what_is_moved_together_may_be_larger_than_a_log_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level_queues, "BATCH_BYTES", 4 << 20)  # a log file has 1 MiB

    @in_loop
    async def run() -> None:
        node = Node(tmp_path)
        bodies = [b"%03d" % number + b"." * 20_000 for number in range(120)]
        for start in range(0, 120, 10):
            node.delay(14, bodies[start : start + 10])
        (hold,) = node[DelayLevels].holds()
        assert hold.make_way is not None
        hold.make_way(node.store.end_offset)
        await node.turn()
        assert node.queues.moved == 120
        await node.turn(601)
        assert (node.delivered(), node.queues.dropped) == (bodies, 0)

    run()


@in_loop
async def test_retention_keeps_the_log_until_the_progress_is_recorded(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.flush()
    assert list(node[DelayLevels].holds()) == []
    node.delay(2, [b"a"])
    position = node.store.picker.locate(names.SCHEDULE_TOPIC, 1, np.arange(1)).positions[0]
    assert [hold.offset for hold in node[DelayLevels].holds()] == [position]
    await node.turn(5)
    node.flush()
    assert list(node[DelayLevels].holds()) == []


@in_loop
async def test_messages_of_a_deleted_topic_go_with_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(tmp_path)
    node.delay(1, [b"a"])
    node.delete_topic("orders")
    await node.turn(1)
    assert node.queues.dropped == 1
    assert "their topic is gone topic=orders count=1" in caplog.text


@in_loop
async def test_one_message_that_cannot_be_stored_costs_itself_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path)
    node.delay(1, [b"a", b"b", b"c"])
    append = node.store.append

    def refusing(topic: str, records: Any, **settings: Any) -> Any:
        if topic == "orders" and b"b" in [decode_record(record).body for record in split(bytes(records))]:
            raise CorruptBatch("damaged")
        return append(topic, records, **settings)

    node.store.append = refusing  # type: ignore[method-assign]
    await node.turn(1)
    assert node.delivered() == [b"a", b"c"]
    assert node.queues.dropped == 1
    assert "cannot be delivered topic=orders level=1 offset=1" in caplog.text


@in_loop
async def test_a_damaged_message_in_the_way_of_retention_costs_itself_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path)
    node.delay(14, [b"one", b"two", b"three"])
    node.delay(15, [b"four"])
    log_file = min((tmp_path / "commitlog").iterdir())
    content = log_file.read_bytes()
    with log_file.open("r+b") as file:
        file.seek(content.index(b"two"))
        file.write(b"owt")  # which its checksum tells, when the record is stored anew
    (hold,) = node[DelayLevels].holds()
    assert hold.make_way is not None
    hold.make_way(node.store.end_offset)
    await node.turn()
    assert (node.queues.moved, node.queues.dropped) == (3, 1)
    assert "cannot be stored anew topic=rmq_sys_wheel_timer level=14 offset=1" in caplog.text
    await node.turn(1200)
    assert node.delivered() == [b"one", b"three", b"four"]


@in_loop
async def test_upgrading_keeps_what_the_timers_have_delivered(tmp_path: Path) -> None:
    """A store that was RocketMQ's has its file still, which an older version of the broker never wrote."""

    node = Node(tmp_path)
    node.delay(1, [b"a"])
    node.snapshots.write_all(node.store.dispatched_offset)
    (tmp_path / "config/delayOffset.json").write_text('{"dataVersion":{},"offsetTable":{1:1}}')
    (tmp_path / "config/timercheck").write_bytes(bytes(32))
    again = node.reopened(unclean=True)
    await again.turn(5)
    assert again.delivered() == []


def test_a_role_that_changes_in_the_middle_ends_a_delivery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level_queues, "BATCH_COUNT", 2)

    @in_loop
    async def run() -> None:
        node = Node(tmp_path)
        for level in (1, 2):
            node.delay(level, [b"%d-%d" % (level, number) for number in range(5)])
        with node.changing_role_at("orders"):
            await node.turn(9)
        assert len(node.delivered()) == 2
        await node.turn()
        assert sorted(node.delivered()) == [b"%d-%d" % (level, number) for level in (1, 2) for number in range(5)]

    run()
