"""gRPC channels and servers as every Penstock process sets them up, and errors across them."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from penstock.proto.errors import METADATA_KEY, PenstockError, to_bytes
from penstock.proto.requests import counting, parsed

from .security.credentials import PLAIN, Security
from .security.signatures import Signer
from .turns import Turns
from .wrapped_channel import WrappedChannel

log = logging.getLogger(__name__)

# A call that has failed is its own error, whose traceback refers to it, and takes its lock when it is collected. At the
# interpreter's end it would wait for ever for a thread of gRPC that had the lock and was stopped.
atexit.register(gc.collect)

M = TypeVar("M", bound=Message)

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
FIELDS_MAX: Final = 1 << 17
"""Of one request, those of messages inside it included: decoding so many takes some hundredths of a second."""
KEEPALIVE_TIME_MS = 1000
KEEPALIVE_TIMEOUT_MS = 1500
CONNECT_TIMEOUT_MS = 3000
"""How long an attempt to connect may take: three round trips over TLS to the other end of the world, or a busy peer.

Nobody learns from it that a peer is gone. A process that died refuses at once; of one that froze, or is cut off, its
streams break by keepalive, and the nameservers name another master."""
HASTY_CONNECT_TIMEOUT_MS = 100
"""Of the first attempt where another peer can be asked instead, at once: elections."""

# A peer that froze must be noticed within 3 s. Without ping_timeout_ms gRPC waits a minute.
_KEEPALIVE = (
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
)
_LIMITS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
)
CHANNEL_OPTIONS = (
    *_KEEPALIVE,
    *_LIMITS,
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)
CALLS_PER_CONNECTION_MAX = 4096
"""More wait at the client until others of its connection, which is its own, are over."""
SERVER_OPTIONS = (
    *_KEEPALIVE,
    *_LIMITS,
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small message may unpack to anything
    ("grpc.so_reuseport", 0),  # a second server on the port must fail, not share it
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_concurrent_streams", CALLS_PER_CONNECTION_MAX),
    ("grpc.http2.bdp_probe", 0),  # it widens the window of every stream: 50 that nobody reads held 4 GiB
)


def open_channel(address: str, security: Security = PLAIN) -> grpc.Channel:
    """A channel to ``host:port`` for threads; connects when first used and reconnects by itself."""
    return cast(grpc.Channel, _open(grpc, address, security, CONNECT_TIMEOUT_MS))


def open_async_channel(
    address: str, security: Security = PLAIN, *, connect_timeout_ms: int = CONNECT_TIMEOUT_MS
) -> grpc.aio.Channel:
    """The same for the running event loop."""
    return cast(grpc.aio.Channel, _open(grpc.aio, address, security, connect_timeout_ms))


def _open(kind: Any, address: str, security: Security, connect_timeout_ms: int) -> Any:
    tls, credentials = security.tls, security.credentials
    connecting = ("grpc.min_reconnect_backoff_ms", connect_timeout_ms)  # gRPC's name: no pause where a peer refuses
    options: list[tuple[str, Any]] = [*CHANNEL_OPTIONS, connecting]
    if tls is None:
        channel = kind.insecure_channel(address, options=options)
    else:
        options += tls.channel_options()
        channel = kind.secure_channel(address, tls.channel_credentials(), options=options)
    if credentials is None:
        return channel
    signer = Signer(credentials)
    return WrappedChannel(channel, lambda begin, *args, **how: begin(*args, metadata=signer.metadata(), **how))


async def has_connected(channel: grpc.aio.Channel, timeout_s: float) -> bool:
    """True once ``channel`` has a connection; False if it cannot be made now, so that nothing was sent over it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                    return False
                await channel.wait_for_state_change(state)
            return True
    return False


def new_server(interceptors: Sequence[Any] = (), calls_max: int | None = None) -> grpc.aio.Server:
    """A server for the running event loop with Penstock's limits and keepalive; ``calls_max``: under way at a time."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_news)
    return grpc.aio.server(interceptors=interceptors, options=SERVER_OPTIONS, maximum_concurrent_rpcs=calls_max)


def _is_news(record: logging.LogRecord) -> bool:
    """False for an answer that could not be written, since its caller is gone: whoever likes could fill the log."""
    return "ExecuteBatchError raised in core" not in str(record.msg)


def reported(error: Exception, method: str) -> PenstockError:
    """The error for the caller of ``method``: a :class:`PenstockError` itself; any other is logged, and internal."""
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, grpc.aio.InternalError):  # an answer could not be written, since its caller is gone
        log.info("call broken method=%s error=%r", method, error)
        return PenstockError(f"{method}: the connection broke")
    log.error("request failed method=%s error=%r", method, error, exc_info=error)
    return PenstockError(f"{method}: internal error, see the server's log")


async def fail(context: grpc.aio.ServicerContext[Any, Any], error: Exception, method: str) -> None:
    """End a call of ``method`` with ``error``, as :func:`reported`.

    gRPC keeps the last call and its error until another comes: what its request held goes here already. The frames
    themselves stay as they are, since one error may end many calls, and others may have met it and go on.
    """
    met: BaseException | None = error
    error = reported(error, method)
    while met is not None:
        met.__traceback__ = None
        met = met.__context__
    await context.abort(error.grpc_status, error.message[:1000], ((METADATA_KEY, to_bytes(error)),))


class Requests:
    """Decodes the requests of one server; event loop only."""

    def __init__(self, bytes_max: int, fields_max: int = FIELDS_MAX) -> None:
        self._bytes_max = bytes_max
        self._fields_max = fields_max
        self._turns = Turns()

    async def decoded(self, kind: type[M], content: bytes) -> M:
        """The message in ``content``; everything else goes on while a long one is looked through.

        Raises:
            InvalidArgument: not such a message. MessageTooLarge: it is too long, or has too many fields.
        """
        for _ in counting(kind, content, self._bytes_max, self._fields_max):
            await self._turns.have()
        return parsed(kind, content)

    async def each(self, kind: type[M], contents: AsyncIterator[bytes]) -> AsyncIterator[M]:
        """The messages of a stream, decoded one by one; raises as :meth:`decoded`."""
        async for content in contents:
            yield await self.decoded(kind, content)


def add_service(
    server: grpc.aio.Server, wire: ServiceDescriptor, servicer: object, fields_max: int = FIELDS_MAX
) -> None:
    """Have ``server`` answer by the coroutines of ``servicer``, one for each method that the service declares.

    A :class:`PenstockError` that one raises reaches the caller as itself, any other as an internal error.
    """
    requests = Requests(MESSAGE_BYTES_MAX, fields_max)
    handlers = {method.name: _handler(method, getattr(servicer, method.name), requests) for method in wire.methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(wire.full_name, handlers),))


def _handler(declared: MethodDescriptor, method: Unary, requests: Requests) -> Any:
    kind, is_stream = GetMessageClass(declared.input_type), declared.client_streaming

    @functools.wraps(method)
    async def call(content: Any, context: Any) -> Any:
        request = requests.each(kind, content) if is_stream else await requests.decoded(kind, content)
        return await method(request, context)

    make = grpc.stream_stream_rpc_method_handler if is_stream else grpc.unary_unary_rpc_method_handler
    return make(reporting(call), response_serializer=GetMessageClass(declared.output_type).SerializeToString)


Unary = Callable[..., Awaitable[Any]]
Streaming = Callable[..., AsyncIterator[Any]]


def reporting(method: Unary) -> Unary:
    """Wrap a unary handler: a :class:`PenstockError` reaches the caller as itself, any other error as internal."""

    @functools.wraps(method)
    async def call(*args: Any) -> Any:
        try:
            return await method(*args)
        except Exception as error:  # noqa: BLE001  the edge of the request: told to the caller and logged
            context, args = args[-1], ()  # see `fail`
            await fail(context, error, method.__qualname__)

    return call


def reporting_stream(method: Streaming) -> Streaming:
    """The same for a handler that yields its answers."""

    @functools.wraps(method)
    async def call(*args: Any) -> AsyncIterator[Any]:
        try:
            async for answer in method(*args):
                yield answer
        except Exception as error:  # noqa: BLE001  the edge of the request: told to the caller and logged
            context, args = args[-1], ()  # see `fail`
            await fail(context, error, method.__qualname__)

    return call
