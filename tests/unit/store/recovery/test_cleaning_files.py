"""Deleting real files: what readers, queues, index and a later start see of it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import shutil
from pathlib import Path

import pytest

from penstock.broker.store import Disk, Store
from penstock.broker.store.disk import Data
from penstock.broker.store.log.reserve import Reserve
from penstock.broker.store.log.warming import Warming
from penstock.proto import names
from penstock.proto.errors import DiskFull
from tests.support.broker.stores import batch, bodies, dispatch_all, flush, store_config
from tests.support.crash.failing_disk import FailingDisk
from tests.support.waiting import wait_until

SEGMENT = 16384


def filled(root: Path, *, batches: int = 60, topics: tuple[str, ...] = ("t",), **how: object) -> Store:
    """A store of several log files, everything synced and dispatched."""
    store = Store.open(store_config(root), **how)  # type: ignore[arg-type]
    for number in range(batches):
        for topic in topics:
            record = batch(topic, [b"%04d" % number + bytes(700)], properties=[b"KEYS\x01k%d\x02" % number])
            store.append(topic, record, queues=1)
    dispatch_all(store)
    store.checkpoint()
    return store


def align(store: Store) -> None:
    for _ in store.removal.align():
        continue


def log_files(root: Path) -> list[int]:
    return sorted(int(path.name) for path in (root / "commitlog").iterdir())


def test_the_log_begins_behind_what_was_taken_out_and_the_file_goes(tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert [file.end for file in store.removal.files()] == [SEGMENT, 2 * SEGMENT, 3 * SEGMENT]
    assert store.removal.take_out(SEGMENT) == 1
    assert store.min_offset == SEGMENT
    assert store.removal.delete_taken(120) == 1
    assert log_files(tmp_path)[0] == SEGMENT
    align(store)
    low, high = store.reader.queue_range("t", 0)
    assert (low > 0, high) == (True, 60)
    assert [int(body[:4]) for body in bodies(store, "t")] == list(range(low, 60))
    assert store.removal.physical_at("t", 0, low) == SEGMENT
    store.close()


def test_the_last_file_cannot_be_taken_out(tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert store.removal.take_out(1 << 40) == 2
    assert store.min_offset == 2 * SEGMENT
    store.append("t", batch("t", [b"more"]), queues=1)
    dispatch_all(store)
    align(store)
    assert bodies(store, "t")[-1] == b"more"
    store.close()


def test_a_reader_who_holds_a_file_reads_on_and_the_file_waits_for_the_grace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(tmp_path)
    held = store.reader.read("t", 0, 0, 5000)
    view = store.read_bytes(0, 1000)
    expected = bytes(view)
    store.removal.take_out(2 * SEGMENT)
    assert store.removal.delete_taken(120) == 0
    assert log_files(tmp_path)[0] == 0, "files go in the order of the log"
    del view
    assert store.removal.delete_taken(120) == 0
    memory = ctypes.create_string_buffer(held.bytes)
    with caplog.at_level(logging.WARNING):
        now_s = store.removal._leaving[0].since_s
        assert store.removal.delete_taken(120, now_s=now_s + 119) == 0
        assert store.removal.delete_taken(120, now_s=now_s + 121) == 2
    assert "deleted under a reader" in caplog.text
    assert log_files(tmp_path)[0] == 2 * SEGMENT
    size = held.bytes
    held.copy_to(ctypes.addressof(memory))  # deleted, and still readable
    assert memory.raw[:900] == expected[:900]
    assert size > 900
    store.close()


def test_a_file_goes_at_once_when_its_last_reader_is_done(tmp_path: Path) -> None:
    store = filled(tmp_path)
    held = store.reader.read("t", 0, 0, 5000)
    store.removal.take_out(SEGMENT)
    assert store.removal.delete_taken(120) == 0
    memory = ctypes.create_string_buffer(held.bytes)
    held.copy_to(ctypes.addressof(memory))
    assert store.removal.delete_taken(120) == 1
    assert store.removal.waiting == 0
    store.close()


def test_leading_queue_files_and_index_files_go_with_the_log(tmp_path: Path) -> None:
    store = filled(tmp_path, batches=300)
    queue, index = tmp_path / "consumequeue/t/0", tmp_path / "index"
    before = len(list(queue.iterdir())), len(list(index.iterdir()))
    store.removal.take_out(12 * SEGMENT)
    align(store)
    low, _ = store.reader.queue_range("t", 0)
    first = min(int(path.name) for path in queue.iterdir()) // 20
    assert low - 20 < first <= low
    assert len(list(queue.iterdir())) < before[0]
    assert 1 <= len(list(index.iterdir())) < before[1]
    assert store.lookup.query("t", "k299", 10, 0, 1 << 50)
    assert store.lookup.query("t", f"k{low}", 10, 0, 1 << 50)
    assert not store.lookup.query("t", "k0", 10, 0, 1 << 50)
    store.close()
    reopened = Store.open(store_config(tmp_path))
    assert reopened.recovery.clean
    assert reopened.reader.queue_range("t", 0) == (low, 300)
    assert len(bodies(reopened, "t")) == 300 - low
    reopened.close()


def test_a_queue_whose_messages_are_all_gone_is_empty_and_goes_on_at_its_maximum(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    store.append("early", batch("early", [b"a", b"b"]), queues=1)
    for number in range(60):
        store.append("t", batch("t", [b"%04d" % number + bytes(700)]), queues=1)
    dispatch_all(store)
    store.checkpoint()
    store.removal.take_out(SEGMENT)
    align(store)
    assert store.reader.queue_range("early", 0) == (2, 2)
    assert store.removal.first_from("early", 0, 0) == 2
    assert store.append("early", batch("early", [b"c"]), queues=1).queue_offsets == [2]
    dispatch_all(store)
    assert bodies(store, "early") == [b"c"]
    store.close()


def test_a_crash_with_files_on_their_way_out_does_not_bring_them_back(tmp_path: Path) -> None:
    store = filled(tmp_path)
    held = store.read_bytes(0, 100)
    store.removal.take_out(SEGMENT)
    store.removal.delete_taken(120)
    align(store)
    low, _ = store.reader.queue_range("t", 0)
    store.checkpoint()
    store.abandon()
    assert log_files(tmp_path)[0] == 0
    reopened = Store.open(store_config(tmp_path))
    assert not reopened.recovery.clean
    assert (reopened.min_offset, log_files(tmp_path)[0]) == (SEGMENT, SEGMENT)
    assert reopened.reader.queue_range("t", 0) == (low, 60)
    reopened.close()
    assert len(held) == 100


def test_a_crash_right_after_a_deletion_loses_nothing_else(tmp_path: Path) -> None:
    store = filled(tmp_path)
    flush(store)
    store.removal.take_out(SEGMENT)
    store.removal.delete_taken(0)
    store.abandon()  # before queues and index were aligned, before another checkpoint
    reopened = Store.open(store_config(tmp_path))
    low, high = reopened.reader.queue_range("t", 0)
    assert (reopened.min_offset, high) == (SEGMENT, 60)
    assert reopened.removal.physical_at("t", 0, low) == SEGMENT
    assert len(bodies(reopened, "t")) == 60 - low
    reopened.close()


def test_a_queue_can_begin_later_than_the_log(tmp_path: Path) -> None:
    store = filled(tmp_path, topics=("short", "long"))
    assert store.removal.raise_min_offset("short", 0, 10)
    assert not store.removal.raise_min_offset("short", 0, 5)
    assert not store.removal.raise_min_offset("unknown", 0, 5)
    assert store.reader.queue_range("short", 0) == (10, 60)
    assert store.reader.queue_range("long", 0) == (0, 60)
    assert store.removal.raise_min_offset("short", 0, 1000)
    assert store.reader.queue_range("short", 0) == (60, 60)
    assert len(bodies(store, "long")) == 60
    store.close()


def test_a_file_that_cannot_be_deleted_is_tried_again(tmp_path: Path) -> None:
    disk = FailingDisk("unlink")
    store = filled(tmp_path, disk=disk)
    store.removal.take_out(SEGMENT)
    disk.nth = disk.count + 1
    with pytest.raises(Exception, match="deleting the log file failed"):
        store.removal.delete_taken(0)
    assert store.removal.waiting == 1
    assert store.removal.delete_taken(0) == 1
    store.close()


class SmallDisk(Disk):
    """Says that so much is free, less by each file that is allocated."""

    free = 1 << 40

    def allocate(self, descriptor: int, size: int) -> None:
        self.free -= size
        super().allocate(descriptor, size)

    def free_bytes(self, path: str) -> int:
        return self.free


def test_without_space_only_the_brokers_own_records_are_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = SmallDisk()
    disk.free = SEGMENT  # room for one file, none for the next
    store = Store.open(store_config(tmp_path), disk=disk)
    store.append("t", batch("t", [b"first"]), queues=1)
    wait_until(lambda: "log file not made" in caplog.text, what="the attempt ahead of need")
    appends = iter(lambda: store.append("t", batch("t", [b"x"]), queues=1), None)
    with pytest.raises(DiskFull):
        list(appends)
    names_before = log_files(tmp_path)
    for _ in range(2):
        store.append(names.STATE_TOPIC, batch(names.STATE_TOPIC, [b"{}"]), queues=1)
        with pytest.raises(DiskFull):
            store.append("t", batch("t", [b"x"]), queues=1)
    assert log_files(tmp_path) == names_before == [0]
    told = [each.getMessage() for each in caplog.records if "log file not made" in each.getMessage()]
    assert len(told) == 1, "each append tries again, and one line says so for half a minute"
    assert told[0].count(str(tmp_path)) == 1
    disk.free = 1 << 40

    def is_taken() -> bool:
        with contextlib.suppress(DiskFull):  # after a slow failure it is not tried again at once
            store.append("t", batch("t", [b"again"]), queues=1)
            return True
        return False

    wait_until(is_taken, what="a new try to make the file")
    dispatch_all(store)
    assert bodies(store, "t")[-1] == b"again"
    store.close()


def test_while_refused_only_the_broker_s_own_records_are_taken(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    store.refusal = DiskFull("disk 91 % full")
    with pytest.raises(DiskFull, match="91 %"):
        store.append("t", batch("t", [b"x"]), queues=1)
    store.append(names.STATE_TOPIC, batch(names.STATE_TOPIC, [b"{}"]), queues=1)
    store.refusal = None
    store.append("t", batch("t", [b"x"]), queues=1)
    store.close()


def test_the_reserve_goes_when_space_is_short_and_comes_back(tmp_path: Path) -> None:
    disk, told = SmallDisk(), []
    reserve = Reserve(disk, str(tmp_path), 8192, told.append)
    path = tmp_path / "penstockReserve"
    reserve.adjust()
    assert (reserve.is_held, path.stat().st_size, told) == (True, 8192, [8192])
    disk.free = 8191
    reserve.adjust()
    assert (reserve.is_held, path.exists()) == (False, False)
    disk.free = 16383
    reserve.adjust()
    assert not reserve.is_held
    disk.free = 16384
    reserve.adjust()
    assert reserve.is_held
    again = Reserve(disk, str(tmp_path), 8192, told.append)
    disk.free = 100
    again.adjust()
    assert not path.exists(), "one that a former process left counts as well"


def test_a_start_on_a_full_disk_has_the_reserve_to_write(tmp_path: Path) -> None:
    path = tmp_path / "penstockReserve"

    class FullDisk(SmallDisk):
        free = 0

        def pwrite(self, descriptor: int, data: Data, position: int) -> None:
            if path.exists() and data != b"lock":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().pwrite(descriptor, data, position)

    store = filled(tmp_path)
    store.reserve.adjust()
    store.close()
    assert path.exists()
    store = Store.open(store_config(tmp_path), disk=FullDisk())
    assert len(bodies(store, "t")) == 60
    store.close()


def test_new_files_can_be_warmed_and_locked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        store = Store.open(store_config(tmp_path, warm_files=True, lock_files=True))
        for number in range(60):
            store.append("t", batch("t", [b"%04d" % number + bytes(700)]), queues=1)
        dispatch_all(store)
        assert len(bodies(store, "t")) == 60
        store.close()
    permitted = "mlockMappedFileEnable has no effect" not in caplog.text
    assert permitted or os.geteuid() != 0


def test_memory_that_cannot_be_locked_is_one_named_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    warming = Warming(disk, touch=True, lock=True, sync=False)
    monkeypatch.setattr(warming, "_call", lambda function, mapped: False)
    descriptor = disk.open(str(tmp_path / "a"), create=True)
    disk.allocate(descriptor, 10_000)
    data = disk.map(descriptor, 10_000)
    for _ in range(2):
        warming.warm("a", data, descriptor)
    warming.unlock(data)
    assert not data.any()
    assert disk.data_range(descriptor, 0, 10_000) == (0, 10_000)
    disk.close(descriptor)
    assert caplog.text.count("mlockMappedFileEnable has no effect") == 1


def test_an_emptied_queue_goes_on_where_it_was_after_a_rebuild(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    store.append("once", batch("once", [b"1", b"2", b"3"]), queues=1)
    store.close()
    store = filled(tmp_path)
    store.removal.take_out(SEGMENT)
    store.removal.delete_taken(0)
    align(store)
    assert store.reader.queue_range("once", 0) == (3, 3)
    store.checkpoint()
    store.abandon()
    shutil.rmtree(tmp_path / "consumequeue/t")
    store = Store.open(store_config(tmp_path))
    assert store.recovery.queues_rebuilt
    assert store.reader.queue_range("once", 0) == (3, 3)
    assert store.append("once", batch("once", [b"4"]), queues=1).queue_offsets == [3]
    dispatch_all(store)
    assert bodies(store, "once") == [b"4"]
    store.close()
