"""Attacks on a data port: frames that are none, connections that say nothing or never end, readers that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket

from penstock.proto.data_frames import FRAME_BYTES_MAX, HEAD, HELLO_BYTES_MAX, VERSION, Kind, Method
from penstock.proto.errors import InvalidArgument, PenstockError
from penstock.proto.wire.data_pb2 import Hello
from penstock.replication import frames as replication
from tests.support.broker.requests import batch
from tests.support.broker.running_broker import calling
from tests.support.data import connected, connected_to, data_port_of
from tests.support.replication.replicating import hello_of

from .attacks import SEED, Findings, Scale
from .crowds import foreign_openings
from .target import Target

HELLO = Hello(version=VERSION).SerializeToString()


def frame(number: int, method: int, content: bytes = b"", kind: int = Kind.REQUEST, size: int | None = None) -> bytes:
    """A frame, or one whose head lies about its size."""
    return HEAD.pack(len(content) if size is None else size, number, method, kind) + content


def openings() -> list[bytes]:
    """What a data port may hear first."""
    metadata = {f"key-{number}": "x" * 100 for number in range(200)}
    return [
        *foreign_openings(),
        frame(0, Method.APPEND, batch()),
        frame(0, Method.HELLO, b"\xff" * 100),
        frame(0, Method.HELLO, Hello(version=2**32 - 1).SerializeToString()),
        frame(0, Method.HELLO, Hello(version=VERSION, metadata=metadata).SerializeToString()),
        frame(0, Method.HELLO, size=HELLO_BYTES_MAX + 1),
        frame(0, Method.HELLO, size=2**32 - 1),
        frame(0, Method.HELLO, HELLO, kind=Kind.ANSWER),
        frame(0, Method.HELLO, HELLO)[:-1],
    ]


def followings() -> list[bytes]:
    """What it may hear behind a hello."""
    dice = random.Random(SEED)
    return [
        frame(1, Method.APPEND, batch(), kind=Kind.ERROR),
        frame(1, 0xFFFF, b"x"),
        frame(2**32 - 1, Method.PING, b"x" * 1000),
        frame(1, Method.HELLO, HELLO),
        frame(1, Method.APPEND, size=FRAME_BYTES_MAX),
        frame(1, Method.APPEND, size=FRAME_BYTES_MAX + 1),
        frame(1, Method.APPEND, batch())[:-1],
        frame(1, Method.REPLICATE),
        frame(1, Method.REPLICATE, b"\xff" * 100),
        frame(1, Method.REPLICATE, replication.ack(1, 0, 0)),
        frame(1, Method.REPLICATE, replication.ack(1, 0, 0))[:-1],
        frame(1, Method.REPLICATE, size=FRAME_BYTES_MAX),
        *(dice.randbytes(dice.randrange(1, 4096)) for _ in range(10)),
        b"".join(frame(number, Method.PING) for number in range(10_000)),
    ]


async def data_frames(target: Target, scale: Scale) -> Findings:
    """Whatever may come first, and whatever may come behind a hello, cut anywhere, byte by byte too."""
    found: Findings = []
    address = target.master.address
    host, port = address.rpartition(":")[0], await data_port_of(address)
    for sent in openings():
        await _say(host, port, sent)
    for sent in followings():
        await _say(host, port, frame(0, Method.HELLO, HELLO) + sent)
    for at in range(HEAD.size):  # each byte of a head flipped
        damaged = bytearray(frame(1, Method.APPEND, batch()))
        damaged[at] ^= 0xFF
        await _say(host, port, frame(0, Method.HELLO, HELLO) + bytes(damaged))
    async with connected(host, port) as connection:
        for byte in frame(1, Method.APPEND, batch()):
            connection.writer.write(bytes([byte]))
            await connection.writer.drain()
        try:
            async with asyncio.timeout(10):
                await connection.answer()
        except (TimeoutError, PenstockError) as error:
            found.append(f"a batch in single bytes: {error!r}")
    return found


async def _say(host: str, port: int, sent: bytes) -> None:
    """Send, take what comes for a moment, and leave without a word."""
    reader, writer = await asyncio.open_connection(host, port)
    with contextlib.suppress(ConnectionError, TimeoutError):
        writer.write(sent)
        async with asyncio.timeout(0.05):
            await reader.read()
    writer.transport.abort()


async def data_connections(target: Target, scale: Scale) -> Findings:
    """Thousands that say nothing, or half a hello, or ask without end and take no answer."""
    address = target.master.address
    host, port = address.rpartition(":")[0], await data_port_of(address)
    said = [b"", b"\0", frame(0, Method.HELLO, HELLO)[:-1], frame(0, Method.HELLO, HELLO)]
    pings = b"".join(frame(number, Method.PING) for number in range(1000))
    with contextlib.ExitStack() as held:
        for number in range(scale.many * 5):
            there = held.enter_context(socket.create_connection((host, port), 5))
            there.setblocking(False)
            with contextlib.suppress(OSError):
                there.send(said[number % len(said)])
                if number % 10 == 3:
                    for _ in range(scale.many):
                        there.send(pings)
            if number % 100 == 0:
                await asyncio.sleep(0)
        async with asyncio.timeout(30), connected_to(address) as connection:
            await connection.ask(Method.PING)
    return []


async def forged_slaves(target: Target, scale: Scale) -> Findings:
    """Slaves, learners all, that report without end, cut off, out of order or what cannot be, or take nothing."""
    address = target.master.address
    host, port = address.rpartition(":")[0], await data_port_of(address)
    async with calling(address) as caller:
        identity = (await caller.status()).identity

    def greeting(broker_id: int) -> bytes:
        identity.broker_id = broker_id
        return hello_of(identity, end_offset=0, store_instance=str(broker_id), learner=True)

    reports = [
        [replication.ack(1, 0, 0)] * (scale.many * 10),
        [replication.ack(2**62, 2**62, 2**62)],
        [replication.ack(1, 0, 0, stamp=2**62)],
        [greeting(1000)] * 2,
        [replication.leaving(InvalidArgument("x" * 2000))] * 10,
        [replication.commits(replication.Commits(group="x" * (1 << 20)))] * (scale.many // 10),
        [b"", b"\xff" * 100],
    ]
    for broker_id, sent in enumerate(reports * 12, 1000):  # more than a master has slaves
        frames = [frame(1, Method.REPLICATE, each) for each in (greeting(broker_id), *sent)]
        await _say(host, port, frame(0, Method.HELLO, HELLO) + b"".join(frames))
        await _say(host, port, frame(0, Method.HELLO, HELLO) + frames[0] + frames[-1][:-1])
        await _say(host, port, frame(0, Method.HELLO, HELLO) + frames[0] + frame(2, Method.REPLICATE, sent[0]))
    async with contextlib.AsyncExitStack() as held:
        for broker_id in range(1000, 1000 + scale.many):
            there = await held.enter_async_context(connected(host, port))
            there.reader._transport.pause_reading()  # type: ignore[attr-defined]  # asyncio would buffer
            there.send(1, Method.REPLICATE, greeting(broker_id))
        async with asyncio.timeout(30), connected_to(address) as connection:
            await connection.ask(Method.PING)
    return []
