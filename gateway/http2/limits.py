"""What one connection and one call may take, and how often one may do what costs more here than at its client."""

from __future__ import annotations

from typing import Final

from .frames import FRAME_BYTES_MAX, WINDOW, BrokenProtocol, Code, Setting, settings, window_update

CALL_WINDOW: Final = 1 << 20
"""So many bytes of a call a client may send before they are read."""
CALL_BYTES: Final = 2048
"""What a call counts besides its bytes and header fields."""
UNARY_S: Final = 120.0
"""A call with one request ends after so long, where its client names no deadline; so long its request may take."""
NEW_S: Final = 0.5
TAKEN_S: Final = 30.0
"""What is left of a whole answer is taken within so long."""
CALLS_MAX: Final = 4096
"""Of one connection, under way at a time."""
CONNECTION_WINDOW: Final = 16 << 20
SHORT_BYTES: Final = 64
"""What comes at once is taken apart outside of any turn up to here: pings, windows, settings, which take no time."""
BLOCK_BYTES_MAX: Final = FRAME_BYTES_MAX
"""Of a block of header fields, in all its frames."""
BLOCK_FRAMES_MAX: Final = 16
HELD_BYTES_MAX: Final = 128 << 20
"""Of one connection: requests that are not answered, answers that are not taken, and the calls themselves."""
PRANKS_MAX: Final = 1000
"""So many streams may be broken off, and settings be made, at once; :data:`PRANKS_PER_S` of them are forgotten."""
PRANKS_PER_S: Final = 50.0
TOO_MUCH: Final = "too many bytes of calls that are not over: send fewer at a time"
SENT_FRAME_BYTES_MAX: Final = 65_535

GREETING: Final = settings(
    {
        Setting.MAX_CONCURRENT_STREAMS: CALLS_MAX,
        Setting.INITIAL_WINDOW_SIZE: CALL_WINDOW,
        Setting.MAX_HEADER_LIST_SIZE: BLOCK_BYTES_MAX,
    }
) + window_update(0, CONNECTION_WINDOW - WINDOW)
"""What a connection begins with."""


class Pranks:
    """Counts them, of one connection: streams that are broken off at once, or by what is wrong; settings."""

    def __init__(self, now: float) -> None:
        self._count = 0.0
        self._at = now

    def play(self, now: float) -> None:
        """One more. Raises BrokenProtocol: it is one too many."""
        forgotten = (now - self._at) * PRANKS_PER_S
        self._at = now
        self._count = max(self._count - forgotten, 0.0) + 1.0
        if self._count > PRANKS_MAX:
            raise BrokenProtocol("too many streams that are broken off, or settings", Code.ENHANCE_YOUR_CALM)
