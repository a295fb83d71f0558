"""Defects that the crash model found, each as the shortest history that shows it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.store import FlushMode, Store
from penstock.proto.errors import WrongStore
from tests.support.broker.stepped_store import abandon, flusher_of, run_background, stepped_stores
from tests.support.broker.stores import batch, bodies, dispatch_all, store_config
from tests.support.clock import ManualClock
from tests.support.crash.simulated_disk import PowerCut, SimulatedDisk

ROOT = "/srv/broker/store"
SEGMENT = 8192
FIRST, SECOND = (f"{ROOT}/commitlog/{base:020d}" for base in (0, SEGMENT))


@pytest.fixture(autouse=True)
def _stepped() -> Iterator[None]:
    with stepped_stores():
        yield


def _open(disk: SimulatedDisk, **changes: Any) -> Store:
    settings = {"segment_bytes": SEGMENT, "flush_mode": FlushMode.SYNC_FLUSH} | changes
    clock = ManualClock(1_700_000_000_000 + 1000 * next(_seconds))
    return Store.open(store_config(Path(ROOT), **settings), disk=disk, clock=clock)


_seconds = iter(range(1_000_000))


def _put(store: Store, *texts: bytes, queue_id: int = 0, mark: tuple[int, int, int, int] | None = None) -> int:
    properties = [b"KEYS\x01k\x02"] * len(texts)
    return store.append("t", batch("t", texts, queue_id, properties=properties, mark=mark), queues=4).end


def _sync(store: Store) -> None:
    store.request_flush(store.end_offset)
    flusher_of(store).step()


def _cut(store: Store, disk: SimulatedDisk, share: float | None = None) -> SimulatedDisk:
    abandon(store)
    return disk.cut(share)


def _kill(store: Store, disk: SimulatedDisk) -> SimulatedDisk:
    abandon(store)
    return disk.kill()


def _feed(store: Store, source: Store, end: int) -> None:
    while store.end_offset < end:
        start = store.end_offset
        store.append_bytes(start, source.read_bytes(start, end - start))


def test_a_new_stores_directories_survive_a_power_cut_with_its_first_messages() -> None:
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, b"first")
    _sync(store)
    store = _open(_cut(store, disk, share=0))
    assert bodies(store, "t") == [b"first"]
    abandon(store)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_recovery_cut_off_at_any_of_its_calls_can_be_repeated(share: float) -> None:
    """A queue or index file was shortened for a moment, and refused with that size afterwards."""
    for calls in range(200):
        disk = SimulatedDisk(calls)
        store = _open(disk, flush_mode=FlushMode.ASYNC_FLUSH)
        _put(store, b"one", b"two", queue_id=1)
        dispatch_all(store)
        store.checkpoint()
        _put(store, *[b"x" * 500] * 10, queue_id=1)
        dispatch_all(store)
        disk = _kill(store, disk)
        disk.cut_after = calls
        try:
            abandon(_open(disk))
            ended = True
        except PowerCut:
            ended = False
        disk = disk.cut(share)
        store = _open(disk)
        assert bodies(store, "t", 1)[:2] == [b"one", b"two"]
        abandon(store)
        if ended:
            return
    raise AssertionError("recovery never ended")


def test_a_log_file_that_got_a_part_of_its_size_only_is_made_again() -> None:
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, b"first")
    _sync(store)
    run_background()
    disk.replace(SECOND, bytes(SEGMENT // 2))
    disk = _kill(store, disk)
    store = _open(disk)
    assert bodies(store, "t") == [b"first"]
    store.close()
    disk.replace(FIRST, disk.contents(FIRST)[: SEGMENT // 2])
    with pytest.raises(WrongStore, match="has 4096 bytes"):
        _open(disk)


def test_a_file_made_ahead_that_comes_back_after_a_clean_end_is_not_written_to() -> None:
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, b"first")
    dispatch_all(store)
    store.close()
    descriptor = disk.open(SECOND, create=True)
    disk.allocate(descriptor, SEGMENT)
    disk.save(SECOND)
    store = _open(disk)
    _put(store, b"second")
    dispatch_all(store)
    assert bodies(store, "t") == [b"first", b"second"]
    abandon(store)


@pytest.mark.parametrize("damage", ["truncated", "zeroed"])
def test_an_index_file_without_its_entries_is_built_anew(damage: str) -> None:
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, b"first", b"second")
    dispatch_all(store)
    store.checkpoint()
    disk = _kill(store, disk)
    (name,) = disk.list(f"{ROOT}/index")
    content = disk.contents(f"{ROOT}/index/{name}")
    disk.replace(f"{ROOT}/index/{name}", bytes(len(content)) if damage == "zeroed" else b"")
    store = _open(disk)
    assert len(store.lookup.query("t", "k", 10, 0, 1 << 60)) == 2
    abandon(store)


def test_pages_lost_in_a_new_stores_first_second_are_no_corruption() -> None:
    disk = SimulatedDisk()
    store = _open(disk)
    while store.end_offset < SEGMENT:
        _put(store, b"x" * 900)
    disk.save(SECOND)
    store = _open(_cut(store, disk, share=0))
    assert store.end_offset == 0
    abandon(store)


def test_what_readers_see_after_a_kill_survives_a_power_cut() -> None:
    disk = SimulatedDisk()
    store = _open(disk)
    while store.end_offset < 2 * SEGMENT:
        _put(store, b"x" * 900)
    disk = _kill(store, disk)
    store = _open(disk)
    seen = bodies(store, "t")
    store = _open(_cut(store, disk, share=0))
    assert bodies(store, "t") == seen
    abandon(store)


def test_a_slave_that_synced_a_part_of_a_record_starts_again() -> None:
    source_disk, disk = SimulatedDisk(), SimulatedDisk()
    source = Store.open(store_config(Path("/source"), segment_bytes=SEGMENT), disk=source_disk)
    while source.end_offset < SEGMENT:
        _put(source, b"x" * 900)
    slave = _open(disk)
    _feed(slave, source, SEGMENT + 100)
    slave.checkpoint()
    disk = _kill(slave, disk)
    slave = _open(disk)
    assert slave.end_offset == SEGMENT, "the part is cut, and the new file with it"
    slave = _open(_cut(slave, disk))
    assert slave.end_offset == SEGMENT
    abandon(slave)
    abandon(source)


def test_a_sector_written_out_with_a_part_of_a_record_is_no_corruption() -> None:
    disk = SimulatedDisk()
    source = Store.open(store_config(Path("/source"), segment_bytes=SEGMENT), disk=SimulatedDisk())
    for _ in range(3):
        _put(source, b"x" * 700)
    slave = _open(disk)
    _feed(slave, source, 450)
    disk.save(FIRST)
    part = disk.contents(FIRST)[:512]
    _feed(slave, source, source.end_offset)
    disk.save(FIRST)
    disk = _cut(slave, disk)
    disk.replace(FIRST, part + disk.contents(FIRST)[512:])
    slave = _open(disk)
    assert slave.end_offset == 0
    abandon(slave)
    abandon(source)


def test_a_checkpoint_in_front_of_a_blank_is_gone_on_from() -> None:
    disk = SimulatedDisk()
    store = _open(disk)
    while store.end_offset < SEGMENT - 1200:
        end = _put(store, b"x" * 900)
    dispatch_all(store)
    store.checkpoint()
    _put(store, b"x" * 1200)
    store = _open(_kill(store, disk))
    assert (store.recovery.replayed_from, store.recovery.queues_rebuilt) == (end, False)
    abandon(store)


def test_a_recovery_that_is_cut_off_does_not_say_that_bytes_are_synced_which_are_not() -> None:
    source = Store.open(store_config(Path("/source"), segment_bytes=SEGMENT), disk=SimulatedDisk())
    for _ in range(5):
        _put(source, b"x" * 900)
    for seed in range(60):
        disk = SimulatedDisk(seed)
        slave = _open(disk)
        _feed(slave, source, source.end_offset - 100)
        disk = _kill(slave, disk)
        disk.cut_after = seed % 12
        with contextlib.suppress(PowerCut):
            abandon(_open(disk))
        abandon(_open(disk.cut(0.5)))
    abandon(source)


def test_queues_that_a_killed_process_made_are_not_lost_behind_the_next_checkpoint() -> None:
    disk = SimulatedDisk()
    store = _open(disk)
    _put(store, *[b"x" * 50] * 10)
    _sync(store)
    dispatch_all(store)
    disk = _kill(store, disk)
    store = _open(disk)
    store.checkpoint()
    store = _open(_cut(store, disk, share=0))
    assert not store.recovery.queues_rebuilt
    abandon(store)


def _promoted(sent: int) -> tuple[SimulatedDisk, Store, int]:
    """A slave with one record and ``sent`` bytes of a marked batch, synced, and then a master; the record's end."""
    disk = SimulatedDisk()
    source = Store.open(store_config(Path("/source"), segment_bytes=SEGMENT), disk=SimulatedDisk())
    whole = _put(source, b"whole")
    _put(source, b"a" * 500, b"b" * 500, b"c" * 500, mark=(7, 0, 0, 1))
    slave = _open(disk)
    _feed(slave, source, whole + sent)
    _sync(slave)
    slave.set_confirm(whole + sent)
    abandon(source)
    return disk, slave, whole


@pytest.mark.parametrize("sent", [300, 700, 1300], ids=["a part of a record", "one record", "two records"])
def test_a_slave_promoted_inside_a_batch_cuts_the_part_and_keeps_what_follows(sent: int) -> None:
    disk, store, whole = _promoted(sent)
    assert store.append("t", batch("t", [b"own"]), queues=4).start == whole
    _sync(store)
    dispatch_all(store)
    store = _open(_cut(store, disk, share=0))
    assert bodies(store, "t") == [b"whole", b"own"]
    abandon(store)


def test_after_such_a_cut_nothing_counts_as_flushed_or_confirmed_before_it_is() -> None:
    disk, store, whole = _promoted(1300)
    end = store.append("t", batch("t", [b"own"]), queues=4).end
    assert store.flushed_offset == store.confirm_offset == whole
    _sync(store)
    assert store.flushed_offset == end
    store = _open(_cut(store, disk, share=0))
    assert bodies(store, "t") == [b"whole", b"own"]
    abandon(store)


def test_a_part_of_a_blank_at_a_promoted_slaves_end_is_cut() -> None:
    source = Store.open(store_config(Path("/source"), segment_bytes=SEGMENT), disk=SimulatedDisk())
    last = 0
    while source.end_offset < SEGMENT:
        whole, last = last, _put(source, b"x" * 900)
    slave = _open(SimulatedDisk())
    _feed(slave, source, whole + 100)
    start = slave.append("t", batch("t", [b"own"]), queues=4).start
    assert start == whole
    dispatch_all(slave)
    assert bodies(slave, "t")[-1] == b"own"
    abandon(slave)
    abandon(source)


def test_queue_entries_of_records_that_a_crash_took_are_not_believed() -> None:
    disk = SimulatedDisk()
    store = _open(disk, flush_mode=FlushMode.ASYNC_FLUSH)
    _put(store, b"other", queue_id=3)
    _put(store, b"kept")
    dispatch_all(store)
    store.checkpoint()
    for _ in range(4):
        _put(store, b"taken")
    dispatch_all(store)  # its entries go to the file, its bytes to no disk
    disk.save(f"{ROOT}/consumequeue/t/0/{0:020d}")
    disk = _cut(store, disk, share=0)
    store = _open(disk)
    for _ in range(4):
        _put(store, b"other", queue_id=1)
    _sync(store)
    disk = _cut(store, disk, share=0)  # the entries are back: that they were removed was not synced
    disk.remove_tree(f"{ROOT}/consumequeue/t/3")
    store = _open(disk)
    assert bodies(store, "t", 0) == [b"kept"]
    assert bodies(store, "t", 1) == [b"other"] * 4
    assert bodies(store, "t", 3) == [b"other"]
    abandon(store)


@pytest.mark.parametrize("is_noted", [False, True])
def test_a_log_that_lost_all_that_retention_had_left_goes_on_at_its_minimum(is_noted: bool) -> None:
    source = Store.open(store_config(Path("/source"), segment_bytes=SEGMENT), disk=SimulatedDisk())
    while source.end_offset < SEGMENT:
        _put(source, b"x" * 900)
    disk = SimulatedDisk()
    store = _open(disk, flush_mode=FlushMode.ASYNC_FLUSH)
    _feed(store, source, SEGMENT)
    dispatch_all(store)
    store.checkpoint()
    _feed(store, source, SEGMENT + 100)
    store.removal.take_out(SEGMENT)
    if is_noted:
        store.checkpoint()
    store.removal.delete_taken(0)
    _, high = store.reader.queue_range("t", 0)
    for _ in range(3):
        disk = _cut(store, disk, share=0)
        store = _open(disk)
        assert (store.min_offset, store.end_offset) == (SEGMENT, SEGMENT)
        assert not store.recovery.queues_rebuilt
    assert store.reader.queue_range("t", 0) == (high, high)
    assert store.append("t", batch("t", [b"next"]), queues=4).queue_offsets == [high]
    abandon(store)
    abandon(source)


def test_a_file_that_was_taken_out_does_not_come_back() -> None:
    disk = SimulatedDisk()
    store = _open(disk)
    while store.end_offset <= SEGMENT:
        _put(store, b"x" * 900)
    dispatch_all(store)
    store.checkpoint()
    store.removal.take_out(SEGMENT)  # and a reader holds it
    store.checkpoint()
    store.truncate_to(SEGMENT)
    disk = _kill(store, disk)
    store = _open(disk)
    assert (store.min_offset, store.end_offset) == (SEGMENT, SEGMENT)
    assert _put(store, b"y" * 900) > SEGMENT
    dispatch_all(store)
    store.close()
    store = _open(disk)
    assert store.min_offset == SEGMENT
    assert disk.list(f"{ROOT}/commitlog") == [f"{SEGMENT:020d}"]
    store.close()


def test_half_built_queues_are_not_taken_for_those_of_the_checkpoint() -> None:
    disk = SimulatedDisk()
    store = _open(disk)
    for _ in range(20):  # a file full of entries
        _put(store, b"x")
    _sync(store)
    dispatch_all(store)
    store.checkpoint()
    disk = _kill(store, disk)
    disk.lose(f"{ROOT}/consumequeue")
    store = _open(disk)
    disk = _kill(store, disk)
    store = _open(disk)
    store.checkpoint()
    disk = _cut(store, disk, share=0)
    store = _open(disk)
    assert not store.recovery.queues_rebuilt
    assert bodies(store, "t") == [b"x"] * 20
    abandon(store)
