"""The job lag without brokers: what follows from samples, what is kept of them, options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow.parquet as pq

from penstock.pipeline.jobs.lag import job as lag
from penstock.pipeline.jobs.lag.columns import LAG_COLUMNS, LAG_SCHEMA, Rates, Sample, age_ms, rates, row_of
from penstock.pipeline.jobs.lag.history import KEPT_FILE, History
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.options import made
from penstock.proto.errors import ConfigError, StorageError

DAY_MS = 86_400_000


def sample(committed: int | None, *, minimum: int = 10, end: int = 50, oldest: int | None = None) -> Sample:
    return Sample(9_000, "readers", "orders", "broker-a", 3, minimum, end, committed, oldest)


def seen(time: int, end: int, committed: int | None) -> Sample:
    return Sample(time, "readers", "orders", "broker-a", 3, 0, end, committed)


def test_a_group_without_a_commit_is_behind_by_all_that_is_there() -> None:
    assert (sample(None).next_offset, sample(None).lag) == (10, 40)
    assert (sample(4).next_offset, sample(4).lag) == (10, 40)  # what it had not read is gone
    assert (sample(30).next_offset, sample(30).lag) == (30, 20)
    assert sample(50).lag == sample(51).lag == 0


def test_rates_are_over_the_time_between_two_samples() -> None:
    assert rates(seen(1_000, 40, 10), seen(5_000, 60, 20)) == Rates(4_000, 5.0, 2.5)
    assert rates(seen(1_000, 40, 10), seen(3_601_000, 40, 10)) == Rates(3_600_000, 0.0, 0.0)


def test_what_two_samples_do_not_tell_is_null() -> None:
    assert rates(None, seen(5_000, 60, 20)) == Rates(None, None, None)
    assert rates(seen(5_000, 40, 10), seen(5_000, 60, 20)) == Rates(None, None, None)  # a clock that was set back
    assert rates(seen(1_000, 70, 10), seen(5_000, 60, 20)) == Rates(4_000, None, 2.5)  # the topic was made anew
    assert rates(seen(1_000, 40, 30), seen(5_000, 60, 20)) == Rates(4_000, 5.0, None)  # the group was set back
    for before, now in ((None, 20), (10, None), (None, None)):
        assert rates(seen(1_000, 40, before), seen(5_000, 60, now)) == Rates(4_000, 5.0, None)


def test_a_message_is_as_old_as_the_sample_says_and_never_younger_than_now() -> None:
    assert age_ms(9_000, 7_500) == 1_500
    assert age_ms(9_000, 9_020) == 0
    assert age_ms(9_000, None) is None


def test_a_row_has_every_column_in_its_place() -> None:
    row = row_of(8_000, sample(30, oldest=8_400), seen(5_000, 42, 28))
    assert list(row) == list(LAG_COLUMNS)
    assert row == {
        "interval": 8_000_000,
        "time": 9_000_000,
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
        "oldestUnreadTimestamp": 8_400_000,
        "oldestUnreadAgeMs": 600,
    }
    assert row_of(8_000, sample(30, oldest=1 << 62), None)["oldestUnreadTimestamp"] is None, "a damaged time"


def opened(folder: Path) -> History:
    return History.opened(Lake(str(folder / "lake")), str(folder / "checkpoint"))


def of(group: str, broker: str, time: int, end: int) -> Sample:
    return Sample(time, group, "orders", broker, 0, 0, end, 0)


def test_samples_are_files_of_their_day_and_each_is_later_than_the_one_before(tmp_path: Path) -> None:
    history = opened(tmp_path)
    assert history.plan(DAY_MS - 1) == DAY_MS - 1
    history.add([of("g", "a", DAY_MS - 1, 7)])
    assert history.plan(5) == DAY_MS, "the clock was set back"
    assert history.add([]) == [], "nobody was heard"
    assert history.plan(DAY_MS + 9) == DAY_MS + 9
    history.add([of("g", "a", DAY_MS + 9, 17)])
    paths = sorted(path.relative_to(tmp_path / "lake" / "lag") for path in tmp_path.rglob("*.parquet"))
    assert [str(path) for path in paths] == [
        f"dt=1970-01-01/{history.name}-{DAY_MS - 1}.parquet",
        f"dt=1970-01-02/{history.name}-{DAY_MS + 9}.parquet",
    ]
    found = pq.ParquetFile(tmp_path / "lake" / "lag" / paths[1]).read()
    assert found.schema.equals(LAG_SCHEMA)
    assert found["intervalMs"].to_pylist() == [10]
    assert opened(tmp_path).plan(0) == DAY_MS + 10


def test_a_broker_that_was_silent_goes_on_from_its_own_last_sample(tmp_path: Path) -> None:
    history = opened(tmp_path)
    for time, heard in ((1_000, "ab"), (2_000, "a")):
        history.plan(time)
        history.add([of("g", broker, time, 10) for broker in heard])
    history.keep()
    for later in (history, opened(tmp_path)):
        assert {source: next(iter(own.values())).time for source, own in later.seen.items()} == {
            ("g", "a"): 2_000,
            ("g", "b"): 1_000,
        }


def test_a_queue_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    history = opened(tmp_path)
    history.plan(1)
    history.add([of("g", "a", 1, 10), of("g", "a", 1, 10)._replace(queue_id=1)])
    history.plan(2)
    history.add([of("g", "a", 2, 10)])
    assert list(history.seen["g", "a"]) == [("orders", 0)]


def test_places_stay_known_and_damage_is_named(tmp_path: Path) -> None:
    history = opened(tmp_path)
    history.places = {("readers", "orders", "broker-b"), ("readers", "orders", "broker-a")}
    history.keep()
    again = opened(tmp_path)
    assert (again.name, again.places) == (history.name, history.places)
    kept = tmp_path / "checkpoint" / KEPT_FILE
    assert [path.name for path in kept.parent.iterdir()] == [KEPT_FILE]
    for damage in ("[1", "[]", "{}", json.dumps({"history": "h", "planned": "", "last": "x"})):
        kept.write_text(damage)
        with pytest.raises(ConfigError, match=rf"{KEPT_FILE} is damaged .*: delete it"):
            opened(tmp_path)


def test_rows_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    history = opened(tmp_path)
    history.plan(1)
    history.add([of("g", "a", 1, 10)])
    (tmp_path / "lake" / history.planned).write_bytes(b"torn")
    with pytest.raises(StorageError, match=r"\.parquet: .*: delete it"):
        opened(tmp_path)


def test_what_cannot_be_written_is_told_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("no directory")
    history = opened(tmp_path)
    history.plan(1)
    with pytest.raises(StorageError, match="the sample is not written"):
        history.add([of("g", "a", 1, 10)])
    assert history.seen == {}
    (tmp_path / "checkpoint" / KEPT_FILE).unlink()
    (tmp_path / "checkpoint").rmdir()
    (tmp_path / "checkpoint").write_text("neither")
    with pytest.raises(StorageError, match=rf"{KEPT_FILE} cannot be written"):
        history.plan(2)


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
