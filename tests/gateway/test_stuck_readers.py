"""A client that reads nothing of its answers loses its stream, and what was kept for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock.gateway.v2 import service, telemetry
from penstock.gateway.v2.clients import COMMANDS_MAX, Clients
from penstock.gateway.v2.service import Service
from penstock.gateway.v2.telemetry import Telemetry
from penstock.gateway.v2.wire import definition_pb2 as v2
from penstock.gateway.v2.wire import service_pb2 as wire

PATH = "/apache.rocketmq.v2.MessagingService/"
METADATA = (("x-mq-client-id", "stuck"),)
LARGE = 900_000
OVER_S = 30.0


@contextlib.asynccontextmanager
async def serving(served: Service, streams: Telemetry, **streaming: Any) -> AsyncIterator[str]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((served.handlers({}, streaming, streams),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def telemetry_of(clients: Clients) -> Telemetry:
    return Telemetry(clients, None, lambda _: None, lambda _: None)  # type: ignore[arg-type]  # groups: of consumers


async def read_to_its_end(call: Any) -> grpc.StatusCode:
    async with asyncio.timeout(OVER_S):
        with contextlib.suppress(grpc.RpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        code: grpc.StatusCode = await call.code()
        return code


async def until(condition: Any) -> None:
    async with asyncio.timeout(OVER_S):
        while not condition():  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.01)


def test_a_telemetry_stream_whose_client_reads_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "TAKEN_S", 0.2)

    async def run() -> None:
        clients = Clients()
        served = Service(None)
        async with (
            serving(served, telemetry_of(clients)) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            call = channel.stream_stream(PATH + "Telemetry")(metadata=METADATA)
            settings = v2.Settings(client_type=v2.ClientType.PRODUCER)
            settings.publishing.topics.add(name="topic")
            settings.user_agent.hostname = "x" * LARGE
            command = wire.TelemetryCommand(settings=settings).SerializeToString()

            async def pour() -> None:
                for _ in range(COMMANDS_MAX // 2):
                    await call.write(command)

            pouring = asyncio.create_task(pour())
            await until(lambda: served._streams == 1)
            await until(lambda: served._streams == 0)
            client = clients.get("stuck")
            assert client is not None
            assert client.streams == []
            code, _ = await asyncio.gather(read_to_its_end(call), pouring, return_exceptions=True)
            assert code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INTERNAL)  # the latter of a write

    asyncio.run(run())


def test_a_receive_whose_client_reads_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "caller_of", partial(service.caller_of, default_s=0.5))
    over = asyncio.Event()

    async def receive(caller: Any, request: wire.ReceiveMessageRequest) -> AsyncGenerator[Any, None]:
        try:
            while True:
                yield wire.ReceiveMessageResponse(message=v2.Message(body=bytes(LARGE)))
        finally:
            over.set()

    async def run() -> None:
        async with (
            serving(Service(None), telemetry_of(Clients()), ReceiveMessage=receive) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            call = channel.unary_stream(PATH + "ReceiveMessage")(b"", metadata=METADATA)
            async with asyncio.timeout(OVER_S):
                await over.wait()
            assert await read_to_its_end(call) is grpc.StatusCode.DEADLINE_EXCEEDED

    asyncio.run(run())
