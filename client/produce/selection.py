"""Which queue a message goes to: rotation over all queues, the sharding key's hash, and avoidance of slow brokers.

Pure: no clock, no network. Times are passed in.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from penstock.proto.names import PERM_WRITE
from penstock.proto.wire.common_pb2 import MASTER

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from penstock.proto.wire.nameserver_pb2 import TopicRoute

# RocketMQ's MQFaultStrategy: from this latency on, leave the broker alone for that long.
LATENCY_MS = (50, 100, 550, 1800, 3000, 5000, 15000)
AVOID_MS = (0, 0, 2000, 5000, 6000, 10000, 30000)
FAILURE_LATENCY_MS = 10_000  # what a failed call counts as
_SCAN_MAX = 256


class BrokerHealth:
    """Which brokers answered slowly or failed, and until when they are avoided.

    A preference only: when every broker is avoided, all are used. Kept per broker, not per queue, so ten thousand
    queues cost nothing.
    """

    def __init__(self) -> None:
        self._avoid_until_ms: dict[str, float] = {}

    def on_latency(self, broker_name: str, latency_ms: float, now_ms: float) -> None:
        """A broker answered after ``latency_ms``."""
        avoid_ms = AVOID_MS[max(bisect.bisect_right(LATENCY_MS, latency_ms) - 1, 0)]
        if avoid_ms:
            self._avoid_until_ms[broker_name] = now_ms + avoid_ms
        else:
            self._avoid_until_ms.pop(broker_name, None)

    def on_failure(self, broker_name: str, now_ms: float) -> None:
        """A call failed: counts as ten seconds."""
        self.on_latency(broker_name, FAILURE_LATENCY_MS, now_ms)

    def is_avoided(self, broker_name: str, now_ms: float) -> bool:
        """Whether another broker is preferred now."""
        return now_ms < self._avoid_until_ms.get(broker_name, 0.0)


class WriteQueues:
    """The queues of one route that may be written now: those of broker groups with a living master.

    ``shards`` are ``(broker name, write queues)`` by name; the queues count through them in this order, which is
    what a sharding key's hash selects from.
    """

    def __init__(self, shards: Iterable[tuple[str, int]]) -> None:
        self.shards = tuple(sorted((name, count) for name, count in shards if count > 0))
        self.total = sum(count for _, count in self.shards)
        self._names = frozenset(name for name, _ in self.shards)
        self._starts = (0, *itertools.accumulate(count for _, count in self.shards))
        most = max((count for _, count in self.shards), default=0)
        # Shard after shard for each queue id, so that consecutive batches go to different brokers.
        self._rotation = [(name, queue) for queue in range(most) for name, count in self.shards if queue < count]

    @classmethod
    def of(cls, route: TopicRoute) -> WriteQueues:
        """What ``route`` allows."""
        with_master = {
            shard.broker_name for shard in route.shards if any(member.role == MASTER for member in shard.members)
        }
        return cls(
            (queues.broker_name, queues.write_queues)
            for queues in route.queues
            if queues.perm & PERM_WRITE and queues.broker_name in with_master
        )

    def __contains__(self, broker_name: str) -> bool:
        return broker_name in self._names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WriteQueues) and self.shards == other.shards

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
