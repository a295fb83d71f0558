"""The checkpoint thread writes an index file out in steps, and dispatch may fill it in between."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.broker.store import Disk, Store
from penstock.broker.store.disk import Data
from penstock.broker.store.index.index_file import IndexFile
from penstock.formats.index.index_file import HEADER_BYTES
from penstock.inspection import StoreQuery, list_store, verify
from penstock.proto.errors import DiskFull
from tests.support.broker.stores import batch, dispatch_all, store_config
from tests.support.clock import ManualClock

SLOTS = 5000  # in five pages
ENTRIES = 1000


def _append(store: Store, first: int, count: int) -> None:
    keys = [b"UNIQ_KEY\x01U%d\x02" % number for number in range(first, first + count)]
    store.append("t", batch("t", [b"x"] * count, properties=keys), queues=1)


def _missing(store: Store, count: int) -> list[int]:
    return [number for number in range(count) if len(store.lookup.query("t", f"U{number}", 10, 0, 1 << 60)) != 1]


def _open(root: Path, disk: Disk | None = None) -> Store:
    store = Store.open(store_config(root, index_slots=SLOTS, index_entries=ENTRIES, segment_bytes=1 << 20), disk=disk)
    store._parts.index.on_full = lambda: None  # here the test is the checkpoint thread
    return store


def _grown_since_its_flush(root: Path, more: int) -> tuple[Store, IndexFile]:
    """A store whose index file was flushed with 300 keys, and has ``more`` since."""
    store = _open(root)
    _append(store, 0, 300)
    dispatch_all(store)
    store._parts.index.flush()
    _append(store, 300, more)
    dispatch_all(store)
    return store, store._parts.index._files[0]


def test_a_file_that_gets_full_while_it_is_written_out_has_every_key(tmp_path: Path) -> None:
    store = _open(tmp_path)
    _append(store, 0, 500)
    dispatch_all(store)
    file = store._parts.index._files[0]
    steps = file.write_slots()
    file.write(*next(steps))
    _append(store, 500, ENTRIES)
    dispatch_all(store)
    assert file.slots is None, "it is full"
    assert list(steps) == []
    assert _missing(store, 500 + ENTRIES) == []
    store.checkpoint()
    store.close()


def test_a_file_is_sound_for_its_readers_at_every_step_of_writing_it(tmp_path: Path) -> None:
    store, file = _grown_since_its_flush(tmp_path, 300)
    file.announce(settled_ms=0)
    for step in [(), *file.write_slots()]:
        if step:
            file.write(*step)
        found = verify(list_store(tmp_path))
        assert [str(problem) for problem in found.findings.problems] == []
        assert found.index_entries == 300
    file.dirty[:] = 1
    store._parts.index.flush()
    assert verify(list_store(tmp_path)).index_entries == 600
    store.close()


class WatchedDisk(Disk):
    """Remembers which index files were synced; ``meanwhile`` happens once, behind the next of them."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []
        self.meanwhile: Callable[[], None] | None = None

    def sync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        super().sync(descriptor)
        if "/index/" in path:
            self.synced.append(path)
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                meanwhile()


def test_a_file_that_gets_full_behind_its_sync_is_synced_by_the_next_flush(tmp_path: Path) -> None:
    disk = WatchedDisk()
    store = _open(tmp_path, disk)
    _append(store, 0, 100)
    dispatch_all(store)

    def fill() -> None:
        _append(store, 100, ENTRIES)
        dispatch_all(store)

    disk.meanwhile = fill
    index = store._parts.index
    index.flush()
    first, second = (file.path for file in index._files)
    assert disk.synced == [first]
    index.flush()
    assert disk.synced == [first, first, second]
    index.flush()
    assert disk.synced[3:] == [second]
    store.close()


def test_keys_that_come_too_fast_for_the_slots_survive_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The header in the file counts none of them then; the checkpoint does."""
    monkeypatch.setattr("penstock.broker.store.index.index._ROUNDS_MAX", 0)
    count, clock = 20_000, ManualClock(wall_ms=1_700_000_000_000)  # more than wait in memory
    config = store_config(tmp_path, index_slots=SLOTS, index_entries=40_000, segment_bytes=1 << 22)
    store = Store.open(config, clock=clock)
    for first in range(0, count, 1000):
        _append(store, first, 1000)
        clock.advance(1)
        dispatch_all(store)
    store.checkpoint()
    query = StoreQuery(list_store(tmp_path))
    assert [len(query.by_key("t", f"U{number}").messages) for number in (0, 9_999, 19_999)] == [1, 1, 1]
    query.close()
    store.abandon()
    monkeypatch.undo()
    store = Store.open(config, clock=clock)
    assert not caplog.records, "nothing had to be built anew"
    whole = clock.wall_ms() - 60_000, clock.wall_ms()
    for number in (0, 9_999, 19_999):
        assert len(store.lookup.query("t", f"U{number}", 10, *whole)) == 1
        assert store.lookup.query("t", f"U{number}", 10, 0, whole[0]) == []
    store.close()
    assert [str(problem) for problem in verify(list_store(tmp_path)).findings.problems] == []


def test_a_file_whose_header_lags_is_searched_by_its_readers(tmp_path: Path) -> None:
    store, file = _grown_since_its_flush(tmp_path, 600)
    for step in file.write_slots():
        file.write(*step)
    query = StoreQuery(list_store(tmp_path))
    assert [len(query.by_key("t", f"U{number}").messages) for number in range(900)] == [1] * 900
    query.close()
    store.close()


class FullDisk(Disk):
    """Has no space for the first page of an index file's slots, once it is told so."""

    is_full = False

    def pwrite(self, descriptor: int, data: Data, position: int) -> None:
        if self.is_full and position == HEADER_BYTES and len(data) == 4096:
            raise OSError(errno.ENOSPC, "no space")
        super().pwrite(descriptor, data, position)


def test_a_full_file_whose_slots_found_no_space_has_every_key_when_there_is_some(tmp_path: Path) -> None:
    disk = FullDisk()
    store = _open(tmp_path, disk)
    _append(store, 0, ENTRIES + 10)
    disk.is_full = True
    with pytest.raises(DiskFull):
        dispatch_all(store)
    disk.is_full = False
    dispatch_all(store)
    assert _missing(store, ENTRIES + 10) == []
    store.close()


def test_a_checkpoint_that_fails_does_not_end_its_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = _open(tmp_path)
    _append(store, 0, 10)
    dispatch_all(store)

    def fail() -> None:
        raise TypeError("a bug")

    with monkeypatch.context() as broken:
        broken.setattr(store._parts.index, "flush", fail)
        store._checkpoints.write_or_warn()
    assert [(line.levelname, line.exc_info is not None) for line in caplog.records] == [("ERROR", True)]
    assert store.checkpointed_offset == 0
    store._checkpoints.write_or_warn()
    assert store.checkpointed_offset == store.end_offset
    store.close()


@pytest.mark.parametrize("kind", ["open", "truncate", "pwrite"])
def test_a_file_that_cannot_be_made_leaves_none_that_the_next_start_would_find_before_others(
    tmp_path: Path, kind: str
) -> None:
    class Full(Disk):
        is_full = False
        made = -1

        def _check(self, asked: str, descriptor: int = -1) -> None:
            if self.is_full and asked == kind and descriptor == self.made:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
            self.made = -1
            is_index = create and "/index/" in path
            if is_index:
                self._check("open")
            descriptor = super().open(path, create=create, read_only=read_only)
            self.made = descriptor if is_index else -1
            return descriptor

        def truncate(self, descriptor: int, size: int) -> None:
            self._check("truncate", descriptor)
            super().truncate(descriptor, size)

        def pwrite(self, descriptor: int, data: Data, position: int) -> None:
            self._check("pwrite", descriptor)
            super().pwrite(descriptor, data, position)

    disk = Full()
    store = _open(tmp_path, disk)
    _append(store, 0, ENTRIES - 1)
    dispatch_all(store)
    _append(store, ENTRIES - 1, 10)
    store.set_confirm(store.end_offset)
    disk.is_full = True
    for _ in range(3):
        disk.made = -1
        with pytest.raises(DiskFull):
            store.dispatch()
        assert len(os.listdir(tmp_path / "index")) == 1
    disk.is_full = False
    dispatch_all(store)
    assert _missing(store, ENTRIES + 9) == []
    store.close()
    again = _open(tmp_path)
    assert again.recovery.replayed_from == again.end_offset
    assert _missing(again, ENTRIES + 9) == []
    again.close()
