"""Answers of a data port that are views of memory: sent piece by piece, not copied, and their end is told."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import pytest

from penstock.proto.data_frames import Method
from penstock.proto.errors import BrokerUnavailable
from penstock.runtime.data.link import DataLink, Frame
from penstock.runtime.data.port import DataPort, Link
from penstock.runtime.security.certificates import ServerTls
from penstock.runtime.security.credentials import PLAIN, Security
from tests.support.cluster.certificates import Authority
from tests.support.data import connected
from tests.support.echo import echoing
from tests.support.loops import in_own_loop
from tests.support.waiting import eventually


class Pieces:
    """Answers with views of one buffer, and notes when they are taken."""

    sent = memoryview(bytes(range(256)) * 40_000)  # 10 MB
    taken: ClassVar[list[int]] = []

    def __init__(self, link: Link) -> None:
        self.link = link

    def take(self, number: int, content: memoryview) -> None:
        if content:
            self.link.answer(number, Method.FETCH, bytes(content), on_taken=lambda: self.taken.append(number))
            return
        cuts = [0, 1, 100_000, 100_000, 700_000, 5_000_000, len(self.sent)]
        pieces = [self.sent[start:end] for start, end in itertools.pairwise(cuts)]
        self.link.answer(number, Method.FETCH, *pieces, on_taken=lambda: self.taken.append(number))

    def left(self) -> None:
        pass


@contextlib.asynccontextmanager
async def answering_in_pieces(tls: ServerTls | None = None) -> AsyncIterator[DataPort]:
    Pieces.taken.clear()
    async with echoing(tls) as port:
        port.methods[Method.FETCH] = Pieces
        yield port


def fetched(port: int, contents: list[bytes], security: Security) -> list[Frame]:
    with contextlib.closing(DataLink("localhost:1", port, security)) as link:
        for number, content in enumerate(contents, start=1):
            link.send(number, Method.FETCH, content)
        link.begin_to_receive(10.0)
        found: list[Frame] = []
        while len(found) < len(contents):
            found += link.receive()
        link.leave()
        return found


@in_own_loop
@pytest.mark.parametrize("has_tls", [False, True])
async def test_pieces_come_end_to_end_and_their_end_is_told_in_order(tmp_path: Path, has_tls: bool) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("broker")
    server = ServerTls(cert_file=pair.cert, key_file=pair.key) if has_tls else None
    client = Security(tls=authority.tls()) if has_tls else PLAIN
    async with answering_in_pieces(server) as port:
        found = await asyncio.to_thread(fetched, port.number, [b"", b"small", b""], client)
        assert [frame.number for frame in found] == [1, 2, 3]
        assert [frame.content for frame in found] == [Pieces.sent, b"small", Pieces.sent]
        await eventually(lambda: Pieces.taken == [1, 2, 3], what="all to be taken")


@in_own_loop
async def test_what_waits_for_its_reader_is_not_copied_and_told_when_the_reader_goes(tmp_path: Path) -> None:
    async with answering_in_pieces() as port:
        async with connected("127.0.0.1", port.number) as connection:
            connection.reader._transport.pause_reading()  # type: ignore[attr-defined]
            for number in range(1, 4):
                connection.send(number, Method.FETCH)
            (there,) = port.connections
            await eventually(lambda: "unsent" in there._holds, what="a hold")
            waiting = [each for each in there._sending._unsent if isinstance(each, memoryview)]
            assert waiting
            assert all(each.obj is Pieces.sent.obj for each in waiting)
            assert there._transport.get_write_buffer_size() <= 256 << 10
            assert Pieces.taken == []
        await eventually(lambda: bool(Pieces.taken), what="its end")
        assert Pieces.taken == list(range(1, len(Pieces.taken) + 1))


@in_own_loop
async def test_what_points_to_memory_that_is_to_change_is_not_sent_and_who_has_all_stays() -> None:
    async with (
        answering_in_pieces() as port,
        connected("127.0.0.1", port.number) as other,
        connected("127.0.0.1", port.number) as connection,
    ):
        other.send(1, Method.FETCH)
        assert (await other.receive())[2] == Pieces.sent
        connection.reader._transport.pause_reading()  # type: ignore[attr-defined]
        for number in range(1, 4):
            connection.send(number, Method.FETCH)
        await eventually(lambda: any("unsent" in each._holds for each in port.connections), what="a hold")
        port.abort_unsent()
        await eventually(lambda: len(port.connections) == 1, what="its end")
        other.send(2, Method.FETCH)
        assert (await other.receive())[2] == Pieces.sent


@in_own_loop
async def test_a_port_that_closes_sends_what_it_has_answered() -> None:
    async with answering_in_pieces() as port, connected("127.0.0.1", port.number) as connection:
        connection.send(1, Method.FETCH)
        (there,) = port.connections
        await eventually(lambda: there._sending.unsent_bytes > 0, what="an answer under way")
        port.close()
        assert (await connection.receive())[2] == Pieces.sent
        with pytest.raises(BrokerUnavailable):
            await connection.receive()


@in_own_loop
async def test_large_answers_leave_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runtime.turns.TURN_S", 0.0)
    async with answering_in_pieces() as port, connected("127.0.0.1", port.number) as connection:
        connection.send(1, Method.FETCH)
        assert (await connection.receive())[2] == Pieces.sent
        await eventually(lambda: Pieces.taken == [1], what="its end")
        assert not port.turns._waiting
