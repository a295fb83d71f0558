"""What one connection sends: together in each round of the loop, and within the windows that its client gives."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from .frames import FRAME_BYTES_LIMIT, FRAME_BYTES_MAX, WINDOW, WINDOW_MAX, BrokenProtocol, Code, Setting
from .limits import SENT_FRAME_BYTES_MAX

if TYPE_CHECKING:
    from .call import Call

FLUSH_BYTES: Final = 256 << 10
"""What is to be sent waits for no more than so many bytes."""


class Outgoing:
    """Event loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.transport: Any = None  # once there is one
        self.window = WINDOW  # bytes that may be sent, of all calls together
        self.frame_bytes = FRAME_BYTES_MAX  # what the client takes at a time
        self.is_paused = False
        """True while the client does not take what it is sent."""
        self.is_over = False
        """True once nothing is sent any more."""
        self._loop = loop
        self._call_window = WINDOW  # of every call, besides its own
        self._blocked: dict[Call, None] = {}  # calls with something pending, and room of their own, in order
        self._parts: list[bytes | memoryview] = []  # to be sent in this round of the loop
        self._bytes = 0  # of them
        self._is_flushing = False
        self._is_pumping = False

    def send(self, *parts: bytes | memoryview) -> None:
        """Send these bytes in their order, with whatever else there is to send in this round of the loop."""
        if self.is_over:
            return
        for part in parts:
            self._parts.append(part)
            self._bytes += len(part)
        if self._bytes >= FLUSH_BYTES:
            self.flush()
        else:
            self._flush_soon()

    def gather(self) -> None:
        """Keep what is sent until :meth:`let_go`, which comes in this round."""
        self._is_flushing = True

    def let_go(self) -> None:
        """Send what there is; see :meth:`gather`."""
        self._is_flushing = False
        if self._is_pumping:
            self._is_pumping = False
            for call in list(self._blocked):
                if self.window <= 0 or self.is_paused:
                    break
                self.pump(call)
        self.flush()

    def flush(self) -> None:
        if self._parts and not self.is_over:
            content = b"".join(self._parts)
            self._parts.clear()
            self._bytes = 0
            self.transport.write(content)

    def drop(self) -> None:
        self.is_over = True
        self._parts.clear()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self.pump_soon()

    # Windows.

    def own_room(self, call: Call) -> int:
        """The window of that call alone; may be less than nothing."""
        return self._call_window + call.window

    def room_of(self, call: Call) -> int:
        """So many bytes of it may be sent now, as one frame."""
        return 0 if self.is_paused else min(self._call_window + call.window, self.window, self.frame_bytes)

    def takes(self, call: Call, count: int) -> bool:
        """True if so many bytes of ``call`` may be sent now, as one frame; they count as sent then."""
        if count > self.room_of(call):
            return False
        self.window -= count
        call.window -= count
        return True

    def set(self, settings: bytes, calls: Collection[Call]) -> None:
        """What the client sets by a SETTINGS frame; ``calls``: all that are open.

        Raises:
            BrokenProtocol: no such value is allowed.
        """
        for setting, value in struct.iter_unpack(">HL", settings):
            if setting == Setting.INITIAL_WINDOW_SIZE:
                if value + max([0, *[call.window for call in calls]]) > WINDOW_MAX:
                    raise BrokenProtocol(f"a window of {value} bytes", Code.FLOW_CONTROL_ERROR)
                self._call_window = value
                self._blocked = {call: None for call in calls if call.pending}
                self.pump_soon()
            elif setting == Setting.MAX_FRAME_SIZE:
                if not FRAME_BYTES_MAX <= value <= FRAME_BYTES_LIMIT:
                    raise BrokenProtocol(f"frames of {value} bytes")
                self.frame_bytes = min(value, SENT_FRAME_BYTES_MAX)
            elif setting == Setting.ENABLE_PUSH and value > 1:
                raise BrokenProtocol(f"ENABLE_PUSH is {value}")

    def block(self, call: Call) -> None:
        self._blocked[call] = None

    def unblock(self, call: Call) -> None:
        self._blocked.pop(call, None)

    def pump(self, call: Call) -> None:
        call.pump()
        if not call.pending or self.own_room(call) <= 0:
            self._blocked.pop(call, None)

    def pump_soon(self) -> None:
        """The same of all that can go on, in this round of the loop."""
        if self._blocked:
            self._is_pumping = True
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self.let_go)
