"""A queue's files are there whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from penstock.broker.store import RealDisk
from penstock.broker.store.queue_files import QueueFiles, QueueName

FILE_BYTES = 2000


class FullOnce(RealDisk):
    """Has no space for the length of the first file."""

    was_full = False

    def truncate(self, descriptor: int, size: int) -> None:
        if not self.was_full:
            self.was_full = True
            raise OSError(errno.ENOSPC, "no space")
        super().truncate(descriptor, size)


def test_a_file_made_ahead_that_found_no_space_is_not_there_and_the_next_one_is_whole(tmp_path: Path) -> None:
    files = QueueFiles(FullOnce(), str(tmp_path), FILE_BYTES, 10)
    with pytest.raises(OSError, match="no space"):
        files.prepare("orders", 0, lambda: True)
    assert list((tmp_path / "orders" / "0").iterdir()) == []
    files.write("orders", 0, 0, bytes(20))
    files.check_size(QueueName("orders", 0, [0]), 0)
    assert (tmp_path / "orders" / "0" / f"{0:020d}").stat().st_size == FILE_BYTES
    files.close()
