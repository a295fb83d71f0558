"""One broker group as the nameserver knows it: its living members, its master, its topics. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from penstock.proto import names
from penstock.proto.errors import InvalidArgument, WrongCluster
from penstock.proto.wire.common_pb2 import MASTER, SLAVE, BrokerIdentity, Role, TopicConfig
from penstock.proto.wire.nameserver_pb2 import ShardMember, ShardView

ATTRIBUTE_BYTES_PER_TOPIC = 256
"""So many take as much memory as a topic."""


class TopicShape(NamedTuple):
    """What is known of a topic besides its name. Most have the same, and share it: a table holds very many."""

    read_queues: int
    write_queues: int
    perm: int
    attributes: tuple[tuple[str, str], ...] = ()

    @property
    def attribute_bytes(self) -> int:
        return sum(len(name) + len(value) for name, value in self.attributes)

    @classmethod
    def of(cls, config: TopicConfig) -> TopicShape:
        """As a broker says it."""
        shape = shared_shape(config.read_queues, config.write_queues, config.perm)
        return shape._replace(attributes=tuple(sorted(config.attributes.items()))) if config.attributes else shape


@lru_cache(maxsize=4096)
def shared_shape(read_queues: int, write_queues: int, perm: int) -> TopicShape:
    """The one of topics without attributes."""
    return TopicShape(read_queues, write_queues, perm)


Topics = dict[str, TopicShape]


def check_identity(identity: BrokerIdentity) -> None:
    """Raise for names or an id that no broker may have."""
    names.check_broker_name(identity.cluster)
    names.check_broker_name(identity.broker_name)
    if identity.broker_id < 0:
        raise InvalidArgument(f"{identity.broker_name}: broker id {identity.broker_id} is negative")


@dataclass(slots=True)
class Member:
    identity: BrokerIdentity
    session: int
    heard_s: float  # when its last report came
    store_instance: str
    role: Role
    epoch: int
    topics: Topics
    auto_create_topics: bool
    end_offset: int = 0
    confirm_offset: int = 0

    @property
    def broker_id(self) -> int:
        return self.identity.broker_id

    @property
    def address(self) -> str:
        return self.identity.address


@dataclass(slots=True)
class Shard:
    """The living members of one broker group, and what its last master said.

    Of several members that call themselves master the one with the highest epoch is believed; the others are not
    shown until they report themselves as slaves. Nor is an older master after the newest one has died: it may lack
    what was acknowledged since.
    """

    cluster: str
    broker_name: str
    members: dict[int, Member] = field(default_factory=dict)  # by broker id
    master: Member | None = None
    last_master_id: int = -1
    last_epoch: int = -1
    last_topics: Topics | None = None  # of the last master, or those remembered while all were gone
    weight: int = 0  # of the topics that it is remembered with: one each, and more for long attributes

    def check_one_master(self, broker_id: int, address: str, epoch: int) -> None:
        """Raise :class:`WrongCluster` when another living member is master in the same epoch."""
        for other in self.members.values():
            if other.broker_id != broker_id and other.role == MASTER and other.epoch == epoch:
                raise WrongCluster(
                    f"{self.broker_name}: broker {broker_id} at {address} calls itself master in epoch {epoch}, and so "
                    f"does broker {other.broker_id} at {other.address}: one of them needs brokerRole=SLAVE"
                )

    def elect(self) -> None:
        """Choose who is shown as the master. Call after every change of members, roles or epochs."""
        masters = [member for member in self.members.values() if member.role == MASTER]
        best = max(masters, key=lambda member: member.epoch, default=None)
        if best is not None and best.epoch < self.last_epoch and best.broker_id != self.last_master_id:
            best = None
        self.master = best
        if best is not None:
            self.last_master_id, self.last_epoch, self.last_topics = best.broker_id, best.epoch, best.topics

    def topics(self) -> Topics:
        """The topics of the master, or of the last known one: reads go on without a master.

        A nameserver that was told of none takes the topics of the slave with the lowest id.
        """
        if self.last_topics is not None:
            return self.last_topics
        return self.members[min(self.members)].topics if self.members else {}

    def leave(self, topics: Topics) -> None:
        """Keep nothing but ``topics``' weight: all members are gone."""
        self.last_topics = None
        self.weight = len(topics) + sum(shape.attribute_bytes for shape in topics.values()) // ATTRIBUTE_BYTES_PER_TOPIC

    def view(self) -> ShardView:
        """The shard as clients and brokers see it, members by id."""
        shown = [member for member in self.members.values() if member.role == SLAVE or member is self.master]
        shown.sort(key=lambda member: member.broker_id)
        speaker = self.master or (shown[0] if shown else None)
        return ShardView(
            cluster=self.cluster,
            broker_name=self.broker_name,
            epoch=max(self.last_epoch, 0),
            auto_create_topics=speaker is not None and speaker.auto_create_topics,
            members=[
                ShardMember(
                    broker_id=member.broker_id,
                    address=member.address,
                    role=member.role,
                    end_offset=member.end_offset,
                    confirm_offset=member.confirm_offset,
                    data_port=member.identity.data_port,
                )
                for member in shown
            ],
        )
