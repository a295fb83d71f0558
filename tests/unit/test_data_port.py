"""A data port and its links: greetings, frames of any size and order, holds, TLS, users, peers that are silent."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from pathlib import Path

import pytest

from penstock.proto.data_frames import FRAME_BYTES_MAX, HEAD, Kind, Method
from penstock.proto.errors import (
    BrokerUnavailable,
    ConfigError,
    InvalidArgument,
    PenstockError,
)
from penstock.runtime.data.link import DataLink, Frame
from penstock.runtime.data.port import DataPort
from penstock.runtime.security.certificates import ServerTls
from penstock.runtime.security.credentials import PLAIN, Security
from tests.support.cluster.certificates import Authority, put
from tests.support.data import connected
from tests.support.echo import echoing, made
from tests.support.loops import in_own_loop
from tests.support.waiting import eventually


def asked(port: int, contents: list[bytes], security: Security = PLAIN) -> list[Frame]:
    """What a link is answered, for requests that are all sent before anything is read."""
    with contextlib.closing(DataLink("localhost:1", port, security)) as link:
        for number, content in enumerate(contents, start=1):
            link.send(number, Method.APPEND, content)
        found: list[Frame] = []
        while len(found) < len(contents):
            found += link.receive()
        return found


@in_own_loop
async def test_the_bytes_are_those_of_the_protocols_page() -> None:
    """Golden: a client in another language sends and takes just these."""
    async with echoing() as port, connected("127.0.0.1", port.number, greets=False) as connection:
        for sent, taken in (
            ("000000020000000000000000 0801", "000000000000000000000001"),
            ("000000000000000700010000", "000000000000000700010001"),
            ("000000030000000800020000 616263", "000000030000000800020001 616263"),
            ("000000040000000900030000 00000000", "000000040000000900030001 00000000"),
        ):
            connection.writer.write(bytes.fromhex(sent))
            wanted = bytes.fromhex(taken)
            assert await connection.reader.readexactly(len(wanted)) == wanted


@in_own_loop
async def test_frames_of_any_size_are_answered_in_order_with_their_numbers() -> None:
    contents = [bytes([size % 251]) * size for size in (0, 1, 100, 70_000, 5_000_000, 3, 200_000, 1)]
    async with echoing() as port:
        found = await asyncio.to_thread(asked, port.number, contents)
    assert [(each.number, each.kind) for each in found] == [(number, Kind.ANSWER) for number in range(1, 9)]
    assert [each.content for each in found] == contents


@in_own_loop
async def test_a_frame_may_come_byte_by_byte_and_many_in_one_piece() -> None:
    async with echoing() as port, connected("127.0.0.1", port.number) as connection:
        for byte in HEAD.pack(3, 7, Method.APPEND, Kind.REQUEST) + b"abc":
            connection.writer.write(bytes([byte]))
            await connection.writer.drain()
            await asyncio.sleep(0)
        assert await connection.receive() == (7, Kind.ANSWER, b"abc")
        frames = [HEAD.pack(2, number, Method.APPEND, Kind.REQUEST) + b"%02d" % number for number in range(100)]
        connection.writer.write(b"".join(frames))
        assert [(await connection.receive())[::2] for _ in range(100)] == [(n, b"%02d" % n) for n in range(100)]


@in_own_loop
async def test_an_answer_is_sent_before_the_client_confirms_earlier_ones() -> None:
    async with echoing() as port, connected("127.0.0.1", port.number):
        (link,) = port.connections
        accepted = link._transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


@in_own_loop
async def test_a_large_frames_room_is_given_back() -> None:
    async with echoing() as port, connected("127.0.0.1", port.number) as connection:
        (there,) = port.connections
        connection.send(1, Method.APPEND, b"x" * (20 << 20))
        await connection.receive()
        assert len(there.get_buffer(-1)) <= 2 << 20


@in_own_loop
@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (HEAD.pack(0, 1, Method.PING, Kind.REQUEST), "begins with a hello"),
        (HEAD.pack(2, 0, Method.HELLO, Kind.REQUEST) + b"\xff\xff", "no hello"),
        (HEAD.pack(2, 0, Method.HELLO, Kind.REQUEST) + b"\x08\x09", "version 9"),
        (HEAD.pack(FRAME_BYTES_MAX, 0, Method.HELLO, Kind.REQUEST), "no frame of a data port"),
        (HEAD.pack(0, 0, Method.HELLO, Kind.ANSWER), "no frame of a data port"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "no frame of a data port"),
    ],
)
async def test_who_does_not_greet_is_told_and_left(sent: bytes, reason: str) -> None:
    async with echoing() as port, connected("127.0.0.1", port.number, greets=False) as connection:
        connection.writer.write(sent)
        with pytest.raises(InvalidArgument, match=reason):
            await connection.answer()
        assert await connection.reader.read() == b""
        assert made == []


@in_own_loop
async def test_after_a_greeting_wrong_frames_end_the_connection_and_unknown_methods_do_not() -> None:
    async with echoing() as port, connected("127.0.0.1", port.number) as connection:
        with pytest.raises(InvalidArgument, match="method 99"):
            await connection.ask(99)
        assert await connection.ask(Method.PING) == b""
        connection.writer.write(HEAD.pack(FRAME_BYTES_MAX + 1, 1, Method.APPEND, Kind.REQUEST))
        with pytest.raises(InvalidArgument, match="no frame of a data port"):
            await connection.answer()


@in_own_loop
async def test_what_is_held_is_taken_later_and_in_order() -> None:
    async with echoing() as port, connected("127.0.0.1", port.number) as connection:
        await connection.ask(Method.APPEND, b"first")
        (echo,) = made
        echo.link.hold(True)
        for number in range(50):
            connection.send(number, Method.APPEND, b"%d" % number)
        await connection.writer.drain()
        await asyncio.sleep(0.05)
        assert len(echo.sizes) == 1
        echo.link.hold(False)
        assert [(await connection.receive())[2] for _ in range(50)] == [b"%d" % number for number in range(50)]


@in_own_loop
async def test_what_two_hold_is_read_when_both_let_go() -> None:
    async with echoing() as port, connected("127.0.0.1", port.number) as connection:
        await connection.ask(Method.APPEND, b"first")
        (echo,) = made
        echo.link.hold(True)
        echo.link.hold(True, "END")
        assert echo.link.silent_s == 0.0, "what is not read is not silent"
        connection.send(2, Method.APPEND, b"second")
        await connection.writer.drain()
        echo.link.hold(False)
        await asyncio.sleep(0.02)
        assert len(echo.sizes) == 1
        echo.link.hold(False, "END")
        assert (await connection.receive())[2] == b"second"
        assert echo.link.silent_s < 30


@in_own_loop
async def test_room_that_a_client_makes_is_told() -> None:
    async with echoing() as port, connected("127.0.0.1", port.number) as connection:
        connection.reader._transport.pause_reading()  # type: ignore[attr-defined]
        told: list[bool] = []
        connection.send(0, Method.APPEND, b"x")
        await eventually(lambda: bool(made), what="the first request")
        link = made[0].link
        link.on_room.append(lambda: told.append(link.has_room))
        assert link.has_room
        for number in range(1, 300):
            connection.send(number, Method.APPEND, b"x" * 100_000)
        await eventually(lambda: not link.has_room, what="no room")
        assert told == []
        connection.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(300):
            await connection.receive()
        assert told
        assert all(told)


@in_own_loop
async def test_a_client_that_takes_no_answers_is_not_read_further() -> None:
    async with echoing() as port, connected("127.0.0.1", port.number) as connection:
        connection.reader._transport.pause_reading()  # type: ignore[attr-defined]
        for number in range(300):
            connection.send(number, Method.APPEND, b"x" * 100_000)
        (there,) = port.connections
        await eventually(lambda: bool(there._holds), what="a hold")
        taken = len(made[0].sizes)
        assert taken < 300
        connection.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(300):
            await connection.receive()
        assert len(made[0].sizes) == 300


@in_own_loop
async def test_a_connection_that_goes_is_told_to_its_conversation() -> None:
    async with echoing() as port:
        async with connected("127.0.0.1", port.number) as connection:
            await connection.ask(Method.APPEND, b"x")
        await eventually(lambda: made[0].is_left, what="its end")


@in_own_loop
async def test_who_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runtime.data.port.HELLO_S", 0.05)
    async with echoing() as port, connected("127.0.0.1", port.number, greets=False) as connection:
        with contextlib.suppress(ConnectionError):
            assert await connection.reader.read() == b""


@in_own_loop
async def test_more_connections_than_allowed_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runtime.data.port.CONNECTIONS_MAX", 1)
    async with echoing() as port, connected("127.0.0.1", port.number):
        with pytest.raises(PenstockError, match="1 connections are open"):
            async with connected("127.0.0.1", port.number):
                raise AssertionError("it was taken")


@in_own_loop
async def test_a_port_in_use_is_named_with_its_setting() -> None:
    async with echoing() as port:
        with pytest.raises(ConfigError, match=rf"dataPort: cannot listen on 127.0.0.1:{port.number}"):
            await DataPort().open("127.0.0.1", port.number, "dataPort")


@in_own_loop
async def test_tls_moves_the_same_frames_and_takes_over_new_certificates(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    pair = authority.issue("broker")
    contents = [bytes([size % 251]) * size for size in (1, 70_000, 5_000_000, 3)]
    server = ServerTls(cert_file=pair.cert, key_file=pair.key)
    mine, strangers = Security(tls=authority.tls()), Security(tls=other.tls())
    async with echoing(server) as port:
        found = await asyncio.to_thread(asked, port.number, contents, mine)
        assert [each.content for each in found] == contents
        with pytest.raises(BrokerUnavailable):  # without TLS
            await asyncio.to_thread(asked, port.number, [b"x"])
        with pytest.raises(BrokerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await asyncio.to_thread(asked, port.number, [b"x"], strangers)
        new = other.issue("broker")
        put(pair.key, new.key.read_bytes())
        put(pair.cert, new.cert.read_bytes())
        assert (await asyncio.to_thread(asked, port.number, [b"x"], strangers))[0].content == b"x"


@in_own_loop
async def test_a_port_that_asks_for_certificates_takes_nobody_without(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, own = authority.issue("broker"), authority.issue("client", "client")
    async with echoing(ServerTls(cert_file=pair.cert, key_file=pair.key, client_ca_file=authority.file)) as port:
        known = Security(tls=authority.tls(own))
        assert (await asyncio.to_thread(asked, port.number, [b"x"], known))[0].content == b"x"
        with pytest.raises(BrokerUnavailable):
            await asyncio.to_thread(asked, port.number, [b"x"], Security(tls=authority.tls()))


@in_own_loop
async def test_requests_that_come_together_leave_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runtime.turns.TURN_S", 0.0)
    async with echoing() as port, connected("127.0.0.1", port.number) as connection:
        turns: list[int] = []
        loop = asyncio.get_running_loop()

        def look() -> None:
            turns.append(len(made[0].sizes) if made else 0)
            if turns[-1] < 50:
                loop.call_soon(look)

        frames = [HEAD.pack(1, number, Method.APPEND, Kind.REQUEST) + b"x" for number in range(50)]
        look()
        connection.writer.write(b"".join(frames))
        assert [(await connection.receive())[0] for _ in range(50)] == list(range(50))
        assert len(set(turns)) > 40, "one turn for many of them"


@in_own_loop
async def test_many_connections_that_ask_much_share_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runtime.turns.TURN_S", 0.0)
    frames = b"".join(HEAD.pack(1, number, Method.APPEND, Kind.REQUEST) + b"x" for number in range(20))
    async with echoing() as port, contextlib.AsyncExitStack() as stack:
        each = [await stack.enter_async_context(connected("127.0.0.1", port.number)) for _ in range(10)]
        done: list[int] = []
        is_over = False

        def look() -> None:
            done.append(sum(len(echo.sizes) for echo in made))
            if not is_over:
                asyncio.get_running_loop().call_soon(look)

        look()
        for connection in each:
            connection.writer.write(frames)
        for connection in each:
            assert [(await connection.receive())[0] for _ in range(20)] == list(range(20))
        is_over = True
        assert max(later - earlier for earlier, later in itertools.pairwise(done)) <= 2, "one request a turn"
        assert not port.turns._waiting
