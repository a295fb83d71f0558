"""Calls at brokers for the event loop: over the client's connections, so that a waiting call occupies no thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any, Final, TypeVar

import grpc

from penstock.client import BrokerUnavailable, PenstockError, TopicNotFound
from penstock.client.cluster import BROKER, Calls, Service, back_off_s, master_of, rpc_error
from penstock.proto.data_frames import Method
from penstock.proto.errors import RouteNotFound
from penstock.proto.wire.nameserver_pb2 import TopicRoute
from penstock.runtime.turns import runs_here, seen

T = TypeVar("T")

ROUTE_S: Final = 2.0
MASTER_WAIT_S: Final = 2.0
_POLL_S: Final = 0.05
_TRY_S_MIN: Final = 0.25


class Brokers:
    """The cluster as the gateway sees it. Event loop only, but for the threads that :meth:`in_thread` lends."""

    def __init__(self, calls: Calls, threads: ThreadPoolExecutor) -> None:
        self.calls = calls
        self._threads = threads
        self._to_ask: dict[str, asyncio.Future[TopicRoute]] = {}  # lookups that no thread has begun; it takes them out

    async def in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    def known_route(self, topic: str) -> TopicRoute | None:
        """The route that is known of ``topic``, or None: another object whenever it has changed."""
        return self.calls.directory.known(topic)

    async def route(self, topic: str) -> TopicRoute:
        """The route of a topic that exists; from memory, but for the first time.

        Raises:
            TopicNotFound: it does not exist. RouteNotFound: no broker lives. NameserverUnavailable.
        """
        known = self.known_route(topic)
        if known is None or not known.exists:
            # Only topics that exist are watched: names that strangers make up would be watched for ever. However many
            # ask for one, a single lookup waits for a thread. One under way may be too old for who asks now.
            lookup = self._to_ask.get(topic)
            if lookup is None:
                lookup = self._to_ask[topic] = asyncio.ensure_future(self.in_thread(self._asked, topic))
                lookup.add_done_callback(seen)
            known = await asyncio.shield(lookup)
        return known

    def _asked(self, topic: str) -> TopicRoute:
        self._to_ask.pop(topic, None)
        route = self.calls.directory.route(topic, ROUTE_S)
        if route.exists:
            return self.calls.directory.topic(topic, ROUTE_S)
        if not route.shards:
            raise RouteNotFound(f"topic {topic!r}: the nameservers know no living broker")
        raise TopicNotFound(f"topic {topic!r} does not exist: create it with penstock topic create")

    async def served_route(self, topic: str) -> TopicRoute:
        """The same once a broker group of the topic has a master; a failover is waited for, ``MASTER_WAIT_S`` long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + MASTER_WAIT_S
        while True:
            route = await self.route(topic)
            if any(master_of(shard) for shard in route.shards):
                return route
            if loop.time() >= until:
                raise RouteNotFound(f"topic {topic!r}: no broker group of it has a living master")
            await asyncio.sleep(_POLL_S)

    async def at_master(
        self, broker_name: str, method: str, request: Any, timeout_s: float, *, service: Service = BROKER
    ) -> Any:
        """A master's answer; a change of masters is ridden through. Raises the last PenstockError."""

        def start(address: str, left_s: float) -> Any:
            stub = self.calls.connections.stub(address, service)
            return getattr(stub, method).future(request, timeout=left_s)

        return await self._on_master(broker_name, start, timeout_s)

    async def at_data_port(
        self,
        broker_name: str,
        method: Method,
        content: bytes,
        take: Callable[[bytes], T],
        timeout_s: float,
        *,
        late: Callable[[bytes], object] | None = None,
    ) -> T:
        """The same of a method of the data port; ``take`` makes the answer out of its bytes.

        ``late`` is given, in any thread, an answer that comes when this was cancelled, or its time is over.
        """

        def start(address: str, left_s: float) -> Any:
            return self.calls.connections.ask(address, method, content, take, left_s, late=late)

        found: T = await self._on_master(broker_name, start, timeout_s, late)
        return found

    async def _on_master(
        self,
        broker_name: str,
        start: Callable[[str, float], Any],
        timeout_s: float,
        late: Callable[[Any], object] | None = None,
    ) -> Any:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        tries = 0
        while True:
            left_s = max(until - loop.time(), _TRY_S_MIN)
            try:
                address = await self._address(broker_name, fresh=tries > 0)
                return await answered(start(address, left_s), address, late)
            except PenstockError as error:
                tries += 1
                pause_s = back_off_s(tries)
                if not error.retryable or loop.time() + pause_s >= until:
                    raise
            await asyncio.sleep(pause_s)

    async def _address(self, broker_name: str, *, fresh: bool) -> str:
        known = None if fresh else self.calls.directory.master(broker_name)
        if known is not None:
            return known
        return await self.in_thread(lambda: self.calls.directory.address(broker_name, ROUTE_S, fresh=fresh))


async def answered(call: Any, address: str, late: Callable[[Any], object] | None = None) -> Any:
    """What the future ``call``, gRPC's or another thread's, ends with; cancelling this cancels it.

    ``late`` is given what it had ended with by then.

    Raises:
        PenstockError: the call's error.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not done.done():
            done.set_result(None)

    def on_end(_: Any) -> None:
        if runs_here(loop):
            tell()
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell)

    call.add_done_callback(on_end)
    try:
        await done
    except asyncio.CancelledError:
        if not call.cancel() and late is not None and call.exception() is None:
            late(call.result())
        raise
    try:
        return call.result()
    except grpc.RpcError as error:
        raise rpc_error(error, address) from error
    except (grpc.FutureCancelledError, CancelledError):
        raise BrokerUnavailable(f"broker {address}: the call was cancelled") from None
