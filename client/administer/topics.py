"""What :class:`~penstock.client.Admin` asks of topics: checked shapes and attributes, and routes as answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from penstock.formats.attributes.message_types import MESSAGE_TYPE, MessageType
from penstock.formats.attributes.order_conf import ORDER_CONF, order_conf
from penstock.proto.errors import BrokerUnavailable, InvalidArgument
from penstock.proto.names import check_broker_name
from penstock.proto.wire.common_pb2 import TopicConfig
from penstock.proto.wire.nameserver_pb2 import TopicRoute

from ..arguments import several
from ..cluster import asked
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
    if perm == 0:  # which on the wire leaves it as it is
        raise InvalidArgument("perm 0: READ 4, WRITE 2 or both, 6, are allowed")
    return asked(
        TopicConfig,
        topic=topic,
        read_queues=_queues(read_queues),
        write_queues=_queues(write_queues),
        perm=perm,
        attributes=attributes,
    )


def checked_brokers(brokers: Sequence[str] | None) -> list[str] | None:
    """The names as a list, or None. Raises InvalidArgument, InvalidName."""
    if brokers is None:
        return None
    names = [check_broker_name(name) for name in several("brokers", brokers, "a list of names of broker groups")]
    if not names:  # nothing would be done, and nobody told
        raise InvalidArgument("brokers=[]: must name at least one broker group; leave it out for all of them")
    return names


def with_type(attributes: Mapping[str, str] | None, type_name: str | None) -> dict[str, str]:
    """The attributes with the type of messages, unless it is None. Raises InvalidArgument."""
    if type_name is not None and type_name not in tuple(MessageType):
        raise InvalidArgument(f"type {type_name!r:.40}: {', '.join(MessageType)} are allowed")
    if not isinstance(attributes, (Mapping, type(None))):
        raise InvalidArgument(f"attributes={attributes!r:.60}: must be a mapping of texts to texts")
    return {**(attributes or {}), **({MESSAGE_TYPE: type_name} if type_name is not None else {})}


def order_queues(config: TopicConfig, brokers: Sequence[str], missing: Sequence[str]) -> None:
    """Make a new topic an order topic over ``brokers``; ``missing``: those that it cannot be made at now."""
    if missing:
        raise BrokerUnavailable(
            f"order topic {config.topic}: {', '.join(missing)} has no living master, and would never get keys: start "
            "it, or name the broker groups that the topic is for"
        )
    config.attributes[ORDER_CONF] = order_conf(dict.fromkeys(brokers, config.write_queues))


def update_steps(
    known: TopicInfo, config: TopicConfig, order_topic: bool | None, brokers: Sequence[str] | None
) -> list[TopicConfig]:
    """The changes to make, one after the other: no key is ever given a queue that is not there.

    Raises:
        InvalidArgument, BrokerUnavailable: an order topic is to be changed at some of its broker groups.
    """
    if not (known.is_ordered if order_topic is None else order_topic):
        if known.is_ordered:
            config.MergeFrom(TopicConfig(attributes={**(config.attributes or known.attributes), ORDER_CONF: ""}))
        return [config]
    if brokers is not None:
        raise InvalidArgument(f"topic {known.topic} is an order topic: change it at all its broker groups")
    if known.absent:
        raise BrokerUnavailable(
            f"topic {known.topic} is an order topic, and no member of {', '.join(known.absent)} lives: nothing was "
            "changed; start it first, or penstock cluster forget, if none ever will"
        )
    counts = {shard.broker_name: config.write_queues or shard.write_queues for shard in known.shards}
    attributes = {**(config.attributes or known.attributes), ORDER_CONF: order_conf(counts)}
    order, shape = TopicConfig(topic=config.topic), TopicConfig()
    shape.CopyFrom(config)
    shape.ClearField("attributes")
    if not config.write_queues:
        order.CopyFrom(shape)
    order.attributes.update(attributes)
    if not config.write_queues:
        return [order]
    has_fewer = any(config.write_queues < shard.write_queues for shard in known.shards)
    return [order, shape] if has_fewer else [shape, order]


def topic_info(route: TopicRoute) -> TopicInfo:
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
