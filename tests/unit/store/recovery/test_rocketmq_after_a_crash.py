"""What RocketMQ relies on when it opens a store that Penstock left in a crash.

It keeps the index files that end at or before the checkpoint's ``indexMsgTimestamp``, deletes the others, and indexes
again what was stored since shortly before ``logicsMsgTimestamp``. Checked against RocketMQ 5.3.3 itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.store import Store
from penstock.broker.store.disk import Data, Disk
from tests.support.broker.stepped_store import stepped_stores
from tests.support.broker.stores import batch, dispatch_all, store_config
from tests.support.clock import ManualClock
from tests.support.waiting import wait_until

SLOTS = 3 * 1024  # three pages


class DyingDisk(Disk):
    """Real files; after ``left`` writes to index files the process dies."""

    left = 1 << 30
    index: int | None = None

    def open(self, path: str, *, create: bool = False) -> int:
        descriptor = super().open(path, create=create)
        if "/index/" in path:
            self.index = descriptor
        return descriptor

    def pwrite(self, descriptor: int, data: Data, position: int) -> None:
        if descriptor == self.index:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        super().pwrite(descriptor, data, position)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def _put(store: Store, clock: ManualClock, first: int, count: int) -> None:
    for number in range(first, first + count):
        clock.set_wall(clock.wall_ms() + 100)
        store.append("orders", batch("orders", [b"x"], properties=[b"KEYS\x01k%d\x02" % number]), queues=1)
    dispatch_all(store)


def _put_and_checkpoint(store: Store, clock: ManualClock) -> None:
    for first in range(10, 1000, 10):
        _put(store, clock, first, 10)
        store.checkpoint()


def _checkpoint(root: Path) -> tuple[int, ...]:
    return struct.unpack(">3q", (root / "checkpoint").read_bytes()[:24])


def _entries_through_slots(content: bytes, slots: int) -> Iterator[int]:
    """Numbers of the entries that a chain leads to, as RocketMQ walks it."""
    count = max(1, int.from_bytes(content[36:40], "big"))  # 0: it has only just been made
    for number in struct.unpack(f">{slots}i", content[40 : 40 + 4 * slots]):
        assert number < count, "RocketMQ would take this slot for empty, and lose what it leads to"
        while number > 0:
            yield number
            at = 40 + 4 * slots + 20 * number
            number = int.from_bytes(content[at + 16 : at + 20], "big")


def _kept_files(root: Path) -> list[bytes]:
    """The index files that RocketMQ does not delete."""
    settled = _checkpoint(root)[2]
    contents = [path.read_bytes() for path in sorted((root / "index").iterdir())]
    return [content for content in contents if int.from_bytes(content[8:16], "big") <= settled]


def test_the_growing_index_file_is_whole_up_to_the_checkpoint_and_stays_so(tmp_path: Path, clock: ManualClock) -> None:
    store = Store.open(store_config(tmp_path), clock=clock)
    _put(store, clock, 0, 70)
    store.checkpoint()
    _put(store, clock, 70, 20)
    store.abandon()

    (kept,) = _kept_files(tmp_path)
    assert sorted(_entries_through_slots(kept, 50)) == list(range(1, 71))
    assert _checkpoint(tmp_path)[2] == clock.wall_ms() - 2000


@pytest.mark.parametrize("writes", range(0, 60, 7))
def test_an_index_file_that_a_crash_left_between_two_states_is_not_relied_on(
    tmp_path: Path, clock: ManualClock, writes: int
) -> None:
    disk = DyingDisk()
    with stepped_stores():
        store = Store.open(store_config(tmp_path, index_slots=SLOTS, index_entries=40), disk=disk, clock=clock)
        _put(store, clock, 0, 10)
        store.checkpoint()
        disk.left = writes
        with pytest.raises(KeyboardInterrupt):
            _put_and_checkpoint(store, clock)
        store.abandon()

    for content in _kept_files(tmp_path):
        count = max(1, int.from_bytes(content[36:40], "big"))
        assert sorted(_entries_through_slots(content, SLOTS)) == list(range(1, count))


def test_a_full_index_file_is_settled_without_waiting_for_the_next_checkpoint(
    tmp_path: Path, clock: ManualClock
) -> None:
    store = Store.open(store_config(tmp_path, index_entries=40), clock=clock)
    _put(store, clock, 0, 39)
    full_ms = clock.wall_ms()
    _put(store, clock, 39, 10)
    wait_until(lambda: _checkpoint(tmp_path)[2] >= full_ms, what="a checkpoint that names the full file's end")
    store.abandon()

    full = _kept_files(tmp_path)[0]
    assert sorted(_entries_through_slots(full, 50)) == list(range(1, 40))


def test_index_files_that_a_start_fills_are_settled_too(tmp_path: Path, clock: ManualClock) -> None:
    store = Store.open(store_config(tmp_path, index_entries=40), clock=clock)
    _put(store, clock, 0, 100)
    store.close()
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    end_ms = clock.wall_ms()
    clock.set_wall(end_ms + 60_000)
    store = Store.open(store_config(tmp_path, index_entries=40), clock=clock)
    wait_until(lambda: len(_kept_files(tmp_path)) == 3, what="a checkpoint that names what was built")
    store.abandon()


def test_the_queues_time_is_that_of_the_last_dispatched_record(tmp_path: Path, clock: ManualClock) -> None:
    store = Store.open(store_config(tmp_path), clock=clock)
    _put(store, clock, 0, 1)
    dispatched_ms = clock.wall_ms()
    clock.set_wall(dispatched_ms + 60_000)
    store.append("orders", batch("orders", [b"not confirmed"]), queues=1)

    store.checkpoint()

    assert _checkpoint(tmp_path)[:2] == (dispatched_ms + 60_000, dispatched_ms)
    store.close()
    again = Store.open(store_config(tmp_path), clock=clock)
    again.checkpoint()
    assert _checkpoint(tmp_path)[1] == dispatched_ms, "nothing was dispatched since"
    again.close()
