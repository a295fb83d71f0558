"""One call, which is one stream of HTTP/2: the client's messages as they come, and the answer with its flow control."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING

from penstock.runtime.channel import MESSAGE_BYTES_MAX
from penstock.runtime.turns import begin

from . import frames
from .frames import BEGIN, END_HEADERS, END_STREAM, HEAD, MESSAGE_HEAD, TRAILERS_OK, Code, Status, Type, frame
from .limits import CALL_WINDOW, NEW_S, TAKEN_S, UNARY_S
from .packing import Packed, PackingError, check_packing

if TYPE_CHECKING:
    from .connection import Connection
    from .method import Method

log = logging.getLogger(__name__)

_BEGIN_LENGTH, _TRAILERS_LENGTH = len(BEGIN), len(TRAILERS_OK)


class CallOver(Exception):
    """Nobody is there any more who would take an answer."""


class Call:
    """Made by its connection. Event loop only.

    Its task alone reads and writes; the connection, and whoever looks for what took too long, may end it meanwhile.
    """

    __slots__ = (
        "_begun",
        "_born",
        "_connection",
        "_is_timed",
        "_last",
        "_left",
        "_method",
        "_partial",
        "_task",
        "_waiting",
        "held",
        "is_half_closed",
        "is_over",
        "messages",
        "metadata",
        "number",
        "out",
        "pending",
        "request",
        "until",
        "untold",
        "window",
    )

    def __init__(
        self,
        connection: Connection,
        number: int,
        method: Method,
        metadata: Mapping[str, str],
        timeout_s: float | None,
    ) -> None:
        now = connection.now()
        self.number = number
        self.metadata = metadata
        """What the client says along with the call; of names that come twice, the last."""
        self.request = b""
        self.messages: deque[bytes] = deque()  # that nobody has read
        self.held = 0  # bytes that are kept for it
        self.untold = 0  # bytes that were received since the window was widened
        self.window = 0  # bytes that may be sent, besides those of every call of the connection
        self.pending: deque[memoryview] = deque()  # what waits for the windows
        self.is_half_closed = False  # True once the client has sent all
        self.is_over = False
        longest_s = math.inf if method.is_streaming else UNARY_S
        self.until = now + (longest_s if timeout_s is None else timeout_s)
        self._born = now
        self._is_timed = timeout_s is not None
        self._connection = connection
        self.out = connection.out
        self._method = method
        self._partial = bytearray()  # of a message
        length = metadata.get("content-length")
        self._left = None if length is None else int(length)  # bytes of the request, if its client said how many
        self._begun = False  # True once the client was told that an answer comes
        self._last: tuple[Status, str] | None = None  # what ends the call behind what is pending
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[asyncio.Future[None]] = []  # for a message, or for room
        if method.is_streaming:
            self._start()

    # For whoever answers.

    @property
    def host(self) -> str:
        """``ip:port`` of the client's end of the connection, or of whom a PROXY header named."""
        return self._connection.host

    def time_remaining(self) -> float | None:
        """Seconds until the client gives up; None: it names no deadline."""
        return max(self.until - self._connection.now(), 0.0) if self._is_timed else None

    async def requests(self) -> AsyncIterator[bytes]:
        """The client's messages, each as it comes. Raises CallOver: the call ends before the client has sent all."""
        while True:
            while self.messages:
                message = self.messages.popleft()
                self.hold(-len(message) - MESSAGE_HEAD.size)
                self._widen()
                if isinstance(message, Packed):
                    message = await self._unpacked(message)
                    self.hold(-len(message))
                yield message
            if self.is_half_closed:
                return
            await self._wait()

    def begin(self) -> None:
        """Tell the client that the answer begins."""
        if not self._begun and not self.is_over:
            self._begun = True
            self.out.send(frame(Type.HEADERS, END_HEADERS, self.number, BEGIN))

    async def write(self, message: bytes) -> None:
        """Send a message of the answer; returns when it is on its way. Raises CallOver: the client is gone."""
        await self.write_framed(MESSAGE_HEAD.pack(0, len(message)) + message)

    async def write_framed(self, messages: bytes) -> None:
        """The same of messages end to end, each with its head in front: 0, and its length in 4 bytes."""
        self._put(messages)
        while self.pending or self.out.is_paused:
            await self._wait()
        await self._connection.turns.have()  # a quick reader would let nobody else have the loop
        if self.is_over:
            raise CallOver

    def finish(self, message: bytes) -> None:
        """Send the only message of the answer, which ends with it."""
        size = len(message) + MESSAGE_HEAD.size
        out, number = self.out, self.number
        if self._begun or self.is_over or not self.is_half_closed or not out.takes(self, size):
            if not self.is_over:
                self.hold(-len(self.request))  # what is kept from here on is its answer
                self.request = b""
            self._put(MESSAGE_HEAD.pack(0, len(message)) + message)
            self.end()
            return
        out.send(
            b"".join(
                (
                    HEAD.pack(0, _BEGIN_LENGTH, Type.HEADERS, END_HEADERS, number),
                    BEGIN,
                    HEAD.pack(0, size, Type.DATA, 0, number),
                    MESSAGE_HEAD.pack(0, len(message)),
                    message,
                    HEAD.pack(0, _TRAILERS_LENGTH, Type.HEADERS, END_HEADERS | END_STREAM, number),
                    TRAILERS_OK,
                )
            )
        )
        self._close()

    def go_alone(self) -> None:
        """Have it answered after all, by who took it over and does not answer it."""
        if not self.is_over:
            self._start()

    def end(self, status: Status = Status.OK, text: str = "") -> None:
        """End the answer, behind what is pending; the first who does counts."""
        if self.is_over or self._last is not None:
            return
        self._last = status, text
        if self.pending:
            self.until = min(self.until, self._connection.now() + TAKEN_S)
            self._connection.due = min(self._connection.due, self.until)
        else:
            self._say_last()

    def end_confirmed(self, lost: Callable[[], None]) -> None:
        """End the answer, which is written; ``lost`` is called unless the client shows it came. Raises CallOver."""
        if self.is_over:
            raise CallOver
        self.end()
        self._connection.unconfirmed.add(self.number, lost)

    # For the connection.

    @property
    def is_new(self) -> bool:
        return self._connection.now() - self._born < NEW_S

    @property
    def late_at(self) -> float:
        is_asked = self.is_half_closed or self._method.is_streaming
        return self.until if is_asked else min(self.until, self._born + UNARY_S)

    def hold(self, count: int) -> None:
        """Count so many more bytes that are kept for it, or less."""
        self.held += count
        self._connection.hold(self, count)

    def came(self, content: bytes, flow: int) -> None:
        """Bytes of the client's messages; ``flow``: how many they are for the windows, padding included."""
        self.untold += flow
        if self.untold > CALL_WINDOW:
            self.break_off(Code.FLOW_CONTROL_ERROR)
            return
        if self._left is not None:
            self._left -= len(content)
            if self._left < 0:
                self.break_off(Code.PROTOCOL_ERROR)
                return
        partial = self._partial
        if not partial and len(content) >= MESSAGE_HEAD.size:
            flag, size = MESSAGE_HEAD.unpack_from(content)
            if not flag and size == len(content) - MESSAGE_HEAD.size:  # the usual case
                self.hold(len(content))
                self._take(content[MESSAGE_HEAD.size :])
                self._widen()
                return
        partial += content
        self.hold(len(content))
        at = 0
        while len(partial) - at >= MESSAGE_HEAD.size and not self.is_over:
            flag, size = MESSAGE_HEAD.unpack_from(partial, at)
            if flag and not self._takes_packed(flag):
                break
            if size > MESSAGE_BYTES_MAX:
                self.fail(Status.RESOURCE_EXHAUSTED, f"a message of {size} bytes: at most {MESSAGE_BYTES_MAX}")
            elif len(partial) - at - MESSAGE_HEAD.size < size:
                break
            else:
                begin = at + MESSAGE_HEAD.size
                at = begin + size
                self._take((Packed if flag else bytes)(memoryview(partial)[begin:at]))
        del partial[:at]
        self._widen()

    def half_close(self) -> None:
        """The client has sent all."""
        if self.is_half_closed or self.is_over:
            return
        self.is_half_closed = True
        if self._left:
            self.break_off(Code.PROTOCOL_ERROR)
        elif self._partial:
            self.fail(Status.INTERNAL, "the request ends within a message")
        elif self._method.is_streaming:
            self._wake()
        elif not self.messages:
            self.fail(Status.INTERNAL, "a call without its request")
        else:
            self.request = self.messages.popleft()
            if isinstance(self.request, Packed) or not self._method.takes(self):
                self._start()

    def pump(self) -> None:
        """Send as much of what is pending as the windows take."""
        out = self.out
        while self.pending and (room := out.room_of(self)) > 0:
            first = self.pending[0]
            part = first[:room]
            if len(part) == len(first):
                self.pending.popleft()
            else:
                self.pending[0] = first[room:]
            self.hold(-len(part))
            self.window -= len(part)
            out.window -= len(part)
            out.send(HEAD.pack(0, len(part), Type.DATA, 0, self.number), part)
        if not self.pending:
            self._wake()
            if self._last is not None:
                self._say_last()

    def room_came(self) -> None:
        if not self.pending:
            self._wake()

    def fail(self, status: Status, text: str) -> None:
        """End the call from outside its task: nothing that is pending is sent any more."""
        if self.is_over:
            return
        if self.pending:  # part of a message may be sent already, behind which trailers would be read as its end
            self.break_off(Code.CANCEL)
            return
        self._last = status, text
        self._say_last()
        self._stop()

    def break_off(self, code: Code) -> None:
        """End the call without a status."""
        if not self.is_over:
            self.out.send(frames.rst_stream(self.number, code))
            self.gone()

    def gone(self) -> None:
        """The client has broken it off, or its connection is over."""
        if not self.is_over:
            self._close()
            self._stop()

    # Inside.

    def _start(self) -> None:
        if not self._method.begins_at_once or not self._connection.turns.has_time:
            self._task = self._connection.loop.create_task(self._run())
            return
        try:
            self._task = begin(self._run())
        except asyncio.CancelledError:  # by what it waited for: nobody else's call ends with it
            self.break_off(Code.CANCEL)

    async def _run(self) -> None:
        try:
            if self._task is not None:
                await self._connection.turns.have()
            if isinstance(self.request, Packed):
                self.request = await self._unpacked(self.request)
            await self._method.answer(self)
            self.end()
        except CallOver:
            self.break_off(Code.CANCEL)
        except Exception:
            log.exception("call failed path=%s", self.metadata.get(":path", ""))
            self.end(Status.INTERNAL, "internal error, see the gateway's log")

    def _stop(self) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            self._connection.cancel(self._task)

    async def _wait(self) -> None:
        if self.is_over:
            raise CallOver
        waiting: asyncio.Future[None] = self._connection.loop.create_future()
        self._waiting.append(waiting)
        await waiting

    def _wake(self) -> None:
        if self._waiting:
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_result(None)
            self._waiting.clear()

    def _put(self, framed: bytes) -> None:
        if self.is_over or self._last is not None:
            raise CallOver
        self.begin()
        if self.pending or not self.out.takes(self, len(framed)):
            self.pending.append(memoryview(framed))
            self.hold(len(framed))
            if not self.is_over:
                self.out.block(self)
                self.pump()
        else:
            self.out.send(frame(Type.DATA, 0, self.number, framed))

    def _say_last(self) -> None:
        assert self._last is not None
        block = frames.trailers(*self._last)
        self.out.send(
            frame(Type.HEADERS, END_HEADERS | END_STREAM, self.number, block if self._begun else BEGIN + block)
        )
        if not self.is_half_closed:
            self.out.send(frames.rst_stream(self.number, Code.NO_ERROR))
        self._close()

    def _close(self) -> None:
        self.is_over = True
        self.pending.clear()
        self.messages.clear()
        self._partial.clear()
        self.hold(-self.held)
        self._connection.leave(self)
        self._wake()

    def _takes_packed(self, flag: int) -> bool:
        try:
            check_packing(flag, self.metadata.get("grpc-encoding"))
        except PackingError as error:
            self.fail(error.status, str(error))
        return not self.is_over

    async def _unpacked(self, message: Packed) -> bytes:
        """The message as its sender had it; it is kept. Raises CallOver: it cannot be unpacked, or is too long."""
        pieces = []
        try:
            for piece in message.pieces(MESSAGE_BYTES_MAX):
                await self._connection.turns.have()
                if not self.is_over:
                    pieces.append(piece)
                    self.hold(len(piece))
                if self.is_over:
                    raise CallOver
        except PackingError as error:
            self.fail(error.status, str(error))
            raise CallOver from None
        return b"".join(pieces)

    def _take(self, message: bytes) -> None:
        if self.is_over:
            return
        if self._method.is_streaming:
            self.messages.append(message)
            self._wake()
        elif self.messages:
            self.fail(Status.UNIMPLEMENTED, "a second request in a call that has one")
        else:
            self.messages.append(message)

    def _widen(self) -> None:
        """Let the client send more of the call, unless what it sent lies unread."""
        is_read = not self.messages or not self._method.is_streaming
        if self.untold >= CALL_WINDOW // 2 and is_read and not (self.is_half_closed or self.is_over):
            self.out.send(frames.window_update(self.number, self.untold))
            self.untold = 0
