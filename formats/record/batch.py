"""Record batches at the clients' end: encode what is produced, look into what is fetched.

Importing this is cheap: the kernels, and Numba, are loaded by the first encoder or batch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.proto.errors import InvalidArgument, MessageTooLarge

from .layout import TOPIC_BYTES_MAX, Host, SysFlag
from .producer_mark import MARK_PREFIX, ProducerMark, find_producer_mark, parse_producer_mark, producer_mark
from .reading import RecordBatch

if TYPE_CHECKING:
    from types import ModuleType

__all__ = [
    "BatchEncoder",
    "ProducerMark",
    "RecordBatch",
    "encode_messages",
    "find_producer_mark",
    "parse_producer_mark",
    "producer_mark",
]

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]


class BatchEncoder:
    """Lays out the records of one topic, into buffers that it keeps. For one thread at a time.

    ``store_v6``: the broker stores IPv6 addresses, so that the records keep room for one.
    """

    def __init__(self, topic: str, born_host: Host, *, store_v6: bool = False) -> None:
        from . import kernels

        self.topic = topic
        self._kernels: ModuleType = kernels
        self._topic: Bytes = np.frombuffer(topic.encode(), np.uint8)
        if len(self._topic) > TOPIC_BYTES_MAX:
            raise InvalidArgument(f"topic of {len(self._topic)} bytes: at most {TOPIC_BYTES_MAX} fit a record")
        self._born_host: Bytes = np.frombuffer(born_host.encode(), np.uint8)
        self._store_flag = SysFlag.STORE_HOST_V6 if store_v6 else 0
        self._buffer: Bytes = np.empty(1 << 16, np.uint8)

    def encode(
        self,
        bodies: Sequence[bytes],
        properties: Sequence[bytes] | None = None,
        queue_ids: Ints | int = 0,
        *,
        mark: bytes | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int | None = None,
    ) -> memoryview:
        """One record per body; the view is good until the next call.

        ``properties`` are encoded property strings, one per body. ``mark`` (see :func:`producer_mark`) becomes the
        first property of the first record. ``sys_flag`` and ``flag`` are those of every record.

        Raises:
            MessageTooLarge: a property string above 32767 bytes; ``details['index']`` names the record.
        """
        columns = _columns(bodies, properties, mark)
        size = self._size(columns, sys_flag)
        if size > len(self._buffer):
            self._buffer = np.empty(size + size // 2, np.uint8)
        out = self._buffer[:size]
        self._encode(out, columns, queue_ids, flag, sys_flag, born_timestamp_ms)
        return out.data

    def _size(self, columns: tuple[Bytes, Longs, Bytes, Longs], sys_flag: int) -> int:
        _, body_ends, _, property_ends = columns
        count = len(body_ends)
        body_bytes = int(body_ends[-1]) if count else 0
        properties_bytes = int(property_ends[-1]) if count else 0
        flags = sys_flag | self._store_flag
        size: int = self._kernels.encoded_bytes(
            count, body_bytes, properties_bytes, len(self._topic), flags, len(self._born_host)
        )
        return size

    def _encode(
        self,
        out: Bytes,
        columns: tuple[Bytes, Longs, Bytes, Longs],
        queue_ids: Ints | int,
        flag: int,
        sys_flag: int,
        born_timestamp_ms: int | None,
    ) -> None:
        bodies, body_ends, properties, property_ends = columns
        queues = np.full(len(body_ends), queue_ids, np.int32) if isinstance(queue_ids, int) else queue_ids
        born = time.time_ns() // 1_000_000 if born_timestamp_ms is None else born_timestamp_ms
        written = self._kernels.encode_batch(
            out,
            bodies,
            body_ends,
            properties,
            property_ends,
            self._topic,
            queues,
            sys_flag & ~SysFlag.STORE_HOST_V6 | self._store_flag,
            flag,
            born,
            self._born_host,
        )
        if written < 0:
            index = -1 - written
            start = int(property_ends[index - 1]) if index else 0
            raise MessageTooLarge(
                f"message {index} of the batch cannot be laid out: its properties take "
                f"{int(property_ends[index]) - start} bytes, at most 32767 are allowed",
                index=index,
            )
        assert written == len(out), "encoded_bytes and encode_batch disagree"


def encode_messages(
    topic: str,
    bodies: Sequence[bytes],
    properties: Sequence[bytes] | None = None,
    queue_ids: Ints | int = 0,
    *,
    born_host: Host,
    store_v6: bool = False,
    mark: bytes | None = None,
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp_ms: int | None = None,
) -> bytes:
    """The records of one batch, for callers that send one now and then; see :meth:`BatchEncoder.encode`."""
    encoder = BatchEncoder(topic, born_host, store_v6=store_v6)
    return bytes(
        encoder.encode(
            bodies,
            properties,
            queue_ids,
            mark=mark,
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp_ms=born_timestamp_ms,
        )
    )


def _columns(
    bodies: Sequence[bytes], properties: Sequence[bytes] | None, mark: bytes | None
) -> tuple[Bytes, Longs, Bytes, Longs]:
    """Bodies and property strings laid end to end, and where each ends."""
    count = len(bodies)
    body_bytes, body_ends = _join(bodies)
    first = MARK_PREFIX + mark + b"\x02" if mark is not None and count else b""
    if properties is None:
        return body_bytes, body_ends, np.frombuffer(first, np.uint8), np.full(count, len(first), np.int64)
    if len(properties) != count:
        raise InvalidArgument(f"{len(properties)} property strings for {count} bodies")
    if first:
        properties = [first + properties[0], *properties[1:]]
    return body_bytes, body_ends, *_join(properties)


def _join(parts: Sequence[bytes]) -> tuple[Bytes, Longs]:
    ends: Longs = np.fromiter(map(len, parts), np.int64, len(parts))
    np.cumsum(ends, out=ends)
    return np.frombuffer(b"".join(parts), np.uint8), ends
