"""Committed offsets and queue positions: commits by members and administrators, queries, searches."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from penstock.proto import names
from penstock.proto.errors import (
    FlowControl,
    InvalidArgument,
    NotCurrent,
    NotMaster,
    OffsetOutOfRange,
    PenstockError,
    TopicNotFound,
)
from penstock.proto.wire import broker_pb2, common_pb2
from penstock.proto.wire.replication_pb2 import ReplicaReport

from ..core.core import Core
from ..core.failed import check_group_count, group_or_new
from ..core.journal import Journal
from ..core.tables.groups import GROUP, Group
from ..core.tables.offsets import RESET, OffsetsByQueue, offset_records
from ..core.tables.tables import Tables
from ..core.wire import QUEUES_MAX, TURN, check_count, check_queues, in_turns
from .consumer_sessions import ConsumerSessions

log = logging.getLogger(__name__)

TopicOffsets = common_pb2.TopicOffsets

PENDING_MAX: Final = 500_000
"""Offsets that a slave keeps for its master, of all groups."""


class PendingCommits:
    """Offsets committed at a slave, kept until the log says as much: the master has taken them.

    In memory only: when the slave dies too, the group goes on from the last offsets in the log. An offset behind what a
    failover has cut off counts no more.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._tables = core.tables
        self._offsets: dict[tuple[str, str, int], tuple[int, int]] = {}  # and the epoch of each; 0: nobody knows
        core.tables.offsets.on_applied = self.on_applied
        core.tables.offsets.on_deleted = self.on_deleted

    def put(self, group: str, topic: str, queue_id: int, offset: int, epoch: int = 0) -> None:
        """Keep a commit, unless the log says as much already: no record to come would clear it away.

        What is kept is offered to the master again and again, and would undo an administrator's reset there.
        """
        if offset > self._tables.offsets.get(group, topic, queue_id):
            if len(self._offsets) >= PENDING_MAX and (group, topic, queue_id) not in self._offsets:
                raise FlowControl(
                    f"{PENDING_MAX} offsets wait for the master to come back: commit again when it is there"
                )
            self._offsets[group, topic, queue_id] = (offset, epoch)

    def on_applied(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """The log says now: what is kept of the same queues and not beyond is with the master."""
        for queue_id, offset in offsets.items():
            if self._offsets.get((group, topic, queue_id), (offset + 1, 0))[0] <= offset:
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
        in_log, key = self._tables.offsets.get(group, topic, queue_id), (group, topic, queue_id)
        return in_log if key not in self._offsets else max(in_log, self._kept(key))

    def offered(self) -> list[ReplicaReport.Commits]:
        """For the replication stream; none while this slave cannot show yet where its master's epoch has begun."""
        return self.take() if self._core.shown_epoch >= self._core.role.history.latest else []

    def take(self) -> list[ReplicaReport.Commits]:
        """What the master does not have yet; offered again until it has."""
        for key in [key for key in self._offsets if self._kept(key) < 0]:
            del self._offsets[key]
        groups: dict[str, dict[str, dict[int, int]]] = {}
        for (group, topic, queue_id), (offset, _) in self._offsets.items():
            groups.setdefault(group, {}).setdefault(topic, {})[queue_id] = offset
        return [
            ReplicaReport.Commits(group=group, offsets=to_wire(offsets)) for group, offsets in sorted(groups.items())
        ]

    def _kept(self, key: tuple[str, str, int]) -> int:
        """The offset kept for it; -1 if a failover has cut off what was read."""
        offset, epoch = self._offsets[key]
        cut = self._core.cut_of(epoch, *key[1:])
        return offset if cut is None or offset <= cut else -1


class OffsetService:
    """The offsets of all groups at one broker; event loop only. At a slave, commits are kept for the master."""

    def __init__(self, core: Core, sessions: ConsumerSessions, pending: PendingCommits) -> None:
        self._core = core
        self._store = core.store
        self._tables = core.tables
        self._owners = sessions
        self._pending = pending
        # What a master took last, by group, topic and queue: what was committed before, and where its record ends.
        self._taken: dict[tuple[str, str, int], tuple[int, int]] = {}
        self._found_end = 0  # of what a master found in its log when it began

    @property
    def _journal(self) -> Journal | None:
        """Commits are noted by any master, however few replicas are in sync; None at a slave."""
        return self._core.events.journal

    def check_current(self) -> None:
        """Refuse to say what groups have committed, unless all that was acknowledged is here.

        A consumer that believed less would read messages again, or, if nothing of its group is here, begin behind
        messages that nobody has read.

        Raises NotCurrent: this broker may be behind.
        """
        identity = self._core.config.identity
        if not self._core.role.is_current:
            raise NotCurrent(
                f"broker {identity.broker_name}/{identity.broker_id} may lack what was acknowledged, and so what "
                "consumers have committed: ask again when there is a master"
            )

    def join_group(self, group: str) -> None:
        """Make sure that ``group`` may be used: created where that is allowed.

        A slave creates nothing: it lets unknown groups in, their commits create them at the master.

        Raises GroupNotFound: it does not exist and autoCreateSubscriptionGroup is false.
        """
        group_or_new(self._core, group)
        if group not in self._tables.groups:
            check_group_count(self._core, group)
            if self._journal is not None:
                self._core.role.check_master()
                _ensure_group(self._journal, self._tables, group)

    async def commit(self, request: broker_pb2.CommitOffsetsRequest) -> broker_pb2.CommitOffsetsReply:
        """Take what is allowed of the offsets; the refused queues by topic.

        A member commits the queues that its session holds, and of them what the log still has that it has read. Offsets
        go forward; back only with ``force``, which also tells the member that holds the queue, unless it was that one,
        and those that broadcast, where to go on.
        The offsets of members that broadcast are theirs: where there are no others, ``force`` begins none for the
        group.

        Raises:
            InvalidArgument: a negative queue or offset, lists that do not fit, or too many; nothing was taken.
            TopicNotFound, OffsetOutOfRange: from a non-member (``session_id`` 0), who named a queue or offset that
                does not exist; nothing was taken. A member gets these as refused, so that its other queues go on.
            NotMaster: ``force`` at a slave.
            OutcomeUnknown: it is noted here, replicas or disk did not confirm in time.
        """
        group, is_member = request.group, request.session_id != 0
        if request.force or self._journal is not None:
            self._core.role.check_master()
        queues = _checked(request.offsets)
        self.join_group(group)
        if not is_member:
            async for queue in in_turns(queues):
                if (problem := self._problem(*queue)) is not None:
                    raise problem
        refused: dict[str, list[int]] = {}
        journal, epoch = self._journal, self._core.role.epoch
        start = 0
        while start < len(queues):
            turn = TURN
            if request.force:
                self._core.role.check_master()
                turn = max(TURN // (1 + self._owners.broadcasting(group)), 1)  # each of them is told of each queue
            for topic, queue_id in self._commit(request, queues[start : start + turn]):
                refused.setdefault(topic, []).append(queue_id)
            start += turn
            await asyncio.sleep(0)
        if journal is not None:  # also where nothing was new: the one before may not be confirmed yet
            await self._core.acknowledgements.safe(journal.state_end, f"offsets of group {group}", epoch=epoch)
        elif self._journal is not None:
            await self._core.acknowledgements.safe(self._journal.state_end, f"offsets of group {group}")
        return broker_pb2.CommitOffsetsReply(
            refused=[common_pb2.TopicQueues(topic=topic, queue_ids=queue_ids) for topic, queue_ids in refused.items()]
        )

    def _commit(
        self, request: broker_pb2.CommitOffsetsRequest, queues: Iterable[tuple[str, int, int]]
    ) -> list[tuple[str, int]]:
        """Take some of them in one go, since who holds a queue may change between two; the refused ones."""
        group, accepted, refused = request.group, dict[str, dict[int, int]](), []
        log_end = self._core.end_of_epoch(request.epoch)
        for topic, queue_id, offset in queues:
            is_holder = not request.session_id or self._owners.owns(request.session_id, group, topic, queue_id)
            is_allowed = is_holder and (request.force or offset >= self._pending.committed(group, topic, queue_id))
            if log_end is not None and offset > self._store.removal.first_from(topic, queue_id, log_end):
                is_allowed = False  # other messages have come in the place of what was read
            if is_allowed and self._problem(topic, queue_id, offset) is None:
                accepted.setdefault(topic, {})[queue_id] = offset
            else:
                refused.append((topic, queue_id))
        kept = accepted
        if request.force and self._owners.only_broadcast(group):
            kept = {
                topic: {
                    each: offset for each, offset in taken.items() if self._pending.committed(group, topic, each) >= 0
                }
                for topic, taken in accepted.items()
            }
        self._take(group, kept, request.epoch, is_reset=request.force)
        if request.force:
            for topic, taken in accepted.items():
                for queue_id, offset in taken.items():
                    self._owners.notify_reset(group, topic, queue_id, offset, request.session_id)
        return refused

    def take_from_slave(self, commits: ReplicaReport.Commits) -> None:
        """Take offsets that were committed at a slave while this master was gone, where they are greater."""
        journal = self._journal
        if journal is None:
            raise NotMaster("commits of a slave reached a slave")
        greater: dict[str, dict[int, int]] = {}
        for topic, queue_id, offset in each_queue(commits.offsets):
            if offset > self._tables.offsets.get(commits.group, topic, queue_id):
                if self._problem(topic, queue_id, offset) is None:
                    greater.setdefault(topic, {})[queue_id] = offset
                else:
                    log.warning(
                        "commit of a slave left out group=%s topic=%s queue=%d offset=%d",
                        *(commits.group, topic, queue_id, offset),
                    )
        if greater:
            _ensure_group(journal, self._tables, commits.group)
            self._take_at_master(journal, commits.group, greater)

    def take_over(self) -> None:
        """Take what was kept while this broker was a slave, now that it is master.

        What lies behind the end of its log goes with the messages that only the old master had: kept, it would have
        the group pass over new ones. What finds no space is kept.
        """
        self._taken.clear()
        self._found_end = 0 if self._journal is None else self._journal.state_end
        for commits in self._pending.take():
            try:
                self.take_from_slave(commits)
            except PenstockError as error:
                log.error("commits kept in memory group=%s error=%s", commits.group, error)
            else:
                self._pending.forget(commits)

    async def query(self, request: broker_pb2.QueryOffsetsRequest) -> broker_pb2.QueryOffsetsReply:
        """Committed offsets of the queues asked for, or of all that the group has; -1: never committed.

        A master without the replicas that inSyncReplicas demands tells what was committed before what it took last:
        that may vanish with it. Of a queue that had nothing before, it tells that all the same. It tells nothing while
        what it found in its log, when it began, is not confirmed.

        Raises NotCurrent.
        """
        self.check_current()
        await self._core.shown()
        if self._store.confirm_offset < self._found_end and not self._core.role.can_acknowledge():
            raise NotCurrent(
                "committed offsets cannot be shown: replicas did not confirm yet what this master began with"
            )
        group, table = names.check_group(request.group), self._tables.offsets
        check_count("queues", sum(len(part.queue_ids) for part in request.queues), QUEUES_MAX)
        check_count("topics", len(request.queues), QUEUES_MAX)
        wanted: Iterable[tuple[str, Iterable[int]]] = ((part.topic, part.queue_ids) for part in request.queues)
        if not request.queues:
            wanted = ((topic, sorted(table.row(group, topic))) for topic in table.topics_of(group))
        found: dict[str, dict[int, int]] = {}
        async for topic, queue_id in in_turns((topic, each) for topic, queue_ids in wanted for each in queue_ids):
            before, end = self._taken.get((group, topic, queue_id), (-1, 0))
            is_safe = before < 0 or self._core.role.can_acknowledge() or self._store.confirm_offset >= end
            found.setdefault(topic, {})[queue_id] = (
                self._pending.committed(group, topic, queue_id) if is_safe else before
            )
        reply = broker_pb2.QueryOffsetsReply()
        async for topic, offsets in in_turns(found.items()):
            reply.offsets.extend(to_wire({topic: offsets}))
        return reply

    async def ranges(self, request: common_pb2.TopicQueues) -> broker_pb2.QueueRanges:
        """What can be read of the queues asked for, or of all of the topic."""
        topic, read_queues = request.topic, self._read_queues(request.topic)
        check_queues(topic, request.queue_ids)
        reply = broker_pb2.QueueRanges(topic=topic)
        async for queue_id in in_turns(request.queue_ids or range(read_queues)):
            low, high = self._store.reader.queue_range(topic, queue_id) if 0 <= queue_id < read_queues else (0, 0)
            last = self._store.lookup.store_timestamp_at(topic, queue_id, high - 1) if high > low else None
            reply.ranges.add(queue_id=queue_id, min_offset=low, max_offset=high, last_store_timestamp_ms=last or 0)
        return reply

    async def search(self, request: broker_pb2.SearchOffsetRequest) -> broker_pb2.QueueOffset:
        """The offset at a store time."""
        topic, queue_id = request.topic, request.queue_id
        if not 0 <= queue_id < self._read_queues(topic):
            raise InvalidArgument(f"topic {topic} has no queue {queue_id}")
        found = self._store.lookup.search_offset(topic, queue_id, request.timestamp_ms, upper=request.upper)
        return broker_pb2.QueueOffset(offset=found)

    def lower_to_log(self) -> None:
        """As a master that begins, bring offsets above the end of their queue down to it: a log has lost its newest
        bytes in a crash, and a snapshot has not.

        Left alone, such an offset would jump over the messages that fill the gap.
        """
        journal, ends = self._journal, dict[str, list[int]]()
        assert journal is not None, "lowered at a slave"
        for group, topic in self._tables.offsets.pairs():
            if topic not in ends:
                ends[topic] = self._store.queue_ends(topic)
            lowered = {}
            for queue_id, offset in self._tables.offsets.row(group, topic).items():
                high = ends[topic][queue_id] if queue_id < len(ends[topic]) else 0
                if offset > high:
                    lowered[queue_id] = high
            if lowered:
                log.warning(
                    "committed offsets lowered to the log's end group=%s topic=%s count=%d first=%s",
                    *(group, topic, len(lowered), dict(itertools.islice(lowered.items(), 10))),
                )
                try:
                    record_offsets(journal, self._tables, group, {topic: lowered})
                except PenstockError as error:  # what keeps one group need not keep the broker from being master
                    log.error("committed offsets stay above the log's end group=%s error=%s", group, error)

    def _read_queues(self, name: str) -> int:
        queues = self._tables.read_queues(name)
        if not queues and self._tables.topics.get(name) is None:
            raise TopicNotFound(f"topic {names.check_topic(name)} does not exist at this broker", topic=name)
        return queues

    def _problem(self, topic: str, queue_id: int, offset: int) -> PenstockError | None:
        if queue_id >= self._tables.read_queues(topic):
            return TopicNotFound(f"topic {topic} has no queue {queue_id} at this broker", topic=topic)
        low, high = self._store.reader.queue_range(topic, queue_id)
        if not high and topic.startswith(names.LIGHT_PREFIX):
            return TopicNotFound(f"light queue {topic[:100]} does not exist at this broker", topic=topic)
        # A slave may be behind what the consumer has read at the master.
        hidden = self._core.dispatcher.hidden_records_max(topic, queue_id)
        if offset > high + hidden and self._journal is not None:
            return OffsetOutOfRange(f"topic {topic} queue {queue_id}: offset {offset} is not in {low}..{high}")
        return None

    def _take(self, group: str, accepted: OffsetsByQueue, epoch: int, *, is_reset: bool) -> None:
        if self._journal is not None:
            self._take_at_master(self._journal, group, accepted, is_reset=is_reset)
            return
        for topic, queues in accepted.items():
            for queue_id, offset in queues.items():
                self._pending.put(group, topic, queue_id, offset, epoch)

    def _take_at_master(
        self, journal: Journal, group: str, accepted: OffsetsByQueue, *, is_reset: bool = False
    ) -> None:
        confirm, befores = self._store.confirm_offset, list[int]()
        if confirm >= journal.state_end:
            self._taken.clear()
        keys = [(group, topic, queue_id) for topic in accepted for queue_id in accepted[topic]]
        for key in keys:
            before, end = self._taken.get(key, (-1, 0))
            befores.append(self._tables.offsets.get(*key) if confirm >= end else before)
        record_offsets(journal, self._tables, group, accepted, is_reset=is_reset)
        self._taken.update(zip(keys, ((before, journal.state_end) for before in befores), strict=True))


def record_offsets(
    journal: Journal, tables: Tables, group: str, offsets: OffsetsByQueue, *, is_reset: bool = False
) -> None:
    """Set committed offsets as given, where they are others than now, or this ``is_reset``.

    The last record wins, back or forth.
    """
    changed = {
        topic: kept
        for topic, queues in offsets.items()
        if (kept := {q: o for q, o in queues.items() if is_reset or tables.offsets.get(group, topic, q) != o})
    }
    for kind, document in offset_records(group, changed, **({RESET: True} if is_reset else {})):
        journal.put(kind, document)


def _ensure_group(journal: Journal, tables: Tables, group: str) -> None:
    """Create ``group`` with default settings unless it exists."""
    if tables.groups.get(group) is None:
        journal.put(GROUP, Group(names.check_group(group)).to_json())


def _checked(offsets: Collection[TopicOffsets]) -> list[tuple[str, int, int]]:
    """(topic, queue id, offset) of a client's message. Raises InvalidArgument for what is too much, or no offset."""
    check_count("topics", len(offsets), QUEUES_MAX)
    check_count("queues", sum(len(part.queue_ids) for part in offsets), QUEUES_MAX)
    for part in offsets:
        check_queues(part.topic, part.queue_ids)
    queues = list(each_queue(offsets))
    for topic, queue_id, offset in queues:
        if queue_id < 0 or offset < 0:
            raise InvalidArgument(f"commit of topic {topic} queue {queue_id}: offset {offset} may not be negative")
    return queues


def each_queue(offsets: Iterable[TopicOffsets]) -> Iterable[tuple[str, int, int]]:
    """(topic, queue id, offset) of a wire message. Raises InvalidArgument when its lists differ in length."""
    for part in offsets:
        if len(part.queue_ids) != len(part.offsets):
            raise InvalidArgument(f"topic {part.topic}: {len(part.queue_ids)} queues with {len(part.offsets)} offsets")
        for queue_id, offset in zip(part.queue_ids, part.offsets, strict=True):
            yield part.topic, queue_id, offset


def to_wire(offsets: OffsetsByQueue) -> list[TopicOffsets]:
    """The wire's messages of topic -> queue id -> offset."""
    return [
        TopicOffsets(topic=topic, queue_ids=list(queues), offsets=list(queues.values()))
        for topic, queues in offsets.items()
    ]
