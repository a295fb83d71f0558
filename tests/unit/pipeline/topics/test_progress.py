"""What the listener knows of a query: its place, and what it has passed over."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from penstock.pipeline.topics.offsets import Queue, stream_offset
from penstock.pipeline.topics.read.progress import Progress
from penstock.proto.errors import OutcomeUnknown

A, B, C = (Queue("t", "broker-a", number) for number in range(3))


def event(start: Any, end: Any) -> Any:
    texts = [None if each is None else json.dumps(each) for each in (start, end)]
    source = SimpleNamespace(startOffset=texts[0], endOffset=texts[1], latestOffset=texts[1])
    told = {"id": "q", "runId": "r", "name": None, "numInputRows": 7, "batchId": 3, "processedRowsPerSecond": None}
    return SimpleNamespace(progress=SimpleNamespace(**told, sources=[source]))


def test_messages_that_a_query_has_passed_over_are_counted_by_queue() -> None:
    listener = Progress("nowhere")
    for start, end in (
        (None, stream_offset({A: 5, B: 5}, init={A: 3, B: 0})),  # the first batch begins where it was told
        (stream_offset({A: 5, B: 5}), stream_offset({A: 30, B: 5}, init={A: 12})),  # 7 were gone
        (stream_offset({A: 30, B: 5}), stream_offset({A: 35, B: 9, C: 4}, init={B: 0, C: 2})),  # B made anew, C new
        (stream_offset({A: 35, B: 9}), stream_offset({A: 99, B: 9}, init={A: 40})),
        (stream_offset({A: 99, B: 9}), stream_offset({A: 120, B: 9})),
    ):
        listener.onQueryProgress(event(start, end))
    assert listener.lost("q") == {A: 12, B: 0}
    assert listener.queues("q")[A].end == 120
    assert listener.lost("other") == {}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_group_of_a_query_that_reads_a_topic_twice_is_where_the_later_of_the_two_is(
    monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """What it has committed has been read by both."""
    told: list[Any] = []
    view = SimpleNamespace(commit=lambda group, ends, timeout_s, epochs: told.append((group, ends, epochs)) or [])
    monkeypatch.setattr("penstock.pipeline.topics.cluster.cluster", lambda *_: view)
    start = stream_offset({A: 0, B: 0})
    slow, quick = (
        event(start, stream_offset({A: a, B: b}, init={A: a - 3}, epochs={("t", "broker-a"): epoch}, group="g"))
        for a, b, epoch in ((5, 9, 1), (8, 8, 2))
    )
    both = (slow, quick) if is_first else (quick, slow)
    slow.progress.sources = [source for each in both for source in each.progress.sources]
    listener = Progress("nowhere")
    listener.onQueryProgress(slow)
    assert told == [("g", {A: 5, B: 8}, {("t", "broker-a"): 1})]
    assert {queue: each.end for queue, each in listener.queues("q").items()} == {A: 5, B: 8}
    assert listener.lost("q") == {A: 5}


def test_offsets_of_other_sources_say_nothing() -> None:
    listener = Progress("nowhere")
    listener.onQueryProgress(event({"sourceVersion": 1}, {"sourceVersion": 1}))
    assert (listener.queues("q"), listener.lost("q")) == ({}, {})


def test_what_a_run_has_done_is_known_when_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Progress("nowhere")
    for end in (5, 9):
        listener.onQueryProgress(event(stream_offset({A: 0}), stream_offset({A: end})))
    monkeypatch.setattr("penstock.pipeline.topics.read.progress.EVENTS_TIMEOUT_S", 0.01)
    with pytest.raises(OutcomeUnknown, match="the query r ended"):
        listener.run("r")
    listener.onQueryTerminated(SimpleNamespace(runId="r"))
    run = listener.run("r")
    assert (run.messages, run.batches, list(run.rates)) == (14, 2, [(3, 0.0), (3, 0.0)])
