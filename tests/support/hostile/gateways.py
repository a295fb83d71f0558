"""Attacks on a gateway by its streams: clients that say nothing, that never read, that let their answers lie."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import grpc.aio

from penstock.gateway.v2.wire import definition_pb2 as v2
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.runtime.channel import open_async_channel

from .attacks import BROKEN_OFF, Findings, Scale
from .target import Target

SERVICE = "/apache.rocketmq.v2.MessagingService/"
ROUTE = wire.QueryRouteRequest(topic=v2.Resource(name="orders")).SerializeToString()
ANSWERED_S = 30.0
SETTINGS_BYTES = 200_000


async def silent_telemetry(target: Target, scale: Scale) -> Findings:
    """Telemetry streams by the thousand, each of another client, that never send settings."""
    async with open_async_channel(target.gateway.address) as crowd:
        calls = [_telemetry(crowd, f"silent-{number}") for number in range(scale.many * 5)]
        try:
            for call in calls:
                await call.initial_metadata()
            return await _routed(target)
        finally:
            for call in calls:
                call.cancel()


async def stuck_telemetry(target: Target, scale: Scale) -> Findings:
    """Telemetry streams whose clients send settings without end, and take none of the answers."""
    settings = v2.Settings(client_type=v2.ClientType.PRODUCER)
    settings.publishing.topics.add(name="orders")
    settings.user_agent.hostname = "x" * SETTINGS_BYTES
    command = wire.TelemetryCommand(settings=settings).SerializeToString()

    async def pour(channel: Any, number: int) -> None:
        call = _telemetry(channel, f"stuck-{number}")
        with contextlib.suppress(grpc.RpcError, TimeoutError, *BROKEN_OFF):
            async with asyncio.timeout(5):
                for _ in range(scale.many * 5):
                    await call.write(command)
        call.cancel()

    async with open_async_channel(target.gateway.address) as crowd:
        pouring = [asyncio.create_task(pour(crowd, number)) for number in range(scale.many // 4)]
        found = await _routed(target)
        await asyncio.gather(*pouring)
    return found


async def unread_receives(target: Target, scale: Scale) -> Findings:
    """Receives that ask for all there is, and whose answers nobody takes."""
    ask = wire.ReceiveMessageRequest(
        group=v2.Resource(name="unread"),
        message_queue=v2.MessageQueue(topic=v2.Resource(name="orders"), broker=v2.Broker(name="broker-a")),
        filter_expression=v2.FilterExpression(type=v2.FilterType.TAG, expression="*"),
        batch_size=32,
    )
    ask.invisible_duration.FromSeconds(10)
    ask.long_polling_timeout.FromSeconds(5)
    content = ask.SerializeToString()
    async with open_async_channel(target.gateway.address) as crowd:
        receive = crowd.unary_stream(SERVICE + "ReceiveMessage")
        calls = [receive(content, metadata=(("x-mq-client-id", f"unread-{n}"),)) for n in range(scale.many * 5)]
        try:
            return await _routed(target)
        finally:
            for call in calls:
                call.cancel()


def _telemetry(channel: Any, client_id: str) -> Any:
    return channel.stream_stream(SERVICE + "Telemetry")(metadata=(("x-mq-client-id", client_id),))


async def _routed(target: Target) -> Findings:
    """What is wrong with the answer that another client gets meanwhile."""
    async with open_async_channel(target.gateway.address) as other:
        metadata = (("x-mq-client-id", "bystander"),)
        try:
            content = await other.unary_unary(SERVICE + "QueryRoute")(ROUTE, timeout=ANSWERED_S, metadata=metadata)
        except grpc.RpcError as error:
            return [f"a bystander's QueryRoute: {error.code()}"]  # type: ignore[attr-defined]
    code = wire.QueryRouteResponse.FromString(content).status.code
    return [] if code == v2.Code.OK else [f"a bystander's QueryRoute: {v2.Code.Name(code)}"]
