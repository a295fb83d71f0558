"""One connection: takes frames apart, hands them to its calls, and sends what they answer within the client's windows.

Source: RFC 9113. What it lets a server decide: headers are limited to one frame's length, pushes are never made,
priorities are left aside. Against floods of frames that cost the client nothing (CVE-2019-9511 to 9518,
CVE-2023-44487, CVE-2024-27316): what is not read pauses reading, and there is a limit to streams that are broken off,
to settings, and to the frames of one block.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from .call import CALL_WINDOW, Call
from .frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_LIMIT,
    FRAME_BYTES_MAX,
    HEAD,
    PADDED,
    PREFACE,
    STREAM,
    WINDOW,
    WINDOW_MAX,
    WITH_PRIORITY,
    BrokenProtocol,
    Code,
    Setting,
    Status,
    Type,
    frame,
    goaway,
    http_error,
    rst_stream,
    seconds,
    settings,
    window_update,
)
from .headers import Field, HeaderDecoder, HeadersError

if TYPE_CHECKING:
    from .server import Server

log = logging.getLogger(__name__)

CALLS_MAX: Final = 4096
"""Of one connection, under way at a time."""
CONNECTION_WINDOW: Final = 16 << 20
BLOCK_BYTES_MAX: Final = FRAME_BYTES_MAX
"""Of a block of header fields, in all its frames."""
BLOCK_FRAMES_MAX: Final = 16
HELD_BYTES_MAX: Final = 128 << 20
"""Of requests of one connection that are not read, or not answered."""
PRANKS_MAX: Final = 1000
"""So many streams may be broken off, and settings be made, at once; :data:`PRANKS_PER_S` of them are forgotten."""
PRANKS_PER_S: Final = 50.0
FLUSH_BYTES: Final = 256 << 10
"""What is to be sent waits for no more than so many bytes."""
SENT_FRAME_BYTES_MAX: Final = 65_535

_GREETING: Final = settings(
    {
        Setting.MAX_CONCURRENT_STREAMS: CALLS_MAX,
        Setting.INITIAL_WINDOW_SIZE: CALL_WINDOW,
        Setting.MAX_HEADER_LIST_SIZE: BLOCK_BYTES_MAX,
    }
) + window_update(0, CONNECTION_WINDOW - WINDOW)
_NAME: Final = re.compile(r":?[!#$%&'*+\-.^_`|~0-9a-z]+", re.ASCII)
_PSEUDO: Final = frozenset({":method", ":scheme", ":path", ":authority"})
_HOP: Final = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})
_TURN_FRAMES: Final = 32
"""So many are taken before it is asked whether the turn is over."""
_PING: Final = frame(Type.PING, 0, 0, b"penstock")
_ACK_SETTINGS: Final = frame(Type.SETTINGS, ACK, 0)


class Connection(asyncio.Protocol):
    """Event loop only. What its client sends wrongly ends a call, or the connection, and nothing else."""

    def __init__(self, server: Server, host: str) -> None:
        self.host = host
        """``ip:port`` of the client."""
        self.loop = server.loop
        self.turns = server.turns
        self.calls: dict[int, Call] = {}
        self.window = WINDOW  # bytes that may be sent, of all calls together
        self.frame_bytes = FRAME_BYTES_MAX  # what the client takes at a time
        self.heard_at = self.now()
        self.is_greeted = False  # True once the client has said what every client begins with
        self._server = server
        self._transport: Any = None
        self._headers = HeaderDecoder()
        self._rest = b""  # that was received, and is not taken apart
        self._call_window = WINDOW  # of every call, besides its own
        self._untold = 0  # bytes that were received since the window was widened
        self._held = 0
        self._last = 0  # the client's newest call
        self._block: list[bytes] = []  # of header fields, until it is whole
        self._block_of = 0  # the stream; 0: none is begun
        self._block_flags = 0
        self._blocked: dict[Call, None] = {}  # calls with something pending, in order
        self._out: list[bytes | memoryview] = []  # to be sent in this round of the loop
        self._out_bytes = 0
        self._is_flushing = False
        self._is_pumping = False
        self._is_paused = False  # True while the client takes nothing
        self._is_waiting = False  # True while it waits for a turn
        self._is_leaving = False  # True once the client was told to go
        self._is_over = False
        self._is_asked = False  # True while a ping is not answered by anything
        self._pranks = 0.0
        self._pranks_at = self.heard_at
        self._on_frame: tuple[Callable[[int, int, bytes], None], ...] = (
            *(self._on_data, self._on_headers, self._on_priority, self._on_rst_stream, self._on_settings),
            *(self._on_push_promise, self._on_ping, self._on_goaway, self._on_window_update, self._on_continuation),
        )

    def now(self) -> float:
        """The loop's time."""
        return self.loop.time()

    # What asyncio calls.

    def connection_made(self, transport: Any) -> None:
        """See :class:`asyncio.Protocol`."""
        self._transport = transport
        with contextlib.suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server.connections[self] = None
        self.send(_GREETING)

    def connection_lost(self, _: Exception | None) -> None:
        """See :class:`asyncio.Protocol`."""
        self._server.connections.pop(self, None)
        self._is_over = True
        self._out.clear()
        for call in list(self.calls.values()):
            call.gone()

    def pause_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        self._is_paused = True
        self._read_or_not()

    def resume_writing(self) -> None:
        """See :class:`asyncio.Protocol`."""
        self._is_paused = False
        self._read_or_not()
        for call in list(self.calls.values()):
            call.room_came()

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        self.heard_at = self.now()
        self._is_asked = False
        if self._rest:
            data = self._rest + data
        self._take_apart(data)

    def go_on(self) -> None:
        """It is this connection's turn again."""
        self._is_waiting = False
        rest, self._rest = self._rest, b""
        self._take_apart(rest)
        self._read_or_not()

    # What the server calls.

    def look(self, now: float, ask_s: float, answer_s: float) -> None:
        """End what took too long, and ask a client that was silent for ``ask_s`` whether it lives."""
        for call in list(self.calls.values()):
            if now >= call.until:
                call.fail(Status.DEADLINE_EXCEEDED, "the call took longer than its deadline")
        silent_s = now - self.heard_at
        if not self.is_greeted:
            if silent_s >= ask_s:
                self.abort("it says nothing")
        elif self._is_asked and silent_s >= ask_s + answer_s:
            self.abort("it answers no ping")
        elif silent_s >= ask_s and not self._is_asked:
            self._is_asked = True
            self.send(_PING)

    def say_goodbye(self) -> None:
        """Begin no more calls."""
        if not self._is_leaving:
            self._is_leaving = True
            self.send(goaway(self._last, Code.NO_ERROR))

    def abort(self, reason: str) -> None:
        """End it at once."""
        log.info("connection ended client=%s reason=%s", self.host, reason)
        self._transport.abort()

    # What its calls call.

    @property
    def has_room(self) -> bool:
        """False while the client does not take what it is sent."""
        return not self._is_paused

    def room_of(self, call: Call) -> int:
        """So many bytes of it may be sent now, as one frame."""
        return min(self._call_window + call.window, self.window, self.frame_bytes)

    def takes(self, call: Call, count: int) -> bool:
        """True if so many bytes of ``call`` may be sent now, as one frame; they count as sent then."""
        if count > self.room_of(call):
            return False
        self.window -= count
        call.window -= count
        return True

    def send(self, *parts: bytes | memoryview) -> None:
        """Send these bytes in their order, with whatever else there is to send in this round of the loop."""
        if self._is_over:
            return
        for part in parts:
            self._out.append(part)
            self._out_bytes += len(part)
        if self._out_bytes >= FLUSH_BYTES:
            self._flush()
        else:
            self._flush_soon()

    def block(self, call: Call) -> None:
        """It has something pending."""
        self._blocked[call] = None

    def leave(self, call: Call) -> None:
        """It is over."""
        self.calls.pop(call.number, None)
        self._blocked.pop(call, None)

    def hold(self, call: Call, count: int) -> None:
        """So many more bytes of its requests are kept, or less."""
        self._held += count
        self._server.held += count
        if count > 0 and (self._held > HELD_BYTES_MAX or self._server.held > self._server.held_max):
            call.fail(Status.RESOURCE_EXHAUSTED, "too many bytes of requests that are not answered yet: send fewer")

    # Inside: sending.

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self.loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._is_flushing = False
        if self._is_pumping:
            self._is_pumping = False
            for call in list(self._blocked):
                if self.window <= 0:
                    break
                call.pump()
                if not call.pending:
                    self._blocked.pop(call, None)
        self._flush()

    def _flush(self) -> None:
        if self._out and not self._is_over:
            content = b"".join(self._out)
            self._out.clear()
            self._out_bytes = 0
            self._transport.write(content)

    def _pump_soon(self) -> None:
        if self._blocked:
            self._is_pumping = True
            self._flush_soon()

    def _read_or_not(self) -> None:
        if self._is_over or self._transport.is_closing():
            return
        if self._is_paused or self._is_waiting:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # Inside: receiving.

    def _take_apart(self, data: bytes) -> None:
        try:
            at = self._taken(data, 0) if self.is_greeted else self._greeted(data)
        except (BrokenProtocol, HeadersError) as error:
            code = error.code if isinstance(error, BrokenProtocol) else Code.COMPRESSION_ERROR
            log.info("connection ended client=%s error=%s", self.host, error)
            self._rest = b""
            self._end(code, str(error))
            return
        self._rest = data[at:]

    def _end(self, code: Code, text: str) -> None:
        self.send(goaway(self._last, code, text))
        self._flush()
        self._is_over = True
        self._transport.close()
        self.loop.call_later(1.0, self._transport.abort)  # a client that reads nothing

    def _greeted(self, data: bytes) -> int:
        """Take what every client begins with."""
        if not PREFACE.startswith(data[: len(PREFACE)]):
            raise BrokenProtocol("not HTTP/2, which begins with its preface")
        if len(data) < len(PREFACE) + HEAD.size:
            return 0
        if data[len(PREFACE) + 3] != Type.SETTINGS:
            raise BrokenProtocol("the preface is not followed by settings")
        self.is_greeted = True
        return self._taken(data, len(PREFACE))

    def _taken(self, data: bytes, at: int) -> int:
        """Take the frames from ``at`` on that are whole; where the first one begins that is not."""
        until_s = self.turns.ends_s()
        frames = 0
        length = len(data)
        while length - at >= HEAD.size and not self._is_over:
            if frames == _TURN_FRAMES and time.perf_counter() > until_s:
                self._is_waiting = True
                self._read_or_not()
                self._server.wait(self)
                break
            frames = frames % _TURN_FRAMES + 1
            high, low, kind, flags, stream = HEAD.unpack_from(data, at)
            size = high << 16 | low
            if size > FRAME_BYTES_MAX:
                raise BrokenProtocol(f"a frame of {size} bytes: at most {FRAME_BYTES_MAX}", Code.FRAME_SIZE_ERROR)
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
        if self._untold >= CONNECTION_WINDOW // 2:
            self.send(window_update(0, self._untold))
            self._untold = 0
        if flags & PADDED:
            content = _unpadded(content)
        call = self.calls.get(stream)
        if call is None or call.is_half_closed:
            self._check_known(stream)
            self._break_off(stream, Code.STREAM_CLOSED)
            return
        if content:
            call.came(content, size)
        if flags & END_STREAM:
            call.half_close()

    def _on_headers(self, stream: int, flags: int, content: bytes) -> None:
        if not stream % 2:
            raise BrokenProtocol(f"a call on stream {stream}: clients' are odd")
        if flags & PADDED:
            content = _unpadded(content)
        if flags & WITH_PRIORITY:
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
        if len(self._block) > BLOCK_FRAMES_MAX or sum(map(len, self._block)) > BLOCK_BYTES_MAX:
            raise BrokenProtocol(f"header fields of more than {BLOCK_BYTES_MAX} bytes", Code.ENHANCE_YOUR_CALM)
        if flags & END_HEADERS:
            self._on_block()

    def _on_block(self) -> None:
        block, stream, flags = b"".join(self._block), self._block_of, self._block_flags
        self._block, self._block_of = [], 0
        fields = self._headers.decode(block)
        call = self.calls.get(stream)
        if call is not None:
            if not flags & END_STREAM or call.is_half_closed:
                call.break_off(Code.PROTOCOL_ERROR)
            else:
                call.half_close()
        elif stream > self._last:
            self._last = stream
            self._begin(stream, fields, bool(flags & END_STREAM))
        else:
            raise BrokenProtocol(f"header fields of stream {stream}, which is over", Code.STREAM_CLOSED)

    def _begin(self, stream: int, fields: list[Field], is_all: bool) -> None:
        if self._is_leaving or len(self.calls) >= CALLS_MAX:
            self._play_prank()
            self.send(rst_stream(stream, Code.REFUSED_STREAM))
            return
        metadata = _metadata_of(fields)
        if metadata is None:
            self._play_prank()
            self.send(rst_stream(stream, Code.PROTOCOL_ERROR))
            return
        if metadata[":method"] != "POST":
            self._refuse(stream, http_error(405), is_all)
            return
        if not metadata.get("content-type", "").startswith("application/grpc"):
            self._refuse(stream, http_error(415), is_all)
            return
        method = self._server.methods.get(metadata[":path"])
        timeout, timeout_s, error = metadata.get("grpc-timeout"), None, ""
        if timeout is not None:
            try:
                timeout_s = seconds(timeout)
            except ValueError as wrong:
                error = str(wrong)
        call = Call(self, stream, method or self._server.unknown, metadata, timeout_s)
        self.calls[stream] = call
        if is_all:
            call.half_close()
        if error:
            call.fail(Status.INTERNAL, error)

    def _refuse(self, stream: int, block: bytes, is_all: bool) -> None:
        self._play_prank()
        self.send(frame(Type.HEADERS, END_HEADERS | END_STREAM, stream, block))
        if not is_all:
            self.send(rst_stream(stream, Code.NO_ERROR))

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
        self._play_prank()
        call = self.calls.get(stream)
        if call is not None:
            call.gone()

    def _on_settings(self, stream: int, flags: int, content: bytes) -> None:
        if stream:
            raise BrokenProtocol(f"settings of stream {stream}")
        if len(content) % 6 or (flags & ACK and content):
            raise BrokenProtocol(f"settings of {len(content)} bytes", Code.FRAME_SIZE_ERROR)
        if flags & ACK:
            return
        self._play_prank()
        for setting, value in struct.iter_unpack(">HL", content):
            if setting == Setting.INITIAL_WINDOW_SIZE:
                if value > WINDOW_MAX:
                    raise BrokenProtocol(f"a window of {value} bytes", Code.FLOW_CONTROL_ERROR)
                self._call_window = value
                self._pump_soon()
            elif setting == Setting.MAX_FRAME_SIZE:
                if not FRAME_BYTES_MAX <= value <= FRAME_BYTES_LIMIT:
                    raise BrokenProtocol(f"frames of {value} bytes")
                self.frame_bytes = min(value, SENT_FRAME_BYTES_MAX)
            elif setting == Setting.ENABLE_PUSH and value > 1:
                raise BrokenProtocol(f"ENABLE_PUSH is {value}")
        self.send(_ACK_SETTINGS)

    def _on_push_promise(self, stream: int, flags: int, content: bytes) -> None:
        raise BrokenProtocol("a push promise of a client")

    def _on_ping(self, stream: int, flags: int, content: bytes) -> None:
        if stream:
            raise BrokenProtocol(f"a ping of stream {stream}")
        if len(content) != 8:
            raise BrokenProtocol(f"a ping of {len(content)} bytes", Code.FRAME_SIZE_ERROR)
        if not flags & ACK:
            self.send(frame(Type.PING, ACK, 0, content))

    def _on_goaway(self, stream: int, flags: int, content: bytes) -> None:
        if stream:
            raise BrokenProtocol(f"a GOAWAY of stream {stream}")

    def _on_window_update(self, stream: int, flags: int, content: bytes) -> None:
        if len(content) != 4:
            raise BrokenProtocol(f"a WINDOW_UPDATE of {len(content)} bytes", Code.FRAME_SIZE_ERROR)
        more = int.from_bytes(content, "big") & WINDOW_MAX
        if not stream:
            if not more or self.window + more > WINDOW_MAX:
                raise BrokenProtocol(
                    f"a window of the connection wider by {more}",
                    Code.FLOW_CONTROL_ERROR if more else Code.PROTOCOL_ERROR,
                )
            self.window += more
            self._pump_soon()
            return
        call = self.calls.get(stream)
        if call is None or not more:
            self._check_known(stream)
            if not more:
                self._break_off(stream, Code.PROTOCOL_ERROR)
        elif self._call_window + call.window + more > WINDOW_MAX:
            call.break_off(Code.FLOW_CONTROL_ERROR)
        else:
            call.window += more
            if call.pending:
                self._pump_soon()

    def _break_off(self, stream: int, code: Code) -> None:
        call = self.calls.get(stream)
        if call is not None:
            call.break_off(code)
        else:
            self.send(rst_stream(stream, code))

    def _check_known(self, stream: int) -> None:
        if not stream % 2 or stream > self._last:
            raise BrokenProtocol(f"stream {stream} was not begun")

    def _play_prank(self) -> None:
        """Count what costs more here than at the client."""
        forgotten = (self.heard_at - self._pranks_at) * PRANKS_PER_S
        self._pranks_at = self.heard_at
        self._pranks = max(self._pranks - forgotten, 0.0) + 1.0
        if self._pranks > PRANKS_MAX:
            raise BrokenProtocol("too many streams that are broken off, or settings", Code.ENHANCE_YOUR_CALM)


def _unpadded(content: bytes) -> bytes:
    if not content or content[0] >= len(content):
        raise BrokenProtocol("a frame with more padding than bytes")
    return content[1 : len(content) - content[0]]


_known: dict[str, bool] = {}  # names of fields that were looked at: True for those that may stand in a request
_KNOWN_MAX: Final = 1000


def _metadata_of(fields: list[Field]) -> dict[str, str] | None:
    """The fields by name; None: RFC 9113 §8.2 forbids one, or §8.3 misses one."""
    found: dict[str, str] = {}
    is_regular = False
    for name, value in fields:
        if name[:1] != ":":
            is_regular = True
        elif is_regular or name in found or name not in _PSEUDO:
            return None
        is_fine = _known.get(name)
        if is_fine is None:
            is_fine = _NAME.fullmatch(name) is not None and name not in _HOP
            if len(_known) < _KNOWN_MAX:
                _known[name] = is_fine
        if not is_fine:
            return None
        found[name] = value
    if not (found.get(":method") and found.get(":scheme") and found.get(":path")):
        return None
    return None if found.get("te", "trailers") != "trailers" else found
