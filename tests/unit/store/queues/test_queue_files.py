"""Queue files are made, deleted and synced by three threads; each is there whole or not at all."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.broker.store.disk import Disk
from penstock.broker.store.queues.consume_queue import ConsumeQueues
from penstock.broker.store.queues.queue_files import QueueFiles, QueueName
from tests.support.waiting import wait_until

FILE_BYTES = 2000
LONG_S = 0.1
"""Long enough for another thread to do what it must not do."""


class InterruptedDisk(Disk):
    """Real files; tells what is done, and lets others try to do something in the middle of it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.on_directory_made: Callable[[], None] = lambda: None
        self.on_tree_removed: Callable[[], None] = lambda: None
        self.on_directory_synced: Callable[[], None] = lambda: None

    def make_directories(self, path: str) -> None:
        super().make_directories(path)
        self.on_directory_made()

    def truncate(self, descriptor: int, size: int) -> None:
        super().truncate(descriptor, size)
        self.calls.append("made")

    def remove_tree(self, path: str) -> None:
        super().remove_tree(path)
        self.calls.append("removed")
        self.on_tree_removed()

    def sync_directory(self, path: str) -> None:
        self.on_directory_synced()
        super().sync_directory(path)


def _queues(root: Path, disk: InterruptedDisk) -> ConsumeQueues:
    """The queues, of which t/0 and t/1 have no files."""
    queues = ConsumeQueues(disk, str(root), 400, 100, has_lights=False)
    queues.slots.add("t", 0)
    queues.slots.add("t", 1)
    return queues


def test_a_topic_goes_when_the_file_that_is_being_made_for_it_is_there(tmp_path: Path) -> None:
    disk = InterruptedDisk()
    queues = _queues(tmp_path, disk)
    dropping = threading.Thread(target=queues.drop_topic, args=("t",))

    def interrupt() -> None:
        dropping.start()
        dropping.join(LONG_S)

    disk.on_directory_made = interrupt
    queues._make_file("t", 0)
    dropping.join()
    assert disk.calls == ["made", "removed"]
    assert list(tmp_path.iterdir()) == []
    queues.close()


def test_no_file_is_made_for_a_topic_that_goes(tmp_path: Path) -> None:
    disk = InterruptedDisk()
    queues = _queues(tmp_path, disk)
    queues._make_file("t", 0)
    making = threading.Thread(target=queues._make_file, args=("t", 1))

    def interrupt() -> None:
        making.start()
        making.join(LONG_S)

    disk.on_tree_removed = interrupt
    queues.drop_topic("t")
    making.join()
    assert disk.calls == ["made", "removed"]
    assert list(tmp_path.iterdir()) == []
    queues.close()


def test_who_writes_to_a_queue_waits_for_one_file_that_is_made_and_not_for_all(tmp_path: Path) -> None:
    order: list[str] = []

    class Ordered(InterruptedDisk):
        def make_directories(self, path: str) -> None:
            super().make_directories(path)
            order.append(path.rpartition("/")[2])

    disk = Ordered()
    queues = _queues(tmp_path, disk)
    writing = threading.Thread(target=queues.files.write, args=("t", 9, 0, bytes(20)))

    def interrupt() -> None:
        disk.on_directory_made = lambda: None
        writing.start()
        wait_until(queues.files.making._next.locked, what="it waits in its turn")

    disk.on_directory_made = interrupt
    for queue_id in (0, 1):
        queues._make_file("t", queue_id)
    writing.join()
    assert order == ["0", "9", "1"]
    queues.close()


def test_the_names_of_a_file_made_ahead_are_synced_with_its_first_entries(tmp_path: Path) -> None:
    disk = InterruptedDisk()
    queues = _queues(tmp_path, disk)
    queues._make_file("t", 0)
    queues.files.write("t", 0, 0, bytes(20))
    topic = f"{tmp_path}/t"
    assert queues.files.take_dirty() == ({f"{topic}/0/{0:020d}"}, {f"{topic}/0", topic, str(tmp_path)})
    queues.close()


def test_a_topic_may_go_while_its_directories_are_synced(tmp_path: Path) -> None:
    disk = InterruptedDisk()
    queues = _queues(tmp_path, disk)
    queues._make_file("t", 0)
    disk.on_directory_synced = lambda: queues.drop_topic("t")
    queues.flush()
    assert list(tmp_path.iterdir()) == []
    queues.close()


class FullOnce(Disk):
    """Has no space for the length of the first file."""

    was_full = False

    def truncate(self, descriptor: int, size: int) -> None:
        if not self.was_full:
            self.was_full = True
            raise OSError(errno.ENOSPC, "no space")
        super().truncate(descriptor, size)


def test_a_file_made_ahead_that_found_no_space_is_not_there(tmp_path: Path) -> None:
    files = QueueFiles(FullOnce(), str(tmp_path), FILE_BYTES, 10)
    with pytest.raises(OSError, match="no space"):
        files.prepare("orders", 0, lambda: True)
    assert list((tmp_path / "orders" / "0").iterdir()) == []
    files.write("orders", 0, 0, bytes(20))
    files.check_size(QueueName("orders", 0, [0]), 0)
    assert (tmp_path / "orders" / "0" / f"{0:020d}").stat().st_size == FILE_BYTES
    files.close()
