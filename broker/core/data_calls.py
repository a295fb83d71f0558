"""Methods of the data port: those with one answer for one request, as :func:`.wire.service` is for gRPC's, those whose
requests bring records that are placed as they are read, and those whose request stands, and has any number of answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from penstock.proto.data_frames import Method
from penstock.proto.errors import BrokerUnavailable, InvalidArgument, LimitReached, PenstockError
from penstock.proto.requests import decoded
from penstock.runtime.channel import reported
from penstock.runtime.data.port import Conversation, Link
from penstock.runtime.data.sending import Data
from penstock.runtime.turns import Turns, begin

from ..limits import Limits
from .wire import REQUEST_BYTES_MAX, Answer

M = TypeVar("M", bound=Message)
R = TypeVar("R")
S = TypeVar("S", bound="Standing")
P = TypeVar("P", bound="Placed")

UNDER_WAY_MAX: Final = 1024
"""Requests for one method over one connection that have no answer yet; beyond it, nothing more is read from it."""
UNANSWERED_MAX: Final = 1024
"""Batches of one stream that are placed and have no answer yet; beyond it, nothing more is read from it."""
LAST_REQUESTS_S: Final = 0.05
"""For so long a stopping broker still reads, to refuse by name what would else be lost with the connection."""
SILENCE_S: Final = 3.0
WATCH_INTERVAL_S: Final = 0.25
"""Of requests that stand."""


@dataclass(eq=False)
class DataCalls(Generic[R]):
    """One method, for all connections; event loop only. For :meth:`.feature.Feature.data_methods`.

    ``answer(request)``: as of a unary method of gRPC; ``before`` is called before it. It begins as the request is read,
    so what it does before it waits for something may not ask for the current task. With ``may_end`` a request of
    nothing cancels the one of its number, whose answer is nothing then.
    """

    method: Method
    kind: type[R]
    answer: Answer
    _: KW_ONLY
    before: Callable[[], None] | None = None
    under_way_max: int = UNDER_WAY_MAX
    may_end: bool = False

    def __post_init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = Turns()
        self._name = f"data call {self.method.name}"

    def __call__(self, link: Link) -> _Conversation[R]:
        """The calls over one connection."""
        return _Conversation(self, link)

    async def close(self) -> None:
        """Return when what was taken has its answer. Before, ``LogEvents.is_open`` was made false."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def request(self, content: memoryview) -> R:
        """What is asked. Raises what the caller is to be told."""
        return decoded(self.kind, content, REQUEST_BYTES_MAX)  # type: ignore[type-var]  # where not, it is overridden

    def start(self, number: int, request: R, link: Link) -> asyncio.Task[None] | None:
        """Answer; None if that is done, else the task that goes on with it, and that :meth:`close` waits for."""
        has_time, name = self._turns.has_time, self._name
        running = self._run(number, request, link, has_time=has_time)
        if has_time:
            try:
                task = begin(running, name)
            except asyncio.CancelledError:  # of what it waited for: nobody else's call ends with it
                return None
        else:
            task = asyncio.create_task(running, name=name)
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return task

    async def found(self, request: R, link: Link) -> Sequence[Data]:
        """The pieces of the answer. Raises what the caller is to be told."""
        answer: Message = await self.answer(request)
        return [answer.SerializeToString()]

    async def _run(self, number: int, request: R, link: Link, *, has_time: bool) -> None:
        try:
            if not has_time:
                await self._turns.have()
            if self.before is not None:
                self.before()
            pieces = await self.found(request, link)
        except Exception as error:  # noqa: BLE001  the edge of the request: told to the caller and logged
            link.refuse(number, self.method, reported(error, self.method.name))
        else:
            link.answer(number, self.method, *pieces)


class _Conversation(Generic[R]):
    """The calls over one connection."""

    def __init__(self, calls: DataCalls[R], link: Link) -> None:
        self._calls = calls
        self._link = link
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by number, whose answers are to come

    def take(self, number: int, content: memoryview) -> None:
        calls, method = self._calls, self._calls.method
        if calls.may_end and not content:
            self._end(number)
            return
        try:
            if number in self._tasks:
                raise InvalidArgument(f"{method.name} {number} is under way: the next needs another number")
            request = calls.request(content)
        except Exception as error:  # noqa: BLE001  as above
            self._link.refuse(number, method, reported(error, method.name))
            return
        task = calls.start(number, request, self._link)
        if task is None:
            return
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._on_done(number))
        if len(self._tasks) >= calls.under_way_max:
            self._link.hold(True, method.name)

    def left(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def _end(self, number: int) -> None:
        task = self._tasks.get(number)
        if task is not None and task.cancel():  # else its answer is sent already
            self._link.answer(number, self._calls.method)

    def _on_done(self, number: int) -> None:
        del self._tasks[number]
        if len(self._tasks) == self._calls.under_way_max // 2:
            self._link.hold(False, self._calls.method.name)


class Placed(Protocol):
    """What a request has placed in the log, until it has its answer."""

    @property
    def is_settled(self) -> bool:
        """True if the answer waits for nothing."""


class Placing(Protocol[P]):
    """Takes batches of records."""

    def place(self, request: memoryview) -> P:
        """Place one framed batch; nothing keeps the request. Raises what its sender is told."""

    async def acknowledge(self, placed: P) -> Message:
        """The answer, when the batch is as safe as the mode promises. Raises what its sender is told."""

    def receipt(self, placed: P) -> Message:
        """The answer of one that waits for nothing."""


class PlacingCalls(Generic[P]):
    """One method whose requests bring records, for all connections; event loop only.

    Requests are views of what is received, so a batch is placed as it is read. They are answered in the order in which
    they came. Order needs no numbers: what is acknowledged follows the log, so an answer rarely waits for an earlier
    one that is not due itself.
    """

    def __init__(self, method: Method, placing: Placing[P]) -> None:
        self.method = method
        self.placing = placing
        self._open: set[_PlacingStream[P]] = set()

    def __call__(self, link: Link) -> _PlacingStream[P]:
        """One stream, until its connection ends."""
        stream = _PlacingStream(self, link, self._open.discard)
        self._open.add(stream)
        return stream

    def is_answered(self) -> bool:
        """True if every batch that was read has its answer."""
        return not any(stream.waiting for stream in self._open)

    async def close(self) -> None:
        """Read nothing more; return when what was read has its answer. Before, ``LogEvents.is_open`` was made false.

        The connections stay: answers to other methods may be due over them.
        """
        if self._open:
            await asyncio.sleep(LAST_REQUESTS_S)
        await asyncio.gather(*(stream.end() for stream in list(self._open)))

    def close_links(self) -> None:
        """Close the streams' connections, over which nobody owes an answer any more."""
        for stream in list(self._open):
            stream.link.close()


class _PlacingStream(Generic[P]):
    """Places what comes; answers at once what waits for nothing, the rest in a task of its own."""

    def __init__(self, calls: PlacingCalls[P], link: Link, on_left: Callable[[_PlacingStream[P]], None]) -> None:
        self._placing = calls.placing
        self._method = calls.method
        self.link = link
        self._on_left = on_left
        self.waiting: deque[tuple[int, P | PenstockError]] = deque()  # in it until the answer is sent
        self._answering: asyncio.Task[None] | None = None  # while anything waits

    def take(self, number: int, content: memoryview) -> None:
        outcome = self._place(content)
        if not self.waiting and (isinstance(outcome, PenstockError) or outcome.is_settled):
            self._tell(number, outcome if isinstance(outcome, PenstockError) else self._placing.receipt(outcome))
            return
        self.waiting.append((number, outcome))
        if self._answering is None:
            name = f"{self._method.name.lower()} answers"
            self._answering = asyncio.create_task(self._answer_waiting(), name=name)
        elif len(self.waiting) == UNANSWERED_MAX:
            self.link.hold(True, self._method.name)

    def left(self) -> None:
        self._on_left(self)
        if self._answering is not None:
            self._answering.cancel()

    async def end(self) -> None:
        """Read nothing more, and return when everything that was read is answered."""
        self.link.hold(True, self._method.name)
        if self._answering is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._answering

    def _place(self, content: memoryview) -> P | PenstockError:
        try:
            return self._placing.place(content)
        except Exception as error:  # noqa: BLE001  the edge of the request: told to the caller and logged
            return reported(error, self._method.name)

    async def _answer_waiting(self) -> None:
        waiting = self.waiting
        while waiting:
            number, outcome = waiting[0]
            self._tell(number, await self._said(outcome))
            waiting.popleft()
            if len(waiting) == UNANSWERED_MAX // 2:
                self.link.hold(False, self._method.name)
        self._answering = None

    async def _said(self, outcome: P | PenstockError) -> Message | PenstockError:
        if isinstance(outcome, PenstockError):
            return outcome
        try:
            return await self._placing.acknowledge(outcome)
        except Exception as error:  # noqa: BLE001  as above
            return reported(error, self._method.name)

    def _tell(self, number: int, said: Message | PenstockError) -> None:
        if isinstance(said, PenstockError):
            self.link.refuse(number, self._method, said)
        else:
            self.link.answer(number, self._method, said.SerializeToString())


class Standing:
    """One client's request that stands; event loop only."""

    def __init__(self, client_id: str, number: int, method: Method, link: Link) -> None:
        self.client_id = client_id
        self.link = link
        self.is_over = False
        self._number = number
        self._method = method

    def answer(self, *content: Data) -> None:
        """Send one of its answers."""
        self.link.answer(self._number, self._method, *content)

    def end(self, error: PenstockError | None) -> None:
        """Send nothing more, but why; the first reason stands."""
        if not self.is_over:
            self.is_over = True
            if error is not None:
                self.link.refuse(self._number, self._method, error)


class StandingCalls(ABC, Generic[M, S]):
    """One method whose requests stand, one of each client, for all connections; event loop only.

    A request stands until its client's connection ends, says nothing for ``SILENCE_S``, or the same client asks anew.
    Clients whose request stands ping.
    """

    verb: ClassVar[str]
    """What clients do by it; of one ``does``, of many ``crowd``."""
    does: ClassVar[str]
    crowd: ClassVar[str]

    def __init__(self, method: Method, kind: type[M], limits: Limits) -> None:
        self.method = method
        self.kind = kind
        self.known: dict[str, S] = {}  # by client id
        self._limits = limits
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None  # while anybody is here

    def __call__(self, link: Link) -> Conversation:
        """The requests over one connection."""
        return _Stand(self, link)

    def __len__(self) -> int:
        return len(self.known)

    @abstractmethod
    def made(self, number: int, request: M, link: Link) -> S:
        """A request that makes sense by itself. Raises what its client is told."""

    @abstractmethod
    def admit(self, made: S, request: M, former: S | None) -> None:
        """Let it stand, in place of ``former`` of the same client. Raises what its client is told."""

    @abstractmethod
    def greet(self, made: S) -> None:
        """Send its first answer: it stands."""

    @abstractmethod
    def on_left(self, former: S) -> None:
        """A client's request stands no more, and no other in its place."""

    def enter(self, number: int, request: M, link: Link, former: S | None) -> S:
        """Have a request stand; ``former``: what stood over the same connection.

        Raises:
            InvalidArgument, InvalidName: the request makes no sense.
            BrokerUnavailable, NotMaster: nobody is answered here. LimitReached: there are too many clients.
        """
        if self._is_closed:
            raise BrokerUnavailable(f"the broker is shutting down: {self.verb} elsewhere")
        made = self.made(number, request, link)
        client = f"client {made.client_id}"
        if former is not None and not former.is_over and former.client_id != made.client_id:
            raise InvalidArgument(f"{client}: {former.client_id} {self.does} over this connection")
        known = self.known.get(made.client_id)
        if known is None and len(self.known) >= self._limits.sessions_max:
            raise LimitReached(f"{client}: {len(self.known)} {self.crowd} (maxConsumerSessions)")
        self.admit(made, request, known)
        if known is not None:
            known.end(BrokerUnavailable(f"{client} {self.does} by another request now"))
        self.known[made.client_id] = made
        self.greet(made)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WATCH_INTERVAL_S, self._watch)
        return made

    def leave(self, former: S, error: PenstockError | None = None) -> None:
        """A request stands no more; ``error`` is told to its client."""
        former.end(error)
        if self.known.get(former.client_id) is former:
            del self.known[former.client_id]
            self.on_left(former)

    def end_all(self, error: PenstockError) -> None:
        """End every request."""
        for each in list(self.known.values()):
            self.leave(each, error)

    def close(self) -> None:
        """End every request; new ones are refused."""
        self._is_closed = True
        self.end_all(BrokerUnavailable(f"the broker is shutting down: {self.verb} elsewhere"))
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        """End those that are silent."""
        for each in list(self.known.values()):
            silent_s = each.link.silent_s
            if silent_s >= SILENCE_S:
                self.leave(each, BrokerUnavailable(f"nothing was heard for {silent_s:.1f} s: {self.verb} anew"))
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(WATCH_INTERVAL_S, self._watch) if self.known else None


class _Stand(Generic[M, S]):
    """The requests for one method over one connection, of which the last one stands."""

    def __init__(self, calls: StandingCalls[M, S], link: Link) -> None:
        self._calls = calls
        self._link = link
        self._stands: S | None = None

    def take(self, number: int, content: memoryview) -> None:
        method = self._calls.method
        try:
            request = decoded(self._calls.kind, content, REQUEST_BYTES_MAX)
            self._stands = self._calls.enter(number, request, self._link, self._stands)
        except Exception as error:  # noqa: BLE001  the edge of the request: told to the caller and logged
            self._link.refuse(number, method, reported(error, method.name))

    def left(self) -> None:
        if self._stands is not None:
            self._calls.leave(self._stands)
