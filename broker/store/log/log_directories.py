"""The directories of one log: where its files lie, and where the next one goes.

RocketMQ's ``storePathCommitLog`` may name several directories, with ``,`` between them, and
``readOnlyCommitLogStorePaths`` more that get no new files, and whose files may even be unwritable. The file that
begins at ``base`` goes to the directory number ``base / file size`` modulo their number, in the order of their names,
of those that get new files and have space.

Source: RocketMQ ``MultiPathMappedFileQueue``; differs: a directory is full when the file does not fit, not by a ratio.
"""

from __future__ import annotations

import errno
import logging
import os

from penstock.proto.errors import WrongStore

from ..disk import Disk, make_directories_durably

log = logging.getLogger(__name__)

_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


def split_paths(text: str) -> list[str]:
    """The directories that a setting names."""
    return [path.rstrip("/") or "/" for part in text.split(",") if (path := part.strip())]


class LogDirectories:
    """Directories that get new files, and others (``read_only``)."""

    def __init__(self, disk: Disk, writable: list[str], read_only: list[str], file_bytes: int) -> None:
        self._disk = disk
        self._file_bytes = file_bytes
        self.read_only = sorted(set(read_only))
        self.writable = sorted(set(writable) - set(read_only))

    def __str__(self) -> str:
        """For messages."""
        return ",".join(self.all)

    @property
    def all(self) -> list[str]:
        """Every directory."""
        return [*self.writable, *self.read_only]

    def prepare(self) -> None:
        """Make the writable ones. Raises WrongStore: there is no writable one, or a read-only one does not exist."""
        if not self.writable:
            raise WrongStore(
                f"storePathCommitLog: all of its directories are in readOnlyCommitLogStorePaths too ({self}): "
                "name one that gets the new files"
            )
        for directory in self.read_only:
            if not self._disk.exists(directory):
                raise WrongStore(
                    f"{directory}: this directory of readOnlyCommitLogStorePaths does not exist: mount it, or take it "
                    "out of the list if its log files are not wanted any more",
                    path=directory,
                )
        for directory in self.writable:
            make_directories_durably(self._disk, directory)

    def for_new(self, base: int, keep_free: int) -> str:
        """Where the file that begins at ``base`` goes. Raises OSError: ENOSPC, none has ``keep_free`` to spare."""
        needed = self._file_bytes + keep_free
        fitting = [each for each in self.writable if self._disk.free_bytes(each) >= needed]
        if not fitting:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        return fitting[base // self._file_bytes % len(fitting)]

    def is_read_only(self, path: str) -> bool:
        """True if that file lies in a directory without new files."""
        return os.path.dirname(path) in self.read_only

    def makes_space(self, path: str) -> bool:
        """True if new files have the space of that one when it is gone: they lie beside it, or on the same disk."""
        device = self._disk.device
        return not self.is_read_only(path) or device(os.path.dirname(path)) in map(device, self.writable)

    def unlink(self, path: str) -> None:
        """Delete a log file; one of a read-only directory that cannot be deleted stays, and is not missed."""
        try:
            self._disk.unlink(path)
        except OSError as error:
            if error.errno not in _FORBIDDEN or not self.is_read_only(path):
                raise
            log.warning("log file stays, its directory is read-only path=%s", path)

    def sync(self, paths: list[str]) -> None:
        """Have it on the disk that these files are gone."""
        for directory in sorted({os.path.dirname(path) for path in paths}):
            try:
                self._disk.sync_directory(directory)
            except OSError as error:
                if error.errno not in _FORBIDDEN or directory not in self.read_only:
                    raise
