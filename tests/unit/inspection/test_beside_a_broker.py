"""Looking into a store that is open and written to."""

from __future__ import annotations

import struct
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from penstock.broker.store import Store, StoreConfig
from penstock.formats.record.layout import MAGIC_BLANK, Host
from penstock.formats.record.properties import encode_properties
from penstock.inspection import StoreQuery, list_store, summarize, verify
from penstock.inspection.log.segment_walk import SegmentWalk
from tests.support.record.encoding import encode_messages

HOST = Host.parse("10.0.0.1:10911")
QUEUES = 7


class Writer:
    """Appends numbered messages with keys to an open store."""

    def __init__(self, root: Path) -> None:
        config = StoreConfig(
            root=root,
            segment_bytes=1 << 20,
            consume_queue_bytes=20_000,
            store_host=HOST,
            index_slots=1000,
            index_entries=4000,
        )
        self.store = Store.open(config)
        self.sent = 0

    def append(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        bodies = [f"order {number}".encode() * 10 for number in numbers]
        properties = [encode_properties({"TAGS": "new", "KEYS": f"order-{number}"}) for number in numbers]
        queue_ids = (np.arange(self.sent, self.sent + count) % QUEUES).astype(np.int32)
        records = encode_messages("orders", bodies, properties, queue_ids, born_host=HOST)
        self.store.append("orders", records, queues=QUEUES)
        self.sent += count

    def dispatch(self) -> None:
        self.store.set_confirm(self.store.end_offset)
        while self.store.dispatched_offset < self.store.confirm_offset:
            self.store.dispatch()


def test_an_open_store_is_sound_at_any_moment(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    try:
        for step in range(20):
            writer.append(50 + step * 37)
            if step % 3:
                writer.dispatch()
            found = verify(list_store(tmp_path))
            assert [str(problem) for problem in found.findings.problems] == []
            assert found.records == writer.sent
            summarize(list_store(tmp_path))
    finally:
        writer.store.close()
    found = verify(list_store(tmp_path))
    assert found.findings.ok
    assert found.index_entries == writer.sent


def test_a_store_is_sound_while_it_is_written_to(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    ended = threading.Event()
    problems: list[str] = []
    looks: list[int] = []

    def look() -> None:
        while not ended.is_set():
            found = verify(list_store(tmp_path))
            problems.extend(str(problem) for problem in found.findings.problems)
            looks.append(found.records)

    writer.append(10)
    looking = threading.Thread(target=look)
    looking.start()
    try:
        deadline = time.monotonic() + 10
        while len(looks) < 10 and time.monotonic() < deadline:
            writer.append(40)
            writer.dispatch()
    finally:
        ended.set()
        looking.join()
        writer.store.close()
    assert problems == []
    assert looks


def test_a_file_that_a_broker_ends_while_it_is_read_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path)
    while writer.store.end_offset <= 1 << 20:
        writer.append(40)
    writer.dispatch()
    store = list_store(tmp_path)
    path = store.segments[0].path
    whole = path.read_bytes()
    blank = whole.rindex(struct.pack(">i", MAGIC_BLANK)) - 4
    path.write_bytes(whole[:blank] + bytes(len(whole) - blank))
    looks_further = SegmentWalk._goes_on

    def ended_meanwhile(walk: SegmentWalk) -> bool:
        path.write_bytes(whole)
        return looks_further(walk)

    monkeypatch.setattr(SegmentWalk, "_goes_on", ended_meanwhile)
    found = verify(store)
    writer.store.close()
    assert [str(problem) for problem in found.findings.problems] == []
    assert found.records == writer.sent


@pytest.mark.parametrize(
    ("entry", "first", "last"), [(60, 12, 20), (200, 11, 12)], ids=["of a record", "behind the last"]
)
def test_an_entry_seen_half_written_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: int, first: int, last: int
) -> None:
    writer = Writer(tmp_path)
    writer.append(100 * QUEUES)
    writer.dispatch()
    store = list_store(tmp_path)
    path = tmp_path / "consumequeue" / "orders" / "3" / f"{0:020d}"
    whole = path.read_bytes()
    torn = bytearray(whole)
    at = 20 * entry
    torn[at + first : at + last] = bytes(byte ^ 0x11 for byte in whole[at + first : at + last])
    path.write_bytes(torn)
    monkeypatch.setattr("penstock.inspection.log.model.time.sleep", lambda _: path.write_bytes(whole))
    found = verify(store)
    writer.store.close()
    assert [str(problem) for problem in found.findings.problems] == []


@pytest.mark.parametrize("written", [0.0, 0.2, 0.5, 0.8, 0.95])
def test_a_record_seen_half_written_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: float
) -> None:
    writer = Writer(tmp_path)
    writer.append(QUEUES)
    begin = writer.store.end_offset
    writer.append(1)
    end = writer.store.end_offset
    writer.dispatch()
    store = list_store(tmp_path)
    path = store.segments[0].path
    whole = path.read_bytes()
    cut = begin + int((end - begin) * written)
    path.write_bytes(whole[:cut] + bytes(len(whole) - cut))
    monkeypatch.setattr("penstock.inspection.log.model.time.sleep", lambda _: path.write_bytes(whole))
    found = verify(store)
    writer.store.close()
    assert [str(problem) for problem in found.findings.problems] == []
    assert found.keys == found.records == writer.sent - (not written)


def test_properties_that_end_in_a_zero_are_no_damage(tmp_path: Path) -> None:
    """Our brokers take none such; others' stores are looked at as well."""
    writer = Writer(tmp_path)
    writer.append(1)
    end = writer.store.end_offset
    writer.dispatch()
    store = list_store(tmp_path)
    with open(store.segments[0].path, "r+b") as file:
        file.seek(end - 1)
        file.write(b"\0")
    found = verify(store)
    writer.store.close()
    assert [str(problem) for problem in found.findings.problems] == []
    assert found.records == 1


def test_messages_not_in_the_index_yet_are_found(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    try:
        writer.append(500)
        writer.dispatch()
        writer.append(500)
        query = StoreQuery(list_store(tmp_path))
        for number in (3, 499, 500, 999):
            (found,) = query.by_key("orders", f"order-{number}").messages
            assert found.record.body == f"order {number}".encode() * 10
        query.close()
    finally:
        writer.store.close()
