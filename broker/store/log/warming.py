"""Having the memory of a log file there before the first message needs it."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import resource

from ..disk import Bytes, Disk, named_errors

log = logging.getLogger(__name__)

_STEP_BYTES = 16 << 20
_libc = ctypes.CDLL(None, use_errno=True)


class Warming:
    """Touches, and locks, the pages of log files; for the thread that makes them, :meth:`unlock` for any.

    Touched pages cost no page fault when messages come; a locked file is not written out and read back under
    memory pressure. Both take time and memory for every file, so both are off by default.
    """

    def __init__(self, disk: Disk, *, touch: bool, lock: bool, sync: bool) -> None:
        """``sync``: write touched pages out step by step, so that the first flush has not all of them to write."""
        self._disk = disk
        self._touch = touch
        self._lock = lock
        self._sync = sync

    def warm(self, path: str, mapped: Bytes, descriptor: int) -> None:
        """Prepare a new file, which holds nothing. Raises StorageError: a write or sync failed; it names ``path``."""
        if self._touch:
            zeros = bytes(min(len(mapped), _STEP_BYTES))
            with named_errors(path, "warming the log file (warmMapedFileEnable)"):
                for start in range(0, len(mapped), _STEP_BYTES):
                    self._disk.pwrite(descriptor, zeros[: len(mapped) - start], start)
                    if self._sync:
                        self._disk.sync(descriptor)
        if self._lock and not self._call(_libc.mlock, mapped):
            code = ctypes.get_errno()
            limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
            log.warning(
                "mlockMappedFileEnable has no effect, memory cannot be locked error=%s bytes=%d RLIMIT_MEMLOCK=%s: "
                "raise the limit (LimitMEMLOCK) or switch it off",
                errno.errorcode.get(code, os.strerror(code)),
                len(mapped),
                "infinity" if limit == resource.RLIM_INFINITY else limit,
            )
            self._lock = False

    def unlock(self, mapped: Bytes) -> None:
        """A later file is being written: this one may leave the memory."""
        if self._lock:
            self._call(_libc.munlock, mapped)

    def _call(self, function: object, mapped: Bytes) -> bool:
        assert callable(function)
        return bool(function(ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(len(mapped))) == 0)
