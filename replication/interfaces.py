"""What replication needs of the layers above it, as protocols that they fit."""

from __future__ import annotations

from typing import Protocol


class ReplicaLog(Protocol):
    """A log of raw bytes in files of one size; offsets are global byte positions.

    Called from the event loop only. ``[min_offset, end_offset)`` can be read; of that, what lies below
    ``flushed_offset`` survives a power cut.
    """

    @property
    def min_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def flushed_offset(self) -> int: ...

    @property
    def segment_bytes(self) -> int: ...

    def read_bytes(self, start: int, max_bytes: int) -> memoryview:
        """At most ``max_bytes`` from ``start`` on, never beyond the file of ``start`` or ``end_offset``.

        The view is used before the caller returns to the event loop, never later.
        """
        ...

    def append_bytes(self, start: int, data: memoryview) -> int:
        """Append ``data`` at ``start``, which is ``end_offset``; the new end. ``data`` is copied.

        Raises:
            StorageError: nothing was appended.
        """
        ...

    def start_at(self, offset: int) -> None:
        """Let an empty log begin at ``offset``, the start of a file."""
        ...

    def request_flush(self, end: int) -> None:
        """Have everything below ``end`` synced soon; the owner hears of it and calls ``on_flushed``."""
        ...
