"""What verify and rebuild decide about queues, index files, replicas and left-out queues, without Spark."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.formats.index.index_file import INDEX_ENTRY, INDEX_ENTRY_BYTES, entry_at
from penstock.formats.queue_entry import ENTRY
from penstock.pipeline.jobs.rebuild import job as rebuild
from penstock.pipeline.jobs.verify.index import prove_index_file
from penstock.pipeline.jobs.verify.job import differing_parts, jumps
from penstock.pipeline.jobs.verify.replica import BLOCK_BYTES, differing_records, runs_of
from penstock.pipeline.spark.arrow_types import arrow_schema
from penstock.pipeline.stores.derived import (
    INDEX_COLUMNS,
    PART_COLUMNS,
    QUEUE_PART_COLUMNS,
    list_queue_files,
    pack_queues,
    plan_index,
    plan_queues,
)
from penstock.pipeline.stores.directory import list_store
from penstock.pipeline.stores.index import read_index
from penstock.pipeline.stores.model import Store
from penstock.pipeline.stores.options import parse_options
from penstock.pipeline.stores.parts import PART_ENTRY, compare_part, prove_queue_files, read_queue_parts
from penstock.pipeline.stores.scan.planning import plan_splits
from penstock.proto.errors import ConfigError, Corrupt
from penstock.proto.names import SCHEDULE_TOPIC
from tests.support import golden
from tests.support.store_rows import rows_of

NAME = "multi-queue"
SLOTS = 100


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return golden.unpack(NAME, tmp_path / "store", only=("commitlog", "consumequeue", "index"))


def queue_rows(store: Store, part_offsets: int = 40) -> list[dict[str, Any]]:
    schema = arrow_schema(QUEUE_PART_COLUMNS | {"problem": "string"})
    splits = pack_queues(store, list_queue_files(store.root))
    proved = [prove_queue_files(split, schema, part_offsets, is_open=store.is_open, deleted={}) for split in splits]
    return pa.Table.from_batches([batch for batches in proved for batch in batches], schema).to_pylist()


def summed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As verify groups them; each part here has one row."""
    return [row | {"first": row["firstOffset"], "last": row["lastOffset"]} for row in rows]


def log_rows(root: Path, **options: str) -> list[dict[str, Any]]:
    given = parse_options({"storePath": str(root), "view": "parts", **options})
    return rows_of(plan_splits(list_store(str(root)), given), given, PART_COLUMNS)


def index_rows(store: Store) -> list[dict[str, Any]]:
    return [row for split in plan_index(store) for b in prove_index_file(split, store) for row in b.to_pylist()]


def problems(rows: list[dict[str, Any]]) -> list[str]:
    return [row["problem"] for row in rows if row["problem"] is not None]


def cut(store: Store, end: int) -> Store:
    """The store with a log that ends earlier."""
    files = [file for file in store.files if file.start < end]
    files[-1] = dataclasses.replace(files[-1], end=end - files[-1].start)
    return dataclasses.replace(store, files=tuple(files))


def test_entries_behind_the_log_s_end_are_problems_of_a_closed_store_only(root: Path) -> None:
    store = list_store(str(root))
    assert not problems(queue_rows(store)) + problems(index_rows(store))
    lost = golden.expected(NAME)["messages"][-5:]
    shorter = cut(store, lost[0]["physicalOffset"])
    told = {(row["queueId"], row["firstOffset"], row["messages"]) for row in queue_rows(shorter) if row["problem"]}
    assert told == {(message["queueId"], message["queueOffset"], 1) for message in lost}
    text = next(
        row["problem"] for row in queue_rows(shorter) if row["queueId"] == lost[0]["queueId"] and row["problem"]
    )
    assert text.startswith(
        f"1 queue entries from {lost[0]['queueOffset']} on name positions from {lost[0]['physicalOffset']} on, at or "
        f"behind the log's end {shorter.end}"
    )
    (text,) = problems(index_rows(shorter))
    assert f"name positions from {lost[0]['physicalOffset']} on" in text
    shorter = dataclasses.replace(shorter, is_open=True)
    assert not problems(queue_rows(shorter)) + problems(index_rows(shorter))


def test_entries_of_log_files_that_retention_deleted_are_no_difference(root: Path) -> None:
    (root / "commitlog" / f"{0:020d}").unlink()
    store = list_store(str(root))
    options = parse_options({"storePath": str(root)})
    view = [
        row
        for split in plan_queues(store, options)
        for batch in read_queue_parts(split, arrow_schema(QUEUE_PART_COLUMNS), 40)
        for row in batch.to_pylist()
    ]
    ours = summed(log_rows(root, partOffsets="40", splitBytes="1g"))
    kept = sum(message["physicalOffset"] >= store.files[0].start for message in golden.expected(NAME)["messages"])
    assert sum(row["messages"] for row in view) == sum(row["messages"] for row in queue_rows(store)) == kept
    parts: dict[Any, dict[str, Any]] = {}
    for row in ours:
        place = row["queueId"], row["part"]
        if place in parts:
            former = parts[place]
            former["last"] = row["last"]
            former["digest"] ^= row["digest"]
            for name in ("messages", "bytes"):
                former[name] += row[name]
        else:
            parts[place] = dict(row)
    named = [row | {"brokerName": store.broker_name} for row in parts.values()]
    assert differing_parts(named, summed(queue_rows(store))) == []


def part(first: int, last: int, start: int, broker: str = "b", queue: int = 0) -> dict[str, Any]:
    count = last - first + 1
    ends = {"first": first, "last": last, "messages": count, "bytes": count, "digest": 1}
    return {"brokerName": broker, "topic": "T", "queueId": queue, "part": start, "life": 0} | ends


def test_a_jump_at_the_border_of_two_parts_is_seen() -> None:
    log = [part(0, 99, 0), part(600_000, 600_010, 600_000), part(5, 9, 0, queue=1), part(0, 1, 0, broker="c")]
    assert differing_parts(log, log) == []  # the queues say the same
    assert [(row["first"], last) for row, last in jumps(log)] == [(600_000, 99)]
    assert list(jumps([part(0, 299_999, 0), part(300_000, 300_000, 300_000)])) == []


def records(count: int, stored: int = 1_000) -> tuple[Any, Any]:
    """Records of a part, and their entries."""
    made = np.zeros(count, PART_ENTRY)
    made["queue_offset"], made["physical_offset"] = np.arange(count) + 7, np.arange(count) * 100
    made["size"], made["tags_code"], made["store_timestamp"] = 100, np.arange(count) * 11, stored + np.arange(count)
    entries = np.zeros(count, ENTRY)
    for name in ENTRY.names or ():
        entries[name] = made[name]
    return made, entries


def found(made: Any, entries: Any, topic: str = "T", **more: Any) -> list[tuple[Any, Any, int, int]]:
    given = {"reached": None, "has_extension": False, "examples": 10} | more
    table = compare_part(topic, 2, made, (np.arange(len(entries)) + 7, entries), **given)
    rows = ((row["queueOffset"], row["problem"], row["messages"], row["late"]) for row in table.to_pylist())
    return [row for row in rows if row[1] or row[2] or row[3]]


def test_each_kind_of_difference_in_a_part_is_named_and_all_are_counted() -> None:
    made, entries = records(20)
    entries["tags_code"][3] += 1
    entries["physical_offset"][4] += 1
    assert found(made[:19], entries) == [
        (10, "the queue entry has the tags code 34, the record 33", 1, 0),
        (11, "the queue entry names 401 (100 bytes), the record lies at 400 (100 bytes)", 1, 0),
        (26, "the queue entry names 1900, where no record of this queue lies", 1, 0),
    ]
    assert found(made, entries[:2], examples=3)[3:] == [(None, None, 15, 0)]
    assert found(made, records(20)[1][:5], reached=11) == [(None, None, 0, 15)]  # not dispatched yet
    made, entries = records(5)
    assert found(made[[0, 1, 3, 4]], entries)[1:] == [(None, "queue offset 10 follows 8 in the log", 1, 0)]


def test_tags_codes_may_be_addresses_of_an_extension_or_times_of_delivery() -> None:
    made, entries = records(5)
    entries["tags_code"] = -(1 << 63) + np.arange(5) * 50
    assert len(found(made, entries)) == 5
    assert found(made, entries, has_extension=True) == []
    for delay_ms in (10_000, 77_000):  # by default at level 3, and by a level that was configured
        entries["tags_code"] = made["store_timestamp"] + delay_ms
        assert found(made, entries, SCHEDULE_TOPIC) == []
    entries["tags_code"][1] += 5
    assert [row[0] for row in found(made, entries, SCHEDULE_TOPIC) if row[0] == 8] == [8]


@pytest.mark.parametrize("name", ["normal", "multi-queue", "direct"])
def test_a_wrong_tags_code_changes_the_digest_of_its_part(name: str, tmp_path: Path) -> None:
    root = golden.unpack(name, tmp_path / "store", only=("commitlog", "consumequeue"))
    store = list_store(str(root))

    def in_log() -> dict[Any, int]:
        digests: dict[Any, int] = {}
        for row in log_rows(root):
            if row["hasEntries"] and not row["isLight"]:
                place = row["topic"], row["queueId"], row["part"]
                digests[place] = digests.get(place, 0) ^ row["digest"]
        return digests

    def in_queues() -> dict[Any, int]:
        digests: dict[Any, int] = {}
        for row in queue_rows(store, 300_000):
            place = row["topic"], row["queueId"], row["part"]
            digests[place] = digests.get(place, 0) ^ row["digest"]
        return digests

    assert in_queues() == in_log()  # times of delivery in the delay topic included
    file = next(file for file in list_queue_files(str(root)) if not file.topic.startswith("%LMQ%"))
    content = bytearray(Path(file.path).read_bytes())
    at = next(at for at in range(0, len(content), 20) if 0 < int.from_bytes(content[at + 8 : at + 12]) < 1 << 30)
    content[at + 19] ^= 1
    Path(file.path).write_bytes(content)
    assert sum(in_log()[place] != digest for place, digest in in_queues().items()) == 1


def change(path: Path, at: int, content: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + len(content)] = content
    path.write_bytes(data)


def test_slots_and_chains_that_lead_to_no_entry_are_problems(root: Path) -> None:
    store = list_store(str(root))
    path = sorted((root / "index").iterdir())[0]
    sound = path.read_bytes()
    change(path, 40, bytes(4 * SLOTS))
    (text,) = problems(index_rows(store))
    assert "slots do not name their newest entry, so keys are not found: slot 0 names 0" in text
    path.write_bytes(sound)
    first = entry_at(SLOTS, 1)
    entries = np.frombuffer(sound, INDEX_ENTRY, 400, first)
    victim = int(np.flatnonzero(entries["previous"])[0])
    change(path, first + INDEX_ENTRY_BYTES * victim + 16, bytes(4))
    (text,) = problems(index_rows(store))
    assert text.startswith(f"1 entries from {victim + 1} on do not name the one before them in their slot")
    path.write_bytes(sound)
    count = int.from_bytes(sound[36:40]) - 1
    change(path, 40, (count + 5).to_bytes(4))
    assert problems(index_rows(store))
    assert not problems(index_rows(dataclasses.replace(store, is_open=True)))  # its broker goes on writing


def test_an_index_file_that_is_none_is_a_problem_and_the_others_are_proved(root: Path) -> None:
    store = list_store(str(root))
    oldest, *others = sorted((root / "index").iterdir())
    oldest.write_bytes(oldest.read_bytes()[:30])
    rows = index_rows(store)
    assert problems(rows) == [f"{oldest}: 30 bytes are no index file: rebuild the index"]
    assert {row["file"] for row in rows if row["problem"] is None} == {path.name for path in others}


def test_the_view_index_ends_where_the_log_did_when_it_was_listed(root: Path) -> None:
    store = list_store(str(root))
    end = golden.expected(NAME)["messages"][100]["physicalOffset"]
    split, *_ = plan_index(cut(store, end))
    (batch,) = read_index(split, arrow_schema(INDEX_COLUMNS))
    assert len(batch) > 0
    assert max(batch.column("physicalOffset").to_pylist()) < end


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (f"99999999999/{0:020d}", r"consumequeue/ManyQueues/99999999999: queues have numbers up to 2147483647"),
        (f"1/{'9' * 20}", r"ManyQueues/1/9{20}: queue files are named after a multiple of 20 below 2\^63"),
        (f"1/{7:020d}", r"ManyQueues/1/0{19}7: queue files are named after a multiple of 20"),
    ],
)
def test_names_that_no_queue_file_has_are_errors_of_views_and_seen_by_nobody_else(
    root: Path, name: str, text: str
) -> None:
    sound = list_queue_files(str(root))
    path = root / "consumequeue" / "ManyQueues" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(20))
    assert list_queue_files(str(root)) == sound
    with pytest.raises(Corrupt, match=text):
        plan_queues(list_store(str(root)), parse_options({"storePath": str(root), "view": "queues"}))


def test_records_that_differ_from_a_replica_s_are_told_one_by_one(root: Path, tmp_path: Path) -> None:
    left = list_store(str(root))
    other = golden.unpack(NAME, tmp_path / "replica", only=("commitlog",))
    messages = golden.expected(NAME)["messages"]
    wrong = [messages[number] for number in (10, 11, 300)]
    for message in wrong:
        start = message["physicalOffset"] // 65_536 * 65_536
        path = other / "commitlog" / f"{start:020d}"
        at = message["physicalOffset"] - start + 90
        change(path, at, bytes([path.read_bytes()[at] ^ 1, path.read_bytes()[at + 1] ^ 1]))
    right = list_store(str(other))
    for stores in ((left, right), (right, left)):
        rows = differing_records(*stores, 0, left.end).to_pylist()
        assert [tuple(row.values()) for row in rows] == [
            (one["physicalOffset"], one["topic"], one["queueId"], one["queueOffset"], True) for one in wrong
        ]
    middle = wrong[2]["physicalOffset"] + 50  # the record begins in front of the stretch that is compared
    assert [row["physicalOffset"] for row in differing_records(left, right, middle, left.end).to_pylist()] == [
        middle - 50
    ]
    assert differing_records(left, left, 0, left.end).num_rows == 0
    change(other / "commitlog" / f"{0:020d}", 65_530, b"\1")  # in the blank that ends the file
    rows = differing_records(left, right, 0, left.end).to_pylist()
    assert [row["physicalOffset"] for row in rows if not row["isRecord"]] == [65_530]
    assert sum(row["isRecord"] for row in rows) == 3


def test_a_record_that_one_log_lacks_is_told_with_its_place(root: Path, tmp_path: Path) -> None:
    other = golden.unpack(NAME, tmp_path / "replica", only=("commitlog",))
    message = golden.expected(NAME)["messages"][20]
    change(other / "commitlog" / f"{0:020d}", message["physicalOffset"] + 4, bytes(4))  # the magic
    left, right = list_store(str(root)), list_store(str(other))
    for stores in ((left, right), (right, left)):
        (row,) = differing_records(*stores, 0, left.end).to_pylist()
        assert (row["physicalOffset"], row["topic"]) == (message["physicalOffset"], message["topic"])


def test_neighbouring_blocks_are_one_run_of_limited_length() -> None:
    blocks = [number * BLOCK_BYTES for number in (*range(10), 20)]
    assert runs_of(blocks, 20 * BLOCK_BYTES + 5) == [
        (0, 8 * BLOCK_BYTES),
        (8 * BLOCK_BYTES, 10 * BLOCK_BYTES),
        (20 * BLOCK_BYTES, 20 * BLOCK_BYTES + 5),
    ]


def test_the_queues_of_two_stores_are_not_made_in_one_directory(tmp_path: Path) -> None:
    for name in ("s1", "s2"):
        (tmp_path / name).mkdir()
    for store in (f"{tmp_path}/s*", f"{tmp_path}/s1,{tmp_path}/s2"):
        with pytest.raises(ConfigError, match=r"names 2 directories \(.*s1, .*s2\): name one"):
            rebuild.check(rebuild.Config(store=store, into=str(tmp_path / "new")))
    rebuild.check(rebuild.Config(store=f"{tmp_path}/s1*", into=str(tmp_path / "new")))
    with pytest.raises(ConfigError, match=r"lies in the store, which is only read"):
        rebuild.check(rebuild.Config(store=f"{tmp_path}/s1*", into=str(tmp_path / "s1" / "new")))
