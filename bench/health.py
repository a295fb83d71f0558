"""How well the nodes of a local cluster serve, asked of their own services."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import grpc

from penstock.deploy import LocalCluster, Node, accepts_connections
from penstock.proto.errors import BrokerUnavailable, InvalidArgument, NotMaster, StaleRegister, from_rpc_error
from penstock.proto.wire.broker_pb2 import BrokerStatus, TransferMasterReply, TransferMasterRequest
from penstock.proto.wire.broker_pb2_grpc import BrokerStub
from penstock.proto.wire.common_pb2 import MASTER, SLAVE, Empty
from penstock.proto.wire.nameserver_pb2 import ClusterView
from penstock.proto.wire.nameserver_pb2_grpc import NameserverStub
from penstock.runtime.channel import open_channel
from penstock.runtime.security.credentials import SecurityFiles

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
    return _ask_all(addresses, lambda channel: _broker_stub(channel).Status, timeout_s)


def silent_because(address: str) -> str:
    """Why the broker at ``address`` tells nothing of itself; empty if it does now."""
    try:
        with open_channel(address, SecurityFiles.from_environment().read()) as channel:
            _broker_stub(channel).Status(Empty(), timeout=ASK_TIMEOUT_S)
    except grpc.RpcError as error:
        return str(from_rpc_error(error, address))
    return ""


def cluster_views(addresses: Sequence[str]) -> list[ClusterView | None]:
    """What each nameserver knows of the living brokers; ``None`` where none answers in time."""
    return _ask_all(addresses, lambda channel: _nameserver_stub(channel).QueryCluster, ASK_TIMEOUT_S)


def _ask_all(addresses: Sequence[str], method: Callable[[grpc.Channel], Any], timeout_s: float) -> list[Any]:
    security = SecurityFiles.from_environment().read()
    with contextlib.ExitStack() as opened:
        channels = [opened.enter_context(open_channel(address, security)) for address in addresses]
        calls = [method(channel).future(Empty(), timeout=timeout_s) for channel in channels]
        return [_answer(call) for call in calls]


def _answer(call: Any) -> Any:
    try:
        return call.result()
    except grpc.RpcError:
        return None


def serves(node: Node, nameservers: Sequence[str]) -> bool:
    """True if ``node`` answers, and every nameserver knows it if it is a broker."""
    if node.is_coordinator:
        return _etcd_is_healthy(node.address)
    if node.is_nameserver:
        return cluster_views([node.address])[0] is not None
    if broker_statuses([node.address])[0] is None:
        return False
    return all(view is not None and node.address in _addresses(view) for view in cluster_views(nameservers))


def _etcd_is_healthy(address: str) -> bool:
    """True if an etcd member has a leader and answers for it."""
    try:
        with contextlib.closing(http.client.HTTPConnection(address, timeout=ASK_TIMEOUT_S)) as connection:
            connection.request("GET", "/health")
            return bool(json.loads(connection.getresponse().read()).get("health") == "true")
    except (OSError, ValueError, http.client.HTTPException):
        return False


def _addresses(view: ClusterView) -> set[str]:
    return {member.address for shard in view.shards for member in shard.members}


def open_cluster(
    directory: str, progress: Callable[[str], None] = lambda _: None, pause: Callable[[float], None] = time.sleep
) -> LocalCluster:
    """The local cluster in ``directory`` with a probe that asks its services."""

    def probe(node: Node) -> bool:
        if node.is_gateway:
            return accepts_connections(node)
        return serves(node, cluster.plan.nameserver_addresses.split(";"))

    cluster = LocalCluster(directory, probe, progress, pause=pause)
    return cluster


def await_replicas(
    cluster: LocalCluster, timeout_s: float = 15.0, pause: Callable[[float], None] = time.sleep
) -> list[str]:
    """Wait until every living shard has a master and its living slaves are in sync; who is not in time, by name.

    A learner may lag: for it, that the nameservers know it is enough.
    Sooner when all of them refuse for a reason that does not pass by itself.
    """
    began = time.monotonic()
    while True:
        late = _late(cluster)
        elapsed_s = time.monotonic() - began
        if not late or elapsed_s >= timeout_s:
            return late
        if elapsed_s >= FINAL_AFTER_S and set(late) == set(found := refusals(cluster)) and _is_final(found.values()):
            return late
        pause(POLL_S)


def refusals(cluster: LocalCluster) -> dict[str, str]:
    """The living slaves that do not follow their master though it lives, each with the reason that it gives."""
    told = _told_by_living(cluster)
    masters = {status.identity.broker_name for _, status in told if status is not None and status.role == MASTER}
    return {
        node.name: status.not_following_because
        for node, status in told
        if status is not None
        and status.role == SLAVE
        and node.broker_name in masters
        and not status.is_following
        and status.not_following_because
    }


def _is_final(reasons: Iterable[str]) -> bool:
    """True if waiting will mend none of these: a master that has to be reached may come, another history stays."""
    names = [reason.partition(":")[0] for reason in reasons]
    return bool(names) and all(name in FINAL_REASONS for name in names)


def _told_by_living(cluster: LocalCluster) -> list[tuple[Node, BrokerStatus | None]]:
    alive = [state.node for state in cluster.states() if state.state == "running" and state.node.is_broker]
    return list(zip(alive, broker_statuses([node.address for node in alive]), strict=True))


def _late(cluster: LocalCluster) -> list[str]:
    told = _told_by_living(cluster)
    in_sync: dict[str, set[int]] = {}
    for node, status in told:
        if status is not None and status.role == MASTER and status.is_acting:
            members = {replica.broker_id for replica in status.replicas if replica.in_sync} | {node.broker_id}
            in_sync[node.broker_name] = members & set(status.sync_state_set) if status.is_elected else members
    shown = _shown_masters(cluster)
    learners = {node.name for node, status in told if status is not None and status.is_learner}
    return [
        node.name
        for node, _ in told
        if (node.broker_id not in in_sync.get(node.broker_name, ()) and node.name not in learners)
        or node.broker_name not in shown
    ]


def _shown_masters(cluster: LocalCluster) -> set[str]:
    """The shards whose master every living nameserver shows."""
    living = [state.node.address for state in cluster.states() if state.state == "running" and state.node.is_nameserver]
    shown = [
        {shard.broker_name for shard in view.shards if any(m.role == MASTER for m in shard.members)}
        for view in cluster_views(living)
        if view is not None
    ]
    return set.intersection(*shown) if shown else set()


def switch_master(addresses: Sequence[str], shard: str, to_id: int, timeout_s: float = 5.0) -> TransferMasterReply:
    """Have the master among the brokers at ``addresses`` give its role to the slave ``to_id``.

    Asked again, for ``timeout_s``, where the group has no master at the moment or its register has just changed.

    Raises:
        BrokerUnavailable: none of them is master, also after a while.
        InvalidArgument: the slave is not in sync, or is the master; nothing was changed.
        PenstockError: as the master says.
    """
    deadline = time.monotonic() + timeout_s
    former: int | None = None
    has_raced = False
    while True:
        found = _acting_master(addresses)
        try:
            if found is None:
                raise BrokerUnavailable(f"{shard} has no master now that could hand over: see penstock cluster status")
            address, status = found
            if former is not None and status.identity.broker_id == to_id:  # an election was quicker
                return TransferMasterReply(epoch=status.epoch, former_broker_id=former)
            former = status.identity.broker_id
            return _transfer(address, to_id, timeout_s)
        except (BrokerUnavailable, NotMaster, StaleRegister, InvalidArgument) as error:
            # Of a master that has just begun, nobody is level for a moment, which is an InvalidArgument.
            has_raced = has_raced or not isinstance(error, InvalidArgument)
            if not has_raced or time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)


def _acting_master(addresses: Sequence[str]) -> tuple[str, BrokerStatus] | None:
    for address, status in zip(addresses, broker_statuses(addresses), strict=True):
        if status is not None and status.role == MASTER and status.is_acting:
            return address, status
    return None


def _transfer(address: str, to_id: int, timeout_s: float) -> TransferMasterReply:
    try:
        with open_channel(address, SecurityFiles.from_environment().read()) as channel:
            request = TransferMasterRequest(to_broker_id=to_id)
            reply: TransferMasterReply = _broker_stub(channel).TransferMaster(request, timeout=timeout_s)
            return reply
    except grpc.RpcError as error:
        raise from_rpc_error(error, address) from None
