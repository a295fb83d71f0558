"""Batches on their way to brokers: one stream of appends per broker, answers in the order of the batches.

A call of its own for every batch would cost both ends more than everything else that is done for a small one. A stream
opens with the first batch after there was none, and breaks as a whole: everything under way on it is then unknown,
except when no connection was made at all.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from queue import SimpleQueue
from typing import Any

import grpc

from penstock.proto.errors import (
    BrokerUnavailable,
    ClientClosed,
    OutcomeUnknown,
    PenstockError,
    from_bytes,
    from_rpc_error,
)
from penstock.proto.wire.broker_pb2 import AppendAnswer, AppendReceipt

from .retry import NEVER

log = logging.getLogger(__name__)

Receipts = Future[AppendReceipt]
OpenStream = Callable[[Iterator[bytes]], Any]  # the gRPC call for a stream of requests


class AppendStreams:
    """The append streams of one client instance, by the brokers' addresses. Thread-safe.

    A thread of its own ends what is not answered in time; it sleeps until the next time-out that is known.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}  # by address; replaced under the lock, read without it
        # When the watching thread looks again. Senders lower it, the watching thread sets it; a sender that is
        # overwritten has set the event, so the thread looks once more.
        self._watch_at = NEVER
        self._changed = threading.Event()
        self._watching: threading.Thread | None = None
        self._is_closed = False

    def append(self, address: str, open_stream: OpenStream, message: bytes, timeout_s: float) -> Receipts:
        """Send a framed batch to the broker at ``address``; the future is completed by a thread of this module.

        Its errors: what the broker answered; :class:`OutcomeUnknown` after ``timeout_s``; :class:`BrokerUnavailable`
        with gRPC's ``status`` when the stream broke.

        Raises:
            ClientClosed: after :meth:`close`.
        """
        deadline = time.monotonic() + timeout_s
        stream = self._streams.get(address)
        future = None if stream is None else stream.send(message, deadline)
        if future is None:
            future = self._on_new_stream(address, open_stream, message, deadline)
        if deadline < self._watch_at:
            self._watch_at = deadline
            self._changed.set()
        return future

    def leave(self, address: str) -> None:
        """Break the stream to ``address``, if there is one: everything under way on it is unknown."""
        stream = self._streams.get(address)
        if stream is not None:
            stream.end()

    def close(self) -> None:
        """Break every stream. May be called again."""
        with self._lock:
            self._is_closed = True
            streams = list(self._streams.values())
        for stream in streams:
            stream.end()
        self._changed.set()

    def _on_new_stream(self, address: str, open_stream: OpenStream, message: bytes, deadline: float) -> Receipts:
        with self._lock:
            while True:
                if self._is_closed:
                    raise ClientClosed("the client is closed: make a new one")
                if self._watching is None:
                    self._watching = threading.Thread(target=self._watch, name="penstock-append-times", daemon=True)
                    self._watching.start()
                stream = self._streams.get(address)
                future = None if stream is None else stream.send(message, deadline)
                if future is not None:
                    return future
                self._streams[address] = _Stream(address, open_stream)

    def _watch(self) -> None:
        while not self._is_closed:
            self._changed.clear()
            now = time.monotonic()
            self._watch_at = NEVER  # a batch that starts meanwhile sets it lower again
            due = min((stream.expire(now) for stream in list(self._streams.values())), default=NEVER)
            self._watch_at = min(self._watch_at, due)
            pause = self._watch_at - time.monotonic()
            if pause > 0:
                self._changed.wait(None if self._watch_at == NEVER else pause)


class _Stream:
    """One stream until it breaks."""

    def __init__(self, address: str, open_stream: OpenStream) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._requests: SimpleQueue[bytes | None] = SimpleQueue()
        self._under_way: deque[tuple[float, Receipts]] = deque()  # in the order in which the answers come
        self._is_broken = False
        self._call = open_stream(iter(self._requests.get, None))
        threading.Thread(target=self._read, name="penstock-append-answers", daemon=True).start()

    def send(self, message: bytes, deadline: float) -> Receipts | None:
        """The future of the batch's receipt, or None if the stream is broken and nothing was sent."""
        future: Receipts = Future()
        with self._lock:
            if self._is_broken:
                return None
            self._under_way.append((deadline, future))
            self._requests.put(message)
        return future

    def expire(self, now: float) -> float:
        """Fail what is not answered in time; the next deadline. Late answers are nobody's."""
        due, late = NEVER, []
        with self._lock:
            for deadline, future in self._under_way:
                if future.done():
                    continue
                if deadline <= now:
                    late.append(future)
                else:
                    due = min(due, deadline)
        for future in late:
            _fail(future, OutcomeUnknown(f"broker {self._address}: no answer within the time-out"))
        return due

    def end(self) -> None:
        """Break it from here."""
        self._call.cancel()

    def _read(self) -> None:
        error: PenstockError
        try:
            for data in self._call:
                self._settle(data)
            error = BrokerUnavailable(f"broker {self._address}: it ended the stream", status="OK")
        except grpc.RpcError as broken:
            error = from_rpc_error(broken, f"broker {self._address}")
        with self._lock:
            self._is_broken = True
            rest = list(self._under_way)
            self._under_way.clear()
        self._requests.put(None)  # lets gRPC's own thread end, which waits for requests
        for _, future in rest:
            _fail(future, error)

    def _settle(self, data: bytes) -> None:
        with self._lock:
            _, future = self._under_way.popleft()
        answer = AppendAnswer.FromString(data)
        if answer.WhichOneof("outcome") == "receipt":
            _complete(future, answer.receipt)
        else:
            _fail(future, from_bytes(answer.error))


def _complete(future: Receipts, receipt: AppendReceipt) -> None:
    try:
        future.set_result(receipt)
    except InvalidStateError:
        log.debug("an answer came after its time-out")


def _fail(future: Receipts, error: PenstockError) -> None:
    try:
        future.set_exception(error)
    except InvalidStateError:
        log.debug("an error came after the time-out: %s", error)
