"""The lake's Parquet files: what goes in comes out, sorted, in one file per broker and day, and the sums agree."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.pipeline.arrow_types import arrow_schema
from penstock.pipeline.lake import Lake
from penstock.pipeline.lake_files import NO_DAY, QueueInFile, as_batches, from_row, write_sorted
from penstock.pipeline.schema import STORE_COLUMNS

SCHEMA = arrow_schema(STORE_COLUMNS)
NIGHT = datetime(2026, 3, 1, 23, 59, 59, 990_000, UTC)
ORDER = ("topic", "queueId", "queueOffset")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    (tmp_path / "lake" / "new").mkdir(parents=True)
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
    rows: list[dict[str, Any]] = pq.ParquetFile(f"{lake.path}/{path}").read().to_pylist()
    return [row | {"properties": dict(row["properties"])} for row in rows]


def test_every_row_is_there_once_sorted_in_the_file_of_its_day_and_broker(lake: Lake) -> None:
    rows = messages(1000)
    found = list(write_sorted(batches(rows), lake, "new"))
    there = []
    for path in {queue.path for queue in found}:
        held = read(lake, path)
        assert held == sorted(held, key=lambda row: [row[name] for name in ORDER])
        (place,) = {(queue.day, queue.broker) for queue in found if queue.path == path}
        assert {(day_of(row), row["brokerName"]) for row in held} == {place}
        there += held
    assert len({(queue.day, queue.broker) for queue in found}) == len({queue.path for queue in found}) == 6
    assert sorted(there, key=lambda row: int(row["physicalOffset"])) == rows


def test_what_is_said_of_a_queue_is_what_its_file_holds(lake: Lake) -> None:
    found = list(write_sorted(batches(messages(500, seed=1)), lake, "new"))
    for queue in found:
        assert (lake_file := Path(lake.path, queue.path)).stat().st_size == queue.file_bytes, lake_file
        held = [
            row for row in read(lake, queue.path) if (row["topic"], row["queueId"]) == (queue.topic, queue.queue_id)
        ]
        times = [round(row["storeTimestamp"].timestamp() * 1000) for row in held if row["storeTimestamp"]]
        assert queue == QueueInFile(
            path=queue.path,
            file_bytes=queue.file_bytes,
            day=day_of(held[0]),
            broker=held[0]["brokerName"],
            topic=queue.topic,
            queue_id=queue.queue_id,
            rows=len(held),
            record_bytes=sum(row["size"] for row in held),
            first_offset=min(row["queueOffset"] for row in held),
            last_offset=max(row["queueOffset"] for row in held),
            start=min(row["physicalOffset"] for row in held),
            end=max(row["physicalOffset"] + row["size"] for row in held),
            first_time=min(times, default=None),
            last_time=max(times, default=None),
        )
    told = [row for batch in as_batches(found) for row in batch.to_pylist()]
    assert [QueueInFile(**row) for row in told] == found
    assert from_row(_Row(told[0])) == found[0]


class _Row(dict[str, Any]):
    """As much of Spark's row as is used."""

    def asDict(self) -> dict[str, Any]:
        return dict(self)


def test_more_than_may_be_held_is_sorted_by_parts(lake: Lake) -> None:
    rows = messages(1000, seed=2)
    found = list(write_sorted(batches(rows), lake, "new", sorted_bytes=40_000))
    assert len({queue.path for queue in found}) > 12
    there = [row for path in {queue.path for queue in found} for row in read(lake, path)]
    assert sorted(there, key=lambda row: int(row["physicalOffset"])) == rows


def test_a_file_has_what_queries_skip_by(lake: Lake) -> None:
    list(write_sorted(batches(messages(100)), lake, "new"))
    for path in Path(lake.path, "new").iterdir():
        group = pq.ParquetFile(path).metadata.row_group(0)
        columns = {column.path_in_schema: column for column in map(group.column, range(group.num_columns))}
        assert all(columns[name].has_column_index for name in (*ORDER, "storeTimestamp", "messageId"))
        assert not columns["body"].is_stats_set
        assert columns["properties.key_value.key"].has_dictionary_page
        assert {column.compression for column in columns.values()} == {"ZSTD"}


def test_nothing_makes_no_file(lake: Lake) -> None:
    assert list(write_sorted([], lake, "new")) == []
    assert list(Path(lake.path, "new").iterdir()) == []
