"""Offsets of a stream, and plans made of them: pure, without Spark and without a broker."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipeline.topics.offsets import (
    DataLoss,
    Queue,
    Range,
    Slice,
    at_least,
    begin_of,
    created_of,
    limited,
    parse_user_offsets,
    queues_of,
    resolve,
    slices,
    stream_offset,
)
from penstock.pipeline.topics.read.planning import plan, share
from penstock.proto.errors import ConfigError

A, B = Queue("orders", "broker-a", 0), Queue("orders", "broker-b", 10)
queues = st.builds(Queue, st.sampled_from(["t", "u"]), st.sampled_from(["a", "b"]), st.integers(0, 12))


def test_equal_offsets_are_equal_texts() -> None:
    one = json.dumps(stream_offset({A: 1, B: 2}))
    other = json.dumps(stream_offset({B: 2, A: 1}))
    assert one == other == '{"q": {"orders": {"broker-a": {"0": 1}, "broker-b": {"10": 2}}}, "v": 1}'
    assert queues_of(json.loads(one)) == {A: 1, B: 2}


def test_a_foreign_checkpoint_is_refused_by_name() -> None:
    for foreign in ({"sourceVersion": 1}, 7, [1], {"orders": {"0": 3}, "created": 5}):
        for ask in (queues_of, created_of, lambda each: begin_of(each, each)):
            with pytest.raises(ConfigError, match="belongs to another source"):
                ask(foreign)
    with pytest.raises(ConfigError, match="damaged"):
        queues_of({"v": 1, "q": {"orders": 3}})


def test_a_first_batch_is_repeated_as_it_was_planned_whatever_latest_is_by_now() -> None:
    planned = stream_offset({A: 5}, init={A: 3})
    after_a_crash = stream_offset({A: 9}, first=True)
    assert slices(begin_of(after_a_crash, planned), queues_of(planned)) == [Slice(A, 3, 5)]


def test_a_first_batch_that_was_empty_is_empty_again_whatever_latest_is_by_now() -> None:
    stored, after_a_crash = stream_offset({A: 5}, first=True), stream_offset({A: 15}, first=True)
    assert slices(begin_of(after_a_crash, stored), queues_of(stored)) == []
    planned = stream_offset({A: 15}, init={A: 5})
    assert slices(begin_of(stored, planned), queues_of(planned)) == [Slice(A, 5, 15)]


def test_a_begin_above_its_end_is_an_error_and_not_an_empty_batch() -> None:
    with pytest.raises(DataLoss, match="begins at 7 and ends at 5"):
        slices({A: 7}, {A: 5})
    with pytest.raises(DataLoss, match="in the batch's begin"):
        slices({A: 1, B: 1}, {A: 5})
    with pytest.raises(DataLoss, match="not in its begin"):
        slices({A: 1}, {A: 5, B: 1})


def test_a_limit_is_shared_in_proportion_and_gives_each_queue_something() -> None:
    assert limited({A: 0, B: 0}, {A: 900, B: 100}, 100) == {A: 90, B: 10}
    assert limited({A: 0, B: 0}, {A: 1000, B: 1}, 10) == {A: 9, B: 1}
    assert limited({A: 0, B: 0}, {A: 5, B: 5}, 100) == {A: 5, B: 5}
    assert limited({A: 0}, {A: 100}, 5000, {A: 1000}) == {A: 5}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nonsense", "no JSON"),
        ("[]", "no JSON object"),
        ("{}", "names no queue"),
        ('{"orders": 3}', "topic orders has 3"),
        ('{"orders": {"broker-a": [1]}}', "broker broker-a of topic orders"),
        ('{"orders": {"broker-a": {"x": 1}}}', "a queue is a number"),
        ('{"orders": {"broker-a": {"01": 1}}}', "a queue is a number"),
        ('{"orders": {"broker-a": {"' + 5000 * "9" + '": 1}}}', "a queue is a number"),
        ('{"orders": {"broker-a": {"0": -3}}}', "offset -3"),
        ('{"orders": {"broker-a": {"0": 1.5}}}', "offset 1.5"),
        ('{"orders": {"broker-a": {"0": true}}}', "offset True"),
    ],
)
def test_malformed_offsets_are_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        parse_user_offsets("startingOffsets", text)
    assert "startingOffsets" in str(caught.value)


def test_given_offsets_are_checked_against_the_queues() -> None:
    ranges = {A: Range(10, 20), B: Range(0, 5)}
    assert resolve("startingOffsets", {A: -2, B: -1}, ranges, complete=True) == {A: 10, B: 5}
    with pytest.raises(ConfigError, match="orders/broker-b/10 is missing"):
        resolve("startingOffsets", {A: 12}, ranges, complete=True)
    with pytest.raises(ConfigError, match="offset 21 is beyond its end 20"):
        resolve("startingOffsets", {A: 21, B: 0}, ranges, complete=True)
    with pytest.raises(ConfigError, match="x/y/0 is not among those"):
        resolve("startingOffsets", {Queue("x", "y", 0): 1}, ranges, complete=False)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_sequence_of_batches_crashes_and_restarts_reads_each_offset_once(data: st.DataObject) -> None:
    """Spark's part is played by three lines: it stores ends, forgets the first start, and repeats what it stored."""
    ends: dict[Queue, int] = {A: data.draw(st.integers(0, 5)), B: 0}
    known = dict(ends)
    first_init: dict[Queue, int] | None = None
    log: list[dict[str, Any]] = []  # Spark's offset log
    committed = 0
    read: list[Slice] = []

    def run(start: dict[str, Any], end: dict[str, Any]) -> list[Slice]:
        return slices(begin_of(start, end), queues_of(end))

    start: dict[str, Any] = stream_offset(ends, first=True)
    for _ in range(data.draw(st.integers(1, 12))):
        is_busy = data.draw(st.booleans())
        ends = {queue: end + is_busy * data.draw(st.integers(0, 4)) for queue, end in ends.items()}
        if is_busy and data.draw(st.booleans()):
            ends.setdefault(Queue("orders", "broker-c", len(ends)), data.draw(st.integers(0, 3)))
        if data.draw(st.integers(0, 3)) == 0:  # the driver died: what is stored is repeated, the rest asked again
            start = log[committed - 1] if committed else stream_offset(ends, first=True)
            if len(log) > committed:
                read += run(start, log[committed])
                start = log[committed]
                committed += 1
            continue
        begin = queues_of(start)
        new = {queue: 0 for queue in ends if queue not in begin}
        target = at_least(begin | new, ends)
        end = limited(begin | new, target, data.draw(st.integers(1, 10)))
        if end == begin and not start.get("first"):
            continue
        if end == begin:
            made = start  # which Spark stores as an empty first batch
            first_init = begin
        elif start.get("first"):
            first_init = begin | new
            made = stream_offset(end, init=first_init)
        else:
            made = stream_offset(end, init=new or None)
        log.append(made)
        if data.draw(st.booleans()):  # and it dies before the batch is done
            ends = {queue: each + data.draw(st.integers(0, 4)) for queue, each in ends.items()}
            start = log[committed - 1] if committed else stream_offset(ends, first=True)
        parts = run(start, log[committed])
        read += parts
        start = log[committed]
        committed += 1
    covered: dict[Queue, int] = dict(first_init or {})
    for each in read:
        assert each.start == covered.get(each.queue, 0), f"{each} after {covered}"
        covered[each.queue] = each.end
    assert known  # the begin is whatever the first planned batch says


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(queues, st.integers(0, 50), st.integers(0, 5000)), max_size=30, unique_by=lambda row: row[0]),
    st.integers(1024, 100_000),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 20),
    st.integers(0, 3000),
)
def test_every_message_is_in_one_task_and_order_within_a_queue_is_kept(
    rows: list[tuple[Queue, int, int]], target: int, least: int | None, most: int | None, mean: int
) -> None:
    wanted = [Slice(queue, start, start + count) for queue, start, count in rows]
    groups = plan(wanted, {each.queue: mean for each in wanted}, target_bytes=target, at_least=least, at_most=most)
    assert all(groups)
    assert most is None or len(groups) <= most
    covered: dict[Queue, int] = {each.queue: each.start for each in wanted}
    for each in sorted(piece for group in groups for piece in group):
        assert each.start == covered[each.queue]
        assert each.end > each.start
        covered[each.queue] = each.end
    assert covered == {each.queue: each.end for each in wanted}
    for group in groups:
        for one, other in itertools.pairwise(group):
            assert one.queue != other.queue or one.end == other.start


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(queues, st.integers(0, 50), st.integers(0, 5000)), max_size=30, unique_by=lambda row: row[0]),
    st.integers(1, 50),
)
def test_a_batch_is_shared_evenly_by_as_many_tasks_as_its_offset_says(
    rows: list[tuple[Queue, int, int]], count: int
) -> None:
    wanted = [Slice(queue, start, start + count) for queue, start, count in rows]
    total = sum(each.end - each.start for each in wanted)
    groups = share(wanted, count)
    sizes = [sum(each.end - each.start for each in group) for group in groups]
    assert len(groups) == min(count, total)
    assert not sizes or max(sizes) - min(sizes) <= 1
    covered = {each.queue: each.start for each in wanted}
    for each in (piece for group in groups for piece in group):
        assert covered[each.queue] == each.start < each.end
        covered[each.queue] = each.end
    assert covered == {each.queue: each.end for each in wanted}


def test_small_queues_share_a_task_and_large_ones_are_cut() -> None:
    many = [Slice(Queue("t", "a", number), 0, 10) for number in range(1000)]
    assert len(plan(many, {}, target_bytes=16 << 20)) == 1
    assert len(plan([Slice(A, 0, 100_000)], {A: 1000}, target_bytes=16 << 20)) == 6
    assert len(plan([Slice(A, 0, 100)], {A: 10}, at_least=4)) == 4


@pytest.mark.parametrize(("messages", "tasks"), [(10_000, 1), (100_000, 6), (1_000_000, 8), (10_000_000, 75)])
def test_without_a_target_tasks_are_neither_small_nor_more_than_some(messages: int, tasks: int) -> None:
    assert len(plan([Slice(A, 0, messages)], {A: 1000})) == tasks
