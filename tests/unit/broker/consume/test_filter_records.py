"""SQL92 conditions of groups in ``consumerFilter.json``: RocketMQ's are kept, those of members recorded."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from penstock.broker.consume import filter_records
from penstock.broker.consume.consume import Consume
from penstock.broker.core.tables.consumer_filters import (
    CONSUMER_FILTER,
    CONSUMER_FILTER_DELETED,
    ConsumerFilter,
    ConsumerFilters,
)
from penstock.broker.core.tables.groups import GROUP_DELETED
from penstock.broker.core.tables.snapshots import Snapshots
from penstock.broker.core.tables.tables import Tables
from penstock.broker.core.tables.topics import TOPIC_DELETED
from penstock.formats.bloom import BITS, bit_positions
from penstock.proto.errors import DiskFull
from penstock.proto.wire.broker_pb2 import ConsumerEvent, ConsumerRequest, Filter
from tests.support.broker.kit import Kit, in_loop
from tests.support.golden import GOLDEN

THEIRS = GOLDEN / "normal" / "config" / "consumerFilter.json"
RED = Filter(kind=Filter.SQL92, expression="colour = 'red'")
BLUE = Filter(kind=Filter.SQL92, expression="colour = 'blue'")
TAGS = Filter(kind=Filter.TAG, expression="a || b")


async def join(node: Kit, client_id: str = "c", **subscriptions: Filter) -> None:
    """Be a member of ``billing`` until everything that the join causes is done."""

    async def requests() -> AsyncIterator[ConsumerRequest]:
        yield ConsumerRequest(
            join=ConsumerRequest.Join(group="billing", client_id=client_id, subscriptions=subscriptions)
        )
        yield ConsumerRequest(heartbeat={})
        await asyncio.Event().wait()

    async with contextlib.aclosing(node[Consume].sessions.serve(requests(), None)) as stream:
        async for event in stream:
            assert isinstance(event, ConsumerEvent)
            if event.WhichOneof("event") == "heartbeat":
                return


def recorded(node: Kit) -> dict[str, str]:
    """Topic -> condition of ``billing``, as the table has it."""
    table = node.tables[ConsumerFilters]
    assert sorted(table.topics_of("billing")) == sorted(each.topic for each in table.values())
    return {each.topic: each.expression for each in table.values()}


def test_bits_are_rocketmqs() -> None:
    (entry,) = json.loads(THEIRS.read_text())["filterDataByTopic"]["GoldTopic"]["groupFilterData"].values()
    assert bit_positions("GoldSqlGroup", "GoldTopic") == entry["bloomFilterData"]["bitPos"]
    assert entry["bloomFilterData"]["bitNum"] == BITS
    for length in range(40):
        assert all(0 <= bit < BITS for bit in bit_positions("g" * length, "ü"))


def test_a_store_taken_over_keeps_rocketmqs_entries_in_their_form(tmp_path: Path) -> None:
    (tmp_path / THEIRS.name).write_bytes(THEIRS.read_bytes())
    tables = Tables([ConsumerFilters])
    assert Snapshots(tmp_path, tables).load(0, 100, log_has_all=False).imported
    ((kind, document),) = tables[ConsumerFilters].repeated(1000)
    assert kind == CONSUMER_FILTER
    Snapshots(tmp_path, tables).write_anew(200)
    written, theirs = json.loads((tmp_path / THEIRS.name).read_text()), json.loads(THEIRS.read_text())
    assert written["filterDataByTopic"] == theirs["filterDataByTopic"]
    assert list(document) == list(theirs["filterDataByTopic"]["GoldTopic"]["groupFilterData"]["GoldSqlGroup"])
    again = Tables([ConsumerFilters])
    assert not Snapshots(tmp_path, again).load(0, 300, log_has_all=False).imported
    assert again[ConsumerFilters].values() == tables[ConsumerFilters].values()


@in_loop
async def test_what_members_subscribe_is_recorded_once_and_survives_a_restart() -> None:
    node = Kit()
    node.add_topic()
    await join(node, orders=RED, other=TAGS)
    assert recorded(node) == {"orders": RED.expression}
    end = node.store.end_offset
    await join(node, orders=RED, other=TAGS)
    assert node.store.end_offset == end, "nothing is new"
    (entry,) = node.tables[ConsumerFilters].values()
    assert entry == replace(
        ConsumerFilter.new("orders", "billing", RED.expression, entry.born_ms), version=entry.born_ms
    )
    await join(node, orders=BLUE)
    node = Kit.restarted(node)
    assert recorded(node) == {"orders": BLUE.expression}
    await join(node, orders=TAGS)
    assert recorded(node) == {}
    assert recorded(Kit.restarted(node)) == {}


@in_loop
async def test_what_is_no_condition_or_cannot_be_recorded_keeps_nobody_out() -> None:
    node = Kit()
    wrong = Filter(kind=Filter.SQL92, expression="colour ==")
    long = Filter(kind=Filter.SQL92, expression="a = 1 OR " * 2000 + "a = 2")
    await join(node, orders=wrong, others=long)
    assert recorded(node) == {}
    await join(node, **{"not a topic": RED})
    assert recorded(node) == {}
    node.change_role(master=False)
    await join(node, orders=RED)
    assert recorded(node) == {}
    node.change_role(master=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(node.journal), "put", _no_space)
        await join(node, **{"c2": RED})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filter_records, "FILTERS_MAX", 1)
        await join(node, a=RED, b=RED)
    assert recorded(node) == {"a": RED.expression}


def _no_space(*_: object) -> int:
    raise DiskFull("no space")


def test_entries_go_with_their_topic_or_group_and_records_apply_once() -> None:
    table = ConsumerFilters()
    for position, (topic, group) in enumerate([("t", "g"), ("t", "h"), ("u", "g"), ("u", "h")]):
        entry = ConsumerFilter.new(topic, group, "a = 1", 5).to_json()
        for _ in range(2):
            table.apply(position, CONSUMER_FILTER, entry)
    table.apply(10, TOPIC_DELETED, {"topicName": "t"})
    assert (table.topics_of("g"), table.topics_of("h")) == (["u"], ["u"])
    table.apply(11, GROUP_DELETED, {"groupName": "g"})
    table.apply(2, CONSUMER_FILTER, ConsumerFilter.new("u", "g", "a = 1", 5).to_json())  # older than its deletion
    assert (table.topics_of("g"), [each.name for each in table.values()]) == ([], ["u@h"])
    for _ in range(2):
        table.apply(12, CONSUMER_FILTER_DELETED, {"topic": "u", "consumerGroup": "h"})
    assert not table.values()
    other = ConsumerFilters()
    other.put_loaded("x@y", ConsumerFilter.new("x", "y", "b = 2", 7))
    table.adopt(other)
    assert table.topics_of("y") == ["x"]


def test_a_deletion_looks_at_its_own_entries_alone() -> None:
    class Unseen(dict[str, ConsumerFilter]):
        def values(self) -> NoReturn:
            raise AssertionError("a slice of the log may delete thousands of topics")

    table = ConsumerFilters()
    for position, (topic, group) in enumerate([("t", "g"), ("t", "odd@name"), ("u", "g")]):
        table.apply(position, CONSUMER_FILTER, ConsumerFilter.new(topic, group, "a = 1", 5).to_json())
    table._values = Unseen(table._values)
    table.apply(10, TOPIC_DELETED, {"topicName": "t"})
    assert (list(table), table.topics_of("g"), table.topics_of("odd@name")) == (["u@g"], ["u"], [])
    table.apply(11, GROUP_DELETED, {"groupName": "g"})
    assert not list(table)
