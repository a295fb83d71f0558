"""Whether the nodes of a local cluster serve, asked of their own services."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import grpc

from penstock.deploy import LocalCluster, Node
from penstock.proto.channel import open_channel
from penstock.proto.wire.broker_pb2 import BrokerStatus
from penstock.proto.wire.broker_pb2_grpc import BrokerStub
from penstock.proto.wire.common_pb2 import MASTER, SLAVE, Empty
from penstock.proto.wire.nameserver_pb2 import ClusterView
from penstock.proto.wire.nameserver_pb2_grpc import NameserverStub

ASK_TIMEOUT_S = 1.0
POLL_S = 0.05
FINAL_AFTER_S = 3.0
FINAL_REASONS = frozenset({"WrongStore", "WrongCluster", "Corrupt"})
"""Names of the errors after which a slave follows only when somebody has acted."""

# The generated stubs carry no types.
_broker_stub: Callable[[grpc.Channel], Any] = BrokerStub
_nameserver_stub: Callable[[grpc.Channel], Any] = NameserverStub


def broker_statuses(addresses: Sequence[str], timeout_s: float = ASK_TIMEOUT_S) -> list[BrokerStatus | None]:
    """The status of the broker at each address, asked at the same time; ``None`` where none answers in time."""
    channels = [open_channel(address) for address in addresses]
    try:
        calls = [_broker_stub(channel).Status.future(Empty(), timeout=timeout_s) for channel in channels]
        return [_answer(call) for call in calls]
    finally:
        for channel in channels:
            channel.close()


def cluster_views(addresses: Sequence[str], timeout_s: float = ASK_TIMEOUT_S) -> list[ClusterView | None]:
    """What each nameserver knows of the living brokers; ``None`` where none answers in time."""
    channels = [open_channel(address) for address in addresses]
    try:
        calls = [_nameserver_stub(channel).QueryCluster.future(Empty(), timeout=timeout_s) for channel in channels]
        return [_answer(call) for call in calls]
    finally:
        for channel in channels:
            channel.close()


def _answer(call: Any) -> Any:
    try:
        return call.result()
    except grpc.RpcError:
        return None


def serves(node: Node, nameservers: Sequence[str]) -> bool:
    """Whether ``node`` answers, and every nameserver knows it if it is a broker."""
    if node.is_nameserver:
        return cluster_views([node.address])[0] is not None
    if broker_statuses([node.address])[0] is None:
        return False
    return all(view is not None and node.address in _addresses(view) for view in cluster_views(nameservers))


def _addresses(view: ClusterView) -> set[str]:
    return {member.address for shard in view.shards for member in shard.members}


def open_cluster(directory: str, progress: Callable[[str], None] = lambda _: None) -> LocalCluster:
    """The local cluster in ``directory`` with a probe that asks its services."""

    def probe(node: Node) -> bool:
        return serves(node, cluster.plan.nameserver_addresses.split(";"))

    cluster = LocalCluster(directory, probe, progress)
    return cluster


def await_replicas(cluster: LocalCluster, timeout_s: float = 15.0) -> list[str]:
    """Wait until every living slave is in sync with its master; returns the names of those that are not in time.

    Sooner when all of them refuse for a reason that does not pass by itself.
    """
    began = time.monotonic()
    while True:
        late = _slaves_behind(cluster)
        elapsed_s = time.monotonic() - began
        if not late or elapsed_s >= timeout_s:
            return late
        if elapsed_s >= FINAL_AFTER_S and set(late) == set(found := refusals(cluster)) and _is_final(found.values()):
            return late
        time.sleep(POLL_S)


def refusals(cluster: LocalCluster) -> dict[str, str]:
    """The living slaves that do not follow their master though it lives, each with the reason that it gives."""
    alive = [state.node for state in cluster.states() if state.state == "running" and not state.node.is_nameserver]
    statuses = broker_statuses([node.address for node in alive])
    masters = {status.identity.broker_name for status in statuses if status is not None and status.role == MASTER}
    return {
        node.name: status.not_following_because
        for node, status in zip(alive, statuses, strict=True)
        if status is not None
        and status.role == SLAVE
        and node.broker_name in masters
        and not status.is_following
        and status.not_following_because
    }


def _is_final(reasons: Iterable[str]) -> bool:
    """Whether waiting will not mend any of these: a master that has to be reached may come, another history stays."""
    names = [reason.partition(":")[0] for reason in reasons]
    return bool(names) and all(name in FINAL_REASONS for name in names)


def _slaves_behind(cluster: LocalCluster) -> list[str]:
    alive = [state.node for state in cluster.states() if state.state == "running" and not state.node.is_nameserver]
    masters = [node for node in alive if node.broker_id == 0]
    in_sync: dict[str, set[int]] = {}
    for node, status in zip(masters, broker_statuses([node.address for node in masters]), strict=True):
        replicas = status.replicas if status is not None else ()
        in_sync[node.broker_name] = {replica.broker_id for replica in replicas if replica.in_sync}
    slaves = [node for node in alive if node.broker_id and node.broker_name in in_sync]
    return [node.name for node in slaves if node.broker_id not in in_sync[node.broker_name]]
