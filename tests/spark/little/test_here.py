"""Jobs in a short session, whose work the driver does: what holds with workers holds here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.bench.spark.generate import generate
from penstock.pipeline.jobs import stats
from penstock.pipeline.jobs.framework import here
from penstock.proto.errors import Corrupt
from tests.spark.test_jobs import store as store
from tests.spark.test_jobs import test_a_sound_store_passes_and_a_wrong_queue_entry_is_named as test_verify
from tests.spark.test_jobs import test_a_store_is_archived_once_and_searched as test_archive_and_query
from tests.spark.test_jobs import test_an_audit_judges_a_history as test_audit
from tests.spark.test_jobs import test_damage_and_impossible_numbers_are_named_and_end_no_job as test_damage
from tests.spark.test_jobs import test_rebuilt_queues_are_those_that_one_machine_makes as test_rebuild
from tests.spark.test_jobs import test_statistics_count_what_is_there as test_stats

__all__ = [
    "store",
    "test_archive_and_query",
    "test_audit",
    "test_damage",
    "test_rebuild",
    "test_stats",
    "test_verify",
]


def test_rows_that_fill_the_memory_are_left_to_workers(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(tmp_path / "store", records=100, body_bytes=50, queues=1, segment_bytes=1 << 20)
    monkeypatch.setattr(here, "BYTES_MAX", 100)
    options = {"storePath": str(tmp_path / "store")}
    assert here.store_here(spark, options, "topic string, body binary") is None
    monkeypatch.undo()
    assert here.store_here(spark, options, "topic string, body binary").count() == 100


def test_rows_behind_an_empty_batch_are_there(spark: Any) -> None:
    full = pa.RecordBatch.from_pydict({"number": pa.array([1, 2], pa.int64())})
    frame = here.frame_here(spark, [full.slice(0, 0), full, full.slice(0, 0), full], "number bigint")
    assert [row["number"] for row in frame.collect()] == [1, 2, 1, 2]
    assert here.frame_here(spark, [full.slice(0, 0)], "number bigint").collect() == []


def test_damage_that_ends_a_job_is_told_as_such(spark: Any, tmp_path: Path) -> None:
    generate(tmp_path / "store", records=100, body_bytes=50, queues=1, segment_bytes=1 << 20)
    with open(tmp_path / "store" / "commitlog" / f"{0:020d}", "r+b") as file:
        file.seek(20_000)
        file.write(b"\xff" * 40)
    with pytest.raises(Corrupt, match="store at 19952"):
        stats.run(spark, stats.Config(store=(str(tmp_path / "store"),)))
