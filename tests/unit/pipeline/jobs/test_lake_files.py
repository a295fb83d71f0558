"""The lake's Parquet files: what goes in comes out, sorted, in one file per broker and day, and the sums agree."""

from __future__ import annotations

import json
import os
import random
import zlib
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.pipeline.columns.schema import NEVER_NULL, STORE_COLUMNS
from penstock.pipeline.lake import lake_files
from penstock.pipeline.lake.entries import LakeFile
from penstock.pipeline.lake.lake import NO_DAY, Lake
from penstock.pipeline.lake.lake_files import COLUMNS, write_sorted
from penstock.pipeline.spark.arrow_types import arrow_schema
from tests.unit.pipeline.jobs.test_jobs_without_spark import entry

SCHEMA = arrow_schema(STORE_COLUMNS)
NIGHT = datetime(2026, 3, 1, 23, 59, 59, 990_000, UTC)
ORDER = ("topic", "queueId", "queueOffset")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def messages(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Messages of three topics and two brokers around midnight, in the order of their logs."""
    chosen = random.Random(seed)
    ends: dict[tuple[str, str, int], int] = defaultdict(int)
    made = []
    for number in range(count):
        topic, broker, queue = chosen.choice(["b", "ä", "a"]), chosen.choice(["left", "right"]), chosen.randrange(2)
        offset = ends[topic, broker, queue]
        ends[topic, broker, queue] += 1
        values: dict[str, Any] = {field.name: 0 for field in SCHEMA if pa.types.is_integer(field.type)}
        values |= {
            "topic": topic,
            "brokerName": broker,
            "queueId": queue,
            "queueOffset": offset,
            "physicalOffset": number * 100,
            "size": 90 + number % 7,
            "messageId": f"{number:032X}",
            "tags": chosen.choice(["T", None]),
            "keys": chosen.choice([None, [], [f"k{number}", "all"]]),
            "body": chosen.randbytes(number % 50),
            "properties": {"UNIQ_KEY": f"{number:032X}", "n": "1"},
            "storeTimestamp": None if number % 100 == 7 else NIGHT + timedelta(milliseconds=number),
            "bornTimestamp": NIGHT,
            "bornHost": "127.0.0.1:1",
            "storeHost": "[::1]:2",
        }
        made.append(values)
    return made


def batches(rows: list[dict[str, Any]], at_once: int = 37) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist(rows[at : at + at_once], SCHEMA) for at in range(0, len(rows), at_once)]


def day_of(row: dict[str, Any]) -> str:
    return NO_DAY if row["storeTimestamp"] is None else row["storeTimestamp"].date().isoformat()


def read(lake: Lake, path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.ParquetFile(f"{lake.path}/messages/{path}").read().to_pylist()
    return [row | {"properties": dict(row["properties"])} for row in rows]


def write(lake: Lake, given: list[pa.RecordBatch], **options: int) -> list[dict[str, Any]]:
    """Write; what is said of each queue in each file."""
    made = list(write_sorted(given, lake, **options))
    assert all(batch.schema == arrow_schema(COLUMNS) for batch in made)
    return [row for batch in made for row in batch.to_pylist()]


def test_every_row_is_there_once_sorted_in_the_file_of_its_day_and_broker(lake: Lake) -> None:
    rows = messages(1000)
    found = write(lake, [pa.RecordBatch.from_pylist([], SCHEMA), *batches(rows)])
    there = []
    paths = {queue["name"] for queue in found}
    for path in paths:
        held = read(lake, path)
        assert held == sorted(held, key=lambda row: [row[name] for name in ORDER])
        (place,) = {(LakeFile(queue["name"], 0, 0).day, queue["broker"]) for queue in found if queue["name"] == path}
        assert {(day_of(row), row["brokerName"]) for row in held} == {place}
        there += held
    assert len({(LakeFile(queue["name"], 0, 0).day, queue["broker"]) for queue in found}) == len(paths) == 6
    assert sorted(there, key=lambda row: int(row["physicalOffset"])) == rows


def test_what_is_said_of_a_queue_is_what_its_file_holds(lake: Lake) -> None:
    for queue in write(lake, batches(messages(500, seed=1))):
        mine = (queue["topic"], queue["queue_id"])
        held = [row for row in read(lake, queue["name"]) if (row["topic"], row["queueId"]) == mine]
        times = [round(row["storeTimestamp"].timestamp() * 1000) for row in held if row["storeTimestamp"]]
        assert queue == {
            "name": queue["name"],
            "file_bytes": Path(lake.path, "messages", queue["name"]).stat().st_size,
            "file_crc32": zlib.crc32(Path(lake.path, "messages", queue["name"]).read_bytes()),
            "statistics": queue["statistics"],
            "broker": held[0]["brokerName"],
            "topic": mine[0],
            "queue_id": mine[1],
            "rows": len(held),
            "record_bytes": sum(row["size"] for row in held),
            "unreadable": 0,
            "first_offset": min(row["queueOffset"] for row in held),
            "last_offset": max(row["queueOffset"] for row in held),
            "start": min(row["physicalOffset"] for row in held),
            "end": max(row["physicalOffset"] + row["size"] for row in held),
            "first_time": min(times, default=None),
            "last_time": max(times, default=None),
        }


def test_more_than_may_be_held_is_sorted_by_parts(lake: Lake) -> None:
    rows = messages(1000, seed=2)
    paths = {queue["name"] for queue in write(lake, batches(rows), sorted_bytes=40_000)}
    assert len(paths) > 12
    there = [row for path in paths for row in read(lake, path)]
    assert sorted(there, key=lambda row: int(row["physicalOffset"])) == rows


def test_a_file_has_what_queries_skip_by(lake: Lake) -> None:
    write(lake, batches(messages(100)))
    for path in Path(lake.path).rglob("*.parquet"):
        group = pq.ParquetFile(path).metadata.row_group(0)
        columns = {column.path_in_schema: column for column in map(group.column, range(group.num_columns))}
        assert all(columns[name].has_column_index for name in (*ORDER, "storeTimestamp", "messageId"))
        assert not columns["body"].is_stats_set
        filtered = {name for name, column in columns.items() if column.bloom_filter_length}
        assert filtered == {"messageId", "keys.list.element"}
        assert columns["properties.key_value.key"].has_dictionary_page
        assert {column.compression for column in columns.values()} == {"ZSTD"}


def test_large_bodies_make_groups_and_pages_of_their_own_size(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_files, "GROUP_BYTES", 1 << 20)
    monkeypatch.setattr(lake_files, "PAGE_BYTES", 64 << 10)
    rows = messages(3000, seed=3)
    for row in rows:
        row |= {"brokerName": "left", "storeTimestamp": NIGHT, "body": bytes(40_000 if row["topic"] == "ä" else 10)}
    (path,) = {queue["name"] for queue in write(lake, batches(rows))}
    file = pq.ParquetFile(f"{lake.path}/messages/{path}").metadata
    groups = [file.row_group(number) for number in range(file.num_row_groups)]
    columns = [map(group.column, range(group.num_columns)) for group in groups]
    bodies = [c.total_uncompressed_size for group in columns for c in group if c.path_in_schema == "body"]
    assert sum(group.num_rows for group in groups) == len(rows)
    assert len(groups) > 30
    assert max(bodies) < 2 << 20


def test_a_file_and_a_commit_are_on_the_disk_when_they_are_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync = os.fsync

    def synced(handle: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{handle}").removeprefix(lake.path))
        sync(handle)

    monkeypatch.setattr(os, "fsync", synced)
    (queue,) = write(lake, batches(messages(1)))
    assert done == [f"/messages/{queue['name']}", "/messages/dt=2026-03-01", "/messages", ""]
    del done[:]
    lake.commit([entry(0, 100)], {})
    commits = [f"/messages/_delta_log/{version:020d}.json" for version in (0, 1)]
    assert (sorted(done[:2]), done[2:]) == (commits, ["/messages/_delta_log", "/messages", ""])


def test_statistics_are_what_the_table_says_of_a_file(lake: Lake) -> None:
    found = {queue["name"]: json.loads(queue["statistics"]) for queue in write(lake, batches(messages(300)))}
    for name, told in found.items():
        rows = read(lake, name)
        times = [row["storeTimestamp"] for row in rows if row["storeTimestamp"] is not None]
        assert told["numRecords"] == len(rows)
        assert told["nullCount"]["storeTimestamp"] == len(rows) - len(times)
        for most, ends in ((min, told["minValues"]), (max, told["maxValues"])):
            for column in ("topic", "queueId", "queueOffset", "physicalOffset"):
                assert ends[column] == most(row[column] for row in rows)
            assert ("storeTimestamp" in ends) == bool(times)
            if times:
                assert datetime.fromisoformat(ends["storeTimestamp"]) == most(times)
                assert ends["storeTimestamp"].endswith("Z")


def test_nothing_makes_no_file(lake: Lake) -> None:
    assert list(write_sorted([], lake)) == []
    assert list(Path(lake.path).rglob("*.parquet")) == []


def test_files_have_one_schema_whatever_a_source_knows_of_nulls(tmp_path: Path) -> None:
    keys = pa.list_(pa.field("element", pa.string(), nullable=False))
    properties = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
    types = {field.name: field.type for field in SCHEMA} | {"keys": keys, "properties": properties}
    strict = pa.schema([pa.field(name, of, nullable=name not in NEVER_NULL) for name, of in types.items()])
    lakes = []
    for number, schema in enumerate((strict, SCHEMA)):
        lake = Lake(str(tmp_path / str(number)))
        row = {
            **dict.fromkeys(("topic", "brokerName", "messageId", "bornHost", "storeHost"), "t"),
            **{name: 1 for name, of in types.items() if pa.types.is_integer(of)},
            **{"keys": ["k"], "properties": [("a", "b")], "body": b"", "tags": None},
            **dict.fromkeys(("bornTimestamp", "storeTimestamp"), 0),
        }
        list(write_sorted([pa.RecordBatch.from_pylist([row], schema)], lake))
        (path,) = (tmp_path / str(number)).rglob("*.parquet")
        lakes.append(pq.read_schema(path))
    assert lakes[0] == lakes[1]
