"""Queues as routes tell of them and as requests name them: which may be read, which may be written."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.formats.attributes.order_conf import Shards, ordered_shards
from penstock.proto.errors import InvalidArgument
from penstock.proto.names import PERM_READ, PERM_WRITE
from penstock.proto.wire.common_pb2 import TopicOffsets, TopicQueues

from ..message import MessageQueue
from .routes import master_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from penstock.proto.wire.nameserver_pb2 import TopicRoute

_SCAN_MAX = 256

Place = tuple[str, str, int]
"""Topic, broker name, queue id: a :class:`~penstock.client.MessageQueue`, or a tuple like one."""


def readable_queues(route: TopicRoute | None) -> list[MessageQueue]:
    """The queues of a topic that may be read, of living broker groups and of those that are known to return."""
    if route is None or not route.exists:
        return []
    return [
        MessageQueue(route.topic, data.broker_name, index)
        for data in route.queues
        if data.perm & PERM_READ
        for index in range(data.read_queues)
    ]


def all_queues(route: TopicRoute) -> list[MessageQueue]:
    """The queues of a topic that hold or may hold messages, also of broker groups of which no member lives."""
    return [
        MessageQueue(route.topic, data.broker_name, index)
        for data in (*route.queues, *route.absent)
        for index in range(data.read_queues)
    ]


def writable_queues(route: TopicRoute | None) -> list[MessageQueue]:
    """The queues of a topic that may be written, sorted: of all its broker groups, with a living master or without."""
    if route is None:
        return []
    return sorted(
        MessageQueue(route.topic, data.broker_name, index)
        for data in (*route.queues, *route.absent)
        if data.perm & PERM_WRITE
        for index in range(data.write_queues)
    )


def ordered_queues(route: TopicRoute | None) -> list[MessageQueue]:
    """The queues that an order topic's keys have for good, sorted; none of another topic."""
    if route is None:
        return []
    shards = ordered_shards(route.attributes)
    return [MessageQueue(route.topic, name, index) for name, count in shards for index in range(count)]


def topic_queues(queues: Iterable[Place]) -> list[TopicQueues]:
    """Queues of one broker group as requests name them, in their order."""
    found: dict[str, list[int]] = {}
    for topic, _, queue_id in queues:
        found.setdefault(topic, []).append(queue_id)
    return [TopicQueues(topic=topic, queue_ids=queue_ids) for topic, queue_ids in found.items()]


def topic_offsets(offsets: Mapping[MessageQueue, int]) -> list[TopicOffsets]:
    """Offsets of one broker group as requests name them. Raises InvalidArgument: one that is no whole number."""
    found: dict[str, TopicOffsets] = {}
    for (topic, _, queue_id), offset in sorted(offsets.items()):
        of_topic = found.setdefault(topic, TopicOffsets(topic=topic))
        try:
            of_topic.queue_ids.append(queue_id)
            of_topic.offsets.append(offset)
        except (TypeError, ValueError):
            raise InvalidArgument(
                f"offset {offset!r:.60} of queue {queue_id!r:.60} of topic {topic}: both must be whole numbers"
            ) from None
    return list(found.values())


def offsets_in(answer: Iterable[TopicOffsets], broker_name: str) -> dict[MessageQueue, int]:
    """The offsets in a broker group's answer, by queue."""
    return {
        MessageQueue(part.topic, broker_name, queue_id): offset
        for part in answer
        for queue_id, offset in zip(part.queue_ids, part.offsets, strict=True)
    }


def queues_in(answer: Iterable[TopicQueues], broker_name: str) -> list[MessageQueue]:
    return [MessageQueue(part.topic, broker_name, queue_id) for part in answer for queue_id in part.queue_ids]


def offsets_by_broker(offsets: Mapping[MessageQueue, int]) -> dict[str, dict[MessageQueue, int]]:
    """The same offsets, those of each broker group by themselves."""
    found: dict[str, dict[MessageQueue, int]] = {}
    for each, offset in offsets.items():
        found.setdefault(each.broker_name, {})[each] = offset
    return found


class WriteQueues:
    """The queues of one route that may be written now: those of broker groups with a living master.

    ``shards`` are ``(broker name, write queues)`` by name; the queues count through them in this order, which is
    what a sharding key's hash selects from. ``ordered``: of an order topic, the queues that keys have for good, of all
    broker groups; else empty.
    """

    def __init__(
        self,
        shards: Iterable[tuple[str, int]],
        *,
        exists: bool = True,
        ordered: Shards = (),
        is_closed: bool = False,
    ) -> None:
        self.exists = exists  # false: the topic is gone
        self.is_closed = is_closed  # no broker group takes messages for it, also none that is without a master now
        self.ordered = ordered
        self.shards = tuple(sorted((name, count) for name, count in shards if count > 0))
        self.total = sum(count for _, count in self.shards)
        self._names = frozenset(name for name, _ in self.shards)
        self._starts = (0, *itertools.accumulate(count for _, count in self.shards))
        most = max((count for _, count in self.shards), default=0)
        # Shard after shard for each queue id, so that consecutive batches go to different brokers.
        self._rotation = [(name, queue) for queue in range(most) for name, count in self.shards if queue < count]

    @classmethod
    def of(cls, route: TopicRoute) -> WriteQueues:
        with_master = {shard.broker_name for shard in route.shards if master_of(shard)}
        writable = (
            (queues.broker_name, queues.write_queues)
            for queues in route.queues
            if queues.perm & PERM_WRITE and queues.broker_name in with_master
        )
        perms = [queues.perm for queues in (*route.queues, *route.absent)]
        is_closed = bool(perms) and not any(perm & PERM_WRITE for perm in perms)
        return cls(writable, exists=route.exists, ordered=ordered_shards(route.attributes), is_closed=is_closed)

    def __contains__(self, broker_name: str) -> bool:
        return broker_name in self._names

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WriteQueues):
            return False
        mine = (self.shards, self.exists, self.ordered, self.is_closed)
        return mine == (other.shards, other.exists, other.ordered, other.is_closed)

    def __hash__(self) -> int:
        return hash(self.shards)

    def queue(self, index: int) -> tuple[str, int]:
        """Broker name and queue id of queue number ``index`` of :attr:`total`."""
        shard = bisect.bisect_right(self._starts, index) - 1
        return self.shards[shard][0], index - self._starts[shard]

    def index_of_hash(self, key_hash: int) -> int:
        """The queue number for a sharding key: ``abs(hash) % total``, RocketMQ's hash selector."""
        return abs(key_hash) % self.total

    def split_by_hash(self, hashes: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Shard number and queue id for each hash; the same answer as :meth:`index_of_hash` and :meth:`queue`."""
        import numpy as np

        indexes = np.abs(hashes.astype(np.int64)) % self.total
        starts = np.array(self._starts[:-1], dtype=np.int64)
        shard_numbers = np.searchsorted(starts, indexes, side="right") - 1
        return shard_numbers, (indexes - starts[shard_numbers]).astype(np.int32)

    def next_queue(self, turn: int, is_free: Callable[[str, int], bool]) -> tuple[int, str, int] | None:
        """The first queue from ``turn`` on for which ``is_free(broker name, queue id)``: ``(next turn, name, id)``."""
        count = len(self._rotation)
        for step in range(min(count, _SCAN_MAX)):
            name, queue_id = self._rotation[(turn + step) % count]
            if is_free(name, queue_id):
                return turn + step + 1, name, queue_id
        return None
