"""What becomes of deliveries where a broker is silent, or one is named that nobody knows; no cluster is needed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from penstock.client import PenstockError, TopicNotFound
from penstock.gateway.v2.callers import Caller
from penstock.gateway.v2.consume.finishing import Acknowledgements, Finishing
from penstock.gateway.v2.consume.handles import Together
from penstock.gateway.v2.consume.renewal import Renewal
from penstock.gateway.v2.wire import definition_pb2 as v2
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.proto.errors import NameserverUnavailable, RouteNotFound
from penstock.proto.receipts import Receipt
from penstock.proto.wire.nameserver_pb2 import TopicRoute
from penstock.proto.wire.pop_pb2 import RECEIPT_UNKNOWN, AcknowledgeReply, AcknowledgeRequest
from tests.support.gateway import OneBroker, acknowledged
from tests.support.waiting import eventually

CALLER = Caller("client", "JAVA", "", "127.0.0.1:1", 60.0)
RECEIPT = Receipt("g", "topic", "broker-a", 0, 7, 1, 1, 1)


class _Silent(OneBroker):
    """A broker that answers once it may; ``asked``: the offsets of each request."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.asked: list[list[int]] = []

    async def at_data_port(self, _: str, method: Any, content: bytes, *__: Any) -> Any:
        request = AcknowledgeRequest.FromString(content)
        self.asked.append([offset for each in request.receipts for offset in each.offsets])
        await self.may_answer.wait()
        return AcknowledgeReply()


def codes(statuses: list[v2.Status]) -> list[str]:
    return [v2.Code.Name(status.code) for status in statuses]


def finishing(brokers: Any) -> Finishing:
    return Finishing(brokers, Renewal(brokers, lambda _: True))


def test_an_acknowledgement_at_a_silent_broker_is_answered_before_its_client_gives_up() -> None:
    async def scenario() -> None:
        brokers = _Silent()
        line, hurried = finishing(brokers), replace(CALLER, deadline_s=0.2)
        request = acknowledged("g", "topic", RECEIPT.text())
        plain = await line.acknowledge_plain(hurried, request.SerializeToString())
        assert plain is not None
        for answer in (wire.AckMessageResponse.FromString(plain), await line.acknowledge(hurried, request)):
            assert codes([answer.status, *[entry.status for entry in answer.entries]]) == ["PROXY_TIMEOUT"] * 2
        brokers.may_answer.set()

    asyncio.run(scenario())


@pytest.mark.parametrize(("is_answered", "is_plain"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_delivery_is_renewed_until_its_acknowledgement_is_answered(is_answered: bool, is_plain: bool) -> None:
    async def scenario() -> None:
        brokers: Any = _Silent()
        if is_answered:
            brokers.may_answer.set()
        renewal = Renewal(brokers, lambda _: True)
        renewal.hold(RECEIPT, CALLER.client_id)
        line, hurried = Finishing(brokers, renewal), replace(CALLER, deadline_s=60.0 if is_answered else 0.2)
        request = acknowledged("g", "topic", RECEIPT.text())
        if is_plain:
            assert await line.acknowledge_plain(hurried, request.SerializeToString()) is not None
        else:
            await line.acknowledge(hurried, request)
        assert renewal.holds_any == (not is_answered)
        brokers.may_answer.set()

    asyncio.run(scenario())


def test_what_nobody_waits_for_any_more_is_not_sent_behind_what_the_broker_is_silent_about() -> None:
    async def scenario() -> None:
        brokers: Any = _Silent()
        line = Acknowledgements(brokers, "broker-a", "g")

        def added(offset: int, timeout_s: float = 60.0) -> asyncio.Future[list[v2.Status]]:
            return line.add(Together.of([RECEIPT._replace(offset=offset)]), timeout_s)

        first = added(0)
        await eventually(lambda: len(brokers.asked) == 1)
        late, cancelled, last = added(1, 0.0), added(2), added(3)
        cancelled.cancel()
        assert codes(await late) == ["PROXY_TIMEOUT"]
        assert not first.done()
        brokers.may_answer.set()
        assert codes([*await first, *await last]) == ["OK", "OK"]
        assert brokers.asked == [[0], [3]]
        await eventually(lambda: line.is_idle)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TopicNotFound("topic 'topic' does not exist"), "INVALID_RECEIPT_HANDLE"),
        (RouteNotFound("the nameservers know no living broker"), "OK"),
        (NameserverUnavailable("no nameserver answers"), "OK"),
    ],
)
def test_a_receipt_of_a_topic_that_is_nowhere_is_asked_of_no_broker(error: PenstockError, expected: str) -> None:
    class Lost(_Silent):
        async def route(self, topic: str) -> TopicRoute:
            raise error

    async def scenario() -> None:
        brokers = Lost()
        brokers.may_answer.set()
        request = acknowledged("g", "topic", RECEIPT.text(), RECEIPT.text())
        answer = await finishing(brokers).acknowledge(CALLER, request)
        assert codes([answer.status, *[entry.status for entry in answer.entries]]) == [expected] * 3
        assert len(brokers.asked) == (expected == "OK")

    asyncio.run(scenario())


class _Forgetful(OneBroker):
    """A broker that has not given out any receipt."""

    async def at_master(self, *_: object, **__: object) -> AcknowledgeReply:
        return AcknowledgeReply(statuses=[RECEIPT_UNKNOWN])


class _Lost(_Forgetful):
    """No topic is anywhere."""

    async def route(self, topic: str) -> TopicRoute:
        raise TopicNotFound(f"topic {topic!r} does not exist")


@pytest.mark.parametrize("brokers", [_Forgetful(), _Lost()])
def test_a_dead_letter_that_cannot_be_made_any_more_is_told_as_done_or_its_client_would_ask_for_ever(
    brokers: OneBroker,
) -> None:
    group, topic = v2.Resource(name="g"), v2.Resource(name="topic")
    request = wire.ForwardMessageToDeadLetterQueueRequest(group=group, topic=topic, receipt_handle=RECEIPT.text())
    assert asyncio.run(finishing(brokers).forward(CALLER, request)).status.code == v2.OK
