"""What a gRPC server takes in for a handler that reads nothing, and what a failed call keeps and touches."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import grpc
import grpc.aio
import pytest

from penstock.proto.errors import InvalidArgument, NameserverUnavailable
from penstock.runtime.channel import new_server, open_async_channel, reporting

CHUNK = bytes(1 << 18)
READ_FIRST = 100 << 20
"""So much comes so fast that gRPC, by itself, would let far more come unread."""
UNREAD_MAX = 1 << 20
BLOCKED_S = 1.0


@contextlib.asynccontextmanager
async def served(method: grpc.RpcMethodHandler[Any, Any]) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a server that has it as ``/a.Service/Take``."""
    server = new_server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.Service", {"Take": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with open_async_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(0)


def test_a_stream_that_was_fast_and_is_read_no_more_takes_little_in() -> None:
    async def run() -> None:
        stops, ends, sent = asyncio.Event(), asyncio.Event(), 0

        async def handler(requests: AsyncIterator[bytes], _: Any) -> None:
            count = 0
            async for each in requests:
                count += len(each)
                if count >= READ_FIRST:
                    break
            stops.set()
            await ends.wait()

        async with served(grpc.stream_stream_rpc_method_handler(handler)) as channel:
            take: Any = channel.stream_stream("/a.Service/Take")
            call = take()

            async def pour() -> None:
                nonlocal sent
                while sent < READ_FIRST + UNREAD_MAX:
                    await call.write(CHUNK)
                    sent += len(CHUNK)

            try:
                pouring = asyncio.create_task(pour())
                await stops.wait()
                await asyncio.wait({pouring}, timeout=BLOCKED_S)
                assert sent < READ_FIRST + UNREAD_MAX
                pouring.cancel()
                await asyncio.gather(pouring, return_exceptions=True)
                call.cancel()
            finally:
                ends.set()

    asyncio.run(run())


class Held:
    """A request, which is known for as long as anybody has it."""

    known: ClassVar[weakref.WeakSet[Held]] = weakref.WeakSet()

    def __init__(self, _: bytes) -> None:
        self.known.add(self)


def test_nobody_keeps_the_request_of_a_call_that_failed() -> None:
    async def run() -> None:
        async def refuse(request: Held, _: Any) -> bytes:
            raise InvalidArgument(f"{request!r:.20}")

        async with served(grpc.unary_unary_rpc_method_handler(reporting(refuse), request_deserializer=Held)) as channel:
            take: Any = channel.unary_unary("/a.Service/Take")
            with pytest.raises(grpc.RpcError):
                await take(b"")
            async with asyncio.timeout(30):
                while Held.known:
                    await asyncio.sleep(0.01)
                    gc.collect()

    asyncio.run(run())


def test_one_error_ends_many_calls_and_whoever_else_has_met_it_goes_on() -> None:
    async def run() -> None:
        error = NameserverUnavailable("the nameserver is stopping")
        told, ends, outlived = asyncio.Event(), asyncio.Event(), asyncio.Event()

        class Context:
            async def abort(self, *_: Any) -> None:
                told.set()
                await ends.wait()  # as gRPC does until the caller has it
                raise grpc.aio.AbortError

        @reporting
        async def method(_request: object, _context: object) -> None:
            raise error

        async def keeper() -> None:
            try:
                raise error
            except NameserverUnavailable:
                await ends.wait()
            outlived.set()

        keeping = asyncio.create_task(keeper())
        calls = [asyncio.create_task(method(None, Context())) for _ in range(3)]
        await told.wait()
        await asyncio.sleep(0)
        ends.set()
        assert [type(each) for each in await asyncio.gather(*calls, return_exceptions=True)] == [
            grpc.aio.AbortError
        ] * 3
        await keeping
        assert outlived.is_set()

    asyncio.run(run())


LOCKED_AT_THE_END = """
import threading, time
import grpc
from penstock.runtime.channel import open_channel

def failed():
    with open_channel("127.0.0.1:1") as channel:
        try:
            next(channel.unary_stream("/a.Service/Take")(b""))
        except grpc.RpcError as error:
            return error._state.condition

def hold(lock, held):
    with lock:
        held.set()
        time.sleep(0.5)

held = threading.Event()
threading.Thread(target=hold, args=(failed(), held), daemon=True).start()
held.wait()
"""
"""A program whose end finds a failed call that nobody has, and its lock in the hands of a thread that is stopped."""


def test_a_program_ends_although_a_thread_of_grpc_has_the_lock_of_a_failed_call() -> None:
    done = subprocess.run([sys.executable, "-c", LOCKED_AT_THE_END], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
