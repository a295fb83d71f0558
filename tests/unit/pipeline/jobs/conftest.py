"""Stores and lakes for the tests of jobs, and tasks that run in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.bench.spark.generate import generate
from penstock.pipeline.jobs.archive import check as archive_check
from penstock.pipeline.jobs.archive import job as archive
from penstock.pipeline.jobs.archive import logs as archive_logs
from penstock.pipeline.jobs.archive import topic as archive_topic
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.lake.lake_files import COLUMNS
from penstock.pipeline.spark.arrow_types import arrow_schema
from penstock.pipeline.stores.directory import list_store
from penstock.pipeline.stores.model import Store

SEGMENT_BYTES = 65_536


class Rows:
    """What a frame has, as the job asks for it."""

    def __init__(self, batches: list[pa.RecordBatch], columns: object) -> None:
        self._batches = batches
        self._columns = columns

    def toArrow(self) -> pa.Table:
        return pa.Table.from_batches(self._batches, arrow_schema(COLUMNS))

    def collect(self) -> list[dict[str, Any]]:
        return [row for batch in self._batches for row in batch.to_pylist()]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks run in this process."""

    def one_task_each(
        spark: object, items: Sequence[Any], work: Callable[[Any], Iterable[pa.RecordBatch]], columns: object
    ) -> Rows:
        return Rows([batch for item in items for batch in work(item)], columns)

    for module in (archive, archive_check, archive_logs, archive_topic):
        monkeypatch.setattr(module, "one_task_each", one_task_each)
    for module in (archive, archive_topic):
        monkeypatch.setattr(module, "as_struct", lambda columns: columns)
    monkeypatch.setattr(archive, "list_stores", list_stores)


def list_stores(job: str, roots: tuple[str, ...], names: tuple[str, ...], up_to: str) -> list[Store]:
    return [list_store(root, "b", up_to=up_to) for root in roots]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four log files, of which the last is half full."""
    root = tmp_path_factory.mktemp("stores") / "store"
    generate(root, records=800, body_bytes=100, queues=3, segment_bytes=SEGMENT_BYTES)
    assert len(list((root / "commitlog").iterdir())) == 4
    return root
