"""What :class:`~penstock.client.Admin` answers with. Field names are those of the command line's JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

from penstock.formats.attributes.message_types import MESSAGE_TYPE
from penstock.formats.attributes.order_conf import ORDER_CONF
from penstock.proto.errors import InvalidArgument
from penstock.proto.wire.common_pb2 import RetryPolicy as WirePolicy

from ..arguments import several


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

    @classmethod
    def of(cls, given: RetryPolicy | Sequence[float]) -> RetryPolicy:
        """The policy, or that of just the delays."""
        if isinstance(given, RetryPolicy):
            return given
        return cls(tuple(several("retry_policy", given, "a RetryPolicy, or a list of seconds")))

    def to_wire(self) -> WirePolicy:
        """The wire's message of it. Raises InvalidArgument: what is no number of seconds."""
        try:
            return WirePolicy(
                delays_ms=[round(delay * 1000) for delay in self.delays_s],
                initial_ms=round(self.initial_s * 1000),
                max_ms=round(self.max_s * 1000),
                multiplier=self.multiplier,
            )
        except (TypeError, ValueError, OverflowError):
            raise InvalidArgument(f"{self!r:.200}: must be of seconds, and a whole multiplier") from None

    @classmethod
    def from_wire(cls, found: WirePolicy) -> Self:
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
    pops: bool = False
    """True if simple consumers have received lately."""
    in_flight: int = 0
    """Messages that simple consumers were given and have not acknowledged."""


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


@dataclass(frozen=True, slots=True)
class TracedSend:
    """A producer's send, as traced. Nothing is told of tries: the cost holds all of them."""

    timestamp_ms: int
    group: str
    client_host: str
    store_host: str  # of the broker; empty where none has taken it
    body_bytes: int
    cost_ms: int
    success: bool
    message_type: str  # NORMAL | HALF | COMMIT | DELAY | ORDER
    offset_message_id: str


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """Where a message lies now, by its broker's record."""

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    store_timestamp_ms: int
    store_host: str
    offset_message_id: str


@dataclass(frozen=True, slots=True)
class TracedAttempt:
    """A consumer's attempt at a message; without cost, success and code nobody has told of its end."""

    timestamp_ms: int
    client_host: str
    retry_times: int  # attempts before it, by the record
    cost_ms: int | None
    success: bool | None
    code: str | None  # SUCCESS | TIME_OUT | EXCEPTION | RETURN_NULL | FAILED


@dataclass(frozen=True, slots=True)
class TracedConsumption:
    """A group's attempts at a message, in their order. ``success``: one of them was."""

    group: str
    success: bool
    attempts: list[TracedAttempt]


@dataclass(frozen=True, slots=True)
class TracedEnd:
    """A transaction's end, as its producer decided it; ``from_check``: because a broker asked."""

    timestamp_ms: int
    group: str
    transaction_id: str
    state: str  # COMMIT_MESSAGE | ROLLBACK_MESSAGE
    from_check: bool


@dataclass(frozen=True, slots=True)
class TracedRecall:
    """A message was wanted back; ``success``: in time."""

    timestamp_ms: int
    group: str
    success: bool


@dataclass(frozen=True, slots=True)
class MessageTrace:
    """The story of one message. Empty lists: clients that did not trace it; ``stored`` None: there is no record."""

    message_id: str
    topic: str
    tag: str
    keys: list[str]
    sends: list[TracedSend]
    stored: StoredMessage | None
    consumptions: list[TracedConsumption]
    ends: list[TracedEnd] = field(default_factory=list)
    recalls: list[TracedRecall] = field(default_factory=list)

    @property
    def is_traced(self) -> bool:
        """True if some client has told of it."""
        return bool(self.sends or self.consumptions or self.ends or self.recalls)


class TrackType(StrEnum):
    """What a consumer group has done with a message, in RocketMQ's words."""

    CONSUMED = "CONSUMED"  # its offset has passed it
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"  # the same, and its members do not want such messages
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"  # not consumed, and no member is there
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"  # each of its members gets every message, and keeps its own offsets
    UNKNOWN = "UNKNOWN"  # the broker group of its queue does not say


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """What one group has done with a message. ``committed_offset`` of its queue, -1: nothing was committed."""

    group: str
    track_type: TrackType
    committed_offset: int
    client_id: str | None = None  # the member that has claimed its queue


def same_fields(kind: type[Any], source: object) -> dict[str, Any]:
    """What ``source`` has by the names of the fields of ``kind``, one of these classes."""
    return {each.name: getattr(source, each.name) for each in fields(kind) if hasattr(source, each.name)}
