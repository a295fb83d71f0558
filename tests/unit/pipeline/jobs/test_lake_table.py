"""The lake's Delta table: two jobs at once, kills between the steps, other programs that read it or change it."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from penstock.pipeline.jobs import query
from penstock.pipeline.jobs.archive import job as archive
from penstock.pipeline.lake import lake as lakes
from penstock.pipeline.lake.entries import LakeFile
from penstock.pipeline.lake.lake import Lake
from penstock.proto.errors import ConfigError, Corrupt, StorageError
from tests.unit.pipeline.jobs.archive.test_archive import copied, lose, problems, run
from tests.unit.pipeline.jobs.conftest import SEGMENT_BYTES
from tests.unit.pipeline.jobs.test_jobs_without_spark import entry

pytestmark = pytest.mark.usefixtures("here")


def table(lake: Lake) -> DeltaTable:
    return DeltaTable(f"{lake.path}/messages")


def positions(lake: Lake) -> list[int]:
    """Of all messages, as another program reads the table."""
    return sorted(table(lake).to_pyarrow_table(columns=["physicalOffset"])["physicalOffset"].to_pylist())


def commits(lake: Lake) -> list[Path]:
    return sorted(Path(lake.path, "messages", "_delta_log").glob("*.json"))


@pytest.fixture
def archived(store: Path, lake: Lake) -> list[int]:
    """The positions of a lake that has all of the store."""
    run(store, lake, tail=True)
    found = positions(lake)
    assert len(found) == len(set(found)) == 800
    return found


def test_a_repeated_run_adds_nothing(store: Path, lake: Lake, archived: list[int]) -> None:
    version = table(lake).version()
    report = run(store, lake, tail=True)
    assert (report.figures["segments"], table(lake).version(), positions(lake)) == (0, version, archived)


def test_of_two_jobs_that_commit_the_same_log_file_one_adds_it(store: Path, tmp_path: Path, lake: Lake) -> None:
    for round_ in range(5):
        lakes = [Lake(f"{lake.path}-{round_}") for _ in range(4)]
        start = threading.Barrier(len(lakes))
        taken: list[int] = []

        def commit(number: int, lakes: list[Lake] = lakes, start: Any = start, taken: list[int] = taken) -> None:
            file = LakeFile(f"dt=2026-03-01/{number}.parquet", 10, 7)
            start.wait()
            taken.extend(one.segment for one in lakes[number].commit([replace(entry(0, 100), files=(file,))], {}))

        threads = [threading.Thread(target=commit, args=(number,)) for number in range(len(lakes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert taken == [0]
        assert len(lakes[0].entries()) == len(table(lakes[0]).file_uris()) == 1


def test_a_job_that_was_overtaken_before_its_commit_adds_what_the_other_has_not(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, transact = Lake(lake.root), DeltaTable.create_write_transaction
    other.commit([entry(0, 100)], {})

    def overtaken(self: DeltaTable, *given: Any, **named: Any) -> None:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", transact)
        assert len(other.commit([entry(100, 200), entry(300, 400)], {})) == 2
        transact(self, *given, **named)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", overtaken)
    assert lake.commit([entry(100, 200), entry(200, 300)], {}) == [entry(200, 300)]
    assert [one.segment for one in lake.entries()] == [0, 100, 200, 300]


def test_two_jobs_over_one_store_at_once_leave_every_message_once(store: Path, lake: Lake, archived: list[int]) -> None:
    both = Lake(f"{lake.path}-both")
    reports: list[Any] = []
    threads = [threading.Thread(target=lambda: reports.append(run(store, both, tail=True))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [problems(report) for report in reports] == [[], []]
    assert sum(report.figures["segments"] for report in reports) == 4
    assert positions(both) == archived
    assert {report.figures["watermarks"]["b"] for report in reports} == {both.entries()[-1].endPhysicalOffset}
    assert len(list(Path(both.path).rglob("*.parquet"))) == len(table(both).file_uris())


class Killed(BaseException):
    """As SIGKILL: nothing of the job runs on."""


@pytest.mark.parametrize("step", ["create", "create_write_transaction", "sync_log", "set_watermarks"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_job_killed_at_any_step_of_a_commit_is_completed_by_the_next(
    store: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    told: list[int] = []
    monkeypatch.setattr(archive, "require_groups", lambda *given: None)
    monkeypatch.setattr(archive, "archive_marks", lambda *given: {})
    monkeypatch.setattr(archive, "set_watermarks", lambda namesrv, name, marks: told.append(marks["b"]))
    owner: Any = {"set_watermarks": archive, "sync_log": Lake}.get(step, DeltaTable)
    done, reached = getattr(owner, step), []

    def killing(*given: Any, **named: Any) -> Any:
        if when == "after":
            done(*given, **named)
        reached.append(step)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(owner, step, staticmethod(killing) if step == "create" else killing)
        with pytest.raises(Killed):
            run(store, lake, namesrv="there")
    assert reached == [step]
    durable = [one.endPhysicalOffset for one in lake.entries()]
    assert all(mark <= max(durable) for mark in told)
    report = run(store, lake, namesrv="there")
    assert problems(report) == []
    found = positions(lake)
    assert len(found) == len(set(found)) == sum(one.rows for one in lake.entries())
    assert told[-1] == 3 * SEGMENT_BYTES
    assert problems(run(store, lake, check=True)) == []


def test_a_mark_is_set_when_all_commits_are_on_the_disk_those_of_others_too(
    store: Path, lake: Lake, archived: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    sync = Lake.sync

    def noted(self: Lake, name: str) -> None:
        synced.add(name)
        sync(self, name)

    monkeypatch.setattr(Lake, "sync", noted)
    monkeypatch.setattr(archive, "require_groups", lambda *given: None)
    monkeypatch.setattr(archive, "archive_marks", lambda *given: {})
    told: list[set[str]] = []
    monkeypatch.setattr(archive, "set_watermarks", lambda *given: told.append(set(synced)))
    run(store, lake, namesrv="there")
    needed = {str(path.relative_to(lake.path)) for path in commits(lake)}
    assert len(needed) >= 2
    assert told[0] >= needed | {"messages/_delta_log", "messages", ""}


def test_a_commit_that_a_power_cut_left_empty_counts_for_nothing(store: Path, lake: Lake, archived: list[int]) -> None:
    commits(lake)[-1].write_bytes(b"")
    report = run(store, lake, tail=True)
    assert report.figures["segments"] > 0
    assert positions(lake) == archived


def test_a_commit_that_fails_adds_nothing_and_is_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.commit([entry(0, 100)], {})

    def fails(*given: Any, **named: Any) -> None:
        raise lakes.CommitFailedError("no space left on the device")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", fails)
        with pytest.raises(StorageError, match=r"lake/messages: .* no space left"):
            lake.commit([entry(100, 200)], {})
    assert lake.entries() == [entry(0, 100)]
    assert lake.commit([entry(100, 200)], {}) == [entry(100, 200)]


def test_entries_stay_when_the_tables_log_has_check_points(lake: Lake) -> None:
    lake.commit([entry(0, 100)], {})
    lake.commit([replace(entry(100, 200), files=(), rows=0)], {})
    for path in commits(lake):
        os.utime(path, (0, 0))  # far behind what Delta tables keep unless told otherwise
    table(lake).create_checkpoint()
    lake.commit([entry(200, 300)], {})
    table(lake).cleanup_metadata()
    assert [one.segment for one in Lake(lake.root).entries()] == [0, 100, 200]


def test_a_file_that_is_taken_out_of_the_table_is_archived_again(store: Path, lake: Lake, archived: list[int]) -> None:
    broken = lake.entries()[1]
    assert broken.files
    lose(lake, broken)
    assert len(positions(lake)) == 800 - broken.rows
    assert [one.segment for one in lake.entries()] == [0, 2 * SEGMENT_BYTES, 3 * SEGMENT_BYTES]
    report = run(store, lake, tail=True)
    assert report.figures["segments"] == 1
    assert positions(lake) == archived


def test_what_is_left_of_a_log_file_leaves_the_table_when_it_is_archived_again(lake: Lake) -> None:
    names = [LakeFile(f"dt=2026-03-0{day}/{letter}.parquet", 4, 0) for day in (1, 2) for letter in "ab"]
    first, again = (replace(entry(0, 100), files=tuple(files)) for files in (names[0::2], names[1::2]))
    for file in first.files:
        path = Path(lake.path, "messages", file.name)
        path.parent.mkdir(parents=True)
        path.write_bytes(b"rows")
    lake.commit([first, entry(100, 200)], {})
    for name in (first.files[0].name, entry(100, 200).files[0].name):
        Path(lake.path, "messages", name).unlink(missing_ok=True)
    table(lake).repair()
    assert lake.entries() == []
    assert lake.commit([again], {}) == [again]
    left = [uri.rpartition("/dt=")[2] for uri in table(lake).file_uris()]
    assert sorted(left) == ["2026-03-01/b.parquet", "2026-03-02/b.parquet"]


def test_days_that_are_dropped_leave_the_rest_readable(lake: Lake) -> None:
    old, new = (LakeFile(f"dt=2026-03-0{day}/x.parquet", 4, 0) for day in (1, 2))
    lake.commit(
        [
            replace(entry(0, 100), files=(old,)),
            replace(entry(100, 200), files=(old._replace(name="dt=2026-03-01/y.parquet"), new)),
        ],
        {},
    )
    table(lake).delete("dt < '2026-03-02'")
    assert lake.entries() == []
    assert [(one.segment, one.files) for one in lake.readable()] == [(100, (new,))]
    table(lake).delete("broker = 'b' and segment = 100")
    assert lake.readable() == []


def test_a_restored_version_of_the_table_is_what_counts(store: Path, lake: Lake, tmp_path: Path) -> None:
    run(copied(store, tmp_path / "half", 2, 30_000), lake, tail=True, up_to="end")
    before = (table(lake).version(), lake.entries())
    run(store, lake, tail=True)
    after = positions(lake)
    table(lake).restore(before[0])
    assert lake.entries() == before[1]
    run(store, lake, tail=True)
    assert positions(lake) == after


def test_a_table_that_another_program_has_compacted_is_refused(store: Path, lake: Lake, archived: list[int]) -> None:
    version = table(lake).version()
    table(lake).optimize.z_order(["storeTimestamp"])
    assert positions(lake) == archived
    for job in (lambda: run(store, lake), lambda: run(store, lake, check=True), lambda: Lake(lake.root).entries()):
        with pytest.raises(Corrupt, match=r"parquet: no archive has committed this file, .* DeltaTable.restore"):
            job()
    table(lake).restore(version)
    assert problems(run(store, lake, check=True)) == []


def test_another_programs_table_is_refused(store: Path, lake: Lake) -> None:
    Path(lake.path).mkdir()
    write_deltalake(f"{lake.path}/messages", pa.table({"a": [1]}))
    with pytest.raises(ConfigError, match="lake/messages: another program's Delta table: name another lake"):
        run(store, lake)


@pytest.mark.parametrize("sign", ["?", "#", "\\", "%41", "%2f", "%25"])
def test_a_path_that_delta_tables_cannot_have_is_refused(store: Path, tmp_path: Path, sign: str) -> None:
    with pytest.raises(ConfigError, match="a lake's path has none of the signs"):
        run(store, Lake(f"{tmp_path}/a{sign}b"))
    assert not list(tmp_path.iterdir())


def test_a_path_may_have_any_other_sign(tmp_path: Path) -> None:
    lake = Lake(f"{tmp_path}/50% of &a=b;c,+ [x] {{y}}*'\"~!@$^ ü")
    lake.commit([entry(0, 100)], {})
    assert Lake(lake.root).entries() == [entry(0, 100)]


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ('"penstock":{"version":2', "written by version 2 of the archive, this program knows 1"),
        ('"penstock":{"unheardOf":2', "not what an archive says about log files: KeyError"),
    ],
)
def test_a_commit_that_says_something_else_is_named(lake: Lake, said: str, problem: str) -> None:
    lake.commit([entry(0, 100)], {})
    path = commits(lake)[-1]
    path.write_text(path.read_text().replace('"penstock":{"version":1', said))
    with pytest.raises(Corrupt, match=f"{path}: {problem}"):
        Lake(lake.root).entries()


def test_other_programs_read_times_and_skip_files_by_them(store: Path, lake: Lake, archived: list[int]) -> None:
    for name in ("storeTimestamp", "bornTimestamp"):
        assert table(lake).to_pyarrow_table()[name].type == pa.timestamp("us", tz="UTC")
    sql = 'select count(*) as n, min("storeTimestamp") as t, max("physicalOffset") as p from m where "topic" <> \'x\''
    (row,) = pa.table(QueryBuilder().register("m", table(lake)).execute(sql)).to_pylist()
    held = [pq.ParquetFile(f"{lake.path}/messages/{f.name}").read() for one in lake.entries() for f in one.files]
    times = [time for each in held for time in each["storeTimestamp"].to_pylist()]
    assert row == {"n": 800, "t": min(times), "p": archived[-1]}
    told = pa.table(table(lake).get_add_actions(flatten=True)).to_pylist()
    assert sum(file["num_records"] for file in told) == 800
    assert min(file["min.storeTimestamp"] for file in told) == min(times)
    assert max(file["max.storeTimestamp"] for file in told) == max(times)
    assert {file["partition.dt"] for file in told} == {time.date() for time in times}
    data = table(lake).to_pyarrow_dataset()
    late = pa.compute.field("storeTimestamp") > pa.scalar(datetime(2100, 1, 1, tzinfo=UTC), pa.timestamp("us", "UTC"))
    assert list(data.get_fragments(filter=late)) == []


def test_our_query_reads_the_files_of_the_days_that_are_wanted() -> None:
    files = [LakeFile(f"dt={day}/x.parquet", 1, 0) for day in ("2026-03-01", "2026-03-02", lakes.NO_DAY)]

    def read(**times: str) -> list[bool]:
        return [query._may_have(file, query.Wanted(lake="l", **times)) for file in files]

    assert read() == [True, True, True]
    assert read(start="2026-03-02") == [False, True, False]
    assert read(end="2026-03-02") == [True, False, False]
    assert read(start="2026-03-01T23:59:59.999Z", end="2026-03-02T00:00:00.001Z") == [True, True, False]
