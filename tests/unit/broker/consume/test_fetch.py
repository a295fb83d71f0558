from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.consume.answer import SCANS_MAX, Answer
from penstock.broker.consume.consume import Consume
from penstock.broker.consume.fetch import TURN_BYTES
from penstock.broker.core.tables.groups import Group
from penstock.broker.core.tables.topics import Topic
from penstock.broker.produce.produce import Produce
from penstock.formats.record.properties import encode_properties
from penstock.proto import frames, names
from penstock.proto.errors import BrokerUnavailable, Forbidden, InvalidArgument, PenstockError
from penstock.proto.wire.broker_pb2 import AppendHeader, FetchHeader, FetchReply, Filter
from tests.support.broker.kit import Kit, in_loop
from tests.support.broker.requests import BORN, batch, wanting
from tests.support.broker.stores import bodies_of
from tests.support.loops import Turns
from tests.support.record.encoding import encode_messages
from tests.support.waiting import eventually


def by_queue(reply: FetchReply) -> dict[int, FetchReply.Result]:
    return {result.queue_id: result for result in reply.results}


@in_loop
async def test_a_fetch_returns_the_records_of_all_queues_end_to_end() -> None:
    parts = Kit()
    parts.add_topic()
    for queue_id in (0, 2):
        await parts.append([b"%d-%d" % (queue_id, n) for n in range(3)], queue_id=queue_id)
    parts.dispatch()
    reply, data = await parts.fetched(wanting((0, 1), (1, 0), (2, 0)))
    results = by_queue(reply)
    assert set(results) == {0, 2}, "a queue without news is not in the reply"
    assert (results[0].next_offset, results[0].count, results[0].max_offset) == (3, 2, 3)
    assert sum(result.bytes for result in reply.results) == len(data)
    position = 0
    for result in reply.results:
        expected = [b"%d-%d" % (result.queue_id, n) for n in range(3)][3 - result.count :]
        assert bodies_of(data[position : position + result.bytes]) == expected
        position += result.bytes


@in_loop
async def test_a_waiting_fetch_wakes_on_arrival_and_leaves_nothing_behind() -> None:
    parts = Kit()
    parts.add_topic()
    waiting = asyncio.create_task(parts.fetched(wanting((0, 0), (3, 0), max_wait_ms=10_000)))
    await eventually(lambda: len(parts[Consume].fetch.waiters))
    await parts.append([b"elsewhere"], queue_id=1)
    parts.dispatch()
    await asyncio.sleep(0)
    assert not waiting.done()
    await parts.append([b"here"], queue_id=3)
    parts.dispatch()
    reply, data = await waiting
    assert (by_queue(reply)[3].next_offset, bodies_of(data)) == (1, [b"here"])
    assert len(parts[Consume].fetch.waiters) == 0


@in_loop
async def test_a_queue_that_has_news_twice_before_a_waiting_fetch_runs_is_read_once() -> None:
    parts = Kit()
    parts.add_topic()
    waiting = asyncio.create_task(parts.fetched(wanting((0, 0), max_wait_ms=60_000)))
    await eventually(lambda: len(parts[Consume].fetch.waiters))
    for body in (b"one", b"two"):
        parts[Produce].send.place(batch([body]))
        parts.dispatch()
    reply, data = await waiting
    assert ([result.next_offset for result in reply.results], bodies_of(data)) == ([2], [b"one", b"two"])


@in_loop
async def test_what_arrives_between_the_first_look_and_the_registration_is_not_lost() -> None:
    parts = Kit()
    parts.add_topic()
    await parts.append([b"just now"])
    add = parts[Consume].fetch.waiters.add

    def dispatch_just_before(waiter: object) -> None:
        parts.dispatch()
        add(waiter)  # type: ignore[arg-type]

    parts[Consume].fetch.waiters.add = dispatch_just_before  # type: ignore[method-assign]
    _, data = await asyncio.wait_for(parts.fetched(wanting((0, 0), max_wait_ms=60_000)), 30)
    assert bodies_of(data) == [b"just now"]


@in_loop
async def test_a_fetch_ends_empty_when_its_wait_is_over_and_at_once_without_one() -> None:
    parts = Kit()
    parts.add_topic()
    for wait_ms in (0, 20):
        reply, data = await parts.fetched(wanting((0, 0), max_wait_ms=wait_ms))
        assert (list(reply.results), data) == ([], b"")
    assert len(parts[Consume].fetch.waiters) == 0


@in_loop
async def test_a_cancelled_fetch_forgets_its_queues() -> None:
    parts = Kit()
    parts.add_topic()
    waiting = asyncio.create_task(parts.fetched(wanting((0, 0), max_wait_ms=60_000)))
    await eventually(lambda: len(parts[Consume].fetch.waiters))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert len(parts[Consume].fetch.waiters) == 0


@in_loop
async def test_a_stopping_broker_lets_waiting_fetches_go_and_refuses_new_ones() -> None:
    parts = Kit()
    parts.add_topic()
    waiting = asyncio.create_task(parts.fetched(wanting((0, 0), max_wait_ms=60_000)))
    await eventually(lambda: len(parts[Consume].fetch.waiters))
    parts[Consume].fetch.close()
    assert list((await waiting)[0].results) == []
    with pytest.raises(BrokerUnavailable):
        await parts.fetched(wanting((0, 0)))


@in_loop
async def test_a_budget_too_small_for_all_queues_is_shared_and_every_queue_gets_its_turn() -> None:
    parts = Kit()
    parts.add_topic()
    for queue_id in range(4):
        await parts.append([b"x" * 1000] * 20, queue_id=queue_id)
    parts.dispatch()
    reply, data = await parts.fetched(wanting(*((q, 0) for q in range(4)), max_bytes=8_800))
    assert {result.count for result in reply.results} == {2}
    assert len(reply.results) == 4
    assert len(data) <= 8_800
    seen = set()
    for _ in range(4):
        reply, _ = await parts.fetched(wanting(*((q, 0) for q in range(4)), max_bytes=1))
        assert [result.count for result in reply.results] == [1], "at least one record, however small the budget"
        seen.add(reply.results[0].queue_id)
    assert seen == {0, 1, 2, 3}


def in_order(*queues: tuple[int, int, int], **header: Any) -> FetchHeader:
    """A fetch, in order, of (queue id, offset, end)."""
    made = wanting(*((queue_id, offset) for queue_id, offset, _ in queues), in_order=True, **header)
    made.topics[0].ends.extend(end for _, _, end in queues)
    return made


@in_loop
async def test_in_order_the_first_queues_use_the_budget_whoever_else_fetches() -> None:
    parts = Kit()
    parts.add_topic()
    for queue_id in range(4):
        await parts.append([b"x" * 1000] * 20, queue_id=queue_id)
    parts.dispatch()
    for _ in range(5):
        await parts.fetched(wanting((0, 0), (1, 0), (2, 0)))
        reply, _ = await parts.fetched(in_order(*((q, 0, 5) for q in (3, 1, 0, 2)), max_bytes=13_000))
        assert [(result.queue_id, result.count) for result in reply.results] == [(3, 5), (1, 5), (0, 1)]
    reply, _ = await parts.fetched(in_order(*((q, 0, 5) for q in range(4)), max_bytes=1 << 20))
    assert [(result.queue_id, result.next_offset) for result in reply.results] == [(q, 5) for q in range(4)]


@in_loop
async def test_in_order_nothing_is_told_of_a_queue_while_one_before_it_misses_something() -> None:
    parts = Kit()
    parts.add_topic()
    for queue_id in (0, 1):
        await parts.append([b"%d" % queue_id], queue_id=queue_id)
    parts.dispatch()
    reply, _ = await parts.fetched(in_order((0, 0, 2), (1, 0, 1)))
    assert [result.queue_id for result in reply.results] == [0]
    reply, _ = await parts.fetched(in_order((0, 5, 7), (1, 0, 1)))
    assert [(result.queue_id, result.status) for result in reply.results] == [(0, FetchReply.OFFSET_OVERFLOW)]
    waiting = asyncio.create_task(parts.fetched(in_order((0, 1, 2), (1, 0, 2), max_wait_ms=60_000)))
    await eventually(lambda: len(parts[Consume].fetch.waiters))
    await parts.append([b"later"], queue_id=1)
    parts.dispatch()
    await asyncio.sleep(0)
    assert not waiting.done()
    await parts.append([b"now"], queue_id=0)
    parts.dispatch()
    _, data = await waiting
    assert bodies_of(data) == [b"now"]


@in_loop
async def test_a_fruitless_scan_up_to_the_end_that_was_asked_for_is_told_at_once() -> None:
    parts = Kit()
    parts.add_topic()
    await parts.append([b"a", b"b"], tag="paid")
    await parts.append([b"c"], queue_id=1, tag="lost")
    parts.dispatch()
    for queues, found in [(((0, 0, 2),), []), (((0, 0, 2), (1, 0, 1)), [b"c"])]:
        header = in_order(*queues, expression="lost", max_wait_ms=60_000)
        reply, data = await asyncio.wait_for(parts.fetched(header), 30)
        assert bodies_of(data) == found
        told = by_queue(reply)[0]
        assert (told.status, told.next_offset) == (FetchReply.NO_MATCHED_MESSAGE, 2)


@in_loop
async def test_a_slave_does_not_say_that_a_queue_is_not_there() -> None:
    parts = Kit()
    parts.add_topic()
    parts.role.is_master = False
    for topic, queue_id in (("orders", 9), ("not heard of yet", 0)):
        reply, _ = await parts.fetched(wanting((queue_id, 0), topic=topic))
        assert list(reply.results) == []


@in_loop
async def test_a_master_that_has_just_started_does_not_say_so_before_it_has_read_its_log() -> None:
    before = Kit(holds=True)
    before.put_topic(Topic("orders", 4, 4, 6))
    again = Kit(store=before.store, holds=True)
    reply, _ = await again.fetched(wanting((0, 0), (9, 0)))
    assert list(reply.results) == []
    again.confirm()
    again.dispatch()
    again.put_topic(Topic("bills", 4, 4, 6))
    reply, _ = await again.fetched(wanting((0, 0), (9, 0)))
    assert {queue_id: result.status for queue_id, result in by_queue(reply).items()} == {9: FetchReply.QUEUE_NOT_FOUND}


@in_loop
async def test_offsets_outside_the_queue_are_named_at_once_with_where_to_go_on() -> None:
    parts = Kit()
    parts.add_topic()
    await parts.append([b"a"])
    parts.dispatch()
    reply, _ = await parts.fetched(wanting((0, 5), (9, 0), max_wait_ms=60_000))
    results = by_queue(reply)
    assert (results[0].status, results[0].next_offset) == (FetchReply.OFFSET_OVERFLOW, 1)
    assert results[9].status == FetchReply.QUEUE_NOT_FOUND
    reply, _ = await parts.fetched(wanting((0, 0), topic="missing", max_wait_ms=60_000))
    assert reply.results[0].status == FetchReply.QUEUE_NOT_FOUND


@in_loop
async def test_an_offset_above_what_is_visible_waits_while_the_log_is_not_wholly_visible() -> None:
    parts = Kit(holds=True)
    parts.add_topic()
    parts.confirm()
    parts.dispatch()
    await parts.append([b"a", b"b"])
    reply, _ = await parts.fetched(wanting((0, 2)))
    assert list(reply.results) == [], "the messages are there, but not confirmed yet"
    parts.confirm()
    parts.dispatch()
    parts.role.is_master = False
    reply, _ = await parts.fetched(wanting((0, 9)))
    assert list(reply.results) == [], "a slave may be behind what its master has shown"


@in_loop
async def test_tags_filter_and_how_far_a_fruitless_scan_got_is_told() -> None:
    parts = Kit()
    parts.add_topic()
    for tag in ("paid", "refunded", "open"):
        await parts.append([tag.encode()], tag=tag)
    parts.dispatch()
    _, data = await parts.fetched(wanting((0, 0), expression="paid || open"))
    assert bodies_of(data) == [b"paid", b"open"]
    for everything in ("", "*", " * "):
        _, data = await parts.fetched(wanting((0, 0), expression=everything, kind=Filter.TAG))
        assert len(bodies_of(data)) == 3
    reply, data = await parts.fetched(wanting((0, 0), expression="lost", max_wait_ms=20))
    assert (data, reply.results[0].status, reply.results[0].next_offset) == (b"", FetchReply.NO_MATCHED_MESSAGE, 3)
    assert SCANS_MAX > 1


@pytest.mark.parametrize(
    ("header", "error"),
    [
        (wanting((0, 0), kind=Filter.SQL92, expression="a >"), InvalidArgument),
        (wanting((0, 0), kind=Filter.SQL92, expression="a = 1 OR " * 2000), InvalidArgument),
        (wanting((0, 0), expression="a || "), InvalidArgument),
        (wanting((0, -1)), InvalidArgument),
        (wanting((-1, 0)), InvalidArgument),
        (FetchHeader(), InvalidArgument),
        (wanting((0, 0), in_order=True), InvalidArgument),
        (in_order((0, 5, 5)), InvalidArgument),
        (
            FetchHeader(topics=[FetchHeader.Topic(topic="orders", queue_ids=[0], offsets=[0], ends=[1, 2])]),
            InvalidArgument,
        ),
        (FetchHeader(topics=[FetchHeader.Topic(topic="orders", queue_ids=[0, 1], offsets=[0])]), InvalidArgument),
        (wanting((0, 0), topic="writeonly"), Forbidden),
    ],
)
@in_loop
async def test_a_fetch_that_makes_no_sense_is_refused_by_name(header: FetchHeader, error: type[PenstockError]) -> None:
    parts = Kit()
    parts.add_topic()
    parts.add_topic("writeonly", perm=names.PERM_WRITE)
    with pytest.raises(error):
        await parts.fetched(header)


@in_loop
async def test_a_disabled_group_may_not_consume() -> None:
    parts = Kit()
    parts.add_topic()
    parts.put_group(Group("billing", consume_enable=False))
    with pytest.raises(Forbidden, match="consumeEnable"):
        await parts.fetched(wanting((0, 0)))


@in_loop
async def test_deleting_a_topic_wakes_those_who_wait_in_it() -> None:
    parts = Kit()
    parts.add_topic()
    waiting = asyncio.create_task(parts.fetched(wanting((0, 0), max_wait_ms=60_000)))
    await eventually(lambda: len(parts[Consume].fetch.waiters))
    parts.delete_topic("orders")
    assert (await waiting)[0].results[0].status == FetchReply.QUEUE_NOT_FOUND


@in_loop
async def test_a_light_queue_is_read_by_its_name_without_a_topic() -> None:
    parts = Kit(sizes={"lmq_enable": True, "multi_dispatch": True})
    parts.add_topic()
    lights = encode_properties({"INNER_MULTI_DISPATCH": "%LMQ%a"})
    records = encode_messages("orders", [b"lit"], [lights], 0, born_host=BORN)
    await parts.append_bytes(frames.pack(AppendHeader(topic="orders", count=1), records))
    parts.dispatch()
    reply, data = await parts.fetched(wanting((0, 0), (1, 0), topic="%LMQ%a"))
    assert bodies_of(data) == [b"lit"]
    assert by_queue(reply)[1].status == FetchReply.QUEUE_NOT_FOUND


@in_loop
async def test_a_topic_that_cannot_be_read_here_is_refused_not_empty() -> None:
    def refuse(topic: str) -> None:
        raise Forbidden(f"topic {topic} has batch consume queues")

    parts = Kit()
    parts.add_topic()
    parts.store.reader.check_readable = refuse  # type: ignore[method-assign]
    with pytest.raises(Forbidden, match="orders has batch consume queues"):
        await parts.fetched(wanting((0, 0)))


@in_loop
async def test_large_replies_are_made_one_after_the_other_with_others_between(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Kit(sizes={"segment_bytes": 16 << 20})
    parts.add_topic()
    for _ in range(80):
        await parts.append([b"x" * 60_000], queue_id=0)
    parts.dispatch()
    turns, made = Turns(), list[int]()
    pieces = Answer.pieces

    def noted(answer: Answer, *, copied: bool) -> list[bytes | memoryview]:
        made.append(turns.count)
        return pieces(answer, copied=copied)

    monkeypatch.setattr(Answer, "pieces", noted)
    header = wanting((0, 0), max_bytes=16 << 20)
    replies = await turns.of(asyncio.gather(*(parts.fetched(header) for _ in range(6))))
    assert len({data for _, data in replies}) == 1
    assert len(replies[0][1]) > TURN_BYTES
    assert len(set(made)) == len(made) == 6


@in_loop
async def test_between_queues_and_between_fetches_that_come_together_others_have_their_turn() -> None:
    """A thousand fetches of what is there held up a broker for 1.6 s: it lost its mastership."""
    parts = Kit()
    parts.add_topic()
    for queue_id in range(4):
        await parts.append([b"x"], queue_id=queue_id)
    parts.dispatch()
    header = wanting(*((queue_id, 0) for queue_id in range(4)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.runtime.turns.TURN_S", 0.0)
        alone, together = Turns(), Turns()
        _, data = await alone.of(parts.fetched(header))
        assert len(bodies_of(data)) == 4
        assert alone.count >= 3 * 4, "entries, absent records and records of each queue"
        replies = await together.of(asyncio.gather(*(parts.fetched(header) for _ in range(10))))
        assert [bodies_of(data) for _, data in replies] == [[b"x"] * 4] * 10
        assert together.count >= 10 * alone.count / 2
