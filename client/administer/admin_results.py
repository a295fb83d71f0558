"""What :class:`~penstock.client.Admin` answers with. Field names are those of the command line's JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from penstock.formats.message_types import MESSAGE_TYPE
from penstock.formats.order_conf import ORDER_CONF
from penstock.proto.wire.common_pb2 import RetryPolicy as WirePolicy


@dataclass(frozen=True, slots=True)
class TopicShard:
    """A topic's queues at one broker group."""

    broker_name: str
    read_queues: int
    write_queues: int
    perm: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """Where a topic lies.

    ``absent`` names broker groups that have it and are down; ``shards`` has them only where no other group has it.
    """

    topic: str
    shards: list[TopicShard]
    attributes: dict[str, str] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)

    @property
    def queues(self) -> int:
        """Readable queues over all broker groups."""
        return sum(shard.read_queues for shard in self.shards)

    @property
    def message_type(self) -> str | None:
        """The type of messages that it takes; None, and MIXED: all."""
        return self.attributes.get(MESSAGE_TYPE)

    @property
    def is_ordered(self) -> bool:
        """True of an order topic, whose keys stay in their queues also while those are away."""
        return bool(self.attributes.get(ORDER_CONF))


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue's range of readable offsets."""

    topic: str
    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    messages: int
    last_store_timestamp_ms: int  # 0: empty


@dataclass(frozen=True, slots=True)
class TopicStats:
    """What a topic holds. ``unreachable`` names broker groups that did not answer; their queues are missing."""

    topic: str
    messages: int
    queues: list[QueueStats]
    unreachable: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A living member of a consumer group; one that is ``broadcasting`` gets everything and claims nothing."""

    client_id: str
    subscriptions: dict[str, str]
    queues: list[tuple[str, str, int]]  # topic, broker name, queue id: what it has claimed
    broadcasting: bool = False


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a message that failed waits before it comes again.

    ``delays_s``: before the first time, the second, …; the last one repeats. Without them ``initial_s`` times
    ``multiplier`` to the power of its tries, up to ``max_s``. Without both: 10 s, 30 s, 1 min, … 2 h, the broker's
    ``messageDelayLevel``.
    """

    delays_s: tuple[float, ...] = ()
    initial_s: float = 0.0
    max_s: float = 0.0
    multiplier: int = 0

    def to_wire(self) -> WirePolicy:
        """The wire's message of it."""
        return WirePolicy(
            delays_ms=[round(delay * 1000) for delay in self.delays_s],
            initial_ms=round(self.initial_s * 1000),
            max_ms=round(self.max_s * 1000),
            multiplier=self.multiplier,
        )

    @classmethod
    def from_wire(cls, found: WirePolicy) -> Self:
        """The policy of such a message."""
        delays_s = tuple(delay / 1000 for delay in found.delays_ms)
        return cls(delays_s, found.initial_ms / 1000, found.max_ms / 1000, found.multiplier)


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group's settings and members."""

    group: str
    consume_enable: bool
    retry_max_times: int
    attributes: dict[str, str] = field(default_factory=dict)
    members: list[GroupMember] = field(default_factory=list)
    retry_policy: RetryPolicy = RetryPolicy()
    retry_queues: int = 1
    orderly: bool = False
    broadcast_enable: bool = True
    from_min_enable: bool = True


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """A producer of transactions, as brokers see it."""

    client_id: str
    answers: bool
    """True if it may be asked about messages that nobody has decided."""
    broker_names: list[str] = field(default_factory=list)
    """The broker groups that it has a session with."""


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a group is in one queue. ``committed_offset`` -1: nothing was committed yet."""

    topic: str
    broker_name: str
    queue_id: int
    committed_offset: int
    min_offset: int
    max_offset: int
    lag: int
    client_id: str | None = None  # who has claimed it


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind: messages stored and not yet committed.

    ``unreachable`` names broker groups that did not answer, or have only a slave now that may not know what was
    committed; their queues are missing.
    """

    group: str
    lag: int
    queues: list[QueueLag]
    unreachable: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """A queue and the offset that a group goes on from; ``former``: the one it had before, -1 for none."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int
    former: int = -1


@dataclass(frozen=True, slots=True)
class NameserverInfo:
    """A nameserver of the list."""

    address: str
    alive: bool


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A slave as its master sees it."""

    broker_id: int
    written_offset: int
    flushed_offset: int
    lag_bytes: int
    in_sync: bool


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker that is registered at a nameserver. ``alive``: it answered; else only what is registered is known."""

    name: str  # broker name and id: broker-a-0
    cluster: str
    broker_name: str
    broker_id: int
    role: str  # MASTER | SLAVE
    epoch: int
    address: str
    alive: bool
    pid: int = 0
    min_offset: int = 0
    max_offset: int = 0
    flushed_offset: int = 0
    confirm_offset: int = 0
    dispatched_offset: int = 0
    lag_bytes: int = 0
    store_path: str = ""
    flush_mode: str = ""
    broker_role: str = ""
    started_timestamp_ms: int = 0
    version: str = ""
    replicas: list[ReplicaInfo] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Everything that is registered. ``absent`` names the broker groups of which no member lives."""

    nameservers: list[NameserverInfo]
    brokers: list[BrokerInfo]
    absent: list[str] = field(default_factory=list)
