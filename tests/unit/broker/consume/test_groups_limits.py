"""What members of a group may ask for: limits of subscriptions, members and claims."""

from __future__ import annotations

import pytest

from penstock.broker.consume import consumer_sessions
from penstock.broker.core.wire import TURN
from penstock.broker.limits import Limits
from penstock.proto.errors import (
    BrokerUnavailable,
    FlowControl,
    InvalidArgument,
    LimitReached,
)
from penstock.proto.wire.broker_pb2 import Filter
from tests.support.broker.members import Broker, with_broker


@pytest.mark.parametrize(
    ("join", "text"),
    [
        ({f"T{number}": Filter() for number in range(3)}, "maxSubscriptionsPerClient"),
        ({"T": Filter(kind=Filter.TAG, expression="x" * consumer_sessions.EXPRESSIONS_LENGTH_MAX)}, "characters"),
    ],
)
def test_what_a_member_subscribes_to_is_limited(join: dict[str, Filter], text: str) -> None:
    @with_broker
    async def body(broker: Broker) -> None:
        broker.sessions.limits = Limits(subscriptions_max=2)
        member = broker.connect()
        member.send_join("a", "g", **join)
        error = await member.ended()
        assert isinstance(error, LimitReached)
        assert text in str(error)

    body()


def test_members_of_a_group_and_of_all_groups_are_limited() -> None:
    @with_broker
    async def body(broker: Broker) -> None:
        broker.sessions.limits = Limits(members_max=2, sessions_max=3)
        await broker.join("a")
        former = await broker.join("b")
        await broker.join("b")
        assert isinstance(await former.ended(), BrokerUnavailable), "the same client again is not one more"
        for group, text in (("g", "maxClientsPerGroup"), ("h", ""), ("i", "maxConsumerSessions")):
            member = broker.connect()
            member.send_join("c", group)
            if text:
                error = await member.ended()
                assert isinstance(error, LimitReached)
                assert text in str(error)
            else:
                assert (await member.next()).joined.session_id

    body()


def test_a_claim_of_very_many_queues_leaves_others_their_turn_and_none_is_named_twice() -> None:
    @with_broker
    async def body(broker: Broker) -> None:
        many, other = await broker.join("a"), await broker.join("b", "h")
        many.claim(*range(4 * TURN))
        await many.next_grants(TURN)
        other.beat()
        while not (await other.next()).HasField("heartbeat"):
            continue
        await many.next_grants(3 * TURN)
        many.claim(1, 1)
        error = await many.ended()
        assert isinstance(error, InvalidArgument)
        assert "named twice" in str(error)

    body()


def test_claims_of_all_consumers_are_limited_and_free_again_when_they_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_sessions, "CLAIMS_OF_ALL_MAX", 6)

    @with_broker
    async def body(broker: Broker) -> None:
        one, other = await broker.join("a"), await broker.join("b", "h")
        one.claim(0, 1, 2)
        assert await one.next_grants(3) == [0, 1, 2]
        one.release(0)
        one.beat()
        while not (await one.next()).HasField("heartbeat"):
            continue
        other.claim(0, 1, 2, 3)
        assert await other.next_grants(4) == [0, 1, 2, 3]
        other.claim(4)
        error = await other.ended()
        assert isinstance(error, FlowControl)
        assert "all consumers together may claim 6 queues" in str(error)
        one.claim(4, 5, 6, 7)
        assert await one.next_grants(4) == [4, 5, 6, 7], "what the other wanted is free"

    body()
