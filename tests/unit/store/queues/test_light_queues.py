"""Light queues (LMQ): records that stand in other queues as well."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.store import Store
from penstock.formats.record.layout import decode_record
from penstock.formats.record.properties import decode_properties
from penstock.inspection import list_store, verify
from penstock.proto.errors import CorruptBatch, Forbidden, MessageTooLarge
from tests.support.broker.stores import batch, bodies, dispatch_all, read, read_records, store_config, tree

A, B = "%LMQ%a", "%LMQ%b"


def _config(root: Path, **changes: Any) -> Any:
    return store_config(root, lmq_enable=True, multi_dispatch=True, **changes)


def _lit(*names: str, more: bytes = b"") -> bytes:
    return more + b"INNER_MULTI_DISPATCH\x01" + ",".join(names).encode() + b"\x02"


def _put(store: Store, *sets: bytes, topic: str = "parent") -> None:
    store.append(topic, batch(topic, [b"%d" % n for n in range(len(sets))], properties=sets), queues=1)


def _offsets(store: Store, topic: str = "parent") -> list[str | None]:
    return [decode_properties(r.properties).get("INNER_MULTI_QUEUE_OFFSET") for r in read(store, topic)]


def test_a_record_stands_in_its_queue_and_in_each_light_queue_that_it_names(tmp_path: Path) -> None:
    store = Store.open(_config(tmp_path))
    _put(store, _lit(A), b"TAGS\x01t\x02", _lit(A, B, more=b"TAGS\x01t\x02"), _lit(B))
    _put(store, _lit(A))
    dispatch_all(store)
    assert _offsets(store) == ["0", None, "1,0", "1", "2"]
    assert bodies(store, A) == [b"0", b"2", b"0"]
    assert bodies(store, B) == [b"2", b"3"]
    assert store.reader.queue_range("parent", 0) == (0, 5)
    assert read_records(store, A)[1] == read_records(store, "parent")[2]
    assert bodies(store, A, tags=[116]) == [b"2"]
    store.close()


def test_light_queues_go_on_after_closing_a_crash_and_without_their_files(tmp_path: Path) -> None:
    store = Store.open(_config(tmp_path))
    for _ in range(30):
        _put(store, _lit(A, B), _lit(B))
    dispatch_all(store)
    store.close()
    store = Store.open(_config(tmp_path))
    assert store.recovery.clean
    _put(store, _lit(A))
    store.abandon()  # not dispatched
    store = Store.open(_config(tmp_path))
    assert store.reader.queue_range(A, 0) == (0, 31)
    _put(store, _lit(A, B))
    dispatch_all(store)
    assert _offsets(store)[-2:] == ["30", "31,60"]
    store.close()
    queues = tree(tmp_path / "consumequeue")
    assert {name.split("/")[0] for name in queues} == {"parent", A, B}
    shutil.rmtree(tmp_path / "consumequeue")
    Store.open(_config(tmp_path)).close()
    assert tree(tmp_path / "consumequeue") == queues


def test_offsets_count_from_what_is_in_the_log_and_not_dispatched(tmp_path: Path) -> None:
    source = Store.open(_config(tmp_path / "master"))
    _put(source, _lit(A), _lit(A, B))
    slave = Store.open(_config(tmp_path / "slave"))
    slave.append_bytes(0, source.read_bytes(0, 1 << 20))
    _put(slave, _lit(B, A))
    dispatch_all(slave)
    assert _offsets(slave) == ["0", "1,0", "1,2"]
    assert len(bodies(slave, A)) == 3
    source.close()
    slave.close()


def test_offsets_and_checksums_that_a_record_brings_are_replaced(tmp_path: Path) -> None:
    store = Store.open(_config(tmp_path, append_record_crc=True))
    brought = b"INNER_MULTI_QUEUE_OFFSET\x017\x02__CRC32#\x010000000000\x02"
    _put(store, _lit(A, more=brought), _lit(A)[:-1])
    dispatch_all(store)
    properties = [record.properties for record in read(store, A)]
    assert [p.count(b"INNER_MULTI_QUEUE_OFFSET") for p in properties] == [1, 1]
    assert [p.count(b"__CRC32#") for p in properties] == [1, 1]
    assert _offsets(store) == ["0", "1"]
    store.abandon()
    store = Store.open(_config(tmp_path, append_record_crc=True, force_record_crc=True))
    assert len(bodies(store, A)) == 2
    store.close()


def test_a_queue_named_twice_counts_once(tmp_path: Path) -> None:
    store = Store.open(_config(tmp_path))
    _put(store, _lit(A, B, A), _lit(A))
    dispatch_all(store)
    assert _offsets(store) == ["0,0,0", "1"]
    assert bodies(store, A) == [b"0", b"1"]
    store.close()


@pytest.mark.parametrize("topic", ["%RETRY%group", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x"])
def test_records_of_retry_and_system_topics_stay_as_they_are(topic: str, tmp_path: Path) -> None:
    store = Store.open(_config(tmp_path))
    _put(store, _lit(A, more=b"INNER_MULTI_QUEUE_OFFSET\x015\x02"), topic=topic)
    dispatch_all(store)
    assert _offsets(store, topic) == ["5"]
    assert store.reader.queue_range(A, 0) == (0, 0)
    store.close()


def test_without_multi_dispatch_records_are_stored_as_they_come(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    _put(store, _lit(A))
    dispatch_all(store)
    assert _offsets(store) == [None]
    assert store.queues() == {"parent": [0]}
    store.close()


@pytest.mark.parametrize(
    ("properties", "error", "text"),
    [
        (_lit("other"), CorruptBatch, "'other'"),
        (_lit(A, "", B), CorruptBatch, "''"),
        (_lit("%LMQ%../x"), CorruptBatch, "%LMQ%../x"),
        (_lit("%LMQ%" + "x" * 251), CorruptBatch, "1..250"),
        (_lit(A, more=b"p\x01" + b"x" * 32730 + b"\x02"), MessageTooLarge, "32767"),
        (_lit(A, B, "%LMQ%c"), Forbidden, "maxLmqConsumeQueueNum=2"),
    ],
)
def test_what_cannot_be_dispatched_is_refused_by_name_and_costs_no_offset(
    properties: bytes, error: type[Exception], text: str, tmp_path: Path
) -> None:
    store = Store.open(_config(tmp_path, light_queues_max=2, segment_bytes=1 << 17))
    _put(store, _lit(A))
    end = store.end_offset
    with pytest.raises(error, match=text.replace("..", r"\.\.")):
        _put(store, _lit(A), properties)
    assert store.end_offset == end
    with pytest.raises(Forbidden):  # refused behind the offsets
        store.append("parent", batch("parent", [b"x"], 5, properties=[_lit(A)]), queues=1)
    _put(store, _lit(A))
    dispatch_all(store)
    assert _offsets(store) == ["0", "1"]
    store.close()


def test_offsets_that_skip_leave_blank_entries_and_impossible_ones_are_passed_over(tmp_path: Path) -> None:
    """RocketMQ skips offsets now and then; anything can stand in records of a broker without multi-dispatch."""
    store = Store.open(store_config(tmp_path))
    for offset in (b"0", b"3", b"2", b"900000000000000000", b"9999999999999999999", b"x", b"4,5", b"4"):
        _put(store, _lit(A) + b"INNER_MULTI_QUEUE_OFFSET\x01" + offset + b"\x02")
    _put(store, _lit(B) + b"INNER_MULTI_QUEUE_OFFSET\x01999999999999999999\x02")
    dispatch_all(store)
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    store = Store.open(_config(tmp_path))
    assert store.reader.queue_range(A, 0) == (0, 5)
    assert [r.queue_offset for r in read(store, A)] == [0, 1, 7]
    assert bodies(store, B) == []
    _put(store, _lit(A, B))
    dispatch_all(store)
    assert _offsets(store)[-1] == "5,0"
    store.close()


def test_times_of_light_queues_are_found(tmp_path: Path) -> None:
    store = Store.open(_config(tmp_path))
    for names in ((A,), (B,), (A, B)):
        _put(store, _lit(*names))
    dispatch_all(store)
    times = [decode_record(raw).store_timestamp_ms for raw in read_records(store, A)]
    assert store.lookup.search_offset(A, 0, times[0]) == 0
    assert store.lookup.search_offset(A, 0, times[-1] + 1) == 2
    assert store.lookup.search_offset(A, 0, times[-1] + 1, upper=True) == 1
    assert store.lookup.store_timestamp_at(A, 0, 1) == times[1]
    store.close()


def test_a_dropped_light_queue_begins_at_0(tmp_path: Path) -> None:
    store = Store.open(_config(tmp_path, light_queues_max=1))
    _put(store, _lit(A))
    dispatch_all(store)
    store.drop_topic(A)
    assert not (tmp_path / "consumequeue" / A).exists()
    _put(store, _lit(B))
    dispatch_all(store)
    assert _offsets(store) == ["0", "0"]
    assert bodies(store, B) == [b"0"]
    store.close()


def test_many_new_queues_in_one_slice(tmp_path: Path) -> None:
    store = Store.open(_config(tmp_path, segment_bytes=1 << 20))
    _put(store, *[_lit(f"%LMQ%{n}", f"%LMQ%{n + 1}") for n in range(700)])
    dispatch_all(store)
    assert len(store.queues()) == 702
    assert bodies(store, "%LMQ%350") == [b"349", b"350"]
    store.close()


def test_the_tools_find_light_queues_as_the_store_leaves_them(tmp_path: Path) -> None:
    store = Store.open(_config(tmp_path))
    _put(store, _lit(B, A, B), b"", _lit(A))
    _put(store, _lit(A, more=b"INNER_MULTI_QUEUE_OFFSET\x015\x02"), topic="%RETRY%group")
    dispatch_all(store)
    store.close()
    assert [str(problem) for problem in verify(list_store(tmp_path)).findings.problems] == []


def test_a_light_queue_without_records_goes_on_where_the_log_says_that_it_ended(tmp_path: Path) -> None:
    store = Store.open(_config(tmp_path))
    store.removal.remember(lambda topic: {0: 5} if topic == A else {})
    with pytest.raises(CorruptBatch):
        _put(store, _lit(A, "no light queue"))
    _put(store, _lit(A, B))
    dispatch_all(store)
    _put(store, _lit(A))
    assert _offsets(store) == ["5,0"]
    dispatch_all(store)
    assert _offsets(store) == ["5,0", "6"]
    assert store.reader.queue_range(A, 0) == (5, 7)
    store.close()
    store = Store.open(_config(tmp_path))
    assert (store.recovery.queues_rebuilt, store.reader.queue_range(A, 0)) == (False, (5, 7))
    store.close()
