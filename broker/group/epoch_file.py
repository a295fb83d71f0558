"""``epochFileCheckpoint`` in the store root: which master wrote which part of the log.

RocketMQ's format (:mod:`penstock.formats.epochs`). The file is replaced as a whole, the one before it stays as
``epochFileCheckpoint.bak`` for whoever has to repair a store. It is never read instead: a history that lacks the
last epoch calls the bytes of two masters one master's, and slaves would copy the one behind the other.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from penstock.formats.directory import EPOCHS
from penstock.formats.epochs import Epoch, decode, encode
from penstock.proto.errors import Corrupt
from penstock.replication.epochs import EpochHistory

from ..store.disk import Disk, named_errors, read_small, storage_error, write_durably

log = logging.getLogger(__name__)

FIRST_EPOCH: Final = 1
CONTENT_BYTES_MAX: Final = 1 << 20


class EpochFile:
    """The history of the log at ``root``; event loop only, and quick enough for it."""

    def __init__(self, root: Path, history: EpochHistory, disk: Disk) -> None:
        """See :meth:`open`."""
        self.path = str(root / EPOCHS)
        self.history = history
        self._disk = disk

    @classmethod
    def open(cls, root: Path, *, is_new: bool, disk: Disk | None = None) -> EpochFile:
        """The file at ``root``, which is only read; for a store that ``is_new`` there need not be one.

        Raises:
            Corrupt: it is damaged, or missing.
            StorageError: it cannot be read.
        """
        file = cls(root, EpochHistory(), disk or Disk())
        with named_errors(file.path, "reading the epochs"):
            content = read_small(file._disk, file.path, CONTENT_BYTES_MAX)
        if content is not None:
            file.history = EpochHistory(decode(content, file.path))
        elif not is_new or file._disk.exists(f"{file.path}.bak"):
            first = encode([Epoch(FIRST_EPOCH, 0)]).decode()
            raise Corrupt(
                f"{file.path}: missing, although the store has been in use: restore it from {file.path}.bak or from a "
                f"replica; where no other broker was ever master, its content is {first!r}",
                path=file.path,
            )
        return file

    def begin_first(self) -> None:
        """Without any epoch: one that began the log, as nobody was ever elected. Durable on return."""
        if not self.history.entries:
            self.replace(EpochHistory([Epoch(FIRST_EPOCH, 0)]))

    def begin(self, epoch: int, end: int) -> None:
        """This broker is master from ``epoch`` on; its log, synced as a whole, ends at ``end``. Durable on return.

        Raises:
            ValueError: the epoch is no later than the last one.
            StorageError: the history is what it was.
        """
        self.replace(self.history.lead(epoch, end))

    def replace(self, history: EpochHistory) -> None:
        """Hold another history; durable on return. Raises StorageError: the history is what it was."""
        if history == self.history:
            return
        try:
            before = read_small(self._disk, self.path, CONTENT_BYTES_MAX)
            if before is not None:
                write_durably(self._disk, f"{self.path}.bak", before)
            write_durably(self._disk, self.path, encode(history.entries))
        except OSError as error:
            raise storage_error(error, self.path, "writing the epochs") from error
        log.info("epochs written path=%s epochs=%d latest=%d", self.path, len(history.entries), history.latest)
        self.history = history
