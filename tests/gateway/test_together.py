"""Calls that are sent together have each their own answer, and none that goes alone takes another along."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest

from penstock.client import Forbidden, MessageTooLarge
from penstock.client.aio import AsyncProducer
from penstock.formats.columns import Column
from penstock.gateway.http2.call import Call
from penstock.gateway.http2.outgoing import Outgoing
from penstock.gateway.v2.callers import Caller
from penstock.gateway.v2.port import Port, opened
from penstock.gateway.v2.produce.together import BATCH_BYTES, CALLS_MAX, ODD_MAX
from penstock.gateway.v2.wire import definition_pb2 as v2
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.runtime.security.credentials import Security
from tests.support.client.running_cluster import RunningCluster
from tests.support.gateway import message, topic_of_type

CALLER = Caller("client", "JAVA", "", "10.0.0.1:1", 20.0)
TIMEOUT_S = 60.0


class _Call:
    """A call as whoever takes it over sees it."""

    def __init__(self, *messages: v2.Message) -> None:
        self.request = wire.SendMessageRequest(messages=messages).SerializeToString()
        self.is_over = False
        self.out = Outgoing(asyncio.get_running_loop())
        self.ended: asyncio.Future[wire.SendMessageResponse | str] = asyncio.get_running_loop().create_future()

    def finish(self, answer: bytes) -> None:
        assert not self.is_over
        self.ended.set_result(wire.SendMessageResponse.FromString(answer))

    def go_alone(self) -> None:
        self.ended.set_result("alone")

    def break_off(self, _: object) -> None:
        self.ended.set_result("broken off")

    def end(self, *_: object) -> None:
        self.ended.set_result("failed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster() as running:
        topic_of_type(running, "topic")
        topic_of_type(running, "other")
        topic_of_type(running, "ordered", "FIFO")
        yield running


def with_port(cluster: RunningCluster, work: Callable[[Port], Awaitable[None]]) -> None:
    """Do the work in an event loop, behind a message of each topic, which has waited for its route."""

    async def run() -> None:
        async with opened(cluster.namesrv, Security(), None) as port:
            for topic in ("topic", "other"):
                while isinstance((await taken(port, _Call(said(topic))))[0], str):
                    with suppress(TimeoutError):
                        await port.sending.send(CALLER, wire.SendMessageRequest(messages=[said(topic)]))
            await work(port)

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def said(topic: str = "topic", body: bytes = b"x", **system: Any) -> v2.Message:
    """A message that says where it was born."""
    return message(topic, body, **{"born_host": "h", **system})


async def taken(port: Port, *calls: _Call | tuple[_Call, Caller]) -> list[wire.SendMessageResponse | str]:
    """How calls of one round end."""
    both = [each if isinstance(each, tuple) else (each, CALLER) for each in calls]
    for call, caller in both:
        assert port.together.take(caller, cast(Call, call))
    return [await call.ended for call, _ in both]


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each batch has."""
    found: list[int] = []
    send = AsyncProducer.send_columns

    def noting(self: AsyncProducer, topic: str, bodies: Column, *rest: Any, **options: Any) -> Any:
        found.append(len(bodies))
        return send(self, topic, bodies, *rest, **options)

    monkeypatch.setattr(AsyncProducer, "send_columns", noting)
    return found


def check(call: _Call, ended: wire.SendMessageResponse | str) -> list[int]:
    """Make sure that the answer is of this call's messages, all stored; their offsets."""
    assert isinstance(ended, wire.SendMessageResponse), ended
    asked = wire.SendMessageRequest.FromString(call.request).messages
    assert [each.message_id for each in ended.entries] == [each.system_properties.message_id for each in asked]
    assert {each.code for each in (ended.status, *(entry.status for entry in ended.entries))} == {v2.Code.OK}
    return [each.offset for each in ended.entries]


def test_calls_of_a_round_are_one_batch_and_have_each_their_own_answer(
    cluster: RunningCluster, batches: list[int]
) -> None:
    async def work(port: Port) -> None:
        batches.clear()
        calls = [_Call(*[said(body=b"%d" % n) for _ in range(1 + n % 3)]) for n in range(30)]
        callers = [replace(CALLER, client_id=f"client-{n}", host=f"10.0.0.{n}:1") for n in range(30)]
        found: list[int] = []
        for call, ended in zip(calls, await taken(port, *zip(calls, callers, strict=True)), strict=True):
            found += check(call, ended)
        assert found == list(range(found[0], found[0] + 60))
        assert batches == [60]

    with_port(cluster, work)


def test_each_topic_has_its_own_batch(cluster: RunningCluster, batches: list[int]) -> None:
    async def work(port: Port) -> None:
        batches.clear()
        calls = [_Call(said(("topic", "other")[n % 2])) for n in range(10)]
        offsets = [check(*each)[0] for each in zip(calls, await taken(port, *calls), strict=True)]
        for mine in (offsets[::2], offsets[1::2]):
            assert mine == list(range(mine[0], mine[0] + 5))
        assert batches == [5, 5]

    with_port(cluster, work)


@pytest.mark.parametrize(
    ("calls", "messages", "body", "expected"),
    [
        (2 * CALLS_MAX + 1, 1, b"x", [CALLS_MAX, CALLS_MAX, 1]),
        (3, 1, bytes(BATCH_BYTES), [1, 1, 1]),
        (5, 1, bytes(BATCH_BYTES // 3), [2, 2, 1]),
        (3, 1000, b"x", [1000, 1000, 1000]),
        (3, 600, b"x", [600, 600, 600]),
    ],
)
def test_no_batch_grows_without_bounds(
    cluster: RunningCluster, batches: list[int], calls: int, messages: int, body: bytes, expected: list[int]
) -> None:
    async def work(port: Port) -> None:
        batches.clear()
        made = [_Call(*[said(body=body) for _ in range(messages)]) for _ in range(calls)]
        for each in zip(made, await taken(port, *made), strict=True):
            check(*each)
        assert batches == expected

    with_port(cluster, work)


def test_who_has_little_time_takes_none_from_others(cluster: RunningCluster, batches: list[int]) -> None:
    async def work(port: Port) -> None:
        assert not port.together.take(replace(CALLER, deadline_s=0.4), cast(Call, _Call(said())))
        batches.clear()
        calls = [_Call(said()) for _ in range(4)]
        callers = [replace(CALLER, deadline_s=deadline_s) for deadline_s in (20.0, 1.0, 17.0, 1.5)]
        ended = await taken(port, *zip(calls, callers, strict=True))
        for each in zip(calls, ended, strict=True):
            check(*each)
        assert batches == [2, 2]

    with_port(cluster, work)


ODD: tuple[dict[str, Any], ...] = (
    {"tag": "two words"},
    {"born_host": ""},
    {"message_type": v2.MessageType.FIFO},
)
"""What has to be looked at closely."""


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_call_goes_alone_and_the_others_together(
    cluster: RunningCluster, batches: list[int], odd: dict[str, Any]
) -> None:
    async def work(port: Port) -> None:
        calls = [_Call(said(), said()), _Call(said(), said(**odd)), _Call(said()), _Call(said(**odd)), _Call(said())]
        callers = [replace(CALLER, host=f"10.0.0.{n}:1") for n in range(5)]
        batches.clear()
        ended = await taken(port, *zip(calls, callers, strict=True))
        assert [ended[1], ended[3]] == ["alone"] * 2
        for index in (0, 2, 4):
            check(calls[index], ended[index])
        assert batches == [4]

    with_port(cluster, work)


def test_with_many_odd_calls_none_goes_along(cluster: RunningCluster, batches: list[int]) -> None:
    async def work(port: Port) -> None:
        batches.clear()
        calls = [_Call(said(**ODD[n % 3])) for n in range(ODD_MAX)] + [_Call(said())]
        callers = [replace(CALLER, host=f"10.0.0.{n}:1") for n in range(len(calls))]
        assert await taken(port, *zip(calls, callers, strict=True)) == ["alone"] * len(calls)
        assert not batches

    with_port(cluster, work)


@pytest.mark.parametrize("topic", ["no-such-topic", "ordered", ""])
def test_calls_to_a_topic_that_takes_none_of_them_go_alone(
    cluster: RunningCluster, batches: list[int], topic: str
) -> None:
    async def work(port: Port) -> None:
        batches.clear()
        assert await taken(port, *[_Call(said(topic)) for _ in range(3)]) == ["alone"] * 3
        assert not batches

    with_port(cluster, work)


def test_an_error_of_all_is_told_to_each_and_one_of_a_message_sends_each_alone(cluster: RunningCluster) -> None:
    async def work(port: Port) -> None:
        faults = cluster.brokers["broker-a"].faults
        refused = Forbidden("nobody writes here")
        faults.refuse("Append", refused, times=1)
        calls = [_Call(said()), _Call(said(), said())]
        for call, ended in zip(calls, await taken(port, *calls), strict=True):
            assert isinstance(ended, wire.SendMessageResponse)
            asked = wire.SendMessageRequest.FromString(call.request).messages
            assert [each.message_id for each in ended.entries] == [each.system_properties.message_id for each in asked]
            assert {each.status.message for each in ended.entries} == {refused.message}
        faults.refuse("Append", MessageTooLarge("one of them"), times=1)
        assert await taken(port, *[_Call(said()) for _ in range(3)]) == ["alone"] * 3

    with_port(cluster, work)


def test_a_call_that_is_over_is_not_sent_or_not_told(cluster: RunningCluster) -> None:
    async def work(port: Port) -> None:
        early, late, third = _Call(said()), _Call(said()), _Call(said())
        for call in (early, late, third):
            assert port.together.take(CALLER, cast(Call, call))
        early.is_over = True  # before the batch is made
        asyncio.get_running_loop().call_soon(setattr, late, "is_over", True)  # while it is under way
        check(third, await third.ended)
        assert not early.ended.done()
        assert not late.ended.done()

    with_port(cluster, work)
