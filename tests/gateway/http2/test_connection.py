"""One connection, frame by frame: calls, their windows, and their ends."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from penstock.gateway.http2 import call as calling
from penstock.gateway.http2 import limits
from penstock.gateway.http2 import server as serving_module
from penstock.gateway.http2.call import Call, CallOver
from penstock.gateway.http2.frames import (
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    MESSAGE_HEAD,
    PADDED,
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
from penstock.gateway.http2.limits import CALL_WINDOW
from penstock.gateway.http2.method import Method
from tests.support.http2 import (
    HANG,
    WAIT_S,
    Hanging,
    Peer,
    Running,
    message_of,
    messages_of,
    with_peer,
)
from tests.support.waiting import eventually


def test_a_call_is_answered_with_headers_a_message_and_a_status() -> None:
    async def body(_: Running, peer: Peer) -> None:
        for stream in (1, 3, 1001):
            answer = await peer.ask(stream, b"content").answer(stream)
            assert answer.messages == [b"content"]
            assert answer.fields == {
                ":status": "200",
                "content-type": "application/grpc",
                "grpc-accept-encoding": "identity,gzip",
                "grpc-status": "0",
            }

    with_peer(body)


@pytest.mark.parametrize("size", [1, 2, 9, 100])
def test_bytes_may_come_in_any_pieces(size: int) -> None:
    async def body(_: Running, peer: Peer) -> None:
        whole = frame(Type.HEADERS, END_HEADERS, 1, peer.block())
        whole += b"".join(frame(Type.DATA, 0, 1, bytes((each,))) for each in message_of(b"message"))
        whole += frame(99, 0xFF, 0, b"of a kind that nobody knows") + frame(Type.DATA, END_STREAM, 1)
        for at in range(0, len(whole), size):
            peer.send(whole[at : at + size])
            await asyncio.sleep(0)
        assert (await peer.answer(1)).messages == [b"message"]

    with_peer(body)


def test_header_fields_may_come_in_several_frames_with_padding_and_priority() -> None:
    async def body(_: Running, peer: Peer) -> None:
        block = peer.block()
        first = b"\x03" + b"\0\0\0\0\x10" + block[:5] + b"\0\0\0"
        peer.send(frame(Type.HEADERS, PADDED | WITH_PRIORITY, 1, first))
        peer.send(frame(Type.CONTINUATION, 0, 1, block[5:9])).send(frame(Type.CONTINUATION, END_HEADERS, 1, block[9:]))
        peer.send(frame(Type.DATA, END_STREAM | PADDED, 1, b"\x02" + message_of(b"x") + b"\0\0"))
        assert (await peer.answer(1)).messages == [b"x"]

    with_peer(body)


@pytest.mark.parametrize("at_once", [False, True])
def test_many_calls_are_under_way_at_a_time_and_each_has_its_own_answer(at_once: bool) -> None:
    async def later(call: Call) -> None:
        for _ in range(int(call.request) % 7):
            await asyncio.sleep(0)
        call.finish(call.request)

    async def body(_: Running, peer: Peer) -> None:
        streams = range(1, 401, 2)
        for stream in streams:
            peer.ask(stream, b"%d" % stream, "/test/Later")
        found: dict[int, bytes] = {}
        while len(found) < len(streams):
            came = await peer.until(Type.DATA)
            found[came.stream] = messages_of(came.content)[0]
        assert found == {stream: b"%d" % stream for stream in streams}

    with_peer(body, methods={"/test/Later": Method(later, begins_at_once=at_once)})


# Windows.


def test_a_large_request_comes_whole_since_its_window_is_widened() -> None:
    content = random.Random(1).randbytes(3 * CALL_WINDOW)

    async def body(_: Running, peer: Peer) -> None:
        whole, at, room = message_of(content), 0, CALL_WINDOW
        peer.begin(1)
        while at < len(whole):
            part = whole[at : at + min(room, FRAME_BYTES_MAX)]
            at, room = at + len(part), room - len(part)
            peer.send(frame(Type.DATA, END_STREAM if at == len(whole) else 0, 1, part))
            if not room:
                room = int.from_bytes((await peer.until(Type.WINDOW_UPDATE, 1)).content, "big")
        assert (await peer.answer(1)).messages == [content]

    with_peer(body)


def test_the_window_of_a_stream_that_nobody_reads_stays_as_it_is() -> None:
    read = asyncio.Event()

    async def slow(call: Call) -> None:
        await read.wait()
        async for message in call.requests():
            await call.write(b"%d" % len(message))

    async def body(it: Running, peer: Peer) -> None:
        one = message_of(bytes(CALL_WINDOW // 4 - MESSAGE_HEAD.size))
        peer.begin(1, "/test/Slow")
        for _ in range(4):
            peer.data(1, one[:-20], ends=False).data(1, one[-20:], ends=False)
        await peer.ping()
        (call,) = next(iter(it.server.connections)).calls.values()
        assert call.held > CALL_WINDOW - 100
        assert not any(each.kind == Type.WINDOW_UPDATE and each.stream for each in peer.others)
        read.set()
        await peer.until(Type.WINDOW_UPDATE, 1)
        peer.data(1, b"")
        await peer.until(Type.HEADERS, 1)
        assert call.held == it.server.held == 0

    with_peer(body, methods={"/test/Slow": Method(slow, is_streaming=True)})


def test_an_answer_comes_no_faster_than_its_window_lets_it() -> None:
    async def body(_: Running, peer: Peer) -> None:
        peer.ask(1, bytes(range(100)))
        found = bytearray()
        for more in (0, 1, 30, 0, 60, 500):
            if more:
                peer.send(window_update(1, more))
            await peer.ping()
            came = b"".join(each.content for each in peer.others if each.kind == Type.DATA)
            peer.others.clear()
            assert len(came) <= 10 + more
            found += came
        assert messages_of(bytes(found)) == [bytes(range(100))]

    with_peer(body, settings({Setting.INITIAL_WINDOW_SIZE: 10}))


def test_a_setting_widens_and_narrows_the_windows_of_calls_under_way() -> None:
    async def body(_: Running, peer: Peer) -> None:
        async def came() -> int:
            await peer.ping()
            size = sum(len(each.content) for each in peer.others if each.kind == Type.DATA)
            peer.others.clear()
            return size

        peer.ask(1, bytes(995))
        assert await came() == 100
        peer.send(settings({Setting.INITIAL_WINDOW_SIZE: 150}))
        assert await came() == 50
        peer.send(settings({Setting.INITIAL_WINDOW_SIZE: 20}))  # 130 less than nothing
        peer.send(window_update(1, 130))
        assert await came() == 0
        peer.send(window_update(1, 7))
        assert await came() == 7
        peer.send(window_update(1, 843))
        assert await came() == 843

    with_peer(body, settings({Setting.INITIAL_WINDOW_SIZE: 100}))


def test_who_sends_more_of_a_call_than_its_window_lets_it_loses_the_call() -> None:
    hanging = Hanging()
    methods = {HANG: Method(hanging.answer, is_streaming=True)}

    async def body(it: Running, peer: Peer) -> None:
        one = message_of(bytes(CALL_WINDOW // 4))
        peer.begin(1, HANG)
        for _ in range(4):
            peer.data(1, one, ends=False)
        assert (await peer.answer(1)).fields == {"rst": str(int(Code.FLOW_CONTROL_ERROR))}
        assert it.server.held == 0

    with_peer(body, methods=methods)


def test_padding_is_given_back_too() -> None:
    hanging = Hanging()

    async def body(_: Running, peer: Peer) -> None:
        peer.begin(1, HANG)
        for _ in range(CALL_WINDOW // 2 // 256):
            peer.send(frame(Type.DATA, PADDED, 1, b"\xff" + bytes(255)))
        assert int.from_bytes((await peer.until(Type.WINDOW_UPDATE, 1)).content, "big") == CALL_WINDOW // 2

    with_peer(body, methods=hanging.methods)


def test_answers_that_nobody_takes_are_counted_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_module, "LOOK_S", 0.01)
    monkeypatch.setattr(calling, "TAKEN_S", 0.05)

    monkeypatch.setattr(limits, "HELD_BYTES_MAX", 100_000)

    async def long(call: Call) -> None:
        call.finish(bytes(40_000))

    async def body(it: Running, peer: Peer) -> None:
        for stream in (1, 3, 5):
            peer.ask(stream, b"", "/test/Long", grpc_timeout="99999999H")
        assert (await peer.answer(5)).fields["rst"] == str(int(Code.CANCEL))
        for stream in (1, 3):
            assert (await peer.answer(stream)).fields["rst"] == str(int(Code.CANCEL))
        assert it.server.held == 0

    with_peer(body, settings({Setting.INITIAL_WINDOW_SIZE: 1}), {"/test/Long": Method(long)})


def test_a_request_that_is_never_whole_ends_whatever_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_module, "LOOK_S", 0.01)
    monkeypatch.setattr(calling, "UNARY_S", 0.05)

    async def body(_: Running, peer: Peer) -> None:
        answer = await peer.begin(1, grpc_timeout="99999999H").answer(1)
        assert answer.status == Status.DEADLINE_EXCEEDED

    with_peer(body)


def test_all_answers_share_the_connections_window_and_none_is_forgotten() -> None:
    async def body(_: Running, peer: Peer) -> None:
        streams = range(1, 20, 2)
        for stream in streams:
            peer.ask(stream, bytes(20_000))
        found: dict[int, int] = dict.fromkeys(streams, 0)
        ended: set[int] = set()
        sent = 0
        while len(ended) < len(streams):
            came = await peer.next()
            if came.kind == Type.DATA:
                found[came.stream] += len(came.content)
                sent += len(came.content)
                assert sent <= 65_535 + 10_000 * 14
                if sent % 10_000 < len(came.content):
                    peer.send(window_update(0, 10_000))
            elif came.kind == Type.HEADERS and came.flags & END_STREAM:
                ended.add(came.stream)
        assert set(found.values()) == {20_005}

    with_peer(body, settings({Setting.INITIAL_WINDOW_SIZE: 1 << 20}))


def test_frames_are_no_longer_than_the_client_takes_them() -> None:
    async def body(_: Running, peer: Peer) -> None:
        peer.ask(1, bytes(200_000))
        assert len((await peer.until(Type.DATA)).content) == FRAME_BYTES_MAX
        peer.send(settings({Setting.MAX_FRAME_SIZE: 40_000})).ask(3, bytes(200_000))
        sizes = {len((await peer.until(Type.DATA, 3)).content) for _ in range(3)}
        assert sizes == {40_000}

    with_peer(body)


def test_who_reads_nothing_makes_the_writer_wait_and_is_not_read() -> None:
    written = 0

    async def flood(call: Call) -> None:
        nonlocal written
        while True:
            await call.write(bytes(100_000))
            written += 1

    async def body(it: Running, peer: Peer) -> None:
        await peer.ping()
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]  # of all that an asyncio stream has
        peer.ask(1, b"", "/test/Flood")
        (connection,) = it.server.connections
        await eventually(lambda: connection.out.is_paused, WAIT_S, "the client is full")
        before = written
        for _ in range(50):
            await asyncio.sleep(0)
        assert written == before
        assert connection._transport.get_write_buffer_size() < 1 << 20
        assert not connection._transport.is_reading()
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(10):
            await peer.until(Type.DATA)
        assert connection._transport.is_reading() or connection.out.is_paused

    with_peer(body, methods={"/test/Flood": Method(flood)})


# Ends.


def test_what_a_client_breaks_off_is_cancelled() -> None:
    hanging = Hanging()

    async def body(it: Running, peer: Peer) -> None:
        peer.ask(1, b"", HANG).ask(3, b"", HANG)
        await eventually(lambda: hanging.began == 2, WAIT_S, "both calls")
        peer.send(rst_stream(1, Code.CANCEL))
        await eventually(lambda: hanging.cancelled == 1, WAIT_S, "one is cancelled")
        peer.writer.close()
        await eventually(lambda: hanging.cancelled == 2, WAIT_S, "the other is cancelled with its connection")
        await eventually(lambda: not it.server.connections and not it.server.held, WAIT_S, "nothing is kept")

    with_peer(body, methods=hanging.methods)


@pytest.mark.parametrize("at_once", [False, True])
def test_an_answer_to_a_client_that_has_gone_is_nobodys(at_once: bool) -> None:
    ended: list[str] = []

    async def late(call: Call) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            with pytest.raises(CallOver):
                call.finish(b"late")
            call.end()
            ended.append("late")
            raise

    async def body(it: Running, peer: Peer) -> None:
        peer.ask(1, bytes(1000), "/test/Late")
        await peer.ping()
        peer.send(rst_stream(1, Code.CANCEL))
        await eventually(lambda: ended, WAIT_S, "it is cancelled")
        assert it.server.held == 0

    with_peer(body, methods={"/test/Late": Method(late, begins_at_once=at_once)})


def test_a_call_that_takes_longer_than_its_deadline_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_module, "LOOK_S", 0.01)
    hanging = Hanging()

    async def body(_: Running, peer: Peer) -> None:
        answer = await peer.ask(1, b"", HANG, grpc_timeout="30m").answer(1)
        assert answer.status == Status.DEADLINE_EXCEEDED
        await eventually(lambda: hanging.cancelled == 1, WAIT_S, "it is cancelled")

    with_peer(body, methods=hanging.methods)


def test_an_answer_that_waits_for_its_window_beyond_its_deadline_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_module, "LOOK_S", 0.01)

    async def body(it: Running, peer: Peer) -> None:
        answer = await peer.ask(1, bytes(100), grpc_timeout="30m").answer(1)
        assert answer.fields["rst"] == str(int(Code.CANCEL))
        assert not next(iter(it.server.connections)).out._blocked

    with_peer(body, settings({Setting.INITIAL_WINDOW_SIZE: 10}))


def test_a_silent_client_is_asked_and_one_that_does_not_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LOOK_S", 0.01), ("ASK_S", 0.05), ("ANSWER_S", 0.05)):
        monkeypatch.setattr(serving_module, name, value)

    async def body(it: Running, peer: Peer) -> None:
        for _ in range(3):
            asked = await peer.until(Type.PING)
            peer.send(frame(Type.PING, 1, 0, asked.content))
        await peer.until(Type.PING)
        with contextlib.suppress(ConnectionError):
            assert not await peer.reader.read()
        await eventually(lambda: not it.server.connections, WAIT_S, "it is gone")

    with_peer(body)


def test_a_client_that_says_only_that_it_speaks_http2_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_module, "LOOK_S", 0.01)
    monkeypatch.setattr(serving_module, "ASK_S", 0.05)

    async def body(_: Running, peer: Peer) -> None:
        with contextlib.suppress(ConnectionError):
            await peer.reader.read()

    with_peer(body, b"")


def test_a_server_that_stops_says_so_to_who_has_no_call() -> None:
    async def body(it: Running, peer: Peer) -> None:
        await peer.ping()
        stopping = asyncio.create_task(it.server.stop(WAIT_S))
        assert (await peer.goodbye()).code == Code.NO_ERROR
        await stopping

    with_peer(body)


def test_a_server_that_stops_lets_calls_end_and_begins_none() -> None:
    let = asyncio.Event()

    async def held(call: Call) -> None:
        await let.wait()
        call.finish(b"done")

    async def body(it: Running, peer: Peer) -> None:
        peer.ask(1, b"", "/test/Held")
        await peer.ping()
        stopping = asyncio.create_task(it.server.stop(WAIT_S))
        assert (await peer.until(Type.GOAWAY)).code == Code.NO_ERROR
        answer = await peer.ask(3, b"").answer(3)
        assert answer.fields == {"rst": str(int(Code.REFUSED_STREAM))}
        let.set()
        assert (await peer.answer(1)).messages == [b"done"]
        await stopping
        with contextlib.suppress(ConnectionError):
            await peer.reader.read()

    with_peer(body, methods={"/test/Held": Method(held)})
