"""One connection, frame by frame: what a client does wrongly, and what it does too much of."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

import pytest

from penstock.gateway.http2 import call as calling
from penstock.gateway.http2 import limits
from penstock.gateway.http2.frames import (
    END_HEADERS,
    END_STREAM,
    MESSAGE_HEAD,
    PADDED,
    PREFACE,
    WITH_PRIORITY,
    Code,
    Setting,
    Status,
    Type,
    frame,
    rst_stream,
    settings,
    window_update,
)
from penstock.runtime import turns
from tests.support.http2 import (
    ECHO,
    HANG,
    STREAM,
    WAIT_S,
    Hanging,
    Peer,
    Running,
    message_of,
    serving,
    setting,
    with_peer,
)
from tests.support.waiting import eventually

# What is wrong with a call ends the call.


@pytest.mark.parametrize(
    ("content", "ends", "status", "said"),
    [
        (b"", True, Status.INTERNAL, "without its request"),
        (message_of(b"abc")[:-1], True, Status.INTERNAL, "within a message"),
        (message_of(b"a") + message_of(b"b"), True, Status.UNIMPLEMENTED, "second request"),
        (MESSAGE_HEAD.pack(0, 1 << 31), False, Status.RESOURCE_EXHAUSTED, "at most"),
    ],
)
def test_a_request_that_is_none_is_refused(content: bytes, ends: bool, status: Status, said: str) -> None:
    async def body(it: Running, peer: Peer) -> None:
        answer = await peer.begin(1).data(1, content, ends=ends).answer(1)
        assert answer.status == status
        assert said in answer.fields["grpc-message"]
        assert (await peer.ask(3, b"next").answer(3)).messages == [b"next"]
        assert it.server.held == 0

    with_peer(body)


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        ("/test/Missing", {}, {"grpc-status": "12"}),
        (ECHO, {"grpc_timeout": "0n"}, {"grpc-status": "4"}),
        (ECHO, {"__method": "GET"}, {":status": "405"}),
        (ECHO, {"content_type": "text/plain"}, {":status": "415"}),
        (ECHO, {"content_type": None}, {":status": "415"}),
        (ECHO, {"content_type": "application/grpc-web"}, {":status": "415"}),
        (ECHO, {"grpc_timeout": "soon"}, {"grpc-status": "13"}),
        (ECHO, {"grpc_timeout": "123456789S"}, {"grpc-status": "13"}),
    ],
)
def test_a_call_that_cannot_be_is_refused(path: str, fields: dict[str, str | None], expected: dict[str, str]) -> None:
    async def body(_: Running, peer: Peer) -> None:
        answer = await peer.ask(1, b"", path, **fields).answer(1)
        assert expected.items() <= answer.fields.items()
        assert (await peer.ask(3, b"next").answer(3)).messages == [b"next"]

    with_peer(body)


@pytest.mark.parametrize("kind", ["application/grpc+proto", "application/grpc;charset=utf-8", "Application/gRPC"])
def test_a_content_type_is_grpc_however_it_is_written(kind: str) -> None:
    async def body(_: Running, peer: Peer) -> None:
        assert (await peer.ask(1, b"content", content_type=kind).answer(1)).messages == [b"content"]

    with_peer(body)


@pytest.mark.parametrize(
    "fields",
    [
        [(":method", "POST"), (":scheme", "http")],
        [(":method", "POST"), (":scheme", "http"), (":path", "")],
        [(":method", "POST"), (":scheme", "http"), (":path", ECHO), (":path", ECHO)],
        [(":method", "POST"), (":scheme", "http"), (":path", ECHO), (":status", "200")],
        [(":method", "POST"), (":scheme", "http"), ("te", "trailers"), (":path", ECHO)],
        [(":method", "POST"), (":scheme", "http"), (":path", ECHO), ("Te", "trailers")],
        [(":method", "POST"), (":scheme", "http"), (":path", ECHO), ("te", "gzip")],
        [(":method", "POST"), (":scheme", "http"), (":path", ECHO), ("connection", "close")],
        [(":method", "POST"), (":scheme", "http"), (":path", ECHO), ("a b", "")],
    ],
)
def test_header_fields_that_http2_forbids_break_the_call_off(fields: list[tuple[str, str]]) -> None:
    async def body(_: Running, peer: Peer) -> None:
        peer.send(frame(Type.HEADERS, END_HEADERS | END_STREAM, 1, peer._encoder.encode(fields)))
        assert (await peer.answer(1)).fields == {"rst": str(int(Code.PROTOCOL_ERROR))}
        assert (await peer.ask(3, b"next").answer(3)).messages == [b"next"]

    with_peer(body)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (frame(Type.DATA, 0, 1, b"late"), Code.STREAM_CLOSED),
        (window_update(1, 0), Code.PROTOCOL_ERROR),
        (window_update(1, 0x7FFF_FFFF), Code.FLOW_CONTROL_ERROR),
        (frame(Type.PRIORITY, 0, 1, b"\0\0\0\1\0"), Code.PROTOCOL_ERROR),
        (frame(Type.PRIORITY, 0, 1, b"\0\0\0"), Code.FRAME_SIZE_ERROR),
    ],
)
def test_a_frame_that_is_wrong_for_its_call_breaks_it_off(wrong: bytes, code: Code) -> None:
    hanging = Hanging()

    async def body(_: Running, peer: Peer) -> None:
        answer = await peer.ask(1, b"", HANG).send(wrong).answer(1)
        assert answer.fields == {"rst": str(int(code))}
        assert (await peer.ask(3, b"next").answer(3)).messages == [b"next"]

    with_peer(body, methods=hanging.methods)


@pytest.mark.parametrize("declared", ["0", "7", "9", "", "-8", "8 8", "1" * 19])
def test_a_length_that_is_not_the_contents_breaks_the_call_off(declared: str) -> None:
    async def body(_: Running, peer: Peer) -> None:
        assert len(message_of(b"abc")) == 8
        assert (await peer.ask(1, b"abc", content_length="8").answer(1)).messages == [b"abc"]
        answer = await peer.ask(3, b"abc", content_length=declared).answer(3)
        assert answer.fields == {"rst": str(int(Code.PROTOCOL_ERROR))}
        assert (await peer.ask(5, b"next").answer(5)).messages == [b"next"]

    with_peer(body)


@pytest.mark.parametrize("name", [":path", ":status", "A", "a b", "", "connection"])
def test_trailers_of_a_client_that_http2_forbids_break_the_call_off(name: str) -> None:
    async def body(_: Running, peer: Peer) -> None:
        for stream, each in ((1, "x-fine"), (3, name)):
            block = peer.begin(stream).data(stream, message_of(b"abc"), ends=False)._encoder.encode([(each, "")])
            peer.send(frame(Type.HEADERS, END_HEADERS | END_STREAM, stream, block))
        assert (await peer.answer(1)).messages == [b"abc"]
        assert (await peer.answer(3)).fields == {"rst": str(int(Code.PROTOCOL_ERROR))}
        assert (await peer.ask(5, b"next").answer(5)).messages == [b"next"]

    with_peer(body)


def test_trailers_of_a_client_that_come_too_late_harm_no_other_call() -> None:
    async def body(_: Running, peer: Peer) -> None:
        await peer.ask(1, b"one").answer(1)
        peer.send(frame(Type.HEADERS, END_HEADERS | END_STREAM, 1, peer._encoder.encode([("x", "y")])))
        assert (await peer.answer(1)).fields == {"rst": str(int(Code.STREAM_CLOSED))}
        assert (await peer.ask(3, b"next").answer(3)).messages == [b"next"]

    with_peer(body)


def test_a_method_that_is_not_there_is_refused_before_the_client_has_sent_all() -> None:
    async def body(_: Running, peer: Peer) -> None:
        assert (await peer.begin(1, "/grpc.reflection/Info").answer(1)).status == Status.UNIMPLEMENTED

    with_peer(body)


# What is wrong with a connection ends the connection.


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (b"\x00\x40\x01" + bytes(6), Code.FRAME_SIZE_ERROR),
        (frame(Type.DATA, 0, 0, b"x"), Code.PROTOCOL_ERROR),
        (frame(Type.DATA, 0, 5, b"x"), Code.PROTOCOL_ERROR),
        (frame(Type.DATA, PADDED, 1, b"\x09"), Code.PROTOCOL_ERROR),
        (frame(Type.HEADERS, END_HEADERS, 2, b"\x82"), Code.PROTOCOL_ERROR),
        (frame(Type.HEADERS, END_HEADERS, 5, b"\xfe"), Code.COMPRESSION_ERROR),
        (frame(Type.HEADERS, END_HEADERS | WITH_PRIORITY, 5, b"\0"), Code.FRAME_SIZE_ERROR),
        (frame(Type.HEADERS, END_HEADERS | WITH_PRIORITY, 5, b"\0\0\0\5\0\x82"), Code.PROTOCOL_ERROR),
        (frame(Type.HEADERS, 0, 5, b"\x82") + frame(Type.PING, 0, 0, bytes(8)), Code.PROTOCOL_ERROR),
        (frame(Type.HEADERS, 0, 5, b"\x82") + frame(Type.CONTINUATION, 0, 7, b""), Code.PROTOCOL_ERROR),
        (frame(Type.HEADERS, 0, 5, b"\x82") + frame(Type.CONTINUATION, 0, 5, b"") * 17, Code.ENHANCE_YOUR_CALM),
        (frame(Type.HEADERS, 0, 5, bytes(10_000)) + frame(Type.CONTINUATION, 0, 5, bytes(10_000)), 11),
        (frame(Type.CONTINUATION, END_HEADERS, 5, b""), Code.PROTOCOL_ERROR),
        (frame(Type.PRIORITY, 0, 0, bytes(5)), Code.PROTOCOL_ERROR),
        (frame(Type.RST_STREAM, 0, 1, bytes(3)), Code.FRAME_SIZE_ERROR),
        (rst_stream(0, Code.CANCEL), Code.PROTOCOL_ERROR),
        (rst_stream(9, Code.CANCEL), Code.PROTOCOL_ERROR),
        (frame(Type.SETTINGS, 0, 1), Code.PROTOCOL_ERROR),
        (frame(Type.SETTINGS, 0, 0, bytes(5)), Code.FRAME_SIZE_ERROR),
        (frame(Type.SETTINGS, 1, 0, bytes(6)), Code.FRAME_SIZE_ERROR),
        (frame(Type.SETTINGS, 0, 0, setting(4, 1 << 31)), Code.FLOW_CONTROL_ERROR),
        (frame(Type.SETTINGS, 0, 0, setting(5, 100)), Code.PROTOCOL_ERROR),
        (frame(Type.SETTINGS, 0, 0, setting(2, 2)), Code.PROTOCOL_ERROR),
        (frame(Type.PUSH_PROMISE, 0, 1, bytes(4)), Code.PROTOCOL_ERROR),
        (frame(Type.PING, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
        (frame(Type.PING, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
        (frame(Type.GOAWAY, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
        (window_update(0, 0), Code.PROTOCOL_ERROR),
        (window_update(0, 0x7FFF_FFFF), Code.FLOW_CONTROL_ERROR),
        (frame(Type.WINDOW_UPDATE, 0, 0, bytes(3)), Code.FRAME_SIZE_ERROR),
        (window_update(9, 1), Code.PROTOCOL_ERROR),
    ],
)
def test_a_frame_that_is_wrong_for_its_connection_ends_it_and_its_calls_alone(wrong: bytes, code: Code) -> None:
    hanging = Hanging()

    async def body(it: Running, peer: Peer) -> None:
        async with it.peer() as other:
            other.ask(1, b"", HANG)
            peer.ask(1, b"", HANG)
            await eventually(lambda: hanging.began == 2, WAIT_S, "both calls")
            assert (await peer.send(wrong).goodbye()).code == code
            await eventually(lambda: hanging.cancelled == 1, WAIT_S, "the one of this connection is cancelled")
            assert (await other.ask(3, b"next").answer(3)).messages == [b"next"]
            assert hanging.cancelled == 1

    with_peer(body, methods=hanging.methods)


def test_a_call_on_a_stream_that_was_passed_over_ends_the_connection() -> None:
    async def body(_: Running, peer: Peer) -> None:
        await peer.ask(5, b"one").answer(5)
        assert (await peer.ask(3, b"two").goodbye()).code == Code.PROTOCOL_ERROR

    with_peer(body)


def test_settings_by_which_the_window_of_a_call_would_be_too_wide_end_the_connection() -> None:
    hanging = Hanging()

    async def body(_: Running, peer: Peer) -> None:
        peer.ask(1, b"", HANG).send(window_update(1, (1 << 30) - 1))
        assert (await peer.ask(3, b"next").answer(3)).messages == [b"next"]
        peer.send(frame(Type.SETTINGS, 0, 0, setting(4, 1 << 30)))
        assert (await peer.ask(5, b"next").answer(5)).messages == [b"next"]
        peer.send(frame(Type.SETTINGS, 0, 0, setting(4, (1 << 30) + 1)))
        assert (await peer.goodbye()).code == Code.FLOW_CONTROL_ERROR

    with_peer(body, methods=hanging.methods)


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", PREFACE + frame(Type.PING, 0, 0, bytes(8))])
def test_what_does_not_begin_as_http2_ends(first: bytes) -> None:
    async def scenario() -> None:
        async with serving() as it:
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
            writer.write(first)
            with contextlib.suppress(ConnectionError):
                assert b"penstock" not in await reader.read()
            writer.close()

    asyncio.run(scenario())


# What is too much.


def test_streams_that_are_broken_off_without_end_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRANKS_PER_S", 0.0)
    hanging = Hanging()

    async def body(_: Running, peer: Peer) -> None:
        for number in range(limits.PRANKS_MAX + 1):
            peer.ask(2 * number + 1, b"", HANG).send(rst_stream(2 * number + 1, Code.CANCEL))
        assert (await peer.goodbye()).code == Code.ENHANCE_YOUR_CALM
        await eventually(lambda: hanging.began == hanging.cancelled, WAIT_S, "none goes on")

    with_peer(body, methods=hanging.methods)


@pytest.mark.parametrize("wrong", [lambda n: window_update(n, 0), lambda n: frame(Type.DATA, END_STREAM, n, b"late")])
def test_streams_that_the_server_is_made_to_break_off_end_the_connection(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[[int], bytes]
) -> None:
    monkeypatch.setattr(limits, "PRANKS_PER_S", 0.0)
    hanging = Hanging()

    async def body(_: Running, peer: Peer) -> None:
        for number in range(limits.PRANKS_MAX + 1):
            peer.ask(2 * number + 1, b"", HANG).send(wrong(2 * number + 1))
        assert (await peer.goodbye()).code == Code.ENHANCE_YOUR_CALM

    with_peer(body, methods=hanging.methods)


def test_who_breaks_off_at_the_deadline_is_no_nuisance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRANKS_MAX", 5)  # one is the client's settings
    monkeypatch.setattr(limits, "PRANKS_PER_S", 0.0)
    monkeypatch.setattr(calling, "NEW_S", 0.0)
    hanging = Hanging()

    async def body(_: Running, peer: Peer) -> None:
        streams = range(1, 200, 2)
        for stream in streams:
            peer.ask(stream, b"", HANG)
        await eventually(lambda: hanging.began == len(streams), WAIT_S, "all calls")
        for stream in streams:
            peer.send(rst_stream(stream, Code.CANCEL))
        await eventually(lambda: hanging.cancelled == len(streams), WAIT_S, "all are cancelled")
        assert (await peer.ask(1001, b"next").answer(1001)).messages == [b"next"]

    with_peer(body, methods=hanging.methods)


def test_a_client_that_breaks_off_now_and_then_is_no_nuisance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRANKS_MAX", 10)
    monkeypatch.setattr(limits, "PRANKS_PER_S", 1e9)

    async def body(_: Running, peer: Peer) -> None:
        for number in range(100):
            peer.ask(2 * number + 1, b"").send(rst_stream(2 * number + 1, Code.CANCEL))
            await peer.ping()

    with_peer(body)


def test_settings_without_end_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRANKS_PER_S", 0.0)

    async def body(_: Running, peer: Peer) -> None:
        peer.send(settings({Setting.INITIAL_WINDOW_SIZE: 1}) * (limits.PRANKS_MAX + 1))
        assert (await peer.goodbye()).code == Code.ENHANCE_YOUR_CALM

    with_peer(body)


def test_a_call_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CALLS_MAX", 2)
    hanging = Hanging()

    async def body(_: Running, peer: Peer) -> None:
        for stream in (1, 3, 5):
            peer.ask(stream, b"", HANG)
        assert (await peer.answer(5)).fields == {"rst": str(int(Code.REFUSED_STREAM))}
        peer.send(rst_stream(1, Code.CANCEL))
        assert (await peer.ask(7, b"now").answer(7)).messages == [b"now"]

    with_peer(body, methods=hanging.methods)


@pytest.mark.parametrize("name", ["connection", "server"])
def test_requests_that_are_never_whole_have_an_end(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    async def body(it: Running, peer: Peer) -> None:
        if name == "connection":
            monkeypatch.setattr(limits, "HELD_BYTES_MAX", 100_000)
        else:
            it.server.held_max = 100_000
        part = message_of(bytes(40_000))[:-1]
        for stream in (1, 3, 5):
            peer.begin(stream).data(stream, part, ends=False)
        ended = 5 if name == "connection" else 1  # of all connections, the largest
        answer = await peer.answer(ended)
        assert answer.status == Status.RESOURCE_EXHAUSTED
        assert it.server.held < 100_000
        for stream in {1, 3, 5} - {ended}:
            peer.data(stream, b"\0")
            assert (await peer.answer(stream)).status == Status.OK
        assert it.server.held == 0

    with_peer(body)


def test_others_have_their_turn_while_one_client_floods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)  # a turn is over at once
    taken: list[int] = []
    flood = frame(Type.PRIORITY, 0, 1, b"\0\0\0\3\0") * 20_000

    async def body(it: Running, peer: Peer) -> None:
        async with it.peer() as other:
            connection = next(iter(it.server.connections))
            monkeypatch.setattr(connection, "_on_frame", (*connection._on_frame[:2], lambda *_: taken.append(1)))
            peer.send(flood)
            await eventually(lambda: taken, WAIT_S, "the flood has begun")
            assert (await other.ask(1, b"meanwhile").answer(1)).messages == [b"meanwhile"]
            assert len(taken) < 20_000
            await eventually(lambda: len(taken) == 20_000, WAIT_S, "all is taken, in the end")

    with_peer(body)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_client_sends_others_are_answered(seed: int) -> None:
    print(f"seed {seed}")
    chosen = random.Random(seed)

    async def body(it: Running, other: Peer) -> None:
        for turn in range(40):
            async with it.peer() as peer:
                for _ in range(chosen.randrange(1, 30)):
                    stream = chosen.choice([0, 1, 3, 5, 7, 2, 0x7FFF_FFFF])
                    kind = chosen.choice([*Type, 77])
                    content = chosen.choice([peer.block(), peer.block(STREAM), message_of(b"x"), b"", bytes(4)])
                    if chosen.random() < 0.3:
                        content = chosen.randbytes(chosen.randrange(20))
                    peer.send(frame(kind, chosen.choice([0, 1, 4, 5, 8, 0x2D, 255]), stream, content))
                    if chosen.random() < 0.2:
                        await asyncio.sleep(0)
            stream = 2 * turn + 1
            assert (await other.ask(stream, b"%d" % turn).answer(stream)).messages == [b"%d" % turn]
        await eventually(lambda: len(it.server.connections) == 1, WAIT_S, "the others are gone")
        assert it.server.held == sum(each.held for each in it.server.connections) == 0

    with_peer(body)
