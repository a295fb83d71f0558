"""The cluster as its nameservers and brokers tell it."""

from __future__ import annotations

from penstock.proto.errors import NameserverUnavailable
from penstock.proto.wire.broker_pb2 import BrokerStatus
from penstock.proto.wire.common_pb2 import Empty, Role
from penstock.proto.wire.nameserver_pb2 import ShardMember, ShardView

from ..cluster import Calls
from .admin_results import BrokerInfo, ClusterInfo, NameserverInfo, ReplicaInfo, same_fields


def cluster_info(calls: Calls, timeout_s: float) -> ClusterInfo:
    """Ask all nameservers, then all brokers, each group at the same time. A silent one is listed as not alive.

    Raises:
        PenstockError: no nameserver has told anything; why.
    """
    views, errors = calls.at_nameservers("QueryCluster", Empty(), timeout_s)
    if not views:
        for error in errors.values():
            if not error.retryable:
                raise error
        raise NameserverUnavailable(f"no nameserver answered: {'; '.join(each.message for each in errors.values())}")
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
    found = same_fields(BrokerInfo, shard) | same_fields(BrokerInfo, member)
    found |= {
        "name": f"{shard.broker_name}-{member.broker_id}",
        "role": Role.Name(member.role),
        "alive": status is not None,
        "max_offset": member.end_offset,
    }
    if status is not None:
        found |= same_fields(BrokerInfo, status) | {"role": Role.Name(status.role)}
        found["replicas"] = [ReplicaInfo(**same_fields(ReplicaInfo, one)) for one in status.replicas]
    return BrokerInfo(**found)
