"""One look at a cluster: how far each group is in each of its queues.

Broker groups are asked side by side, each for everything at once, so that one that does not answer costs the others no
time; its queues are left out of the sample. Of a broker group without a master a slave answers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from penstock.formats.record.reading import RecordBatch
from penstock.proto import names
from penstock.proto.errors import GroupNotFound, PenstockError, TopicNotFound
from penstock.proto.wire.broker_pb2 import FetchHeader, FetchReply

from ...topics.cluster import CALLS_AT_ONCE, Cluster
from ...topics.offsets import Queue
from .columns import Sample

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
"""For each call; a broker group that changes its master within it is still heard."""
FETCH_BYTES = 8 << 20
QUEUES_AT_ONCE = 64
CLIENT_ID = "penstock-lag"


def require_groups(cluster: Cluster, groups: Iterable[str]) -> list[str]:
    """The broker groups that did not answer, if each group exists.

    Raises GroupNotFound: one does not; with the nearest name that does. InvalidName: no group may be called so.
    """
    calls = cluster.calls
    checked = [names.check_group(group) for group in groups]
    with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
        told = list(pool.map(lambda group: calls.describe_group(group, TIMEOUT_S), checked))
    return sorted({broker for _, silent in told for broker in silent})


def places(cluster: Cluster, topics: Iterable[str]) -> dict[str, set[str]]:
    """The broker groups that have queues of each topic to read; topics that are gone are left out."""
    found: dict[str, set[str]] = {}
    for queue in _queues(cluster, topics):
        found.setdefault(queue.topic, set()).add(queue.broker)
    return found


def take_sample(cluster: Cluster, groups: Sequence[str], topics: Sequence[str]) -> list[Sample]:
    """Where the groups are now, in all queues of ``topics``, or of what each has committed or subscribes to.

    What cannot be known at the moment is left out, and logged.
    Raises PenstockError: one that no waiting mends, as missing rights.
    """
    try:
        with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
            told = pool.map(lambda group: list(topics) or _topics_of(cluster, group), groups)
            wanted = dict(zip(groups, told, strict=True))
        queues = _queues(cluster, {topic for own in wanted.values() for topic in own})
    except PenstockError as error:
        if not error.retryable:
            raise
        log.warning("sample left out error=%s", error)
        return []
    by_broker: dict[str, list[Queue]] = {}
    for queue in queues:
        by_broker.setdefault(queue.broker, []).append(queue)
    found: list[Sample] = []
    with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
        calls = [
            (broker, pool.submit(_sample, cluster, broker, wanted, own)) for broker, own in sorted(by_broker.items())
        ]
        for broker, call in calls:
            try:
                found += call.result()
            except PenstockError as error:
                if not error.retryable:
                    raise
                log.warning("broker group left out of the sample broker=%s error=%s", broker, error)
    return found


def _topics_of(cluster: Cluster, group: str) -> list[str]:
    """What the group has committed in anywhere, or subscribes to."""
    try:
        described, silent = cluster.calls.describe_group(group, TIMEOUT_S)
    except GroupNotFound as error:
        log.warning("group left out of the sample error=%s", error)
        return []
    if silent:
        log.warning("topics known to these alone are left out of the sample group=%s brokers=%s", group, silent)
    found = {part.topic for each in described.values() for part in each.committed}
    found |= {topic for each in described.values() for member in each.members for topic in member.subscriptions}
    return sorted(found)


def _queues(cluster: Cluster, topics: Iterable[str]) -> list[Queue]:
    found = []
    for topic in sorted(topics):
        try:
            route = cluster.known_route(topic)
        except TopicNotFound as error:
            log.info("topic left out of the sample error=%s", error)
            continue
        # Groups that are down too: each that does not answer is told.
        for part in {each.broker_name: each for each in (*route.absent, *route.queues)}.values():
            if part.perm & names.PERM_READ:
                found += [Queue(topic, part.broker_name, number) for number in range(part.read_queues)]
    return found


def _sample(cluster: Cluster, name: str, wanted: dict[str, list[str]], queues: list[Queue]) -> list[Sample]:
    """What one broker group says, commits before ends: no group is further than its queue."""
    committed = {
        group: cluster.committed(group, [each for each in queues if each.topic in topics], TIMEOUT_S)
        for group, topics in wanted.items()
    }
    time_ms = time.time_ns() // 1_000_000
    ranges: dict[str, list[tuple[int, int, int]]] = {}
    for topic in sorted({queue.topic for queue in queues}):
        try:
            answer = cluster.topic_positions(name, topic, TIMEOUT_S)
        except TopicNotFound as error:
            log.info("topic left out of the sample error=%s", error)
            continue
        ranges[topic] = [(each.queue_id, each.min_offset, each.max_offset) for each in answer.queues]
    found = [
        Sample(time_ms, group, topic, name, number, low, high, own.get(Queue(topic, name, number)))
        for group, own in committed.items()
        for topic in wanted[group]
        for number, low, high in ranges.get(topic, ())
    ]
    stored = _stored(cluster, name, {(each.topic, each.queue_id, each.next_offset) for each in found if each.lag})
    return [
        each._replace(oldest_unread=stored.get((each.topic, each.queue_id, each.next_offset))) if each.lag else each
        for each in found
    ]


def _stored(cluster: Cluster, name: str, wanted: set[tuple[str, int, int]]) -> dict[tuple[str, int, int], int]:
    """When the messages at these places (topic, queue, offset) were stored, by fetching each alone.

    What an answer has no room for is asked for again; what is gone meanwhile stays out.
    """
    found: dict[tuple[str, int, int], int] = {}
    left = sorted(wanted)
    while left:
        asked, left = left[:QUEUES_AT_ONCE], left[QUEUES_AT_ONCE:]
        told = _fetch(cluster, name, asked)
        found |= {place: stored for place, stored in told.items() if stored is not None}
        left += [place for place in asked if place not in told] if told else []
    return found


def _fetch(cluster: Cluster, name: str, asked: list[tuple[str, int, int]]) -> dict[tuple[str, int, int], int | None]:
    """The time of each message that the answer has; None for those that it says are not there."""
    header = FetchHeader(client_id=CLIENT_ID, max_bytes=FETCH_BYTES, max_bytes_per_queue=1, max_wait_ms=0)
    for topic, number, offset in asked:
        header.topics.add(topic=topic, queue_ids=[number], offsets=[offset])
    reply, body = cluster.calls.fetch(name, header, TIMEOUT_S)
    batch = RecordBatch(body)
    found: dict[tuple[str, int, int], int | None] = {}
    row = 0
    for result in reply.results:
        place = asked[result.topic_index]
        is_it = result.status == FetchReply.FOUND and batch.values("queue_offset")[row] == place[2]
        found[place] = batch.values("store_timestamp")[row] if is_it else None
        row += result.count
    return found
