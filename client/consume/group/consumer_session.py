"""A consumer's session with one broker group: a stream that carries membership, claims and grants.

One thread reads the stream and opens the next one when it breaks: at the master, or at a slave while no master lives.
Grants are only as good as the stream they came by; a broken stream has lost them all, and its user claims again.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from penstock.proto.errors import BrokerUnavailable, PenstockError, from_rpc_error
from penstock.proto.wire.broker_pb2 import ConsumerEvent, ConsumerRequest
from penstock.proto.wire.common_pb2 import Empty

from ...cluster import Subscription, back_off_s, topic_queues
from ...message import MessageQueue
from ..local_queue import Lease

if TYPE_CHECKING:
    from ..core import ConsumerCore

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S = 1.0
SILENCE_S = 3.0
NOBODY_S = 1.0  # between looks for a living member; a change of the routes ends it
LOG_EVERY = 20


class SessionListener:
    """Hears what brokers say; calls are made by ``post`` of the session. What it leaves as here concerns it not."""

    def on_joined(self, session: ConsumerSession, session_id: int, address: str, lease: Lease) -> None:
        """The broker at ``address`` has let the member in; its locks are good for as long as ``lease`` says."""

    def on_members(self, session: ConsumerSession, client_ids: list[str]) -> None:
        """These share the group's queues now."""

    def on_lost(self, session: ConsumerSession, error: PenstockError) -> None:
        """The stream has ended; unless the error is retryable the next one will, too."""

    def on_granted(
        self, session: ConsumerSession, queue: MessageQueue, committed: int, min_offset: int, max_offset: int
    ) -> None:
        """A claimed queue is the member's."""

    def on_mismatch(self, topic: str, mine: str | None, other_client_id: str, theirs: str | None) -> None:
        """Another member subscribes ``topic`` otherwise."""

    def on_reset(self, session: ConsumerSession, queue: MessageQueue, offset: int) -> None:
        """An administrator has moved the group: go on from ``offset``."""


class Claims:
    """The claims of one stream, and which grants are meant by them. Not thread-safe.

    A grant and a release of the same queue may cross on the way. Then a queue that is claimed again must not take the
    old grant for the answer to the new claim: the broker has taken that one back. The broker answers each heartbeat
    after everything sent before it, so a release counts as handled when a heartbeat sent after it is answered; until
    then grants of that queue are ignored and a new claim waits.
    """

    def __init__(self) -> None:
        self._claimed: set[MessageQueue] = set()
        self._releasing: dict[MessageQueue, int] = {}  # -> heartbeat that confirms it
        self._again: set[MessageQueue] = set()

    def claim(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """The queues to claim at the broker now; the others follow from :meth:`on_heartbeat`."""
        now = []
        for each in queues:
            if each in self._releasing:
                self._again.add(each)
            elif each not in self._claimed:
                self._claimed.add(each)
                now.append(each)
        return now

    def release(self, queues: Iterable[MessageQueue], heartbeat: int) -> list[MessageQueue]:
        """The queues to release at the broker, before the heartbeat of that number is sent."""
        now = []
        for each in queues:
            self._again.discard(each)
            if each in self._claimed:
                self._claimed.discard(each)
                self._releasing[each] = heartbeat
                now.append(each)
        return now

    def on_heartbeat(self, heartbeat: int) -> list[MessageQueue]:
        """The heartbeat was answered: the queues to claim at the broker now."""
        for each in [each for each, confirmed_by in self._releasing.items() if confirmed_by <= heartbeat]:
            del self._releasing[each]
        ready = [each for each in self._again if each not in self._releasing]
        self._again.difference_update(ready)
        return self.claim(ready)

    def is_granted(self, queue: MessageQueue) -> bool:
        """True if a grant of ``queue`` that has just come answers a standing claim."""
        return queue in self._claimed


class ConsumerSession:
    """The session with one broker group. ``claim`` and ``release`` may be called from any thread."""

    def __init__(
        self,
        core: ConsumerCore,
        broker_name: str,
        subscriptions: Mapping[str, Subscription],
        listener: SessionListener,
        post: Callable[[Callable[[], None]], None],
        lock_ms: int = 0,
    ) -> None:
        """``lock_ms``: how long queues stay this member's when the session has ended without a release; 0: not at all.

        ``post`` is given each call of ``listener``, in the session's own thread: to be made in another one.
        """
        self.broker_name = broker_name
        self._core = core
        self._subscriptions = dict(subscriptions)
        self._lock_ms = lock_ms
        self._listener = listener
        self._post = post
        self._lock = threading.Lock()  # guards _stream, its claims, and _subscriptions
        self._stream: _Stream | None = None  # made and ended by the session's thread; others send on it
        self._route_changed = threading.Event()  # ends a pause
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"penstock-session-{broker_name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def address(self) -> str | None:
        """Where the session is now, or ``None`` while it has no stream."""
        stream = self._stream
        return stream.address if stream is not None else None

    def claim(self, queues: Iterable[MessageQueue]) -> None:
        """Ask for the queues; ``on_granted`` tells of each when it is free. Without a stream nothing happens."""
        with self._lock:
            if self._stream is not None:
                self._stream.claim(self._stream.claims.claim(queues))

    def reclaim(self, queues: Iterable[MessageQueue], until_s: float) -> None:
        """Claim queues that an earlier session held, by locks that last until then."""
        with self._lock:
            if self._stream is not None:
                self._stream.reclaim(queues, until_s)

    def release(self, queues: Iterable[MessageQueue]) -> None:
        """Give the queues back, or stop waiting for them."""
        with self._lock:
            if self._stream is not None:
                self._stream.release(queues)

    def subscribe(self, subscriptions: Mapping[str, Subscription]) -> None:
        """Tell the broker what the member wants from now on."""
        with self._lock:
            self._subscriptions = dict(subscriptions)
            if self._stream is not None:
                self._stream.send(self._join())

    def on_routes(self) -> None:
        """Brokers came or went: move to where the session should be now."""
        self._route_changed.set()
        address = self._host()
        with self._lock:
            stream = self._stream
            if stream is not None and address is not None and stream.address != address:
                log.info("consumer session moved group=%s from=%s to=%s", self._core.group, stream.address, address)
                stream.cancel()

    def begin_close(self) -> None:
        """Send what is queued and end the session; the broker gives what it held to the others."""
        self._closed.set()
        self._route_changed.set()
        with self._lock:
            if self._stream is not None:
                self._stream.finish()

    def close(self, timeout_s: float = 2.0) -> None:
        self.begin_close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=timeout_s)
            if self._thread.is_alive():
                with self._lock:
                    if self._stream is not None:
                        self._stream.cancel()
                self._thread.join(timeout=1)

    def _run(self) -> None:
        failures, pause_s = 0, 0.0
        while not self._closed.is_set():
            joined, error = self._follow()
            if error is None:
                pause_s = NOBODY_S
            else:
                failures = 0 if joined else failures + 1
                if failures % LOG_EVERY == 1 and not self._closed.is_set():
                    log.warning("consumer session failed broker=%s error=%s", self.broker_name, error.message)
                pause_s = back_off_s(max(failures, 1)) if failures or not error.retryable else 0.0
            self._route_changed.wait(pause_s)
            self._route_changed.clear()  # before looking: what happens from here on ends the next pause

    def _follow(self) -> tuple[bool, PenstockError | None]:
        """Follow one stream to its end. Returns True if it was joined, and its error (None: nobody lives)."""
        joined = False
        error: PenstockError = BrokerUnavailable(f"broker group {self.broker_name}: the broker ended the session")
        error_source = f"broker group {self.broker_name}"
        try:
            with self._lock:  # a change of the routes comes before this, or finds the stream
                address = self._host()
                if address is None:
                    return False, None
                error_source = f"broker {address}"
                stream = self._stream = _Stream(address, self._core.connections.stub(address))
                stream.send(self._join())
            if self._closed.is_set():
                stream.finish()
            stream.open()
            for event in stream.call:
                stream.heard_s = time.monotonic()
                joined = self._handle(stream, event) or joined
        except grpc.RpcError as broken:
            error = from_rpc_error(broken, error_source)
        except PenstockError as refused:
            error = refused
        finally:
            with self._lock:
                if self._stream is not None:
                    self._stream.finish()
                self._stream = None
        if joined or not error.retryable:
            self._post(partial(self._listener.on_lost, self, error))
        return joined, error

    def _handle(self, stream: _Stream, event: ConsumerEvent) -> bool:
        kind = event.WhichOneof("event")
        if kind == "joined":
            group, broker, address = self._core.group, self.broker_name, stream.address
            log.info("consumer session joined group=%s broker=%s address=%s", group, broker, address)
            stream.lease.until_s = stream.began_s + SILENCE_S
            self._post(partial(self._listener.on_joined, self, event.joined.session_id, stream.address, stream.lease))
            return True
        if kind == "members":
            self._post(partial(self._listener.on_members, self, list(event.members.client_ids)))
        elif kind == "heartbeat":
            with self._lock:
                stream.on_heartbeat()
        elif kind == "granted":
            granted = event.granted
            target = MessageQueue(granted.topic, self.broker_name, granted.queue_id)
            with self._lock:
                is_meant = stream.claims.is_granted(target)
            if is_meant:
                offsets = granted.committed_offset, granted.min_offset, granted.max_offset
                self._post(partial(self._listener.on_granted, self, target, *offsets))
        elif kind == "mismatch":
            told = event.mismatch
            mine = told.expression if told.HasField("expression") else None
            theirs = told.other_expression if told.HasField("other_expression") else None
            self._post(partial(self._listener.on_mismatch, told.topic, mine, told.other_client_id, theirs))
        elif kind == "reset":
            target = MessageQueue(event.reset.topic, self.broker_name, event.reset.queue_id)
            self._post(partial(self._listener.on_reset, self, target, event.reset.offset))
        return False

    def _host(self) -> str | None:
        """Where to be: at the living master, else at a slave; None when nobody lives."""
        return self._core.directory.read_address(self.broker_name)

    def _join(self) -> ConsumerRequest:
        join = ConsumerRequest.Join(
            group=self._core.group,
            client_id=self._core.client_id,
            subscriptions={topic: each.filter for topic, each in self._subscriptions.items()},
            concurrent=self._core.is_concurrent,
            broadcasting=self._core.is_broadcasting,
            lock_ms=self._lock_ms,
        )
        return ConsumerRequest(join=join)


class _Stream:
    """One gRPC stream. gRPC's own thread takes the requests out of :meth:`_requests`, heartbeats between them."""

    def __init__(self, address: str, stub: Any) -> None:
        self.address = address
        self.claims = Claims()  # guarded by the session's lock
        self.began_s = self.heard_s = time.monotonic()  # heard: written by the session's thread, read by gRPC's
        self.lease = Lease(-math.inf)  # to the end of the broker's patience, from what it has surely heard
        self.call: Any = None  # from open on
        self._stub = stub
        self._outgoing: queue.SimpleQueue[ConsumerRequest | None] = queue.SimpleQueue()
        self._order = threading.Lock()  # numbers heartbeats in the order in which they are sent
        self._heartbeats_sent = 0  # guarded by _order
        self._sent_s: deque[float] = deque()  # of heartbeats that are not answered
        self._heartbeats_answered = 0  # the session's thread's; never more than were sent
        self._heartbeat_at_s = time.monotonic() + HEARTBEAT_INTERVAL_S  # gRPC's thread's
        self._is_cancelled = False

    def open(self) -> None:
        self.call = self._stub.ConsumerSession(self._requests())
        if self._is_cancelled:
            self.call.cancel()

    def send(self, request: ConsumerRequest) -> None:
        self._outgoing.put(request)

    def claim(self, queues: list[MessageQueue]) -> None:
        for claim in topic_queues(queues):
            self.send(ConsumerRequest(claim=claim))

    def reclaim(self, queues: Iterable[MessageQueue], until_s: float) -> None:
        # Less what the request may take: the broker ends a session that it does not hear.
        left_ms = max(int((until_s - SILENCE_S - time.monotonic()) * 1000), 0)
        for claim in topic_queues(self.claims.claim(queues)):
            self.send(ConsumerRequest(reclaim=ConsumerRequest.Reclaim(queues=claim, left_ms=left_ms)))

    def release(self, queues: Iterable[MessageQueue]) -> None:
        with self._order:
            given_back = self.claims.release(queues, self._heartbeats_sent + 1)
            for release in topic_queues(given_back):
                self.send(ConsumerRequest(release=release))
            if given_back:
                self._count_heartbeat()
                self.send(ConsumerRequest(heartbeat=Empty()))

    def on_heartbeat(self) -> None:
        self._heartbeats_answered += 1
        if self._sent_s:
            self.lease.until_s = self._sent_s.popleft() + SILENCE_S
        self.claim(self.claims.on_heartbeat(self._heartbeats_answered))

    def finish(self) -> None:
        """Send what is queued, and then nothing more: the broker ends the stream."""
        self._outgoing.put(None)

    def cancel(self) -> None:
        self._is_cancelled = True
        if self.call is not None:
            self.call.cancel()
        self.finish()

    def _requests(self) -> Iterator[ConsumerRequest]:
        while True:
            request = self._next_request()
            if request is None:
                return
            yield request

    def _next_request(self) -> ConsumerRequest | None:
        while True:
            try:
                return self._outgoing.get(timeout=max(self._heartbeat_at_s - time.monotonic(), 0.001))
            except queue.Empty:
                pass
            if time.monotonic() - self.heard_s > SILENCE_S:
                self.cancel()  # a frozen broker keeps its streams open
                return None
            with self._order:
                # What was queued since goes first: a heartbeat must not overtake the release it confirms.
                if self._outgoing.empty() and time.monotonic() >= self._heartbeat_at_s:
                    self._count_heartbeat()
                    self._heartbeat_at_s = time.monotonic() + HEARTBEAT_INTERVAL_S
                    return ConsumerRequest(heartbeat=Empty())

    def _count_heartbeat(self) -> None:
        self._heartbeats_sent += 1
        self._sent_s.append(time.monotonic())
