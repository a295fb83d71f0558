"""Faults of a broker's server, made by an interceptor in front of everything that it serves."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor_pool import Default as all_descriptors
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from penstock.proto import frames
from penstock.proto.data_frames import Method
from penstock.proto.errors import BrokerUnavailable, PenstockError
from penstock.proto.wire.broker_pb2 import AppendHeader, AppendReceipt, FetchHeader
from penstock.proto.wire.pop_pb2 import (
    AcknowledgeReply,
    AcknowledgeRequest,
    ChangeInvisibleReply,
    ChangeInvisibleRequest,
    ReceiveHeader,
)
from penstock.proto.wire.replies_pb2 import ListenRequest
from penstock.proto.wire.transactions_pb2 import EndReply, EndRequest, JoinRequest, ProducerEvent
from penstock.runtime.channel import fail
from penstock.runtime.data.port import Converse
from penstock.runtime.data.sending import Data

UNTOUCHED = (("x-penstock-test", "untouched"),)
"""The metadata of the test's own calls: no fault meets them, nothing counts them."""
FRAMED: dict[str, Any] = {"Append": AppendHeader, "Fetch": FetchHeader}
DATA: dict[Method, tuple[str, type[Message] | None, type[Message] | None]] = {
    Method.APPEND: ("Append", None, AppendReceipt),
    Method.FETCH: ("Fetch", None, None),
    Method.END: ("End", EndRequest, EndReply),
    Method.LISTEN: ("Listen", ListenRequest, None),
    Method.JOIN: ("Join", JoinRequest, ProducerEvent),
    Method.RECEIVE: ("Receive", ReceiveHeader, None),
    Method.ACKNOWLEDGE: ("Acknowledge", AcknowledgeRequest, AcknowledgeReply),
    Method.CHANGE_INVISIBLE: ("ChangeInvisible", ChangeInvisibleRequest, ChangeInvisibleReply),
}
"""Methods of the data port: name, request, answer; None: framed."""

Refusal = Callable[[Any, memoryview], PenstockError | None]
"""(request, the records behind it) -> why it is refused."""


@dataclass(eq=False)
class _Fault:
    method: str
    of_answers: bool
    act: Callable[[_Met, Any, memoryview], Awaitable[Any]]
    """Gives the answer to send; of requests, returns or raises the refusal."""
    left: float


class Faults(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """What is asked of one broker, and what goes wrong with it. For any thread; faults meet what comes after them.

    Methods are named without their service. A request is a call's, or one message of a stream; so is an answer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """``loop``: the broker's."""
        self.calls: Counter[str] = Counter()
        self.requests: defaultdict[str, list[Any]] = defaultdict(list)
        """By method, those that a fault met among them; of framed ones the headers."""
        self.is_dead = False  # break every call that begins
        self._loop = loop
        self._faults: list[_Fault] = []
        self._under_way: set[_Met] = set()  # the loop's

    def refuse(self, method: str, error: PenstockError | Refusal, times: float = math.inf) -> None:
        """Refuse requests without their effect: the next ``times``, or those for which ``error`` has one."""

        async def act(_: _Met, request: Any, records: memoryview) -> None:
            found = error if isinstance(error, PenstockError) else error(request, records)
            if found is not None:
                raise found

        self._faults.append(_Fault(method, False, act, times))

    def drop_answers(self, method: str, times: float = math.inf) -> None:
        """Break calls in the place of their answers, after the effect."""

        async def act(call: _Met, _answer: Any, _: memoryview) -> None:
            call.cut("the answer was lost")
            await asyncio.Event().wait()

        self._faults.append(_Fault(method, True, act, times))

    def change_answers(self, method: str, change: Callable[[Any], Any]) -> None:
        """Send what ``change`` makes of each answer."""

        async def act(_call: _Met, answer: Any, _: memoryview) -> Any:
            return change(answer)

        self._faults.append(_Fault(method, True, act, math.inf))

    @contextlib.contextmanager
    def holding(self, method: str, *, answers: bool = False) -> Iterator[None]:
        """Requests, or answers, wait until the end of the block."""
        released = asyncio.Event()

        async def act(_call: _Met, held: Any, _: memoryview) -> Any:
            await released.wait()
            return held

        fault = _Fault(method, answers, act, math.inf)
        self._faults.append(fault)
        try:
            yield
        finally:
            fault.left = 0
            self._loop.call_soon_threadsafe(released.set)

    def heal(self) -> None:
        """No faults from now on."""
        self._faults.clear()

    def cut(self, method: str = "", why: str = "the connection was cut") -> None:
        """Break the calls under way: all, or those of one method."""

        def cut() -> None:
            for call in self._under_way:
                if method in ("", call.method):
                    call.cut(why)

        self._loop.call_soon_threadsafe(cut)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The method's handler with the faults around it."""
        handler = await continuation(handler_call_details)
        if handler is None or UNTOUCHED[0] in {(key, value) for key, value in handler_call_details.invocation_metadata}:
            return handler
        name = handler_call_details.method[1:].replace("/", ".")
        kind = None
        with contextlib.suppress(KeyError):  # no proto declares framed ones
            kind = GetMessageClass(all_descriptors().FindMethodByName(name).input_type)
        serve = self._around(name.rpartition(".")[2], kind, handler)
        form = (
            grpc.stream_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
        )
        return form(serve, handler.request_deserializer, handler.response_serializer)

    def _around(self, method: str, kind: type[Message] | None, handler: Any) -> Callable[[Any, Any], Awaitable[Any]]:
        behavior = handler.stream_stream or handler.unary_unary

        async def serve(given: Any, context: Any) -> Any:
            self.calls[method] += 1
            if self.is_dead:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the broker is dead")
            call = _Call(self, method, kind, context)
            self._under_way.add(call)
            try:
                async with call.scope:
                    if not handler.response_streaming:
                        return await call.sent(await behavior(await call.met(given), call))
                    if not inspect.isasyncgenfunction(behavior):
                        return await behavior(call.all_met(given), call)
                    async with contextlib.aclosing(behavior(call.all_met(given), call)) as answers:
                        async for answer in answers:
                            await call.write(answer)
            except TimeoutError:
                if not call.scope.expired():
                    raise
                await context.abort(grpc.StatusCode.UNAVAILABLE, call.cut_because)
            except PenstockError as error:
                await fail(context, error, method)
            finally:
                self._under_way.discard(call)

        return serve

    def around(self, methods: dict[int, Converse]) -> None:
        """Put the faults around methods of the data port."""
        for method in DATA.keys() & methods.keys():
            methods[method] = partial(self._begin, method, methods[method])

    def _begin(self, method: Method, begin: Converse, link: Any) -> Any:
        if UNTOUCHED[0] in link.metadata.items():
            return begin(link)
        made = _Conversation(self, method, begin, link)
        self.calls[made.method] += 1
        if self.is_dead:
            made.cut("the broker is dead")
        return made

    def matching(self, method: str, *, of_answers: bool) -> Iterator[_Fault]:
        """Those that a request or answer meets, each used up by one time as it is met."""
        for fault in list(self._faults):
            if fault.method == method and fault.of_answers is of_answers and fault.left > 0:
                fault.left -= 1
                yield fault


class _Met:
    """What is asked in one call or conversation, and answered, meets the faults here; event loop only."""

    def __init__(self, faults: Faults, method: str, kind: type[Message] | None) -> None:
        """``kind``: what the requests are, which come undecoded; None for framed ones."""
        self.method = method
        self._kind = kind
        self._faults = faults

    def cut(self, why: str) -> None:
        """Break it as a lost connection does."""
        raise NotImplementedError

    async def met(self, request: Any) -> Any:
        """What the broker is given in the place of ``request``. Raises the refusal."""
        header, records = self._unpacked(request)
        self._faults.requests[self.method].append(header)
        for fault in self._faults.matching(self.method, of_answers=False):
            await fault.act(self, header, records)
        return request if self._kind is None else header.SerializeToString()  # a fault may have changed it

    def _unpacked(self, request: Any) -> tuple[Any, memoryview]:
        """A request, or what is framed before its records."""
        if self._kind is not None:
            return self._kind.FromString(request), memoryview(b"")
        return frames.unpack(request, FRAMED[self.method]) if self.method in FRAMED else (request, memoryview(b""))

    async def sent(self, answer: Any) -> Any:
        """What the client is sent in the place of ``answer``."""
        for fault in self._faults.matching(self.method, of_answers=True):
            answer = await fault.act(self, answer, memoryview(b""))
        return answer


class _Call(_Met):
    """One call under way, in the place of its context."""

    def __init__(self, faults: Faults, method: str, kind: type[Message] | None, context: Any) -> None:
        super().__init__(faults, method, kind)
        self.scope = asyncio.timeout(None)
        self.cut_because = ""
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def cut(self, why: str) -> None:
        if not self.cut_because:
            self.cut_because = why
            with contextlib.suppress(RuntimeError):  # it ends already
                self.scope.reschedule(0)

    async def read(self) -> Any:
        request = await self._context.read()
        return request if request is grpc.aio.EOF else await self.met(request)

    async def write(self, answer: Any) -> None:
        await self._context.write(await self.sent(answer))

    async def all_met(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            yield await self.met(request)


class _Conversation(_Met):
    """What is asked over one connection: in the place of the broker's conversation, and of its link."""

    def __init__(self, faults: Faults, method: Method, begin: Converse, link: Any) -> None:
        name, kind, self._answer_kind = DATA[method]
        super().__init__(faults, name, kind)
        self._number = method
        self._link = link
        self._inner = begin(self)
        self._coming: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._going: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._tasks = [asyncio.create_task(self._take()), asyncio.create_task(self._give())]
        faults._under_way.add(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def cut(self, why: str) -> None:
        self._link.end(BrokerUnavailable(why, status="UNAVAILABLE"))

    # The broker's conversation, as the connection sees it.

    def take(self, number: int, content: memoryview) -> None:
        self._coming.put_nowait((number, bytes(content)))

    def left(self) -> None:
        self._faults._under_way.discard(self)
        for task in self._tasks:
            task.cancel()
        self._inner.left()

    # The connection, as the broker sees it.

    def answer(self, number: int, method: Method, *content: Data, on_taken: Callable[[], None] | None = None) -> None:
        self._going.put_nowait((number, b"".join(content)))
        if on_taken is not None:
            on_taken()

    async def _take(self) -> None:
        while True:
            number, content = await self._coming.get()
            try:
                taken = await self.met(content) if content else content
            except PenstockError as error:
                self._link.refuse(number, self._number, error)
            else:
                self._inner.take(number, memoryview(taken))

    async def _give(self) -> None:
        while True:
            number, content = await self._going.get()
            if self._answer_kind is not None:
                content = (await self.sent(self._answer_kind.FromString(content))).SerializeToString()
            else:
                content = await self.sent(content)
            self._link.answer(number, self._number, content)
