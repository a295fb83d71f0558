"""Fetches with an SQL92 condition."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.consume.consume import Consume
from penstock.proto.errors import InvalidArgument
from penstock.proto.wire.broker_pb2 import FetchHeader, FetchReply, Filter
from tests.support.broker.kit import Kit, in_loop
from tests.support.broker.requests import wanting
from tests.support.broker.stores import bodies_of
from tests.support.waiting import eventually


def sql(condition: str, *queues: tuple[int, int], **header: Any) -> FetchHeader:
    return wanting(*(queues or ((0, 0),)), kind=Filter.SQL92, expression=condition, **header)


@in_loop
async def test_a_condition_filters_and_how_far_a_fruitless_search_got_is_told() -> None:
    parts = Kit()
    parts.add_topic()
    for tag in ("paid", "refunded", "open"):
        await parts.append([tag.encode()], tag=tag)
    parts.dispatch()
    reply, data = await parts.fetched(sql("TAGS IN ('paid', 'open') AND missing IS NULL"))
    assert bodies_of(data) == [b"paid", b"open"]
    assert reply.results[0].next_offset == 3
    reply, data = await parts.fetched(sql("TAGS = 'lost'", max_wait_ms=20))
    assert (data, reply.results[0].status, reply.results[0].next_offset) == (b"", FetchReply.NO_MATCHED_MESSAGE, 3)
    reply, data = await parts.fetched(sql("TAGS <> 'refunded'", max_bytes=1))
    assert (bodies_of(data), reply.results[0].next_offset) == ([b"paid"], 2)


@in_loop
async def test_a_fetch_with_a_condition_waits_on_when_what_comes_does_not_match() -> None:
    parts = Kit()
    parts.add_topic()
    waiting = asyncio.create_task(parts.fetched(sql("TAGS = 'paid'", max_wait_ms=10_000)))
    await eventually(lambda: len(parts[Consume].fetch.waiters) == 1)
    await parts.append([b"no"], tag="open")
    parts.dispatch()
    await asyncio.sleep(0)
    assert not waiting.done()
    await parts.append([b"yes"], tag="paid")
    parts.dispatch()
    reply, data = await waiting
    assert (bodies_of(data), reply.results[0].next_offset) == ([b"yes"], 2)


def test_a_fetch_that_has_searched_enough_says_so_and_loses_no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.consume.answer.SEARCHED_BYTES", 200)  # of two queues

    @in_loop
    async def check() -> None:
        parts = Kit()
        parts.add_topic(queues=8)
        for queue_id in range(8):
            await parts.append([b"%d" % queue_id], tag="paid" if queue_id == 5 else "open", queue_id=queue_id)
        parts.dispatch()
        offsets, found = dict.fromkeys(range(8), 0), b""
        for _ in range(20):
            wanted = sql("TAGS = 'paid'", *offsets.items(), max_wait_ms=60_000)
            reply, data = await asyncio.wait_for(parts.fetched(wanted), 30)
            found += data
            assert reply.results
            offsets |= {each.queue_id: each.next_offset for each in reply.results}
            if found:
                break
        assert bodies_of(found) == [b"5"]

    check()


@in_loop
async def test_conditions_are_refused_where_they_are_switched_off() -> None:
    parts = Kit(enablePropertyFilter=False)
    parts.add_topic()
    with pytest.raises(InvalidArgument, match="enablePropertyFilter = false"):
        await parts.fetched(sql("TAGS = 'paid'"))
