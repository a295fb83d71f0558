"""How far a query is behind by what its progress says, and the lines of the log."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from penstock.pipeline.topics.offsets import Queue, stream_offset
from penstock.pipeline.topics.read.lag import LagLog, TopicLag, behind, lag, lags

A, B, C, U = (*(Queue("t", "broker-a", number) for number in range(3)), Queue("u", "broker-a", 0))


def progress(second: int, end: dict[Queue, int], latest: dict[Queue, int], **told: Any) -> Any:
    source = SimpleNamespace(
        endOffset=json.dumps(stream_offset(end)),
        latestOffset=json.dumps({**stream_offset(latest), "away": {"t": ["broker-b"]}}),
    )
    other = SimpleNamespace(endOffset="7", latestOffset="9")
    about = {
        "id": "q",
        "runId": "r",
        "name": None,
        "batchId": second,
        "timestamp": f"2030-01-31T12:00:{second:02}.500Z",
    }
    return SimpleNamespace(**(about | told), sources=[source, other])


FIRST = progress(1, {A: 5, B: 2, U: 3}, {A: 10, B: 9, U: 3})
SECOND = progress(3, {A: 9, B: 8, C: 1, U: 3}, {A: 20, B: 9, C: 4, U: 3})


def test_how_far_a_query_is_behind_is_told_by_topic() -> None:
    assert behind(SimpleNamespace(lastProgress=FIRST)) == {"t": 12, "u": 0}
    assert behind(SimpleNamespace(lastProgress=None)) == {}


def test_rates_are_those_between_the_last_two_batches() -> None:
    found = lag(SimpleNamespace(recentProgress=[progress(0, {A: 0}, {A: 0}), FIRST, SECOND]))
    # Of the queue that is new since then nobody knows how fast it grew.
    assert found == {"t": TopicLag(33, 18, 15, 5.0, 5.0), "u": TopicLag(3, 3, 0, 0.0, 0.0)}
    assert lag(SimpleNamespace(recentProgress=[FIRST]))["t"] == TopicLag(19, 7, 12, None, None)
    assert lag(SimpleNamespace(recentProgress=[])) == {}


def test_rates_are_unknown_where_a_topic_was_made_anew_and_where_no_time_has_passed() -> None:
    anew = progress(5, {A: 1, U: 4}, {A: 2, U: 5})
    assert lags(anew, SECOND) == {"t": TopicLag(2, 1, 1, None, None), "u": TopicLag(5, 4, 1, 1.0, 0.5)}
    assert lags(FIRST, FIRST)["t"].consumed_per_second is None


def test_a_topic_that_a_query_reads_twice_is_as_far_behind_as_the_later_of_the_two() -> None:
    """As in a union, or a self-join, of which one side has a limit."""
    slow, quick = progress(1, {A: 5}, {A: 10}), progress(1, {A: 10}, {A: 11})
    for sources in ((slow, quick), (quick, slow)):
        both = SimpleNamespace(sources=[source for each in sources for source in each.sources])
        assert lags(both) == {"t": TopicLag(11, 5, 6, None, None)}


def test_each_progress_is_a_line_for_each_topic(caplog: pytest.LogCaptureFixture) -> None:
    listener = LagLog()
    with caplog.at_level(logging.INFO, "penstock.pipeline"):
        for each in (FIRST, SECOND, progress(9, {A: 1}, {A: 2}, runId="another", name="paid")):
            listener.onQueryProgress(SimpleNamespace(progress=each))
        listener.onQueryTerminated(SimpleNamespace(runId="r"))
        listener.onQueryTerminated(SimpleNamespace(runId="never heard of"))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 5
    rates = "produced_per_second=5.0 consumed_per_second=5.0"
    assert lines[2] == f"batch finished query=q batch=3 topic=t end=33 committed=18 behind=15 {rates}"
    unknown = "produced_per_second=unknown consumed_per_second=unknown"
    assert lines[4] == f"batch finished query=paid batch=9 topic=t end=2 committed=1 behind=1 {unknown}"


def test_offsets_of_other_sources_say_nothing() -> None:
    assert lags(SimpleNamespace(sources=[SimpleNamespace(endOffset="7", latestOffset=None)])) == {}
