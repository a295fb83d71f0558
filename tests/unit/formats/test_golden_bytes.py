"""The formats of what is derived from a log, against bytes that RocketMQ wrote (``tests/golden/direct``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.formats.batch_unit import BATCH_UNIT, BatchUnit, messages_of, pack_units
from penstock.formats.checkpoint import CHECKPOINT_BYTES, Standard
from penstock.formats.delay_levels import delivery_times, levels_ms
from penstock.formats.directory import (
    BATCH_QUEUE,
    CHECKPOINT,
    CONSUME_QUEUE,
    INDEX,
    file_name,
    file_start,
    file_starts,
    index_file_name,
    is_index_file_name,
    is_safe_topic,
)
from penstock.formats.hashing import tags_code
from penstock.formats.index.index_file import (
    INDEX_ENTRY,
    IndexEntry,
    IndexHeader,
    entry_at,
    file_bytes,
    likely_slots,
    slot_at,
    slot_pages,
)
from penstock.formats.index.index_kernels import KEY_ROW, check_chains, link_keys
from penstock.formats.queue_entry import ENTRY, ENTRY_BYTES, FILLER, Entry, are_messages
from tests.support import golden

NAME = "direct"
SLOTS, ENTRIES = 50, 120


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.unpack(NAME, tmp_path_factory.mktemp("direct"))


def test_a_queue_entry_names_a_record_and_the_hash_of_its_tag(root: Path) -> None:
    data = (root / CONSUME_QUEUE / "Hosts" / "0" / file_name(0)).read_bytes()
    assert data[ENTRY_BYTES : 2 * ENTRY_BYTES].hex(" ", 4) == "00000000 00000530 0000008b 00000000 0027a807"
    assert Entry.decode(data[ENTRY_BYTES:]) == (1328, 139, tags_code("TagA"))
    rows = np.frombuffer(data, ENTRY)
    assert [tuple(row) for row in rows[:2].tolist()] == [(0, 127, 2598919), (1328, 139, 2598919)]


def test_fillers_stand_in_front_of_a_queue_that_begins_late(root: Path) -> None:
    data = (root / CONSUME_QUEUE / "LateStart" / "0" / file_name(800)).read_bytes()
    assert data[:ENTRY_BYTES] == FILLER == bytes.fromhex("0000000000000000 7fffffff 0000000000000000")
    assert Entry.decode(FILLER).is_filler
    assert not Entry.decode(FILLER).is_message
    assert not Entry(0, 0, 0).is_message
    used = are_messages(np.frombuffer(data, ENTRY))
    expected = {path: entries for path, _, _, entries in golden.expected(NAME)["rawQueues"]}
    in_file = expected[f"{CONSUME_QUEUE}/LateStart/0/{file_name(800)}"]
    assert int(used.sum()) + data.count(FILLER) == in_file > int(used.sum())


def test_entries_of_delayed_messages_hold_their_time_of_delivery(root: Path) -> None:
    assert levels_ms()[:3] == (1000, 5000, 10_000)
    assert (len(levels_ms()), levels_ms()[-1]) == (18, 7_200_000)
    stored = {m["physicalOffset"]: m["storeTimestamp"] for m in golden.expected(NAME)["messages"]}
    for queue_id in (0, 3, 17):
        data = (root / CONSUME_QUEUE / "SCHEDULE_TOPIC_XXXX" / str(queue_id) / file_name(0)).read_bytes()
        entry = Entry.decode(data)
        assert delivery_times(queue_id, stored[entry.physical_offset]) == entry.tags_code


@pytest.mark.parametrize("text", ["5x", "1", "s", "1s 2", "-1s", "1s;5s", "99999999999d"])
def test_a_level_that_is_no_time_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=text.split()[-1]):
        levels_ms(text)


def test_a_batch_unit_names_an_inner_batch(root: Path) -> None:
    data = (root / BATCH_QUEUE / "InnerBatch" / "0" / file_name(0)).read_bytes()
    first = "000000000001a304 000000eb 0000000000000d19 0000018bcfe8ce1e 0000000000000000 0001 ffffffff 00000000"
    assert data[:46] == bytes.fromhex(first)
    units = np.frombuffer(data[:92], BATCH_UNIT)
    found = [BatchUnit(*unit[:6]) for unit in units.tolist()]
    assert [(unit.base, unit.messages) for unit in found] == [(0, 1), (1, 3)]
    assert pack_units(found).tobytes() == data[:92]


def test_a_record_without_a_number_of_messages_has_no_unit() -> None:
    assert messages_of({"INNER_NUM": "3", "INNER_BASE": "7"}, 5) == (7, 3)
    assert messages_of({"INNER_NUM": "3"}, 5) == (5, 3)
    assert [messages_of({"INNER_NUM": text}, 5) for text in ("", "-1", "x", "32768")] == [None] * 4


def test_an_index_file_is_a_header_slots_and_linked_entries(root: Path) -> None:
    for expected in golden.expected(NAME)["rawIndex"]:
        data = (root / INDEX / expected["file"]).read_bytes()
        header = IndexHeader.decode(data)
        names = ("beginTimestamp", "endTimestamp", "beginPhyOffset", "endPhyOffset", "hashSlotCount", "indexCount")
        assert header == tuple(expected[name] for name in names)
        assert header.encode() == data[:40]
        assert len(data) == file_bytes(SLOTS, ENTRIES) == expected["size"]
        count = header.index_count - 1
        entries = np.frombuffer(data, INDEX_ENTRY, count, entry_at(SLOTS, 1))
        assert [list(row) for row in entries.tolist()] == expected["entries"][:count]
        assert IndexEntry.decode(data[entry_at(SLOTS, count) :]) == tuple(expected["entries"][count - 1])
        newest, wrong = np.zeros(SLOTS, np.int32), np.zeros(count, np.uint8)
        assert check_chains(entries.view(np.uint8), 1, count, newest, wrong) == 0
        for slot in range(SLOTS):
            assert int.from_bytes(data[slot_at(slot) : slot_at(slot) + 4], "big") == newest[slot]


def test_linking_the_keys_of_a_file_gives_its_very_bytes(root: Path) -> None:
    first, *_ = golden.expected(NAME)["rawIndex"]
    data = (root / INDEX / first["file"]).read_bytes()
    header = IndexHeader.decode(data)
    entries = np.frombuffer(data, INDEX_ENTRY, header.index_count - 1, entry_at(SLOTS, 1))
    keys = np.zeros(len(entries), KEY_ROW)
    for name in ("key_hash", "physical_offset"):
        keys[name] = entries[name]
    keys["store_timestamp"] = header.begin_timestamp + 1000 * entries["seconds"].astype(np.int64)
    newest = np.zeros(SLOTS, np.int32)
    made = bytearray(len(data))
    made[entry_at(SLOTS, 1) :] = link_keys(keys, newest, 1, header.begin_timestamp).tobytes()
    for at, page in ((0, header.encode()), *slot_pages(newest)):
        made[at : at + len(page)] = page
    assert bytes(made) == data


def test_slots_that_are_not_used_stay_holes() -> None:
    newest = np.zeros(5000, np.int32)
    newest[[0, 1023, 2048, 4999]] = 1, 2, 3, 4
    pages = list(slot_pages(newest))
    assert [(at, len(data)) for at, data in pages] == [(40, 4096), (40 + 8192, 4096), (40 + 16384, 3616)]
    assert list(slot_pages(np.zeros(10, np.int32))) == []


def test_the_number_of_slots_is_guessed_from_the_size() -> None:
    assert next(likely_slots(file_bytes(5_000_000, 20_000_000))) == 5_000_000
    assert list(likely_slots(file_bytes(100, 400))) == [100]
    assert list(likely_slots(file_bytes(50, 120))) == []


def test_a_checkpoint_has_five_numbers(root: Path) -> None:
    data = (root / CHECKPOINT).read_bytes()
    before = golden.expected(NAME)["checkpointBeforeOpen"]
    found = Standard.decode(data)
    assert found.logics_msg_timestamp == before["logicsMsgTimestamp"]
    assert found.index_msg_timestamp == before["indexMsgTimestamp"]
    assert (found.encode(), len(data)) == (data, CHECKPOINT_BYTES)


def test_names_of_files_say_where_they_begin() -> None:
    assert file_start(file_name(1 << 30)) == 1 << 30
    assert [file_start(name) for name in ("1", "x" * 20, "٠" * 20, "0" * 21)] == [None] * 4
    assert file_starts(["abort", file_name(7), ".0", file_name(3)]) == [7, 3]
    assert is_index_file_name(index_file_name(1_700_000_000_123))
    assert index_file_name(1_700_000_000_123).endswith("123")
    assert [is_safe_topic(name) for name in ("%LMQ%a", "a" * 255, "", "a/b", "..", "a" * 256)] == [
        *(True, True),
        *(False, False, False, False),
    ]
