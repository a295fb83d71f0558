from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.broker.consume.offsets import record_offsets
from penstock.broker.core.tables import offsets as offsets_module
from penstock.broker.core.tables.groups import GROUP_DELETED, Group
from penstock.broker.core.tables.offsets import OFFSETS, OffsetsByQueue, offset_records
from penstock.broker.core.tables.queue_ends import QUEUE_ENDS
from penstock.broker.core.tables.table import compact
from penstock.broker.core.tables.tables import Tables
from penstock.broker.core.tables.topics import TOPIC, TOPIC_DELETED, Topic
from penstock.formats.attributes.order_conf import ORDER_CONF
from penstock.proto.errors import Corrupt, MessageTooLarge
from tests.support.broker.kit import Kit, in_loop

ORDERS = Topic("orders", 8, 4, 6, {"message.type": "FIFO"}, {"order": True, "topicSysFlag": 2})


def offsets_body(group: str, offsets: OffsetsByQueue) -> bytes:
    return b"".join(compact(document) for _, document in offset_records(group, offsets))


def test_topic_and_group_survive_their_json_with_fields_that_only_rocketmq_knows() -> None:
    assert Topic.from_json(ORDERS.to_json()) == ORDERS
    group = Group("billing", False, 3, {"a": "b"}, extra={"consumeTimeoutMinute": 99})
    assert Group.from_json(group.to_json()) == group


def test_a_record_applied_twice_changes_nothing() -> None:
    tables = Tables()
    tables.apply(100, TOPIC, compact(ORDERS.to_json()))
    changes = tables.topics.changes
    tables.apply(100, TOPIC, compact(ORDERS.to_json()))
    assert tables.topics.changes == changes


def test_an_older_record_does_not_replace_a_newer_one() -> None:
    tables = Tables()
    tables.apply(200, OFFSETS, offsets_body("billing", {"orders": {0: 20}}))
    tables.apply(100, OFFSETS, offsets_body("billing", {"orders": {0: 10, 1: 5}}))
    assert tables.offsets.row("billing", "orders") == {0: 20, 1: 5}


def test_records_below_a_deletion_do_not_bring_the_topic_or_its_offsets_back() -> None:
    tables = Tables()
    tables.apply(300, TOPIC_DELETED, b'{"topicName":"orders"}')
    tables.apply(100, TOPIC, compact(ORDERS.to_json()))
    tables.apply(200, OFFSETS, offsets_body("billing", {"orders": {0: 1}}))
    assert tables.topics.get("orders") is None
    assert tables.offsets.get("billing", "orders", 0) == -1
    tables.apply(400, TOPIC, compact(ORDERS.to_json()))
    assert tables.topics.get("orders") is not None


def test_a_deletion_of_a_topic_takes_its_offsets_and_a_deletion_of_a_group_its_own() -> None:
    tables = Tables()
    for group in ("billing", "audit"):
        for topic in ("orders", "refunds"):
            tables.apply(10, OFFSETS, offsets_body(group, {topic: {0: 1}}))
    tables.apply(20, TOPIC_DELETED, b'{"topicName":"orders"}')
    tables.apply(30, GROUP_DELETED, b'{"groupName":"audit"}')
    assert tables.offsets.pairs() == [("billing", "refunds")]


def test_records_below_a_snapshots_position_are_ignored() -> None:
    tables = Tables()
    tables.offsets.put_loaded("billing", "orders", {0: 50})
    tables.offsets.base = 1000
    tables.apply(999, OFFSETS, offsets_body("billing", {"orders": {0: 10}}))
    assert tables.offsets.get("billing", "orders", 0) == 50
    tables.apply(1000, OFFSETS, offsets_body("billing", {"orders": {0: 60}}))
    assert tables.offsets.get("billing", "orders", 0) == 60


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"topicName": "x"}', b"\xff\xfe"])
def test_a_malformed_state_record_is_corrupt_by_name(body: bytes) -> None:
    with pytest.raises(Corrupt, match="state record at physical offset 77"):
        Tables().apply(77, TOPIC, body)


def test_an_unknown_kind_is_left_alone() -> None:
    Tables().apply(1, "FROM_THE_FUTURE", b"{}")


@pytest.mark.parametrize("is_deleted", [False, True], ids=["changed", "deleted"])
def test_what_changes_while_the_tables_are_repeated_is_not_told_as_it_was(
    monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    """The records that repeat it come behind the change: they would undo it."""
    monkeypatch.setattr(offsets_module, "QUEUES_PER_RECORD", 2)
    tables = Tables()
    tables.apply(10, QUEUE_ENDS, compact({"ends": {"orders": dict.fromkeys(range(4), 7)}}))
    tables.apply(20, OFFSETS, offsets_body("billing", {"orders": {0: 5, 1: 5}}))
    tables.apply(30, OFFSETS, offsets_body("billing", {"orders": {2: 5, 3: 5}}))

    changes: dict[str, tuple[str, dict[str, Any]]] = {
        tables.offsets.file_name: (OFFSETS, {"group": "billing", "offsets": {"orders": {"3": 9}}}),
        tables.queue_ends.file_name: (QUEUE_ENDS, {"ends": {"orders": {"3": 9}}}),
    }
    for table in (tables.offsets, tables.queue_ends):
        kind, document = (TOPIC_DELETED, {"topicName": "orders"}) if is_deleted else changes[table.file_name]
        told = table.repeated(100)
        table.apply(110, *next(told))
        table.apply(120, kind, document)
        for position, (kind, document) in enumerate(told, 130):
            table.apply(position, kind, document)

    assert tables.offsets.row("billing", "orders") == ({} if is_deleted else {0: 5, 1: 5, 2: 5, 3: 9})
    assert tables.queue_ends.of("orders") == ({} if is_deleted else {0: 7, 1: 7, 2: 7, 3: 9})


@in_loop
async def test_the_masters_records_are_applied_at_once_a_slaves_at_dispatch() -> None:
    parts = Kit()
    told: list[str] = []
    parts.tables.topics.on_changed.append(lambda updated, removed: told.extend([t.name for t in updated] + removed))
    parts.put_topic(ORDERS)
    parts.commit("billing", {"orders": {0: 17, 3: 4}, "refunds": {0: 2}})
    assert parts.tables.topics.get("orders") == ORDERS
    parts.dispatch()
    assert told == ["orders"]
    replica = Tables()
    for result in parts.store.replay(0):
        for position, record in result.state_records:
            replica.apply_record(position, record)
    assert replica.offsets.row("billing", "orders") == {0: 17, 3: 4}
    assert replica.offsets.get("billing", "refunds", 0) == 2
    assert replica.topics.get("orders") is not None


@in_loop
async def test_a_commit_of_many_queues_is_one_record_and_an_unchanged_one_none() -> None:
    parts = Kit()
    kinds = [kind for kind, _ in offset_records("billing", {"orders": dict.fromkeys(range(500), 1)})]
    assert kinds == [OFFSETS]
    record_offsets(parts.journal, parts.tables, "billing", {"orders": dict.fromkeys(range(500), 1)})
    end = parts.store.end_offset
    record_offsets(parts.journal, parts.tables, "billing", {"orders": {3: 1}})
    assert parts.store.end_offset == end


def test_an_order_topic_that_is_none_any_more_is_none_for_rocketmq_either() -> None:
    for fields in ({}, {"topicSysFlag": 2}):
        made = Topic("steps", 4, 4, 6, {ORDER_CONF: "broker-a:4"}, fields)
        document = made.to_json()
        assert document["order"] is True
        assert Topic.from_json(document) == made
        assert replace(Topic.from_json(document), attributes={}).to_json()["order"] is False


@in_loop
async def test_the_brokers_state_may_be_larger_than_messages() -> None:
    """Else what is repeated before log files go would not fit, and none would ever go."""
    parts = Kit(maxMessageSize=1024)
    parts.add_topic()
    offsets = dict.fromkeys(range(1000), 1 << 40)
    parts.commit("billing", {"orders": offsets})
    parts.dispatch()
    assert parts.tables.offsets.row("billing", "orders") == offsets
    with pytest.raises(MessageTooLarge):
        await parts.append([bytes(1025)])
