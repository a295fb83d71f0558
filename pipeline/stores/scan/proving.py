"""``verify=full``: each record against its neighbour in its queue and against its queue entry.

| Field | Against |
|---|---|
| queue offset | the record before it of the same queue in the split: one more than that one's |
| physical offset, size | the queue entry at its queue offset |

Half messages, rolled-back ones and inner batches have no entry. Where the queues need not reach as far as the log, no
entry is missed. Nor is one whose file was cleaned away since the store was listed: brokers delete a queue's first file
when the log files that it names are gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs

from penstock.formats.directory import COMMIT_LOG, CONSUME_QUEUE
from penstock.formats.queue_entry import ENTRY, ENTRY_BYTES, are_messages
from penstock.proto.errors import ConfigError

from ...columns.columns import ColumnWriter
from ..files import Bytes, FileReader, open_file_system
from .planning import Split
from .scanning import Rows, has_no_entry

Queue = tuple[str, int]


def require_queues(root: str) -> None:
    """Raises ConfigError if the store has no consume queues."""
    file_system, path = open_file_system(root)
    if file_system.get_file_info(f"{path}/{CONSUME_QUEUE}").type != fs.FileType.Directory:
        raise ConfigError(f"{root}: verify=full compares with the consume queues, and there is no consumequeue/")


class Prover:
    """Proves the records of one split, in their order."""

    def __init__(self, split: Split) -> None:
        self._file_system, path = open_file_system(split.root)
        self._folder, self._log_folder = f"{path}/{CONSUME_QUEUE}", f"{path}/{COMMIT_LOG}"
        self._complete = split.queues_complete
        self._topics = ColumnWriter(pa.schema([pa.field("topic", pa.string())]), broker_name="")
        self._last: dict[Queue, int] = {}
        self._files: dict[Queue, list[tuple[int, int, str]]] = {}

    def prove(self, buffer: Bytes, rows: Rows) -> dict[int, str]:
        """What is wrong, by the row's index."""
        wrong: dict[int, str] = {}
        for queue, indices in self._by_queue(buffer, rows, np.flatnonzero(~has_no_entry(rows))):
            for index, reason in self._prove(queue, rows[indices]):
                wrong.setdefault(int(indices[index]), reason)
        return wrong

    def pass_over(self) -> None:
        """Records are missing from here on: what follows them has no neighbour."""
        self._last.clear()

    def _by_queue(self, buffer: Bytes, rows: Rows, wanted: npt.NDArray[np.int64]) -> Iterator[tuple[Queue, Any]]:
        if not len(wanted):
            return
        names = pa.chunked_array([batch.column(0) for batch in self._topics.batches(buffer, rows[wanted])])
        encoded = names.combine_chunks().dictionary_encode()
        codes = np.asarray(encoded.indices).astype(np.int64) << 32 | rows["queue_id"][wanted].astype(np.int64)
        order = np.argsort(codes, kind="stable")
        bounds = np.flatnonzero(np.diff(codes[order])) + 1
        for group in np.split(order, bounds):
            code = int(codes[group[0]])
            yield (encoded.dictionary[code >> 32].as_py(), code & 0xFFFFFFFF), wanted[group]

    def _prove(self, queue: Queue, rows: Rows) -> Iterator[tuple[int, str]]:
        offsets = rows["queue_offset"]
        before = np.concatenate([[self._last.get(queue, int(offsets[0]) - 1)], offsets[:-1]])
        self._last[queue] = int(offsets[-1])
        name = f"{queue[0]}, queue {queue[1]}"
        for index in np.flatnonzero(offsets != before + 1).tolist():
            yield index, f"queue offset {offsets[index]} of {name} follows {before[index]} in the log"
        entries, known = self._entries(queue, offsets)
        if self._complete and not known.all():
            known |= rows["physical_offset"] >= self._log_start()
        found = are_messages(entries)
        differs = found & ((entries["physical_offset"] != rows["physical_offset"]) | (entries["size"] != rows["size"]))
        for index in np.flatnonzero(differs).tolist():
            entry = entries[index]
            yield (
                index,
                f"entry {offsets[index]} of {name} names {entry['physical_offset']} ({entry['size']} bytes), the "
                f"record lies at {rows['physical_offset'][index]} ({rows['size'][index]} bytes)",
            )
        for index in np.flatnonzero(known & ~found).tolist() if self._complete else ():
            yield index, f"{name} has no entry at {offsets[index]}, where this record belongs"

    def _entries(self, queue: Queue, offsets: Any) -> tuple[npt.NDArray[np.void], npt.NDArray[np.bool_]]:
        """The entry at each offset, and whether it is not in front of the queue's files."""
        if queue not in self._files:
            self._files[queue] = self._list(queue)
        files = self._files[queue]
        entries = np.zeros(len(offsets), ENTRY)
        known = np.full(len(offsets), True)
        known[offsets < (files[0][0] if files else 0)] = False
        for first, end, path in files:
            inside = np.flatnonzero((offsets >= first) & (offsets < end))
            if len(inside):
                low, high = int(offsets[inside].min()), int(offsets[inside].max())
                with FileReader(self._file_system, path) as reader:
                    data = reader.read((low - first) * ENTRY_BYTES, (high - low + 1) * ENTRY_BYTES)
                read = data[: len(data) // ENTRY_BYTES * ENTRY_BYTES].view(ENTRY)
                there = inside[offsets[inside] - low < len(read)]
                entries[there] = read[offsets[there] - low]
        return entries, known

    def _list(self, queue: Queue) -> list[tuple[int, int, str]]:
        """First entry, end and path of each file of a queue, in order."""
        selector = fs.FileSelector(f"{self._folder}/{queue[0]}/{queue[1]}", allow_not_found=True)
        infos = [info for info in self._file_system.get_file_info(selector) if info.base_name.isdecimal() and info.size]
        made = ((int(info.base_name) // ENTRY_BYTES, info.size // ENTRY_BYTES, str(info.path)) for info in infos)
        return sorted((first, first + count, path) for first, count, path in made)

    def _log_start(self) -> int:
        """Where the log begins by now."""
        infos = self._file_system.get_file_info(fs.FileSelector(self._log_folder))
        return min(int(info.base_name) for info in infos if info.base_name.isdecimal())
