"""What an archive takes, keeps, and tells, its tasks run here one after the other, without Spark."""

from __future__ import annotations

import json
import os
import shutil
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.formats.record.layout import Record, SysFlag
from penstock.pipeline.jobs import query
from penstock.pipeline.jobs.archive import job as archive
from penstock.pipeline.jobs.archive import logs as archive_logs
from penstock.pipeline.jobs.archive import topic as archive_topic
from penstock.pipeline.jobs.framework.report import Report
from penstock.pipeline.lake.lake import Lake, Manifest, holes, reach
from penstock.pipeline.lake.lake_files import COLUMNS
from penstock.pipeline.spark.arrow_types import arrow_schema
from penstock.pipeline.stores.directory import epochs_of, list_store
from penstock.pipeline.stores.model import Damage, Store
from penstock.proto.errors import ConfigError, Corrupt, StorageError
from tests.support import golden
from tests.unit.pipeline.jobs.conftest import SEGMENT_BYTES, list_stores
from tests.unit.pipeline.jobs.test_jobs_without_spark import manifest
from tests.unit.pipeline.stores.test_store_splits import write_log

pytestmark = pytest.mark.usefixtures("here")


def run(store: Path | str, lake: Lake, **options: Any) -> Report:
    return archive.run(None, archive.Config(store=(str(store),), lake=lake.root, **options))


def content(lake: Lake) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path(lake.path).rglob("*") if path.is_file()}


def problems(report: Report) -> list[str]:
    assert report.ok == (not report.problems)
    return [problem["problem"] for problem in report.problems]


def log_files(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def copied(store: Path, root: Path, files: int = 4, last_bytes: int = SEGMENT_BYTES) -> Path:
    """The first log files of a store, the last of them only as far as told."""
    shutil.copytree(store, root)
    for path in log_files(root)[files:]:
        path.unlink()
    last = log_files(root)[-1]
    last.write_bytes(last.read_bytes()[:last_bytes].ljust(SEGMENT_BYTES, b"\0"))
    (root / "abort").touch()  # as of a store that is open
    return root


@pytest.mark.parametrize("last_bytes", [2_000, 30_000])
def test_the_tail_of_a_replica_that_follows_replaces_nothing(
    store: Path, lake: Lake, tmp_path: Path, last_bytes: int
) -> None:
    run(store, lake, tail=True)
    before = content(lake)
    for files in (2, 4):
        replica = copied(store, tmp_path / str(files), files, last_bytes)
        report = run(replica, lake, tail=True, up_to="end")
        assert (report.ok, report.figures["segments"]) == (True, 0)
        assert content(lake) == before


def test_a_job_with_an_older_listing_replaces_nothing(
    store: Path, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, write = copied(store, tmp_path / "replica", 2, 30_000), archive._write
    after: list[dict[Path, bytes]] = []

    def overtaken(*given: Any) -> pa.Table:
        monkeypatch.setattr(archive, "_write", write)
        run(store, lake, tail=True)
        after.append(content(lake))
        return write(*given)

    monkeypatch.setattr(archive, "_write", overtaken)
    report = run(replica, lake, tail=True, up_to="end")
    assert report.figures["segments"] == 0
    assert {path: data for path, data in content(lake).items() if "_staging" not in path.parts} == after[0]
    assert problems(run(store, lake, check=True)) == []


def test_a_manifest_is_replaced_by_one_that_says_more_only(lake: Lake) -> None:
    old = replace(manifest(0, 90), sealed=False)
    other = (("messages/y.parquet", 10),)
    assert lake.commit(old)
    for refused in (
        replace(old, files=other),
        replace(old, endPhysicalOffset=80, files=other),
        replace(old, endPhysicalOffset=80, sealed=True, files=other),
    ):
        assert not lake.commit(refused)
        assert lake.manifests() == [old]
    assert lake.commit(replace(old, sealed=True, files=other))
    assert not lake.commit(replace(old, endPhysicalOffset=100))
    assert lake.manifests() == [replace(old, sealed=True, files=other, replaced=(("messages/x.parquet", 4),))]


def test_a_second_run_over_the_same_topics_is_told_of_the_first(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.files.create_dir(lake.path)
    values = dict.fromkeys(COLUMNS, 1) | {"path": "_staging/x", "day": "d", "broker": "b", "topic": "t"}

    def write(frame: object, root: str, folder: str) -> pa.Table:
        Path(lake.path, "_staging/x").write_text("rows")
        return pa.Table.from_pylist([values], arrow_schema(COLUMNS))

    monkeypatch.setattr(archive_topic, "_write", write)
    (first,) = archive_topic._archive(None, lake, [])
    with pytest.raises(StorageError, match=r"0\.json: another job has archived these topics .* run it again"):
        archive_topic._archive(None, lake, [])
    assert lake.manifests() == [first]
    assert {path.name for path in content(lake) if path.suffix == ".parquet"} == {Path(first.files[0][0]).name}


def test_log_files_that_are_missing_are_told_by_archive_and_check(store: Path, lake: Lake, tmp_path: Path) -> None:
    holed = tmp_path / "holed"
    shutil.copytree(store, holed)
    log_files(holed)[1].unlink()
    text = f"neither the store nor the lake has the bytes {SEGMENT_BYTES} to {2 * SEGMENT_BYTES} of the log: archive"
    report = run(holed, lake)
    (problem,) = problems(report)
    assert problem.startswith(text)
    assert problem.endswith(f"until then the watermark stays at {SEGMENT_BYTES}")
    assert report.figures["watermarks"] == {"b": SEGMENT_BYTES}
    (problem,) = problems(run(holed, lake, check=True))
    assert problem.startswith(text)
    assert problems(run(store, lake)) == []
    assert run(holed, lake).figures["watermarks"] == {"b": 3 * SEGMENT_BYTES}
    assert problems(run(holed, lake, check=True)) == []


def test_the_check_tells_of_holes_between_manifests_whose_log_files_are_gone(
    store: Path, lake: Lake, tmp_path: Path
) -> None:
    trimmed = tmp_path / "trimmed"
    shutil.copytree(store, trimmed)
    run(trimmed, lake)
    for path in log_files(trimmed)[:2]:
        path.unlink()
    assert problems(run(trimmed, lake, check=True)) == []
    Path(lake.path, lake.manifests()[1].name).unlink()
    (problem,) = problems(run(trimmed, lake, check=True))
    assert problem.startswith(f"neither the store nor the lake has the bytes {SEGMENT_BYTES} to {2 * SEGMENT_BYTES} of")
    assert problems(run(trimmed, lake)) == []  # nothing that a later run could archive


def test_records_that_a_closed_log_has_lost_are_told_unless_the_lake_has_them(
    store: Path, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(*given: Any) -> list[Store]:
        (found,) = list_stores(*given)
        return [replace(found, gaps=(Damage(found.end, found.end, "records are missing: the log was closed later"),))]

    monkeypatch.setattr(archive, "list_stores", listed)
    torn = copied(store, tmp_path / "torn", 2, 30_000)
    for check in (False, True):
        problem = problems(run(torn, lake, tail=True, check=check, up_to="end"))[-1]
        assert problem.startswith("records are missing: the log was closed later: archive a replica that has them")
    monkeypatch.setattr(archive, "list_stores", list_stores)
    run(store, lake)
    monkeypatch.setattr(archive, "list_stores", listed)
    assert problems(run(torn, lake, tail=True, up_to="end")) == []


def test_holes_are_what_no_range_has() -> None:
    assert list(holes([(20, 30), (0, 10), (5, 12), (40, 50)], 0)) == [(12, 20), (30, 40)]
    assert list(holes([(20, 30)], 25)) == []
    assert list(holes([], 7)) == []
    assert (reach([(0, 10), (10, 20), (30, 40)], 5), reach([], 7), reach([(8, 9)], 7)) == (20, 7, 7)


def test_the_check_compares_a_replica_that_follows_as_far_as_both_have_the_log(
    store: Path, lake: Lake, tmp_path: Path
) -> None:
    run(store, lake, tail=True)
    replica = copied(store, tmp_path / "replica", 2, 30_000)
    report = run(replica, lake, check=True, up_to="end")
    assert problems(report) == []
    assert report.figures["checked_segments"] == 1
    path = Path(lake.path, lake.manifests()[1].name)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"headCrc32": 1}))
    (problem,) = problems(run(replica, lake, check=True, up_to="end"))
    assert problem.startswith("the log file's first 4096 bytes have the checksum")


def test_a_log_file_that_is_only_partly_archived_is_told_by_the_check(store: Path, lake: Lake, tmp_path: Path) -> None:
    run(copied(store, tmp_path / "replica", 2, 30_000), lake, tail=True, up_to="end")
    end = lake.manifests()[1].endPhysicalOffset
    assert problems(run(store, lake, check=True)) == [
        f"the log file is archived up to {end} only",
        "the log file is not archived",
    ]


@pytest.mark.parametrize("check", [False, True])
def test_a_log_file_that_retention_takes_during_the_job_is_archived_already(
    store: Path, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: bool
) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(store, kept)
    run(kept, lake)

    def listed(*given: Any) -> list[Store]:
        found = list_stores(*given)
        log_files(kept)[0].unlink()
        return found

    monkeypatch.setattr(archive, "list_stores", listed)
    assert problems(run(kept, lake, check=check)) == []


def test_a_log_file_that_is_deleted_before_it_is_archived_is_told(
    store: Path, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, write = tmp_path / "kept", archive._write
    shutil.copytree(store, kept)

    def deleted(*given: Any) -> pa.Table:
        monkeypatch.setattr(archive, "_write", write)
        log_files(kept)[0].unlink()
        return write(*given)

    monkeypatch.setattr(archive, "_write", deleted)
    report = run(kept, lake)
    (problem,) = problems(report)
    assert problem.startswith(f"{kept}/commitlog/{0:020d}: deleted before it was archived")
    assert report.figures["segments"] == 2
    assert report.figures["watermarks"] == {"b": 0}


def test_a_body_that_cannot_be_decompressed_is_counted_named_and_kept_as_stored(lake: Lake, tmp_path: Path) -> None:
    bodies = [b"plain", b"no zlib", b"plain too", b"nor this", b"sound"]
    stored = [*bodies[:4], zlib.compress(bodies[4])]
    records = [
        Record(topic="t", body=body, queue_id=number, sys_flag=0 if b"plain" in body else SysFlag.COMPRESSED)
        for number, body in enumerate(stored)
    ]
    write_log(tmp_path / "store", records)
    with pytest.raises(Corrupt):
        run(tmp_path / "store", lake, tail=True)
    report = run(tmp_path / "store", lake, tail=True, on_corrupt="skip")
    (found,) = lake.manifests()
    assert (found.damages, found.rows, report.figures["damages"]) == (2, 5, 2)
    (named,) = (table for table in report.tables if "cannot be decompressed" in table.title)
    assert named.rows == [["b", 0, "t", 1, 1], ["b", 0, "t", 3, 1]]
    ((name, _),) = found.files
    written = pq.ParquetFile(f"{lake.path}/{name}").read()
    assert written["body"].to_pylist() == bodies
    assert "corrupt" not in written.column_names


def test_manifests_say_which_epochs_wrote_the_log_file(lake: Lake, tmp_path: Path) -> None:
    root = golden.unpack("ha/controller/broker-1", tmp_path / "store", only=("commitlog", "epochFileCheckpoint"))
    entries = ((1, 0), (2, 12_712), (3, 26_618))
    assert epochs_of(list_store(str(root))) == entries
    run(root, lake, tail=True, up_to="end")
    found = lake.manifests()[-1]
    assert lake.manifests()[0].epochs == entries[:2]
    assert found.epochs == entries[1:]
    path = root / "epochFileCheckpoint"
    path.write_bytes(path.read_bytes().replace(b"12712", b"12713"))
    assert epochs_of(list_store(str(root))) is None
    path.unlink()
    assert epochs_of(list_store(str(root))) is None


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (0, 100, None),
        (100, 150, ((2, 100),)),
        (100, 201, ((2, 100), (5, 200))),
        (150, 200, ((2, 100),)),
        (200, 300, ((5, 200),)),
        (300, 400, ((7, 300),)),
    ],
)
def test_the_epochs_of_a_range_are_those_that_wrote_a_byte_of_it(
    start: int, end: int, found: tuple[tuple[int, int], ...] | None
) -> None:
    assert archive_logs.epochs_within(((2, 100), (5, 200), (6, 300), (7, 300)), start, end) == found
    assert archive_logs.epochs_within(None, start, end) is None


def test_files_of_a_replaced_tail_stay_until_queries_are_done(
    store: Path, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tail() -> Manifest:
        return lake.manifests()[-1]

    run(copied(store, tmp_path / "a", 2, 20_000), lake, tail=True, up_to="end")
    files = [tail().files]
    run(copied(store, tmp_path / "b", 2, 40_000), lake, tail=True, up_to="end")
    files.append(tail().files)
    run(copied(store, tmp_path / "c", 2), lake, tail=True, up_to="end")
    old = [name for former in files for name, _ in former]
    assert [name for name, _ in tail().replaced] == old
    assert all(Path(lake.path, name).exists() for name in old)
    assert problems(run(store, lake)) == []
    assert all(Path(lake.path, name).exists() for name in old)
    monkeypatch.setattr(archive, "REPLACED_S", -1)
    run(store, lake)
    assert not any(Path(lake.path, name).exists() for name in old)
    assert all(one.replaced == () for one in lake.manifests())
    assert problems(run(store, lake, check=True)) == []


def test_a_query_is_told_that_a_file_was_replaced_while_it_read(lake: Lake) -> None:
    lake.commit(manifest(0, 100))
    name = f"messages/dt=2026-03-01/broker=b/{0:020d}-00000-0123abcd.parquet"
    with (
        pytest.raises(StorageError, match=f"{name}: an archive replaced the file while it was read: run the job again"),
        query.naming_files(lake.root),
    ):
        raise RuntimeError(f"File file:{lake.root}/{name} does not exist")
    lake.commit(replace(manifest(100, 200), files=((name, 10),)))
    with pytest.raises(Corrupt, match="Spark cannot read it: restore it"), query.naming_files(lake.root):
        raise RuntimeError(f"File file:{lake.root}/{name} does not exist")


def test_a_query_of_a_topic_that_no_manifest_has_names_the_nearest(lake: Lake) -> None:
    lake.commit(replace(manifest(0, 100), queues=(("orders", 0, 1, 5, 5),)))
    with pytest.raises(ConfigError, match=r"no message of the topic 'order' .did you mean 'orders'.*; it has 1 topics"):
        query.run(None, query.Config(lake=lake.root, topic="order"))
    empty = Lake(f"{lake.root}2")
    empty.files.create_dir(f"{empty.path}/manifests", recursive=True)
    with pytest.raises(ConfigError, match="lake2: an empty lake"):
        query.run(None, query.Config(lake=empty.root))


def test_signs_of_patterns_in_a_lakes_path_stand_for_themselves(tmp_path: Path) -> None:
    lake = Lake(f"{tmp_path}/a[b]{{c,d}}*?\\e")
    assert lake.paths_of([manifest(0, 100)]) == [
        f"file://{tmp_path}/a\\[b\\]\\{{c,d\\}}\\*\\?\\\\e/messages/x.parquet",
    ]


@pytest.mark.parametrize("count", [0, -3])
def test_commits_of_no_log_files_are_refused(store: Path, lake: Lake, count: int) -> None:
    with pytest.raises(ConfigError, match=f"segments_per_commit is {count}: 1 or more"):
        archive.check(archive.Config(store=(str(store),), lake=lake.root, segments_per_commit=count))


def test_replaced_files_of_a_manifest_are_forgotten_one_by_one(lake: Lake) -> None:
    now_ms = time.time_ns() // 1_000_000
    old, new = "messages/old.parquet", "messages/new.parquet"
    for name in (old, new):
        Path(lake.path, name).parent.mkdir(parents=True, exist_ok=True)
        Path(lake.path, name).write_text("rows")
        os.utime(Path(lake.path, name), (0, 0))
    lake.commit(replace(manifest(0, 100), replaced=((old, now_ms - 60_000), (new, now_ms - 1_000))))
    lake.sweep_replaced(30)
    assert (Path(lake.path, old).exists(), Path(lake.path, new).exists()) == (False, True)
    assert lake.manifests()[0].replaced == ((new, now_ms - 1_000),)
