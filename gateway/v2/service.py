"""The service's methods at a server: who calls, what is to answer, and every error as a status of the answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import Message as Wire

from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.gateway.v2.wire.definition_pb2 import Code
from penstock.runtime.channel import MESSAGE_BYTES_MAX, Requests
from penstock.runtime.security.access import Access

from .callers import NO_HOSTS, Caller, caller_of
from .messages import timestamp
from .status import Refusal, status_of, unread
from .telemetry import TAKEN_S, Telemetry, refuse

SERVICE: Final = wire.DESCRIPTOR.services_by_name["MessagingService"]
STREAMS_MAX: Final = 10_000
"""Telemetry streams of all clients at a time."""

Unary = Callable[[Caller, Any], Awaitable[Any]]
Streaming = Callable[[Caller, Any], AsyncGenerator[Any, None]]


class Service:
    """Wraps what answers the protocol's calls. Methods without an answer are NOT_IMPLEMENTED."""

    def __init__(self, access: Access | None, hosts: Mapping[str, str] = NO_HOSTS) -> None:
        """``hosts``: who is behind those of gRPC's peers that pass others' calls on."""
        self._access = access
        self._hosts = hosts
        self._streams = 0
        self._requests = Requests(MESSAGE_BYTES_MAX)

    def handlers(
        self, unary: dict[str, Unary], streaming: dict[str, Streaming], telemetry: Telemetry
    ) -> grpc.GenericRpcHandler[Any, Any]:
        """For :meth:`grpc.aio.Server.add_generic_rpc_handlers`."""
        made: dict[str, Any] = {}
        for method in SERVICE.methods:
            asked, answer = getattr(wire, method.input_type.name), getattr(wire, method.output_type.name)
            name = method.name
            if name == "Telemetry":
                made[name] = grpc.stream_stream_rpc_method_handler(
                    self._telemetry(telemetry), response_serializer=answer.SerializeToString
                )
            elif method.server_streaming:
                made[name] = grpc.unary_stream_rpc_method_handler(
                    self._streaming(name, streaming.get(name), asked, answer),
                    response_serializer=answer.SerializeToString,
                )
            else:
                made[name] = grpc.unary_unary_rpc_method_handler(
                    self._unary(name, unary.get(name), asked, answer), response_serializer=answer.SerializeToString
                )
        return grpc.method_handlers_generic_handler(SERVICE.full_name, made)

    def _unary(self, name: str, method: Unary | None, asked: type[Wire], answer: type[Any]) -> Any:
        async def call(content: bytes, context: Any) -> Any:
            try:
                caller = caller_of(context, self._access, self._hosts)
                return await _implemented(name, method)(caller, await self._requests.decoded(asked, content))
            except Exception as error:  # noqa: BLE001  the edge of the request: told to the caller, and logged
                return answer(status=status_of(error, name))

        return call

    def _streaming(self, name: str, method: Streaming | None, asked: type[Wire], answer: type[Any]) -> Any:
        async def call(content: bytes, context: Any) -> None:
            try:
                caller = caller_of(context, self._access, self._hosts)
                answers = _implemented(name, method)(caller, await self._requests.decoded(asked, content))
                # A caller that names no deadline and reads nothing would keep its messages for ever.
                async with asyncio.timeout(caller.deadline_s), contextlib.aclosing(answers):
                    async for each in answers:
                        await context.write(each)
            except TimeoutError:
                await unread(context, f"{name}: the answer was not read in time")
            except grpc.aio.BaseError:
                raise  # the client is gone, or the server stops
            except Exception as error:  # noqa: BLE001  the edge of the request: told to the caller, and logged
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TAKEN_S):
                        await context.write(answer(status=status_of(error, name)))
                        if answer is wire.ReceiveMessageResponse:  # it ends so in any case: clients wait for it
                            await context.write(answer(delivery_timestamp=timestamp(time.time_ns() // 1_000_000)))

        return call

    def _telemetry(self, telemetry: Telemetry) -> Any:
        async def call(requests: AsyncIterator[bytes], context: Any) -> None:
            try:
                caller = caller_of(context, self._access, self._hosts)
                if self._streams >= STREAMS_MAX:
                    raise Refusal(Code.TOO_MANY_REQUESTS, f"flow limit: {STREAMS_MAX} streams are open already")
            except Refusal as refused:
                await refuse(context, refused.status)
                return
            self._streams += 1
            try:
                await telemetry.serve(caller, self._requests.each(wire.TelemetryCommand, requests), context)
            except asyncio.CancelledError:
                raise  # the client is gone
            finally:
                self._streams -= 1

        return call


def _implemented(name: str, method: Callable[..., Any] | None) -> Callable[..., Any]:
    if method is None:
        raise Refusal(Code.NOT_IMPLEMENTED, f"{name} is not implemented")
    return method
