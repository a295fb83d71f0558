"""What a group's settings allow its members."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from penstock.broker.consume.consume import Consume
from penstock.broker.core.tables.groups import Group
from penstock.broker.core.tables.retry_policy import RetryPolicy
from penstock.proto.errors import Forbidden, InvalidArgument
from penstock.proto.wire.broker_pb2 import ConsumerEvent, ConsumerRequest
from penstock.proto.wire.common_pb2 import GroupConfig, TopicQueues
from penstock.proto.wire.common_pb2 import RetryPolicy as WirePolicy
from tests.support.broker.kit import Kit, in_loop
from tests.support.broker.requests import wanting


async def asked(**settings: Any) -> Kit:
    """A broker with three messages and a group whose settings are changed as an administrator does."""
    node = Kit()
    node.add_topic()
    await node.append([b"1", b"2", b"3"])
    node.dispatch()
    await node[Consume].put_group(GroupConfig(group="billing", **settings))
    return node


async def joined(node: Kit, **join: Any) -> list[ConsumerEvent]:
    """What a member is sent that claims a queue."""

    async def requests() -> AsyncIterator[ConsumerRequest]:
        yield ConsumerRequest(join=ConsumerRequest.Join(group="billing", client_id="c", **join))
        yield ConsumerRequest(claim=TopicQueues(topic="orders", queue_ids=[0]))
        await asyncio.Event().wait()

    events = []
    async with contextlib.aclosing(node[Consume].sessions.serve(requests(), None)) as stream:
        async for event in stream:
            events.append(event)
            if event.WhichOneof("event") == "granted":
                break
    return events


@in_loop
async def test_an_orderly_group_refuses_members_that_are_not() -> None:
    node = await asked(orderly=True)
    with pytest.raises(Forbidden, match=r"group billing is orderly .*orderly=True"):
        await joined(node, concurrent=True)
    assert await joined(node)
    await node[Consume].put_group(GroupConfig(group="billing"))  # not mentioned: stays
    with pytest.raises(Forbidden):
        await joined(node, concurrent=True)
    await node[Consume].put_group(GroupConfig(group="billing", orderly=False))
    assert await joined(node, concurrent=True)


@in_loop
async def test_what_a_change_of_a_group_does_not_mention_stays_as_it_is() -> None:
    node = await asked()
    new = node.tables.groups.get("billing")
    assert new is not None
    assert (new.consume_enable, new.retry_max_times, new.attributes) == (True, 16, {})
    given = {"a": "1", "b": "2"}
    await node[Consume].put_group(
        GroupConfig(group="billing", consume_enable=False, retry_max_times=0, attributes=given)
    )
    changed = await node[Consume].put_group(GroupConfig(group="billing", broadcast_enable=False))
    assert changed == replace(new, consume_enable=False, retry_max_times=0, attributes=given, broadcast_enable=False)
    removed = await node[Consume].put_group(GroupConfig(group="billing", attributes={"a": "1", "b": ""}))
    assert removed == replace(changed, attributes={"a": "1"})


@in_loop
async def test_a_group_that_may_not_broadcast_refuses_the_fetches_of_those_who_do() -> None:
    node = await asked(broadcast_enable=False)
    with pytest.raises(Forbidden, match="group billing may not broadcast: its consumeBroadcastEnable is false"):
        await node.fetched(wanting((0, 0), broadcasting=True))
    assert (await node.fetched(wanting((0, 0))))[0].results[0].count == 3
    with pytest.raises(Forbidden, match="group billing may not broadcast: its consumeBroadcastEnable is false"):
        await joined(node, broadcasting=True)


@in_loop
async def test_a_broadcasting_member_claims_nothing() -> None:
    node = await asked()
    with pytest.raises(InvalidArgument, match="client c broadcasts: it gets everything and may claim nothing"):
        await joined(node, broadcasting=True)


@pytest.mark.parametrize(("allowed", "begin"), [(True, 0), (False, 3)])
@in_loop
async def test_a_group_without_commits_begins_at_the_oldest_only_where_it_may(allowed: bool, begin: int) -> None:
    node = await asked(from_min_enable=allowed)
    granted = (await joined(node))[-1].granted
    assert (granted.committed_offset, granted.min_offset, granted.max_offset) == (-1, begin, 3)
    node.commit("billing", {"orders": {0: 1}})
    granted = (await joined(node))[-1].granted
    assert (granted.committed_offset, granted.min_offset) == (1, 0)


def test_rocketmqs_fields_are_these_settings() -> None:
    theirs = {
        "groupName": "billing",
        "consumeMessageOrderly": True,
        "consumeBroadcastEnable": False,
        "consumeFromMinEnable": False,
    }
    group = Group.from_json(theirs)
    assert (group.orderly, group.broadcast_enable, group.from_min_enable) == (True, False, False)
    assert theirs.items() <= group.to_json().items()
    assert Group.from_json(Group("g").to_json()) == Group("g")


def test_policies_are_read_and_written_as_rocketmq_does() -> None:
    for policy in (RetryPolicy(), RetryPolicy((1000, 60_000)), RetryPolicy((), 5000, 7_200_000, 2)):
        assert RetryPolicy.from_json(policy.to_json()) == policy
        assert RetryPolicy.from_wire("g", policy.to_wire()) == policy
    theirs = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000, 10_000, 30_000]}}
    assert RetryPolicy.from_json(theirs).delays_ms == (10_000, 30_000)
    assert RetryPolicy.from_json({"type": "EXPONENTIAL"}) == RetryPolicy((), 5000, 7_200_000, 2)
    for wrong in (
        WirePolicy(delays_ms=[0]),
        WirePolicy(delays_ms=[1] * 65),
        WirePolicy(initial_ms=5),
        WirePolicy(initial_ms=9, max_ms=5, multiplier=2),
        WirePolicy(delays_ms=[1], initial_ms=1, max_ms=5, multiplier=2),
    ):
        with pytest.raises(InvalidArgument, match="group g: retry_policy"):
            RetryPolicy.from_wire("g", wrong)
