"""Which queues the sharding keys of an order topic are spread over, for good: the topic attribute ``order.conf``.

``broker-a:8;broker-b:8``: so many queues of each broker group, whether it lives or not. Source: RocketMQ's order
configuration, ``NamesrvUtil#NAMESPACE_ORDER_TOPIC_CONFIG`` and ``TopicRouteData#orderTopicConf``; differs: nameservers
keep it there, and here every broker group of the topic does, so that any of them tells of all.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.proto.errors import InvalidArgument, InvalidName
from penstock.proto.names import check_broker_name

ORDER_CONF = "order.conf"
TEXT_MAX = 65_536
_QUEUES_MAX = 65_536
_ALL_QUEUES_MAX = 1 << 20
"""Of all broker groups: clients count through each."""

Shards = tuple[tuple[str, int], ...]
"""``(broker name, queues)``, by name."""


def order_conf(queues: Mapping[str, int]) -> str:
    """The attribute's value; ``queues``: how many each broker group has."""
    return ";".join(f"{name}:{queues[name]}" for name in sorted(queues))


def parse_order_conf(text: str) -> Shards:
    """The inverse. Raises InvalidArgument, InvalidName: the text is no order configuration."""
    if len(text) > TEXT_MAX:
        raise InvalidArgument(f"{ORDER_CONF} of {len(text)} characters: at most {TEXT_MAX} are allowed")
    found: dict[str, int] = {}
    for part in text.split(";"):
        name, _, digits = part.rpartition(":")
        count = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= 5 else 0
        if not name or not 1 <= count <= _QUEUES_MAX or check_broker_name(name) in found:
            raise InvalidArgument(f"{ORDER_CONF} {text[:80]!r}: must be as broker-a:8;broker-b:8")
        found[name] = count
    total = sum(found.values())
    if total > _ALL_QUEUES_MAX:
        raise InvalidArgument(
            f"{ORDER_CONF} of {total} queues at {len(found)} broker groups: at most {_ALL_QUEUES_MAX}, give fewer"
        )
    return tuple(sorted(found.items()))


def ordered_shards(attributes: Mapping[str, str]) -> Shards:
    """What the keys of a topic with these attributes are spread over; empty where it is no order topic."""
    text = attributes.get(ORDER_CONF)
    if not text:
        return ()
    try:
        return parse_order_conf(text)
    except (InvalidArgument, InvalidName):
        return ()
