"""Faults of a broker's server, made by an interceptor in front of everything that it serves."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from penstock.proto import frames
from penstock.proto.errors import PenstockError, to_bytes
from penstock.proto.wire.broker_pb2 import AppendAnswer, AppendHeader, FetchHeader
from penstock.runtime.channel import fail

UNTOUCHED = (("x-penstock-test", "untouched"),)
"""The metadata of the test's own calls: no fault meets them, nothing counts them."""
FRAMED: dict[str, Any] = {"Append": AppendHeader, "Fetch": FetchHeader}
REFUSED_ANYWAY = frames.pack(AppendHeader())  # it names no topic

Refusal = Callable[[Any, memoryview], PenstockError | None]
"""(request, the records behind it) -> why it is refused."""


class _Call:
    """One call under way; event loop only."""

    def __init__(self, method: str, scope: asyncio.Timeout) -> None:
        self.method = method
        self.refusals: deque[PenstockError | None] = deque()  # of appends whose answers are not written yet
        self.cut_because = ""
        self._scope = scope

    def cut(self, why: str) -> None:
        """Break it as a lost connection does."""
        if not self.cut_because:
            self.cut_because = why
            self._scope.reschedule(0)


@dataclass(eq=False)
class _Fault:
    method: str
    of_answers: bool
    act: Callable[[_Call, Any, memoryview], Awaitable[Any]]
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
        self._under_way: set[_Call] = set()  # the loop's

    def refuse(self, method: str, error: PenstockError | Refusal, times: float = math.inf) -> None:
        """Refuse requests without their effect: the next ``times``, or those for which ``error`` has one."""

        async def act(_: _Call, request: Any, records: memoryview) -> None:
            found = error if isinstance(error, PenstockError) else error(request, records)
            if found is not None:
                raise found

        self._faults.append(_Fault(method, False, act, times))

    def drop_answers(self, method: str, times: float = math.inf) -> None:
        """Break calls in the place of their answers, after the effect."""

        async def act(call: _Call, _answer: Any, _: memoryview) -> None:
            call.cut("the answer was lost")
            await asyncio.Event().wait()

        self._faults.append(_Fault(method, True, act, times))

    def change_answers(self, method: str, change: Callable[[Any], Any]) -> None:
        """Send what ``change`` makes of each answer."""

        async def act(_call: _Call, answer: Any, _: memoryview) -> Any:
            return change(answer)

        self._faults.append(_Fault(method, True, act, math.inf))

    @contextlib.contextmanager
    def holding(self, method: str, *, answers: bool = False) -> Iterator[None]:
        """Requests, or answers, wait until the end of the block."""
        released = asyncio.Event()

        async def act(_call: _Call, held: Any, _: memoryview) -> Any:
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
        method = handler_call_details.method.rpartition("/")[2]
        coders = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._conversation(method, handler.stream_stream), **coders)
        return grpc.unary_unary_rpc_method_handler(self._single(method, handler.unary_unary), **coders)

    def _single(self, method: str, behavior: Any) -> Any:
        async def serve(request: Any, context: Any) -> Any:
            async with self._under(method, context) as call:
                answer = await behavior(await self._met(call, request), context)
                return await self._answer(call, answer)

        return serve

    def _conversation(self, method: str, behavior: Any) -> Any:
        async def serve(requests: AsyncIterator[Any], context: Any) -> None:
            async def met() -> AsyncIterator[Any]:
                async for request in requests:
                    yield await self._met(call, request)

            async with self._under(method, context) as call:
                seen = _Context(self, call, context)
                if not inspect.isasyncgenfunction(behavior):
                    await behavior(met(), seen)
                    return
                async with contextlib.aclosing(behavior(met(), seen)) as answers:
                    async for answer in answers:
                        await seen.write(answer)

        return serve

    @contextlib.asynccontextmanager
    async def _under(self, method: str, context: Any) -> AsyncIterator[_Call]:
        self.calls[method] += 1
        if self.is_dead:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the broker is dead")
        try:
            async with asyncio.timeout(None) as scope:
                call = _Call(method, scope)
                self._under_way.add(call)
                try:
                    yield call
                finally:
                    self._under_way.discard(call)
        except TimeoutError:
            if not scope.expired():
                raise
            await context.abort(grpc.StatusCode.UNAVAILABLE, call.cut_because)
        except PenstockError as error:
            await fail(context, error, method)

    async def _met(self, call: _Call, request: Any) -> Any:
        """What the broker is given in the place of ``request``."""
        header, records = request, memoryview(b"")
        if call.method in FRAMED:
            header, records = frames.unpack(request, FRAMED[call.method])
        self.requests[call.method].append(header)
        refusal = None
        try:
            for fault in self._matching(call.method, of_answers=False):
                await fault.act(call, header, records)
        except PenstockError as error:
            if call.method != "Append":
                raise
            refusal, request = error, REFUSED_ANYWAY  # so its answer has its place among the others
        call.refusals.append(refusal)
        return request

    async def _answer(self, call: _Call, answer: Any) -> Any:
        refusal = call.refusals.popleft() if call.refusals else None
        if refusal is not None:
            return AppendAnswer(error=to_bytes(refusal)).SerializeToString()
        for fault in self._matching(call.method, of_answers=True):
            answer = await fault.act(call, answer, memoryview(b""))
        return answer

    def _matching(self, method: str, *, of_answers: bool) -> Iterator[_Fault]:
        for fault in list(self._faults):
            if fault.method == method and fault.of_answers is of_answers and fault.left > 0:
                fault.left -= 1
                yield fault


class _Context:
    """A stream's context whose messages meet the faults."""

    def __init__(self, faults: Faults, call: _Call, context: Any) -> None:
        self._faults = faults
        self._call = call
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def read(self) -> Any:
        request = await self._context.read()
        return request if request is grpc.aio.EOF else await self._faults._met(self._call, request)

    async def write(self, answer: Any) -> None:
        await self._context.write(await self._faults._answer(self._call, answer))
