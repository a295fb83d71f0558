"""What :class:`~penstock.client.Admin` asks of topics: checked shapes and attributes, and routes as answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from penstock.formats.message_types import MESSAGE_TYPE, MessageType
from penstock.proto.errors import InvalidArgument
from penstock.proto.wire.common_pb2 import TopicConfig
from penstock.proto.wire.nameserver_pb2 import TopicRoute

from .admin_results import TopicInfo, TopicShard

QUEUES_MAX = 65_536
MessageTypeName = Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"]


def topic_config(
    topic: str,
    read_queues: int | None,
    write_queues: int | None,
    perm: int | None,
    attributes: Mapping[str, str] | None,
) -> TopicConfig:
    """The wire's message of a topic; None: as it is, or the default. Raises InvalidArgument."""
    return TopicConfig(
        topic=topic,
        read_queues=_queues(read_queues),
        write_queues=_queues(write_queues),
        perm=perm or 0,
        attributes=attributes or {},
    )


def with_type(attributes: Mapping[str, str] | None, type_name: str | None) -> dict[str, str]:
    """The attributes with the type of messages, unless it is None. Raises InvalidArgument."""
    if type_name is not None and type_name not in tuple(MessageType):
        raise InvalidArgument(f"type {type_name!r:.40}: {', '.join(MessageType)} are allowed")
    return {**(attributes or {}), **({MESSAGE_TYPE: type_name} if type_name is not None else {})}


def topic_info(route: TopicRoute) -> TopicInfo:
    """Where a topic lies, as its route tells."""
    shards = [
        TopicShard(queues.broker_name, queues.read_queues, queues.write_queues, queues.perm) for queues in route.queues
    ]
    return TopicInfo(route.topic, shards, dict(route.attributes), [part.broker_name for part in route.absent])


def _queues(count: int | None) -> int:
    if count is None:
        return 0
    if not isinstance(count, int) or not 1 <= count <= QUEUES_MAX:
        raise InvalidArgument(f"queues {count!r}: must be 1..{QUEUES_MAX}")
    return count
