"""The requests of one producer that wait for their replies."""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Final, Self

from penstock.formats.record.layout import parse_offset_message_id
from penstock.formats.record.properties import CORRELATION_ID, REPLY_TO_CLIENT, TTL
from penstock.formats.record.reading import RecordBatch
from penstock.proto.errors import BufferFull, ClientClosed, OutcomeUnknown, PenstockError

from ..cluster import Calls
from ..message import SendReceipt
from ..produce.keys import no_properties
from .line import Line
from .replies import Reply

log = logging.getLogger(__name__)

REQUESTS_MAX: Final = 65_536
"""Requests of one producer that wait for their replies."""


class Request:
    """One request, for ``with``: at the end of the block nobody waits for its reply any more."""

    def __init__(self, requests: Requests, topic: str, timeout_s: float) -> None:
        self.correlation_id = str(uuid.uuid4())
        self.deadline = time.monotonic() + timeout_s
        self.future: Future[Reply] = Future()
        self.receipt: SendReceipt | None = None
        self.position = -1  # in the log of its broker group, once it is known to be stored
        self._requests = requests
        self._topic = topic
        self._ttl_ms = math.ceil(timeout_s * 1000)

    @property
    def left_s(self) -> float:
        """How long its sender still waits."""
        return max(self.deadline - time.monotonic(), 0.0)

    def properties(self, own: Mapping[str, str] | None) -> dict[str, str]:
        """The properties of its message, with its sender's ``own``."""
        told = {CORRELATION_ID: self.correlation_id, REPLY_TO_CLIENT: self._requests.client_id, TTL: str(self._ttl_ms)}
        if not isinstance(own, (Mapping, type(None))):
            raise no_properties(own)
        return {**(own or {}), **told}

    def on_sent(self, receipt: SendReceipt) -> None:
        """The request is stored: have its reply come. Does not block."""
        self.receipt = receipt
        self.position = parse_offset_message_id(receipt.offset_message_id)[1]
        self._requests.listen(receipt.broker_name, self.position)

    def reply(self) -> Reply:
        """The reply, when it comes. Raises OutcomeUnknown: it did not come in time."""
        try:
            return self._requests.wait(self)
        except FutureTimeout:
            raise self.late() from None
        except CancelledError:
            raise ClientClosed(f"topic {self._topic}: the request was cancelled") from None

    def late(self) -> OutcomeUnknown:
        """The error that says what is known when no reply came in time."""
        return OutcomeUnknown(f"topic {self._topic}: no reply within {self._ttl_ms / 1000:g} s; {self.state()}")

    def state(self) -> str:
        """What is known of it without a reply."""
        if self.receipt is None:
            return "the request may be stored, and processed"
        broker_name, queue_id, offset = self.receipt.broker_name, self.receipt.queue_id, self.receipt.queue_offset
        where = f"broker group {broker_name}, queue {queue_id}, offset {offset}"
        return f"the request is stored ({where}), and may be processed, or still be"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.forget(self.correlation_id)


class Requests:
    """Finds whose reply has come. Thread-safe."""

    def __init__(self, calls: Calls, client_id: str) -> None:
        self.client_id = client_id
        self.late = 0
        """Replies that came when nobody waited for them any more, or came again."""
        self._calls = calls
        self._waiting: dict[str, Request] = {}  # by correlation id; whoever takes one out ends it
        self._followed: set[str] = set()  # of these, those for which no thread of their own reads
        self._lock = threading.Lock()  # guards what follows
        self._lines: dict[str, Line] = {}  # by broker name
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, topic: str, timeout_s: float, *, is_followed: bool = False) -> Request:
        """A request that is about to be sent. ``is_followed``: by its future; no thread waits by :meth:`Request.reply`.

        Raises:
            BufferFull: too many wait for their replies; this one is not to be sent.
        """
        if len(self._waiting) >= REQUESTS_MAX:
            raise BufferFull(f"topic {topic}: {REQUESTS_MAX} requests wait for their replies: send this one later")
        request = Request(self, topic, timeout_s)
        self._waiting[request.correlation_id] = request
        if is_followed:
            self._followed.add(request.correlation_id)
        return request

    def forget(self, correlation_id: str) -> None:
        """Nobody waits for that reply any more."""
        self._waiting.pop(correlation_id, None)
        self._followed.discard(correlation_id)

    def wait(self, request: Request) -> Reply:
        """The reply to a request that was sent, when it comes. Raises what its future raises."""
        line = None if request.receipt is None else self._lines.get(request.receipt.broker_name)
        return request.future.result(request.left_s) if line is None else line.wait(request.future, request.left_s)

    def listen(self, broker_name: str, position: int) -> None:
        """Have replies come from that broker group, those to the request at ``position`` of its log among them."""
        line = self._lines.get(broker_name)
        if line is None:
            with self._lock:
                if self._is_closed:
                    return
                line = self._lines.get(broker_name)
                if line is None:
                    line = self._lines[broker_name] = Line(self._calls, self.client_id, broker_name, self)
        line.need(position)

    def close(self) -> None:
        """End all lines; whoever waits is told. May be called again."""
        with self._lock:
            self._is_closed = True
            lines = list(self._lines.values())
        for line in lines:
            line.end()
        for line in lines:
            line.close()
        for request in list(self._waiting.values()):
            self._end(request, ClientClosed(f"the producer was closed before the reply came; {request.state()}"))

    def is_attended(self) -> bool:
        """True while everybody who waits for a reply does so by :meth:`.line.Line.wait`."""
        return not self._followed

    def oldest(self, broker_name: str) -> int | None:
        """The log position of the oldest request at that broker group without a reply, or None."""
        return min((each.position for each in self._of(broker_name) if each.position >= 0), default=None)

    def take(self, broker_name: str, records: bytes, push_time_ms: int) -> None:
        """Replies have come from that broker group: their records, and when it pushed them. Does not block."""
        batch = RecordBatch(records)
        for index in range(len(batch)):
            reply = Reply(batch, index, broker_name, push_time_ms)
            request = self._waiting.pop(reply.correlation_id, None)
            if request is None:
                self.late += 1
                log.debug("reply that nobody waits for correlation_id=%.80s", reply.correlation_id)
            else:
                request.future.set_result(reply)

    def fail(self, broker_name: str, error: PenstockError) -> None:
        """No reply will come from there."""
        for request in self._of(broker_name):
            self._end(request, OutcomeUnknown(f"its reply cannot be heard: {error.message}; {request.state()}"))

    def _of(self, broker_name: str) -> list[Request]:
        everybody = list(self._waiting.values())
        return [each for each in everybody if each.receipt is not None and each.receipt.broker_name == broker_name]

    def _end(self, request: Request, error: PenstockError) -> None:
        if self._waiting.pop(request.correlation_id, None) is not None:  # else its reply has come, or it gave up
            request.future.set_exception(error)
