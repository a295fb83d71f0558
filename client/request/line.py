"""The line to one broker group on which replies come: a stream to its master, opened anew at whoever is master next."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc

from penstock.proto.errors import BrokerUnavailable, PenstockError, from_rpc_error
from penstock.proto.wire.common_pb2 import Empty
from penstock.proto.wire.replies_pb2 import ListenEvent, ListenRequest
from penstock.proto.wire.replies_pb2_grpc import RepliesStub

from ..cluster import Calls, Service, back_off_s

if TYPE_CHECKING:
    from penstock.proto.wire.nameserver_pb2 import TopicRoute

log = logging.getLogger(__name__)

REPLIES: Service = RepliesStub
HEARTBEAT_INTERVAL_S: Final = 1.0
SILENCE_S: Final = 3.0
TIMEOUT_S: Final = 3.0
LOG_EVERY: Final = 20


class Waiting(NamedTuple):
    """What a line asks and tells of the requests that it serves."""

    oldest: Callable[[str], int | None]
    """broker name -> log position of the oldest request there without a reply, None without one."""
    take: Callable[[str, ListenEvent], None]
    """Replies have come from that broker group."""
    fail: Callable[[str, PenstockError], None]
    """None will come."""


class Line:
    """Open from the first request on. A stream that breaks is opened again while there is a request without a reply.

    What came while it was broken lies in the broker's topic of replies: the new stream begins at the position of the
    oldest request, so that nothing is missed.
    """

    def __init__(self, calls: Calls, client_id: str, broker_name: str, waiting: Waiting) -> None:
        self._calls = calls
        self._client_id = client_id
        self._broker_name = broker_name
        self._waiting = waiting
        self._closed = threading.Event()
        self._needed = threading.Event()
        self._lock = threading.Lock()  # guards what follows, where it is written
        self._stream: _Stream | None = None
        self._begin: int | None = None  # the stream brings replies from this position on; None: there is no stream
        self._thread = threading.Thread(target=self._run, name=f"penstock-replies-{broker_name}", daemon=True)
        self._thread.start()
        calls.directory.add_listener(self._on_route)

    def need(self, position: int) -> None:
        """Bring replies from that log position on. The request there is known to ``oldest`` already."""
        begin = self._begin
        if begin is not None and begin <= position:
            return
        with self._lock:
            if self._stream is None or self._begin is None:
                self._needed.set()
            elif position < self._begin:
                self._begin = position
                self._stream.look_back(position)

    def end(self) -> None:
        """End the stream. May be called again."""
        self._calls.directory.remove_listener(self._on_route)
        self._closed.set()
        self._needed.set()
        with self._lock:
            if self._stream is not None:
                self._stream.cancel()

    def close(self) -> None:
        """End the stream and the thread. May be called again."""
        self.end()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=TIMEOUT_S)

    def _on_route(self, _: TopicRoute) -> None:
        """Another broker may be master: one that is frozen, or cut off, would keep the stream."""
        stream, master = self._stream, self._calls.directory.master(self._broker_name)
        if stream is not None and master is not None and stream.address != master:
            stream.cancel()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._needed.wait()
            self._needed.clear()
            failures = 0
            while not self._closed.is_set() and self._waiting.oldest(self._broker_name) is not None:
                was_heard, error = self._follow(fresh=failures > 0)
                failures = 1 if was_heard else failures + 1
                if self._closed.is_set():
                    return
                level = logging.WARNING if failures % LOG_EVERY == 2 else logging.INFO
                log.log(level, "line for replies broke broker=%s error=%s", self._broker_name, error.message)
                if not error.retryable:
                    self._waiting.fail(self._broker_name, error)
                self._closed.wait(back_off_s(failures))

    def _follow(self, *, fresh: bool) -> tuple[bool, PenstockError]:
        """Follow one stream to its end. Returns True if anything was heard, and its error."""
        was_heard, source = False, f"broker group {self._broker_name}"
        try:
            address = self._calls.directory.address(self._broker_name, TIMEOUT_S, fresh=fresh)
            source = f"broker {address}"
            stream = self._open(address)
            if stream is None:
                return False, BrokerUnavailable(f"{source}: nobody waits for a reply any more")
            for event in stream.call:
                stream.heard_s = time.monotonic()
                was_heard = True
                if event.records:
                    self._waiting.take(self._broker_name, event)
        except grpc.RpcError as broken:
            return was_heard, from_rpc_error(broken, source)
        except PenstockError as error:
            return was_heard, error
        finally:
            self._leave()
        return was_heard, BrokerUnavailable(f"{source} ended the stream of replies")

    def _open(self, address: str) -> _Stream | None:
        stub = self._calls.connections.stub(address, REPLIES)
        with self._lock:
            # Under the lock: a request that comes later than this look finds the stream, and compares.
            position = self._waiting.oldest(self._broker_name)
            if position is None or self._closed.is_set():
                return None
            opening = ListenRequest.Open(client_id=self._client_id, position=position)
            self._stream, self._begin = _Stream(stub, address, opening), position
            return self._stream

    def _leave(self) -> None:
        with self._lock:
            stream, self._stream, self._begin = self._stream, None, None
        if stream is not None:
            stream.cancel()


class _Stream:
    """One gRPC stream; gRPC's own thread takes what is to be sent."""

    def __init__(self, stub: Any, address: str, opening: ListenRequest.Open) -> None:
        self.address = address
        self.heard_s = time.monotonic()  # written by the line's thread, read by gRPC's
        self._opening = opening
        self._outgoing: queue.SimpleQueue[ListenRequest | None] = queue.SimpleQueue()  # None: the end
        self.call: Any = stub.Listen(self._requests())

    def look_back(self, position: int) -> None:
        """Have replies from that position on come, some perhaps again."""
        self._outgoing.put(ListenRequest(look_back=position))

    def cancel(self) -> None:
        """End it. May be called again."""
        self._outgoing.put(None)
        self.call.cancel()

    def _requests(self) -> Iterator[ListenRequest]:
        yield ListenRequest(open=self._opening)
        while True:
            try:
                request = self._outgoing.get(timeout=HEARTBEAT_INTERVAL_S)
            except queue.Empty:
                if time.monotonic() - self.heard_s > SILENCE_S:
                    self.call.cancel()  # a frozen broker keeps its streams open
                    return
                request = ListenRequest(heartbeat=Empty())
            if request is None:
                return
            yield request
