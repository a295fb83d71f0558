"""What a data port's connection still has to send: views of memory, which a transport gets a piece at a time.

A transport copies whatever the system does not take at once. So what is large waits here, uncopied, until the
system has taken what came before it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

Data = bytes | memoryview

PIECE_BYTES: Final = 256 << 10
"""What a transport gets at once: with TLS so much is encrypted in one go."""
UNSENT_BYTES_MAX: Final = 1 << 20
"""Of answers; while more wait for their reader, nothing is read from it."""
TAKEN_S: Final = 60.0
"""An answer that is not taken in so long ends its connection: until then it may keep files that are deleted."""


class _End(NamedTuple):
    """Stands behind what was given together."""

    on_taken: Callable[[], None] | None
    since_s: float


class Sending:
    """One connection's; event loop only."""

    def __init__(
        self,
        transport: Any,
        turn_ends_s: Callable[[], float],
        wait: Callable[[], None],
        on_full: Callable[[bool], None],
    ) -> None:
        """``turn_ends_s``: until when it may work now, 0 if it has to ``wait()`` for :meth:`go_on`.

        ``on_full``: told when more than :data:`UNSENT_BYTES_MAX` wait, and when there is room again.
        """
        self.unsent_bytes = 0
        self.is_ending = False
        self._transport = transport
        self._turn_ends_s = turn_ends_s
        self._wait = wait
        self._on_full = on_full
        self._unsent: deque[Data | _End] = deque()
        self._is_paused = self._is_full = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Once the transport's owner knows it: the transport may say :meth:`pause` at once, of a handshake's bytes."""
        self._transport.set_write_buffer_limits(1)  # it says when the system has taken all

    @property
    def is_closing(self) -> bool:
        """True if nothing more is sent."""
        return self.is_ending or self._transport.is_closing()

    @property
    def has_unsent(self) -> bool:
        """True if the system has not taken all that was sent."""
        return bool(self._unsent) or self._is_paused

    def send(self, pieces: Sequence[Data], on_taken: Callable[[], None] | None = None) -> None:
        """Send these. ``on_taken`` is called when the system has them, or the connection is gone."""
        if self.is_closing:
            if on_taken is not None:
                on_taken()
            return
        if not self._unsent and not self._is_paused and len(pieces) == 1 and len(pieces[0]) <= PIECE_BYTES:
            self._transport.write(pieces[0])
            if on_taken is None:
                return
        else:
            self._unsent.extend(pieces)
            self.unsent_bytes += sum(map(len, pieces))
        self._unsent.append(_End(on_taken, time.monotonic()))
        self.go_on()

    def end(self) -> None:
        """Close the connection when everything is sent."""
        self.is_ending = True
        if not self._unsent:
            self._transport.close()

    def drop(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
        ends = [each for each in self._unsent if isinstance(each, _End)]
        self._unsent.clear()
        self.unsent_bytes = 0
        for each in ends:
            if each.on_taken is not None:
                each.on_taken()

    def pause(self) -> None:
        """The system takes nothing more."""
        self._is_paused = True

    def resume(self) -> None:
        """The system has taken all."""
        self._is_paused = False
        self.go_on()

    def go_on(self) -> None:
        """Give the transport what the system takes, for at most a turn."""
        unsent, until_s = self._unsent, None
        while unsent and not self._is_paused and not self._transport.is_closing():
            piece = unsent[0]
            if isinstance(piece, _End):
                unsent.popleft()
                if piece.on_taken is not None:
                    piece.on_taken()
                continue
            if until_s is None:
                until_s = self._turn_ends_s()
            elif time.perf_counter() >= until_s:
                until_s = 0.0
            if not until_s:
                self._wait()
                break
            if len(piece) > PIECE_BYTES:
                view = memoryview(piece)
                piece, unsent[0] = view[:PIECE_BYTES], view[PIECE_BYTES:]
            else:
                unsent.popleft()
            self.unsent_bytes -= len(piece)
            self._transport.write(piece)
        if self._is_full is not (is_full := self._is_full_now()):
            self._is_full = is_full
            self._on_full(is_full)
        if unsent and self._timer is None:
            self._timer = self._loop.call_later(TAKEN_S, self._look)
        elif not unsent and self.is_ending:
            self._transport.close()

    def _is_full_now(self) -> bool:
        return self.unsent_bytes > (UNSENT_BYTES_MAX // 4 if self._is_full else UNSENT_BYTES_MAX)

    def _look(self) -> None:
        self._timer = None
        oldest = next((each.since_s for each in self._unsent if isinstance(each, _End)), None)
        if oldest is None:
            return
        left_s = oldest + TAKEN_S - time.monotonic()
        if left_s <= 0:
            self._transport.abort()
        else:
            self._timer = self._loop.call_later(left_s, self._look)
