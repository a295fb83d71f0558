"""Large stores, made in arrays: log files and the consume queues that belong to them.

All records of a store have the same size, so a block of them is a table of bytes in which whole columns are set.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.formats.hashing import string_hash
from penstock.formats.queue_entry import ENTRY
from penstock.formats.record.layout import (
    BLANK_BYTES,
    MAGIC_BLANK,
    Host,
    PhysicalOffset,
    QueueOffset,
    Record,
    encode_record,
)

TOPIC = "BenchmarkTopic"
BLOCK_ROWS = 4096
BEGIN_MS = 1_767_225_600_000  # 2026-01-01
PER_MS = 100
_HOST = Host.parse("10.0.0.1:10911")
_ID = b"7F000001000078DA05B0" + b"0" * 12
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
QUEUES = 64


def generate(
    root: Path, *, records: int, body_bytes: int, queues: int = QUEUES, segment_bytes: int = 1 << 30, seed: int = 1
) -> int:
    """Write a store of ``records`` messages, dealt out to the queues of one topic in turn; the log's bytes.

    Bodies are random, half of each compressible; keys repeat every thousand messages.
    """
    template, id_at, key_at = _template(body_bytes, seed)
    size = int(template.shape[1])
    (root / "commitlog").mkdir(parents=True)
    per_file = (segment_bytes - BLANK_BYTES) // size
    written = 0
    for number in range(-(-records // per_file)):
        count = min(per_file, records - written)
        start = number * segment_bytes
        with open(root / "commitlog" / f"{start:020d}", "wb") as file:
            for first in range(0, count, BLOCK_ROWS):
                rows = min(BLOCK_ROWS, count - first)
                _patch(template, written + first, start + first * size, queues, id_at, key_at)
                file.write(template[:rows].tobytes())
            left = segment_bytes - count * size
            if written + count < records:
                file.write(left.to_bytes(4, "big") + (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big"))
            file.truncate(segment_bytes)
        written += count
    _write_queues(root, records, size, per_file, queues, segment_bytes)
    return records // per_file * segment_bytes + records % per_file * size


def _template(body_bytes: int, seed: int) -> tuple[npt.NDArray[np.uint8], int, int]:
    """A block of encoded records, and where in each the changing digits of id and key are."""
    random = np.random.default_rng(seed)
    bodies = random.integers(0, 256, (BLOCK_ROWS, body_bytes), np.uint8)
    bodies[:, body_bytes // 2 :] = ord("a")
    properties = b"UNIQ_KEY\x01" + _ID + b"\x02WAIT\x01true\x02TAGS\x01TagA\x02KEYS\x01order-000\x02"
    encoded = [
        encode_record(
            Record(
                topic=TOPIC,
                body=body.tobytes(),
                properties=properties,
                queue_offset=QueueOffset(0),
                physical_offset=PhysicalOffset(0),
                born_timestamp_ms=BEGIN_MS,
                born_host=_HOST,
                store_timestamp_ms=BEGIN_MS,
                store_host=_HOST,
            )
        )
        for body in bodies
    ]
    table = np.frombuffer(b"".join(encoded), np.uint8).reshape(BLOCK_ROWS, -1).copy()
    end = table.shape[1]
    key_at = end - 1 - 3
    id_at = end - len(properties) + len(b"UNIQ_KEY\x01") + len(_ID) - 12
    return table, id_at, key_at


def _patch(table: npt.NDArray[np.uint8], first: int, physical: int, queues: int, id_at: int, key_at: int) -> None:
    rows, size = table.shape
    numbers = first + np.arange(rows, dtype=np.int64)
    for at, kind, values in (
        (12, ">i4", numbers % queues),
        (20, ">i8", numbers // queues),
        (28, ">i8", physical + np.arange(rows, dtype=np.int64) * size),
        (40, ">i8", BEGIN_MS + numbers // PER_MS),
        (56, ">i8", BEGIN_MS + numbers // PER_MS),
    ):
        column = values.astype(kind)
        table[:, at : at + column.itemsize] = column.view(np.uint8).reshape(rows, -1)
    digits = (numbers[:, None] >> (4 * np.arange(11, -1, -1))) & 15
    table[:, id_at : id_at + 12] = _HEX[digits]
    table[:, key_at : key_at + 3] = (numbers[:, None] // (100, 10, 1)) % 10 + ord("0")


def _write_queues(root: Path, records: int, size: int, per_file: int, queues: int, segment_bytes: int) -> None:
    code = string_hash("TagA")
    for queue in range(queues):
        numbers = np.arange(queue, records, queues, dtype=np.int64)
        entries = np.empty(len(numbers), ENTRY)
        entries["physical_offset"] = numbers // per_file * segment_bytes + numbers % per_file * size
        entries["size"], entries["tags_code"] = size, code
        folder = root / "consumequeue" / TOPIC / str(queue)
        folder.mkdir(parents=True)
        for first in range(0, len(entries), 300_000):
            with open(folder / f"{first * ENTRY.itemsize:020d}", "wb") as file:
                file.write(entries[first : first + 300_000].tobytes())
                file.truncate(300_000 * ENTRY.itemsize)
