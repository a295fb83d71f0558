"""A consumer group as the brokers tell it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.proto.wire.broker_pb2 import GroupDescription
from penstock.proto.wire.common_pb2 import GroupConfig

from .admin_results import GroupInfo, GroupMember, RetryPolicy


def group_info(group: str, answers: Mapping[str, GroupDescription]) -> GroupInfo:
    """Settings and living members, by broker group."""
    subscriptions: dict[str, dict[str, str]] = {}
    claimed: dict[str, list[tuple[str, str, int]]] = {}
    broadcasting: set[str] = set()
    for broker_name, answer in answers.items():
        for member in answer.members:
            subscriptions.setdefault(member.client_id, {}).update(member.subscriptions)
            mine = claimed.setdefault(member.client_id, [])
            if member.broadcasting:
                broadcasting.add(member.client_id)
            for queues in member.claimed:
                mine += [(queues.topic, broker_name, queue_id) for queue_id in queues.queue_ids]
    config = next(iter(answers.values())).config
    members = [
        GroupMember(name, subscriptions[name], sorted(claimed[name]), name in broadcasting)
        for name in sorted(subscriptions)
    ]
    return replace(as_info(config), group=group, members=members)


def as_info(config: GroupConfig) -> GroupInfo:
    """The settings."""
    return GroupInfo(
        config.group,
        config.consume_enable,
        config.retry_max_times,
        dict(config.attributes),
        retry_policy=RetryPolicy.from_wire(config.retry_policy),
        retry_queues=config.retry_queues,
        orderly=config.orderly,
        broadcast_enable=config.broadcast_enable,
        from_min_enable=config.from_min_enable,
    )
