"""Queues of RocketMQ that Penstock does not write: batch consume queues, and extensions of consume queues.

* ``batchconsumequeue/<topic>/<queue id>``: topics with the attribute ``queue.type=BatchCQ`` keep whole client batches
  as one record and one unit (:mod:`penstock.formats.batch_unit`). Such a topic is neither read nor written here;
  ``penstock store query`` does.
* ``consumequeue_ext/<topic>/<queue id>``: what entries of a plain queue refer to, see :mod:`.ext_kernels`. Its files
  are kept as long as there are entries that do.
"""

from __future__ import annotations

import itertools

import numpy as np

from penstock.formats.directory import BATCH_QUEUE, EXTENSIONS, file_name, file_starts, is_safe_topic
from penstock.formats.queue_entry import ADDRESS_BASE, ENTRY, HASH_MIN
from penstock.formats.record.layout import SysFlag
from penstock.proto.errors import Forbidden

from ..disk import Disk, make_directories_durably
from ..log.readable_log import Chunk
from .consume_queue import ConsumeQueues
from .kernels import Ints

_ENTRIES_AT_ONCE = 2048


class OtherQueues:
    """What a store has of them; for the owner thread."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._batches = f"{root}/{BATCH_QUEUE}"
        self._extensions = f"{root}/{EXTENSIONS}"
        self.batch_topics: set[str] = set()
        self._extended: set[str] = set()

    def load(self) -> None:
        """Learn from the folders that are there. Raises OSError."""
        self.batch_topics.update(self._list(self._batches))
        self._extended.update(self._list(self._extensions))

    def check(self, topic: str) -> None:
        """That the topic's queues are such as Penstock reads and writes. Raises Forbidden: they are not."""
        if topic in self.batch_topics:
            raise Forbidden(
                f"topic {topic} has batch consume queues (queue.type=BatchCQ), which are neither read nor written "
                "here: look into it with penstock store query, and make a topic with another name for new messages"
            )

    def find_batches(self, chunk: Chunk, slots: Ints, queues: ConsumeQueues) -> None:
        """Learn of topics by their inner batches in the log, and let none of such a topic's records have an entry."""
        for number in np.flatnonzero(chunk.rows["sys_flag"][: chunk.count] & SysFlag.INNER_BATCH).tolist():
            row = chunk.rows[number]
            start = int(row["topic_position"])
            topic = chunk.file.bytes[start : start + int(row["topic_size"])].tobytes().decode("utf-8", "replace")
            if topic not in self.batch_topics and is_safe_topic(topic):
                # The folder is how the next start knows, which reads no log.
                make_directories_durably(self._disk, f"{self._batches}/{topic}")
                self.batch_topics.add(topic)
        for topic in self.batch_topics:
            known = list(queues.slots.by_topic.get(topic, {}).values())
            if known:
                slots[: chunk.count][np.isin(slots[: chunk.count], known)] = -1

    def drop_topic(self, topic: str) -> None:
        """Delete what there is of the topic."""
        for known, directory in ((self.batch_topics, self._batches), (self._extended, self._extensions)):
            if topic in known:
                known.discard(topic)
                self._disk.remove_tree(f"{directory}/{topic}")
                self._disk.sync_directory(directory)

    def align(self, queues: ConsumeQueues) -> None:
        """Delete files of extensions that no entry refers to any more."""
        for topic in sorted(self._extended):
            for queue_id in self._list(f"{self._extensions}/{topic}"):
                slot = queues.slots.find(topic, int(queue_id)) if queue_id.isdecimal() and queue_id.isascii() else None
                if slot is not None:
                    self._align(f"{self._extensions}/{topic}/{queue_id}", _first_address(queues, slot))

    def _align(self, directory: str, address: int | None) -> None:
        starts = file_starts(self._disk.list(directory))
        # The last file tells RocketMQ where to go on; and the next begins where a file ends.
        gone = [start for start, following in itertools.pairwise(starts) if address is None or following <= address]
        for start in gone:
            self._disk.unlink(f"{directory}/{file_name(start)}")
        if gone:
            self._disk.sync_directory(directory)

    def _list(self, directory: str) -> list[str]:
        try:
            return self._disk.list(directory)
        except NotADirectoryError:
            return []


def _first_address(queues: ConsumeQueues, slot: int) -> int | None:
    """The address that the first entry with an extension refers to; None without one."""
    offset, end = int(queues.slots.min_offsets[slot]), int(queues.slots.next_offsets[slot])
    while offset < end:
        entries = queues.entries(slot, offset, min(_ENTRIES_AT_ONCE, end - offset)).view(ENTRY)
        codes = entries["tags_code"]
        extended = np.flatnonzero(codes < HASH_MIN)
        if len(extended):
            return int(codes[extended[0]]) - ADDRESS_BASE
        offset += len(entries)
    return None
