"""A log in memory that fits :class:`penstock.replication.ReplicaLog`, with a disk that tests can break."""

from __future__ import annotations

from collections.abc import Callable

from penstock.proto.errors import DiskFull


class MemoryLog:
    """Bytes from ``min_offset`` on, in files of ``segment_bytes``.

    A flush asked for is done at once, unless ``hold_flushes``; then :meth:`flush` does it.
    """

    def __init__(self, segment_bytes: int = 1 << 20, *, start: int = 0) -> None:
        self.segment_bytes = segment_bytes
        self.min_offset = start
        self.flushed_offset = start
        self.capacity: int | None = None
        """An append that would end beyond this offset fails with DiskFull."""
        self.hold_flushes = False
        self.on_flushed: Callable[[int], None] = lambda _: None
        self.confirm_offset = start
        """What a test lets the owner know as acknowledged."""
        self.has_state = True
        """False: nothing tells of the state before the minimum."""
        self._segments: dict[int, bytearray] = {}
        self._end = start

    @property
    def end_offset(self) -> int:
        return self._end

    def read_bytes(self, start: int, max_bytes: int) -> memoryview:
        assert self.min_offset <= start <= self._end, f"read at {start} of [{self.min_offset}, {self._end})"
        base = start // self.segment_bytes * self.segment_bytes
        stop = min(start + max_bytes, base + self.segment_bytes, self._end)
        return memoryview(self._segments.get(base, bytearray()))[start - base : stop - base]

    def append_bytes(self, start: int, data: memoryview | bytes) -> int:
        assert start == self._end, f"append at {start} of a log that ends at {self._end}"
        base = start // self.segment_bytes * self.segment_bytes
        assert start - base + len(data) <= self.segment_bytes, "an append must not cross files"
        if self.capacity is not None and start + len(data) > self.capacity:
            raise DiskFull(f"segment {base:020d}: no space left")
        segment = self._segments.get(base)
        if segment is None:
            segment = self._segments[base] = bytearray(self.segment_bytes)
        segment[start - base : start - base + len(data)] = data
        self._end += len(data)
        return self._end

    def start_at(self, offset: int) -> None:
        assert self._end == self.min_offset, "only an empty log can begin elsewhere"
        assert offset % self.segment_bytes == 0
        self.min_offset = self.flushed_offset = self._end = offset

    def keeps_state(self, offset: int) -> bool:
        return self.has_state

    async def recover(self) -> None:
        """Nothing follows from this log."""

    async def truncate_to(self, offset: int) -> None:
        assert self.min_offset <= offset <= self._end
        for base in [base for base in self._segments if base >= offset]:
            del self._segments[base]
        base = offset // self.segment_bytes * self.segment_bytes
        if base in self._segments:
            self._segments[base][offset - base :] = bytes(self.segment_bytes - offset + base)
        self._end = offset
        self.flushed_offset = min(self.flushed_offset, offset)
        self.confirm_offset = min(self.confirm_offset, offset)

    async def start_over(self, offset: int) -> None:
        await self.truncate_to(self.min_offset)
        self.start_at(offset)
        self.confirm_offset = offset

    def request_flush(self, end: int) -> None:
        if not self.hold_flushes:
            self.flush()

    def flush(self) -> None:
        """Sync everything and say so."""
        self.flushed_offset = self._end
        self.on_flushed(self._end)

    def drop_before(self, offset: int) -> None:
        """Retention: forget whole files below ``offset``."""
        base = offset // self.segment_bytes * self.segment_bytes
        for start in [start for start in self._segments if start < base]:
            del self._segments[start]
        self.min_offset = max(self.min_offset, base)

    def write(self, data: bytes) -> None:
        """Append ``data`` of any length, over as many files as it needs."""
        view = memoryview(data)
        while len(view):
            room = self.segment_bytes - self._end % self.segment_bytes
            self.append_bytes(self._end, view[:room])
            view = view[room:]

    def content(self) -> bytes:
        """All bytes of ``[min_offset, end_offset)``."""
        parts, position = [], self.min_offset
        while position < self._end:
            part = self.read_bytes(position, self.segment_bytes)
            parts.append(bytes(part))
            position += len(part)
        return b"".join(parts)
