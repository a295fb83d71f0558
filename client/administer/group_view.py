"""A consumer group as it is asked for, and as the brokers tell it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.proto.errors import PenstockError
from penstock.proto.wire.broker_pb2 import GroupDescription
from penstock.proto.wire.common_pb2 import GroupConfig
from penstock.proto.wire.pop_pb2 import PopGroup
from penstock.proto.wire.pop_pb2_grpc import PopStub
from penstock.proto.wire.transactions_pb2 import ProducerGroupName
from penstock.proto.wire.transactions_pb2_grpc import TransactionsStub

from ..cluster import Calls, asked
from .admin_results import GroupInfo, GroupMember, ProducerInfo, RetryPolicy, same_fields

log = logging.getLogger(__name__)


def look_at_group(calls: Calls, group: str, timeout_s: float) -> GroupInfo:
    """Settings, living members, and what simple consumers have in flight at the masters that answer.

    Raises:
        GroupNotFound: nobody has it.
    """
    answers, _ = calls.describe_group(group, timeout_s)
    pops, in_flight = False, 0
    for name in answers:
        try:
            address = calls.directory.address(name, timeout_s)
            told = calls.connections.call(address, "DescribePop", PopGroup(group=group), timeout_s, service=PopStub)
        except PenstockError as error:  # as long as it has no master nobody pops there
            log.info("in flight is not known broker=%s error=%s", name, error.message)
            continue
        pops, in_flight = pops or told.pops, in_flight + told.in_flight
    return replace(group_info(group, answers), pops=pops, in_flight=in_flight)


def group_info(group: str, answers: Mapping[str, GroupDescription]) -> GroupInfo:
    """Settings and living members, by broker group."""
    members: dict[str, GroupMember] = {}
    for broker_name, answer in answers.items():
        for told in answer.members:
            known = members.get(told.client_id) or GroupMember(told.client_id, {}, [])
            known.subscriptions.update(told.subscriptions)
            for queues in told.claimed:
                known.queues.extend((queues.topic, broker_name, queue_id) for queue_id in queues.queue_ids)
            members[told.client_id] = replace(known, broadcasting=known.broadcasting or told.broadcasting)
    for member in members.values():
        member.queues.sort()
    config = next(iter(answers.values())).config
    return replace(as_info(config), group=group, members=[members[name] for name in sorted(members)])


def group_config(group: str, retry_policy: RetryPolicy | Sequence[float] | None, **settings: Any) -> GroupConfig:
    """The wire's message of a group; None: as it is, or the default. Raises InvalidArgument."""
    policy = None if retry_policy is None else RetryPolicy.of(retry_policy).to_wire()
    return asked(GroupConfig, group=group, retry_policy=policy, **settings)


def as_info(config: GroupConfig) -> GroupInfo:
    known = same_fields(GroupInfo, config)
    own = {"attributes": dict(config.attributes), "retry_policy": RetryPolicy.from_wire(config.retry_policy)}
    return GroupInfo(**{**known, **own})


def producers_of(calls: Calls, group: str, timeout_s: float) -> list[ProducerInfo]:
    """The group's producers of transactions that the living masters know, by client id."""
    request, found = ProducerGroupName(group=group), dict[str, ProducerInfo]()
    for name in calls.directory.masters(timeout_s)[0]:
        answer = calls.at_master(name, "ListProducers", request, timeout_s, service=TransactionsStub)
        for each in answer.members:
            known = found.setdefault(each.client_id, ProducerInfo(each.client_id, each.answers))
            known.broker_names.append(name)
    return [found[client_id] for client_id in sorted(found)]
