"""The view ``segments``: one row per log file, with its range, number of records, times and the state of its end."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from ...columns.schema import columns
from ..files import FileReader, open_file_system
from ..model import Damage, LogFile, Store
from .planning import Split

SEGMENT_COLUMNS = columns(
    "brokerName string, path string, startPhysicalOffset bigint, endPhysicalOffset bigint, fileBytes bigint, "
    "records bigint, recordBytes bigint, damages int, damagedBytes bigint, firstStoreTimestamp timestamp, "
    "lastStoreTimestamp timestamp, state string"
)
HEAD_BYTES = 4096


def first_time(store: Store, file: LogFile) -> int | None:
    """Store time of the file's first record, ms; None if the file does not begin with one."""
    file_system, _ = open_file_system(store.root)
    with FileReader(file_system, file.path) as reader:
        head = reader.read(0, HEAD_BYTES).tobytes()
    if len(head) < 76 or head[4:6] != b"\xda\xa3":
        return None
    sys_flag = int.from_bytes(head[36:40], "big")
    at = 56 + (12 if sys_flag & 16 else 0)
    return int.from_bytes(head[at : at + 8], "big", signed=True)


def read_segment(
    split: Split, store_tail: str, schema: pa.Schema, *, check_crc: bool = True
) -> Iterator[pa.RecordBatch]:
    """The row of one log file; ``store_tail`` is the state of the last one's end."""
    from .scanning import FileScan

    file = split.file
    if file is None:
        return
    records = record_bytes = damages = damaged = 0
    first: int | None = None
    last: int | None = None
    file_system, _ = open_file_system(split.root)
    with FileReader(file_system, file.path) as reader:
        scan = FileScan(reader, file.start, file.end, check_crc=check_crc, needs_blank=file.is_sealed)
        for piece in scan.read(0, file.end):
            if isinstance(piece, Damage):
                damages += 1
                damaged += piece.end - piece.start
                continue
            _, rows = piece
            records += len(rows)
            record_bytes += int(rows["size"].sum())
            first = int(rows["store_timestamp"][0]) if first is None else first
            last = int(rows["store_timestamp"][-1])
    values = {
        "brokerName": split.broker_name,
        "path": file.path,
        "startPhysicalOffset": file.start,
        "endPhysicalOffset": file.start + file.end,
        "fileBytes": file.size,
        "records": records,
        "recordBytes": record_bytes,
        "damages": damages,
        "damagedBytes": damaged,
        "firstStoreTimestamp": None if first is None else first * 1000,
        "lastStoreTimestamp": None if last is None else last * 1000,
        "state": "sealed" if file.is_sealed else store_tail,
    }
    yield pa.RecordBatch.from_pylist([values], schema)
