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


class NeverTaken:
    """The context of a call whose client takes nothing, not even the head of an answer."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return METADATA

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def time_remaining(self) -> None:
        return None

    async def send_initial_metadata(self, _: Any) -> None:
        await self.write(None)

    async def write(self, _: Any) -> None:
        self.waits.set()
        await asyncio.Event().wait()


def test_a_client_that_goes_before_its_stream_has_begun_leaves_no_stream() -> None:
    async def run() -> None:
        clients, context = Clients(), NeverTaken()
        caller = service.caller_of(context, None)
        call = asyncio.create_task(telemetry_of(clients).serve(caller, None, context))  # type: ignore[arg-type]
        await context.waits.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        client = clients.get("stuck")
        assert client is None or client.streams == []

    asyncio.run(run())


def test_of_a_producer_that_comes_back_the_topics_are_known() -> None:
    async def run() -> None:
        clients, context = Clients(), NeverTaken()
        context.send_initial_metadata = lambda _: asyncio.sleep(0)  # type: ignore[method-assign]
        caller = service.caller_of(context, None)
        clients.publishes(clients.heard(caller), "topic")
        told: list[list[str]] = []
        streams = Telemetry(clients, None, lambda client: told.append([*client.topics]), lambda _: None)  # type: ignore[arg-type]
        call = asyncio.create_task(streams.serve(caller, None, context))  # type: ignore[arg-type]
        await until(lambda: told)
        assert told == [["topic"]]
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    asyncio.run(run())


def test_one_client_too_many_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.gateway.v2.clients.CLIENTS_MAX", 0)

    async def run() -> None:
        async with (
            serving(Service(None), telemetry_of(Clients())) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            call = channel.stream_stream(PATH + "Telemetry")(metadata=METADATA)
            answer = wire.TelemetryCommand.FromString(await call.read())
            assert answer.status.code == v2.Code.TOO_MANY_REQUESTS
            assert await read_to_its_end(call) is grpc.StatusCode.OK

    asyncio.run(run())


def test_of_a_client_that_takes_no_answer_no_second_command_is_read() -> None:
    class TakesTheHead(NeverTaken):
        async def send_initial_metadata(self, _: Any) -> None:
            """It is taken."""

    async def run() -> None:
        clients, context, read = Clients(), TakesTheHead(), 0

        async def pour() -> AsyncIterator[wire.TelemetryCommand]:
            nonlocal read
            while True:
                read += 1
                yield wire.TelemetryCommand(settings=v2.Settings(publishing=v2.Publishing()))

        call = asyncio.create_task(telemetry_of(clients).serve(service.caller_of(context, None), pour(), context))
        await context.waits.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert read == 1

    asyncio.run(run())


@pytest.mark.parametrize("name", ["ReceiveMessage", "Telemetry"])
def test_a_refusal_that_is_not_taken_ends(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(telemetry, "TAKEN_S", 0.1)
    monkeypatch.setattr(service, "TAKEN_S", 0.1)
    monkeypatch.setattr(service, "STREAMS_MAX", 0)

    async def run() -> None:
        served = Service(None)
        if name == "Telemetry":
            call = served._telemetry(telemetry_of(Clients()))
        else:
            call = served._streaming(name, None, wire.ReceiveMessageRequest, wire.ReceiveMessageResponse)
        async with asyncio.timeout(OVER_S):
            await call(b"", NeverTaken())

    asyncio.run(run())


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
