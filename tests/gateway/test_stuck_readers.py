"""A client that reads nothing of its answers loses its stream, and what was kept for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from penstock.gateway.http2 import server
from penstock.gateway.http2.frames import Code, Setting, settings
from penstock.gateway.v2 import callers, service, telemetry
from penstock.gateway.v2.clients import Clients
from penstock.gateway.v2.service import SERVICE, Service
from penstock.gateway.v2.telemetry import Telemetry
from penstock.gateway.v2.wire import definition_pb2 as v2
from penstock.gateway.v2.wire import service_pb2 as wire
from tests.support.http2 import WAIT_S, WIDE, message_of, serving
from tests.support.waiting import eventually

RECEIVE, TELEMETRY = (f"/{SERVICE.full_name}/{name}" for name in ("ReceiveMessage", "Telemetry"))
NARROW = settings({Setting.INITIAL_WINDOW_SIZE: 1})
"""Of a client that takes a byte of each answer."""
LARGE = 900_000


def telemetry_of(clients: Clients, on_producer: Any = lambda _: None) -> Telemetry:
    return Telemetry(clients, None, on_producer, lambda _: None)  # type: ignore[arg-type]  # groups: of consumers


def settings_of(size: int = 0) -> bytes:
    found = v2.Settings(client_type=v2.ClientType.PRODUCER)
    found.publishing.topics.add(name="topic")
    found.user_agent.hostname = "x" * size
    return message_of(wire.TelemetryCommand(settings=found).SerializeToString())


def test_a_stream_ends_with_its_connection() -> None:
    async def run() -> None:
        clients = Clients()
        served = Service(None)
        async with serving(served.methods({}, {}, {}, {}, telemetry_of(clients))) as it:
            async with it.peer() as peer:
                peer.begin(1, TELEMETRY)
                await eventually(lambda: served._streams == 1, WAIT_S, "it has begun")
            await eventually(lambda: served._streams == 0, WAIT_S, "it has ended")
        client = clients.get("client")
        assert client is not None
        assert client.streams == []

    asyncio.run(run())


def test_streams_of_connections_that_end_together_end_without_a_word(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_CANCELLED_AT_ONCE", 1)

    async def run() -> None:
        served = Service(None)
        streams = served.methods({}, {}, {}, {}, telemetry_of(Clients()))
        async with serving(streams) as it, contextlib.AsyncExitStack() as peers:
            for number in range(20):
                peer = await peers.enter_async_context(it.peer())
                peer.begin(1, TELEMETRY, **{"x-mq-client-id": f"client-{number}"})
            await eventually(lambda: served._streams == 20, WAIT_S, "they have begun")
            for connection in it.server.connections:
                connection.abort("all end")
            await eventually(lambda: served._streams == 0, WAIT_S, "they have ended")
        assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == []

    asyncio.run(run())


def test_of_a_producer_that_comes_back_the_topics_are_known() -> None:
    async def run() -> None:
        clients = Clients()
        told: list[list[str]] = []
        streams = telemetry_of(clients, lambda client: told.append([*client.topics]))
        async with serving(Service(None).methods({}, {}, {}, {}, streams)) as it, it.peer() as peer:
            peer.begin(1, TELEMETRY).data(1, settings_of(), ends=False)
            await eventually(lambda: ["topic"] in told, WAIT_S, "its topics")
            told.clear()
            peer.begin(3, TELEMETRY)
            await eventually(lambda: told == [["topic"]], WAIT_S, "they are known when it comes back")

    asyncio.run(run())


@pytest.mark.parametrize("name", ["penstock.gateway.v2.clients.CLIENTS_MAX", "penstock.gateway.v2.service.STREAMS_MAX"])
def test_one_client_or_stream_too_many_is_told_so(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(name, 0)

    async def run() -> None:
        async with serving(Service(None).methods({}, {}, {}, {}, telemetry_of(Clients()))) as it, it.peer() as peer:
            answer = await peer.begin(1, TELEMETRY).answer(1)
            (said,) = map(wire.TelemetryCommand.FromString, answer.messages)
            assert said.status.code == v2.Code.TOO_MANY_REQUESTS
            assert answer.status == 0

    asyncio.run(run())


def test_of_a_client_that_takes_no_answer_no_second_command_is_read() -> None:
    async def run() -> None:
        served = Service(None)
        async with serving(served.methods({}, {}, {}, {}, telemetry_of(Clients()))) as it, it.peer(NARROW) as peer:
            peer.begin(1, TELEMETRY)
            for _ in range(10):
                peer.data(1, settings_of(), ends=False)
            await peer.ping()
            (call,) = next(iter(it.server.connections)).calls.values()
            await eventually(lambda: call.pending, WAIT_S, "an answer waits")
            await peer.ping()
            assert len(call.messages) == 9

    asyncio.run(run())


def test_a_telemetry_stream_whose_client_reads_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "TAKEN_S", 0.05)

    async def run() -> None:
        clients = Clients()
        served = Service(None)
        async with serving(served.methods({}, {}, {}, {}, telemetry_of(clients))) as it, it.peer(NARROW) as peer:
            peer.begin(1, TELEMETRY).data(1, settings_of(LARGE), ends=False)
            answer = await peer.answer(1)
            assert answer.fields["rst"] == str(int(Code.CANCEL))
            await eventually(lambda: served._streams == 0, WAIT_S, "it has ended")
            assert it.server.held == 0
        client = clients.get("client")
        assert client is not None
        assert client.streams == []

    asyncio.run(run())


def test_a_refusal_that_is_not_taken_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TAKEN_S", 0.05)

    async def run() -> None:
        methods = Service(None).methods({}, {}, {}, {}, telemetry_of(Clients()))
        async with serving(methods) as it, it.peer(NARROW) as peer:
            peer.ask(1, b"", RECEIVE)
            (call,) = [*(await begun(it)).values()]
            await eventually(lambda: call._task is not None and call._task.done(), WAIT_S, "nobody waits for it")
            peer.writer.close()
            await eventually(lambda: not it.server.connections, WAIT_S, "the client goes")

    async def begun(it: Any) -> Any:
        return await eventually(
            lambda: it.server.connections and next(iter(it.server.connections)).calls, WAIT_S, "the call"
        )

    asyncio.run(run())


def test_a_receive_whose_client_reads_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "DEADLINE_S", 0.2)
    over = asyncio.Event()

    async def receive(caller: Any, request: wire.ReceiveMessageRequest) -> AsyncGenerator[Any, None]:
        try:
            while True:
                yield wire.ReceiveMessageResponse(message=v2.Message(body=bytes(LARGE)))
        finally:
            over.set()

    async def run() -> None:
        methods = Service(None).methods({}, {}, {}, {"ReceiveMessage": receive}, telemetry_of(Clients()))
        async with serving(methods) as it, it.peer(settings({})) as peer:
            answer = await peer.ask(1, b"", RECEIVE).answer(1)
            assert answer.fields["rst"] == str(int(Code.CANCEL))
            await over.wait()

    asyncio.run(run())


def test_what_is_read_in_time_goes_on() -> None:
    async def receive(caller: Any, request: wire.ReceiveMessageRequest) -> AsyncGenerator[Any, None]:
        for _ in range(20):
            yield wire.ReceiveMessageResponse(message=v2.Message(body=bytes(LARGE)))

    async def run() -> None:
        methods = Service(None).methods({}, {}, {}, {"ReceiveMessage": receive}, telemetry_of(Clients()))
        async with serving(methods) as it, it.peer(WIDE) as peer:
            assert len((await peer.ask(1, b"", RECEIVE).answer(1)).messages) == 20

    asyncio.run(run())
