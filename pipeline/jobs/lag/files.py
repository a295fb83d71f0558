"""The rows in the lake: one file for each sample, named after the query and its batch.

::

    lag/dt=2026-03-01/<query id>-0000000042-00000.parquet

A batch that is repeated writes the same name again, whole or not at all, so rows are never there twice; several jobs
may write to one lake. The day (UTC) is that of the sample's ``interval``, which the checkpoint keeps. Spark's own sink
would not do: its list of files belongs to a directory, and a second job there would have its batches passed over.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from penstock.proto.errors import ConfigError

from ...lake.lake import Lake
from ...stores.files import open_file_system

log = logging.getLogger(__name__)

FOLDER = "lag"
PLACES_FILE = "penstock-places.json"
"""In a checkpoint: every group, topic and broker group that was ever seen, whoever has forgotten it since."""
_FILE = re.compile(r"(?P<query>[0-9a-f-]{36})-(?P<batch>\d{10})-\d{5}\.parquet")


def path_of(query: str, batch: int, partition: int, interval: datetime) -> str:
    """Where in the lake the rows of a task are."""
    return f"{FOLDER}/dt={interval.astimezone(UTC):%Y-%m-%d}/{query}-{batch:010d}-{partition:05d}.parquet"


def write_rows(lake: Lake, batches: Iterable[pa.RecordBatch], query: str, batch: int, partition: int, task: int) -> int:
    """Write what a task has of a micro-batch in place of what an earlier attempt wrote; the rows.

    ``task`` is the attempt's own number: one that lives on writes to another draft. Without rows nothing is written.
    """
    held = [each for each in batches if len(each)]
    if not held:
        return 0
    table = pa.Table.from_batches(held)
    path = path_of(query, batch, partition, table["interval"][0].as_py())
    folder, _, name = path.rpartition("/")
    lake.files.create_dir(f"{lake.path}/{folder}", recursive=True)
    draft = f"{folder}/.{name}.{task}"
    pq.write_table(table, f"{lake.path}/{draft}", filesystem=lake.files, compression="zstd")
    lake.sync(draft)
    lake.move(draft, path)
    return len(table)


def files_of(lake: Lake, query: str, since: int, days: Iterable[date]) -> list[str]:
    """The files that a query wrote for its batches from ``since`` on, in their order."""
    found = []
    for day in days:
        selector = fs.FileSelector(f"{lake.path}/{FOLDER}/dt={day:%Y-%m-%d}", allow_not_found=True)
        for info in lake.files.get_file_info(selector):
            name = _FILE.fullmatch(info.base_name)
            if name and name["query"] == query and int(name["batch"]) >= since:
                found.append((info.base_name, info.path))
    return [path for _, path in sorted(found)]


def days_between(start_ms: int, end_ms: int) -> list[date]:
    """The days (UTC) of a stretch of time, both ends among them."""
    first, last = (datetime.fromtimestamp(at / 1000, UTC).date() for at in (start_ms, end_ms))
    return [first + timedelta(number) for number in range((last - first).days + 1)]


def read_files(lake: Lake, paths: Iterable[str], columns: list[str]) -> list[dict[str, Any]]:
    """Their rows."""
    tables = [pq.ParquetFile(path, filesystem=lake.files).read(columns) for path in paths]
    return pa.concat_tables(tables).to_pylist() if tables else []


def read_sums(lake: Lake, paths: Iterable[str]) -> dict[int, dict[tuple[str, str, str], int]]:
    """By time (ms): the lag by group, topic and broker group. A file is held at a time."""
    names = ["interval", "consumerGroup", "topic", "brokerName"]
    found: dict[int, dict[tuple[str, str, str], int]] = {}
    for path in paths:
        table = pq.ParquetFile(path, filesystem=lake.files).read([*names, "lag"])
        for row in table.group_by(names).aggregate([("lag", "sum")]).to_pylist():
            at = round(row["interval"].timestamp() * 1000)
            found.setdefault(at, {})[row["consumerGroup"], row["topic"], row["brokerName"]] = row["lag_sum"]
    return found


def read_places(checkpoint: str) -> set[tuple[str, str, str]]:
    """What :func:`keep_places` has kept; nothing where only Spark knows the file system.

    Raises:
        ConfigError: the file is damaged.
    """
    try:
        files, folder = open_file_system(checkpoint)
        with files.open_input_stream(f"{folder}/{PLACES_FILE}") as file:
            text = file.read()
    except FileNotFoundError:
        return set()
    except (ConfigError, OSError) as error:
        log.warning("places seen before not read checkpoint=%s error=%s", checkpoint, error)
        return set()
    try:
        return {(group, topic, broker) for group, topic, broker in json.loads(text)}
    except (ValueError, TypeError) as error:
        raise ConfigError(f"lag: {folder}/{PLACES_FILE} is damaged ({error}): delete it") from error


def keep_places(checkpoint: str, places: Iterable[tuple[str, str, str]]) -> None:
    """Keep these in place of what was kept, whole or not at all; nothing where only Spark knows the file system."""
    try:
        files, folder = open_file_system(checkpoint)
        draft = f"{folder}/.{PLACES_FILE}.{os.getpid()}"
        with files.open_output_stream(draft) as file:
            file.write(json.dumps(sorted(places), indent=0).encode())
        files.move(draft, f"{folder}/{PLACES_FILE}")
    except (ConfigError, OSError) as error:
        log.warning("places seen not kept checkpoint=%s error=%s", checkpoint, error)


def count_rows(lake: Lake, paths: Iterable[str]) -> int:
    """How many rows they have."""
    return sum(pq.read_metadata(path, filesystem=lake.files).num_rows for path in paths)
