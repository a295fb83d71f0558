"""Calls whose messages gRPC has compressed."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable

import grpc
import pytest

from penstock.gateway.http2.frames import MESSAGE_HEAD, Status
from penstock.gateway.http2.packing import PIECE_BYTES, Packed
from penstock.runtime.channel import MESSAGE_BYTES_MAX
from tests.support.http2 import ECHO, STREAM, WAIT_S, Peer, Running, serving, with_peer

CONTENT = b"of which there is much " * 100_000


def packed(content: bytes, flag: int = 1) -> bytes:
    return MESSAGE_HEAD.pack(flag, len(content)) + content


def test_a_client_that_compresses_is_answered() -> None:
    async def scenario() -> None:
        async with serving() as it:
            address, compression = f"127.0.0.1:{it.port}", grpc.Compression.Gzip
            async with grpc.aio.insecure_channel(address, compression=compression) as channel:
                assert await channel.unary_unary(ECHO)(CONTENT, timeout=WAIT_S) == CONTENT
                stream = channel.stream_stream(STREAM)()
                for content in (b"", CONTENT, b"short", CONTENT):
                    await stream.write(content)
                    assert await stream.read() == content
                await stream.done_writing()
                assert await stream.read() is grpc.aio.EOF
            assert it.server.held == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("path", [ECHO, STREAM])
@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3_000_000])
def test_a_message_comes_as_it_was_before_it_was_compressed(path: str, size: int) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)

    async def body(it: Running, peer: Peer) -> None:
        sent = packed(gzip.compress(content)) + (packed(b"plain", 0) if path == STREAM else b"")
        answer = await peer.begin(1, path, grpc_encoding="gzip").data(1, sent).answer(1)
        assert answer.messages == [content, *([b"plain"] if path == STREAM else [])]
        assert it.server.held == 0

    with_peer(body)


@pytest.mark.parametrize("path", [ECHO, STREAM])
@pytest.mark.parametrize(
    ("encoding", "sent", "status", "said"),
    [
        (None, lambda: packed(gzip.compress(b"x")), Status.INTERNAL, "grpc-encoding is none"),
        ("identity", lambda: packed(gzip.compress(b"x")), Status.INTERNAL, "grpc-encoding is none"),
        ("deflate", lambda: packed(zlib.compress(b"x")), Status.UNIMPLEMENTED, "'deflate' are not taken: use gzip"),
        ("gzip", lambda: packed(gzip.compress(b"x"), 2), Status.INTERNAL, "flag 2"),
        ("gzip", lambda: packed(b"no gzip"), Status.INTERNAL, "no gzip"),
        ("gzip", lambda: packed(b""), Status.INTERNAL, "too early"),
        ("gzip", lambda: packed(gzip.compress(CONTENT)[:-1]), Status.INTERNAL, "too early"),
        ("gzip", lambda: packed(gzip.compress(CONTENT) + b"x"), Status.INTERNAL, "behind"),
        ("gzip", lambda: packed(gzip.compress(bytes(MESSAGE_BYTES_MAX + 1))), Status.RESOURCE_EXHAUSTED, "to more"),
    ],
    ids=("none", "identity", "deflate", "flag", "nogzip", "empty", "cut", "more", "bomb"),
)
def test_what_cannot_be_unpacked_ends_its_call(
    path: str, encoding: str | None, sent: Callable[[], bytes], status: Status, said: str
) -> None:
    async def body(it: Running, peer: Peer) -> None:
        answer = await peer.begin(1, path, grpc_encoding=encoding).data(1, sent()).answer(1)
        assert (answer.status, answer.messages) == (status, [])
        assert said in answer.fields["grpc-message"]
        assert (await peer.ask(3, b"next").answer(3)).messages == [b"next"]
        assert it.server.held == 0

    with_peer(body)


@pytest.mark.parametrize("path", [ECHO, STREAM])
def test_what_a_message_unpacks_to_counts_among_what_is_kept(path: str) -> None:
    async def body(it: Running, peer: Peer) -> None:
        it.server.held_max = 1_000_000
        sent = packed(gzip.compress(bytes(2_000_000)))
        answer = await peer.begin(1, path, grpc_encoding="gzip").data(1, sent).answer(1)
        assert answer.status == Status.RESOURCE_EXHAUSTED
        assert (await peer.ask(3, b"next").answer(3)).messages == [b"next"]
        assert it.server.held == 0

    with_peer(body)


def test_it_is_unpacked_by_pieces() -> None:
    pieces = list(Packed(gzip.compress(bytes(10_000_000))).pieces(MESSAGE_BYTES_MAX))
    assert max(map(len, pieces)) <= PIECE_BYTES
    assert sum(map(len, pieces)) == 10_000_000
