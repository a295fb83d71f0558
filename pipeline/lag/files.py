"""The rows in the lake: one file for each sample, named after the query and its batch.

::

    lag/dt=2026-03-01/<query id>-0000000042-00000.parquet

A batch that is repeated writes the same name again, whole or not at all, so rows are never there twice; several jobs
may write to one lake. The day (UTC) is that of the sample's ``interval``, which the checkpoint keeps. Spark's own sink
would not do: its list of files belongs to a directory, and a second job there would have its batches passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from ..lake import Lake

FOLDER = "lag"
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


def count_rows(lake: Lake, paths: Iterable[str]) -> int:
    """How many rows they have."""
    return sum(pq.read_metadata(path, filesystem=lake.files).num_rows for path in paths)
