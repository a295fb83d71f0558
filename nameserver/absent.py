"""Broker groups whose last member went, as they left, so that routes can tell what is missing. Pure."""

from __future__ import annotations

from penstock.proto.wire.common_pb2 import TopicConfig
from penstock.proto.wire.nameserver_pb2 import ShardView

from .shard import Shard, Topics

ABSENT_SHARDS_MAX = 10_000
ABSENT_TOPICS_MAX = 1_000_000
"""Counted per group. Above either, the group that went first is forgotten."""


class AbsentShards:
    """Who is absent, found by name and by topic."""

    def __init__(self) -> None:
        self._shards: dict[str, Shard] = {}  # the longest gone first
        self._holders: dict[str, set[str]] = {}  # topic -> names
        self._topics = 0  # of all of them together

    def __contains__(self, name: str) -> bool:
        return name in self._shards

    def add(self, shard: Shard, topics: Topics) -> frozenset[str]:
        """Remember ``shard``, whose last member went, with what it served then.

        Answers the topics of those that are forgotten for it.
        """
        shard.last_master_topics = topics  # of a slave, where no master was ever seen
        self._shards[shard.broker_name] = shard
        self._topics += len(topics)
        for topic in topics:
            self._holders.setdefault(topic, set()).add(shard.broker_name)
        forgotten: set[str] = set()
        while len(self._shards) > ABSENT_SHARDS_MAX or self._topics > ABSENT_TOPICS_MAX:
            forgotten |= self.remove(next(iter(self._shards)))
        return frozenset(forgotten)

    def remove(self, name: str) -> frozenset[str]:
        """Forget the group. Returns the topics that it held; none if it is not here."""
        shard = self._shards.pop(name, None)
        if shard is None:
            return frozenset()
        topics = shard.topics()
        self._topics -= len(topics)
        for topic in topics:
            holders = self._holders[topic]
            holders.discard(name)
            if not holders:
                del self._holders[topic]
        return frozenset(topics)

    def holds(self, topic: str) -> bool:
        """True if an absent group has ``topic``."""
        return topic in self._holders

    def configs(self, topic: str) -> dict[str, TopicConfig]:
        """The configuration of ``topic`` at each absent group that has it, by broker name, sorted."""
        return {name: self._shards[name].topics()[topic] for name in sorted(self._holders.get(topic, ()))}

    def names(self) -> list[str]:
        """The absent groups' broker names, sorted."""
        return sorted(self._shards)

    def topics(self) -> set[str]:
        """The topics that at least one absent group has."""
        return set(self._holders)

    def views(self) -> list[ShardView]:
        """A view of each absent group, without members, by name."""
        return [self._shards[name].view() for name in self.names()]
