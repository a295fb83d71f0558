"""Channels of one client instance: to its nameservers, and to every broker it talks to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import grpc

from penstock.proto import frames
from penstock.proto.data_frames import Method
from penstock.proto.errors import ClientClosed, ConfigError, NameserverUnavailable, PenstockError, from_rpc_error
from penstock.proto.wire.broker_pb2 import AppendReceipt, FetchHeader, FetchReply
from penstock.proto.wire.broker_pb2_grpc import BrokerStub
from penstock.proto.wire.common_pb2 import Empty
from penstock.proto.wire.data_pb2_grpc import BrokerDataStub
from penstock.proto.wire.nameserver_pb2_grpc import NameserverStub
from penstock.runtime.channel import open_channel
from penstock.runtime.data import pipe as data_pipe
from penstock.runtime.data.link import DataLink
from penstock.runtime.memory import keep_large_buffers
from penstock.runtime.security.certificates import Pem
from penstock.runtime.security.credentials import Credentials, Security, SecurityFiles, Tls
from penstock.runtime.wrapped_channel import WrappedChannel

from .data_streams import DataStreams
from .fetch_links import FetchLinks
from .single_fetches import SingleFetch, SingleFetches

TRY_TIMEOUT_S_MIN = 0.25
OPEN_TIMEOUT_S = 10.0
"""A thread of its own waits for it, and for the connection before it, which may be at the other end of the world."""

Receipts = Future[AppendReceipt]

Service = Callable[[grpc.Channel], Any]
"""A service of brokers, by its generated stub class; those carry no types."""

BROKER: Service = BrokerStub
NAMESERVER: Service = NameserverStub


def parse_addresses(nameservers: str | Sequence[str]) -> list[str]:
    """The ``host:port`` items of ``"host:port;host:port"`` (commas do as well), or of a list of them.

    Raises:
        ConfigError: no address, one without a port number, or something else than text.
    """
    try:
        text = nameservers if isinstance(nameservers, str) else ";".join(nameservers)
    except TypeError:
        raise ConfigError(f"nameservers {nameservers!r:.200}: must be text, or a list of texts, as host:port") from None
    addresses = list(dict.fromkeys(item.strip() for item in text.replace(",", ";").split(";") if item.strip()))
    if not addresses:
        raise ConfigError(f"nameservers {nameservers!r}: name at least one, as host:port")
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or "/" in host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
            raise ConfigError(f"nameserver address {address!r}: must be host:port with a port of 1..65535")
    return addresses


class _Link(NamedTuple):
    """One server's channel and the calls made over it."""

    channel: Any
    certificates: Pem | None  # the channel shows and trusts these, for as long as it lives
    stubs: dict[Service, Any]


class Connections:
    """Everything that one client instance is connected to. Thread-safe; channels open when first used."""

    def __init__(
        self, nameservers: str | Sequence[str], *, tls: Tls | None = None, credentials: Credentials | None = None
    ) -> None:
        """Without ``tls`` and ``credentials`` they are those that the environment names, if it does.

        Raises:
            ConfigError: an address, or a file that the environment names, is wrong.
        """
        keep_large_buffers()
        self.addresses = parse_addresses(nameservers)
        is_given = tls is not None or credentials is not None
        given = Security(tls=tls, credentials=credentials)
        self._security = given if is_given else SecurityFiles.from_environment().read()
        self._lock = threading.Lock()  # guards what follows, where it is written
        self._links: dict[str, _Link] = {}  # by address; a link is replaced, never removed until it is closed
        self._preferred = 0  # index of the nameserver that answered last; whoever asked writes it, a guess only
        self._closed = False
        self.data = DataStreams(self._open_stream)
        """The streams to the data ports of brokers, by address."""
        self._fetches = SingleFetches(self._open_data)
        self.ask, self.stand = self.data.ask, self.data.stand

    def stub(self, address: str, service: Service = BROKER) -> Any:
        link = self._current(address)
        found = link.stubs.get(service)
        if found is None:  # two threads may make one each, which are as good
            found = link.stubs[service] = service(link.channel)
        return found

    def call(self, address: str, method: str, request: Any, timeout_s: float, *, service: Service = BROKER) -> Any:
        """The answer of one call; a broken one becomes a :class:`PenstockError`."""
        try:
            return getattr(self.stub(address, service), method)(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise rpc_error(error, address) from error

    def append(self, address: str, message: bytes, timeout_s: float, *, is_awaited: bool = False) -> Receipts:
        """Start to append a framed batch (``AppendHeader``, records); see :meth:`DataStreams.ask`."""
        return self.ask(address, Method.APPEND, message, AppendReceipt.FromString, timeout_s, is_awaited=is_awaited)

    def fetch(self, address: str, header: FetchHeader, timeout_s: float) -> SingleFetch:
        """Start to fetch; the result is for :func:`fetched`."""
        return self._fetches.fetch(address, header, timeout_s)

    def fetch_links(self) -> FetchLinks:
        """Connections for a thread that fetches all the time, which closes them."""
        return FetchLinks(self._open_data)

    def nameserver(self, address: str) -> Any:
        return self.stub(address, NAMESERVER)

    def query_nameserver(self, method: str, request: Any, timeout_s: float) -> Any:
        """The answer of the nameserver that answered last, else of each other one in turn.

        Each has its share of the time, so that a frozen one leaves some for the others.

        Raises:
            NameserverUnavailable: none answered within ``timeout_s``.
            PenstockError: what a nameserver answered.
        """
        deadline = time.monotonic() + timeout_s
        share_s = max(timeout_s / len(self.addresses), TRY_TIMEOUT_S_MIN)
        failures: list[str] = []
        first = self._preferred
        for index in (*range(first, len(self.addresses)), *range(first)):
            address = self.addresses[index]
            try:
                answer = getattr(self.nameserver(address), method)(request, timeout=share_s)
            except grpc.RpcError as error:
                failure = from_rpc_error(error, f"nameserver {address}")
                if not failure.retryable:
                    raise failure from error
                failures.append(failure.message)
            else:
                self._preferred = index
                return answer
            if time.monotonic() >= deadline:
                break
        raise NameserverUnavailable(f"no nameserver answered (time-out {timeout_s:g} s): {'; '.join(failures)}")

    def close(self) -> None:
        """Close every channel; calls under way end with an error. May be called again."""
        with self._lock:
            self._closed = True
            channels = [link.channel for link in self._links.values()]
            self._links.clear()
        self.data.close()
        self._fetches.close()
        for channel in channels:
            channel.close()

    def _open_stream(self, address: str) -> DataLink:
        """A connection to the data port of the broker at ``address`` for a stream, which its loop may read."""
        pipe = data_pipe.connect(address, self.data.loop)
        return self._open_data(address) if pipe is None else DataLink(address, 0, self._security, pipe=pipe)

    def _open_data(self, address: str) -> DataLink:
        """A connection to the data port of the broker at ``address``, which tells it."""
        answer = self.call(address, "Open", Empty(), OPEN_TIMEOUT_S, service=BrokerDataStub)
        return DataLink(address, answer.port, self._security)

    def _current(self, address: str) -> _Link:
        """The link to a server with the certificates as they are now.

        A former link is not closed: calls may be under way over it, with the last of which its channel ends.
        """
        link, tls = self._links.get(address), self._security.tls
        now = None if tls is None else tls.certificates()
        if link is None or link.certificates is not now:
            with self._lock:
                self._require_open()
                link = self._links.get(address)
                if link is None or link.certificates is not now:
                    link = self._links[address] = self._opened(address)
        return link

    def _opened(self, address: str) -> _Link:
        tls = self._security.tls
        certificates = None if tls is None else tls.certificates()  # first: a change meanwhile is seen by the next call
        channel = open_channel(address, self._security)
        return _Link(WrappedChannel(channel, self._begun), certificates, {})

    def _begun(self, begin: Callable[..., Any], *args: Any, **settings: Any) -> Any:
        """The call, of a channel that may close while it is made: gRPC raises a ``ValueError`` then."""
        try:
            return begin(*args, **settings)
        except ValueError:
            self._require_open()
            raise

    def _require_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client is closed: make a new one")


def rpc_error(error: grpc.RpcError, address: str) -> PenstockError:
    """The :class:`PenstockError` for a broken call to the broker at ``address``."""
    return from_rpc_error(error, f"broker {address}")


def fetched(call: SingleFetch) -> tuple[FetchReply, memoryview]:
    """The reply that a call of :meth:`Connections.fetch` brought, and the records of all its results end to end."""
    return frames.unpack(call.result(), FetchReply, frames.ANSWER_FIELDS_MAX)
