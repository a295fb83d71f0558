"""Stores for tests: small files, batches, and what a reader sees."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.broker.store import DispatchResult, ReadStatus, Store, StoreConfig
from penstock.formats.record.layout import Host, Record, decode_record
from penstock.formats.record.producer_mark import producer_mark
from penstock.proto.errors import Corrupt
from tests.support.record.encoding import encode_messages
from tests.support.waiting import wait_until

HOST = Host.parse("127.0.0.1:10911")
NEVER_MS = 600_000
BODY_AT = 88
"""In a record of IPv4 hosts."""
FUTURE_MS = 1 << 42


def store_config(root: Path, **changes: Any) -> StoreConfig:
    """Files small enough that a test fills several; nothing is synced but when asked for."""
    settings: dict[str, Any] = {
        "root": root,
        "segment_bytes": 16384,
        "consume_queue_bytes": 400,
        "flush_interval_ms": NEVER_MS,
        "flush_thorough_interval_ms": NEVER_MS,
        "store_host": HOST,
        "index_slots": 50,
        "index_entries": 120,
    }
    return StoreConfig(**(settings | changes))


def batch(
    topic: str,
    bodies: Sequence[bytes],
    queue_ids: Sequence[int] | int = 0,
    *,
    properties: Sequence[bytes] | None = None,
    mark: tuple[int, int, int, int] | None = None,
) -> bytes:
    """Records of one batch; ``mark`` is producer id, epoch, lane, sequence."""
    queues = queue_ids if isinstance(queue_ids, int) else np.array(queue_ids, np.int32)
    return encode_messages(
        topic,
        bodies,
        properties,
        queues,
        born_host=HOST,
        mark=None if mark is None else producer_mark(*mark, len(bodies)),
    )


def forged(place: int) -> bytes:
    """A sound record of topic ``other``, of the future, if it lies at ``place`` in the log: for a body to have."""
    record = bytearray(encode_messages("other", [b"forged"], born_host=HOST))
    record[28:36] = place.to_bytes(8, "big")
    record[56:64] = FUTURE_MS.to_bytes(8, "big")
    return bytes(record)


def dispatch_all(store: Store) -> list[DispatchResult]:
    """Confirm and dispatch everything appended."""
    store.set_confirm(store.end_offset)
    results = []
    while store.dispatched_offset < store.end_offset:
        before = store.dispatched_offset
        results.append(store.dispatch())
        assert store.dispatched_offset > before, "dispatch is stuck"
    return results


def flush(store: Store) -> None:
    """Sync the log."""
    end = store.end_offset
    store.request_flush(end)
    wait_until(lambda: store.flushed_offset >= end, what="the flush")


def read_records(store: Store, topic: str, queue_id: int = 0, *, max_bytes: int = 3000, **limits: Any) -> list[bytes]:
    """Every record of the queue, as a consumer reads them from the minimum to the maximum.

    Raises:
        Corrupt: one of them is damaged.
    """
    low, high = store.reader.queue_range(topic, queue_id)
    found: list[bytes] = []
    while low < high:
        result = store.reader.read(topic, queue_id, low, max_bytes, **limits)
        if result.status is ReadStatus.DAMAGED:
            raise Corrupt(result.problem)
        assert result.status in (ReadStatus.FOUND, ReadStatus.NO_MATCHED_MESSAGE), result
        memory = ctypes.create_string_buffer(result.bytes)
        count = result.count
        result.copy_to(ctypes.addressof(memory))
        pieces = split(memory.raw)
        assert len(pieces) == count
        found += pieces
        assert result.next_offset > low, "a read must get on"
        low = result.next_offset
    return found


def read(store: Store, topic: str, queue_id: int = 0, **limits: Any) -> list[Record]:
    """The same, decoded and checked."""
    return [decode_record(each, check_crc=True) for each in read_records(store, topic, queue_id, **limits)]


def bodies(store: Store, topic: str, queue_id: int = 0, **limits: Any) -> list[bytes]:
    """The bodies of a queue."""
    return [record.body for record in read(store, topic, queue_id, **limits)]


def split(records: bytes) -> list[bytes]:
    """Records laid end to end, one by one."""
    found = []
    at = 0
    while at < len(records):
        size = int.from_bytes(records[at : at + 4], "big")
        found.append(records[at : at + size])
        at += size
    return found


def bodies_of(records: bytes) -> list[bytes]:
    """The bodies of records laid end to end."""
    return [decode_record(each).body for each in split(records)]


def patch(root: Path, offset: int, content: bytes, *, segment_bytes: int = 16384) -> Path:
    """Overwrite bytes of the log at ``offset``; the file's path."""
    base = offset - offset % segment_bytes
    path = root / "commitlog" / f"{base:020d}"
    with path.open("r+b") as file:
        file.seek(offset - base)
        file.write(content)
    return path


def tree(root: Path) -> dict[str, bytes]:
    """Content of every file."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
