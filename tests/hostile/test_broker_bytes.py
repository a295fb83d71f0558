"""Bytes from enemies at a broker's port: refused by name, nothing stored, connection and process alive."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest

from penstock.proto import frames, names
from penstock.proto.errors import (
    CorruptBatch,
    Forbidden,
    InvalidArgument,
    InvalidName,
    MessageTooLarge,
    PenstockError,
    TopicNotFound,
)
from penstock.proto.wire import broker_pb2, common_pb2
from tests.support.broker.requests import BORN, batch, wanting
from tests.support.broker.running_broker import Caller, running
from tests.support.record.encoding import encode_messages

SEED = 20_240_607

RECORDS = encode_messages("orders", [b"one", b"two"], born_host=BORN)
HEADER = broker_pb2.AppendHeader(topic="orders", count=2)


def attacked(directory: Path, attack: Callable[[Caller], Awaitable[None]]) -> None:
    """Run ``attack`` on a broker, which must store nothing of it and serve on over the same connection."""

    async def check() -> None:
        async with running(directory) as (broker, caller):
            await caller.create_topic()
            end = broker.core.store.end_offset
            await attack(caller)
            assert broker.core.store.end_offset == end, "something was stored"
            assert (await caller.append([b"alive"])).physical_offset == end
            assert (await caller.fetch((0, 0), max_wait_ms=5000))[0].results[0].count == 1

    asyncio.run(check())


async def refused(call: Awaitable[object], *kinds: type[PenstockError]) -> None:
    with pytest.raises(kinds or (InvalidArgument, CorruptBatch, TopicNotFound, InvalidName)) as caught:
        await call
    assert "internal error" not in str(caught.value)


@pytest.mark.parametrize(
    "request_",
    [b"", b"\0", b"\0\0\0\xff", b"\xff\xff\xff\xff", b"\0\0\0\x02\xff\xff", b"\0\0\0\0", b"x" * 1000],
)
def test_frames_that_are_none_are_refused_by_both_services(tmp_path: Path, request_: bytes) -> None:
    async def attack(caller: Caller) -> None:
        await refused(caller.append_bytes(request_))
        if request_:  # else it ends a wait, and has no answer
            await refused(caller.fetch_bytes(request_))

    attacked(tmp_path, attack)


def test_random_bytes_are_refused_by_name(tmp_path: Path) -> None:
    print(f"seed={SEED}")
    dice = random.Random(SEED)

    async def attack(caller: Caller) -> None:
        for _ in range(150):
            noise = dice.randbytes(dice.randrange(400))
            await refused(caller.append_bytes(noise))
            await refused(caller.append_bytes(frames.pack(HEADER, noise)))

    attacked(tmp_path, attack)


def test_every_single_changed_byte_of_a_record_is_refused_or_harmless(tmp_path: Path) -> None:
    """Fields that the broker writes itself, or that the sender may choose, may differ: the battery changes those."""
    dice = random.Random(SEED)
    checked = {*range(len(RECORDS) // 2)} - {*range(12, 84)}  # all but queue id … prepared offset

    async def attack(caller: Caller) -> None:
        for position in sorted(checked):
            damaged = bytearray(RECORDS)
            damaged[position] ^= dice.randrange(1, 256)
            await refused(caller.append_bytes(frames.pack(HEADER, damaged)), CorruptBatch, MessageTooLarge)

    attacked(tmp_path, attack)


def test_truncated_repeated_and_miscounted_batches_are_refused(tmp_path: Path) -> None:
    async def attack(caller: Caller) -> None:
        for end in range(0, len(RECORDS), 7):
            if end != len(RECORDS):
                await refused(caller.append_bytes(frames.pack(HEADER, RECORDS[:end])), CorruptBatch)
        await refused(caller.append_bytes(frames.pack(HEADER, RECORDS, RECORDS)), CorruptBatch)
        for count in (-1, 0, 1, 3, 2**31 - 1):
            header = broker_pb2.AppendHeader(topic="orders", count=count)
            await refused(caller.append_bytes(frames.pack(header, RECORDS)), CorruptBatch, InvalidArgument)
        await refused(caller.append(topic="orders", queue_id=4), Forbidden)
        await refused(caller.append(topic="orders", queue_id=-1), Forbidden)

    attacked(tmp_path, attack)


def test_oversized_bodies_batches_and_messages_are_refused(tmp_path: Path) -> None:
    async def attack(caller: Caller) -> None:
        await refused(caller.append([b"x" * ((256 << 10) + 1)]), MessageTooLarge)
        await refused(caller.append([b"x" * 100_000] * 4), MessageTooLarge)
        with pytest.raises(PenstockError):
            await caller.append_bytes(b"\0" * (65 << 20))  # above what gRPC takes at all

    attacked(tmp_path, attack)


def test_names_that_are_none_or_internal_are_refused(tmp_path: Path) -> None:
    async def attack(caller: Caller) -> None:
        for topic in ("", " ", "a/b", "../etc/passwd", "x" * 128, "ü", "a\0b", "a\nb"):
            await refused(
                caller.append_bytes(batch(topic=topic or "x").replace(b"x", b"") if not topic else batch(topic=topic))
            )
        for topic in (names.STATE_TOPIC, "TBW102", "SCHEDULE_TOPIC_XXXX"):
            await refused(caller.append(topic=topic), Forbidden)
            await refused(caller.create_topic(topic), Forbidden)
        await refused(caller.append(topic="missing"), TopicNotFound)

    attacked(tmp_path, attack)


def test_marks_that_contradict_the_header_are_refused(tmp_path: Path) -> None:
    async def attack(caller: Caller) -> None:
        await refused(caller.append(producer=(1, 1, 0, 1), marked=False), CorruptBatch)
        marked = frames.unpack(batch(producer=(1, 1, 0, 1)), broker_pb2.AppendHeader)[1]
        for header in (
            broker_pb2.AppendHeader(topic="orders", count=1),
            broker_pb2.AppendHeader(topic="orders", count=1, producer_id=2, producer_epoch=1, sequence=1),
            broker_pb2.AppendHeader(topic="orders", count=1, producer_id=1, producer_epoch=-1, sequence=1),
            broker_pb2.AppendHeader(topic="orders", count=1, producer_id=1, producer_epoch=1, sequence=-1),
        ):
            await refused(caller.append_bytes(frames.pack(header, marked)), CorruptBatch)

    attacked(tmp_path, attack)


def test_fetches_and_offsets_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    async def attack(caller: Caller) -> None:
        await refused(caller.fetch((0, -1)), InvalidArgument)
        await refused(caller.fetch((-5, 0)), InvalidArgument)
        await refused(caller.fetch((0, 0), expression="a >", kind=broker_pb2.Filter.SQL92), InvalidArgument)
        for header in (broker_pb2.FetchHeader(), wanting()):
            await refused(caller.fetch_bytes(frames.pack(header)), InvalidArgument)
        reply, _ = await caller.fetch((0, 2**62), (2**31 - 1, 0), max_bytes=-1, max_wait_ms=-1)
        assert len(reply.results) == 2
        for offsets in ([-1], [], [1, 2]):
            part = common_pb2.TopicOffsets(topic="orders", queue_ids=[0], offsets=offsets)
            request = broker_pb2.CommitOffsetsRequest(group="billing", offsets=[part])
            await refused(caller.call("CommitOffsets", request), InvalidArgument)
        await refused(caller.call("ViewMessage", broker_pb2.ViewMessageRequest(physical_offset=-1)), InvalidArgument)
        for offset in (1, 2**62):
            request_ = broker_pb2.ViewMessageRequest(physical_offset=offset)
            with pytest.raises(PenstockError) as caught:
                await caller.call("ViewMessage", request_)
            assert "internal error" not in str(caught.value)

    async def check() -> None:
        async with running(tmp_path) as (_, caller):
            await caller.create_topic()
            await attack(caller)
            await caller.append([b"alive"])

    asyncio.run(check())


def test_noise_on_the_port_disturbs_nobody(tmp_path: Path) -> None:
    dice = random.Random(SEED)

    async def attack(caller: Caller) -> None:
        host, _, port = caller.address.rpartition(":")
        for size in (0, 1, 9, 24, 100, 5000):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(dice.randbytes(size))
            await writer.drain()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            del reader
        with socket.create_connection((host, int(port))) as preface:
            preface.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + dice.randbytes(200))

    attacked(tmp_path, attack)


def test_an_unknown_method_is_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    async def attack(caller: Caller) -> None:
        with pytest.raises(grpc.RpcError) as caught:
            await caller.channel.unary_unary("/penstock.v1.BrokerData/Format")(b"", timeout=60)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED

    attacked(tmp_path, attack)
