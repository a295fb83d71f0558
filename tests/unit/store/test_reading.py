"""Reading by offset, tag, time and key."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.broker.store import ReadStatus, Store
from penstock.broker.store import disk as disk_module
from penstock.broker.store.absent import Absent, bring, uncached
from penstock.broker.store.disk import Disk
from penstock.formats.hashing import string_hash
from penstock.formats.record.layout import decode_record
from penstock.proto.errors import MessageNotFound
from tests.support.broker.stores import batch, bodies, dispatch_all, store_config
from tests.support.clock import ManualClock

ALL_TIME = (0, 1 << 60)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    opened = Store.open(store_config(tmp_path), clock=clock)
    yield opened
    opened.close()


def _fill(store: Store, count: int, size: int = 10) -> None:
    for number in range(count):
        store.append("t", batch("t", [b"%d" % number + bytes(size)]), queues=1)
    dispatch_all(store)


def test_old_records_that_are_not_in_memory_are_found_and_brought(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(store, 100, size=3000)  # in several files
    assert store.reader.absent("t", 0, 0, 1 << 20) == [], "written a moment ago"
    monkeypatch.setattr("penstock.broker.store.reading._RECENT_BYTES", 0)
    absent = store.reader.absent("t", 0, 10, 200_000)
    read = store.reader.read("t", 0, 10, 200_000)
    assert sum(len(part.positions) for part in absent) == read.count
    assert len(absent) > 1
    for part, (data, positions, sizes) in zip(absent, read.parts, strict=True):
        assert part.data is data
        assert part.positions.tolist() == positions.tolist()
        assert part.sizes.tolist() == sizes.tolist()
    bring(absent)
    assert store.reader.absent("t", 0, 100, 1 << 20) == store.reader.absent("t", 1, 0, 1 << 20) == []


def test_old_records_that_are_all_in_memory_need_not_be_brought(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    _fill(store, 100, size=3000)  # in several files
    monkeypatch.setattr("penstock.broker.store.reading._RECENT_BYTES", 0)
    asked: list[tuple[str, int, int]] = []
    cold = ""

    def all_cached(_: Disk, descriptor: int, size: int, position: int) -> bool:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        asked.append((path, position, position + size))
        return path != cold

    monkeypatch.setattr(Disk, "all_cached", all_cached)
    assert uncached(store.reader.absent("t", 0, 10, 200_000)) == []
    read = store.reader.read("t", 0, 10, 200_000)
    ranges = [(int(positions[0]), int(positions[-1] + sizes[-1])) for _, positions, sizes in read.parts]
    assert [part[1:] for part in asked] == ranges
    cold = asked[1][0]
    assert [part.path for part in uncached(store.reader.absent("t", 0, 10, 200_000))] == [cold], "of that file alone"
    monkeypatch.setattr("penstock.broker.store.absent._ASKED_BYTES", 3100)  # of a stretch so long nobody asks
    assert len(uncached(store.reader.absent("t", 0, 10, 200_000))) == len(ranges)


def test_of_records_that_lie_far_apart_nobody_asks_whether_they_are_in_memory(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.store.reading._RECENT_BYTES", 0)
    monkeypatch.setattr("penstock.broker.store.absent._ASKED_BYTES_LEAST", 0)
    monkeypatch.setattr(Disk, "all_cached", lambda *_: True)
    for _ in range(2):
        for queue_id in range(40):
            store.append("t", batch("t", [bytes(10)], queue_id), queues=40)
    dispatch_all(store)
    assert uncached(store.reader.absent("t", 0, 1, 1 << 20)) == []
    far_apart = store.reader.absent("t", 0, 0, 1 << 20)
    assert [len(part.positions) for part in uncached(far_apart)] == [2]
    monkeypatch.setattr("penstock.broker.store.absent._ASKED_BYTES_LEAST", 1 << 20)
    assert uncached(far_apart) == [], "a short stretch costs nothing"


class ColdDisk(Disk):
    """Nothing is in memory; keeps what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.brought: list[tuple[int, int]] = []

    def is_cached(self, descriptor: int, size: int, position: int) -> bool:
        return False

    def bring(self, path: str, start: int, end: int) -> None:
        self.brought.append((start, end))
        super().bring(path, start, end)


def test_entries_that_are_not_in_memory_are_found_and_brought(tmp_path: Path, clock: ManualClock) -> None:
    disk = ColdDisk()
    with contextlib.closing(Store.open(store_config(tmp_path), clock=clock, disk=disk)) as store:
        _fill(store, 5)
        assert store.reader.absent_entries("t", 0, 0, 5) == [], "in the buffer of entries to be written"
        _fill(store, 95)  # files of 20 entries
        store.checkpoint()
        assert [part[2:] for part in store.reader.absent_entries("t", 0, 30, 25)] == [(200, 400), (0, 300)]
        (absent,) = store.reader.absent_entries("t", 0, 85, 1000)
        assert (absent.start, absent.end) == (20 * 5, 20 * 20)
        disk.brought.clear()
        absent.bring()
        assert disk.brought == [(20 * 5, 20 * 20)]
        Path(absent.path).unlink()
        absent.bring()  # the queue was deleted meanwhile: nothing is told here
        for queue_id, offset in ((0, -1), (0, 100), (1, 0)):
            assert store.reader.absent_entries("t", queue_id, offset, 9) == [], "the read tells of it"


def test_what_the_system_has_dropped_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, disk = tmp_path / "file", Disk()
    path.write_bytes(bytes(1 << 20))
    descriptor = os.open(path, os.O_RDWR)
    try:
        assert disk.is_cached(descriptor, 1 << 20, 0)
        knows = disk.all_cached(descriptor, 1 << 20, 0)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
            pytest.skip("this system keeps the file in memory")
        except BlockingIOError:
            assert not disk.is_cached(descriptor, 1 << 20, 0)
            assert not disk.all_cached(descriptor, 1 << 20, 0)
        except OSError as error:
            pytest.skip(f"this file system cannot tell: {error}")
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
        for at in (0, (1 << 20) - 1):
            os.pread(descriptor, 1, at)
        assert disk.is_cached(descriptor, 1 << 20, 0), "by its ends"
        assert not disk.all_cached(descriptor, 1 << 20, 0)
        assert disk.all_cached(descriptor, 1, 4095) is disk.all_cached(descriptor, 9, (1 << 20) - 9) is knows
        assert not disk.all_cached(descriptor, 2, (1 << 19) - 1), "two pages in the middle"
        os.pread(descriptor, 1 << 20, 0)
        assert disk.is_cached(descriptor, 1 << 20, 0)
        assert disk.all_cached(descriptor, 1 << 20, 0) is disk.all_cached(descriptor, 2, (1 << 19) - 1) is knows
        monkeypatch.setattr(disk_module, "_SYS_CACHESTAT", -1)  # an older system
        assert not disk.all_cached(descriptor, 1 << 20, 0)
    finally:
        os.close(descriptor)


def test_bringing_touches_nothing_outside_the_file(tmp_path: Path) -> None:
    data = np.ones(1 << 16, np.uint8)
    disk = ColdDisk()
    path = tmp_path / "file"
    path.write_bytes(data.tobytes())
    positions, sizes = np.array([-5000, 100, 60_000, 1 << 40]), np.array([10, 30_000, 60_000, 9], np.int32)
    bring([Absent(disk, str(path), data, positions, sizes)])
    assert all(0 <= start <= end <= len(data) for start, end in disk.brought)


def test_records_of_several_queues_that_lie_near_each_other_are_read_together(tmp_path: Path) -> None:
    disk, data = ColdDisk(), np.ones(1 << 20, np.uint8)
    path = tmp_path / "file"
    path.write_bytes(data.tobytes())

    def queue(*positions: int) -> Absent:
        return Absent(disk, str(path), data, np.array(positions), np.full(len(positions), 1000, np.int32))

    bring([queue(0, 2000, 300_000), queue(1000, 3000, 301_000, 900_000)])
    assert disk.brought == [(0, 4000), (300_000, 302_000), (900_000, 901_000)]
    path.unlink()
    bring([queue(0)])  # the file was deleted meanwhile: its mapping is still there
    gone = Absent(disk, str(path), data, np.zeros(0, np.int64), np.zeros(0, np.int32))
    bring([gone])


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (0, ReadStatus.FOUND, 10),
        (9, ReadStatus.FOUND, 10),
        (10, ReadStatus.NO_NEW_MESSAGE, 10),
        (11, ReadStatus.OFFSET_OVERFLOW, 10),
        (-1, ReadStatus.OFFSET_TOO_SMALL, 0),
    ],
)
def test_the_status_says_where_to_go_on(store: Store, offset: int, status: ReadStatus, following: int) -> None:
    _fill(store, 10)
    result = store.reader.read("t", 0, offset, 1 << 20)
    assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (status, following, 0, 10)


def test_an_unknown_queue_is_told_apart(store: Store) -> None:
    _fill(store, 1)
    assert store.reader.read("t", 1, 0, 100).status is ReadStatus.QUEUE_NOT_FOUND
    assert store.reader.read("u", 0, 0, 100).status is ReadStatus.QUEUE_NOT_FOUND
    assert store.reader.queue_range("u", 0) == (0, 0)


def test_limits_hold_and_one_record_comes_whatever_its_size(store: Store) -> None:
    _fill(store, 200, size=1000)
    size = store.reader.read("t", 0, 0, 1).bytes
    assert store.reader.read("t", 0, 0, 1).count == 1
    assert store.reader.read("t", 0, 0, 3 * size + 2).count == 3
    assert store.reader.read("t", 0, 0, 1 << 30, max_count=7).count == 7
    assert store.reader.read("t", 0, 0, 1 << 30).count == 200


@pytest.mark.parametrize("count", [1, 63, 64, 65, 128, 500])
def test_entries_in_memory_and_in_files_are_one_queue(store: Store, count: int) -> None:
    _fill(store, count)
    _fill(store, 7)
    expected = [b"%d" % number + bytes(10) for number in (*range(count), *range(7))]
    assert bodies(store, "t") == expected
    store.checkpoint()
    assert bodies(store, "t") == expected
    assert bodies(store, "t", max_count=3) == expected


def test_tags_choose_records_and_a_read_without_any_gets_on(store: Store) -> None:
    tags = [b"TAGS\x01%s\x02" % tag for tag in (b"a", b"b", b"c")] + [b""]
    store.append("t", batch("t", [b"%d" % n for n in range(40)], properties=tags * 10), queues=1)
    dispatch_all(store)
    wanted = {string_hash("a"), string_hash("c")}
    assert bodies(store, "t", tags=wanted) == [b"%d" % n for n in range(40) if n % 4 in (0, 2)]
    none = store.reader.read("t", 0, 0, 1 << 20, tags={string_hash("z")})
    assert (none.status, none.next_offset, none.count) == (ReadStatus.NO_MATCHED_MESSAGE, 40, 0)
    assert bodies(store, "t", tags={0}) == [b"%d" % n for n in range(3, 40, 4)]


def test_search_by_time_finds_the_edges_of_equal_times(store: Store, clock: ManualClock) -> None:
    start = clock.wall_ms()
    for step in (0, 1, 0, 0, 2):
        clock.advance(step)
        store.append("t", batch("t", [b"x"]), queues=1)
    dispatch_all(store)  # times: 0, 1, 1, 1, 3 seconds after start
    times = [start, start + 1000, start + 1000, start + 1000, start + 3000]
    assert [store.lookup.store_timestamp_at("t", 0, n) for n in range(5)] == times
    assert store.lookup.store_timestamp_at("t", 0, 5) is None
    for asked in (start - 1, start, start + 1, start + 1000, start + 1001, start + 3000, start + 3001):
        lower = min([n for n in range(5) if times[n] >= asked], default=5)
        upper = max([n for n in range(5) if times[n] <= asked], default=0)
        assert store.lookup.search_offset("t", 0, asked) == lower
        assert store.lookup.search_offset("t", 0, asked, upper=True) == upper


def test_view_finds_exactly_record_starts(store: Store) -> None:
    _fill(store, 3)
    size = store.end_offset // 3
    assert decode_record(store.lookup.view(size)).body.startswith(b"1")
    for offset in (-1, 1, size - 1, store.end_offset, 1 << 50):
        with pytest.raises(MessageNotFound):
            store.lookup.view(offset)
    store.append("t", batch("t", [b"not confirmed"]), queues=1)
    with pytest.raises(MessageNotFound):
        store.lookup.view(3 * size)


def _keyed(number: int) -> bytes:
    return b"KEYS\x01all %d-key  n\xc3\xa4h\x02UNIQ_KEY\x01U%d\x02" % (number, number)


def test_query_compares_real_keys_over_several_index_files(store: Store, clock: ManualClock, tmp_path: Path) -> None:
    for number in range(100):
        clock.advance(0.5)
        store.append("t", batch("t", [b"%d" % number], properties=[_keyed(number)]), queues=1)
        store.append("other", batch("other", [b"o"], properties=[b"KEYS\x01all\x02"]), queues=1)
    dispatch_all(store)
    assert len(list((tmp_path / "index").iterdir())) == 5  # 500 keys, 119 in each

    def found(key: str, count: int = 1000, begin: int = 0, end: int = 1 << 60) -> list[bytes]:
        return [decode_record(raw).body for raw in store.lookup.query("t", key, count, begin, end)]

    everything = [b"%d" % number for number in reversed(range(100))]
    assert found("all") == everything
    assert found("näh") == everything
    assert found("all", 3) == everything[:3]
    assert found("17-key") == found("U17") == [b"17"]
    assert found("missing") == found("17") == found("") == []
    middle = clock.wall_ms() - 25_000  # store time of number 49
    assert found("all", begin=middle) == everything[:51]
    assert found("all", end=middle) == everything[50:]


def test_the_index_survives_a_clean_exit_a_crash_and_its_deletion(tmp_path: Path) -> None:
    def keys_found(store: Store) -> list[int]:
        return [len(store.lookup.query("t", f"U{number}", 10, *ALL_TIME)) for number in range(200)]

    config = store_config(tmp_path)
    store = Store.open(config)
    for number in range(90):
        store.append("t", batch("t", [b"x"], properties=[_keyed(number)]), queues=1)
    dispatch_all(store)
    store.close()
    store = Store.open(config)
    assert store.recovery.clean
    for number in range(90, 130):
        store.append("t", batch("t", [b"x"], properties=[_keyed(number)]), queues=1)
    dispatch_all(store)
    store.checkpoint()
    for number in range(130, 200):
        store.append("t", batch("t", [b"x"], properties=[_keyed(number)]), queues=1)
    dispatch_all(store)
    assert keys_found(store) == [1] * 200
    store.abandon()
    store = Store.open(config)
    assert not store.recovery.clean
    assert keys_found(store) == [1] * 200
    assert len(store.lookup.query("t", "all", 1000, *ALL_TIME)) == 200
    store.close()
    for file in (tmp_path / "index").iterdir():
        file.unlink()
    store = Store.open(config)
    assert keys_found(store) == [1] * 200
    store.close()


def test_without_index_nothing_is_written_or_found(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path, index_enable=False))
    store.append("t", batch("t", [b"x"], properties=[_keyed(1)]), queues=1)
    dispatch_all(store)
    assert store.lookup.query("t", "U1", 10, *ALL_TIME) == []
    store.close()
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("knows", [True, False])
def test_what_is_brought_is_in_memory_as_far_as_the_file_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows: bool
) -> None:
    path, disk = tmp_path / "file", Disk()
    path.write_bytes(bytes(1 << 20))
    if not knows:
        monkeypatch.setattr(disk_module, "_MADV_POPULATE_READ", 1 << 20)  # no kernel has this one
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        disk.bring(str(path), 5000, 1 << 30)
        assert disk.is_cached(descriptor, (1 << 20) - 5000, 5000)
        disk.bring(str(path), 1 << 20, 1 << 30)
    finally:
        os.close(descriptor)
