"""What to believe of routes: of what nameservers say, which of them may just have started. Pure."""

from __future__ import annotations

from penstock.proto.wire.common_pb2 import MASTER
from penstock.proto.wire.nameserver_pb2 import ShardMember, ShardView, TopicRoute


def master_of(shard: ShardView | None) -> ShardMember | None:
    """The living master of a broker group, or None."""
    return next((member for member in shard.members if member.role == MASTER), None) if shard is not None else None


def covers(route: TopicRoute, broker_names: set[str]) -> bool:
    """True if the topic has queues at all these broker groups."""
    return route.exists and broker_names <= {queues.broker_name for queues in route.queues}


def merge(known: TopicRoute | None, update: TopicRoute, told: TopicRoute | None = None) -> TopicRoute:
    """What to believe after ``update``; ``told``: what the same nameserver has said before.

    A nameserver that knows no living broker at all has just started or lost its network: it takes away nothing.
    Nameservers remember broker groups that are down, but not those that went down before they were started. Where such
    a nameserver knows nothing of the topic, the queues of groups that it does not know stay known (without a living
    member), so that senders and consumers wait for the groups to return instead of calling the topic unknown. A
    nameserver that knew of the topic before has been told that it is gone for good.
    """
    if update.exists or known is None or not known.exists:
        return update
    if not update.shards:
        return known
    if told is not None and told.exists:
        return update
    living = {shard.broker_name for shard in update.shards}
    waiting = [queues for queues in known.queues if queues.broker_name not in living]
    if not waiting:
        return update
    return TopicRoute(topic=update.topic, exists=True, queues=waiting, attributes=known.attributes)


def completed(known: TopicRoute | None, update: TopicRoute) -> TopicRoute:
    """``update`` with what a nameserver that has just started may not have heard of yet.

    Two things may be missing: a whole broker group, or a group's master. A group's epoch never decreases, so a
    nameserver that reports an older epoch, or none, has not heard of the current master yet. Without this, clients
    would run from living masters to slaves and back.
    """
    if known is None or not known.exists:
        return update
    told = {shard.broker_name: shard for shard in update.shards}
    kept = {
        shard.broker_name: shard
        for shard in known.shards
        if shard.broker_name not in told or told[shard.broker_name].epoch < shard.epoch
    }
    if not kept:
        return update
    whole = TopicRoute(topic=update.topic, exists=True, attributes=update.attributes or known.attributes)
    whole.shards.extend(kept.get(name) or told[name] for name in sorted({*told, *kept}))
    queues = {each.broker_name: each for each in update.queues}
    queues.update({each.broker_name: each for each in known.queues if each.broker_name in kept})
    whole.queues.extend(queues[name] for name in sorted(queues))
    return whole
