"""Fetching: a few requests in flight per broker, each for many queues; messages are there before they are wanted.

While there is nothing to read, one request per broker waits there for all of its queues. When queues are behind, they
are spread over several requests, so that answers are read while others are on their way. A queue is in one request at
a time; a queue that holds enough is in none. All of it happens in one thread at a time, which also scans the records
(a kernel outside the interpreter lock) and drops messages whose tag only looks right by its hash.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.proto import frames
from penstock.proto.errors import DamagedRecord, PenstockError, Refused, TopicNotFound
from penstock.proto.wire.broker_pb2 import FetchHeader, FetchReply, Filter

from ..cluster import Subscription, back_off_s
from ..cluster.fetch_links import FetchCall
from .local_queue import Fetched, LocalQueue, Standing
from .push.standing_in import Role

if TYPE_CHECKING:
    from penstock.formats.record.reading import RecordBatch

    from .core import ConsumerCore
    from .push.workers import Workers

log = logging.getLogger(__name__)

RETRY_BEHIND_SLAVE_S = 0.5
RETRY_NO_QUEUE_S = 1.0
RETRY_NO_BROKER_S = 0.2
RETRY_DAMAGED_S = 5.0
SMALL_FETCH_BYTES = 64 * 1024
FILTERED_S = 0.5
"""A request for queues that are behind may wait all the same where none of their messages is wanted: after so long."""
ANSWER_TIME_S = 10.0
LOG_EVERY = 20


@dataclass(eq=False, slots=True)
class _Flight:
    """One request under way: queue and the fetch epoch it was asked in, by place in the header."""

    address: str
    broker_id: int
    queues: dict[tuple[int, int], tuple[LocalQueue, int]]
    subscriptions: list[Subscription]
    is_waiting: bool  # none of its queues is known to have messages: it may wait for long
    is_filtered: bool  # of those that have, not every message is wanted
    name: str  # of its broker group
    sent_s: float
    log_epochs: set[int] = field(default_factory=set)  # that its queues' positions are of
    call: FetchCall | None = None
    is_given_up: bool = False


@dataclass(eq=False, slots=True)
class _Broker:
    """One broker group, as far as fetching from it goes."""

    flights: list[_Flight] = field(default_factory=list)
    suggested_id: int | None = None
    failures: int = 0
    retry_at_s: float = 0.0


class _Arrival(NamedTuple):
    """One result whose records are still to be read, at ``position`` of the reply."""

    local: LocalQueue
    epoch: int
    result: FetchReply.Result
    subscription: Subscription
    position: int


class Fetcher:
    """Keeps the buffers of one consumer filled.

    An error that no retry can heal (a filter that the broker does not know, a group that may not be used) is the
    consumer's failure.
    """

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core
        self._directory = core.directory
        self._buffers = core.buffers
        self._config = core.config
        self._brokers: dict[str, _Broker] = {}  # the fetching thread's
        self._links = core.connections.fetch_links()
        self._routes_changed = False  # set by the thread that hears of routes, taken back by the fetching one
        self._closed = threading.Event()
        # Of a push consumer: this thread works on a message that comes alone, and is one of them once another fetches.
        self.crew: Workers | None = None
        self._has_one = False  # message, which alone has come and is this thread's to work on
        # The fetching one: changed by itself, when it begins.
        self._thread = threading.Thread(target=self._run, name=f"penstock-fetch-{core.group}", daemon=True)
        core.buffers.wake_fetcher = self.wake

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Look again for queues to fetch. May be called from any thread, under any lock."""
        self._links.wake()

    def on_routes(self) -> None:
        """Brokers came or went: requests at a broker that should not be read any more are given up."""
        self._routes_changed = True
        self._links.wake()

    def close(self) -> None:
        self._closed.set()
        self._links.end()
        if not self._thread.is_alive():
            self._links.close()
        elif self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def fetch(self) -> Role:
        """Fetch in the calling thread, until closed or another thread does; what the calling one does then."""
        self._thread = threading.current_thread()
        role = Role.FETCH
        try:
            while role is Role.FETCH and not self._closed.is_set() and not self._links.is_ended:
                self._handle_news(self._issue_all())
                if self._has_one and self.crew is not None:
                    self._has_one = False
                    role = self.crew.work_here()
        except Exception as error:  # the thread's edge: without it nothing arrives, so the consumer is told
            log.exception("fetching failed group=%s", self._core.group)
            self._core.fail(PenstockError(f"fetching failed: {error!r}"))
        if role is Role.FETCH:
            self._links.close()
            return Role.END
        return role

    def _run(self) -> None:
        from penstock.formats.record import kernels  # here and now: half a second that the first reply need not wait

        log.debug("kernels loaded from %s", kernels.__name__)
        if self.fetch() is Role.WORK and self.crew is not None:
            self.crew.work()

    def _handle_news(self, timeout_s: float | None) -> None:
        landed = self._links.landed(timeout_s)
        for call in landed:
            self._land(call.about, call, is_alone=len(landed) == 1)
        if self._routes_changed:
            self._routes_changed = False
            self._leave_wrong_brokers()

    # Requests

    def _issue_all(self) -> float | None:
        """Send what can be sent; seconds until something must be tried again."""
        now_s = time.monotonic()
        next_s: float | None = None
        with self._buffers.lock:
            candidates = {
                name: [(local, local.fetch_epoch) for local in locals_ if self._may_fetch(local)]
                for name, locals_ in self._buffers.of_broker().items()
            }
        for name, found in candidates.items():
            broker = self._brokers.setdefault(name, _Broker())
            late = [local.retry_at_s for local, _ in found if local.retry_at_s > now_s]
            free = [item for item in found if item[0].retry_at_s <= now_s]
            if free and broker.retry_at_s > now_s:
                late.append(broker.retry_at_s)
            elif free and not self._closed.is_set():
                again_s = self._issue(name, broker, free) or broker.retry_at_s
                late.extend([again_s] if again_s > now_s else [])
            if late:
                next_s = min(late) if next_s is None else min(next_s, *late)
        return None if next_s is None else max(next_s - now_s, 0.001)

    def _may_fetch(self, local: LocalQueue) -> bool:
        if local.is_fetching or local.is_paused or local.standing is not Standing.OWNED:
            return False
        too_much = self._buffers.held_bytes >= self._config.buffer_bytes and bool(local.chunks)
        if too_much or local.is_full(self._config):
            local.is_left_out = True
            return False
        local.is_left_out = False
        return True

    def _issue(self, name: str, broker: _Broker, free: list[tuple[LocalQueue, int]]) -> float | None:
        """Ask for these queues; when to look again if there is no place for them yet, and nobody will say."""
        room = self._config.fetches_in_flight - len(broker.flights)
        if room <= 0:
            return self._make_room(broker)
        host = self._directory.readable(name, broker.suggested_id)
        if host is None:
            broker.retry_at_s = time.monotonic() + RETRY_NO_BROKER_S
            return None
        free.sort(key=lambda item: item[0].served)  # who got nothing for the longest time comes first in a reply
        behind = sum(local.is_behind for local, _ in free)
        groups = max(1, min(room, behind))
        for start in range(groups):
            self._send(name, broker, host, free[start::groups])
        return None

    def _make_room(self, broker: _Broker) -> float | None:
        """Give up a request that only waits: its queues come along with those that have no place."""
        waiting = next((flight for flight in broker.flights if flight.is_waiting), None)
        if waiting is None:
            waiting = next((flight for flight in broker.flights if flight.is_filtered), None)
            if waiting is not None and (due_s := waiting.sent_s + FILTERED_S) > time.monotonic():
                return due_s
        if waiting is not None:
            assert waiting.call is not None
            self._links.hurry(waiting.call)
        return None

    def _send(self, name: str, broker: _Broker, host: tuple[int, str], items: list[tuple[LocalQueue, int]]) -> None:
        broker_id, address = host
        header = FetchHeader(
            group=self._core.group,
            client_id=self._core.client_id,
            max_bytes=self._config.fetch_bytes,
            max_bytes_per_queue=self._config.fetch_queue_bytes,
            max_wait_ms=self._config.fetch_wait_ms,
            broadcasting=self._core.is_broadcasting,
        )
        if self._buffers.held_bytes >= self._config.buffer_bytes:
            header.max_bytes = header.max_bytes_per_queue = SMALL_FETCH_BYTES
        behind = [local for local, _ in items if local.is_behind]
        is_filtered = all(self._core.subscription_of(local.queue.topic).filter.kind != Filter.ALL for local in behind)
        flight = _Flight(address, broker_id, {}, [], not behind, is_filtered, name, time.monotonic())
        topics: dict[tuple[str, int], int] = {}
        with self._buffers.lock:
            for local, epoch in items:
                if local.fetch_epoch != epoch:
                    continue  # moved since it was chosen; the next look finds it
                index = topics.setdefault((local.queue.topic, local.log_epoch), len(topics))
                if index == len(header.topics):
                    subscription = self._core.subscription_of(local.queue.topic)
                    flight.subscriptions.append(subscription)
                    flight.log_epochs.add(local.log_epoch)
                    header.topics.add(topic=local.queue.topic, filter=subscription.filter, epoch=local.log_epoch)
                header.topics[index].queue_ids.append(local.queue.queue_id)
                header.topics[index].offsets.append(local.next_fetch)
                flight.queues[index, local.queue.queue_id] = (local, epoch)
                local.is_fetching = True
                header.verify = header.verify or local.is_doubted
                if local.is_new:
                    header.max_wait_ms = 0  # until a reply tells of which epoch the position is, a failover may cut it
        if not flight.queues:
            return
        timeout_s = self._config.fetch_wait_ms / 1000 + ANSWER_TIME_S
        try:
            flight.call = self._links.fetch(address, header, timeout_s, flight)
        except PenstockError:  # closed under us
            self._free(flight)
            return
        broker.flights.append(flight)

    def _leave_wrong_brokers(self) -> None:
        for name, broker in self._brokers.items():
            broker.retry_at_s = 0.0
            host = self._directory.readable(name, broker.suggested_id)
            for flight in broker.flights:
                if host is not None and flight.address != host[1]:
                    flight.is_given_up = True
                    self._links.leave(flight.address)

    # Answers

    def _land(self, flight: _Flight, call: FetchCall, *, is_alone: bool) -> None:
        name, broker = flight.name, self._brokers[flight.name]
        broker.flights.remove(flight)
        flight.call = None  # which refers to the flight: the answer would be held until Python's collector comes
        try:
            message = call.message()
            reply, records = frames.unpack(message, FetchReply, frames.ANSWER_FIELDS_MAX)
        except PenstockError as error:
            self._free(flight)
            if not flight.is_given_up:
                self._on_failure(name, broker, error)
            return
        broker.failures = 0
        broker.suggested_id = reply.suggested_broker_id
        is_master = self._directory.master(name) == flight.address
        position = len(message) - len(records)
        arrivals: list[_Arrival] = []
        with self._buffers.lock:
            self._release_locked(flight)
            for result in reply.results:
                found = flight.queues.get((result.topic_index, result.queue_id))
                if found is not None and found[0].fetch_epoch == found[1]:
                    self._move(found[0], result, is_master)
                    if result.bytes:
                        arrivals.append(_Arrival(*found, result, flight.subscriptions[result.topic_index], position))
                position += result.bytes
            is_news = not reply.results or flight.log_epochs != {reply.epoch}
            for local, epoch in flight.queues.values() if is_news else ():
                if local.fetch_epoch == epoch:
                    local.is_new = False
                    local.log_epoch = max(local.log_epoch, reply.epoch)
                    local.is_behind = local.is_behind and bool(reply.results)
        if len(records) > SMALL_FETCH_BYTES:
            self._issue_all()  # the next requests travel while these answers are read
        is_alone = is_alone and self.crew is not None and len(arrivals) == 1
        self._has_one = is_alone and arrivals[0].result.count == 1
        for arrival in arrivals:
            self._read(arrival, message)

    def _move(self, local: LocalQueue, result: FetchReply.Result, is_master: bool) -> None:
        """Take the answer for one queue, except for its records. The lock is held."""
        status = result.status
        local.is_behind = result.next_offset < result.max_offset
        if status == FetchReply.DAMAGED:
            self._on_damaged(local, result)
            return
        local.damage = None
        if result.bytes:
            self._buffers.expect(local, result.next_offset, result.bytes, result.count)
        elif status in (FetchReply.FOUND, FetchReply.NO_MATCHED_MESSAGE, FetchReply.NO_NEW_MESSAGE):
            local.next_fetch = max(local.next_fetch, result.next_offset)
        elif status == FetchReply.OFFSET_TOO_SMALL:
            log.warning(
                "messages were gone before they were fetched queue=%s from=%d to=%d",
                local.queue,
                local.next_fetch,
                result.min_offset,
            )
            local.next_fetch = max(local.next_fetch, result.min_offset)
        elif status == FetchReply.TRUNCATED or (status == FetchReply.OFFSET_OVERFLOW and is_master):
            log.warning(
                "messages up to the position are not in the log any more queue=%s position=%d end_of_them=%d",
                local.queue,
                local.next_fetch,
                result.next_offset,
            )
            # Not behind anything unfinished: what is dropped here has to be fetched again.
            self._buffers.start(local, min(result.next_offset, local.unfinished()))
            local.may_go_back = object()
        elif status == FetchReply.OFFSET_OVERFLOW:
            # A slave that is behind: what we have read lies on the master, so going back would only repeat it.
            local.retry_at_s = time.monotonic() + RETRY_BEHIND_SLAVE_S
        else:
            log.info("broker does not have the queue (yet) queue=%s", local.queue)
            local.retry_at_s = time.monotonic() + RETRY_NO_QUEUE_S

    def _on_damaged(self, local: LocalQueue, result: FetchReply.Result) -> None:
        """The next record cannot be read. The lock is held."""
        queue, offset = local.queue, local.next_fetch
        local.is_doubted = False
        if self._config.skip_damaged:
            log.error("damaged record skipped queue=%s offset=%d problem=%s", queue, offset, result.problem)
            local.next_fetch = max(offset, result.next_offset)
            return
        if local.damage is None or local.damage.details["offset"] != offset:
            log.error("damaged record holds up queue=%s offset=%d problem=%s", queue, offset, result.problem)
        damage = DamagedRecord(
            result.problem,
            topic=queue.topic,
            broker_name=queue.broker_name,
            queue_id=queue.queue_id,
            offset=offset,
            next_offset=result.next_offset,
        )
        self._buffers.on_damage(local, damage)
        local.retry_at_s = time.monotonic() + RETRY_DAMAGED_S

    def _read(self, arrival: _Arrival, message: bytes) -> None:
        """Make the records of one result available."""
        from penstock.formats.record.reading import RecordBatch  # here: importing the kernels costs half a second

        local, result = arrival.local, arrival.result
        chunk: Fetched | None = None
        is_bad = False
        try:
            end = arrival.position + result.bytes
            batch = RecordBatch(message, arrival.position, end, check_crc=self._config.check_crc)
            chunk = _fetched_of(batch, result.bytes, arrival.subscription)
        except PenstockError as error:
            log.warning("fetched records were bad, their broker will prove them queue=%s error=%s", local.queue, error)
            is_bad = True
        with self._buffers.lock:
            is_current = local.fetch_epoch == arrival.epoch
            local.is_doubted = is_bad
            if is_current and not is_bad:
                self._buffers.arrive(local, chunk, result.bytes, result.count, is_told=not self._has_one)
                return
            self._buffers.finish(local, result.bytes, result.count)
            if is_current:
                self._buffers.refetch(local)
                local.retry_at_s = time.monotonic() + RETRY_NO_QUEUE_S

    def _free(self, flight: _Flight) -> None:
        with self._buffers.lock:
            self._release_locked(flight)

    def _release_locked(self, flight: _Flight) -> None:
        for local, epoch in flight.queues.values():
            if local.fetch_epoch == epoch:
                local.is_fetching = False

    def _on_failure(self, name: str, broker: _Broker, error: PenstockError) -> None:
        if self._closed.is_set():
            return
        broker.failures += 1
        broker.retry_at_s = time.monotonic() + back_off_s(broker.failures)
        if broker.failures % LOG_EVERY == 1:
            log.warning("fetch failed broker=%s failures=%d error=%s", name, broker.failures, error.message)
        if isinstance(error, Refused) and not isinstance(error, TopicNotFound):
            self._core.fail(error)


def _fetched_of(batch: RecordBatch, record_bytes: int, subscription: Subscription) -> Fetched | None:
    indexes: Sequence[int] = range(len(batch))
    if subscription.tags:
        buffer, starts, sizes = batch.buffer, batch.values("properties_position"), batch.values("properties_size")
        indexes = [
            index
            for index in indexes
            if subscription.wants(bytes(buffer[starts[index] : starts[index] + sizes[index]]))
        ]
    return Fetched(batch, indexes, record_bytes) if indexes else None
