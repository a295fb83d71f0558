"""A log in several directories: new files are spread as by RocketMQ, and everything knows all of them."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.store import Disk, Store, StoreConfig
from penstock.broker.store.disk import Bytes
from penstock.inspection import list_store
from penstock.inspection.verify import verify
from penstock.proto.errors import Corrupt, DiskFull, StoreLocked, WrongStore
from tests.support import golden
from tests.support.broker.stores import batch, bodies, dispatch_all, flush, store_config
from tests.unit.store.recovery.test_golden_stores import golden_config


def _config(root: Path, **changes: Any) -> StoreConfig:
    return store_config(root, commit_log_path=f" {root}/c,{root}/a , {root}/b/", **changes)


def _fill(store: Store, count: int) -> None:
    first = store.reader.queue_range("t", 0)[1]
    for number in range(first, first + count):
        store.append("t", batch("t", [b"%04d" % number + bytes(700)]), queues=1)
    dispatch_all(store)


def _numbers(store: Store) -> list[int]:
    return [int(body[:4]) for body in bodies(store, "t")]


def _files(root: Path) -> dict[str, list[int]]:
    return {name: sorted(int(path.name) // 16384 for path in (root / name).iterdir()) for name in ("a", "b", "c")}


def test_files_go_round_the_directories_in_the_order_of_their_names(tmp_path: Path) -> None:
    store = Store.open(_config(tmp_path))
    _fill(store, 130)
    assert store.end_offset > 6 * 16384
    store.close()
    assert _files(tmp_path) == {"a": [0, 3, 6], "b": [1, 4], "c": [2, 5]}
    directories = [tmp_path / name for name in ("a", "b", "c")]
    found = verify(list_store(tmp_path, directories))
    assert (found.findings.ok, found.records) == (True, 130)
    store = Store.open(_config(tmp_path))
    assert store.recovery.clean
    assert _numbers(store) == list(range(130))
    store.close()


def test_recovery_and_cleaning_know_all_of_them(tmp_path: Path) -> None:
    store = Store.open(_config(tmp_path))
    _fill(store, 130)
    flush(store)
    store.abandon()
    store = Store.open(_config(tmp_path))
    assert not store.recovery.clean
    assert _numbers(store) == list(range(130))
    store.checkpoint()
    assert store.removal.take_out(4 * 16384) == 4
    assert store.removal.delete_taken(0) == 4
    for _ in store.removal.align():
        pass
    left = _numbers(store)
    assert left[-1] == 129
    assert store.min_offset == 4 * 16384
    _fill(store, 40)
    store.close()
    assert _files(tmp_path) == {"a": [6], "b": [4, 7], "c": [5, 8]}
    store = Store.open(_config(tmp_path))
    assert len(_numbers(store)) == len(left) + 40
    store.close()


def test_a_file_missing_in_one_of_them_or_there_twice_is_named(tmp_path: Path) -> None:
    store = Store.open(_config(tmp_path))
    _fill(store, 130)
    store.close()
    path = tmp_path / "b" / f"{4 * 16384:020d}"
    copy = tmp_path / "c" / path.name
    copy.write_bytes(path.read_bytes())
    with pytest.raises(WrongStore, match=f"{copy}: the same log file is there as {path}"):
        Store.open(_config(tmp_path))
    copy.unlink()
    path.rename(tmp_path / "kept")
    with pytest.raises(Corrupt, match=f"{path.name}: this log file is missing"):
        Store.open(_config(tmp_path))
    with pytest.raises(Corrupt):
        Store.open(store_config(tmp_path, commit_log_path=f"{tmp_path}/a"))
    (tmp_path / "kept").rename(copy)  # anywhere among them
    store = Store.open(_config(tmp_path))
    assert _numbers(store) == list(range(130))
    store.close()


class _Disk(Disk):
    """Some directories are full, some cannot be written."""

    def __init__(self, *, full: str = "", sealed: str = "") -> None:
        super().__init__()
        self.full, self.sealed = full, sealed
        self.devices: dict[str, int] = {}  # of directories that are on another disk

    def device(self, path: str) -> int:
        return self.devices.get(path) or super().device(path)

    def _check(self, path: str) -> None:
        if self.sealed and os.path.dirname(path) == self.sealed:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    def free_bytes(self, path: str) -> int:
        return 0 if path in self.full.split(",") else super().free_bytes(path)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        if not read_only:
            self._check(path)
        return super().open(path, create=create, read_only=read_only)

    def unlink(self, path: str) -> None:
        self._check(path)
        super().unlink(path)

    def map(self, descriptor: int, size: int, *, read_only: bool = False) -> Bytes:
        return super().map(descriptor, size, read_only=read_only)


def test_a_full_directory_gets_no_files_and_only_when_all_are_full_nothing_is_stored(tmp_path: Path) -> None:
    disk = _Disk(full=f"{tmp_path}/b")
    store = Store.open(_config(tmp_path), disk=disk)
    _fill(store, 130)
    disk.full = ",".join(str(tmp_path / name) for name in "abc")
    with pytest.raises(DiskFull, match=f"{tmp_path}/a,{tmp_path}/b,{tmp_path}/c"):
        _fill(store, 100)
    dispatch_all(store)
    store.close()
    assert _files(tmp_path)["b"] == []
    store = Store.open(_config(tmp_path))
    assert _numbers(store)[:130] == list(range(130))
    store.close()


def test_read_only_directories_serve_what_they_hold_and_get_nothing_new(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path, commit_log_path=f"{tmp_path}/old"))
    _fill(store, 70)
    store.close()
    last = sorted((tmp_path / "old").iterdir())[-1]
    sealed = store_config(
        tmp_path, commit_log_path=f"{tmp_path}/new", read_only_log_paths=f"{tmp_path}/old,{tmp_path}/new2"
    )
    with pytest.raises(WrongStore, match=f"{tmp_path}/new2: this directory of readOnlyCommitLogStorePaths does not"):
        Store.open(sealed)
    sealed = store_config(tmp_path, commit_log_path=f"{tmp_path}/new", read_only_log_paths=f"{tmp_path}/old")
    disk = _Disk(sealed=str(tmp_path / "old"))
    with pytest.raises(WrongStore, match=f"{last}: may not be written"):
        Store.open(sealed, disk=disk)
    last.rename(tmp_path / "new" / last.name)
    for _ in range(2):
        store = Store.open(sealed, disk=disk)
        assert _numbers(store)[:70] == list(range(70))
        _fill(store, 50)
        store.abandon()
    assert {path.parent.name for path in (tmp_path / "new").iterdir()} == {"new"}
    store = Store.open(sealed, disk=disk)
    assert _numbers(store) == list(range(170))
    store.checkpoint()
    at_old = {int(path.name) for path in (tmp_path / "old").iterdir()}
    assert all(file.makes_space for file in store.removal.files()), "it is on the disk that new files come to"
    disk.devices[f"{tmp_path}/old"] = 1
    assert {file.base for file in store.removal.files() if not file.makes_space} == at_old
    assert store.removal.take_out(5 * 16384) == 5
    assert store.removal.delete_taken(0) == 5
    assert (tmp_path / "old" / f"{0:020d}").exists(), "it cannot be deleted, and is not missed"
    store.close()
    store = Store.open(sealed, disk=disk)
    assert store.min_offset == 5 * 16384
    store.close()
    with pytest.raises(WrongStore, match="name one that gets the new files"):
        Store.open(store_config(tmp_path, commit_log_path=f"{tmp_path}/x", read_only_log_paths=f"{tmp_path}/x"))


@pytest.mark.parametrize("name", ["multi-queue", "direct-trimmed"])
def test_rocketmqs_files_open_wherever_they_are_spread(name: str, tmp_path: Path) -> None:
    golden.unpack(name, tmp_path)
    (tmp_path / "second").mkdir()
    for path in sorted((tmp_path / "commitlog").iterdir())[1::2]:
        path.rename(tmp_path / "second" / path.name)
    config = golden_config(name, tmp_path, commit_log_path=f"{tmp_path}/commitlog,{tmp_path}/second")
    store = Store.open(config)
    expected = golden.expected(name)["commitLog"]
    assert (store.min_offset, store.end_offset) == (expected["minOffset"], expected["maxOffset"])
    for message, raw in golden.records(name)[::7]:
        assert store.lookup.view(message["physicalOffset"]) == raw
    store.close()


def test_two_stores_with_roots_of_their_own_do_not_share_a_log_directory(tmp_path: Path) -> None:
    first = Store.open(store_config(tmp_path / "one", commit_log_path=f"{tmp_path}/log"))
    _fill(first, 2)
    file = min((tmp_path / "log").iterdir())  # the next one may be there already
    before = file.read_bytes()
    other = store_config(tmp_path / "two", commit_log_path=f"{tmp_path}/log2,{tmp_path}/log")
    with pytest.raises(StoreLocked, match=f"{tmp_path}/log: another broker writes its log there"):
        Store.open(other)
    assert file.read_bytes() == before
    _fill(first, 2)
    first.close()
    (tmp_path / "log").rename(tmp_path / "kept")
    Store.open(other).close()  # what it had locked itself was given back


def test_a_log_directory_with_two_names_in_the_list_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "log")
    (tmp_path / "log").mkdir()
    with pytest.raises(StoreLocked, match="or storePathCommitLog names it twice"):
        Store.open(store_config(tmp_path / "one", commit_log_path=f"{tmp_path}/log,{tmp_path}/link"))


@pytest.mark.parametrize("code", [errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_that_locks_no_directories_keeps_nobody_out(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    store = Store.open(_config(tmp_path))
    _fill(store, 2)
    store.close()


def test_a_closed_store_has_given_its_directories_back_though_a_child_has_the_descriptors_still(tmp_path: Path) -> None:
    class Forking(Disk):
        """Each descriptor of a directory has a twin, as in a child between its fork and the program that it runs."""

        twins: list[int] = []  # noqa: RUF012

        def lock_directory(self, path: str) -> int | None:
            descriptor = super().lock_directory(path)
            if descriptor is not None:
                self.twins.append(os.dup(descriptor))
            return descriptor

    Store.open(_config(tmp_path), disk=Forking()).close()
    assert Forking.twins
    try:
        Store.open(_config(tmp_path)).close()
    finally:
        for descriptor in Forking.twins:
            os.close(descriptor)
