"""Recovery: what becomes of damaged stores. Its decisions are in tests/transcripts/recovery.txt."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.store import Disk, Store
from penstock.formats.record.layout import Record, encode_record
from penstock.proto.errors import Corrupt, CorruptBatch
from tests.support.broker.stores import batch, bodies, dispatch_all, flush, patch, store_config, tree


def _crashed(root: Path, *, synced: bool, batches: int = 40, checkpoint_after: int = -1) -> list[int]:
    """A store whose process died; where each of its records begins."""
    store = Store.open(store_config(root))
    starts = []
    for number in range(batches):
        starts.append(store.append("t", batch("t", [b"%04d" % number + b"." * 700]), queues=1).start)
        if number == checkpoint_after:
            dispatch_all(store)
            store.checkpoint()
    if synced:
        flush(store)
    starts.append(store.end_offset)
    store.abandon()
    return starts


def _numbers(store: Store) -> list[int]:
    return [int(body[:4]) for body in bodies(store, "t")]


@pytest.mark.parametrize("checkpoint_after", [-1, 5, 25, 39])
def test_after_a_kill_everything_appended_is_there(tmp_path: Path, checkpoint_after: int) -> None:
    starts = _crashed(tmp_path, synced=False, checkpoint_after=checkpoint_after)
    store = Store.open(store_config(tmp_path))
    assert (store.recovery.clean, store.recovery.truncated_from) == (False, None)
    assert store.recovery.replayed_from == (starts[checkpoint_after + 1] if checkpoint_after >= 0 else 0)
    assert _numbers(store) == list(range(40))
    assert store.append("t", batch("t", [b"0040"]), queues=1).queue_offsets == [40]
    store.close()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 700),
            st.sampled_from([b"", b"k\x01v\x02", b"k\x01v\0", b"k\x01" + bytes(600) + b"\x02", b"k\x01\0\x02"]),
            st.sampled_from([0, 1, 256, 1 << 40, -1]),
        ),
        min_size=1,
        max_size=20,
    ),
    st.booleans(),
)
def test_whatever_was_taken_is_there_after_a_kill(records: list[tuple[int, bytes, int]], is_kept: bool) -> None:
    """No sound record looks as if it had been torn, wherever a sector ends in it."""
    root = Path(tempfile.mkdtemp())
    try:
        store = Store.open(store_config(root, segment_bytes=4096))
        taken = 0
        for body, properties, born_ms in records:
            record = Record(topic="t", body=bytes(body), properties=properties, born_timestamp_ms=born_ms)
            if b"\0" in properties and not is_kept:
                with pytest.raises(CorruptBatch, match="properties may not contain the character 0x00"):
                    store.append("t", encode_record(record), queues=1)
            else:
                store.append("t", encode_record(record), queues=1, is_kept=is_kept)
                taken += 1
        end = store.end_offset
        store.abandon()
        store = Store.open(store_config(root, segment_bytes=4096))
        assert store.end_offset == end
        dispatch_all(store)
        assert len(bodies(store, "t")) == taken
        store.close()
    finally:
        shutil.rmtree(root)


def test_a_torn_last_record_of_any_length_is_cut_and_its_rest_zeroed(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    store = Store.open(store_config(origin))
    for number in range(3):
        store.append("t", batch("t", [b"%04d" % number], properties=[b"TAGS\x01TagA\x02"]), queues=1)
    last = store.append("t", batch("t", [b"0003"], properties=[b"TAGS\x01TagA\x02"]), queues=1)
    store.abandon()
    for lost in range(1, last.end - last.start + 1):
        root = tmp_path / f"lost-{lost}"
        shutil.copytree(origin, root)
        path = patch(root, last.end - lost, bytes(lost))
        reopened = Store.open(store_config(root))
        assert reopened.end_offset == last.start, f"{lost} bytes lost"
        assert _numbers(reopened) == [0, 1, 2]
        assert not any(path.read_bytes()[last.start :])
        assert reopened.append("t", batch("t", [b"0003"]), queues=1).queue_offsets == [3]
        reopened.close()
        shutil.rmtree(root)


def test_a_tail_of_garbage_is_zeroed_before_anything_is_appended(tmp_path: Path) -> None:
    starts = _crashed(tmp_path, synced=False)
    path = patch(tmp_path, starts[-1], b"\x5a" * 64)
    store = Store.open(store_config(tmp_path))
    assert store.end_offset == starts[-1]
    assert (store.recovery.truncated_from, store.recovery.truncated_bytes) == (starts[-1], 64)
    assert not any(path.read_bytes()[starts[-1] % 16384 :])
    assert _numbers(store) == list(range(40))
    store.close()


def test_damage_with_sound_records_behind_it_is_refused_and_nothing_changed(tmp_path: Path) -> None:
    starts = _crashed(tmp_path, synced=True)
    path = patch(tmp_path, starts[7] + 95, b"!")
    before = tree(tmp_path)
    for _ in range(2):
        with pytest.raises(Corrupt, match=path.name) as caught:
            Store.open(store_config(tmp_path))
        assert (caught.value.details["offset"], caught.value.details["later"]) == (starts[7], starts[8])
    assert tree(tmp_path) == before
    patch(tmp_path, starts[7] + 95, b".")
    store = Store.open(store_config(tmp_path))
    assert _numbers(store) == list(range(40))
    store.close()


def test_pages_that_a_power_cut_lost_from_what_was_not_synced_end_the_log(tmp_path: Path) -> None:
    starts = _crashed(tmp_path, synced=False)
    lost = starts[10] - starts[10] % 512 + 512
    patch(tmp_path, lost, bytes(512))
    store = Store.open(store_config(tmp_path))
    assert store.end_offset <= lost
    kept = _numbers(store)
    assert kept == list(range(len(kept)))
    assert len(kept) == sum(end <= lost for end in starts[1:])
    assert store.recovery.truncated_bytes > 5_000
    store.close()
    again = Store.open(store_config(tmp_path))
    assert again.recovery.clean
    assert _numbers(again) == kept
    again.close()


def test_synced_pages_that_are_gone_are_corruption(tmp_path: Path) -> None:
    starts = _crashed(tmp_path, synced=True)
    patch(tmp_path, starts[10] - starts[10] % 512 + 512, bytes(512))
    with pytest.raises(Corrupt):
        Store.open(store_config(tmp_path))


def test_an_incomplete_marked_batch_at_the_end_is_cut_whole(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    store.append("t", batch("t", [b"0000"]), queues=1)
    start = store.append("t", batch("t", [b"0001", b"0002", b"0003"], mark=(7, 0, 0, 1)), queues=1)
    store.abandon()
    size = len(batch("t", [b"0003"]))
    patch(tmp_path, start.end - size, bytes(size))  # two whole records of three are left
    reopened = Store.open(store_config(tmp_path))
    assert reopened.end_offset == start.start
    assert "lacks 1 of its records" in reopened.recovery.reason
    assert _numbers(reopened) == [0]
    reopened.close()


def test_later_log_files_go_with_the_cut(tmp_path: Path) -> None:
    starts = _crashed(tmp_path, synced=False)
    first_of_second = next(start for start in starts if start >= 16384)
    for at in range(first_of_second, starts[-1], 512):
        patch(tmp_path, at, bytes(512))
    store = Store.open(store_config(tmp_path))
    assert store.end_offset == first_of_second
    assert len(list((tmp_path / "commitlog").iterdir())) == 1
    store.append("t", batch("t", [b"next"]), queues=1)
    store.close()


def test_deleted_queues_are_built_again(tmp_path: Path) -> None:
    _crashed(tmp_path, synced=True, checkpoint_after=30)
    shutil.rmtree(tmp_path / "consumequeue")
    store = Store.open(store_config(tmp_path))
    assert store.recovery.queues_rebuilt
    assert _numbers(store) == list(range(40))
    store.close()
    (tmp_path / "consumequeue/t/0" / f"{400:020d}").unlink()
    store = Store.open(store_config(tmp_path))
    assert _numbers(store) == list(range(40))
    store.close()


def test_entries_behind_the_checkpoint_are_not_believed(tmp_path: Path) -> None:
    _crashed(tmp_path, synced=True, checkpoint_after=30)
    path = tmp_path / "consumequeue/t/0" / f"{400:020d}"
    with path.open("r+b") as file:
        file.seek(11 * 20)  # entry 31, the first behind the checkpoint
        file.write(b"\x01" * 180)
    store = Store.open(store_config(tmp_path))
    assert not store.recovery.queues_rebuilt
    assert _numbers(store) == list(range(40))
    store.close()


def test_a_damaged_checkpoint_only_costs_time(tmp_path: Path) -> None:
    _crashed(tmp_path, synced=True, checkpoint_after=30)
    for name in ("checkpoint", "penstockCheckpoint"):
        (tmp_path / name).write_bytes(b"\xff" * 700)
        store = Store.open(store_config(tmp_path))
        assert _numbers(store) == list(range(40))
        assert store.recovery.replayed_from == 0
        store.abandon()


def test_recovery_that_was_interrupted_begins_again(tmp_path: Path) -> None:
    starts = _crashed(tmp_path, synced=False, checkpoint_after=30)
    patch(tmp_path, starts[39] + 400, bytes(starts[40] - starts[39] - 400))
    for _ in range(3):
        store = Store.open(store_config(tmp_path))
        assert store.end_offset == starts[39]
        assert _numbers(store) == list(range(39))
        store.abandon()


def test_a_write_behind_a_clean_end_is_noticed(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    store.append("t", batch("t", [b"0000"]), queues=1)
    dispatch_all(store)
    end = store.end_offset
    store.close()
    patch(tmp_path, end, b"\x01")
    reopened = Store.open(store_config(tmp_path))
    assert not reopened.recovery.clean
    assert reopened.end_offset == end
    reopened.close()


def test_only_bytes_that_were_written_are_looked_at(tmp_path: Path) -> None:
    disk = Disk()
    size = 64 << 20
    descriptor = disk.open(str(tmp_path / "file"), create=True)
    disk.allocate(descriptor, size)
    mapped = disk.map(descriptor, size)

    def written(start: int) -> set[int]:
        found: set[int] = set()
        while (stretch := disk.data_range(descriptor, start, size)) is not None:
            assert start <= stretch[0] < stretch[1] <= size
            found |= set(range(stretch[0] // 4096, -(-stretch[1] // 4096)))
            start = stretch[1]
        return found

    if len(written(0)) == size // 4096:
        pytest.skip("this file system does not tell what was written")
    early, late = 3_000_000, 63_000_000
    mapped[early] = mapped[late] = 1
    found = written(0)
    assert {early // 4096, late // 4096} <= found
    assert len(found) < size // 4096 // 2, "the system reads somewhat more around what is touched"
    assert min(written(late - 10)) >= (late - 10) // 4096
    assert disk.data_range(descriptor, size, size) is None
    disk.close(descriptor)


def test_a_record_whose_size_begins_in_a_page_of_zeros_is_found(tmp_path: Path) -> None:
    """The first three bytes of its size are zeros, so its first written page begins behind them."""
    record = bytearray(batch("t", [b"body"]))
    at = 2 * 4096 - 3
    record[28:36] = at.to_bytes(8, "big")
    (tmp_path / "commitlog").mkdir()
    with (tmp_path / "commitlog" / f"{0:020d}").open("wb") as file:
        file.truncate(16384)
        file.seek(at + 3)
        file.write(record[3:])
    store = Store.open(store_config(tmp_path))
    assert (store.min_offset, store.end_offset) == (at, at + len(record))
    store.close()
