"""Committed offsets and queue positions: commits by members and administrators, queries, searches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from penstock.proto import names
from penstock.proto.errors import (
    DiskFull,
    GroupNotFound,
    InvalidArgument,
    NotMaster,
    OffsetOutOfRange,
    PenstockError,
    TopicNotFound,
)
from penstock.proto.wire import broker_pb2, common_pb2
from penstock.proto.wire.replication_pb2 import ReplicaReport

from ..core.dispatch import hidden_records_max
from ..core.state import Offsets, State
from ..core.state_log import StateLog
from ..store.lookup import Lookup
from ..store.reading import Reader

log = logging.getLogger(__name__)

TopicOffsets = common_pb2.TopicOffsets


class OffsetStore(Protocol):
    """What of the store this module needs."""

    @property
    def dispatched_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def reader(self) -> Reader: ...
    @property
    def lookup(self) -> Lookup: ...


class Owners(Protocol):
    """Who holds which queue (the consumer sessions)."""

    def owns(self, session_id: int, group: str, topic: str, queue_id: int) -> bool: ...
    def notify_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None: ...


class PendingCommits:
    """Offsets committed at a slave, kept until the log says as much: the master has taken them.

    In memory only: when the slave dies too, the group goes on from the last offsets in the log.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._offsets: dict[tuple[str, str, int], int] = {}

    def put(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Keep a commit, unless the log says as much already: no record to come would clear it away.

        What is kept is offered to the master again and again, and would undo an administrator's reset there.
        """
        if offset > self._state.committed(group, topic, queue_id):
            self._offsets[group, topic, queue_id] = offset

    def on_applied(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """The log says now: what is kept of the same queues and not beyond is with the master."""
        for queue_id, offset in offsets.items():
            if self._offsets.get((group, topic, queue_id), offset + 1) <= offset:
                del self._offsets[group, topic, queue_id]

    def on_deleted(self, group: str, topic: str) -> None:
        """The group is gone, or the topic: nobody would take their offsets, and one made anew begins without."""
        for key in [key for key in self._offsets if group in ("", key[0]) and topic in ("", key[1])]:
            del self._offsets[key]

    def forget(self, commits: ReplicaReport.Commits) -> None:
        """These were taken, or cannot be."""
        for topic, queue_id, _ in each_queue(commits.offsets):
            self._offsets.pop((commits.group, topic, queue_id), None)

    def committed(self, group: str, topic: str, queue_id: int) -> int:
        """The greater of what is kept here and what the log says."""
        return max(self._state.committed(group, topic, queue_id), self._offsets.get((group, topic, queue_id), -1))

    def take(self) -> list[ReplicaReport.Commits]:
        """What the master does not have yet, for the replication stream; offered again until it has."""
        groups: dict[str, dict[str, dict[int, int]]] = {}
        for (group, topic, queue_id), offset in self._offsets.items():
            groups.setdefault(group, {}).setdefault(topic, {})[queue_id] = offset
        return [
            ReplicaReport.Commits(group=group, offsets=to_wire(offsets)) for group, offsets in sorted(groups.items())
        ]


class OffsetService:
    """The offsets of all groups at one broker; event loop only.

    ``state_log`` is None at a slave: commits are then kept in ``pending`` for the master.
    """

    def __init__(
        self,
        store: OffsetStore,
        state: State,
        owners: Owners,
        pending: PendingCommits,
        *,
        state_log: StateLog | None,
        auto_create_groups: bool,
        check_master: Callable[[], None],
    ) -> None:
        self._store = store
        self._state = state
        self._owners = owners
        self._pending = pending
        self.state_log = state_log
        self._auto_create_groups = auto_create_groups
        self._check_master = check_master

    def join_group(self, group: str) -> None:
        """Make sure that ``group`` may be used: created where that is allowed.

        A slave creates nothing: it lets unknown groups in, their commits create them at the master.

        Raises:
            GroupNotFound: it does not exist and autoCreateSubscriptionGroup is false.
        """
        if self._state.group(names.check_group(group)) is not None:
            return
        if not self._auto_create_groups:
            raise GroupNotFound(
                f"group {group} does not exist and autoCreateSubscriptionGroup is false: create it", group=group
            )
        if self.state_log is not None:
            self._check_master()
            self.state_log.ensure_group(group)

    def committed(self, group: str, topic: str, queue_id: int) -> int:
        """Next offset of the group in the queue, -1 when it never committed."""
        return self._pending.committed(group, topic, queue_id)

    def commit(self, request: broker_pb2.CommitOffsetsRequest) -> broker_pb2.CommitOffsetsReply:
        """Take what is allowed, name the rest in ``refused``.

        A member commits the queues that its session holds. Offsets go forward; back only with ``force``, which
        also tells the member that holds the queue where to go on.

        Raises:
            InvalidArgument: a negative queue or offset; nothing was taken.
            TopicNotFound, OffsetOutOfRange: from a non-member, who named a queue or offset that does not
                exist; nothing was taken. A member gets these in ``refused``, so that its other queues go on.
            NotMaster: ``force`` at a slave.
        """
        if request.force or self.state_log is not None:
            self._check_master()
        self.join_group(request.group)
        accepted: dict[str, dict[int, int]] = {}
        refused: dict[str, list[int]] = {}
        for topic, queue_id, offset in each_queue(request.offsets):
            if queue_id < 0 or offset < 0:
                raise InvalidArgument(f"commit of topic {topic} queue {queue_id}: offset {offset} may not be negative")
            problem = self._problem(topic, queue_id, offset)
            if problem is not None and not request.session_id:
                raise problem
            if problem is not None or not self._may_commit(request, topic, queue_id, offset):
                refused.setdefault(topic, []).append(queue_id)
            else:
                accepted.setdefault(topic, {})[queue_id] = offset
        self._take(request.group, accepted)
        if request.force:
            for topic, queues in accepted.items():
                for queue_id, offset in queues.items():
                    self._owners.notify_reset(request.group, topic, queue_id, offset)
        return broker_pb2.CommitOffsetsReply(
            refused=[common_pb2.TopicQueues(topic=topic, queue_ids=queues) for topic, queues in refused.items()]
        )

    def take_from_slave(self, commits: ReplicaReport.Commits) -> None:
        """Take offsets that were committed at a slave while this master was gone, where they are greater."""
        if self.state_log is None:
            raise NotMaster("commits of a slave reached a slave")
        greater: dict[str, dict[int, int]] = {}
        for topic, queue_id, offset in each_queue(commits.offsets):
            if offset > self._state.committed(commits.group, topic, queue_id):
                if self._problem(topic, queue_id, offset) is None:
                    greater.setdefault(topic, {})[queue_id] = offset
                else:
                    log.warning(
                        "commit of a slave left out group=%s topic=%s queue=%d offset=%d",
                        commits.group,
                        topic,
                        queue_id,
                        offset,
                    )
        if greater:
            self.state_log.ensure_group(commits.group)
            self.state_log.commit(commits.group, greater)

    def take_over(self) -> None:
        """Take what was kept while this broker was a slave, now that it is master.

        What lies behind the end of its log goes with the messages that only the old master had: kept, it would have
        the group pass over new ones. What finds no space is kept.
        """
        for commits in self._pending.take():
            try:
                self.take_from_slave(commits)
            except DiskFull as error:
                log.error("commits kept in memory group=%s error=%s", commits.group, error)
            else:
                self._pending.forget(commits)

    def query(self, request: broker_pb2.QueryOffsetsRequest) -> broker_pb2.QueryOffsetsReply:
        """Committed offsets of the queues asked for, or of all that the group has; -1: never committed."""
        names.check_group(request.group)
        wanted: dict[str, Iterable[int]] = {part.topic: part.queue_ids for part in request.queues}
        if not wanted:
            for topic in self._state.offsets.topics_of(request.group):
                wanted[topic] = sorted(self._state.offsets.row(request.group, topic))
        offsets = {t: {q: self.committed(request.group, t, q) for q in queues} for t, queues in wanted.items()}
        return broker_pb2.QueryOffsetsReply(offsets=to_wire(offsets))

    def ranges(self, request: common_pb2.TopicQueues) -> broker_pb2.QueueRanges:
        """What can be read of the queues asked for, or of all of the topic."""
        read_queues = self._read_queues(request.topic)
        reply = broker_pb2.QueueRanges(topic=request.topic)
        for queue_id in request.queue_ids or range(read_queues):
            low, high = 0, 0
            if 0 <= queue_id < read_queues:
                low, high = self._store.reader.queue_range(request.topic, queue_id)
            last = self._store.lookup.store_timestamp_at(request.topic, queue_id, high - 1) if high > low else None
            reply.ranges.add(queue_id=queue_id, min_offset=low, max_offset=high, last_store_timestamp_ms=last or 0)
        return reply

    def search(self, request: broker_pb2.SearchOffsetRequest) -> broker_pb2.QueueOffset:
        """The offset at a store time."""
        if not 0 <= request.queue_id < self._read_queues(request.topic):
            raise InvalidArgument(f"topic {request.topic} has no queue {request.queue_id}")
        offset = self._store.lookup.search_offset(
            request.topic, request.queue_id, request.timestamp_ms, upper=request.upper
        )
        return broker_pb2.QueueOffset(offset=offset)

    def lower_to_log(self) -> None:
        """Bring offsets above the end of their queue down to it: the log lost its newest bytes in a crash.

        Left alone, such an offset would jump over the messages that fill the gap.
        """
        if self._store.dispatched_offset < self._store.end_offset:
            return
        for group, topic in self._state.offsets.pairs():
            lowered = {}
            for queue_id, offset in self._state.offsets.row(group, topic).items():
                high = self._store.reader.queue_range(topic, queue_id)[1]
                if offset > high:
                    lowered[queue_id] = high
            if lowered and self.state_log is not None:
                log.warning(
                    "committed offsets lowered to the log's end group=%s topic=%s queues=%s", group, topic, lowered
                )
                self.state_log.commit(group, {topic: lowered})

    def _read_queues(self, name: str) -> int:
        queues = self._state.read_queues(name)
        if not queues and self._state.topic(name) is None:
            raise TopicNotFound(f"topic {names.check_topic(name)} does not exist at this broker", topic=name)
        return queues

    def _problem(self, topic: str, queue_id: int, offset: int) -> PenstockError | None:
        if queue_id >= self._state.read_queues(topic):
            return TopicNotFound(f"topic {topic} has no queue {queue_id} at this broker", topic=topic)
        low, high = self._store.reader.queue_range(topic, queue_id)
        # A slave may be behind what the consumer has read at the master.
        if offset > high + hidden_records_max(self._store) and self.state_log is not None:
            return OffsetOutOfRange(f"topic {topic} queue {queue_id}: offset {offset} is not in {low}..{high}")
        return None

    def _may_commit(self, request: broker_pb2.CommitOffsetsRequest, topic: str, queue_id: int, offset: int) -> bool:
        if request.session_id and not self._owners.owns(request.session_id, request.group, topic, queue_id):
            return False
        return request.force or offset >= self.committed(request.group, topic, queue_id)

    def _take(self, group: str, accepted: Offsets) -> None:
        if self.state_log is not None:
            self.state_log.commit(group, accepted)
            return
        for topic, queues in accepted.items():
            for queue_id, offset in queues.items():
                self._pending.put(group, topic, queue_id, offset)


def each_queue(offsets: Iterable[TopicOffsets]) -> Iterable[tuple[str, int, int]]:
    """(topic, queue id, offset) of a wire message. Raises InvalidArgument when its lists differ in length."""
    for part in offsets:
        if len(part.queue_ids) != len(part.offsets):
            raise InvalidArgument(f"topic {part.topic}: {len(part.queue_ids)} queues with {len(part.offsets)} offsets")
        for queue_id, offset in zip(part.queue_ids, part.offsets, strict=True):
            yield part.topic, queue_id, offset


def to_wire(offsets: Offsets) -> list[TopicOffsets]:
    """The wire's messages of topic -> queue id -> offset."""
    return [
        TopicOffsets(topic=topic, queue_ids=list(queues), offsets=list(queues.values()))
        for topic, queues in offsets.items()
    ]
