"""The server's end of data ports: frames of :mod:`penstock.proto.data_frames` over TCP or TLS; event loop only.

Bytes are received straight into one buffer per connection, which is used again, and requests are views of it: what is
asked for is done before the next bytes are received, so that nothing is copied on its way. (``bytes`` objects, as
gRPC makes them, cost an allocation and a copy for each batch.)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from google.protobuf.message import DecodeError

from penstock.proto.data_frames import FRAME_BYTES_MAX, HEAD, HELLO_BYTES_MAX, VERSION, Kind, Method
from penstock.proto.errors import InvalidArgument, LimitReached, PenstockError, to_bytes
from penstock.proto.wire.data_pb2 import Hello

from ..busy_poll import PollingLoop
from ..channel import reported
from ..listening import cannot_listen
from ..security.access import Access
from ..security.certificates import ServerTls
from ..security.credentials import Credentials
from ..turns import Turns
from . import pipe
from .receiving import BUFFER_BYTES, REQUESTS, Receiving
from .sending import TAKEN_S, Data, Sending

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 10_000
HELLO_S: Final = 5.0
"""A connection that says nothing for so long is closed."""
GREETING_BYTES: Final = 1 << 10
"""The room of a connection that has not greeted."""
JOINED_BYTES: Final = 64 << 10
"""A frame up to here is joined to its head, so that both are sent at once."""
_METHOD: Final = "/penstock.v1.BrokerData/"


class Conversation(Protocol):
    """What takes the requests for one method that come over one connection."""

    def take(self, number: int, content: memoryview) -> None:
        """Do what is asked, or begin to; ``content`` is gone afterwards. The answer is the connection's to send."""

    def left(self) -> None:
        """The connection is gone."""


Converse = Callable[["Link"], Conversation]
"""Begins a conversation."""


class DataPort:
    """A port and its connections."""

    def __init__(self, access: Access | None = None, busy_poll_s: float = 0.0) -> None:
        """``access``: who may connect; None: everybody. ``busy_poll_s``: how long the loop looks for the next."""
        self.number = 0  # once it is open
        self.methods: dict[int, Converse] = {}
        self.access = access
        self.busy_poll_s = busy_poll_s
        self.connections: set[Link] = set()
        self.turns = Turns()
        """Of all connections."""
        self.is_closed = False
        self._server: asyncio.Server | None = None
        self._address = ""

    async def open(self, host: str, port: int, key: str, tls: ServerTls | None = None) -> None:
        """Take ``host:port``; 0: a port that the system chooses. Connections wait until :meth:`start`.

        Raises:
            ConfigError: the address cannot be had; names ``key``, the setting.
        """
        timeout_s = None if tls is None else HELLO_S
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._made,
                host,
                port,
                ssl=None if tls is None else tls.context(),
                ssl_handshake_timeout=timeout_s,
                start_serving=False,
            )
        except OSError as error:
            raise cannot_listen(key, host, port, error) from error
        self.number = self._server.sockets[0].getsockname()[1]

    async def start(self, address: str = "") -> None:
        """Serve; ``address``: of the broker, by which clients that this loop reads for are served by pipes."""
        assert self._server is not None, "open first"
        self._address = address
        if address:
            pipe.serve(address, self._made)
        await self._server.start_serving()

    def _made(self) -> Link:
        return Link(self)

    def close(self) -> None:
        """Take no more connections, and end those that are open when what they are answered is sent."""
        self.is_closed = True
        if self._server is not None:
            self._server.close()
        pipe.end_serving(self._address, self._made)
        for connection in list(self.connections):
            connection.close()

    def abort_unsent(self) -> None:
        """End the connections that have answers which are not all taken: what their pieces point to is to change."""
        for connection in list(self.connections):
            connection.abort_unsent()


class Link(asyncio.BufferedProtocol):
    """One connection: greets, takes frames apart, and hands them to the their methods' conversations."""

    def __init__(self, port: DataPort) -> None:
        self.metadata: Mapping[str, str] = {}
        """What the client said of itself."""
        self.on_room: list[Callable[[], None]] = []
        """Called when the client has taken so much that there is room again."""
        self._port = port
        self._transport: Any = None
        self._sending: Sending
        self._receiving = Receiving(GREETING_BYTES)
        self._conversations: dict[int, Conversation] = {}
        self._is_greeted = False
        self._caller: Credentials | None = None
        self._holds: set[str] = set()  # why nothing is read
        self._answers: list[bytes] = []  # made while bytes are taken apart: sent together
        self._is_taking = False
        self._loop = asyncio.get_running_loop()
        self._polling: PollingLoop | None = None  # which is told that something is expected
        self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()

    # What asyncio calls.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._sending = Sending(transport, self._port.turns.ends_s, self._wait_to_send, self._on_full)
        self._sending.begin()
        plain = transport.get_extra_info("socket")
        if plain is not None:  # a pipe has none, and its frames come in the loop's own rounds
            if self._port.busy_poll_s and isinstance(self._loop, PollingLoop):
                self._polling = self._loop
            with contextlib.suppress(OSError):
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(TAKEN_S * 1000))
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        self._port.connections.add(self)
        if self._port.is_closed:  # it was on its way then
            self.close()
            return
        if len(self._port.connections) > CONNECTIONS_MAX:
            self.end(LimitReached(f"{CONNECTIONS_MAX} connections are open: use fewer clients"))
            return
        self._timer = self._loop.call_later(HELLO_S, self._transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        self._port.connections.discard(self)
        self._gone.set()
        if self._timer is not None:
            self._timer.cancel()
        self._sending.drop()
        for conversation in self._conversations.values():
            conversation.left()

    def pause_writing(self) -> None:
        self._sending.pause()

    def resume_writing(self) -> None:
        self._sending.resume()

    def eof_received(self) -> bool:
        """A client that ends its half has gone."""
        return False

    def get_buffer(self, _: int) -> memoryview:
        return self._receiving.room()

    def buffer_updated(self, count: int) -> None:
        self._receiving.came(count)
        self._heard_at = self._loop.time()
        if self._polling is not None:
            self._polling.expect(self._port.busy_poll_s)
        self._take_all()

    def _go_on(self) -> None:
        """This connection's turn has come again."""
        self._sending.go_on()
        self.hold(False, "turn")

    def _take_all(self) -> None:
        until_s = self._port.turns.ends_s()
        if not until_s:
            self._wait()
            return
        self._is_taking = True
        try:
            self._take_apart(until_s)
        finally:
            self._is_taking = False
            self._flush()

    def _wait(self) -> None:
        self.hold(True, "turn")
        self._wait_to_send()

    def _wait_to_send(self) -> None:
        self._port.turns.wait(self._go_on)

    def _on_full(self, is_full: bool) -> None:
        self.hold(is_full, "unsent")
        if not is_full:
            for each in self.on_room:
                each()

    # What conversations call.

    @property
    def has_room(self) -> bool:
        """False while the client has much to take."""
        return "unsent" not in self._holds

    @property
    def silent_s(self) -> float:
        """For so long nothing came, though it was read."""
        return 0.0 if self._holds - {"unsent"} else self._loop.time() - self._heard_at

    def answer(self, number: int, method: int, *content: Data, on_taken: Callable[[], None] | None = None) -> None:
        """Answer a request for that method with these pieces, which are not copied where they are large.

        ``on_taken`` is called when the system has them all, or the connection is gone.
        """
        self._send(number, method, Kind.ANSWER, content, on_taken)

    def refuse(self, number: int, method: int, error: PenstockError) -> None:
        self._send(number, method, Kind.ERROR, (to_bytes(error),))

    def hold(self, is_held: bool, who: str = "asked") -> None:
        """Take nothing more, or go on as soon as nobody else, by name, wants nothing taken."""
        (self._holds.add if is_held else self._holds.discard)(who)
        if self._sending.is_closing:
            return
        if self._holds:
            self._transport.pause_reading()
        else:
            self._heard_at = self._loop.time()
            self._transport.resume_reading()
            if self._receiving.rest and not self._is_taking:
                self._take_all()

    def close(self) -> None:
        """Send what is answered, then close."""
        self.hold(True)
        self._sending.end()

    def abort(self) -> None:
        """Send nothing more, not even what is answered: what its pieces point to may change from here on."""
        self._transport.abort()

    def abort_unsent(self) -> None:
        """The same, if something is not taken yet."""
        if self._sending.has_unsent:
            self.abort()

    def end(self, error: PenstockError) -> None:
        """Say why to the client, and close."""
        self.refuse(0, Method.HELLO, error)
        self._flush()
        self.close()

    # Inside.

    def _send(
        self,
        number: int,
        method: int,
        kind: Kind,
        content: Sequence[Data],
        on_taken: Callable[[], None] | None = None,
    ) -> None:
        size = sum(map(len, content))
        head = HEAD.pack(size, number, method, kind)
        if size > JOINED_BYTES:
            self._flush()
            self._sending.send((head, *content), on_taken)
        elif self._is_taking and on_taken is None:
            self._answers.append(b"".join((head, *content)))
        else:
            self._sending.send((b"".join((head, *content)),), on_taken)

    def _flush(self) -> None:
        if self._answers:
            frames = b"".join(self._answers)
            self._answers.clear()
            self._sending.send((frames,))

    def _take_apart(self, until_s: float) -> None:
        receiving = self._receiving
        while not self._holds and not self._sending.is_closing:
            try:
                frame = receiving.next(FRAME_BYTES_MAX if self._is_greeted else HELLO_BYTES_MAX, REQUESTS)
            except InvalidArgument as error:
                self.end(error)
                return
            if frame is None:
                return
            self._on_request(frame.number, frame.method, frame.content)
            if time.perf_counter() > until_s and receiving.rest:
                self._wait()
        receiving.make_room()

    def _on_request(self, number: int, method: int, content: memoryview) -> None:
        if not self._is_greeted:
            self._greet(number, method, content)
        elif method == Method.PING:
            self.answer(number, method, b"")
        elif (conversation := self._conversations.get(method)) is not None:
            conversation.take(number, content)
        else:
            self._begin(number, method, content)

    def _begin(self, number: int, method: int, content: memoryview) -> None:
        """The first request for that method."""
        try:
            begin = self._port.methods.get(method)
            if begin is None:
                raise InvalidArgument(f"method {method}: nobody serves it here")
            if self._port.access is not None and self._caller is not None:
                self._port.access.check(self._caller, f"{_METHOD}{Method(method).name}")
        except PenstockError as error:
            self.refuse(number, method, error)
            return
        conversation = self._conversations[method] = begin(self)
        conversation.take(number, content)

    def _greet(self, number: int, method: int, content: memoryview) -> None:
        try:
            if method != Method.HELLO:
                raise InvalidArgument(f"a connection to a data port begins with a hello, not with method {method}")
            try:
                hello = Hello.FromString(bytes(content))
            except DecodeError as error:
                raise InvalidArgument(f"no hello: {error}") from None
            if hello.version != VERSION:
                raise InvalidArgument(f"version {hello.version} of the data port's protocol: this broker has {VERSION}")
            self.metadata = dict(hello.metadata)
            if self._port.access is not None:
                self._caller = self._port.access.authenticate(f"{_METHOD}{Method.HELLO.name}", self.metadata.items())
                watch = self._watch(self._port.access, self._caller)
                self._watching = self._loop.create_task(watch, name="data connection")
        except Exception as error:  # noqa: BLE001  the edge of the request: told to the caller and logged
            self.end(reported(error, "hello"))
            return
        self._is_greeted = True
        self._receiving.least_bytes = BUFFER_BYTES
        if self._timer is not None:
            self._timer.cancel()
        self.answer(number, method, b"")

    async def _watch(self, access: Access, caller: Credentials) -> None:
        """End the connection when its caller is no user any more."""
        try:
            async with access.admitted(caller):
                await self._gone.wait()
        except PenstockError as error:
            self.end(error)
