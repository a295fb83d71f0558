"""One producer process of a load test: what it sends, at which pace, and what became of it."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.proto.errors import BufferFull, DeliveryFailed, OutcomeUnknown, PenstockError

from .histogram import Histogram
from .ledger import HEADER, HEADER_BYTES, numbered_rows

if TYPE_CHECKING:
    from penstock.client import Producer, SendReceipt
    from penstock.client.aio import AsyncProducer

IN_FLIGHT_MAX = 20_000
PROBE_PAUSE_S = 0.05
FLUSH_TIMEOUT_S = 20.0
"""How long what was accepted is waited for at the end: a failover is over by then, a full disk is not."""
STREAMS_PER_PRODUCER = 1024
"""Producer n has the streams from ``1024 n`` on, one per thread; the last one is that of the latency probes."""
ERRORS_MAX = 20
_NUMBER = re.compile(r"\d+(\.\d+)?")
SLICE = 256
"""Messages between two looks at clock and budget on the fast path."""

Note = Callable[["SendReceipt | BaseException", int, int, int, bytes], None]
"""Told what became of a message: its receipt or error, stream, number, monotonic ns of its send, and body."""


@dataclass(slots=True)
class Outcomes:
    """Counts by outcome; written by callbacks of several threads, under a lock."""

    sent: int = 0
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    errors: dict[str, int] = field(default_factory=dict)  # see tally
    latency: Histogram = field(default_factory=Histogram)
    failed: dict[int, list[int]] = field(default_factory=dict)  # stream -> numbers that were not acknowledged
    failed_uncounted: int = 0  # failures of which only the number is known
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def on_sent(self, count: int) -> None:
        with self._lock:
            self.sent += count

    def on_acknowledged(self, count: int, latency_ms: float | None = None) -> None:
        """``count`` messages are stored as the mode demands."""
        with self._lock:
            self.acknowledged += count
            if latency_ms is not None:
                self.latency.add(latency_ms, count)

    def on_failed(self, error: BaseException, count: int, numbers: tuple[int, range] | None = None) -> None:
        """``count`` messages were refused, or nobody knows."""
        with self._lock:
            if isinstance(error, OutcomeUnknown):
                self.unknown += count
            else:
                self.refused += count
            tally(self.errors, f"{type(error).__name__}: {error}"[:300], count)
            if numbers is None:
                self.failed_uncounted += count
            else:
                self.failed.setdefault(numbers[0], []).extend(numbers[1])

    def progress(self) -> dict[str, Any]:
        with self._lock:
            failed, why = self.refused + self.unknown, next(reversed(self.errors), "")
            return {"sent": self.sent, "acknowledged": self.acknowledged, "failed": failed, "why": why}


def tally(errors: dict[str, int], text: str, count: int) -> None:
    """Count an error under the first text that differs from it in numbers alone; further than 20 are left out."""
    alike = _NUMBER.sub("0", text)
    known = next((each for each in errors if _NUMBER.sub("0", each) == alike), text)
    if known in errors or len(errors) < ERRORS_MAX:
        errors[known] = errors.get(known, 0) + count


@dataclass(frozen=True, slots=True)
class _Sending:
    """Messages under way. ``due`` and ``began_ns``: monotonic."""

    stream: int
    first: int
    bodies: Sequence[bytes]
    due: float
    began_ns: int


class Budget:
    """How many messages may still be sent, and when. Thread-safe."""

    def __init__(self, count: int | None, seconds: float | None, rate: float | None, stop: threading.Event) -> None:
        self._left = count
        self._rate = rate
        self._stop = stop
        self._began = time.monotonic()
        self._end = self._began + seconds if seconds is not None else None
        self._granted = 0
        self._lock = threading.Lock()

    def give_back(self, count: int) -> None:
        """So many of those that were taken are not sent."""
        with self._lock:
            self._granted -= count
            if self._left is not None:
                self._left += count

    def take(self, wanted: int, *, whole: bool = False) -> tuple[int, float]:
        """Up to ``wanted`` messages and the time (monotonic) at which the first was due; 0 when there are no more.

        With a rate it waits for the first one's time, and grants no more than are due then; ``whole``: for the last
        one's, which is the time that it tells.
        """
        with self._lock:
            while not self._stop.is_set():
                now = time.monotonic()
                if self._end is not None and now >= self._end:
                    break
                granted = wanted if self._left is None else min(wanted, self._left)
                due = now
                if self._rate is not None:
                    due = self._began + (self._granted + (granted - 1 if whole else 0)) / self._rate
                    if now < due:
                        self._stop.wait(min(due - now, 0.1))
                        continue
                    if not whole:
                        granted = min(granted, int((now - due) * self._rate) + 1)
                self._granted += granted
                if self._left is not None:
                    self._left -= granted
                return granted, due
            return 0, 0.0

    def grants(self, wanted: int, *, whole: bool = False) -> Iterator[tuple[int, float]]:
        """What :meth:`take` gives, again and again, until there are no more."""
        while (granted := self.take(wanted, whole=whole))[0]:
            yield granted


class Load:
    """Sends one producer's share and keeps its :class:`Outcomes`.

    ``awaited`` is what tasks send through with style asyncio; the other styles use ``sender``. ``note`` is told of each
    message by the styles that wait for its receipt (sync, async, asyncio), from any thread.
    """

    def __init__(
        self,
        sender: Producer,
        job: dict[str, Any],
        stop: threading.Event,
        awaited: AsyncProducer | None = None,
        note: Note | None = None,
    ) -> None:
        self.outcomes = Outcomes()
        self._sender = sender
        self._awaited = awaited
        self._note = note
        self._topic: str = job["topic"]
        self._size: int = job["size"]
        self._style: str = job["style"]
        self._batch: int = job["effective_batch"]
        self._stop = stop
        self._run: int | None = job["run"] if job["verify"] else None
        self._stream: int = job["number"] * STREAMS_PER_PRODUCER
        self._probe_stream = self._stream + STREAMS_PER_PRODUCER - 1
        self._next = dict.fromkeys([*range(self._stream, self._stream + job["threads"]), self._probe_stream], 0)
        self._keys = [f"key-{index}" for index in range(job["keys"])]
        self._accepted = 0  # by produce and produce_many, outcome still to come
        self._job = job
        # Not zeros, which a disk or file system might squeeze; the same for every message, as making them costs.
        self._payload: bytes = np.random.default_rng(1).integers(0, 256, self._size, dtype=np.uint8).tobytes()
        self._padding: bytes = self._payload[HEADER_BYTES:]

    def run(self) -> None:
        budget = Budget(self._job["count"], self._job["seconds"], self._job["rate"], self._stop)
        styles: dict[str, Callable[[Budget], None]] = {
            "sync": self._send_in_threads,
            "async": self._send_async,
            "asyncio": lambda budget: asyncio.run(self._send_in_tasks(budget)),
            "produce": self._produce,
            "columnar": self._produce_many,
        }
        probing = self._style in ("produce", "columnar") and self._job["probe"]
        done = threading.Event()
        probe = threading.Thread(target=self._probe, args=(budget, done), name="latency-probe", daemon=True)
        if probing:
            probe.start()
        try:
            styles[self._style](budget)
        finally:
            done.set()
            if probing:
                probe.join(timeout=FLUSH_TIMEOUT_S)

    def streams(self) -> dict[int, int]:
        """Stream → how many messages were numbered in it."""
        return {stream: count for stream, count in self._next.items() if count}

    def _bodies(self, stream: int, count: int = 1) -> tuple[int, list[bytes]]:
        """The next messages of a stream: the first one's number, and their bodies."""
        first = self._next[stream]
        self._next[stream] = first + count
        if self._run is None:
            return first, [self._payload] * count
        numbers = range(first, first + count)
        return first, [HEADER.pack(self._run, stream, number, time.time_ns()) + self._padding for number in numbers]

    def _options(self, number: int) -> dict[str, Any]:
        if not self._keys:
            return {}
        key = self._keys[number % len(self._keys)]
        return {"keys": [key], "sharding_key": key}

    def _begin(self, stream: int, due: float, count: int = 1) -> _Sending:
        """Count messages that are sent now, and were due then."""
        first, bodies = self._bodies(stream, count)
        self.outcomes.on_sent(count)
        return _Sending(stream, first, bodies, due, time.monotonic_ns())

    def _end(self, sending: _Sending, ended: Sequence[SendReceipt] | BaseException) -> None:
        """Count what became of them, and tell who wants to know."""
        count = len(sending.bodies)
        became: Sequence[SendReceipt | BaseException]
        if isinstance(ended, BaseException):
            self.outcomes.on_failed(ended, count, (sending.stream, range(sending.first, sending.first + count)))
            became = [ended] * count
        else:
            became = ended
            # From when it was due: a sender that fell behind its rate must not hide what its messages waited.
            self.outcomes.on_acknowledged(count, (time.monotonic() - sending.due) * 1000)
        if self._note is not None:
            for number, (each, body) in enumerate(zip(became, sending.bodies, strict=True), sending.first):
                self._note(each, sending.stream, number, sending.began_ns, body)

    def _send_in_threads(self, budget: Budget) -> None:
        with ThreadPoolExecutor(self._job["threads"], "sender") as threads:
            streams = range(self._stream, self._stream + self._job["threads"])
            for sender in [threads.submit(self._send_each, budget, stream) for stream in streams]:
                sender.result()

    def _send_each(self, budget: Budget, stream: int) -> None:
        for granted, due in budget.grants(self._batch, whole=True):
            self._send(self._begin(stream, due, granted))

    def _send(self, sending: _Sending) -> None:
        """Send these and wait for their receipts."""
        from penstock.client import Message

        try:
            if len(sending.bodies) == 1:
                receipt = self._sender.send(self._topic, sending.bodies[0], **self._options(sending.first))
                self._end(sending, [receipt])
                return
            numbered = enumerate(sending.bodies, sending.first)
            messages = [Message(topic=self._topic, body=body, **self._options(number)) for number, body in numbered]
            self._end(sending, self._sender.send_batch(messages))
        except PenstockError as error:
            self._end(sending, error)

    async def _send_in_tasks(self, budget: Budget) -> None:
        turn = asyncio.Lock()
        async with asyncio.TaskGroup() as group:
            for stream in range(self._stream, self._stream + self._job["threads"]):
                group.create_task(self._send_each_awaited(budget, stream, turn))

    async def _send_each_awaited(self, budget: Budget, stream: int, turn: asyncio.Lock) -> None:
        assert self._awaited is not None
        has_rate = self._job["rate"] is not None
        while not self._stop.is_set():
            if has_rate:
                async with turn:  # one waits in a thread for all: the loop goes on, and so do its other threads
                    granted, due = await asyncio.to_thread(budget.take, 1)
            else:
                granted, due = budget.take(1)
            if not granted:
                return
            sending = self._begin(stream, due)
            try:
                self._end(
                    sending, [await self._awaited.send(self._topic, sending.bodies[0], **self._options(sending.first))]
                )
            except PenstockError as error:
                self._end(sending, error)

    def _send_async(self, budget: Budget) -> None:
        room = threading.Semaphore(IN_FLIGHT_MAX)

        def settle(sending: _Sending, future: Future[Any]) -> None:
            error = future.exception()
            self._end(sending, [future.result()] if error is None else error)
            room.release()

        for _, due in budget.grants(1):
            room.acquire()
            due = due if self._job["rate"] is not None else time.monotonic()
            sending = self._begin(self._stream, due)
            try:
                future = self._sender.send_async(self._topic, sending.bodies[0], **self._options(sending.first))
            except PenstockError as error:
                self._end(sending, error)
                room.release()
                continue
            future.add_done_callback(partial(settle, sending))
        for _ in range(IN_FLIGHT_MAX):
            room.acquire()

    def _produce(self, budget: Budget) -> None:
        produce, topic, outcomes = self._sender.produce, self._topic, self.outcomes
        for granted, _ in budget.grants(SLICE):
            if self._run is None and not self._keys:
                body = self._payload
                accepted = 0
                try:
                    for _ in range(granted):
                        produce(topic, body)
                        accepted += 1
                except PenstockError as error:
                    outcomes.on_failed(error, 1)
                    budget.give_back(granted - accepted - 1)
                    granted = accepted + 1
                self._accepted += accepted
                outcomes.on_sent(granted)
                self._next[self._stream] += granted
            else:
                for done in range(1, granted + 1):
                    number, (body,) = self._bodies(self._stream)
                    outcomes.on_sent(1)
                    one = partial(produce, topic, body, **self._options(number))
                    if not self._accept(number, 1, one):  # it has waited for room: first a look at clock and budget
                        budget.give_back(granted - done)
                        break
        self._flush()

    def _accept(self, first: int, count: int, produce: Callable[[], object]) -> bool:
        """Hand messages over to the fast path, whose outcome :meth:`_flush` tells; false where it took none."""
        try:
            produce()
        except PenstockError as error:
            # Where the buffer is full, a part of many may have been accepted before.
            known = count == 1 or not isinstance(error, BufferFull)
            self.outcomes.on_failed(error, count, (self._stream, range(first, first + count)) if known else None)
            return False
        self._accepted += count
        return True

    def _produce_many(self, budget: Budget) -> None:
        plain = [self._payload] * self._batch
        for granted, _ in budget.grants(self._batch):
            first = self._next[self._stream]
            self._next[self._stream] = first + granted
            bodies: Any = plain if granted == self._batch else plain[:granted]
            if self._run is not None:
                bodies = numbered_rows(self._size, self._run, self._stream, first, granted, time.time_ns())
            keys = [self._keys[(first + index) % len(self._keys)] for index in range(granted)] if self._keys else None
            self.outcomes.on_sent(granted)
            many = partial(self._sender.produce_many, self._topic, bodies, keys=keys, sharding_keys=keys)
            self._accept(first, granted, many)
        self._flush()

    def _flush(self) -> None:
        """Wait for what was accepted and count it by outcome."""
        failed = 0
        try:
            self._sender.flush(timeout_s=FLUSH_TIMEOUT_S)
        except DeliveryFailed as error:
            for failure in [*error.refused, *error.unknown]:
                self.outcomes.on_failed(failure.error, failure.count)
                failed += failure.count
        except PenstockError as error:
            self.outcomes.on_failed(error, self._accepted)
            failed = self._accepted
        self.outcomes.on_acknowledged(max(self._accepted - failed, 0))

    def _probe(self, budget: Budget, done: threading.Event) -> None:
        """Send one message every 50 ms and wait for it: what a waiting sender sees beside this load."""
        while not done.wait(PROBE_PAUSE_S):
            if not budget.take(1)[0]:
                return
            self._send(self._begin(self._probe_stream, time.monotonic()))
