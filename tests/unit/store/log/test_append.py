"""Appending: where batches go, what is refused, how files follow each other."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from penstock.broker.store import Store
from penstock.broker.store.disk import Data, Disk
from penstock.formats.record.layout import decode_record
from penstock.proto.errors import (
    CorruptBatch,
    DiskFull,
    Forbidden,
    InvalidName,
    MessageTooLarge,
    StorageError,
    StoreClosed,
    SyncFailed,
)
from tests.support.broker.stepped_store import abandon, flusher_of, stepped_stores
from tests.support.broker.stores import HOST, batch, bodies, dispatch_all, read, store_config
from tests.support.clock import ManualClock
from tests.support.crash.failing_disk import FailingDisk
from tests.support.crash.simulated_disk import SimulatedDisk


def test_a_batch_gets_offsets_host_and_time_from_the_store(tmp_path: Path) -> None:
    clock = ManualClock()
    store = Store.open(store_config(tmp_path), clock=clock)
    store.append("orders", batch("orders", [b"before"], 2), queues=4)
    result = store.append("orders", batch("orders", [b"a", b"b", b"c", b"d"], [2, 0, 2, 1]), queues=4)
    assert result.count == 4
    assert (result.queue_ids, result.queue_offsets) == ([2, 0, 1], [1, 0, 0])
    assert result.store_timestamp_ms == clock.wall_ms()
    assert result.end == store.end_offset
    dispatch_all(store)
    records = read(store, "orders", 2)
    assert [(r.body, r.queue_offset) for r in records] == [(b"before", 0), (b"a", 1), (b"c", 2)]
    assert {(r.store_host, r.store_timestamp_ms) for r in records} == {(HOST, clock.wall_ms())}
    assert records[1].physical_offset == result.start
    store.close()


def test_store_time_does_not_go_back_with_the_clock(tmp_path: Path) -> None:
    clock = ManualClock(2_000_000)
    store = Store.open(store_config(tmp_path), clock=clock)
    store.append("orders", batch("orders", [b"a"]), queues=1)
    clock.set_wall(1_000_000)
    assert store.append("orders", batch("orders", [b"b"]), queues=1).store_timestamp_ms == 2_000_000
    store.close()
    reopened = Store.open(store_config(tmp_path), clock=clock)
    assert reopened.append("orders", batch("orders", [b"c"]), queues=1).store_timestamp_ms == 2_000_000
    reopened.close()


def test_a_batch_that_does_not_fit_goes_whole_into_the_next_file_behind_a_blank(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    first = store.append("orders", batch("orders", [bytes(10_000)]), queues=1)
    second = store.append("orders", batch("orders", [bytes(4000), bytes(4000)]), queues=1)
    assert second.start == 16384
    log = (tmp_path / "commitlog" / "00000000000000000000").read_bytes()
    left = 16384 - first.end
    assert log[first.end : first.end + 8] == left.to_bytes(4, "big") + bytes.fromhex("cbd43194")
    assert not any(log[first.end + 8 :])
    dispatch_all(store)
    assert len(bodies(store, "orders")) == 3
    store.close()


@pytest.mark.parametrize(("free", "rolls"), [(8, False), (7, True)])
def test_eight_bytes_stay_free_for_the_blank(tmp_path: Path, free: int, rolls: bool) -> None:
    store = Store.open(store_config(tmp_path))
    first = store.append("orders", batch("orders", [b"x"]), queues=1)
    body = 16384 - first.end - len(batch("orders", [b""])) - free
    second = store.append("orders", batch("orders", [bytes(body)]), queues=1)
    assert second.start == (16384 if rolls else first.end)
    third = store.append("orders", batch("orders", [b"x"]), queues=1)
    assert third.start == (32768 if rolls else 16384)
    dispatch_all(store)
    assert len(bodies(store, "orders")) == 3
    store.close()


def test_a_batch_larger_than_a_file_is_refused_by_name(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    with pytest.raises(MessageTooLarge, match="fit a log file"):
        store.append("orders", batch("orders", [bytes(9000), bytes(9000)]), queues=1)
    assert store.end_offset == 0
    store.close()


def _damaged(position: int) -> bytes:
    records = bytearray(batch("orders", [b"good", b"bad"]))
    records[len(records) // 2 + position] ^= 0xFF
    return bytes(records)


@pytest.mark.parametrize(
    ("topic", "records", "index"),
    [
        ("orders", _damaged(88), 1),  # body
        ("orders", _damaged(5), 1),  # magic
        ("orders", batch("orders", [b"a", b"b"])[:-1], 1),
        ("orders", batch("other", [b"a"]), 0),
        ("orders", b"", 0),
        ("orders", batch("orders", [b"a"]) + batch("orders", [b"b"], mark=(7, 0, 0, 1)), 1),
    ],
    ids=["body", "magic", "cut short", "topic", "empty", "mark in the middle"],
)
def test_a_malformed_batch_is_refused_with_the_index_and_changes_nothing(
    tmp_path: Path, topic: str, records: bytes, index: int
) -> None:
    store = Store.open(store_config(tmp_path))
    store.append("orders", batch("orders", [b"first"]), queues=4)
    end = store.end_offset
    with pytest.raises(CorruptBatch) as caught:
        store.append(topic, records, queues=4)
    assert caught.value.details["index"] == index
    assert store.end_offset == end
    assert store.append("orders", batch("orders", [b"next"]), queues=4).queue_offsets == [1]
    assert store.read_bytes(end, 1 << 20)[:4] == len(batch("orders", [b"next"])).to_bytes(4, "big")
    store.close()


def test_a_batch_for_a_queue_that_was_removed_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    end = store.append("orders", batch("orders", [b"first"], 4), queues=5).end
    with pytest.raises(Forbidden, match="record 1 of the batch: bad queue, the topic has 4") as caught:
        store.append("orders", batch("orders", [b"a", b"b"], [0, 4]), queues=4)
    assert (caught.value.details, store.end_offset) == ({"queues": 4}, end)
    assert store.append("orders", batch("orders", [b"next"]), queues=4).queue_offsets == [0]
    assert store.append("orders", batch("orders", [b"next"], 4), queues=5).queue_offsets == [1]
    store.close()


@pytest.mark.parametrize(("count", "index", "said"), [(1, 1, "more"), (3, 2, "2 whole"), (0, 0, "more")])
def test_a_batch_has_as_many_records_as_its_header_says(tmp_path: Path, count: int, index: int, said: str) -> None:
    store = Store.open(store_config(tmp_path))
    with pytest.raises(CorruptBatch, match=said) as caught:
        store.append("orders", batch("orders", [b"a", b"b"]), queues=1, count=count)
    assert caught.value.details["index"] == index
    assert store.end_offset == 0
    assert store.append("orders", batch("orders", [b"a", b"b"]), queues=1, count=2).queue_offsets == [0]
    store.close()


def test_a_body_above_the_limit_is_too_large(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path, body_bytes_max=100))
    with pytest.raises(MessageTooLarge) as caught:
        store.append("orders", batch("orders", [b"ok", bytes(101)]), queues=1)
    assert caught.value.details["index"] == 1
    store.close()


@pytest.mark.parametrize("topic", ["../up", "a/b", "", "x" * 128, "."])
def test_a_topic_that_is_no_name_is_refused(tmp_path: Path, topic: str) -> None:
    store = Store.open(store_config(tmp_path))
    with pytest.raises(InvalidName):
        store.append(topic, batch("orders", [b"a"]), queues=1)
    store.close()


def test_appending_to_a_closed_store_is_refused(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    store.close()
    store.close()
    with pytest.raises(StoreClosed):
        store.append("orders", batch("orders", [b"a"]), queues=1)


def test_offsets_go_on_behind_records_that_are_not_dispatched(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    store.append("orders", batch("orders", [b"a", b"b"]), queues=1)
    store.close()
    reopened = Store.open(store_config(tmp_path))
    assert reopened.dispatched_offset == 0
    assert reopened.append("orders", batch("orders", [b"c"]), queues=1).queue_offsets == [2]
    dispatch_all(reopened)
    assert bodies(reopened, "orders") == [b"a", b"b", b"c"]
    reopened.close()


def test_bytes_of_a_master_make_the_same_files_and_queues(tmp_path: Path) -> None:
    master, slave = Store.open(store_config(tmp_path / "m")), Store.open(store_config(tmp_path / "s"))
    for number in range(40):
        master.append("orders", batch("orders", [bytes(700), b"%d" % number], [0, 1]), queues=2)
    while slave.end_offset < master.end_offset:
        data = master.read_bytes(slave.end_offset, 1000)
        assert slave.append_bytes(slave.end_offset, data) == slave.end_offset
        slave.set_confirm(slave.end_offset)
        slave.dispatch()
    dispatch_all(master)
    dispatch_all(slave)
    assert bodies(slave, "orders", 1) == bodies(master, "orders", 1)
    for file in sorted((tmp_path / "m/commitlog").iterdir()):
        if int(file.name) >= slave.end_offset:
            continue  # made ahead
        assert (tmp_path / "s/commitlog" / file.name).read_bytes() == file.read_bytes()
    # The slave takes over: its queues go on where the master's were.
    assert slave.append("orders", batch("orders", [b"new"]), queues=2).queue_offsets == [40]
    master.close()
    slave.close()


def test_batches_of_every_size_that_fits_a_file_are_taken(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path, segment_bytes=4 << 20, body_bytes_max=4 << 20))
    around = len(batch("t", [b""], 0))
    sizes = [size - around for edge in (1 << 20, 3 << 20, 4 << 20) for size in range(edge - 24, edge - 7)]
    for number, size in enumerate(sizes):
        result = store.append("t", batch("t", [bytes(size)], 0), queues=1)
        assert (result.end - result.start, result.queue_offsets) == (size + around, [number])
    with pytest.raises(MessageTooLarge):
        store.append("t", batch("t", [bytes((4 << 20) - 7 - around)], 0), queues=1)
    store.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_batch_that_cannot_be_written_is_not_there_and_takes_no_offset(tmp_path: Path, code: int) -> None:
    disk = FailingDisk("pwrite", 0, code)
    store = Store.open(store_config(tmp_path), disk=disk)
    end = store.append("orders", batch("orders", [b"first", b"second"], [1, 0]), queues=2).end
    disk.nth = disk.count + 1
    with pytest.raises(DiskFull if code == errno.ENOSPC else SyncFailed):
        store.append("orders", batch("orders", [b"refused", b"refused"], [0, 1]), queues=2)
    assert disk.failed
    assert store.end_offset == end
    if code == errno.ENOSPC:
        result = store.append("orders", batch("orders", [b"third", b"fourth"], [0, 1]), queues=2)
        assert (result.start, result.queue_offsets) == (end, [1, 1])
        dispatch_all(store)
        assert bodies(store, "orders", 0) == [b"second", b"third"]
    else:
        with pytest.raises(SyncFailed):  # what the disk has is not known any more
            store.append("orders", batch("orders", [b"later"], 0), queues=2)
    store.close()


class TakesAPart(Disk):
    """Takes the first ``part`` bytes of a write, and then fails once."""

    part = 0
    failure: BaseException = OSError(errno.ENOSPC, "no space")

    def pwrite(self, descriptor: int, data: Data, position: int) -> None:
        if not self.part:
            return super().pwrite(descriptor, data, position)
        super().pwrite(descriptor, data[: self.part], position)
        self.part = 0
        raise self.failure


def test_what_was_written_of_a_refused_batch_is_not_recovered(tmp_path: Path) -> None:
    disk = TakesAPart()
    store = Store.open(store_config(tmp_path), disk=disk)
    end = store.append("orders", batch("orders", [b"kept"], 0), queues=1).end
    refused = batch("orders", [b"refused 1", b"refused 2", b"refused 3"], 0)
    disk.part = len(refused) - 10
    with pytest.raises(DiskFull):
        store.append("orders", refused, queues=1)
    slaves = store.read_bytes(0, end)
    disk.part = len(slaves) // 2
    with pytest.raises(DiskFull):
        store.append_bytes(end, slaves)
    abandon(store)
    store = Store.open(store_config(tmp_path))
    assert store.end_offset == end
    store.close()


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "no space"), MemoryError(), KeyboardInterrupt()], ids=repr)
def test_whatever_ends_a_write_the_batch_takes_no_offset(tmp_path: Path, failure: BaseException) -> None:
    disk = TakesAPart()
    disk.failure = failure
    store = Store.open(store_config(tmp_path), disk=disk)
    end = store.append("orders", batch("orders", [b"first"]), queues=1).end
    disk.part = 100
    with pytest.raises(DiskFull if isinstance(failure, OSError) else type(failure)):
        store.append("orders", batch("orders", [b"refused", b"refused"]), queues=1)
    result = store.append("orders", batch("orders", [b"second"]), queues=1)
    assert (result.start, result.queue_offsets) == (end, [1])
    abandon(store)
    store = Store.open(store_config(tmp_path))
    assert bodies(store, "orders") == [b"first", b"second"]
    store.close()


@pytest.mark.parametrize("count", range(1, 41))
def test_a_slaves_log_of_a_few_bytes_is_not_of_another_version(tmp_path: Path, count: int) -> None:
    master = Store.open(store_config(tmp_path / "m"))
    master.append("orders", batch("orders", [b"a"]), queues=1)
    slave = Store.open(store_config(tmp_path / "s"))
    slave.append_bytes(0, master.read_bytes(0, count))
    abandon(slave)
    slave = Store.open(store_config(tmp_path / "s"))
    assert slave.end_offset == 0
    slave.close()
    master.close()


class Full(Disk):
    """Has space for the log up to ``room`` alone, wherever it was written before."""

    room = 1 << 62

    def pwrite(self, descriptor: int, data: Data, position: int) -> None:
        super().pwrite(descriptor, data[: max(self.room - position, 0)], position)
        if position + len(data) > self.room:
            raise OSError(errno.ENOSPC, "no space")


@pytest.mark.parametrize("room", [0, 100])
def test_a_disk_that_is_full_takes_appends_again_when_there_is_space(tmp_path: Path, room: int) -> None:
    disk = Full()
    store = Store.open(store_config(tmp_path), disk=disk)
    disk.room = store.append("orders", batch("orders", [b"kept"]), queues=1).end + room
    with pytest.raises(DiskFull):
        store.append("orders", batch("orders", [b"refused"] * 3), queues=1)
    disk.room = Full.room
    store.append("orders", batch("orders", [b"again"]), queues=1)
    dispatch_all(store)
    assert bodies(store, "orders") == [b"kept", b"again"]
    store.close()


class WritesOut(SimulatedDisk):
    """What it takes of a write that then fails, the system writes out at once."""

    part = 0

    def pwrite(self, descriptor: int, data: Data, position: int) -> None:
        if not self.part:
            return super().pwrite(descriptor, data, position)
        part, self.part = self.part, 0
        super().pwrite(descriptor, data[:part], position)
        self.save(self._open[descriptor][1])
        raise OSError(errno.ENOSPC, "no space")


def test_a_refused_batch_that_was_written_out_does_not_come_back_after_a_power_cut() -> None:
    config = store_config(Path("/srv/store"))
    with stepped_stores():
        disk = WritesOut()
        store = Store.open(config, disk=disk)
        store.append("orders", batch("orders", [b"kept"]), queues=1)
        flusher_of(store).step()
        refused = batch("orders", [b"refused"] * 3)
        disk.part = len(refused) - 5
        with pytest.raises(DiskFull):
            store.append("orders", refused, queues=1)
        abandon(store)
        store = Store.open(config, disk=disk.cut(0.0))
        assert bodies(store, "orders") == [b"kept"]
        abandon(store)


def test_bytes_must_follow_the_end_and_stay_within_a_file(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    with pytest.raises(StorageError, match="cannot follow"):
        store.append_bytes(5, memoryview(b"x"))
    with pytest.raises(StorageError, match="within one file"):
        store.append_bytes(0, memoryview(bytes(16385)))
    assert store.end_offset == 0
    store.close()


@pytest.mark.parametrize("begin", [16384 * 5, 16384 * 5 + 1000])
def test_an_empty_log_may_begin_anywhere_and_queues_begin_late(tmp_path: Path, begin: int) -> None:
    master = Store.open(store_config(tmp_path / "m"))
    while master.end_offset < begin:
        size = min(15_000, max(0, begin - master.end_offset - len(batch("t", [b""]))))
        master.append("t", batch("t", [bytes(size)]), queues=1)
    begin = master.end_offset
    first = master.append("t", batch("t", [b"seen"] * 30), queues=1)
    slave = Store.open(store_config(tmp_path / "s"))
    slave.start_at(first.start)
    while slave.end_offset < master.end_offset:
        slave.append_bytes(slave.end_offset, master.read_bytes(slave.end_offset, 1 << 20))
    dispatch_all(slave)
    low = first.queue_offsets[0]
    assert slave.reader.queue_range("t", 0) == (low, low + 30)
    assert bodies(slave, "t") == [b"seen"] * 30
    slave.abandon()
    again = Store.open(store_config(tmp_path / "s"))
    assert (again.min_offset, again.end_offset) == (first.start, master.end_offset)
    assert again.reader.queue_range("t", 0) == (low, low + 30)
    with pytest.raises(StorageError):
        again.start_at(0)
    master.close()
    again.close()


def test_append_takes_arrays_and_views(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    records = batch("orders", [b"a"])
    store.append("orders", memoryview(records), queues=1)
    store.append("orders", np.frombuffer(records, np.uint8), queues=1)
    dispatch_all(store)
    assert bodies(store, "orders") == [b"a", b"a"]
    assert decode_record(store.lookup.view(0)).body == b"a"
    store.close()
