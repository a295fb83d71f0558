"""One producer process of a load test: what it sends, at which pace, and what became of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
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
FLUSH_TIMEOUT_S = 60.0
STREAMS_PER_PRODUCER = 1024
"""Producer n has the streams from ``1024 n`` on, one per thread; the last one is that of the latency probes."""
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
    errors: dict[str, int] = field(default_factory=dict)
    latency: Histogram = field(default_factory=Histogram)
    failed: dict[int, list[int]] = field(default_factory=dict)  # stream -> numbers that were not acknowledged
    failed_uncounted: int = 0  # failures of which only the number is known
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def on_sent(self, count: int) -> None:
        """``count`` messages were handed over."""
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
            text = f"{type(error).__name__}: {error}"[:300]
            if text in self.errors or len(self.errors) < 20:
                self.errors[text] = self.errors.get(text, 0) + count
            if numbers is None:
                self.failed_uncounted += count
            else:
                self.failed.setdefault(numbers[0], []).extend(numbers[1])


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
        """Send everything and wait for its outcome."""
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

    def _body(self, stream: int) -> bytes:
        number = self._next[stream]
        self._next[stream] = number + 1
        if self._run is None:
            return self._payload
        return HEADER.pack(self._run, stream, number, time.time_ns()) + self._padding

    def _options(self, number: int) -> dict[str, Any]:
        if not self._keys:
            return {}
        key = self._keys[number % len(self._keys)]
        return {"keys": [key], "sharding_key": key}

    def _send_in_threads(self, budget: Budget) -> None:
        streams = range(self._stream, self._stream + self._job["threads"])
        threads = [
            threading.Thread(target=self._send_each, args=(budget, stream), name=f"sender-{stream}", daemon=True)
            for stream in streams[1:]
        ]
        for thread in threads:
            thread.start()
        self._send_each(budget, self._stream)
        for thread in threads:
            thread.join()

    def _send_each(self, budget: Budget, stream: int) -> None:
        from penstock.client import Message

        while not self._stop.is_set():
            granted, due = budget.take(self._batch, whole=True)
            if not granted:
                return
            first = self._next[stream]
            bodies = [self._body(stream) for _ in range(granted)]
            self.outcomes.on_sent(granted)
            began_ns = time.monotonic_ns()
            ended: Sequence[SendReceipt | BaseException]
            try:
                if granted == 1:
                    ended = [self._sender.send(self._topic, bodies[0], **self._options(first))]
                else:
                    messages = [
                        Message(topic=self._topic, body=body, **self._options(first + index))
                        for index, body in enumerate(bodies)
                    ]
                    ended = self._sender.send_batch(messages)
            except PenstockError as error:
                ended = [error] * granted
                self.outcomes.on_failed(error, granted, (stream, range(first, first + granted)))
            else:
                # From when it was due: a sender that fell behind its rate must not hide what its messages waited.
                self.outcomes.on_acknowledged(granted, (time.monotonic() - due) * 1000)
            if self._note is not None:
                for number, (each, body) in enumerate(zip(ended, bodies, strict=True), first):
                    self._note(each, stream, number, began_ns, body)

    async def _send_in_tasks(self, budget: Budget) -> None:
        streams = range(self._stream, self._stream + self._job["threads"])
        turn = asyncio.Lock()
        async with asyncio.TaskGroup() as group:
            for stream in streams:
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
            number = self._next[stream]
            body = self._body(stream)
            self.outcomes.on_sent(1)
            began_ns = time.monotonic_ns()
            ended: SendReceipt | BaseException
            try:
                ended = await self._awaited.send(self._topic, body, **self._options(number))
            except PenstockError as error:
                ended = error
                self.outcomes.on_failed(error, 1, (stream, range(number, number + 1)))
            else:
                self.outcomes.on_acknowledged(1, (time.monotonic() - due) * 1000)
            if self._note is not None:
                self._note(ended, stream, number, began_ns, body)

    def _send_async(self, budget: Budget) -> None:
        room = threading.Semaphore(IN_FLIGHT_MAX)
        while not self._stop.is_set():
            granted, due = budget.take(1)
            if not granted:
                break
            room.acquire()
            number = self._next[self._stream]
            body = self._body(self._stream)
            self.outcomes.on_sent(1)
            due = due if self._job["rate"] is not None else time.monotonic()
            note = partial(self._note_end, number, time.monotonic_ns(), body)
            try:
                future = self._sender.send_async(self._topic, body, **self._options(number))
            except PenstockError as error:
                self.outcomes.on_failed(error, 1, (self._stream, range(number, number + 1)))
                note(error)
                room.release()
                continue
            future.add_done_callback(self._settle(number, due, room, note))
        for _ in range(IN_FLIGHT_MAX):
            room.acquire()

    def _note_end(self, number: int, began_ns: int, body: bytes, ended: SendReceipt | BaseException) -> None:
        if self._note is not None:
            self._note(ended, self._stream, number, began_ns, body)

    def _settle(
        self,
        number: int,
        due: float,
        room: threading.Semaphore,
        note: Callable[[SendReceipt | BaseException], None],
    ) -> Callable[[Future[Any]], None]:
        def settled(future: Future[Any]) -> None:
            error = future.exception()
            if error is None:
                self.outcomes.on_acknowledged(1, (time.monotonic() - due) * 1000)
            else:
                self.outcomes.on_failed(error, 1, (self._stream, range(number, number + 1)))
            note(error if error is not None else future.result())
            room.release()

        return settled

    def _produce(self, budget: Budget) -> None:
        produce, topic, outcomes = self._sender.produce, self._topic, self.outcomes
        while not self._stop.is_set():
            granted, _ = budget.take(SLICE)
            if not granted:
                break
            if self._run is None and not self._keys:
                body = self._payload
                accepted = 0
                try:
                    for _ in range(granted):
                        produce(topic, body)
                        accepted += 1
                except PenstockError as error:
                    outcomes.on_failed(error, granted - accepted)
                self._accepted += accepted
                outcomes.on_sent(granted)
                self._next[self._stream] += granted
            else:
                for _ in range(granted):
                    self._produce_one()
        self._flush()

    def _produce_one(self) -> None:
        number = self._next[self._stream]
        self.outcomes.on_sent(1)
        try:
            self._sender.produce(self._topic, self._body(self._stream), **self._options(number))
        except PenstockError as error:
            self.outcomes.on_failed(error, 1, (self._stream, range(number, number + 1)))
        else:
            self._accepted += 1

    def _produce_many(self, budget: Budget) -> None:
        plain = [self._payload] * self._batch
        while not self._stop.is_set():
            granted, _ = budget.take(self._batch)
            if not granted:
                break
            first = self._next[self._stream]
            self._next[self._stream] = first + granted
            bodies: Any = plain if granted == self._batch else plain[:granted]
            if self._run is not None:
                bodies = numbered_rows(self._size, self._run, self._stream, first, granted, time.time_ns())
            keys = [self._keys[(first + index) % len(self._keys)] for index in range(granted)] if self._keys else None
            self.outcomes.on_sent(granted)
            try:
                self._sender.produce_many(self._topic, bodies, keys=keys, sharding_keys=keys)
            except BufferFull as error:
                self.outcomes.on_failed(error, granted)  # a part of them may have been accepted before
            except PenstockError as error:
                self.outcomes.on_failed(error, granted, (self._stream, range(first, first + granted)))
            else:
                self._accepted += granted
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
        stream = self._probe_stream
        while not done.wait(PROBE_PAUSE_S):
            if not budget.take(1)[0]:
                return
            number = self._next[stream]
            body = self._body(stream)
            began = time.monotonic()
            try:
                self._sender.send(self._topic, body, **self._options(number))
            except PenstockError as error:
                self.outcomes.on_sent(1)
                self.outcomes.on_failed(error, 1, (stream, range(number, number + 1)))
            else:
                self.outcomes.on_sent(1)
                self.outcomes.on_acknowledged(1, (time.monotonic() - began) * 1000)
