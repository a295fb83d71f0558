"""What comes over one connection of a data port: one buffer, used again, and the frames in it, not copied."""

from __future__ import annotations

from collections.abc import Container
from typing import Final, NamedTuple

from penstock.proto.data_frames import HEAD, Kind
from penstock.proto.errors import InvalidArgument

BUFFER_BYTES: Final = 64 << 10
KEPT_BYTES: Final = 2 << 20
"""What a buffer keeps of the room that a larger frame took."""


class Received(NamedTuple):
    """A frame that came. ``content`` is a view of the buffer."""

    number: int
    method: int
    kind: int
    content: memoryview


class Receiving:
    """One connection's buffer."""

    def __init__(self, least_bytes: int = BUFFER_BYTES) -> None:
        self.least_bytes = least_bytes
        """The room that it has at least, once what is in it is taken."""
        self._buffer = memoryview(bytearray(least_bytes))
        self._at = 0  # where in it the next frame begins
        self._count = 0  # bytes of it that came

    def room(self) -> memoryview:
        """Where to put what comes next; empty: not before frames are taken."""
        return self._buffer[self._count :]

    def came(self, count: int) -> None:
        self._count += count

    @property
    def rest(self) -> int:
        """The bytes that came and are not taken."""
        return self._count - self._at

    def next(self, bytes_max: int, kinds: Container[int]) -> Received | None:
        """The next frame, or None: more must come first, and the contents of those before are gone.

        Raises:
            InvalidArgument: it is larger than ``bytes_max``, or of none of the ``kinds``.
        """
        needed = HEAD.size
        if self.rest >= HEAD.size:
            size, number, method, kind = HEAD.unpack_from(self._buffer, self._at)
            if size > bytes_max or kind not in kinds:
                raise InvalidArgument(f"no frame of a data port: size {size}, kind {kind}")
            needed += size
            if self.rest >= needed:
                start = self._at + HEAD.size
                self._at += needed
                return Received(number, method, kind, self._buffer[start : self._at])
        self.make_room(needed)
        return None

    def make_room(self, needed: int = HEAD.size) -> None:
        """Let a frame that needs so much go on at the begin of a buffer that grows with it; contents are gone."""
        at, rest, room = self._at, self.rest, len(self._buffer)
        if needed > room:
            room = min(max(2 * room, BUFFER_BYTES), needed + BUFFER_BYTES) if rest > room // 2 else room
        elif room > KEPT_BYTES and needed <= KEPT_BYTES:
            room = KEPT_BYTES
        room = max(room, rest + HEAD.size, self.least_bytes)
        if room != len(self._buffer):
            buffer = memoryview(bytearray(room))
            buffer[:rest] = self._buffer[at : self._count]
            self._buffer = buffer
        elif at:
            self._buffer[:rest] = self._buffer[at : self._count]
        self._at, self._count = 0, rest


REQUESTS: Final = (Kind.REQUEST,)
ANSWERS: Final = (Kind.ANSWER, Kind.ERROR)
