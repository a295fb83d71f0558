"""Bytes from enemies on the nameserver's port: each ends its own connection, and the others are served on."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.proto.wire.nameserver_pb2 import BrokerReport, RouteQuery, WatchRequest
from penstock.runtime.channel import open_async_channel
from tests.support.broker.registrations import registration
from tests.support.cluster.nameserver import connected, nameserver

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def noise(seed: int) -> bytes:
    return random.Random(seed).randbytes(4096)


ATTACKS = {
    "noise": noise(1),
    "http/1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "http/1 post": b"POST /penstock.v1.Nameserver/QueryRoute HTTP/1.1\r\nContent-Length: 99999\r\n\r\nxx",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise(2)[:512],
    "a preface and noise": HTTP2_PREFACE + noise(3),
    "a preface and a frame that claims 16 MiB": HTTP2_PREFACE + b"\xff\xff\xff\x00\x01\x00\x00\x00\x01" + noise(4),
    "a preface, settings and headers of noise": HTTP2_PREFACE
    + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x01\x00\x01\x04\x00\x00\x00\x01"
    + noise(5)[:256],
    "nothing": b"",
    "zeros": bytes(65_536),
}


async def send(address: str, content: bytes) -> None:
    """Send ``content``, then leave without a word, whatever comes back."""
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    with contextlib.suppress(ConnectionError):
        writer.write(content)
        await writer.drain()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def still_serves(stub: Any) -> None:
    update = await stub.QueryRoute(RouteQuery(topics=["T"]), timeout=10)
    assert update.routes[0].exists


@pytest.mark.parametrize("attack", ATTACKS)
def test_foreign_bytes_leave_it_serving(tmp_path: Path, attack: str) -> None:
    async def scenario() -> None:
        async with nameserver(tmp_path) as address, connected(address) as stub:
            session = stub.BrokerSession()
            await session.write(BrokerReport(registration=registration(topics=("T",))))
            await session.read()
            await asyncio.gather(*(send(address, ATTACKS[attack]) for _ in range(10)))
            await still_serves(stub)
            async with connected(address) as other:
                await still_serves(other)

    asyncio.run(scenario())


METHODS = ("QueryRoute", "QueryCluster", "ListTopics", "PutKeyValue", "GetKeyValue", "DeleteKeyValue", "ListKeyValues")


def test_noise_in_place_of_messages_is_answered_with_errors(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nameserver(tmp_path) as address, connected(address) as stub:
            session = stub.BrokerSession()
            await session.write(BrokerReport(registration=registration(topics=("T",))))
            await session.read()
            async with open_async_channel(address) as channel:
                for seed, method in enumerate(METHODS):
                    with contextlib.suppress(grpc.RpcError):
                        await channel.unary_unary(f"/penstock.v1.Nameserver/{method}")(noise(seed)[:99], timeout=10)
                for method in ("BrokerSession", "WatchRoutes"):
                    call = channel.stream_stream(f"/penstock.v1.Nameserver/{method}")()
                    with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
                        await call.write(noise(7))
                        await call.read()
                    call.cancel()
                with pytest.raises(grpc.RpcError) as caught:
                    await channel.unary_unary("/penstock.v1.Nameserver/NoSuchMethod")(b"", timeout=10)
                assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            await still_serves(stub)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "report",
    [
        registration("../../etc"),
        registration("x" * 10_000),
        registration(address="\x00:1"),
        registration(topics=("T", "\x00")),
        registration(topics=("t" * 1_000_000,)),
        registration(broker_id=-(1 << 31)),
    ],
)
def test_illegal_registrations_are_refused_and_change_nothing(
    tmp_path: Path, report: BrokerReport.Registration
) -> None:
    async def scenario() -> None:
        async with nameserver(tmp_path) as address, connected(address) as stub:
            await session_of(stub, registration("broker-z", topics=("T",)))
            with pytest.raises(grpc.RpcError) as caught:
                await session_of(stub, report)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            await still_serves(stub)

    async def session_of(stub: Any, one: BrokerReport.Registration) -> Any:
        call = stub.BrokerSession()
        await call.write(BrokerReport(registration=one))
        await call.read()
        return call

    asyncio.run(scenario())


def test_a_watcher_that_never_reads_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nameserver(tmp_path) as address, connected(address) as stub, connected(address) as lazy:
            topics = [f"topic-{number}" for number in range(5000)]
            watch = lazy.WatchRoutes()
            await watch.write(WatchRequest(add_topics=topics))
            for restart in range(20):
                session = stub.BrokerSession()
                report = registration(topics=("T", *topics), instance=f"start-{restart}")
                await session.write(BrokerReport(registration=report))
                await session.read()
            await still_serves(stub)
            watch.cancel()

    asyncio.run(scenario())
