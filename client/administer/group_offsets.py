"""Ranges of queues, committed offsets of groups, and moving them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.proto.errors import GroupNotFound, InvalidArgument, OffsetOutOfRange, RouteNotFound
from penstock.proto.wire.broker_pb2 import CommitOffsetsRequest, GroupDescription, SearchOffsetRequest
from penstock.proto.wire.common_pb2 import TopicQueues

from ..arguments import several, whole
from ..cluster import Calls, asked, offsets_by_broker, offsets_in, queues_in, topic_offsets
from ..message import MessageQueue
from .admin_results import GroupLag, QueueLag, QueuePosition, QueueStats, TopicStats, same_fields


def topic_stats(calls: Calls, topic: str, timeout_s: float) -> TopicStats:
    route = calls.directory.existing_route(topic, timeout_s)
    reads = {queues.broker_name: queues.read_queues for queues in route.queues}
    answers, unreachable = calls.at_each(
        route.shards,
        "QueryQueueRanges",
        lambda name: TopicQueues(topic=topic, queue_ids=range(reads[name])),
        timeout_s,
    )
    queues = [
        QueueStats(topic, name, messages=each.max_offset - each.min_offset, **same_fields(QueueStats, each))
        for name in sorted(answers)
        for each in answers[name].ranges
    ]
    unreachable = sorted({*unreachable, *(part.broker_name for part in route.absent)})
    return TopicStats(topic, sum(queue.messages for queue in queues), queues, unreachable)


def group_lag(calls: Calls, group: str, timeout_s: float) -> GroupLag:
    """Messages stored and not committed, over all topics that the group reads or has read."""
    answers, silent = calls.ask_about_group(group, timeout_s)
    descriptions = {name: answer for name, answer in answers.items() if answer is not None}
    unreachable = list(silent)
    committed = _committed(descriptions)
    holders = {
        queue: member.client_id
        for broker_name, description in descriptions.items()
        for member in description.members
        for queue in queues_in(member.claimed, broker_name)
    }
    topics = {queue.topic for queue in (*committed, *holders)}
    for description in descriptions.values():
        sharing = (member for member in description.members if not member.broadcasting)
        topics.update(topic for member in sharing for topic in member.subscriptions)
    queues = []
    for topic in sorted(topics.intersection(calls.directory.topics(timeout_s))):
        stats = topic_stats(calls, topic, timeout_s)
        unreachable += stats.unreachable
        for queue in stats.queues:
            if queue.broker_name not in answers:  # what the group has committed there is not known
                unreachable.append(queue.broker_name)  # silent, or registered only now: nameservers may start, too
                continue
            key = MessageQueue(topic, queue.broker_name, queue.queue_id)
            offset = committed.get(key, -1)
            lag = max(queue.max_offset - max(offset, queue.min_offset), 0)
            known = same_fields(QueueLag, queue)
            queues.append(QueueLag(**known, committed_offset=offset, lag=lag, client_id=holders.get(key)))
    return GroupLag(group, sum(queue.lag for queue in queues), queues, sorted(set(unreachable)))


def _place(value: Any) -> tuple[str, int]:
    """A queue as its broker's name and its id. Raises InvalidArgument for anything else."""
    parts = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(parts) != 2 or not isinstance(parts[0], str):
        raise InvalidArgument(f"queues: {value!r:.60} must be (broker name, queue id), as ('broker-a', 3)")
    return parts[0], whole("queues: queue id", parts[1], 0, kind=InvalidArgument)


def reset(
    calls: Calls,
    group: str,
    topic: str,
    to: str | None,
    timestamp_ms: int | None,
    offset: int | None,
    queues: Sequence[tuple[str, int]] | None,
    timeout_s: float,
    dry_run: bool,
) -> list[QueuePosition]:
    """Move the group; all new offsets are known and checked before the first one is written."""
    asked(SearchOffsetRequest, timestamp_ms=timestamp_ms)
    if timestamp_ms is not None and timestamp_ms > time.time() * 1000:
        raise InvalidArgument(
            f"timestamp_ms={timestamp_ms}: lies in the future, nothing was changed; to skip what waits, reset to 'last'"
        )
    if offset is not None and (not isinstance(offset, int) or isinstance(offset, bool)):
        raise InvalidArgument(f"offset={offset!r:.60}: must be a whole number")
    if queues is not None:
        queues = [_place(each) for each in several("queues", queues, "a list of (broker name, queue id)")]
    committed = _committed(calls.describe_group(group, timeout_s)[0])  # a misspelt name must not make a group
    stats = topic_stats(calls, topic, timeout_s)
    if stats.unreachable:
        raise RouteNotFound(f"topic {topic}: {', '.join(stats.unreachable)} do not answer; nothing was changed")
    chosen = [queue for queue in stats.queues if queues is None or (queue.broker_name, queue.queue_id) in queues]
    if queues is not None and len(chosen) != len(set(queues)):
        missing = sorted(set(queues) - {(queue.broker_name, queue.queue_id) for queue in chosen})
        raise InvalidArgument(f"topic {topic} has no queue {', '.join(f'{name}:{number}' for name, number in missing)}")
    positions = []
    for queue in chosen:
        if timestamp_ms is not None:
            wanted = _search(calls, queue, timestamp_ms, timeout_s)
        elif offset is not None:
            wanted = offset
        else:
            wanted = queue.min_offset if to == "first" else queue.max_offset
        if not queue.min_offset <= wanted <= queue.max_offset:
            raise OffsetOutOfRange(
                f"offset {wanted}: queue {queue.queue_id} of {topic} at {queue.broker_name} has "
                f"{queue.min_offset}..{queue.max_offset}; nothing was changed"
            )
        key = MessageQueue(topic, queue.broker_name, queue.queue_id)
        positions.append(QueuePosition(*key, wanted, committed.get(key, -1)))
    if not dry_run:
        _commit(calls, group, positions, timeout_s)
    return positions


def clone(
    calls: Calls, source: str, target: str, topic: str | None, timeout_s: float, dry_run: bool
) -> list[QueuePosition]:
    descriptions, unreachable = calls.describe_group(source, timeout_s)
    if unreachable:
        raise RouteNotFound(f"group {source}: {', '.join(unreachable)} do not answer; nothing was changed")
    former: dict[MessageQueue, int] = {}
    with contextlib.suppress(GroupNotFound):
        former = _committed(calls.describe_group(target, timeout_s)[0])
    positions = [
        QueuePosition(*queue, offset, former.get(queue, -1))
        for queue, offset in sorted(_committed(descriptions).items())
        if offset >= 0 and topic in (None, queue.topic)
    ]
    if topic is not None and not positions:
        calls.directory.existing_route(topic, timeout_s)
    if not dry_run:
        _commit(calls, target, positions, timeout_s)
    return positions


def _search(calls: Calls, queue: QueueStats, timestamp_ms: int, timeout_s: float) -> int:
    name = queue.broker_name
    request = SearchOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=timestamp_ms)
    shard = calls.directory.shards(timeout_s)[name]
    answers, silent = calls.at_each([shard], "SearchOffset", lambda _: request, timeout_s)
    if silent:
        raise RouteNotFound(f"broker group {name} does not answer; nothing was changed")
    return int(answers[name].offset)


def _commit(calls: Calls, group: str, positions: Sequence[QueuePosition], timeout_s: float) -> None:
    offsets = {MessageQueue(each.topic, each.broker_name, each.queue_id): each.offset for each in positions}
    for broker_name, chosen in offsets_by_broker(offsets).items():
        request = CommitOffsetsRequest(group=group, offsets=topic_offsets(chosen), force=True)
        reply: Any = calls.at_master(broker_name, "CommitOffsets", request, timeout_s)
        if reply.refused:
            raise InvalidArgument(f"group {group}: {broker_name} refused offsets of {reply.refused}")


def _committed(descriptions: Mapping[str, GroupDescription]) -> dict[MessageQueue, int]:
    found: dict[MessageQueue, int] = {}
    for broker_name, description in descriptions.items():
        found |= offsets_in(description.committed, broker_name)
    return found
