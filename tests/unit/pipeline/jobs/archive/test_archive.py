"""What an archive takes, keeps, and tells, its tasks run here one after the other, without Spark."""

from __future__ import annotations

import shutil
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from penstock.formats.record.layout import Record, SysFlag
from penstock.pipeline.jobs import query
from penstock.pipeline.jobs.archive import job as archive
from penstock.pipeline.jobs.archive import logs as archive_logs
from penstock.pipeline.jobs.framework.report import Report
from penstock.pipeline.lake.entries import Entry, LakeFile, holes, reach
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.stores.directory import epochs_of, list_store
from penstock.pipeline.stores.model import Damage, Store
from penstock.proto.errors import ConfigError, Corrupt, StorageError
from tests.support import golden
from tests.unit.pipeline.jobs.conftest import SEGMENT_BYTES, list_stores
from tests.unit.pipeline.jobs.test_jobs_without_spark import entry
from tests.unit.pipeline.stores.test_store_splits import write_log

pytestmark = pytest.mark.usefixtures("here")


def run(store: Path | str, lake: Lake, **options: Any) -> Report:
    return archive.run(None, archive.Config(store=(str(store),), lake=lake.root, **options))


def content(lake: Lake) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path(lake.path).rglob("*") if path.is_file()}


def problems(report: Report) -> list[str]:
    assert report.ok == (not report.problems)
    return [problem["problem"] for problem in report.problems]


def lose(lake: Lake, entry: Entry) -> None:
    """The files of an entry, out of the table and off the disk."""
    for file in entry.files:
        Path(lake.path, "messages", file.name).unlink()
    DeltaTable(f"{lake.path}/messages").repair()


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
    assert content(lake) == after[0]
    assert problems(run(store, lake, check=True)) == []


def test_an_entry_is_replaced_by_one_that_has_more_of_the_log_only(lake: Lake) -> None:
    old = replace(entry(0, 90), sealed=False)
    other = (LakeFile("dt=2026-03-01/y.parquet", 10, 8),)
    assert lake.commit([old, entry(100, 200)], {})
    for refused in (
        replace(old, files=other),
        replace(old, endPhysicalOffset=80, files=other),
        replace(old, endPhysicalOffset=80, sealed=True, files=other),
    ):
        assert not lake.commit([refused], {})
        assert lake.entries() == [old, entry(100, 200)]
    new = replace(old, sealed=True, files=other)
    assert lake.commit([new, entry(200, 300)], {}) == [entry(200, 300), new]
    assert not lake.commit([replace(old, endPhysicalOffset=100)], {})
    assert lake.entries() == [new, entry(100, 200), entry(200, 300)]
    assert len(DeltaTable(f"{lake.path}/messages").file_uris()) == 3


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


def test_the_check_tells_of_holes_between_entries_whose_log_files_are_gone(
    store: Path, lake: Lake, tmp_path: Path
) -> None:
    trimmed = tmp_path / "trimmed"
    shutil.copytree(store, trimmed)
    run(trimmed, lake)
    for path in log_files(trimmed)[:2]:
        path.unlink()
    assert problems(run(trimmed, lake, check=True)) == []
    lose(lake, lake.entries()[1])
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
    for path in Path(lake.path, "messages", "_delta_log").iterdir():
        said = f'"headCrc32":{lake.entries()[1].headCrc32},'
        path.write_text(path.read_text().replace(said, '"headCrc32":1,'))
    (problem,) = problems(run(replica, lake, check=True, up_to="end"))
    assert problem.startswith("the log file's first 4096 bytes have the checksum")


def test_a_log_file_that_is_only_partly_archived_is_told_by_the_check(store: Path, lake: Lake, tmp_path: Path) -> None:
    run(copied(store, tmp_path / "replica", 2, 30_000), lake, tail=True, up_to="end")
    end = lake.entries()[1].endPhysicalOffset
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
    (found,) = lake.entries()
    assert (found.damages, found.rows, report.figures["damages"]) == (2, 5, 2)
    (named,) = (table for table in report.tables if "cannot be decompressed" in table.title)
    assert named.rows == [["b", 0, "t", 1, 1], ["b", 0, "t", 3, 1]]
    (file,) = found.files
    written = pq.ParquetFile(f"{lake.path}/messages/{file.name}").read()
    assert written["body"].to_pylist() == bodies
    assert "corrupt" not in written.column_names


def test_entries_say_which_epochs_wrote_the_log_file(lake: Lake, tmp_path: Path) -> None:
    root = golden.unpack("ha/controller/broker-1", tmp_path / "store", only=("commitlog", "epochFileCheckpoint"))
    entries = ((1, 0), (2, 12_712), (3, 26_618))
    assert epochs_of(list_store(str(root))) == entries
    run(root, lake, tail=True, up_to="end")
    found = lake.entries()[-1]
    assert lake.entries()[0].epochs == entries[:2]
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
    def tail() -> Entry:
        return lake.entries()[-1]

    run(copied(store, tmp_path / "a", 2, 20_000), lake, tail=True, up_to="end")
    files = [tail().files]
    run(copied(store, tmp_path / "b", 2, 40_000), lake, tail=True, up_to="end")
    files.append(tail().files)
    run(copied(store, tmp_path / "c", 2), lake, tail=True, up_to="end")
    old = [Path(lake.path, "messages", file.name) for former in files for file in former]
    left = old[0].with_name("left-by-a-killed-job.parquet")
    left.write_bytes(b"half")
    assert problems(run(store, lake)) == []
    assert all(path.exists() for path in (*old, left))
    monkeypatch.setattr(archive, "KEPT_HOURS", 0)
    run(store, lake)
    assert not any(path.exists() for path in (*old, left))
    assert problems(run(store, lake, check=True)) == []


def test_a_query_is_told_that_a_file_was_replaced_while_it_read(lake: Lake) -> None:
    lake.commit([entry(0, 100)], {})
    name = f"dt=2026-03-01/{7:032x}.parquet"
    with (
        pytest.raises(
            StorageError, match=f"messages/{name}: an archive replaced the file while it was read: run the job again"
        ),
        query.naming_files(lake.root),
    ):
        raise RuntimeError(f"File file:{lake.root}/messages/{name} does not exist")
    lake.commit([replace(entry(100, 200), files=(LakeFile(name, 10, 7),))], {})
    with pytest.raises(Corrupt, match="Spark cannot read it: restore it"), query.naming_files(lake.root):
        raise RuntimeError(f"File file:{lake.root}/messages/{name} does not exist")


def test_a_query_of_a_topic_that_the_lake_has_not_names_the_nearest(lake: Lake) -> None:
    lake.commit([replace(entry(0, 100), queues=(("orders", 0, 1, 5, 5),))], {})
    with pytest.raises(ConfigError, match=r"no message of the topic 'order' .did you mean 'orders'.*; it has 1 topics"):
        query.run(None, query.Config(lake=lake.root, topic="order"))
    empty = Lake(f"{lake.root}2")
    empty.commit([entry(0, 100)], {})
    DeltaTable(f"{empty.path}/messages").delete()
    with pytest.raises(ConfigError, match="lake2: an empty lake"):
        query.run(None, query.Config(lake=empty.root))


def test_signs_of_patterns_in_a_lakes_path_stand_for_themselves(tmp_path: Path) -> None:
    lake = Lake(f"{tmp_path}/a[b]{{c,d}}*e")
    assert lake.paths_of(entry(0, 100).files) == [
        f"file://{tmp_path}/a\\[b\\]\\{{c,d\\}}\\*e/messages/dt=2026-03-01/0-100.parquet",
    ]


@pytest.mark.parametrize("count", [0, -3])
def test_commits_of_no_log_files_are_refused(store: Path, lake: Lake, count: int) -> None:
    with pytest.raises(ConfigError, match=f"segments_per_commit is {count}: 1 or more"):
        archive.check(archive.Config(store=(str(store),), lake=lake.root, segments_per_commit=count))
