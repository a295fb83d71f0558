"""One process's view of a cluster: connections kept per process, topics and positions in few calls.

A worker is forked by Spark before anything of this is imported, and every process makes channels of its own.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from penstock.client import MessageQueue
from penstock.client.cluster import Calls, offsets_in, queues_in, topic_offsets, topic_queues
from penstock.proto import names
from penstock.proto.errors import (
    BrokerUnavailable,
    ConfigError,
    GroupNotFound,
    PenstockError,
    RouteNotFound,
    TopicNotFound,
)
from penstock.proto.wire.broker_pb2 import (
    CommitOffsetsReply,
    CommitOffsetsRequest,
    GroupName,
    QueryOffsetsReply,
    QueryOffsetsRequest,
)
from penstock.proto.wire.nameserver_pb2 import QueueData, TopicRoute
from penstock.proto.wire.pipeline_pb2 import TopicPositions, TopicPositionsRequest
from penstock.proto.wire.pipeline_pb2_grpc import PositionsStub
from penstock.runtime.nearest import hint
from penstock.runtime.security.credentials import PLAIN, Security, SecurityFiles

from .offsets import Epochs, Offsets, Queue, Range
from .options import SourceOptions

log = logging.getLogger(__name__)

CLIENT_ID = "spark"
CALLS_AT_ONCE = 16
GONE_ASKED_S = 1.0
"""For a question that whoever lives answers at once."""
_clusters: dict[tuple[int, str, SecurityFiles], Cluster] = {}


class Positions(dict[Queue, Range]):
    """What each queue has; ``by_time``: first offset at the time asked for, where there is one.

    ``certain``: queues whose master answered, so that nothing newer exists. ``absent``: topics and broker groups of
    which nobody lives, and which are left out. ``created``: when a topic was created at a broker group, in ms, where
    that is known. ``epochs``: of the log that a master's offsets are of. ``cut``: where what a queue had in the epoch
    that was asked about ends, if a failover has ended that. ``log_offsets``: the same master's log below holds none of
    the topic's messages but those of these ranges. ``removed``: what it has of queues that
    a topic had before it got fewer, and nobody can read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_time: dict[Queue, int] = {}
        self.certain: set[Queue] = set()
        self.absent: set[tuple[str, str]] = set()
        self.created: dict[tuple[str, str], int] = {}
        self.epochs: dict[tuple[str, str], int] = {}
        self.cut: dict[Queue, int] = {}
        self.log_offsets: dict[tuple[str, str], int] = {}
        self.removed: dict[Queue, Range] = {}

    def unreadable(self, queue: Queue, start: int) -> str:
        """Why nobody can read what ``queue`` has from ``start`` on: its topic got fewer queues; else nothing."""
        held = self.removed.get(queue)
        if held is None or held.maximum <= start:
            return ""
        count = 1 + max(each.queue_id for each in self.removed if each[:2] == queue[:2])
        return (
            f"queue {queue}: nobody can read its messages {start}..{held.maximum}, since the topic got fewer queues: "
            f"give it {count} again (penstock topic update {queue.topic} --read-queues {count}) until they are read"
        )


class Cluster:
    """Calls at one cluster. Thread-safe; lives as long as the process."""

    def __init__(self, name_server: str, security: Security = PLAIN) -> None:
        self.name_server = name_server
        self.calls = Calls.to(name_server, tls=security.tls, credentials=security.credentials)

    def topics(self, options: SourceOptions) -> list[str]:
        """The topics that are read, sorted.

        Raises TopicNotFound: one that is named does not exist. RouteNotFound, NameserverUnavailable.
        """
        if options.topics:
            return sorted(options.topics)
        if options.assigned:
            return sorted({queue.topic for queue in options.assigned})
        pattern = re.compile(options.pattern)
        return [
            topic
            for topic in self.calls.directory.topics()
            if pattern.fullmatch(topic) and (options.system_topics or not names.is_system_topic(topic))
        ]

    def positions(
        self,
        options: SourceOptions,
        *,
        times: Offsets | int | None = None,
        timeout_s: float = 10.0,
        tolerates_missing: bool = False,
        needs_all: bool = False,
        passes_over_silent: bool = False,
        held: Collection[tuple[str, str]] = (),
        epochs: Epochs | None = None,
    ) -> Positions:
        """Every queue that the options name, with its range; ``times``: one for all, or one per queue.

        ``tolerates_missing``: topics that are not there (yet, or any more) have no queues, instead of raising.
        ``needs_all``: a broker group of a topic that is down is not passed over, nor a topic of which all are down.
        ``passes_over_silent``: a broker group that is said to live and does not answer is left out as one that is down.
        ``held``: topics and broker groups that have been there: what no nameserver knows is gone when a group says so.
        ``epochs``: of the logs that the asker's offsets are of.
        Raises TopicNotFound, RouteNotFound: as :meth:`topics`; RouteNotFound too where no group of a held topic
        answers, one that is needed has no living member, or nothing of what is read has.
        Raises ConfigError: an assigned queue that does not exist.
        """
        wanted: list[tuple[str, str, int | None]] = []
        absent: set[tuple[str, str]] = set()
        unreachable: RouteNotFound | None = None
        silent: PenstockError | None = None
        topics = self.topics(options)
        assigned = {queue[:2] for queue in options.assigned}
        for topic in topics:
            try:
                route = self.known_route(topic)
            except TopicNotFound:
                if not tolerates_missing:
                    self._require_gone(topic, [broker for name, broker in sorted(held) if name == topic])
                    raise
                continue
            except RouteNotFound as error:
                if not tolerates_missing:
                    raise
                unreachable = error
                continue
            gone = _readable(route.absent)
            brokers = [broker for broker in _readable(route.queues) if broker not in gone]
            down = [broker for broker in gone if not assigned or (topic, broker) in assigned]
            if down and needs_all:
                raise _down(topic, down, "; failOnDataLoss=false reads without them")
            if gone and not brokers:
                unreachable = _down(topic, gone)
                if options.fail_on_data_loss and not tolerates_missing:
                    raise unreachable
            absent.update((topic, broker) for broker in down)
            if isinstance(times, int) or times is None:
                wanted += [(topic, broker, times) for broker in brokers]
            else:
                own = {(queue.broker, time_ms) for queue, time_ms in times.items() if queue.topic == topic}
                own = {(broker, time_ms) for broker, time_ms in own if broker not in gone}
                wanted += [(topic, broker, time_ms) for broker, time_ms in sorted(own)]
                wanted += [(topic, broker, None) for broker in brokers if broker not in {name for name, _ in own}]
        if not wanted and unreachable is not None:
            raise unreachable
        if not wanted and tolerates_missing:
            return Positions()
        if not wanted:
            where = f"subscribePattern {options.pattern!r}" if options.pattern else f"topics {', '.join(topics)}"
            raise TopicNotFound(f"{where}: no readable topic of the cluster matches")
        found = Positions()
        found.absent = absent
        with ThreadPoolExecutor(min(CALLS_AT_ONCE, len(wanted))) as pool:
            calls = [(each, pool.submit(self._add, found, each, times, timeout_s, epochs or {})) for each in wanted]
            for (topic, broker, _), call in calls:
                try:
                    call.result()
                except TopicNotFound:  # deleted since its route was told
                    if not tolerates_missing:
                        raise
                except PenstockError as error:
                    if not (passes_over_silent and error.retryable):
                        raise
                    found.absent.add((topic, broker))
                    silent = error
        if not found and silent is not None:
            raise silent
        return self._only_assigned(options, found)

    def route(self, topic: str) -> TopicRoute:
        """The route of a topic.

        Raises TopicNotFound: living brokers, and none has it. RouteNotFound: no living broker is known, or none that
        has it.
        """
        route = self.known_route(topic)
        if route.absent and not route.shards:
            raise _down(topic, [part.broker_name for part in route.absent])
        return route

    def known_route(self, topic: str) -> TopicRoute:
        """The same, also where no member of the topic's broker groups lives: then without shards."""
        route = self.calls.directory.route(topic)
        if not route.exists:
            if not route.shards:
                raise RouteNotFound(f"topic {topic}: the nameservers {self.name_server} know no living broker")
            near = hint(topic, (each for each in self.calls.directory.topics() if not names.is_system_topic(each)))
            raise TopicNotFound(f"topic {topic} does not exist at any living broker{near or ': create it first'}")
        return route

    def topic_positions(
        self, broker: str, topic: str, timeout_s: float, *, timestamp_ms: int | None = None, epoch: int = 0
    ) -> TopicPositions:
        """Range, mean size and, with a time, the offset at it, of each queue of ``topic`` at that broker group.

        With an epoch, too, where what the log had in that ends.
        """
        request = TopicPositionsRequest(
            topic=topic, timestamp_ms=timestamp_ms or 0, with_timestamp=timestamp_ms is not None, epoch=epoch
        )
        answer: TopicPositions = self.calls.at_reader(broker, "QueryTopic", request, timeout_s, service=PositionsStub)
        return answer

    def _require_gone(self, topic: str, brokers: list[str]) -> None:
        """Return if one of the groups says that it has no such topic, or if there are no groups; else raise."""
        for broker in brokers:
            try:
                self.topic_positions(broker, topic, GONE_ASKED_S)
            except TopicNotFound:
                return
            except PenstockError as error:
                log.info("topic not asked for now topic=%s broker=%s error=%s", topic, broker, error)
        if brokers:
            raise RouteNotFound(f"topic {topic}: of its broker groups {', '.join(brokers)} none has a living member")

    def created(self, topic: str, timeout_s: float) -> list[int]:
        """When ``topic`` was created at each of its broker groups whose master answers, in ms.

        Raises TopicNotFound, RouteNotFound, NameserverUnavailable.
        """
        found = []
        for queues in self.route(topic).queues:
            try:
                answer = self.topic_positions(queues.broker_name, topic, timeout_s)
            except PenstockError as error:
                log.info("creation not told topic=%s broker=%s error=%s", topic, queues.broker_name, error)
            else:
                found += [answer.created_ms] if answer.is_master and answer.created_ms else []
        return found

    def require_group(self, group: str, timeout_s: float) -> None:
        """Raises ConfigError if no broker knows ``group``, BrokerUnavailable if one that does not answer may."""
        calls, timeout_s = self.calls, max(timeout_s, GONE_ASKED_S)
        answers, silent = calls.everywhere("DescribeGroup", GroupName(group=group), timeout_s, skip=GroupNotFound)
        if any(answers.values()):
            return
        if silent:
            raise BrokerUnavailable(f"group {group}: unknown to those who answer, and {', '.join(silent)} do not")
        raise ConfigError(
            f"option group: no broker knows {group!r}{hint(group, calls.groups(timeout_s))}; give a group that has "
            "committed offsets, or other startingOffsets"
        )

    def committed(self, group: str, queues: Iterable[Queue], timeout_s: float) -> dict[Queue, int]:
        """The committed offsets of ``group``, without the queues where it has none."""
        by_broker: dict[str, list[Queue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker, []).append(queue)
        found: dict[Queue, int] = {}
        for broker, own in by_broker.items():
            request = QueryOffsetsRequest(group=group, queues=topic_queues(own))
            answer: QueryOffsetsReply = self.calls.at_reader(broker, "QueryOffsets", request, timeout_s)
            told = offsets_in(answer.offsets, broker)
            found.update({Queue(*queue): offset for queue, offset in told.items() if offset >= 0})
        return found

    def commit(self, group: str, offsets: Offsets, timeout_s: float, epochs: Epochs | None = None) -> list[Queue]:
        """Commit offsets of ``group`` without joining it; the queues that were refused, being further already.

        Topics that are gone are passed over. ``epochs``: of the logs that the offsets are of; what a failover has cut
        off since is refused, too.
        Raises PenstockError: of the first broker group that took nothing, when the others have been asked.
        """
        refused: list[Queue] = []
        failed: PenstockError | None = None
        parts: dict[tuple[str, int], dict[MessageQueue, int]] = {}
        for queue, offset in offsets.items():
            part = queue.broker, (epochs or {}).get(queue[:2], 0)
            parts.setdefault(part, {})[MessageQueue(*queue)] = offset
        for (broker, epoch), own in parts.items():
            try:
                refused += self._commit(broker, group, own, timeout_s, epoch)
            except PenstockError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return refused

    def _commit(
        self, broker: str, group: str, offsets: dict[MessageQueue, int], timeout_s: float, epoch: int
    ) -> list[Queue]:
        while offsets:
            request = CommitOffsetsRequest(group=group, offsets=topic_offsets(offsets), epoch=epoch)
            try:
                answer: CommitOffsetsReply = self.calls.at_reader(broker, "CommitOffsets", request, timeout_s)
            except TopicNotFound as error:
                gone = error.details.get("topic")
                left = {queue: offset for queue, offset in offsets.items() if queue.topic != gone}
                if len(left) == len(offsets):
                    raise
                log.info("progress in a topic that is gone is not committed group=%s topic=%s", group, gone)
                offsets = left
            else:
                return [Queue(*queue) for queue in queues_in(answer.refused, broker)]
        return []

    def _add(
        self,
        found: Positions,
        wanted: tuple[str, str, int | None],
        times: Offsets | int | None,
        timeout_s: float,
        epochs: Epochs,
    ) -> None:
        topic, broker, time_ms = wanted
        epoch = epochs.get((topic, broker), 0)
        answer = self.topic_positions(broker, topic, timeout_s, timestamp_ms=time_ms, epoch=epoch)
        if answer.is_master and answer.created_ms:  # a slave may tell of a topic that has been made anew since
            found.created[topic, broker] = answer.created_ms
        if answer.is_master:
            found.epochs[topic, broker] = answer.epoch
            found.log_offsets[topic, broker] = answer.log_offset
            for each in answer.removed:
                found.removed[Queue(topic, broker, each.queue_id)] = Range(each.min_offset, each.max_offset)
        for each in answer.queues:
            queue = Queue(topic, broker, each.queue_id)
            found[queue] = Range(each.min_offset, each.max_offset, each.mean_record_bytes)
            if answer.is_master:
                found.certain.add(queue)
            if answer.is_master and each.HasField("cut_offset"):
                found.cut[queue] = each.cut_offset
            is_meant = time_ms is not None and (isinstance(times, int) or (times or {}).get(queue) == time_ms)
            if is_meant and each.time_matched:
                found.by_time[queue] = each.time_offset

    def _only_assigned(self, options: SourceOptions, found: Positions) -> Positions:
        if not options.assigned:
            return found
        missing = sorted(queue for queue in options.assigned - found.keys() if queue[:2] not in found.absent)
        if missing:
            raise ConfigError(
                f"option assign: queue {missing[0]} does not exist; there are "
                f"{', '.join(str(queue) for queue in sorted(found)[:20])}"
            )
        for queue in found.keys() - options.assigned:
            del found[queue]
            found.by_time.pop(queue, None)
            found.certain.discard(queue)
            found.cut.pop(queue, None)
        if not found:
            topic, broker = min(found.absent)
            raise _down(topic, [broker])
        return found


def _readable(parts: Iterable[QueueData]) -> list[str]:
    return [part.broker_name for part in parts if part.perm & names.PERM_READ]


def _down(topic: str, brokers: list[str], instead: str = "") -> RouteNotFound:
    return RouteNotFound(
        f"topic {topic}: no member of {', '.join(brokers)} lives, where messages of it are: start one{instead}; if it "
        "is gone for good: penstock cluster forget"
    )


def cluster(name_server: str, security: SecurityFiles | None = None) -> Cluster:
    """This process's view of the cluster behind ``name_server``.

    ``security``: by default what this process's environment names.
    Raises ConfigError: a file that is named cannot be used on this machine.
    """
    files = SecurityFiles.from_environment() if security is None else security
    key = os.getpid(), name_server, files
    known = _clusters.get(key)
    if known is None:
        known = _clusters[key] = Cluster(name_server, files.read())
    return known
