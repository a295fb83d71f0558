"""Attacks on a running cluster. Each returns what it found wrong: answers that no request should get."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from penstock.proto import frames
from penstock.proto.data_frames import Method as DataMethod
from penstock.proto.errors import PenstockError, from_rpc_error
from penstock.proto.wire import common_pb2, nameserver_pb2
from penstock.proto.wire.nameserver_pb2_grpc import NameserverStub
from penstock.runtime.channel import open_async_channel
from tests.support.broker.requests import BORN
from tests.support.data import DataConnection, connected, data_port_of
from tests.support.record.encoding import encode_messages

from .methods import AT_DATA_PORT, Method, methods
from .target import Target
from .values import crowded, plausible, requests

AT_ONCE = 8
TIMEOUT_S = 10.0
POLL_S = 0.3
"""A stream of answers may wait for messages for as long as it is let."""
STRANGER = (("x-mq-client-id", "stranger"),)
"""A gateway listens to nobody without."""
SEED = 20_260_114


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    length: int  # of the longest text and list
    many: int  # connections, consumers, topics: times ten, as told
    noise: int  # random requests for each method
    crowd_bytes: int  # of a request that is full of empty messages


SHORT = Scale(length=2_000, many=20, noise=2, crowd_bytes=300_000)
LONG = Scale(length=100_000, many=200, noise=20, crowd_bytes=4_000_000)

RECORDS = encode_messages("prey", [b"one"], born_host=BORN)

BROKEN_OFF = (asyncio.InvalidStateError, grpc.aio.InternalError, asyncio.CancelledError)
"""How a stream says that the server has ended it while this side was writing."""

BROKEN_OFF_AT_ONCE = "Internal error from Core"
"""The same of one that ended, or was late, before its initial metadata came: gRPC's own words, not a server's."""

Findings = list[str]
Attack = Callable[[Target, Scale], Awaitable[Findings]]


async def every_method(target: Target, scale: Scale) -> Findings:
    """Each method with each field at and beyond its limits."""

    def contents(method: Method) -> Iterator[tuple[str, bytes]]:
        for told, message in requests(method.request, scale.length):
            yield told, _encoded(method, message.SerializeToString())

    found = await _at_each_method(target, contents)
    async with open_async_channel(target.nameserver.address) as channel:
        stub = NameserverStub(channel)  # type: ignore[no-untyped-call]  # generated code
        for group in (await stub.QueryCluster(common_pb2.Empty())).absent:  # that registered: remembered until then
            await stub.ForgetShard(nameserver_pb2.ShardName(broker_name=group.broker_name))
    return found


async def crowded_requests(target: Target, scale: Scale) -> Findings:
    """Each method with lists of as many empty messages as go into a request: two bytes each, that become objects."""

    def contents(method: Method) -> Iterator[tuple[str, bytes]]:
        for content in crowded(method.request, scale.crowd_bytes):
            yield "crowded", _encoded(method, content)

    return await _at_each_method(target, contents)


async def noise(target: Target, scale: Scale) -> Findings:
    """Each method with random bytes, with the begin of a sound request, and with one in another method's place."""
    dice = random.Random(SEED)
    sound = {method: plausible(method.request).SerializeToString() for method in (*AT_DATA_PORT.values(), *methods())}

    def contents(method: Method) -> Iterator[tuple[str, bytes]]:
        for _ in range(scale.noise):
            yield "noise", dice.randbytes(dice.randrange(1, 400))
            yield "framed noise", _encoded(method, dice.randbytes(dice.randrange(400)))
            yield "cut", _encoded(method, sound[method])[: dice.randrange(len(sound[method]) + 4)]
            yield "another's", _encoded(method, dice.choice(list(sound.values())))

    return await _at_each_method(target, contents)


async def _at_each_method(target: Target, contents: Callable[[Method], Iterable[tuple[str, bytes]]]) -> Findings:
    found: Findings = []
    gate = asyncio.Semaphore(AT_ONCE)
    async with (
        open_async_channel(target.master.address) as broker,
        open_async_channel(target.nameserver.address) as nameserver,
        open_async_channel(target.gateway.address) as gateway,
    ):
        channels = {"broker": broker, "nameserver": nameserver, "gateway": gateway}
        for method in methods():
            channel = channels[method.server]

            async def send(told: str, content: bytes, method: Method = method, channel: Any = channel) -> None:
                async with gate:
                    problem = await _answer(channel, method, content)
                    if problem:
                        found.append(f"{method.path} {told}: {problem}")

            async with asyncio.TaskGroup() as calls:
                for told, content in contents(method):
                    calls.create_task(send(told, content))
    port = await data_port_of(target.master.address)
    for number, method in AT_DATA_PORT.items():
        async with contextlib.AsyncExitStack() as held:
            connection: DataConnection | None = None
            for told, content in contents(method):
                if not content and number in (DataMethod.FETCH, DataMethod.RECEIVE):
                    continue  # it ends a wait, and is not answered itself
                if connection is None or method.is_stream:  # what stands ends with its connection
                    await held.aclose()
                    host = target.master.address.rpartition(":")[0]
                    connection = await held.enter_async_context(connected(host, port))
                try:
                    async with asyncio.timeout(TIMEOUT_S):
                        await connection.ask(number, content)
                except PenstockError as error:
                    if "internal error" in error.message:
                        found.append(f"{method.path} {told}: {error.message[:200]}")
                except TimeoutError:
                    found.append(f"{method.path} {told}: no answer within {TIMEOUT_S} s")
    return found


def _encoded(method: Method, message: bytes) -> bytes:
    """As it goes over the wire: behind the header of a framed method come records, but not behind a slave's reports."""
    if not method.is_framed:
        return message
    return b"".join((frames.PREFIX.pack(len(message)), message, b"" if method.is_stream else RECORDS))


async def _answer(channel: Any, method: Method, content: bytes) -> str:
    """What is wrong with the answer to ``content``; empty: it was answered, or refused by name."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            if method.is_answered_by_stream:
                async for _ in channel.unary_stream(method.path)(content, timeout=POLL_S, metadata=STRANGER):
                    pass
                return ""
            if not method.is_stream:
                await channel.unary_unary(method.path)(content, timeout=TIMEOUT_S / 2, metadata=STRANGER)
                return ""
            call = channel.stream_stream(method.path)(timeout=1, metadata=STRANGER)
            try:
                await call.write(content)
                await call.done_writing()
                await call.read()
            finally:
                call.cancel()
    except grpc.RpcError as error:
        if method.is_stream and error.details() == BROKEN_OFF_AT_ONCE:  # type: ignore[attr-defined]  # as in judged
            return ""
        return "".join(judged("", error))
    except BROKEN_OFF:
        return ""
    except TimeoutError:
        return "" if method.is_stream else f"no answer within {TIMEOUT_S} s"
    return ""


def judged(path: str, error: grpc.RpcError) -> Findings:
    """What is wrong with a refusal: nothing, if it tells the caller what is."""
    code = error.code()  # type: ignore[attr-defined]  # what gRPC raises is also the call
    problem = from_rpc_error(error, "")
    if "internal error" in problem.message or code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL):
        return [f"{path} {code} {problem.message[:200]}"]
    return []
