"""Attacks by number and by patience: connections, consumers, names, streams without end, readers that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import grpc
import grpc.aio

from penstock.proto import frames
from penstock.proto.data_frames import Method
from penstock.proto.wire import broker_pb2, common_pb2, nameserver_pb2
from penstock.runtime.channel import MESSAGE_BYTES_MAX, open_async_channel
from tests.support.broker.requests import batch, wanting
from tests.support.broker.running_broker import calling
from tests.support.data import connected_to

from .attacks import BROKEN_OFF, SEED, Findings, Scale, judged
from .target import Target

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CHANNELS = 10
GZIP_BOMB_BYTES = 512 << 20


def foreign_openings() -> list[bytes]:
    """What a port may hear first from somebody who means another service, or none."""
    noise = random.Random(SEED).randbytes
    return [
        b"",
        noise(4096),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise(512),
        HTTP2_PREFACE + noise(4096),
        HTTP2_PREFACE + b"\xff\xff\xff\x00\x01\x00\x00\x00\x01" + noise(4096),
        HTTP2_PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x01\x00\x01\x04\x00\x00\x00\x01" + noise(256),
        bytes(65_536),
        HTTP2_PREFACE[:10],
    ]


async def connections(target: Target, scale: Scale) -> Findings:
    """Thousands at once, at each port: silent ones, half-open ones, and ones that say what nobody understands."""
    openings = foreign_openings()
    for address in (target.master.address, target.nameserver.address, target.gateway.address):
        host, _, port = address.rpartition(":")
        with contextlib.ExitStack() as held:
            for number in range(scale.many * 5):
                there = held.enter_context(socket.create_connection((host, int(port)), 5))
                there.setblocking(False)
                with contextlib.suppress(OSError):
                    there.send(openings[number % len(openings)])
                if number % 100 == 0:
                    await asyncio.sleep(0)
            async with open_async_channel(target.master.address) as channel:
                await channel.unary_unary("/penstock.v1.Broker/Status")(b"", timeout=30)
    return []


async def idle_consumers(target: Target, scale: Scale) -> Findings:
    """Many members of one group that never fetch, and half of them say nothing more."""
    found: Findings = []

    async def consume(channel: Any, number: int, may_end: asyncio.Event) -> None:
        call = channel.stream_stream("/penstock.v1.Broker/ConsumerSession")()
        try:
            join = broker_pb2.ConsumerRequest.Join(group="crowd", client_id=f"idle-{number}")
            join.subscriptions["orders"].kind = broker_pb2.Filter.ALL
            await call.write(broker_pb2.ConsumerRequest(join=join).SerializeToString())
            await call.read()
            joined.release()
            await may_end.wait()
        except grpc.RpcError as error:
            found.extend(judged("ConsumerSession", error))
            joined.release()
        finally:
            call.cancel()

    joined, may_end = asyncio.Semaphore(0), asyncio.Event()
    count = scale.many * 5
    async with _channels(target.master.address) as channels, asyncio.TaskGroup() as members:
        for number in range(count):
            members.create_task(consume(channels[number % CHANNELS], number, may_end))
        for _ in range(count):
            await joined.acquire()
        may_end.set()
    return found


async def names(target: Target, scale: Scale) -> Findings:
    """Topics, groups, committed offsets of invented queues, producers and lanes without number."""

    def requests() -> Iterable[tuple[str, bytes]]:
        for number in range(scale.many * 10):
            topic = common_pb2.TopicConfig(topic=f"flood-{number}", read_queues=1, write_queues=1, perm=6)
            yield "Broker/CreateTopic", broker_pb2.CreateTopicRequest(config=topic).SerializeToString()
            yield "Broker/CreateGroup", common_pb2.GroupConfig(group=f"flood-{number}").SerializeToString()
            light = common_pb2.TopicOffsets(topic=f"%LMQ%flood-{number}", queue_ids=[0], offsets=[0])
            commit = broker_pb2.CommitOffsetsRequest(group="flood", offsets=[light])
            yield "Broker/CommitOffsets", commit.SerializeToString()

    async with open_async_channel(target.master.address) as channel:
        found = await _all(
            lambda request=request: channel.unary_unary(f"/penstock.v1.{request[0]}")(request[1], timeout=30)
            for request in requests()
        )
        async with asyncio.timeout(60), connected_to(target.master.address) as appends:
            for number in range(scale.many * 10):
                appends.send(number, Method.APPEND, batch(producer=(1 + number % 100, 1, number, 1)))
                await appends.receive()
        # So that the next attack, and the memory after it, begin as before.
        groups = ["flood", *(f"flood-{number}" for number in range(scale.many * 10))]
        remains = [("DeleteTopic", broker_pb2.TopicName(topic=each).SerializeToString()) for each in groups[1:]]
        remains += [("DeleteGroup", broker_pb2.GroupName(group=each).SerializeToString()) for each in groups]
        await _all(
            lambda method=method, content=content: channel.unary_unary(f"/penstock.v1.Broker/{method}")(
                content, timeout=30
            )
            for method, content in remains
        )
    return found


async def endless_streams(target: Target, scale: Scale) -> Findings:
    """Streams that go on and on, and ones that break off in the middle."""
    heartbeat = broker_pb2.ConsumerRequest(heartbeat=common_pb2.Empty()).SerializeToString()
    watch = nameserver_pb2.WatchRequest(add_topics=["orders"], remove_topics=["orders"]).SerializeToString()
    claim = broker_pb2.ConsumerRequest(claim=common_pb2.TopicQueues(topic="orders", queue_ids=[0]))
    join = broker_pb2.ConsumerRequest(join=broker_pb2.ConsumerRequest.Join(group="endless", client_id="one"))

    async def pour(channel: Any, path: str, messages: list[bytes]) -> None:
        call = channel.stream_stream(path)(timeout=30)
        with contextlib.suppress(grpc.RpcError, *BROKEN_OFF):
            for number in range(scale.many * 100):
                await call.write(messages[min(number, len(messages) - 1)])
        call.cancel()

    async with (
        open_async_channel(target.master.address) as broker,
        open_async_channel(target.nameserver.address) as nameserver,
    ):
        consuming = [join.SerializeToString(), claim.SerializeToString(), heartbeat]
        await asyncio.gather(
            pour(broker, "/penstock.v1.Broker/ConsumerSession", consuming),
            pour(broker, "/penstock.v1.Broker/ConsumerSession", [join.SerializeToString()]),
            pour(nameserver, "/penstock.v1.Nameserver/WatchRoutes", [watch]),
        )
    return []


async def slow_readers(target: Target, scale: Scale) -> Findings:
    """Streams of appends whose answers nobody reads, watches and fetches that nobody takes."""

    async def send_only() -> None:
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(2), connected_to(target.master.address) as appends:
                appends.reader._transport.pause_reading()  # type: ignore[attr-defined]  # asyncio would buffer
                for number in range(scale.many * 10):
                    appends.send(number, Method.APPEND, batch([b"x" * 100], topic="orders", queue_id=3))
                    await appends.writer.drain()

    async def fetch_and_leave() -> None:
        header = wanting((0, 0), (1, 0), (2, 0), (3, 0), max_bytes=16 << 20, max_wait_ms=30_000)
        async with connected_to(target.master.address) as fetches:
            for number in range(scale.many):
                fetches.send(number, Method.FETCH, frames.pack(header))
                fetches.send(number // 2, Method.FETCH)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(send_only() for _ in range(CHANNELS)))
    await asyncio.gather(*(fetch_and_leave() for _ in range(CHANNELS)))
    return []


async def stuck_readers(target: Target, scale: Scale) -> Findings:
    """Fetches of as much as is allowed, over connections whose answers nobody takes."""
    async with contextlib.AsyncExitStack() as held:
        async with calling(target.master.address) as caller:
            await caller.create_topic("large")
            for _ in range(scale.many // 10):
                await caller.append([b"x" * (1 << 20)] * 3, topic="large")
        header = wanting((0, 0), topic="large", max_bytes=16 << 20, max_wait_ms=1)
        for _ in range(2):
            there = await held.enter_async_context(connected_to(target.master.address))
            there.reader._transport.pause_reading()  # type: ignore[attr-defined]  # asyncio would buffer
            for number in range(scale.many // 2):
                there.send(number, Method.FETCH, frames.pack(header))
        await asyncio.sleep(1)
        async with calling(target.master.address) as caller:
            await caller.status()
    return []


async def bombs(target: Target, scale: Scale) -> Findings:
    """A message that is small on the wire and takes half a gigabyte when it is unpacked, or more than is allowed."""
    options = [("grpc.max_send_message_length", -1)]
    found: Findings = []
    unimplemented, exhausted = grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED
    size = GZIP_BOMB_BYTES if scale.many > 100 else MESSAGE_BYTES_MAX + 1
    for address, path, refusal in (
        (target.master.address, "/penstock.v1.Broker/CreateTopic", unimplemented),
        (target.nameserver.address, "/penstock.v1.Nameserver/QueryRoute", unimplemented),
        (target.gateway.address, "/apache.rocketmq.v2.MessagingService/SendMessage", exhausted),
    ):
        async with grpc.aio.insecure_channel(address, options, grpc.Compression.Gzip) as channel:
            try:
                await channel.unary_unary(path)(bytes(size), timeout=60)
            except grpc.RpcError as error:
                if error.code() is not refusal:  # type: ignore[attr-defined]
                    found += judged(path, error) or [f"{path}: {error.code()}"]  # type: ignore[attr-defined]
            else:
                found.append(f"{path}: {size} bytes were taken")
    return found


@contextlib.asynccontextmanager
async def _channels(address: str) -> AsyncIterator[list[Any]]:
    channels = [open_async_channel(address) for _ in range(CHANNELS)]
    try:
        yield channels
    finally:
        for channel in channels:
            await channel.close()


async def _all(calls: Iterable[Callable[[], Awaitable[Any]]]) -> Findings:
    """Make the calls, some at a time."""
    found: Findings = []
    gate = asyncio.Semaphore(32)

    async def make(call: Callable[[], Awaitable[Any]]) -> None:
        async with gate:
            try:
                await call()
            except grpc.RpcError as error:
                found.extend(judged("a flood", error))

    async with asyncio.TaskGroup() as tasks:
        for call in calls:
            tasks.create_task(make(call))
    return found
