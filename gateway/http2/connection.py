"""One connection: takes frames apart, hands them to its calls, and sends what they answer within the client's windows.

Source: RFC 9113. What it lets a server decide: headers are limited to one frame's length, pushes are never made,
priorities are left aside. Against floods of frames that cost the client nothing (CVE-2019-9511 to 9518, 2023-44487,
2024-27316, 2025-8671): what is not read pauses reading, time is asked before each frame, and :mod:`.limits`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from . import frames, limits
from .call import Call
from .frames import END_HEADERS, END_STREAM, HEAD, STREAM, BrokenProtocol, Code, Status, Type, frame, rst_stream
from .headers import Field, HeaderDecoder, HeadersError, are_trailers, is_grpc, metadata_of
from .outgoing import Outgoing
from .unconfirmed import Unconfirmed

if TYPE_CHECKING:
    from .server import Server

log = logging.getLogger(__name__)

_PING: Final = frame(Type.PING, 0, 0, b"penstock")
_ACK_SETTINGS: Final = frame(Type.SETTINGS, frames.ACK, 0)


class Connection(asyncio.Protocol):
    """Event loop only. What its client sends wrongly ends a call, or the connection, and nothing else."""

    def __init__(self, server: Server, host: str) -> None:
        self.host = host
        """``ip:port`` of the client."""
        self.loop = server.loop
        self.turns = server.turns
        self.calls: dict[int, Call] = {}
        self.out = Outgoing(server.loop)
        self.unconfirmed = Unconfirmed(self.out, self.abort)
        self.now: Callable[[], float] = server.loop.time
        self.heard_at = self.now()
        self.due = self.heard_at  # nothing of it is late before
        self.is_greeted = False  # True once the client has said what every client begins with
        self._server = server
        self._transport: Any = None
        self._headers = HeaderDecoder()
        self._rest = b""  # that was received, and is not taken apart
        self._untold = 0  # bytes that were received since the window was widened
        self.held = 0
        """Bytes that are kept for its calls."""
        self._last = 0  # the client's newest call
        self._block: list[bytes] = []  # of header fields, until it is whole
        self._block_of = 0  # the stream; 0: none is begun
        self._block_flags = 0
        self._is_waiting = False  # True while it waits for a turn
        self._is_leaving = False  # True once the client was told to go
        self._is_asked = False  # True while a ping is not answered by anything
        self._pranks = limits.Pranks(self.heard_at)
        self._on_frame: tuple[Callable[[int, int, bytes], None], ...] = (
            *(self._on_data, self._on_headers, self._on_priority, self._on_rst_stream, self._on_settings),
            *(self._on_push_promise, self._on_ping, self._on_goaway, self._on_window_update, self._on_continuation),
        )

    # What asyncio calls.

    def connection_made(self, transport: Any) -> None:
        self._transport = self.out.transport = transport
        self._server.connections[self] = None
        self.out.send(limits.GREETING)

    def connection_lost(self, _: Exception | None) -> None:
        self._server.connections.pop(self, None)
        self.out.drop()
        for call in list(self.calls.values()):
            call.gone()
        self.unconfirmed.drop()

    def pause_writing(self) -> None:
        self.out.pause()
        self._read_or_not()

    def resume_writing(self) -> None:
        self.out.resume()
        self._read_or_not()
        for call in list(self.calls.values()):
            call.room_came()

    def data_received(self, data: bytes) -> None:
        if self.out.is_over:  # TLS may have more while it closes
            return
        self.heard_at = self.now()
        self._is_asked = False
        self.out.gather()
        self._take_apart(self._rest + data if self._rest else data)
        self.out.let_go()

    def _go_on(self) -> None:
        """This connection's turn has come again."""
        self._is_waiting = False
        rest, self._rest = self._rest, b""
        try:
            self._take_apart(rest, least=1)
            self._read_or_not()
        except Exception:  # of others no turn is lost
            log.exception("connection failed client=%s", self.host)
            self.abort("it failed")

    # What the server calls.

    def look(self, now: float, ask_s: float, answer_s: float) -> None:
        """End what took too long, and ask a client that was silent for ``ask_s`` whether it lives."""
        for call in list(self.calls.values()):
            if now >= call.late_at:
                call.fail(Status.DEADLINE_EXCEEDED, "the call took longer than its deadline")
        silent_s = now - self.heard_at
        self.due = min([self.heard_at + ask_s, *[call.late_at for call in self.calls.values()]])
        if not self.is_greeted:
            if silent_s >= ask_s:
                self.abort("it says nothing")
        elif self._is_asked and silent_s >= ask_s + answer_s:
            self.abort("it answers no ping")
        elif silent_s >= ask_s and not self._is_asked:
            self._is_asked = True
            self.out.send(_PING)

    def say_goodbye(self) -> None:
        """Begin no more calls."""
        self._is_leaving = True
        self.out.send(frames.goaway(self._last, Code.NO_ERROR))
        self.out.flush()

    def close(self) -> None:
        """End it behind what is to be sent."""
        self.unconfirmed.forget()
        self.out.flush()
        self._transport.close()

    def abort(self, reason: str) -> None:
        log.info("connection ended client=%s reason=%s", self.host, reason)
        self._transport.abort()

    # What its calls call.

    def leave(self, call: Call) -> None:
        self.calls.pop(call.number, None)
        self.out.unblock(call)

    def hold(self, call: Call, count: int) -> None:
        """So many more bytes of its requests are kept, or less."""
        self.held += count
        self._server.held += count
        if count > 0 and self.held > limits.HELD_BYTES_MAX:
            call.fail(Status.RESOURCE_EXHAUSTED, limits.TOO_MUCH)
        elif count > 0 and self._server.held > self._server.held_max:
            self._server.shed()

    def shed(self) -> None:
        largest = max(self.calls.values(), key=lambda call: call.held)
        largest.fail(Status.RESOURCE_EXHAUSTED, limits.TOO_MUCH)

    def cancel(self, task: asyncio.Task[None]) -> None:
        self._server.cancel(task)

    def _read_or_not(self) -> None:
        if self.out.is_over or self._transport.is_closing():
            return
        if self.out.is_paused or self._is_waiting:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # Inside: receiving.

    def _take_apart(self, data: bytes, least: int = 0) -> None:
        """Take the frames that are whole, in this turn; ``least``: so many also where it is over."""
        try:
            at = self._taken(data, 0, least) if self.is_greeted else self._greeted(data)
        except (BrokenProtocol, HeadersError) as error:
            code = error.code if isinstance(error, BrokenProtocol) else Code.COMPRESSION_ERROR
            log.info("connection ended client=%s error=%s", self.host, error)
            self._rest = b""
            self._end(code, str(error))
            return
        self._rest = data[at:]

    def _end(self, code: Code, text: str) -> None:
        self.out.send(frames.goaway(self._last, code, text))
        self.out.flush()
        self.out.drop()
        self._transport.close()
        self.loop.call_later(1.0, self._transport.abort)  # a client that reads nothing

    def _greeted(self, data: bytes) -> int:
        """Take what every client begins with."""
        if not frames.PREFACE.startswith(data[: len(frames.PREFACE)]):
            raise BrokenProtocol("not HTTP/2, which begins with its preface")
        if len(data) < len(frames.PREFACE) + HEAD.size:
            return 0
        if data[len(frames.PREFACE) + 3] != Type.SETTINGS:
            raise BrokenProtocol("the preface is not followed by settings")
        self.is_greeted = True
        return self._taken(data, len(frames.PREFACE), 1)

    def _taken(self, data: bytes, at: int, least: int) -> int:
        """Take frames from ``at`` on; where the first one begins that is not whole, or has to wait."""
        length, most = len(data), frames.FRAME_BYTES_MAX
        until_s = self.turns.ends_s() if length - at > limits.SHORT_BYTES else math.inf
        while length - at >= HEAD.size and not self.out.is_over:
            if least <= 0 and time.perf_counter() > until_s:
                self._is_waiting = True
                self._read_or_not()
                self.turns.wait(self._go_on)
                break
            least -= 1
            high, low, kind, flags, stream = HEAD.unpack_from(data, at)
            size = high << 16 | low
            if size > most:
                raise BrokenProtocol(f"a frame of {size} bytes: at most {most}", Code.FRAME_SIZE_ERROR)
            end = at + HEAD.size + size
            if end > length:
                break
            if self._block_of and (kind != Type.CONTINUATION or stream & STREAM != self._block_of):
                raise BrokenProtocol("a block of header fields is followed by something else than its rest")
            if kind < len(self._on_frame):
                self._on_frame[kind](stream & STREAM, flags, data[at + HEAD.size : end])
            at = end
        return at

    def _on_data(self, stream: int, flags: int, content: bytes) -> None:
        size = len(content)
        self._untold += size
        if self._untold >= limits.CONNECTION_WINDOW // 2:
            self.out.send(frames.window_update(0, self._untold))
            self._untold = 0
        if flags & frames.PADDED:
            content = frames.unpadded(content)
        call = self.calls.get(stream)
        if call is None or call.is_half_closed:
            self._check_known(stream)
            self._break_off(stream, Code.STREAM_CLOSED)
            return
        if size:
            call.came(content, size)
        if flags & END_STREAM:
            call.half_close()

    def _on_headers(self, stream: int, flags: int, content: bytes) -> None:
        if not stream % 2:
            raise BrokenProtocol(f"a call on stream {stream}: clients' are odd")
        if flags & frames.PADDED:
            content = frames.unpadded(content)
        if flags & frames.WITH_PRIORITY:
            if len(content) < 5:
                raise BrokenProtocol("a priority that is cut off", Code.FRAME_SIZE_ERROR)
            if int.from_bytes(content[:4], "big") & STREAM == stream:
                raise BrokenProtocol(f"stream {stream} depends on itself")
            content = content[5:]
        self._block, self._block_of, self._block_flags = [content], stream, flags
        if flags & END_HEADERS:
            self._on_block()

    def _on_continuation(self, stream: int, flags: int, content: bytes) -> None:
        if not self._block_of:
            raise BrokenProtocol("the rest of a block of header fields that was not begun")
        self._block.append(content)
        if len(self._block) > limits.BLOCK_FRAMES_MAX or sum(map(len, self._block)) > limits.BLOCK_BYTES_MAX:
            raise BrokenProtocol(f"header fields of more than {limits.BLOCK_BYTES_MAX} bytes", Code.ENHANCE_YOUR_CALM)
        if flags & END_HEADERS:
            self._on_block()

    def _on_block(self) -> None:
        block, stream, flags = b"".join(self._block), self._block_of, self._block_flags
        self._block, self._block_of = [], 0
        fields = self._headers.decode(block)
        call = self.calls.get(stream)
        if call is not None:
            if not flags & END_STREAM or call.is_half_closed or not are_trailers(fields):
                self._break_off(stream, Code.PROTOCOL_ERROR)
            else:
                call.half_close()
        elif stream > self._last:
            self._last = stream
            self._begin(stream, fields, bool(flags & END_STREAM))
        elif any(name == ":method" for name, _ in fields):
            raise BrokenProtocol(f"a call on stream {stream}, which is not above {self._last}")
        else:  # its call is over, which its client did not know yet
            self._break_off(stream, Code.STREAM_CLOSED)

    def _begin(self, stream: int, fields: list[Field], is_all: bool) -> None:
        if self._is_leaving or len(self.calls) >= limits.CALLS_MAX:
            self._pranks.play(self.heard_at)
            self.out.send(rst_stream(stream, Code.REFUSED_STREAM))
            return
        metadata = metadata_of(fields)
        if metadata is None:
            self._pranks.play(self.heard_at)
            self.out.send(rst_stream(stream, Code.PROTOCOL_ERROR))
            return
        if metadata[":method"] != "POST":
            self._refuse(stream, frames.http_error(405), is_all)
            return
        if not is_grpc(metadata.get("content-type", "")):
            self._refuse(stream, frames.http_error(415), is_all)
            return
        method = self._server.methods.get(metadata[":path"])
        timeout, timeout_s, error = metadata.get("grpc-timeout"), None, ""
        if timeout is not None:
            try:
                timeout_s = frames.seconds(timeout)
            except ValueError as wrong:
                error = str(wrong)
        call = Call(self, stream, method or self._server.unknown, metadata, timeout_s)
        self.calls[stream] = call
        call.hold(limits.CALL_BYTES + self._headers.block_bytes)
        self.due = min(self.due, call.late_at)
        if is_all:
            call.half_close()
        if error:
            call.fail(Status.INTERNAL, error)
        elif timeout_s is not None and timeout_s <= 0:
            call.fail(Status.DEADLINE_EXCEEDED, "the call's deadline is over before it begins")

    def _refuse(self, stream: int, block: bytes, is_all: bool) -> None:
        self._pranks.play(self.heard_at)
        self.out.send(frame(Type.HEADERS, END_HEADERS | END_STREAM, stream, block))
        if not is_all:
            self.out.send(rst_stream(stream, Code.NO_ERROR))

    def _on_priority(self, stream: int, flags: int, content: bytes) -> None:
        if not stream:
            raise BrokenProtocol("a priority of the connection")
        if len(content) != 5:
            self._break_off(stream, Code.FRAME_SIZE_ERROR)
        elif int.from_bytes(content[:4], "big") & STREAM == stream:
            self._break_off(stream, Code.PROTOCOL_ERROR)

    def _on_rst_stream(self, stream: int, flags: int, content: bytes) -> None:
        if len(content) != 4:
            raise BrokenProtocol(f"a RST_STREAM of {len(content)} bytes", Code.FRAME_SIZE_ERROR)
        self._check_known(stream)
        call = self.calls.get(stream)
        if call is None or call.is_new:  # who waited until the deadline plays no prank
            self._pranks.play(self.heard_at)
        if call is not None:
            call.gone()
        elif int.from_bytes(content, "big") != Code.NO_ERROR:
            self.unconfirmed.break_off(stream)

    def _on_settings(self, stream: int, flags: int, content: bytes) -> None:
        if stream:
            raise BrokenProtocol(f"settings of stream {stream}")
        if len(content) % 6 or (flags & frames.ACK and content):
            raise BrokenProtocol(f"settings of {len(content)} bytes", Code.FRAME_SIZE_ERROR)
        if flags & frames.ACK:
            return
        self._pranks.play(self.heard_at)
        self.out.set(content, self.calls.values())
        self.out.send(_ACK_SETTINGS)

    def _on_push_promise(self, stream: int, flags: int, content: bytes) -> None:
        raise BrokenProtocol("a push promise of a client")

    def _on_ping(self, stream: int, flags: int, content: bytes) -> None:
        if stream:
            raise BrokenProtocol(f"a ping of stream {stream}")
        if len(content) != 8:
            raise BrokenProtocol(f"a ping of {len(content)} bytes", Code.FRAME_SIZE_ERROR)
        if not flags & frames.ACK:
            self.out.send(frame(Type.PING, frames.ACK, 0, content))
        else:
            self.unconfirmed.acknowledge(content)

    def _on_goaway(self, stream: int, flags: int, content: bytes) -> None:
        if stream:
            raise BrokenProtocol(f"a GOAWAY of stream {stream}")

    def _on_window_update(self, stream: int, flags: int, content: bytes) -> None:
        if len(content) != 4:
            raise BrokenProtocol(f"a WINDOW_UPDATE of {len(content)} bytes", Code.FRAME_SIZE_ERROR)
        more = int.from_bytes(content, "big") & frames.WINDOW_MAX
        if not stream:
            if not more or self.out.window + more > frames.WINDOW_MAX:
                raise BrokenProtocol(
                    f"a window of the connection wider by {more}",
                    Code.FLOW_CONTROL_ERROR if more else Code.PROTOCOL_ERROR,
                )
            self.out.window += more
            self.out.pump_soon()
            return
        call = self.calls.get(stream)
        if call is None or not more:
            self._check_known(stream)
            if not more:
                self._break_off(stream, Code.PROTOCOL_ERROR)
        elif self.out.own_room(call) + more > frames.WINDOW_MAX:
            self._break_off(stream, Code.FLOW_CONTROL_ERROR)
        else:
            call.window += more
            if call.pending:
                self.out.block(call)
                self.out.pump(call)

    def _break_off(self, stream: int, code: Code) -> None:
        call = self.calls.get(stream)
        if call is not None:
            self._pranks.play(self.heard_at)
            call.break_off(code)
        else:
            self.out.send(rst_stream(stream, code))

    def _check_known(self, stream: int) -> None:
        if not stream % 2 or stream > self._last:
            raise BrokenProtocol(f"stream {stream} was not begun")
