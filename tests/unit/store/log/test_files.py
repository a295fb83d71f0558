"""Directories, locks, sizes: what else may be found where a store should be."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.broker.store import FlushMode, Store
from penstock.broker.store.disk import Disk
from penstock.broker.store.log.log_directories import LogDirectories
from penstock.broker.store.log.log_file import FileAllocator
from penstock.broker.store.log.warming import Warming
from penstock.broker.store.recovery.checkpoint import Checkpoint
from penstock.formats.checkpoint import Positions, Standard
from penstock.proto.errors import ConfigError, Corrupt, DiskFull, StorageError, StoreLocked, SyncFailed, WrongStore
from penstock.runtime.clock import boot_id
from tests.support.broker.stores import batch, bodies, dispatch_all, store_config, tree
from tests.support.crash.failing_disk import FailingDisk
from tests.support.waiting import wait_until


def _filled(root: Path, batches: int = 60) -> Store:
    store = Store.open(store_config(root))
    for number in range(batches):
        store.append("t", batch("t", [b"%04d" % number + bytes(700)]), queues=1)
    dispatch_all(store)
    return store


def test_a_new_store_has_rocketmqs_files(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path / "made" / "here"))
    root = tmp_path / "made" / "here"
    assert (root / "abort").read_text().split() == [str(os.getpid()), boot_id()]
    assert (root / "lock").read_bytes() == b"lock"
    store.append("t", batch("t", [b"x"]), queues=1)
    dispatch_all(store)
    store.close()
    assert not (root / "abort").exists()
    assert (root / "checkpoint").stat().st_size == 4096
    assert (root / "commitlog" / f"{0:020d}").stat().st_size == 16384
    assert (root / "consumequeue/t/0" / f"{0:020d}").stat().st_size == 400


def test_a_clean_close_deletes_files_made_ahead_and_a_start_after_it_scans_nothing(tmp_path: Path) -> None:
    store = _filled(tmp_path)
    wait_until(lambda: len(list((tmp_path / "commitlog").iterdir())) == 4, what="the file made ahead")
    end = store.end_offset
    store.close()
    assert len(list((tmp_path / "commitlog").iterdir())) == 3
    reopened = Store.open(store_config(tmp_path))
    assert (reopened.recovery.clean, reopened.recovery.scanned_bytes) == (True, 0)
    assert (reopened.end_offset, reopened.flushed_offset, reopened.dispatched_offset) == (end, end, end)
    assert len(bodies(reopened, "t")) == 60
    reopened.close()


def test_one_process_opens_a_store_once(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    with pytest.raises(StoreLocked, match=f"this process \\({os.getpid()}\\)"):
        Store.open(store_config(tmp_path))
    store.close()
    Store.open(store_config(tmp_path)).close()


def test_another_process_is_named(tmp_path: Path) -> None:
    holder = (
        "import fcntl, sys; f = open(sys.argv[1], 'w+'); fcntl.lockf(f, fcntl.LOCK_EX, 1, 0);"
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        before = tree(tmp_path)
        with pytest.raises(StoreLocked, match=f"process {child.pid} has"):
            Store.open(store_config(tmp_path))
        assert tree(tmp_path) == before
        child.communicate()
    Store.open(store_config(tmp_path)).close()


@pytest.mark.parametrize("change", [{"segment_bytes": 32768}, {"consume_queue_bytes": 800}, {"index_slots": 51}])
def test_other_file_sizes_are_refused_by_name(tmp_path: Path, change: dict[str, int]) -> None:
    store = Store.open(store_config(tmp_path))
    store.append("t", batch("t", [b"x"], properties=[b"KEYS\x01k\x02"]), queues=1)
    dispatch_all(store)
    store.close()
    before = tree(tmp_path)
    with pytest.raises(WrongStore) as caught:
        Store.open(store_config(tmp_path, **change))
    assert caught.value.details["path"] in str(caught.value)
    after = tree(tmp_path)
    assert {name: after[name] for name in before} == before
    reopened = Store.open(store_config(tmp_path))
    assert bodies(reopened, "t") == [b"x"]
    reopened.close()


@pytest.mark.parametrize("harm", ["first queue file gone", "header of the first index file zeroed"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_what_lacks_of_queues_and_index_before_their_last_files_is_made_again(
    tmp_path: Path, harm: str, is_clean: bool
) -> None:
    config = store_config(tmp_path, index_entries=20)
    store = Store.open(config)
    for number in range(60):
        store.append("t", batch("t", [b"%d" % number], properties=[b"KEYS\x01k%d\x02" % number]), queues=1)
    dispatch_all(store)
    store.checkpoint()
    store.close()
    if not is_clean:
        (tmp_path / "abort").touch()
    if harm.startswith("first"):
        (tmp_path / "consumequeue/t/0" / f"{0:020d}").unlink()
    else:
        with min((tmp_path / "index").iterdir()).open("r+b") as file:
            file.write(bytes(40))
    again = Store.open(config)
    dispatch_all(again)
    assert bodies(again, "t") == [b"%d" % number for number in range(60)]
    assert [len(again.lookup.query("t", f"k{number}", 10, 0, 1 << 60)) for number in range(60)] == [1] * 60
    again.close()


def test_a_file_that_is_none_of_the_logs_is_refused_by_name(tmp_path: Path) -> None:
    _filled(tmp_path).close()
    (tmp_path / "commitlog/notes.txt").write_text("mine")
    with pytest.raises(WrongStore, match=r"notes\.txt"):
        Store.open(store_config(tmp_path))


def test_a_short_log_file_is_refused_and_an_empty_last_one_deleted(tmp_path: Path) -> None:
    _filled(tmp_path).close()
    empty = tmp_path / "commitlog" / f"{16384 * 3:020d}"
    empty.touch()
    Store.open(store_config(tmp_path)).close()
    assert not empty.exists()
    os.truncate(tmp_path / "commitlog" / f"{16384:020d}", 16383)
    with pytest.raises(WrongStore) as caught:
        Store.open(store_config(tmp_path))
    assert (caught.value.details["size"], caught.value.details["configured"]) == (16383, 16384)


def test_a_missing_log_file_is_named(tmp_path: Path) -> None:
    _filled(tmp_path).close()
    files = sorted((tmp_path / "commitlog").iterdir())
    content = files[1].read_bytes()
    files[1].unlink()
    with pytest.raises(Corrupt, match=files[1].name):
        Store.open(store_config(tmp_path))
    files[1].write_bytes(content)
    files[2].unlink()
    with pytest.raises(Corrupt, match="log files are missing"):
        Store.open(store_config(tmp_path))


def test_a_store_whose_log_is_gone_does_not_begin_anew(tmp_path: Path) -> None:
    _filled(tmp_path).close()
    mounted, unmounted = tmp_path / "commitlog", tmp_path / "elsewhere"
    mounted.rename(unmounted)
    for _ in range(2):  # nor at the second start, when the first has made the directory
        with pytest.raises(Corrupt, match="log files are missing; is a disk not mounted"):
            Store.open(store_config(tmp_path))
        assert list(mounted.iterdir()) == []
    mounted.rmdir()
    unmounted.rename(mounted)
    store = Store.open(store_config(tmp_path))
    assert len(bodies(store, "t")) == 60
    store.close()


def test_a_store_goes_on_without_its_log_when_told_so(tmp_path: Path) -> None:
    _filled(tmp_path).close()
    shutil.rmtree(tmp_path / "commitlog")
    (tmp_path / "penstockCheckpoint").unlink()
    store = Store.open(store_config(tmp_path))
    assert (store.min_offset, store.end_offset) == (0, 0)
    store.close()


def test_strange_names_among_the_queues_do_no_harm(tmp_path: Path) -> None:
    _filled(tmp_path).close()
    for name in ("consumequeue/.hidden", "consumequeue/t/x", "consumequeue/t/-1", "consumequeue/a b/0"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "consumequeue/t/0/notes").touch()
    store = Store.open(store_config(tmp_path))
    assert store.queues() == {"t": [0]}
    assert len(bodies(store, "t")) == 60
    store.close()


def test_a_directory_that_cannot_be_used_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file"):
        Store.open(store_config(tmp_path / "file"))


@pytest.mark.parametrize(
    "change",
    [
        {"consume_queue_bytes": 0},
        {"segment_bytes": 50},
        {"index_entries": 1},
        {"delay_levels": "5x"},
        {"delay_levels": ""},
    ],
)
def test_impossible_settings_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        store_config(tmp_path, **change)


@pytest.mark.parametrize("kind", ["allocate", "open"])
def test_no_space_for_the_next_file_refuses_and_reading_goes_on(tmp_path: Path, kind: str) -> None:
    disk = FailingDisk("", 1, errno.ENOSPC, forever=True)
    store = Store.open(store_config(tmp_path), disk=disk)
    store.append("t", batch("t", [b"first"]), queues=1)
    dispatch_all(store)
    store.checkpoint()
    disk.kind = kind
    appends = iter(lambda: store.append("t", batch("t", [bytes(1000)]), queues=1), None)
    with pytest.raises(DiskFull):
        list(appends)
    end = store.end_offset
    with pytest.raises(DiskFull):
        store.append("t", batch("t", [bytes(1000)]), queues=1)
    assert store.end_offset == end
    assert bodies(store, "t") == [b"first"]
    disk.kind = ""
    starts: list[int] = []

    def appended() -> bool:
        with contextlib.suppress(DiskFull):  # of an attempt that began before there was space
            starts.append(store.append("t", batch("t", [bytes(1000)]), queues=1).start)
        return bool(starts)

    wait_until(appended, what="a file made with the space that came back")
    assert starts[0] % 16384 == 0
    dispatch_all(store)
    store.close()


def test_the_first_failed_sync_fences_the_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    disk = FailingDisk()
    store = Store.open(store_config(tmp_path, flush_mode=FlushMode.SYNC_FLUSH), disk=disk)
    flushed, told = [], []
    store.on_flushed, store.on_fatal = flushed.append, told.append
    store.append("t", batch("t", [b"kept"]), queues=1)
    kept = store.end_offset
    store.request_flush(kept)
    wait_until(lambda: flushed, what="the notice of what is kept")
    wait_until(lambda: f"{16384:020} bytes" in caplog.text, what="the file made ahead, which is synced too")
    disk.kind, disk.nth, disk.count = "sync", 1, 0
    store.append("t", batch("t", [b"lost?"]), queues=1)
    store.request_flush(store.end_offset)
    wait_until(lambda: told, what="the fatal error")
    assert isinstance(told[0], SyncFailed)
    with pytest.raises(SyncFailed):
        store.append("t", batch("t", [b"no"]), queues=1)
    store.request_flush(store.end_offset)
    syncs = disk.count
    store.close()
    assert disk.count == syncs, "a failed sync is not repeated"
    assert (flushed, len(told)) == ([kept], 1)
    assert (tmp_path / "abort").exists()
    reopened = Store.open(store_config(tmp_path))
    assert bodies(reopened, "t")[0] == b"kept"
    reopened.close()


def test_waiting_flushes_share_one_sync_and_are_told(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path, flush_mode=FlushMode.SYNC_FLUSH))
    told: list[int] = []
    store.on_flushed = told.append
    for _ in range(20):
        store.append("t", batch("t", [b"x"]), queues=1)
        store.request_flush(store.end_offset)
    wait_until(lambda: store.flushed_offset == store.end_offset, what="the flush")
    wait_until(lambda: told and told[-1] == store.end_offset, what="the notice")
    assert len(told) <= 20
    assert told == sorted(told)
    store.close()


def test_without_being_asked_an_async_store_syncs_in_intervals(tmp_path: Path) -> None:
    config = store_config(tmp_path, flush_interval_ms=5, flush_thorough_interval_ms=20)
    store = Store.open(config)
    store.append("t", batch("t", [b"little"]), queues=1)
    wait_until(lambda: store.flushed_offset == store.end_offset, what="the thorough flush")
    dispatch_all(store)
    end = store.end_offset
    store.append("t", batch("t", [bytes(15_000)]), queues=1)
    wait_until(lambda: store.flushed_offset > end, what="the flush of many pages")
    wait_until(lambda: (tmp_path / "consumequeue/t/0" / f"{0:020d}").exists(), what="the queue's flush")
    store.close()


def test_a_preallocation_that_failed_ahead_is_tried_again_when_needed(tmp_path: Path) -> None:
    disk = FailingDisk("allocate", 1, errno.ENOSPC)
    warming = Warming(disk, touch=False, lock=False, sync=False)
    allocator = FileAllocator(disk, LogDirectories(disk, [str(tmp_path)], [], 4096), 4096, warming)
    allocator.prepare(0)
    wait_until(lambda: disk.failed, what="the failure")
    assert allocator.take(0).base == 0
    allocator.close()


def test_a_checkpoint_counts_only_beside_the_one_it_was_written_with(tmp_path: Path) -> None:
    checkpoint = Checkpoint(Disk(), str(tmp_path))
    assert checkpoint.read() is None
    checkpoint.begin()
    first, second = Positions(end=10, flushed=10), Positions(end=20, flushed=20)
    checkpoint.write(first, Standard(1, 2, 3))
    former = (tmp_path / "checkpoint").read_bytes()
    checkpoint.write(second, Standard(4, 5, 6))
    checkpoint.write_hint(25, 15)
    checkpoint.close()

    def found() -> Positions | None:
        return Checkpoint(Disk(), str(tmp_path)).read()

    assert found() == second._replace(flushed=25)
    assert len((tmp_path / "checkpoint").read_bytes()) == 4096
    (tmp_path / "checkpoint").write_bytes(former)  # as if the crash came between the two writes
    assert found() == first._replace(flushed=25)
    (tmp_path / "checkpoint").write_bytes(bytes(4096))  # as if another program had written it
    assert found() is None
