"""The view ``queues``: the entries of consume queues, as they lie in the files; and which files a task reads.

Also the columns of the view ``index`` (:mod:`.index`), and of those that sum up (:mod:`.parts`).

Places of a queue that were not used, and fillers, are no entries. The layout: :mod:`penstock.formats.queue_entry`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs

from penstock.formats.directory import CONSUME_QUEUE, INDEX, file_start, is_index_file_name
from penstock.formats.queue_entry import ENTRY, ENTRY_BYTES, are_messages
from penstock.proto.errors import Corrupt

from ..columns.schema import columns
from .files import FileReader, open_file_system
from .model import Store
from .options import StoreOptions

QUEUE_COLUMNS = columns(
    "topic string, brokerName string, queueId int, queueOffset bigint, physicalOffset bigint, size int, tagsCode bigint"
)
QUEUE_PART_COLUMNS = columns(
    "topic string, brokerName string, queueId int, part bigint, messages bigint, firstOffset bigint, "
    "lastOffset bigint, bytes bigint, digest bigint"
)
"""``part``: the first queue offset that belongs to it."""
PART_COLUMNS = QUEUE_PART_COLUMNS | columns(
    "offsets bigint, hasEntries boolean, physicalOffset bigint, entries binary, innerBatches bigint, batches binary, "
    "isLight boolean"
)
"""``offsets``: a digest of the queue offsets alone. ``hasEntries``: whether consume queues name these messages.
``physicalOffset``: of the first one in the stretch. ``entries``: see :data:`.parts.PART_ENTRY`. ``innerBatches``: how
many of them are inner batches; ``batches``: their units, see :mod:`penstock.formats.batch_unit`. ``isLight``: whether
this is a part of a light queue (``%LMQ%``), whose messages have rows of their own queues, too; such rows are there
where this column is read. With ``onCorrupt=emit`` damage has a row of its own, with its place and bytes and the reason
in ``corrupt``."""
INDEX_COLUMNS = columns(
    "brokerName string, file string, entry int, keyHash int, physicalOffset bigint, storeTimestamp timestamp, "
    "previousEntry int"
)
DIFFERENCE_COLUMNS = columns(
    "topic string, queueId int, queueOffset bigint, problem string, messages bigint, late bigint"
)
"""What :func:`.parts.compare_part` tells: a problem at a queue offset, or, without one, ``messages`` more of them.
``late``: records that are not dispatched yet."""
Longs = npt.NDArray[np.int64]
TASK_BYTES = 16 << 20
QUEUE_ID_MAX = (1 << 31) - 1
POSITION_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class QueueFile:
    """One file of a consume queue."""

    path: str
    topic: str
    queue_id: int
    start: int  # byte offset in the queue
    size: int


@dataclass(frozen=True, slots=True)
class DerivedSplit:
    """Queue files, or one index file, for one task. ``start`` and ``end``: of the log, as it was listed."""

    root: str
    broker_name: str
    files: tuple[QueueFile, ...] = ()
    index_path: str = ""
    start: int = 0
    end: int = POSITION_MAX


def find_queue_files(root: str) -> tuple[list[QueueFile], list[str]]:
    """The files of all consume queues of the store, by topic, queue and position; and which names none can have."""
    file_system, path = open_file_system(root)
    folder = f"{path}/{CONSUME_QUEUE}"
    found, wrong = [], set()
    for info in file_system.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True)):
        parts = str(info.path)[len(folder) + 1 :].split("/")
        if info.type != fs.FileType.File or not info.size or len(parts) != 3:
            continue
        topic, queue, name = parts
        start = file_start(name)
        if start is None or not (queue.isascii() and queue.isdecimal()):
            continue
        if int(queue) > QUEUE_ID_MAX:
            reason = f"queues have numbers up to {QUEUE_ID_MAX}: move the directory out of the store"
            wrong.add(f"{folder}/{topic}/{queue}: {reason}")
        elif start > POSITION_MAX or start % ENTRY_BYTES:
            reason = f"queue files are named after a multiple of {ENTRY_BYTES} below 2^63: move it out of the store"
            wrong.add(f"{info.path}: {reason}")
        else:
            found.append(QueueFile(info.path, topic, int(queue), start, info.size))
    found.sort(key=lambda file: (file.topic, file.queue_id, file.start))
    return found, sorted(wrong)


def list_queue_files(root: str) -> list[QueueFile]:
    """The files of all consume queues of the store, by topic, queue and position; without those of impossible names."""
    return find_queue_files(root)[0]


def plan_queues(store: Store, options: StoreOptions) -> Iterator[DerivedSplit]:
    """The queue files of the wanted topics and queues, packed into tasks.

    Raises Corrupt: a queue's directory or file has a name that none can have.
    """
    files, wrong = find_queue_files(store.root)
    if wrong:
        raise Corrupt(wrong[0])
    files = [file for file in files if not options.topics or file.topic in options.topics]
    return pack_queues(store, (file for file in files if not options.queue_ids or file.queue_id in options.queue_ids))


def _start(store: Store) -> int:
    return store.files[0].start if store.files else 0


def pack_queues(store: Store, files: Iterable[QueueFile]) -> Iterator[DerivedSplit]:
    """Queue files packed into tasks."""
    packed: list[QueueFile] = []
    size = 0

    def split() -> DerivedSplit:
        return DerivedSplit(store.root, store.broker_name, tuple(packed), start=_start(store), end=store.end)

    for file in files:
        packed.append(file)
        size += file.size
        if size >= TASK_BYTES:
            yield split()
            packed, size = [], 0
    if packed:
        yield split()


def plan_index(store: Store) -> Iterator[DerivedSplit]:
    """One task per index file."""
    file_system, path = open_file_system(store.root)
    selector = fs.FileSelector(f"{path}/{INDEX}", allow_not_found=True)
    for info in sorted(file_system.get_file_info(selector), key=lambda info: str(info.path)):
        if info.type == fs.FileType.File and is_index_file_name(info.base_name):
            start = _start(store)
            yield DerivedSplit(store.root, store.broker_name, index_path=info.path, start=start, end=store.end)


def read_queue_file(file_system: fs.FileSystem, file: QueueFile) -> tuple[Longs, npt.NDArray[np.void]]:
    """The queue offsets of the entries in a file, and these."""
    with FileReader(file_system, file.path) as reader:
        data = reader.read(0, file.size // ENTRY_BYTES * ENTRY_BYTES)
    entries = data[: len(data) // ENTRY_BYTES * ENTRY_BYTES].view(ENTRY)
    numbers = np.flatnonzero(are_messages(entries))
    return numbers + file.start // ENTRY_BYTES, entries[numbers]


def queue_entries(split: DerivedSplit) -> Iterator[tuple[QueueFile, Longs, npt.NDArray[np.void]]]:
    """Per file with some: the queue offsets of its entries of records below the log's end, and these."""
    file_system, _ = open_file_system(split.root)
    for file in split.files:
        offsets, entries = read_queue_file(file_system, file)
        kept = entries["physical_offset"] < split.end
        if kept.any():
            yield file, offsets[kept], entries[kept]


def read_queue(split: DerivedSplit, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The entries of records below the log's end."""
    for file, offsets, entries in queue_entries(split):
        values = {
            "topic": file.topic,
            "brokerName": split.broker_name,
            "queueId": file.queue_id,
            "queueOffset": offsets,
            "physicalOffset": entries["physical_offset"],
            "size": entries["size"],
            "tagsCode": entries["tags_code"],
        }
        yield batch_of(values, len(offsets), schema)


def batch_of(values: Mapping[str, Any], count: int, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of ``schema``, each of an Arrow array, a NumPy array, or one value for all ``count`` rows."""
    columns = []
    for field in schema:
        value = values[field.name]
        if isinstance(value, pa.Array):
            columns.append(value)
        elif not isinstance(value, np.ndarray):
            columns.append(pa.repeat(pa.scalar(value, field.type), count))
        elif pa.types.is_timestamp(field.type):
            columns.append(pa.array(value, pa.int64()).cast(field.type))
        else:
            columns.append(pa.array(value.astype(field.type.to_pandas_dtype()), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
