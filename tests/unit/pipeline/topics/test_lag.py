"""The job lag without Spark's JVM: what follows from samples, which samples are planned, files, options."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.pipeline.jobs.lag import job as lag
from penstock.pipeline.jobs.lag.columns import LAG_COLUMNS, MEASURED_COLUMNS, Rates, Sample, Seen, age_ms, rates
from penstock.pipeline.jobs.lag.files import count_rows, days_between, files_of, read_files, write_rows
from penstock.pipeline.jobs.lag.source import LagDataSource, LagStreamReader
from penstock.pipeline.jobs.lag.state import measure
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.options import made
from penstock.proto.errors import ConfigError

QUERY = "0f8fad5b-d9cb-469f-a165-70867728950e"
OTHER = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
READ_LIMIT: Any = None


def sample(committed: int | None, *, minimum: int = 10, end: int = 50, oldest: int | None = None) -> Sample:
    return Sample(9_000, "readers", "orders", "broker-a", 3, minimum, end, committed, oldest)


def test_a_group_without_a_commit_is_behind_by_all_that_is_there() -> None:
    assert (sample(None).next_offset, sample(None).lag) == (10, 40)
    assert (sample(4).next_offset, sample(4).lag) == (10, 40)  # what it had not read is gone
    assert (sample(30).next_offset, sample(30).lag) == (30, 20)
    assert sample(50).lag == sample(51).lag == 0


def test_rates_are_over_the_time_between_two_samples() -> None:
    assert rates(Seen(1_000, 40, 10), 5_000, 60, 20) == Rates(4_000, 5.0, 2.5)
    assert rates(Seen(1_000, 40, 10), 3_601_000, 40, 10) == Rates(3_600_000, 0.0, 0.0)


def test_what_two_samples_do_not_tell_is_null() -> None:
    assert rates(None, 5_000, 60, 20) == Rates(None, None, None)
    assert rates(Seen(5_000, 40, 10), 5_000, 60, 20) == Rates(None, None, None)  # a clock that was set back
    assert rates(Seen(1_000, 70, 10), 5_000, 60, 20) == Rates(4_000, None, 2.5)  # the topic was made anew
    assert rates(Seen(1_000, 40, 30), 5_000, 60, 20) == Rates(4_000, 5.0, None)  # the group was set back
    for before, now in ((None, 20), (10, None), (None, None)):
        assert rates(Seen(1_000, 40, before), 5_000, 60, now) == Rates(4_000, 5.0, None)


def test_a_message_is_as_old_as_the_sample_says_and_never_younger_than_now() -> None:
    assert age_ms(9_000, 7_500) == 1_500
    assert age_ms(9_000, 9_020) == 0
    assert age_ms(9_000, None) is None


def test_a_row_has_every_column_in_its_place() -> None:
    row = measure(8_000, sample(30, oldest=8_400), Seen(5_000, 42, 28))
    assert list(row) == list(MEASURED_COLUMNS)
    assert {name: row[name] for name in LAG_COLUMNS if name in row} == {
        "interval": 8_000,
        "time": 9_000,
        "consumerGroup": "readers",
        "topic": "orders",
        "brokerName": "broker-a",
        "queueId": 3,
        "minOffset": 10,
        "endOffset": 50,
        "committedOffset": 30,
        "lag": 20,
        "intervalMs": 4_000,
        "producedPerSecond": 2.0,
        "consumedPerSecond": 0.5,
        "oldestUnreadAgeMs": 600,
    }


def test_a_run_plans_so_many_samples_and_each_later_than_the_one_before() -> None:
    reader = LagStreamReader("host:1", ("readers",), (), 2)
    assert reader.reportLatestOffset() == {"left": 2}
    start = {"at": 1 << 60}  # written by a machine whose clock was wrong
    first = reader.latestOffset(start, READ_LIMIT)
    second = reader.latestOffset(first, READ_LIMIT)
    assert (first, second) == ({"at": (1 << 60) + 1}, {"at": (1 << 60) + 2})
    assert reader.reportLatestOffset() == {"left": 0}
    assert reader.latestOffset(second, READ_LIMIT) is second
    endless = LagStreamReader("host:1", ("readers",), (), None)
    assert endless.latestOffset(endless.initialOffset(), READ_LIMIT)["at"] > 0
    assert endless.reportLatestOffset() is None


def test_a_batch_is_one_task_whatever_plans_it() -> None:
    options = {"nameserver": "host:1", "groups": "a,b", "topics": "", "samples": "3"}
    reader = pickle.loads(pickle.dumps(LagDataSource(options).streamReader(None)))
    assert reader.__dict__ == LagStreamReader("host:1", ("a", "b"), (), 3).__dict__
    patient = LagDataSource(options | {"timeout": "60000"}).streamReader(None)
    assert patient.__dict__ == LagStreamReader("host:1", ("a", "b"), (), 3, timeout_s=60.0).__dict__
    (partition,) = reader.partitions({"at": 1}, {"at": 7})
    assert pickle.loads(pickle.dumps(partition)).at == 7


def rows(count: int, at: datetime = datetime(2026, 3, 1, 23, 59, 59, tzinfo=UTC)) -> Any:
    times = pa.array([at] * count, pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_arrays([times, pa.array(range(count))], names=["interval", "lag"])


def test_a_batch_that_is_repeated_replaces_its_rows(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    assert write_rows(lake, [rows(2), rows(0), rows(3)], QUERY, 7, 0, 100) == 5
    assert write_rows(lake, [rows(4)], QUERY, 7, 0, 101) == 4
    assert write_rows(lake, [rows(0)], QUERY, 8, 0, 102) == 0
    write_rows(lake, [rows(1)], OTHER, 7, 0, 103)  # another job's
    folder = tmp_path / "lake" / "lag" / "dt=2026-03-01"
    assert sorted(path.name for path in folder.iterdir()) == [
        f"{QUERY}-0000000007-00000.parquet",
        f"{OTHER}-0000000007-00000.parquet",
    ]
    assert pq.read_table(folder / f"{QUERY}-0000000007-00000.parquet", partitioning=None).num_rows == 4


def test_the_files_of_a_query_are_found_from_a_batch_on(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    for batch in (9, 10, 11):
        write_rows(lake, [rows(batch, datetime(2026, 3, batch - 8, tzinfo=UTC))], QUERY, batch, 0, batch)
    write_rows(lake, [rows(1)], OTHER, 10, 0, 1)
    (tmp_path / "lag" / "dt=2026-03-02" / f".{QUERY}-0000000010-00000.parquet.3").write_text("a draft")
    days = [date(2026, 3, day) for day in (1, 2, 3, 4)]
    found = files_of(lake, QUERY, 10, days)
    assert [path[-24:] for path in found] == ["0000000010-00000.parquet", "0000000011-00000.parquet"]
    assert count_rows(lake, found) == 21
    assert read_files(lake, found[:1], ["lag"])[-1] == {"lag": 9}
    assert read_files(lake, [], ["lag"]) == []


def test_days_are_those_of_both_ends() -> None:
    def at(*when: int) -> int:
        return int(datetime(*when, tzinfo=UTC).timestamp() * 1000)  # type: ignore[arg-type]

    assert days_between(at(2026, 2, 28, 23, 59), at(2026, 3, 1, 0, 1)) == [date(2026, 2, 28), date(2026, 3, 1)]
    assert days_between(at(2026, 3, 1), at(2026, 3, 1)) == [date(2026, 3, 1)]


NEEDED = {"namesrv": "host:1", "groups": "a,b", "lake": "/lake", "checkpoint": "/checkpoint"}


def test_options_have_the_types_of_the_fields() -> None:
    config = made(lag.Config, NEEDED | {"interval-s": "0.5", "intervals": "3"}, "lag")
    lag.check(config)
    assert (config.groups, config.interval_s, config.intervals, config.follow) == (("a", "b"), 0.5, 3, False)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"groups": ","}, "lag: groups is empty"),
        ({"interval_s": "0"}, r"lag: interval_s is 0.0: at least 0.1"),
        ({"interval_s": "nan"}, "lag: interval_s is 'nan': expected a number"),
        ({"intervals": "0"}, "lag: intervals is 0: at least 1"),
        ({"intervals": "3", "follow": "true"}, "lag: intervals is 3, and follow has no end"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        lag.check(made(lag.Config, NEEDED | given, "lag"))
