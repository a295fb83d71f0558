"""What replication needs of the layers above it, as protocols that they fit."""

from __future__ import annotations

from typing import Protocol

from .epochs import EpochHistory


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

    def request_flush(self, end: int) -> None:
        """Have everything below ``end`` synced soon; the owner hears of it and calls ``on_flushed``."""
        ...


class SlaveLog(ReplicaLog, Protocol):
    """A log that can become the beginning of another one."""

    @property
    def confirm_offset(self) -> int:
        """The offset below which, as far as this broker knows, everything was acknowledged to somebody, or seen."""
        ...

    async def recover(self) -> None:
        """Finish what an earlier cut began and could not end; called before the log is shown to a master.

        Raises:
            StorageError: not yet; nothing may be appended.
        """
        ...

    def keeps_state(self, offset: int) -> bool:
        """True if a cut at ``offset`` leaves what tells of the state that was recorded before the log's minimum."""
        ...

    async def truncate_to(self, offset: int) -> None:
        """Let the log end at ``offset``, between minimum and end, and everything derived from it with it.

        Durable on return: what lay behind is zeros, or no file, and never comes back.

        Raises:
            StorageError: the log ends at ``offset`` or where it did.
        """
        ...

    async def start_over(self, offset: int) -> None:
        """Forget everything, which may be nothing, and begin at ``offset``, the start of a file.

        Raises:
            StorageError: the log is empty, or what it was.
        """
        ...


class EpochStore(Protocol):
    """The history of a log, kept beside it."""

    @property
    def history(self) -> EpochHistory: ...

    def replace(self, history: EpochHistory) -> None:
        """Hold another history; durable on return.

        Raises:
            StorageError: the history is what it was.
        """
        ...
