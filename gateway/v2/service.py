"""The service's methods: who calls, what is to answer, and every error as a status of the answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import lru_cache, partial
from typing import Any, Final

from google.protobuf.message import Message as Wire

from penstock.gateway.http2.call import Call, CallOver
from penstock.gateway.http2.frames import Status as End
from penstock.gateway.http2.method import Method
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.gateway.v2.wire.definition_pb2 import Code
from penstock.proto.requests import parsed
from penstock.runtime.channel import MESSAGE_BYTES_MAX, Requests
from penstock.runtime.security.access import Access

from .callers import Caller, caller_of
from .messages import timestamp
from .status import Refusal, status_of
from .telemetry import TAKEN_S, Telemetry, refuse

SERVICE: Final = wire.DESCRIPTOR.services_by_name["MessagingService"]
STREAMS_MAX: Final = 10_000
"""Telemetry streams of all clients at a time."""

REPEATED: Final = frozenset({"Heartbeat", "QueryRoute", "QueryAssignment"})
"""Idle clients call these with the same few requests again and again, which nothing that answers them changes."""
REPEATED_MAX: Final = 1024
REPEATED_BYTES_MAX: Final = 512
Unary = Callable[[Caller, Any], Awaitable[Any]]
Plain = Callable[[Caller, bytes], Awaitable[bytes | None]]
Taking = Callable[[Caller, Call], bool]
Streaming = Callable[[Caller, Any], AsyncGenerator[Any, None]]
"""Gives messages, or bytes: messages end to end, each with its head (:meth:`~..http2.call.Call.write_framed`).

The last may be what is to be done if the client does not get all of them (:meth:`~..http2.call.Call.end_confirmed`).
"""
Answer = Callable[[Call], Awaitable[None]]


class Service:
    """Wraps what answers the protocol's calls. Methods without an answer are NOT_IMPLEMENTED."""

    def __init__(self, access: Access | None) -> None:
        """``access``: the users whose calls are taken; None: everybody's."""
        self._access = access
        self._streams = 0
        self._requests = Requests(MESSAGE_BYTES_MAX)

    def methods(
        self,
        unary: dict[str, Unary],
        plain: dict[str, Plain],
        taking: dict[str, Taking],
        streaming: dict[str, Streaming],
        telemetry: Telemetry,
    ) -> dict[str, Method]:
        """What answers each of the service's methods, by path.

        ``taking`` is asked first, and may take a call over; then ``plain``, which may have no answer.
        """
        made: dict[str, Method] = {}
        for method in SERVICE.methods:
            asked, answer = getattr(wire, method.input_type.name), getattr(wire, method.output_type.name)
            name = method.name
            path = f"/{SERVICE.full_name}/{name}"
            if name == "Telemetry":
                made[path] = Method(self._telemetry(telemetry), is_streaming=True)
            elif method.server_streaming:
                made[path] = Method(self._streaming(name, streaming.get(name), asked, answer))
            else:
                answers = self._unary(name, unary.get(name), plain.get(name), asked, answer)
                made[path] = Method(answers, begins_at_once=True)
                if name in taking:
                    made[path] = made[path]._replace(takes=self._taking(taking[name]))
        return made

    def _taking(self, take: Taking) -> Callable[[Call], bool]:
        def takes(call: Call) -> bool:
            try:
                return take(caller_of(call, self._access), call)
            except Refusal:
                return False  # it is told alone

        return takes

    def _unary(
        self, name: str, method: Unary | None, plain: Plain | None, asked: type[Wire], answer: type[Any]
    ) -> Answer:
        repeated = lru_cache(maxsize=REPEATED_MAX)(partial(parsed, asked)) if name in REPEATED else None

        async def answered(call: Call) -> None:
            try:
                caller = caller_of(call, self._access)
                told = None if plain is None else await plain(caller, call.request)
                if told is None:
                    content = call.request
                    if repeated is not None and len(content) <= REPEATED_BYTES_MAX:
                        request = repeated(content)
                    else:
                        request = await self._requests.decoded(asked, content)
                    told = (await _implemented(name, method)(caller, request)).SerializeToString()
            except Exception as error:  # noqa: BLE001  the edge of the request: told to the caller, and logged
                told = answer(status=status_of(error, name)).SerializeToString()
            call.finish(told)

        return answered

    def _streaming(self, name: str, method: Streaming | None, asked: type[Wire], answer: type[Any]) -> Answer:
        async def answered(call: Call) -> None:
            try:
                caller = caller_of(call, self._access)
                answers = _implemented(name, method)(caller, await self._requests.decoded(asked, call.request))
                # A caller that names no deadline and reads nothing would keep its messages for ever.
                async with asyncio.timeout(caller.deadline_s), contextlib.aclosing(answers):
                    async for each in answers:
                        if isinstance(each, bytes):
                            await call.write_framed(each)
                        elif callable(each):
                            call.end_confirmed(each)
                        else:
                            await call.write(each.SerializeToString())
            except TimeoutError:
                call.fail(End.DEADLINE_EXCEEDED, f"{name}: the answer was not read in time")
            except CallOver:
                raise
            except Exception as error:  # noqa: BLE001  the edge of the request: told to the caller, and logged
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TAKEN_S):
                        await call.write(answer(status=status_of(error, name)).SerializeToString())
                        if answer is wire.ReceiveMessageResponse:  # it ends so in any case: clients wait for it
                            now = timestamp(time.time_ns() // 1_000_000)
                            await call.write(answer(delivery_timestamp=now).SerializeToString())

        return answered

    def _telemetry(self, telemetry: Telemetry) -> Answer:
        async def answered(call: Call) -> None:
            try:
                caller = caller_of(call, self._access)
                if self._streams >= STREAMS_MAX:
                    raise Refusal(Code.TOO_MANY_REQUESTS, f"flow limit: {STREAMS_MAX} streams are open already")
            except Refusal as refused:
                refuse(call, refused.status)
                return
            self._streams += 1
            try:
                await telemetry.serve(caller, self._requests.each(wire.TelemetryCommand, call.requests()), call)
            finally:
                self._streams -= 1

        return answered


def _implemented(name: str, method: Callable[..., Any] | None) -> Callable[..., Any]:
    if method is None:
        raise Refusal(Code.NOT_IMPLEMENTED, f"{name} is not implemented")
    return method
