"""The cluster as its nameservers and brokers tell it."""

from __future__ import annotations

from penstock.proto.wire.broker_pb2 import BrokerStatus
from penstock.proto.wire.common_pb2 import Empty, Role
from penstock.proto.wire.nameserver_pb2 import ShardMember, ShardView

from ..cluster import Calls
from .admin_results import BrokerInfo, ClusterInfo, NameserverInfo, ReplicaInfo


def cluster_info(calls: Calls, timeout_s: float) -> ClusterInfo:
    """Ask all nameservers, then all brokers, each group at the same time. A silent one is listed as not alive."""
    views, _ = calls.at_nameservers("QueryCluster", Empty(), timeout_s)
    nameservers = [NameserverInfo(address, alive=address in views) for address in calls.connections.addresses]
    absent = {shard.broker_name for view in views.values() for shard in view.absent}
    members = {
        (shard.broker_name, member.broker_id): (shard, member)
        for view in views.values()
        for shard in view.shards
        for member in shard.members
    }
    addresses = {key: member.address for key, (_, member) in sorted(members.items())}
    told, _ = calls.at_addresses(addresses, "Status", lambda _: Empty(), timeout_s)
    brokers = [_broker(*members[key], told.get(key)) for key in addresses]
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
