"""Ranges of queues, committed offsets of groups, and moving them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.proto.errors import InvalidArgument, OffsetOutOfRange, RouteNotFound
from penstock.proto.wire.broker_pb2 import CommitOffsetsRequest, GroupDescription, SearchOffsetRequest
from penstock.proto.wire.common_pb2 import Empty, TopicOffsets, TopicQueues
from penstock.proto.wire.nameserver_pb2 import ShardView

from ..cluster.admin_calls import AdminCalls
from .admin_results import GroupLag, QueueLag, QueuePosition, QueueStats, TopicStats


class GroupOffsets:
    """What :class:`~penstock.client.Admin` knows and changes about offsets."""

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    def topic_stats(self, topic: str, timeout_s: float) -> TopicStats:
        """The ranges of every queue of ``topic``."""
        route = self._calls.route(topic, timeout_s)
        reads = {queues.broker_name: queues.read_queues for queues in route.queues}
        shards = {shard.broker_name: shard for shard in route.shards}
        answers, unreachable = self._calls.at_each(
            shards,
            lambda name: ("QueryQueueRanges", TopicQueues(topic=topic, queue_ids=range(reads[name]))),
            timeout_s,
        )
        queues = [
            QueueStats(
                topic=topic,
                broker_name=name,
                queue_id=each.queue_id,
                min_offset=each.min_offset,
                max_offset=each.max_offset,
                messages=each.max_offset - each.min_offset,
                last_store_timestamp_ms=each.last_store_timestamp_ms,
            )
            for name in sorted(answers)
            for each in answers[name].ranges
        ]
        unreachable = sorted({*unreachable, *(part.broker_name for part in route.absent)})
        return TopicStats(topic, sum(queue.messages for queue in queues), queues, unreachable)

    def group_lag(self, group: str, timeout_s: float) -> GroupLag:
        """What is stored and not committed, over all topics that the group reads or has read."""
        descriptions, unreachable = self._calls.describe_group(group, timeout_s)
        committed, holders = _committed(descriptions), _holders(descriptions)
        topics = {topic for topic, _, _ in (*committed, *holders)}
        for description in descriptions.values():
            topics.update(topic for member in description.members for topic in member.subscriptions)
        queues = []
        existing = set(self._existing(topics, timeout_s))
        for topic in sorted(existing):
            stats = self.topic_stats(topic, timeout_s)
            unreachable += stats.unreachable
            for queue in stats.queues:
                key = (topic, queue.broker_name, queue.queue_id)
                offset = committed.get(key, -1)
                queues.append(
                    QueueLag(
                        *key,
                        committed_offset=offset,
                        min_offset=queue.min_offset,
                        max_offset=queue.max_offset,
                        lag=max(queue.max_offset - max(offset, queue.min_offset), 0),
                        client_id=holders.get(key),
                    )
                )
        return GroupLag(group, sum(queue.lag for queue in queues), queues, sorted(set(unreachable)))

    def reset(
        self,
        group: str,
        topic: str,
        to: str | None,
        timestamp_ms: int | None,
        offset: int | None,
        queues: Sequence[tuple[str, int]] | None,
        timeout_s: float,
    ) -> list[QueuePosition]:
        """Move the group; all new offsets are known and checked before the first one is written."""
        self._calls.describe_group(group, timeout_s)  # a misspelt name must not make a group
        stats = self.topic_stats(topic, timeout_s)
        if stats.unreachable:
            raise RouteNotFound(f"topic {topic}: {', '.join(stats.unreachable)} do not answer; nothing was changed")
        chosen = [queue for queue in stats.queues if queues is None or (queue.broker_name, queue.queue_id) in queues]
        if queues is not None and len(chosen) != len(set(queues)):
            raise InvalidArgument(f"topic {topic} has not all of the queues {sorted(queues)}")
        positions = []
        for queue in chosen:
            if timestamp_ms is not None:
                wanted = self._search(queue, timestamp_ms, timeout_s)
            elif offset is not None:
                wanted = offset
            else:
                wanted = queue.min_offset if to == "first" else queue.max_offset
            if not queue.min_offset <= wanted <= queue.max_offset:
                raise OffsetOutOfRange(
                    f"offset {wanted}: queue {queue.queue_id} of {topic} at {queue.broker_name} has "
                    f"{queue.min_offset}..{queue.max_offset}; nothing was changed"
                )
            positions.append(QueuePosition(topic, queue.broker_name, queue.queue_id, wanted))
        self._commit(group, positions, timeout_s)
        return positions

    def clone(self, source: str, target: str, topic: str | None, timeout_s: float) -> list[QueuePosition]:
        """Commit for ``target`` what ``source`` has committed."""
        descriptions, unreachable = self._calls.describe_group(source, timeout_s)
        if unreachable:
            raise RouteNotFound(f"group {source}: {', '.join(unreachable)} do not answer; nothing was changed")
        positions = [
            QueuePosition(name, broker_name, queue_id, offset)
            for (name, broker_name, queue_id), offset in sorted(_committed(descriptions).items())
            if offset >= 0 and topic in (None, name)
        ]
        self._commit(target, positions, timeout_s)
        return positions

    def _existing(self, topics: Iterable[str], timeout_s: float) -> list[str]:
        found = self._calls.connections.query_nameserver("ListTopics", Empty(), timeout_s)
        return [topic for topic in topics if topic in set(found.topics)]

    def _search(self, queue: QueueStats, timestamp_ms: int, timeout_s: float) -> int:
        shards: dict[str, ShardView] = self._calls.shards(timeout_s)
        request = SearchOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=timestamp_ms)
        one = {queue.broker_name: shards[queue.broker_name]}
        answers, silent = self._calls.at_each(one, lambda _: ("SearchOffset", request), timeout_s)
        if silent:
            raise RouteNotFound(f"broker group {queue.broker_name} does not answer; nothing was changed")
        return int(answers[queue.broker_name].offset)

    def _commit(self, group: str, positions: Sequence[QueuePosition], timeout_s: float) -> None:
        by_broker: dict[str, dict[str, TopicOffsets]] = {}
        for position in positions:
            topics = by_broker.setdefault(position.broker_name, {})
            offsets = topics.setdefault(position.topic, TopicOffsets(topic=position.topic))
            offsets.queue_ids.append(position.queue_id)
            offsets.offsets.append(position.offset)
        for broker_name, topics in by_broker.items():
            request = CommitOffsetsRequest(group=group, offsets=topics.values(), force=True)
            reply: Any = self._calls.at_master(broker_name, "CommitOffsets", request, timeout_s)
            if reply.refused:
                raise InvalidArgument(f"group {group}: {broker_name} refused offsets of {reply.refused}")


def _committed(descriptions: dict[str, GroupDescription]) -> dict[tuple[str, str, int], int]:
    return {
        (offsets.topic, broker_name, queue_id): offset
        for broker_name, description in descriptions.items()
        for offsets in description.committed
        for queue_id, offset in zip(offsets.queue_ids, offsets.offsets, strict=True)
    }


def _holders(descriptions: dict[str, GroupDescription]) -> dict[tuple[str, str, int], str]:
    return {
        (queues.topic, broker_name, queue_id): member.client_id
        for broker_name, description in descriptions.items()
        for member in description.members
        for queues in member.claimed
        for queue_id in queues.queue_ids
    }
