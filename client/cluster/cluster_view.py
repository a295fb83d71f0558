"""The cluster as its nameservers and brokers tell it."""

from __future__ import annotations

import grpc

from penstock.proto.wire.broker_pb2 import BrokerStatus
from penstock.proto.wire.common_pb2 import Empty, Role
from penstock.proto.wire.nameserver_pb2 import ShardMember, ShardView

from ..administer.admin_results import BrokerInfo, ClusterInfo, NameserverInfo, ReplicaInfo
from .connections import Connections


def cluster_info(connections: Connections, timeout_s: float) -> ClusterInfo:
    """Ask all nameservers, then all brokers, each group at the same time. A silent one is listed as not alive."""
    queries = [
        (address, connections.nameserver(address).QueryCluster.future(Empty(), timeout=timeout_s))
        for address in connections.addresses
    ]
    nameservers, members = [], {}
    absent: set[str] = set()
    for address, query in queries:
        try:
            view = query.result()
        except grpc.RpcError:
            nameservers.append(NameserverInfo(address, alive=False))
            continue
        nameservers.append(NameserverInfo(address, alive=True))
        absent.update(shard.broker_name for shard in view.absent)
        for shard in view.shards:
            for member in shard.members:
                members[shard.broker_name, member.broker_id] = (shard, member)
    asked = [
        (*members[key], connections.broker(members[key][1].address).Status.future(Empty(), timeout=timeout_s))
        for key in sorted(members)
    ]
    brokers = []
    for shard, member, call in asked:
        try:
            brokers.append(_broker(shard, member, call.result()))
        except grpc.RpcError:
            brokers.append(_broker(shard, member, None))
    living = {broker_name for broker_name, _ in members}  # a nameserver that lost its network knows of nobody
    return ClusterInfo(nameservers, brokers, sorted(absent - living))


def _broker(shard: ShardView, member: ShardMember, status: BrokerStatus | None) -> BrokerInfo:
    name = f"{shard.broker_name}-{member.broker_id}"
    if status is None:
        return BrokerInfo(
            name=name,
            cluster=shard.cluster,
            broker_name=shard.broker_name,
            broker_id=member.broker_id,
            role=Role.Name(member.role),
            epoch=shard.epoch,
            address=member.address,
            alive=False,
            max_offset=member.end_offset,
            confirm_offset=member.confirm_offset,
        )
    return BrokerInfo(
        name=name,
        cluster=shard.cluster,
        broker_name=shard.broker_name,
        broker_id=member.broker_id,
        role=Role.Name(status.role),
        epoch=status.epoch,
        address=member.address,
        alive=True,
        pid=status.pid,
        min_offset=status.min_offset,
        max_offset=status.max_offset,
        flushed_offset=status.flushed_offset,
        confirm_offset=status.confirm_offset,
        dispatched_offset=status.dispatched_offset,
        lag_bytes=status.lag_bytes,
        store_path=status.store_path,
        flush_mode=status.flush_mode,
        broker_role=status.broker_role,
        started_timestamp_ms=status.started_timestamp_ms,
        version=status.version,
        replicas=[
            ReplicaInfo(one.broker_id, one.written_offset, one.flushed_offset, one.lag_bytes, one.in_sync)
            for one in status.replicas
        ],
    )
