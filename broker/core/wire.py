"""Methods of the wire, as a server takes them: the edge where requests come in and errors go out."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from penstock.proto.errors import InvalidArgument
from penstock.runtime.channel import Requests, reporting, reporting_stream

from .tables.table import compact

T = TypeVar("T")

NAME_LENGTH_MAX: Final = 200
REQUEST_BYTES_MAX: Final = 8 << 20
"""Of a request that carries no records: what is longer is not even looked at, since that alone would take long."""
QUEUES_MAX: Final = 1 << 16
"""Queues that one request may name: as many as a topic may have."""
TURN: Final = 1024
"""After so many of a long list others get their turn: some milliseconds of the event loop."""

Answer = Callable[[Any], Awaitable[Any]]
"""A unary method: request -> answer."""
Converse = Callable[[AsyncIterator[Any], Any], AsyncIterator[Any]]
"""A streaming method: requests, context -> answers."""

_KINDS: Final = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class Service(NamedTuple):
    """Some methods of one gRPC service; others may be another feature's."""

    name: str
    handlers: dict[str, Any]

    def register(self, server: grpc.aio.Server) -> None:
        """Have ``server`` answer for them."""
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(self.name, self.handlers),))


def service(
    wire: ServiceDescriptor, *, before: Callable[[], None] | None = None, **methods: Answer | Converse
) -> Service:
    """Methods of a service that a ``.proto`` declares; ``before`` is called before each unary one."""
    requests, handlers = Requests(REQUEST_BYTES_MAX), {}
    for name, method in methods.items():
        declared = wire.methods_by_name[name]
        is_stream = declared.client_streaming
        assert is_stream == declared.server_streaming, "no method of Penstock streams one way"
        kind = GetMessageClass(declared.input_type)
        handlers[name] = _KINDS[is_stream, is_stream](
            reporting_stream(_stream(kind, method, requests))  # type: ignore[arg-type]
            if is_stream
            else reporting(_unary(f"{wire.name}/{name}", kind, method, before, requests)),  # type: ignore[arg-type]
            response_serializer=GetMessageClass(declared.output_type).SerializeToString,
        )
    return Service(wire.full_name, handlers)


def _unary(
    name: str, kind: type[Message], method: Answer, before: Callable[[], None] | None, requests: Requests
) -> Callable[[bytes, Any], Awaitable[Any]]:
    async def call(content: bytes, context: Any) -> Any:
        request = await requests.decoded(kind, content)
        if before is not None:
            before()
        return await method(request)

    call.__qualname__ = name  # as the caller is told of an internal error
    return call


def check_count(what: str, count: int, most: int) -> None:
    """Refuse a list that is too long, before it is looked at. Raises InvalidArgument."""
    if count > most:
        raise InvalidArgument(f"{count} {what}: at most {most} are allowed in one request")


def check_queues(topic: str, queue_ids: Collection[int]) -> None:
    """Refuse too many queues of one topic, and any that is named twice. Raises InvalidArgument."""
    check_count(f"queues of topic {topic[:100]!r}", len(queue_ids), QUEUES_MAX)
    if len(set(queue_ids)) < len(queue_ids):
        raise InvalidArgument(f"topic {topic[:100]!r}: of {len(queue_ids)} queues at least one is named twice")


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items of a long list; others have their turn after each :data:`TURN` of them."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % TURN == 0:
            await asyncio.sleep(0)


async def compact_in_turns(document: Mapping[str, Any], *long: str) -> bytes:
    """What :func:`compact` makes of the document, if the order of fields does not matter; ``long``: its long objects.

    Nothing of it may change meanwhile. A document that is short is made without a pause.
    """
    fields = [compact({name: value for name, value in document.items() if name not in long})[1:-1]]
    for name in long:
        pieces, entries = [], iter(document[name].items())
        while some := dict(itertools.islice(entries, TURN)):
            pieces.append(compact(some)[1:-1])
            if len(some) == TURN:
                await asyncio.sleep(0)
        fields.append(b'"%b":{%b}' % (name.encode(), b",".join(pieces)))
    return b"{%b}" % b",".join(fields)


def _stream(kind: type[Message], method: Converse, requests: Requests) -> Converse:
    @functools.wraps(method)
    def call(contents: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        return method(requests.each(kind, contents), context)

    return call


def check_name(kind: str, name: str) -> str:
    """``name``, if it may name that kind. Raises InvalidArgument: it is empty, too long, or not printable ASCII."""
    printable = name.isascii() and name.isprintable()
    if not 0 < len(name) <= NAME_LENGTH_MAX or not printable:
        raise InvalidArgument(f"{kind} {name!r:.80}: 1..{NAME_LENGTH_MAX} printable ASCII characters are allowed")
    return name
