"""The view ``index``: the entries of index files, as they lie in the files.

The layout: :mod:`penstock.formats.index.index_file`. Apart from :mod:`.derived`, since :mod:`penstock.inspection` loads
kernels, which takes each process of Spark two seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.formats.index.index_file import HEADER_BYTES, INDEX_ENTRY
from penstock.inspection.files import InputFile
from penstock.inspection.index.files import IndexFile
from penstock.proto.errors import Corrupt

from .derived import DerivedSplit, batch_of
from .files import Bytes, FileReader, open_file_system


def read_index(split: DerivedSplit, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The entries of one index file that name positions below the split's end.

    Raises Corrupt: its header and size fit no number of slots.
    """
    with open_index(split) as index:
        for first, data in index.blocks():
            entries = data.view(INDEX_ENTRY)
            kept = np.flatnonzero(entries["physical_offset"] < split.end)
            entries = entries[kept]
            values = {
                "brokerName": split.broker_name,
                "file": split.index_path.rsplit("/", 1)[-1],
                "entry": kept + first,
                "keyHash": entries["key_hash"],
                "physicalOffset": entries["physical_offset"],
                "storeTimestamp": (index.header.begin_timestamp + entries["seconds"].astype(np.int64) * 1000) * 1000,
                "previousEntry": entries["previous"],
            }
            yield batch_of(values, len(kept), schema)


@contextmanager
def open_index(split: DerivedSplit) -> Iterator[IndexFile]:
    """The index file of the split, open for reading. Raises Corrupt: its header and size fit no number of slots."""
    file_system, _ = open_file_system(split.root)
    with FileReader(file_system, split.index_path) as reader:
        file = _AsInput(reader, int(file_system.get_file_info(split.index_path).size or 0))
        if file.size < HEADER_BYTES:
            raise Corrupt(f"{reader.path}: {file.size} bytes are no index file: rebuild the index")
        index = IndexFile(file.path, file)
        if index.entries and not index.infer_slots():
            raise Corrupt(f"{reader.path}: its header and its entries disagree: rebuild the index")
        yield index


class _AsInput(InputFile):
    """A file of any file system, for what reads files of this machine."""

    def __init__(self, reader: FileReader, size: int) -> None:
        self.path, self.size = Path(reader.path), size
        self._reader = reader

    def read_into(self, out: Bytes, position: int) -> int:
        """Fill ``out``, with zeros behind the file's end; the bytes that the file had."""
        data = self._reader.read(position, len(out))
        out[: len(data)], out[len(data) :] = data, 0
        return len(data)
