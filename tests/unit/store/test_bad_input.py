"""What is no store of ours, or cannot be used, is refused by name, and nothing is changed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from penstock.broker.config import load_broker_config
from penstock.broker.store import Store
from penstock.formats.record.layout import MAGIC_V1, Record, encode_record
from penstock.proto.errors import ConfigError, Corrupt, InvalidName, StorageError, StoreLocked, WrongStore
from tests.support.broker.stores import batch, bodies, dispatch_all, flush, patch, store_config, tree
from tests.support.crash.failing_disk import FailingDisk

SEED = 20251121


def _made(root: Path, *, clean: bool = True) -> int:
    """A store with five messages; where the last one begins."""
    store = Store.open(store_config(root))
    start = 0
    for number in range(5):
        start = store.append("t", batch("t", [b"%d" % number]), queues=1).start
    dispatch_all(store)
    if clean:
        store.close()
    else:
        flush(store)
        store.abandon()
    return start


def _refused(root: Path, error: type[StorageError], text: str) -> StorageError:
    before = tree(root / "commitlog")
    with pytest.raises(error, match=text) as caught:
        Store.open(store_config(root))
    assert tree(root / "commitlog") == before
    return caught.value


@pytest.mark.parametrize("size", [16384, 3 * 16384])
def test_a_foreign_file_of_the_right_size_is_not_taken_for_a_torn_log(size: int, tmp_path: Path) -> None:
    print("seed", SEED)
    noise = np.random.default_rng(SEED).integers(0, 256, size, np.uint8).tobytes()
    (tmp_path / "commitlog").mkdir()
    for base in range(0, size, 16384):
        (tmp_path / "commitlog" / f"{base:020d}").write_bytes(noise[base : base + 16384])
    error = _refused(tmp_path, WrongStore, "no record begins at 0, where the log does")
    assert error.details["path"].endswith(f"/commitlog/{0:020d}")


def test_records_of_a_later_version_are_not_cut_off(tmp_path: Path) -> None:
    start = _made(tmp_path, clean=False)
    path = patch(tmp_path, start + 4, ((MAGIC_V1 & 0xFFFFFFFF) + 8).to_bytes(4, "big"))
    error = _refused(tmp_path, WrongStore, rf"{path}: the record at {start} is of a version .*DAA320AF")
    assert error.details == {"path": str(path), "offset": start}


def test_a_checkpoint_of_a_later_version_is_refused(tmp_path: Path) -> None:
    _made(tmp_path)
    path = tmp_path / "penstockCheckpoint"
    path.write_bytes(path.read_bytes().replace(b"PENSTOCK", b"PENST002"))
    before = path.read_bytes()
    _refused(tmp_path, WrongStore, f"{path}: written by a later version")
    assert path.read_bytes() == before


def test_holes_in_a_log_are_zeros_and_refused_like_them(tmp_path: Path) -> None:
    start = _made(tmp_path, clean=False)
    path = tmp_path / "commitlog" / f"{0:020d}"
    content = path.read_bytes()
    with path.open("wb") as file:  # sparse but for the last message
        file.truncate(len(content))
        file.seek(start)
        file.write(content[start:])
    error = _refused(tmp_path, Corrupt, f"sound records follow from {start} on")
    assert error.details["offset"] == 0


def test_a_wholly_sparse_log_is_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    path = tmp_path / "commitlog" / f"{0:020d}"
    path.touch()
    os.truncate(path, 16384)
    store = Store.open(store_config(tmp_path))
    assert (store.min_offset, store.end_offset) == (0, 0)
    assert store.append("t", batch("t", [b"a"]), queues=1).start == 0
    store.close()


def test_whatever_cannot_be_written_is_named_and_nothing_else_changes(tmp_path: Path) -> None:
    _made(tmp_path)
    before = tree(tmp_path)
    nth = 0
    while True:
        nth += 1
        disk = FailingDisk("open", nth, errno.EROFS)
        try:
            store = Store.open(store_config(tmp_path), disk=disk)
        except StorageError as error:
            assert disk.failed
            assert str(tmp_path) in str(error)
            assert "Read-only file system" in str(error)
            after = tree(tmp_path)
            for name in ("abort", "lock"):
                after.pop(name, None)
                before.pop(name, None)
            assert {name: data for name, data in after.items() if "Checkpoint" not in name} == {
                name: data for name, data in before.items() if "Checkpoint" not in name
            }
            continue
        assert not disk.failed
        break
    assert nth > 4
    assert bodies(store, "t") == [b"%d" % number for number in range(5)]
    store.close()


def test_linked_directories_are_one_store_with_what_they_lead_to(tmp_path: Path) -> None:
    _made(tmp_path / "real")
    for name in ("commitlog", "consumequeue/t"):
        moved = tmp_path / "elsewhere" / name
        moved.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "real" / name).rename(moved)
        (tmp_path / "real" / name).symlink_to(moved)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = Store.open(store_config(tmp_path / "link"))
    assert store.recovery.clean
    assert bodies(store, "t") == [b"%d" % number for number in range(5)]
    with pytest.raises(StoreLocked):
        Store.open(store_config(tmp_path / "real"))
    store.append("t", batch("t", [b"5"]), queues=1)
    dispatch_all(store)
    store.close()
    store = Store.open(store_config(tmp_path / "real"))
    assert len(bodies(store, "t")) == 6
    store.drop_topic("t")
    assert (tmp_path / "elsewhere/consumequeue/t").exists(), "only the link is ours to remove"
    assert not (tmp_path / "real/consumequeue/t").exists()
    store.close()


@pytest.mark.parametrize("topic", ["..", "../../outside", "a/../../b", ".", "a\0b", "\udcff"])
def test_names_that_lead_out_of_the_store_are_refused_and_make_nothing(topic: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = Store.open(store_config(root))
    if topic != "\udcff":
        with pytest.raises(InvalidName):
            store.append(topic, batch("t", [b"a"]), queues=1)
    made = encode_record(Record(topic="x" * len(topic.encode("utf-8", "surrogateescape")), body=b"b"))
    raw = topic.encode("utf-8", "surrogateescape")
    store.append_bytes(0, memoryview(made.replace(b"x" * len(raw), raw)))  # as a damaged master would send it
    with pytest.raises(Corrupt, match="can name no directory"):
        dispatch_all(store)
    store.abandon()
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert list((root / "consumequeue").iterdir()) == []


def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, content in ((tmp_path / "absent", None), (tmp_path, None), (tmp_path / "noise", b"a = \xff\xfe\0\n")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError, match=str(path)):
            load_broker_config(path)
