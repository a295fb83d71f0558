"""Appends that go to a transient store pool: who sees them when, and what a failing disk makes of them."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.store import Disk, FlushMode, Store
from penstock.broker.store.log.transient_store_pool import WriteBuffers
from penstock.proto import names
from penstock.proto.errors import DiskFull, FlowControl, Forbidden, StorageError, SyncFailed
from tests.support.broker.stores import NEVER_MS, batch, bodies, dispatch_all, read, store_config
from tests.support.clock import ManualClock
from tests.support.crash.failing_disk import FailingDisk
from tests.support.waiting import wait_until

SEGMENT = 16384


def _open(root: Path, disk: Disk | None = None, **settings: Any) -> Store:
    """Nothing is committed but when asked for."""
    defaults: dict[str, Any] = {
        "is_pooled": True,
        "pool_size": 2,
        "commit_interval_ms": NEVER_MS,
        "commit_thorough_interval_ms": NEVER_MS,
    }
    return Store.open(store_config(root, **(defaults | settings)), disk=disk, clock=ManualClock())


def _append(store: Store, number: int, size: int = 700) -> int:
    return store.append("t", batch("t", [b"%04d" % number + bytes(size)]), queues=1).end


def _log(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))


def _numbers(store: Store) -> list[int]:
    dispatch_all(store)
    return [int(body[:4]) for body in bodies(store, "t")]


def test_what_is_in_a_buffer_only_nobody_sees(tmp_path: Path) -> None:
    store = _open(tmp_path)
    committed: list[int] = []
    store.on_committed = committed.append
    end = _append(store, 0)
    store.set_confirm(end)
    assert (store.end_offset, store.confirm_offset, store.appended_offset) == (0, 0, end)
    assert store.dispatch().end == 0
    assert not any(_log(tmp_path))
    assert len(store.read_bytes(0, end)) == 0
    store.request_commit(end)
    wait_until(lambda: committed == [end], what="the commit")
    assert store.end_offset == end
    assert _numbers(store) == [0]
    store.close()


def test_the_files_are_those_of_a_store_without_a_pool(tmp_path: Path) -> None:
    sent = [batch("t", [bytes(300 + number % 7 * 100)]) for number in range(90)]
    for name, pool_size in (("mapped", 0), ("one", 1), ("two", 2), ("five", 5)):
        store = _open(tmp_path / name, is_pooled=pool_size > 0, pool_size=pool_size or 1, append_record_crc=True)
        for number, records in enumerate(sent):
            store.append("t", records, queues=1)
            if number % 11 == 0:
                store.request_commit(store.appended_offset)
        store.close()
        assert _log(tmp_path / name) == _log(tmp_path / "mapped"), name
        assert len(_log(tmp_path / name)) >= 4 * SEGMENT


def test_a_killed_store_has_what_was_committed_and_nothing_else(tmp_path: Path) -> None:
    store = _open(tmp_path)
    for number in range(30):
        end = _append(store, number)
    store.commit()
    for number in range(30, 50):
        _append(store, number)
    store.abandon()
    reopened = _open(tmp_path)
    assert (reopened.recovery.clean, reopened.end_offset, reopened.appended_offset) == (False, end, end)
    assert _append(reopened, 30) > end, "the log goes on in a file that is partly full"
    reopened.commit()
    assert _numbers(reopened) == list(range(31))
    reopened.close()


def test_a_clean_stop_commits_everything(tmp_path: Path) -> None:
    store = _open(tmp_path)
    for number in range(40):
        end = _append(store, number)
    store.close()
    reopened = _open(tmp_path)
    assert (reopened.recovery.clean, reopened.end_offset) == (True, end)
    assert _numbers(reopened) == list(range(40))
    reopened.close()


def test_a_checkpoint_and_a_flush_commit_first(tmp_path: Path) -> None:
    store = _open(tmp_path)
    first = _append(store, 0)
    store.checkpoint()
    assert (store.end_offset, store.flushed_offset) == (first, first)
    second = _append(store, 1)
    store.request_flush(second)
    wait_until(lambda: store.flushed_offset == second, what="the flush")
    store.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"commit_interval_ms": 5, "commit_least_pages": 1, "commit_thorough_interval_ms": NEVER_MS},
        {"commit_interval_ms": 5, "commit_least_pages": 1000, "commit_thorough_interval_ms": 20},
    ],
    ids=["many pages", "any"],
)
def test_what_nobody_waits_for_is_committed_in_intervals(tmp_path: Path, settings: dict[str, Any]) -> None:
    store = _open(tmp_path, **settings)
    end = _append(store, 0, size=5000)
    wait_until(lambda: store.end_offset == end, what="the commit")
    store.close()


def test_records_of_the_state_are_committed_on_return(tmp_path: Path) -> None:
    store = _open(tmp_path)
    _append(store, 0)
    result = store.append(names.STATE_TOPIC, batch(names.STATE_TOPIC, [b"{}"]), queues=1)
    assert store.end_offset == store.appended_offset == result.end
    store.close()


def test_sizes_of_records_that_the_store_made_longer_are_told_before_a_commit(tmp_path: Path) -> None:
    store = _open(tmp_path, append_record_crc=True)
    sent = batch("t", [b"x" * 10, b"y" * 50])
    result = store.append("t", sent, queues=1)
    before = store.changed_sizes(result.start, result.end, memoryview(sent))
    store.commit()
    assert before == store.changed_sizes(result.start, result.end, memoryview(sent))
    assert [len(record.body) for record in read(store, "t")] == []
    dispatch_all(store)
    assert [len(record.body) for record in read(store, "t")] == [10, 50]
    store.close()


def test_without_a_free_buffer_messages_are_refused_or_wait_for_a_commit(tmp_path: Path) -> None:
    patient = _open(tmp_path / "patient")
    hasty = _open(tmp_path / "hasty", fast_fail_if_no_buffer=True)
    per_file = SEGMENT // 800
    for store in (patient, hasty):
        for number in range(2 * per_file):
            _append(store, number)
        assert store.end_offset == 0
    _append(patient, 2 * per_file)
    assert patient.end_offset >= 2 * SEGMENT - 800, "the others were committed for it"
    with pytest.raises(FlowControl, match="transientStorePoolSize=2"):
        _append(hasty, 2 * per_file)
    hasty.append(names.STATE_TOPIC, batch(names.STATE_TOPIC, [b"{}"]), queues=1)  # waits, as state does
    _append(hasty, 2 * per_file)
    for store in (patient, hasty):
        store.commit()
        assert _numbers(store) == list(range(2 * per_file + 1))
        store.close()


def test_a_batch_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    store = _open(tmp_path)
    end = _append(store, 0)
    with pytest.raises(Forbidden):
        store.append("t", batch("t", [b"0001", b"0002"], [0, 5]), queues=1)
    assert store.appended_offset == end
    _append(store, 1)
    store.commit()
    assert _numbers(store) == [0, 1]
    store.close()


def test_a_master_that_becomes_a_slave_loses_nothing_and_may_become_master_again(tmp_path: Path) -> None:
    other = Store.open(store_config(tmp_path / "other"), clock=ManualClock())
    store = _open(tmp_path / "store")
    for number in range(10):
        assert _append(other, number) == _append(store, number)
    for number in range(10, 40):
        _append(other, number)
    at = store.appended_offset
    while at < other.end_offset:
        at = store.append_bytes(at, other.read_bytes(at, 4000))
    assert store.end_offset == at
    store.cut_unfinished()
    assert _append(store, 40) > store.end_offset
    store.commit()
    assert _numbers(store) == list(range(41))
    store.close()
    other.close()


def test_a_log_that_is_cut_does_not_get_back_what_was_in_buffers(tmp_path: Path) -> None:
    store = _open(tmp_path)
    ends = [_append(store, number) for number in range(50)]
    store.truncate_to(ends[9])
    assert store.end_offset == store.appended_offset == ends[9]
    _append(store, 10)
    store.close()
    reopened = _open(tmp_path)
    assert _numbers(reopened) == list(range(11))
    assert not any(_log(tmp_path)[reopened.end_offset :])
    reopened.close()


def test_retention_takes_files_whose_buffers_are_free(tmp_path: Path) -> None:
    store = _open(tmp_path)
    for number in range(60):
        _append(store, number)
        store.request_commit(store.appended_offset)
    store.checkpoint()
    assert store.removal.take_out(SEGMENT) == 1
    assert store.removal.delete_taken(120) == 1, "nobody holds it"
    store.close()


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_failed_write_fences_the_store_and_what_was_committed_is_there(tmp_path: Path, nth: int) -> None:
    disk = FailingDisk()
    store = _open(tmp_path, disk)
    fatal: list[StorageError] = []
    store.on_fatal = fatal.append
    ends = [_append(store, 0)]
    store.commit()
    disk.kind, disk.nth, disk.count = "pwrite", nth, 0
    for number in range(1, 80):
        ends.append(_append(store, number))
        if store.appended_offset // SEGMENT > store.end_offset // SEGMENT:  # in two files, so two writes
            store.request_commit(store.appended_offset)
            wait_until(lambda: store.end_offset == ends[-1] or fatal, what="the commit")
        if fatal:
            break
    assert isinstance(fatal[0], SyncFailed)
    end = store.end_offset
    with pytest.raises(SyncFailed):
        _append(store, 99)
    store.close()
    reopened = _open(tmp_path)
    assert reopened.end_offset >= end
    found = _numbers(reopened)
    assert found == list(range(len(found)))
    assert len(found) >= ends.index(end) + 1
    reopened.close()


def test_a_commit_that_ends_in_the_middle_leaves_a_beginning(tmp_path: Path) -> None:
    disk = FailingDisk()
    store = _open(tmp_path, disk)
    fatal: list[StorageError] = []
    store.on_fatal = fatal.append
    ends = [_append(store, number) for number in range(30)]
    disk.kind, disk.nth, disk.count = "pwrite", 2, 0
    store.request_commit(ends[-1])
    wait_until(lambda: fatal, what="the failure")
    assert store.end_offset == 0
    store.abandon()
    reopened = _open(tmp_path)
    assert _numbers(reopened) == list(range(sum(end <= SEGMENT for end in ends))), "all of the first of two files"
    reopened.close()


def test_a_full_disk_refuses_messages_until_a_commit_finds_space(tmp_path: Path) -> None:
    disk = FailingDisk()
    store = _open(tmp_path, disk, commit_interval_ms=5)
    fatal: list[StorageError] = []
    store.on_fatal = fatal.append
    disk.kind, disk.nth, disk.code, disk.forever = "pwrite", 1, errno.ENOSPC, True
    end = _append(store, 0)
    store.request_commit(end)
    wait_until(lambda: disk.failed and store._flusher.refusal, what="the refusal")
    for topic in ("t", names.STATE_TOPIC):
        with pytest.raises(DiskFull, match="appending failed, no space"):
            store.append(topic, batch(topic, [b"{}"]), queues=1)
    assert (store.end_offset, fatal) == (0, [])
    disk.kind = ""
    wait_until(lambda: store.end_offset == end and store._flusher.refusal is None, what="the commit")
    _append(store, 1)
    store.close()
    reopened = _open(tmp_path)
    assert _numbers(reopened) == [0, 1]
    reopened.close()


def test_a_commit_that_found_no_space_says_so_before_another_finds_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FailingDisk()
    store = _open(tmp_path, disk)
    disk.kind, disk.nth, disk.code = "pwrite", 1, errno.ENOSPC
    end = _append(store, 0)
    flusher, other = store._flusher, threading.Thread(target=store._flusher.commit)
    not_written = flusher.not_written

    def overtaken(error: OSError) -> StorageError:
        found = not_written(error)
        other.start()
        other.join(0.2)  # it has to wait
        return found

    monkeypatch.setattr(flusher, "not_written", overtaken)
    with pytest.raises(DiskFull):
        flusher.commit()
    other.join(30)
    assert store.end_offset == end
    _append(store, 1)
    store.close()


def test_a_pool_does_not_go_with_sync_flush(tmp_path: Path) -> None:
    assert store_config(tmp_path, is_pooled=True).buffers == 5
    assert store_config(tmp_path, is_pooled=True, flush_mode=FlushMode.SYNC_FLUSH).buffers == 0


def test_memory_that_is_not_there_is_an_error_with_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(StorageError, match="transientStorePoolSize=5 buffers of 1024 bytes"):
        WriteBuffers(Disk(), 5, 1024)
