"""Telemetry, Heartbeat, NotifyClientTermination: how clients are known, and how the gateway reaches them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final

from penstock.gateway.http2.call import Call, CallOver
from penstock.gateway.http2.frames import Status as End
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.gateway.v2.wire.definition_pb2 import PRODUCER, SIMPLE_CONSUMER, Code, Status
from penstock.runtime.turns import Turns

from .callers import Caller
from .clients import Client, Clients, Stream
from .groups import Groups
from .messages import span_ms
from .names import group_of
from .settings import CONSUMERS, answer_to, topics_of
from .status import Refusal, ok, status_of

log = logging.getLogger(__name__)

AGAIN_S: Final = 1.5
"""Node.js loses settings that come while it still waits for a route: it is told them again."""
TAKEN_S: Final = 30.0
"""A client that does not take a command for so long loses its stream."""

_HEARD: Final = wire.HeartbeatResponse(status=ok())

OnProducer = Callable[[Client], None]
OnGone = Callable[[str], None]


class Telemetry:
    """The streams of all clients. Event loop only."""

    def __init__(self, clients: Clients, groups: Groups, on_producer: OnProducer, on_gone: OnGone) -> None:
        """``on_producer(client)``: may be asked of its topics; ``on_gone(client id)``: it has ended, or said so."""
        self._clients = clients
        self._groups = groups
        self._on_producer = on_producer
        self._on_gone = on_gone
        self._turns = Turns()

    async def serve(self, caller: Caller, requests: AsyncIterator[wire.TelemetryCommand], call: Call) -> None:
        """One stream, to its end. Ends with an error of gRPC where the client sends what is not understood."""
        call.begin()  # some clients wait for it before they send anything
        try:
            client = self._clients.heard(caller)
        except Refusal as refused:
            refuse(call, refused.status)
            return
        stream = self._clients.open(client)
        self._on_producer(client)  # of one that comes back, the topics are known
        reading = asyncio.create_task(self._read(caller, client, stream, requests))
        try:
            while (command := await stream.next()) is not None:
                async with asyncio.timeout(TAKEN_S):
                    await call.write(command.SerializeToString())
        except TimeoutError:
            log.warning("client reads no commands, its stream ends client=%s", caller.client_id)
            call.fail(End.DEADLINE_EXCEEDED, f"commands of the server were not read for {TAKEN_S:g} s")
            return
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            self._clients.closed(client, stream)
        error = None if reading.cancelled() else reading.exception()
        if isinstance(error, CallOver):
            raise error
        if error is not None:
            status = status_of(error if isinstance(error, Exception) else RuntimeError(repr(error)), "Telemetry")
            is_clients_fault = status.code // 10000 == 4
            code = End.INVALID_ARGUMENT if is_clients_fault else End.INTERNAL
            call.end(code, f"process client telemetryCommand failed. {status.message}")

    async def _read(
        self, caller: Caller, client: Client, stream: Stream, requests: AsyncIterator[wire.TelemetryCommand]
    ) -> None:
        try:
            async for command in requests:
                await self._turns.have()  # settings may be long, and of many at once
                self._clients.heard(caller)
                if command.WhichOneof("command") == "settings":
                    await self._take_settings(caller, client, stream, command)
                # Anything else answers a command of the operator's, and nobody waits for it any more.
        finally:
            stream.end()

    async def _take_settings(
        self, caller: Caller, client: Client, stream: Stream, command: wire.TelemetryCommand
    ) -> None:
        settings = await answer_to(command.settings, caller, self._groups)
        stream.is_settled = True
        if settings.HasField("request_timeout"):
            client.request_s = span_ms(settings.request_timeout, "request_timeout", Code.BAD_REQUEST) / 1000
        if settings.HasField("publishing"):
            for topic in topics_of(settings, caller.namespace):
                self._clients.publishes(client, topic)
            self._on_producer(client)
            client.type = PRODUCER
        else:
            client.type = settings.client_type or SIMPLE_CONSUMER
            client.group = group_of(settings.subscription.group, caller.namespace)
        answer = wire.TelemetryCommand(status=ok(), settings=settings)
        stream.push(answer)
        await stream.sent()  # who takes no answers is not read either: settings may be long
        if caller.is_node_js:
            asyncio.get_running_loop().call_later(AGAIN_S, stream.push, answer)

    async def heartbeat(self, caller: Caller, request: wire.HeartbeatRequest) -> wire.HeartbeatResponse:
        """Whoever calls is known from now on. Raises Refusal: UNRECOGNIZED_CLIENT_TYPE, or a bad group."""
        known = self._clients.get(caller.client_id)
        kind = request.client_type or (known.type if known is not None else 0)
        if kind != PRODUCER and kind not in CONSUMERS:
            raise Refusal(Code.UNRECOGNIZED_CLIENT_TYPE, f"client type {kind} is not known")
        client = self._clients.heard(caller)
        if kind in CONSUMERS:
            client.group = group_of(request.group, caller.namespace)
        return _HEARD

    async def terminated(
        self, caller: Caller, request: wire.NotifyClientTerminationRequest
    ) -> wire.NotifyClientTerminationResponse:
        """Forget the client, and give what it held to others soon."""
        if request.HasField("group") and request.group.name:
            group_of(request.group, caller.namespace)
        if self._clients.forget(caller.client_id) is not None:
            self._on_gone(caller.client_id)
        return wire.NotifyClientTerminationResponse(status=ok())


def refuse(call: Call, status: Status) -> None:
    """End a stream whose caller is not let in: one command tells why."""
    call.finish(wire.TelemetryCommand(status=status).SerializeToString())
