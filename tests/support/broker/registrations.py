"""Registrations as brokers make them, for tests of the nameserver and of what talks to it."""

from __future__ import annotations

from penstock.proto.wire.common_pb2 import MASTER, BrokerIdentity, Role, TopicConfig
from penstock.proto.wire.nameserver_pb2 import BrokerReport, TopicRoute


def topic_config(topic: str, queues: int = 4, **attributes: str) -> TopicConfig:
    return TopicConfig(topic=topic, read_queues=queues, write_queues=queues, perm=6, attributes=attributes)


def registration(
    broker_name: str = "broker-a",
    broker_id: int = 0,
    *,
    role: Role = MASTER,
    topics: tuple[str, ...] = (),
    address: str = "",
    epoch: int = 0,
    cluster: str = "c1",
    instance: str = "",
    configs: tuple[TopicConfig, ...] = (),
) -> BrokerReport.Registration:
    """The registration of one broker; address and store instance follow from its name and id when not given."""
    return BrokerReport.Registration(
        identity=BrokerIdentity(
            cluster=cluster,
            broker_name=broker_name,
            broker_id=broker_id,
            address=address or f"{broker_name}-{broker_id}:10911",
        ),
        role=role,
        epoch=epoch,
        topics=[*(topic_config(topic) for topic in topics), *configs],
        auto_create_topics=True,
        store_instance=instance or f"{broker_name}-{broker_id}",
    )


def queues_of(route: TopicRoute) -> dict[str, int]:
    """Broker name → read queues."""
    return {queue.broker_name: queue.read_queues for queue in route.queues}


def members_of(route: TopicRoute) -> dict[str, dict[int, str]]:
    """Broker name → broker id → role, of the route's shards."""
    return {
        shard.broker_name: {member.broker_id: Role.Name(member.role) for member in shard.members}
        for shard in route.shards
    }
