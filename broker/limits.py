"""How much clients may make a broker hold: what grows with what they ask has a limit here, or a constant beside it.

A limit is below what others can take: nameservers refuse a broker with more than 100,000 topics, and a registration
is one message. ``docs/reference/limits.md`` lists all of them, with their errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.proto.errors import LimitReached
from penstock.runtime.conf import Section, key

_MANY = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(Section):
    """What clients may make a broker hold; RocketMQ has none of these keys."""

    lanes_max: int = key(
        "maxProducerLanes",
        default=100_000,
        within=(1000, _MANY),
        doc="ordered streams of idempotent producers that are remembered; the least recently used is forgotten",
    )
    lanes_per_producer_max: int = key(
        "maxLanesPerProducer", default=20_000, within=(8, _MANY), doc="the same of one producer; more are refused"
    )

    topics_max: int = key("maxTopicNum", default=50_000, within=(1, 90_000), doc="topics of this broker group")
    groups_max: int = key(
        "maxSubscriptionGroupNum", default=20_000, within=(1, 1_000_000), doc="consumer groups of this broker group"
    )
    attribute_bytes_max: int = key(
        "maxAttributeBytes",
        default=4096,
        within=(256, 65_536),
        doc="names and values of the attributes of one topic or group",
    )
    subscriptions_max: int = key(
        "maxSubscriptionsPerClient", default=2000, within=(1, 65_536), doc="topics that one consumer subscribes to"
    )
    members_max: int = key(
        "maxClientsPerGroup", default=5000, within=(1, 100_000), doc="consumers of one group at this broker"
    )
    sessions_max: int = key(
        "maxConsumerSessions", default=20_000, within=(1, 1_000_000), doc="consumers at this broker, of all groups"
    )
    fetches_max: int = key(
        "maxWaitingFetches", default=20_000, within=(1, 1_000_000), doc="fetches that are under way, of all consumers"
    )
    connection_fetches_max: int = key(
        "maxFetchesPerConnection",
        default=1000,
        within=(1, 65_536),
        doc="the same of one connection, which is one client's",
    )
    reply_bytes_max: int = key(
        "maxFetchBytesHeld",
        default=512 << 20,
        within=(32 << 20, 1 << 40),
        doc="replies to fetches that wait for their consumers to take them",
    )
    calls_max: int = key(
        "maxConcurrentCalls",
        default=50_000,
        within=(100, 1_000_000),
        doc="calls under way, of all clients; open sessions and streams are calls",
    )


def check_attributes(owner: str, attributes: Mapping[str, str], limits: Limits) -> None:
    """Raises LimitReached for attributes that take too much; so many that they surely do are not looked at."""
    if len(attributes) > limits.attribute_bytes_max:
        raise LimitReached(
            f"{owner}: {len(attributes)} attributes: at most {limits.attribute_bytes_max} bytes of them are allowed "
            "(maxAttributeBytes)"
        )
    size = sum(len(name.encode()) + len(value.encode()) for name, value in attributes.items())
    if size > limits.attribute_bytes_max:
        raise LimitReached(
            f"{owner}: attributes of {size} bytes: at most {limits.attribute_bytes_max} are allowed (maxAttributeBytes)"
        )
