"""A producer's sessions with all masters: by them brokers know it, and ask it about halves that nobody decided."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import grpc

from penstock.proto.errors import BrokerUnavailable, PenstockError, from_rpc_error
from penstock.proto.wire.common_pb2 import Empty
from penstock.proto.wire.transactions_pb2 import ProducerEvent, ProducerRequest
from penstock.proto.wire.transactions_pb2_grpc import TransactionsStub

from ..cluster import Calls, Service, back_off_s

if TYPE_CHECKING:
    OnCheck = Callable[[str, ProducerEvent.Check], None]

log = logging.getLogger(__name__)

TRANSACTIONS: Service = TransactionsStub
HEARTBEAT_INTERVAL_S: Final = 1.0
SILENCE_S: Final = 3.0
LOOK_S: Final = 5.0
"""Between looks for broker groups that have come."""
TIMEOUT_S: Final = 3.0
LOG_EVERY: Final = 20


class ProducerSessions:
    """One thread looks for broker groups; each group has one that follows its session."""

    def __init__(self, calls: Calls, group: str, client_id: str, *, answers: bool, on_check: OnCheck) -> None:
        """``on_check(broker_name, check)`` is called in the sessions' threads; it must not block."""
        self._calls = calls
        self._join = ProducerRequest.Join(group=group, client_id=client_id, answers=answers)
        self._on_check = on_check
        self._closed = threading.Event()
        self._lock = threading.Lock()  # guards what follows
        self._threads: dict[str, threading.Thread] = {}  # by broker name
        self._streams: dict[str, _Stream] = {}
        self._looker = threading.Thread(target=self._look, name="penstock-producer-sessions", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        self._looker.start()

    def close(self) -> None:
        """End all sessions. May be called again."""
        self._closed.set()
        with self._lock:
            streams, threads = list(self._streams.values()), list(self._threads.values())
        for stream in streams:
            stream.cancel()
        for thread in (self._looker, *threads):
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(timeout=TIMEOUT_S)

    def _look(self) -> None:
        while not self._closed.is_set():
            try:
                for broker_name in self._calls.directory.shards(TIMEOUT_S):
                    self._open(broker_name)
            except PenstockError as error:
                if not self._closed.is_set():
                    log.info("broker groups not known error=%s", error.message)
            self._closed.wait(LOOK_S)

    def _open(self, broker_name: str) -> None:
        with self._lock:
            if broker_name in self._threads or self._closed.is_set():
                return
            name = f"penstock-producer-session-{broker_name}"
            thread = threading.Thread(target=self._run, args=(broker_name,), name=name, daemon=True)
            self._threads[broker_name] = thread
        thread.start()

    def _run(self, broker_name: str) -> None:
        failures = 0
        while not self._closed.is_set():
            is_joined, error = self._follow(broker_name, fresh=failures > 0)
            failures = 1 if is_joined else failures + 1
            if not self._closed.is_set():
                level = logging.WARNING if failures % LOG_EVERY == 2 else logging.DEBUG
                log.log(level, "producer session failed broker=%s error=%s", broker_name, error.message)
                self._closed.wait(back_off_s(failures))

    def _follow(self, broker_name: str, *, fresh: bool) -> tuple[bool, PenstockError]:
        """Follow one stream to its end. Returns True if it was joined, and its error."""
        is_joined, source = False, f"broker group {broker_name}"
        stream: _Stream | None = None
        try:
            address = self._calls.directory.address(broker_name, TIMEOUT_S, fresh=fresh)
            source = f"broker {address}"
            stream = _Stream(self._calls.connections.stub(address, TRANSACTIONS), self._join)
            with self._lock:
                self._streams[broker_name] = stream
            if self._closed.is_set():
                stream.cancel()
            for event in stream.call:
                stream.heard_s = time.monotonic()
                kind = event.WhichOneof("event")
                is_joined = is_joined or kind == "joined"
                if kind == "check":
                    self._on_check(broker_name, event.check)
        except grpc.RpcError as broken:
            return is_joined, from_rpc_error(broken, source)
        except PenstockError as error:
            return is_joined, error
        finally:
            if stream is not None:
                stream.cancel()
        return is_joined, BrokerUnavailable(f"{source} ended the session")


class _Stream:
    """One gRPC stream; gRPC's own thread takes the heartbeats."""

    def __init__(self, stub: Any, join: ProducerRequest.Join) -> None:
        self.heard_s = time.monotonic()  # written by the session's thread, read by gRPC's
        self._over = threading.Event()
        self._join = join
        self.call: Any = stub.ProducerSession(self._requests())

    def cancel(self) -> None:
        """End it. May be called again."""
        self._over.set()
        self.call.cancel()

    def _requests(self) -> Iterator[ProducerRequest]:
        yield ProducerRequest(join=self._join)
        while not self._over.wait(HEARTBEAT_INTERVAL_S):
            if time.monotonic() - self.heard_s > SILENCE_S:
                self.call.cancel()  # a frozen broker keeps its streams open
                return
            yield ProducerRequest(heartbeat=Empty())
