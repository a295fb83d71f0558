"""Dispatch: what a slice holds, how queues grow, what is an error."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from penstock.broker.store import Store
from penstock.broker.store.disk import Bytes
from penstock.formats.record.layout import PhysicalOffset, Record, SysFlag, decode_record, encode_record
from penstock.formats.record.producer_mark import ProducerMark
from penstock.proto import names
from penstock.proto.errors import Corrupt, DiskFull
from penstock.proto.names import LOST_TOPIC
from tests.support.broker.stores import HOST, batch, bodies, dispatch_all, read, store_config
from tests.support.crash.failing_disk import FailingDisk


def test_nothing_is_readable_above_the_confirm_offset(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    first = store.append("orders", batch("orders", [b"a"]), queues=1)
    store.append("orders", batch("orders", [b"b"]), queues=1)
    assert store.dispatch().end == 0
    store.set_confirm(first.end + 5)
    result = store.dispatch()
    assert (result.end, list(result.arrived)) == (first.end, [("orders", 0, 1)])
    assert not store.dispatch().arrived
    store.set_confirm(0)
    assert store.confirm_offset == first.end + 5
    assert bodies(store, "orders") == [b"a"]
    store.close()


def test_slices_tell_which_queues_grew(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    store.append("a", batch("a", [b"1", b"2", b"3"], [0, 1, 0]), queues=2)
    store.append("b", batch("b", [b"4"]), queues=2)
    store.set_confirm(store.end_offset)
    assert sorted(store.dispatch().arrived) == [("a", 0, 2), ("a", 1, 1), ("b", 0, 1)]
    assert store.queues() == {"a": [0, 1], "b": [0]}
    store.close()


def test_state_records_and_marks_come_with_their_slice_and_again_by_replay(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    state = store.append(names.STATE_TOPIC, batch(names.STATE_TOPIC, [b"topic made"]), queues=1)
    sent = store.append("orders", batch("orders", [b"x"] * 3, [1, 0, 1], mark=(7, 1, 2, 30)), queues=2)
    results = dispatch_all(store)
    ((position, raw),) = [each for result in results for each in result.state_records]
    assert (position, decode_record(raw).body) == (state.start, b"topic made")
    (mark,) = [each for result in results for each in result.marks]
    assert mark.mark == ProducerMark(7, 1, 2, 30, 3)
    assert (mark.topic, mark.start, mark.end, mark.queue_ids, mark.queue_offsets) == (
        "orders",
        sent.start,
        sent.end,
        [1, 0],
        [0, 0],
    )
    replayed = list(store.replay(0))
    assert [each for result in replayed for each in result.marks] == [mark]
    assert [each for result in replayed for each in result.state_records] == [(state.start, raw)]
    assert all(not result.arrived for result in replayed)
    assert [each for result in store.replay(sent.start) for each in result.state_records] == []
    assert list(store.replay(store.dispatched_offset)) == []
    store.close()


@pytest.mark.parametrize("max_bytes", [1, 150, 1000, 5000])
def test_a_slice_never_divides_a_marked_batch(tmp_path: Path, max_bytes: int) -> None:
    store = Store.open(store_config(tmp_path))
    ends = [
        store.append("orders", batch("orders", [b"x"] * 20, mark=(7, 0, 0, number)), queues=1).end
        for number in range(12)
    ]
    store.set_confirm(store.end_offset)
    seen = []
    while store.dispatched_offset < store.end_offset:
        result = store.dispatch(max_bytes)
        assert result.end in (*ends, 16384)
        seen += [mark.mark.sequence for mark in result.marks]
    assert seen == list(range(12))
    store.close()


def test_a_marked_batch_that_is_not_confirmed_whole_waits(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    store.append("orders", batch("orders", [b"before"]), queues=1)
    sent = store.append("orders", batch("orders", [b"x"] * 4, mark=(7, 0, 0, 1)), queues=1)
    store.set_confirm(sent.end - 1)
    assert store.dispatch().end == sent.start
    assert store.dispatch().end == sent.start
    store.set_confirm(sent.end)
    assert len(store.dispatch().marks) == 1
    store.close()


def test_prepared_and_rolled_back_records_get_no_entry(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    at = 0
    for number, flag in enumerate((0, SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK, 8)):
        offset = number if flag in (0,) else (1 if flag == 8 else 0)
        record = Record(
            topic="tx", body=b"%d" % flag, sys_flag=flag, physical_offset=at, queue_offset=offset, store_host=HOST
        )
        at = store.append_bytes(at, memoryview(encode_record(record)))
    dispatch_all(store)
    assert bodies(store, "tx") == [b"0", b"8"]
    store.close()


def _ship(store: Store, queue_offset: int, body: bytes = b"x", topic: str = "t") -> None:
    record = Record(
        topic=topic, body=body, physical_offset=store.end_offset, queue_offset=queue_offset, store_host=HOST
    )
    store.append_bytes(store.end_offset, memoryview(encode_record(record)))


def test_a_gap_in_queue_offsets_is_an_error_that_names_queue_and_record(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    _ship(store, 0)
    at = store.end_offset
    _ship(store, 2)
    store.set_confirm(store.end_offset)
    with pytest.raises(Corrupt, match="goes on at 1") as caught:
        dispatch_all(store)
    assert caught.value.details["offset"] == at
    store.abandon()


def test_a_queue_may_begin_late_and_is_blank_before(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    for offset in range(47, 52):
        _ship(store, offset, b"%d" % offset)
    dispatch_all(store)
    assert store.reader.queue_range("t", 0) == (47, 52)
    assert store.lookup.search_offset("t", 0, 0) == 47
    store.close()
    file = tmp_path / "consumequeue/t/0/00000000000000000800"
    entries = file.read_bytes()
    assert entries[: 7 * 20] == (bytes(8) + bytes.fromhex("7fffffff") + bytes(8)) * 7
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    reopened = Store.open(store_config(tmp_path))
    assert reopened.recovery.clean
    assert reopened.reader.queue_range("t", 0) == (47, 52)
    assert bodies(reopened, "t") == [b"47", b"48", b"49", b"50", b"51"]
    reopened.close()


def test_a_dropped_topic_begins_at_zero_again_also_after_a_crash(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    store.append("t", batch("t", [b"old"] * 30), queues=1)
    dispatch_all(store)
    store.drop_topic("t")
    assert store.queues() == {}
    assert not (tmp_path / "consumequeue/t").exists()
    assert store.append("t", batch("t", [b"new"]), queues=1).queue_offsets == [0]
    dispatch_all(store)
    assert bodies(store, "t") == [b"new"]
    store.abandon()
    (tmp_path / "penstockCheckpoint").unlink()  # everything is dispatched again, the old records too
    reopened = Store.open(store_config(tmp_path))
    assert bodies(reopened, "t") == [b"new"]
    reopened.close()


def test_entries_of_the_schedule_topic_hold_the_delivery_time(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    topic = "SCHEDULE_TOPIC_XXXX"
    levels = [b"DELAY\x013\x02", b"DELAY\x0118\x02", b"DELAY\x0130\x02", b"TAGS\x01TagA\x02"]
    result = store.append(topic, batch(topic, [b"x"] * 4, 2, properties=levels), queues=18)
    dispatch_all(store)
    store.close()
    entries = (tmp_path / "consumequeue" / topic / "2" / f"{0:020d}").read_bytes()
    codes = [int.from_bytes(entries[at + 12 : at + 20], "big", signed=True) for at in range(0, 80, 20)]
    stored = result.store_timestamp_ms
    assert codes == [stored + 10_000, stored + 7_200_000, stored + 7_200_000, 2598919]


def test_no_space_for_entries_is_tried_again_without_loss(tmp_path: Path) -> None:
    disk = FailingDisk("pwrite", 1, errno.ENOSPC, forever=True)
    disk.kind = ""
    store = Store.open(store_config(tmp_path), disk=disk)
    store.append("t", batch("t", [b"%d" % number for number in range(150)], [n % 2 for n in range(150)]), queues=2)
    store.set_confirm(store.end_offset)
    disk.kind = "pwrite"
    with pytest.raises(DiskFull):
        store.dispatch()
    assert store.dispatched_offset == 0
    assert store.reader.queue_range("t", 0) == (0, 0)
    disk.kind = ""
    dispatch_all(store)
    assert bodies(store, "t", 1) == [b"%d" % number for number in range(1, 150, 2)]
    store.close()


def test_thousands_of_queues_need_few_handles(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path, segment_bytes=1 << 20, consume_queue_bytes=4000))
    store._queues.files._handles_max = 20
    for turn in range(3):
        for first in range(0, 2000, 500):
            queues = [first + number % 500 for number in range(1000)]
            store.append("t", batch("t", [b"%d" % turn] * 1000, queues), queues=2000)
    dispatch_all(store)
    assert len(store._queues.files._handles) <= 20
    for queue_id in range(0, 2000, 97):
        assert bodies(store, "t", queue_id) == [b"0", b"0", b"1", b"1", b"2", b"2"]
    store.close()
    reopened = Store.open(store_config(tmp_path, segment_bytes=1 << 20, consume_queue_bytes=4000))
    assert reopened.recovery.clean
    assert len(reopened.queues()["t"]) == 2000
    assert len(read(reopened, "t", 1999)) == 6
    reopened.close()


def test_many_topics_are_told_apart_dropped_and_made_again(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path, segment_bytes=1 << 20))
    topics = [f"topic-{number:04d}" for number in range(700)]
    for turn in range(2):
        for topic in topics:
            store.append(topic, batch(topic, [f"{topic}.{turn}".encode()], turn), queues=2)
    dispatch_all(store)
    for topic in topics[::3]:
        store.drop_topic(topic)
    for topic in topics:
        store.append(topic, batch(topic, [b"last"]), queues=2)
    dispatch_all(store)
    for number, topic in enumerate(topics):
        expected = [b"last"] if number % 3 == 0 else [f"{topic}.0".encode(), b"last"]
        assert bodies(store, topic) == expected
        assert (store.reader.queue_range(topic, 1) == (0, 0)) == (number % 3 == 0)
    store.close()


def _lost(physical: int, size: int, time_ms: int) -> bytes:
    """What stands in a rebuilt log for records that were lost."""
    record = Record(
        topic=LOST_TOPIC,
        body=bytes(size - 91 - len(LOST_TOPIC)),
        physical_offset=PhysicalOffset(physical),
        sys_flag=SysFlag.TRANSACTION_ROLLBACK,
        store_timestamp_ms=time_ms,
        born_timestamp_ms=time_ms,
    )
    return encode_record(record)


@pytest.mark.parametrize("live", [False, True])
def test_blank_entries_stand_for_records_that_the_log_tells_are_lost(live: bool, tmp_path: Path) -> None:
    """Also across files and in every search, whether the queue is dispatched or built again."""
    source = Store.open(store_config(tmp_path / "source"))
    starts = [source.append("t", batch("t", [b"%03d" % n + bytes(50)]), queues=1).start for n in range(100)]
    dispatch_all(source)
    log = bytes(source.read_bytes(0, 1 << 20))
    lost = range(5, 47)
    times = [source.lookup.store_timestamp_at("t", 0, n) or 0 for n in range(100)]
    log = log[: starts[5]] + _lost(starts[5], starts[47] - starts[5], times[5]) + log[starts[47] :]
    source.close()
    left = [b"%03d" % n + bytes(50) for n in range(100) if n not in lost]
    store = Store.open(store_config(tmp_path / "new"))
    store.append_bytes(0, memoryview(log))
    if live:
        dispatch_all(store)
    else:
        store.abandon()
        store = Store.open(store_config(tmp_path / "new"))
    for reopening in ("", "clean", "crash", "rebuilt", "without a checkpoint"):
        if reopening in ("clean", "rebuilt"):
            store.close()
        elif reopening:
            store.abandon()
        if reopening == "rebuilt":
            shutil.rmtree(tmp_path / "new/consumequeue")
        if reopening == "without a checkpoint":
            (tmp_path / "new/penstockCheckpoint").unlink()
        store = Store.open(store_config(tmp_path / "new")) if reopening else store
        assert store.reader.queue_range("t", 0) == (0, 100), reopening
        assert bodies(store, "t") == left
        for number, stored in enumerate(times):
            first = min(n for n in range(100) if n not in lost and times[n] >= stored)
            last = max(n for n in range(100) if n not in lost and times[n] <= stored)
            assert store.lookup.search_offset("t", 0, stored) == first, number
            assert store.lookup.search_offset("t", 0, stored, upper=True) == last, number
        assert store.removal.first_from("t", 0, starts[5] + 1) == 47
        assert store.removal.first_from("t", 0, starts[4]) == 4
    assert store.append("t", batch("t", [b"next"]), queues=1).queue_offsets == [100]
    store.close()


def test_few_messages_behind_very_many_blank_entries_are_found_in_few_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.store.reading._RECENT_BYTES", 0)
    sizes = {"segment_bytes": 4 << 20, "consume_queue_bytes": 1_000_000}
    source = Store.open(store_config(tmp_path / "source", **sizes))
    source.append("t", batch("t", [b"first"]), queues=1)
    placed = [source.append("t", batch("t", [b""] * 5000), queues=1) for _ in range(6)]
    source.append("t", batch("t", [b"last"]), queues=1)
    dispatch_all(source)
    start, end = placed[0].start, placed[-1].end
    log = bytes(source.read_bytes(0, 4 << 20))
    log = log[:start] + _lost(start, end - start, source.lookup.store_timestamp_at("t", 0, 0) or 0) + log[end:]
    source.close()
    store = Store.open(store_config(tmp_path / "new", **sizes))
    store.append_bytes(0, memoryview(log))
    dispatch_all(store)
    looked: list[int] = []
    entries = store.reader._queues.entries

    def counted(slot: int, offset: int, count: int) -> Bytes:
        looked.append(count)
        return entries(slot, offset, count)

    monkeypatch.setattr(store.reader._queues, "entries", counted)
    result = store.reader.read("t", 0, 1, 1, max_count=1)
    assert (result.count, result.next_offset) == (1, 30_002)
    assert looked[0] == 1
    assert len(looked) < 20
    looked.clear()
    assert store.reader.absent_until("t", 0, 1, 1)[1] == 30_002
    assert looked[0] == 1
    assert len(looked) < 20
    store.close()


def test_a_gap_that_nothing_explains_stops_dispatch(tmp_path: Path) -> None:
    source = Store.open(store_config(tmp_path / "source"))
    starts = [source.append("t", batch("t", [b"%d" % n]), queues=1).start for n in range(9)]
    log = bytearray(source.read_bytes(0, 1 << 20))
    source.close()
    log[starts[5] + 20 : starts[5] + 28] = (7).to_bytes(8, "big")
    store = Store.open(store_config(tmp_path / "new"))
    store.append_bytes(0, memoryview(bytes(log)))
    with pytest.raises(Corrupt, match="has queue offset 7, the queue goes on at 5"):
        dispatch_all(store)
    store.abandon()
