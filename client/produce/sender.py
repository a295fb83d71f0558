"""The destinations of one producer, and the thread that sends what nobody waits for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from penstock.formats.attributes.message_types import MessageType, conflict, demanded_type
from penstock.formats.destination import Destination, Ordinary
from penstock.formats.recall_handle import RecallHandle
from penstock.proto.errors import ClientClosed, InvalidArgument
from penstock.proto.names import check_topic
from penstock.proto.wire.later_pb2 import RecallRequest
from penstock.proto.wire.later_pb2_grpc import LaterStub
from penstock.proto.wire.nameserver_pb2 import TopicRoute
from penstock.runtime.turns import runs_here

from ..cluster import Calls, WriteQueues
from ..cluster.choices import Choices
from ..cluster.retry import NEVER
from ..message import SendReceipt
from ..statistics import ProducerStatistics, latency_of
from .accumulator import Accumulator
from .delivery import Shipping, TopicDelivery, closed
from .drafts import Draft, PartMaker
from .parts import Part, limited
from .receipts import RunReceipt

log = logging.getLogger(__name__)

IDLE_ROUNDS = 20  # rounds without work before the thread sleeps until it is woken
PAUSE_S = 0.005  # between looks at topics that have nothing to do
PAUSE_S_MAX = 1.0
STOP_S = 10.0
LOOP_PAUSE_S = 0.0005  # between two turns of an event loop that nobody asks for


class Sender:
    """Pumps every topic of one producer in a daemon thread, or in an event loop.

    While messages come it looks every few milliseconds; when none come it sleeps. ``is_sleeping`` tells ``produce``
    to wake it: set before the last look at the accumulators, so that a message is either seen or sees it.
    """

    def __init__(self, linger_ms: float) -> None:
        self.is_sleeping = False
        self._linger_s = max(linger_ms / 1000, 0.0005)
        self._topics: tuple[TopicDelivery, ...] = ()  # replaced by callers that hold the producer's lock
        self._event = threading.Event()
        self._is_stopped = False
        self._loop: _LoopTurns | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-sender", daemon=True)
        self._thread.start()

    def add(self, topic: TopicDelivery) -> None:
        """Pump ``topic`` from now on."""
        self._topics = (*self._topics, topic)
        self.wake()

    def wake(self) -> None:
        """Look at all topics soon."""
        if self._loop is not None:
            self._loop.wake()
        else:
            self._event.set()

    def may_wait(self) -> bool:
        """True if the caller may wait for something to be sent: it is not the loop that does it."""
        return self._loop is None or not runs_here(self._loop.loop)

    def work_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have that event loop do it from now on, and no thread. The loop outlives this object."""
        self._loop = _LoopTurns(loop, self._pump_all)
        self._loop.wake()
        self._event.set()

    def stop(self) -> None:
        """End the thread; what is not sent stays where it is. May be called again."""
        self._is_stopped = True
        self._event.set()
        if self._loop is not None:
            self._loop.stop()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=STOP_S)

    def _run(self) -> None:
        quiet = 0
        while not self._is_stopped and self._loop is None:
            due = self._pump_all()
            has_open = any(topic.open for topic in self._topics)
            quiet = 0 if has_open else quiet + 1
            if has_open:
                pause = min(due - time.monotonic(), self._linger_s)
            elif quiet < IDLE_ROUNDS:
                pause = min(due - time.monotonic(), PAUSE_S)
            else:
                self.is_sleeping = True
                if any(topic.open for topic in self._topics):
                    self.is_sleeping = False
                    continue
                pause = min(due - time.monotonic(), PAUSE_S_MAX) if due < NEVER else NEVER
            if pause > 0:
                was_woken = self._event.wait(None if pause == NEVER else pause)
                self._event.clear()  # before looking: what happens from here on wakes again
                quiet = 0 if was_woken and self.is_sleeping else quiet
            self.is_sleeping = False
        self.is_sleeping = True  # whoever produces wakes it each time
        if self._loop is not None:
            self._loop.wake()  # for whoever did not yet

    def _pump_all(self) -> float:
        due = NEVER
        now = time.monotonic()
        for topic in self._topics:
            try:
                due = min(due, topic.pump(now))
            except Exception:  # the thread serves every topic: one that fails is logged, the others go on
                log.exception("sending failed topic=%s", topic.topic)
        return due


class _LoopTurns:
    """Calls ``work`` in rounds of an event loop: the next one after :meth:`wake`, and when ``work`` said it is due."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], float]) -> None:
        self.loop = loop
        self._work = work
        self._working = threading.Lock()  # held by a turn while it works
        self._is_coming = self._is_stopped = False  # a turn; false before it begins, so that it sees all before a wake
        self._timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """Have a turn soon. For any thread."""
        if self._is_coming:
            return
        self._is_coming = True
        with contextlib.suppress(RuntimeError):  # closed: nothing is sent any more
            (self.loop.call_soon if runs_here(self.loop) else self.loop.call_soon_threadsafe)(self._turn)

    def stop(self) -> None:
        """Have no more turns; one that is under way has ended. For any thread."""
        self._is_stopped = True
        self.wake()  # which takes the timer back
        if not runs_here(self.loop) and self._working.acquire(timeout=STOP_S):
            self._working.release()

    def _turn(self) -> None:
        self._is_coming = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with self._working:
            due = NEVER if self._is_stopped else self._work()
        if due < NEVER:
            self._timer = self.loop.call_later(max(due - time.monotonic(), LOOP_PAUSE_S), self.wake)


class Deliveries:
    """The deliveries of one producer, each made for the first message to its destination. Thread-safe."""

    def __init__(self, calls: Calls, shipping: Shipping, pump: Callable[[TopicDelivery], None]) -> None:
        """``pump`` is given each new one, to be pumped from then on."""
        self.known: dict[Destination, TopicDelivery] = {}  # grows under the lock; looked up without it
        self.open: dict[str, Accumulator] = {}  # of the ordinary ones, by topic; empty once closed
        self.is_closed = False
        self._calls = calls
        self._shipping = shipping
        self._pump = pump
        self._lock = threading.Lock()
        self._demanded: dict[str, MessageType | None] = {}  # by topic; put under the lock by whoever hears of a route
        self._masters: dict[str, str] = {}  # addresses by broker name; the routes' thread alone touches it
        calls.directory.add_listener(self._on_route)

    def all(self) -> tuple[TopicDelivery, ...]:
        return tuple(self.known.values())

    def get(self, destination: Destination, deadline: float, *are_keyed: bool) -> TopicDelivery:
        """The delivery to ``destination``; ``are_keyed``: of messages that have a sharding key, or have none.

        Raises:
            MessageTypeConflict: its topic takes others.
            ClientClosed: the producer is closed.
            Refused, Retryable: the topic does not exist, or has no writable queue before ``deadline``.
        """
        try:
            delivery = self.known.get(destination)
        except TypeError:  # a list, perhaps
            check_topic(destination.topic)
            raise
        if delivery is not None and not self.is_closed:
            self._check_type(destination, are_keyed)
            return delivery
        self.require_open()
        topic, config = destination.topic, self._shipping.config
        left_s = max(deadline - time.monotonic(), 0.0)
        route = self._calls.writable_route(topic, left_s, create=config.auto_create_topics, queues=config.topic_queues)
        with self._lock:  # a change of the route is in the one looked up here, or is told behind this
            self.require_open()
            route = self._calls.directory.known(topic) or route
            self._demanded[topic] = demanded_type(route.attributes)
            self._check_type(destination, are_keyed)
            delivery = self.known.get(destination)
            if delivery is None:
                turn = random.randrange(1 << 16)  # noqa: S311  spreads producers over queues
                delivery = TopicDelivery(destination, self._shipping, WriteQueues.of(route), turn)
                self.known[destination] = delivery
                if destination == Ordinary(topic):
                    self.open[topic] = delivery.open
                self._pump(delivery)
        return delivery

    def start_together(
        self, drafts: Sequence[Draft], maker: PartMaker, choices: Choices, deadline: float
    ) -> list[Future[SendReceipt]]:
        """Queue messages, those of one destination as one part, within the limits of a batch; their futures in order.

        Raises:
            What :meth:`get`, ``maker`` and ``choices`` raise: nothing is queued. BufferFull: only part of it is.
        """
        together: dict[Destination, list[int]] = {}
        for index, draft in enumerate(drafts):
            together.setdefault(draft.destination, []).append(index)
        futures: dict[int, Future[SendReceipt]] = {}
        prepared = []
        for destination, indexes in together.items():
            part = maker.together([drafts[index] for index in indexes], deadline)
            delivery = self.get(destination, deadline, *(drafts[index].is_keyed for index in indexes))
            queue = drafts[indexes[0]].queue
            if queue is not None:
                part.bind(choices.place(destination.topic, queue))
            futures.update(zip(indexes, part.futures, strict=True))
            prepared.append((delivery, part))
        config = self._shipping.config
        for delivery, part in prepared:
            delivery.admit(part, deadline)
            with contextlib.suppress(ClientClosed):  # others may be stored: each message's future says for itself
                delivery.enqueue(limited(part, config.batch_bytes_max, config.batch_count_max))
        return [futures[index] for index in range(len(drafts))]

    def start_whole(self, topic: str, part: Part, deadline: float) -> Future[RunReceipt | SendReceipt]:
        """Send a part of :meth:`.drafts.PartMaker.whole`, of no special type, or queue it; its future.

        Raises:
            What :meth:`get` raises: nothing is queued. BufferFull, ClientClosed: nor then.
        """
        delivery = self.get(Ordinary(topic), deadline, False)
        delivery.admit(part, deadline)
        future, batch = part.futures[0], delivery.start_now(part)
        if batch is not None:
            delivery.transmit(batch)
        return future

    def recall(self, topic: str, recall_handle: str, deadline: float) -> bool:
        """See :meth:`~penstock.client.Producer.recall`."""
        self.require_open()
        handle = RecallHandle.decode(recall_handle)
        if handle.topic != topic:
            raise InvalidArgument(f"recall from topic {topic!r:.80}: the handle is of topic {handle.topic!r:.80}")
        request = RecallRequest(topic=topic, unique_key=handle.unique_key, due_ms=handle.due_ms)
        left_s = max(deadline - time.monotonic(), 0.0)
        answer = self._calls.at_master(handle.broker_name, "Recall", request, left_s, service=LaterStub)
        if self._shipping.trace is not None:
            self._shipping.trace.on_recalled(topic, handle.unique_key, success=answer.in_time)
        return bool(answer.in_time)

    def statistics(self) -> ProducerStatistics:
        every = self.all()
        return ProducerStatistics(
            acknowledged=sum(each.acknowledged for each in every),
            refused=sum(each.refused for each in every),
            unknown=sum(each.unknown for each in every),
            pending=self.pending,
            pending_bytes=self._shipping.buffer.used,
            batches=sum(each.batches for each in every),
            failed_tries=sum(each.failed_tries for each in every),
            append=latency_of(each.stopwatch for each in every),
            traces_dropped=self._shipping.trace.tracer.dropped if self._shipping.trace is not None else 0,
        )

    @property
    def pending(self) -> int:
        """Messages that are accepted and not yet acknowledged or given up."""
        return self._shipping.buffer.pending + sum(map(len, tuple(self.open.values())))

    def begin_close(self) -> bool:
        """Make no more of them. Returns False if that was said before."""
        with self._lock:
            was_closed, self.is_closed = self.is_closed, True
            self.open.clear()
            return not was_closed

    def require_open(self) -> None:
        if self.is_closed:
            raise closed()

    def _check_type(self, destination: Destination, are_keyed: Iterable[bool]) -> None:
        demanded = self._demanded.get(destination.topic)
        if demanded is None:
            return
        found = {MessageType.FIFO if is_keyed else MessageType.NORMAL for is_keyed in are_keyed}
        if destination.message_type is not None:
            found = {destination.message_type}
        for other in found - {demanded, MessageType.MIXED}:
            raise conflict(destination.topic, demanded, other)

    def _on_route(self, route: TopicRoute) -> None:
        for shard in route.shards:
            master, former = self._calls.directory.master(shard.broker_name), self._masters.get(shard.broker_name)
            if master is not None and master != former:
                self._masters[shard.broker_name] = master
                if former is not None:  # frozen, or cut off, it would keep what is under way until keepalive tells
                    self._calls.connections.data.leave(former)
        with self._lock:
            self._demanded[route.topic] = demanded_type(route.attributes)
            for delivery in self.all():
                if delivery.topic == route.topic:
                    delivery.on_route(WriteQueues.of(route))
