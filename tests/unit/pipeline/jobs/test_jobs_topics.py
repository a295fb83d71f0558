"""Decisions of the jobs that read and write topics, without Spark's Java."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock, Mock

import pytest

pytest.importorskip("pyspark")

from penstock.client import Producer
from penstock.pipeline.jobs import dead_letters, replay
from penstock.pipeline.jobs.framework.reading import JOB_FILE, claim_checkpoint, ended_by_signals, follow, same_servers
from penstock.pipeline.jobs.framework.report import Report
from penstock.pipeline.jobs.lag.history import Place
from penstock.pipeline.jobs.lag.job import lag_series
from penstock.proto.errors import ConfigError
from penstock.proto.wire.nameserver_pb2 import ClusterView, ShardView
from penstock.proto.wire.pipeline_pb2 import WriterState


def test_a_checkpoint_of_another_source_target_or_job_is_refused(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    between = {"namesrv": same_servers("b:1;a:1"), "topic": "t", "to_topic": "x"}
    claim_checkpoint("mirror", checkpoint, between)
    claim_checkpoint("mirror", checkpoint, between | {"namesrv": same_servers("a:1; b:1")})
    with pytest.raises(ConfigError, match="belongs to a job whose to_topic is 'x', not 'y': name a new one"):
        claim_checkpoint("mirror", checkpoint, between | {"to_topic": "y"})
    with pytest.raises(ConfigError, match="whose job is 'mirror', not 'lag'"):
        claim_checkpoint("lag", checkpoint, {"namesrv": between["namesrv"]})
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == [JOB_FILE]
    (tmp_path / "checkpoint" / JOB_FILE).write_text("{")
    with pytest.raises(ConfigError, match="no record of a job"):
        claim_checkpoint("mirror", checkpoint, between)


def test_a_broker_group_that_is_not_heard_is_a_gap_and_never_less_lag() -> None:
    a: Place = ("g", "t", "a")
    b: Place = ("g", "t", "b")
    assert lag_series({1: {a: 90, b: 90}, 2: {a: 92}}, ["g"], []) == ({"g": [180, None]}, {"b": 1})
    assert lag_series({1: {a: 92}}, ["g"], [a, b]) == ({"g": [None]}, {"b": 1}), "it was never heard"
    assert lag_series({1: {a: 1}, 2: {a: 1, b: 1}}, ["g"], []) == ({"g": [1, 2]}, {}), "it came later"


@pytest.mark.parametrize("is_known", [False, True])
def test_a_replay_beside_a_group_that_is_down_does_not_say_what_it_cannot_know(
    monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    calls = Mock()
    view = ClusterView(shards=[ShardView(broker_name="a")], absent=[ShardView(broker_name="b")])
    calls.directory.cluster.return_value = view
    calls.at_master.return_value = WriterState(exists=is_known, decided_batch=0)
    monkeypatch.setattr("penstock.pipeline.topics.cluster.cluster", lambda _: Mock(calls=calls))
    figures = replay.write(MagicMock(), "a:1", "t", "exactly-once", "id", 7)
    report = Report("dead-letters", {}, figures={"messages": 7})
    config = dead_letters.Config(namesrv="a:1", redrive_to="t", producer_id="id")
    monkeypatch.setattr(dead_letters, "copies", lambda letters: MagicMock())
    dead_letters._redrive(report, None, config)
    redriven = {"redriven" if name == "written" else name: value for name, value in figures.items()}
    assert report.figures == {"messages": 7, "selected": 7} | redriven
    if is_known:
        assert figures == {"written": 0, "note": "the producer id 'id' was used before: everything had been written"}
    else:
        assert figures == {"note": "whether the producer id 'id' was used before is not known: b was down"}


class Query:
    """Ends when it is stopped; a signal comes while it is waited for."""

    def __init__(self, number: signal.Signals) -> None:
        self._number, self.is_stopped = number, False

    def awaitTermination(self, _: float) -> bool:
        os.kill(os.getpid(), self._number)
        return False

    def stop(self) -> None:
        self.is_stopped = True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_job_that_follows_and_raises_nothing(number: signal.Signals) -> None:
    before, query = signal.getsignal(number), Query(number)
    with ended_by_signals() as ended:
        follow(query, ended)
    assert query.is_stopped
    assert signal.getsignal(number) is before


class Sent:
    """A producer that notes when it was given what."""

    def __init__(self) -> None:
        self.now_s, self.times, self.is_flushed = 0.0, [], False  # type: tuple[float, list[float], bool]

    def produce(self, *_: Any) -> None:
        self.times.append(self.now_s)

    def flush(self) -> None:
        self.is_flushed = True

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_rated_replay_sends_in_time() -> None:
    sent = Sent()
    row = {"body": b"x", "tags": None, "keys": None, "properties": {}, "shardingKey": "t/b/0"}
    count = replay.send_at(50, [row] * 400, cast(Producer, sent), "to", lambda: sent.now_s, sent.sleep)
    assert (count, sent.is_flushed) == (400, True)
    assert sent.times == pytest.approx([number / 50 for number in range(400)])


def test_a_rate_goes_with_at_least_once_alone() -> None:
    given: dict[str, Any] = {"lake": "l", "namesrv": "n:1", "to_topic": "t"}
    assert replay.guarantee_of(replay.Config(**given)) == "exactly-once"
    replay.check(replay.Config(**given, rate=50))
    with pytest.raises(ConfigError, match="rate is 50 and guarantee 'exactly-once'"):
        replay.check(replay.Config(**given, rate=50, guarantee="exactly-once"))
