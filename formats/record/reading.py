"""A view over fetched records: scanned once by a kernel, decoded where somebody looks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.proto.errors import CorruptBatch, PenstockError

from .compression import decompress
from .layout import Host, Record, SysFlag, decode_record, offset_message_id
from .properties import decode_properties
from .rows import ROW, ScanStatus

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


class RecordBatch:
    """The records in ``buffer[start:end]``, in their order. Holds the buffer; copies nothing until asked.

    ``check_crc`` verifies the bodies' checksums.

    Raises:
        CorruptBatch: the bytes are not whole records to the end.
    """

    def __init__(
        self,
        buffer: bytes | bytearray | memoryview,
        start: int = 0,
        end: int | None = None,
        *,
        check_crc: bool = False,
    ) -> None:
        from . import kernels

        self.buffer, self._bytes, base = _whole_buffer(buffer)
        """The memory that the rows' positions count in: ``buffer``, or the ``bytes`` that it is a view of."""
        length = len(buffer)
        if end is None:
            end = length
        if not 0 <= start <= end <= length:
            raise ValueError(f"range {start}..{end} is not inside the buffer of {length} bytes")
        capacity = kernels.count_records(self._bytes, base + start, base + end, end - start)
        self.rows: npt.NDArray[np.void] = np.empty(capacity, ROW)
        """One :data:`ROW` per record."""
        count, position, status = kernels.scan(self._bytes, base + start, base + end, -1, check_crc, self.rows)
        if count < capacity:
            self.rows = self.rows[:count]
        elif status == ScanStatus.ROWS_FULL:  # sized exactly: the scan looked no further
            position, status = self._after_last(kernels, base + start, base + end)
        if status != ScanStatus.END:
            why, where = ScanStatus(status).name, int(position) - base
            raise CorruptBatch(f"records: {why} at byte {where} of {end}, after {count} whole ones", index=count)

    def _after_last(self, kernels: Any, start: int, end: int) -> tuple[int, int]:
        after = int(self.rows[-1]["position"] + self.rows[-1]["size"]) if len(self.rows) else start
        _, position, status = kernels.scan(self._bytes, after, end, -1, False, self.rows[:0])
        return position, status

    def __len__(self) -> int:
        return len(self.rows)

    def values(self, field: str) -> list[int]:
        """One field of all rows as Python numbers, which are fast to index; made once."""
        found = self._values.get(field)
        if found is None:
            found = self._values[field] = self.rows[field].tolist()
        return found

    @cached_property
    def _values(self) -> dict[str, list[int]]:
        return {}

    @cached_property
    def plain_bodies(self) -> tuple[bytes, list[int], list[int]] | None:
        """The buffer, where each body begins in it and where it ends; None if any is compressed, or it is no ``bytes``.

        For whoever looks at many, one by one: lists, for a tuple per message would cost more than its body's slice.
        """
        if self._is_compressed or not isinstance(self.buffer, bytes):
            return None
        starts = self.rows["body_position"]
        return self.buffer, starts.tolist(), (starts + self.rows["body_size"]).tolist()

    @cached_property
    def _body_columns(self) -> tuple[list[int], list[int]]:
        return self.rows["body_position"].tolist(), self.rows["body_size"].tolist()

    @cached_property
    def _is_compressed(self) -> bool:
        return bool((self.rows["sys_flag"] & SysFlag.COMPRESSED).any())

    def body(self, index: int) -> bytes:
        """The body as its producer sent it.

        Raises:
            MessageTooLarge: compressed, and it expands beyond the limit.
            Corrupt: compressed, and not readable.
        """
        stored = self.stored_body(index)
        if not self._is_compressed:
            return stored
        return decompress(stored, int(self.rows["sys_flag"][index]))

    def stored_body(self, index: int) -> bytes:
        """The body as the record has it, perhaps compressed."""
        starts, sizes = self._body_columns
        start = starts[index]
        stored = self.buffer[start : start + sizes[index]]
        return stored if isinstance(stored, bytes) else bytes(stored)

    def bodies(self) -> list[bytes]:
        """All bodies as their producers sent them; errors as :meth:`body`."""
        if self._is_compressed:
            return [self.body(index) for index in range(len(self.rows))]
        plain = self.plain_bodies
        if plain is not None:
            whole, starts, ends = plain
            return [whole[start:end] for start, end in zip(starts, ends, strict=True)]
        data = self.buffer
        starts, sizes = self._body_columns
        return [bytes(data[start : start + size]) for start, size in zip(starts, sizes, strict=True)]

    def body_array(self) -> tuple[Bytes, Longs]:
        """All bodies laid end to end in one array, and where each ends in it; errors as :meth:`body`."""
        if self._is_compressed:
            bodies = self.bodies()
            ends = np.cumsum(np.fromiter(map(len, bodies), np.int64, len(bodies)))
            return np.frombuffer(b"".join(bodies), np.uint8), ends
        from . import kernels

        ends = np.cumsum(self.rows["body_size"], dtype=np.int64)
        joined = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        positions, sizes = (np.ascontiguousarray(self.rows[name]) for name in ("body_position", "body_size"))
        copied = kernels.gather(self._bytes, positions, sizes, joined.ctypes.data)
        assert copied == len(joined)
        return joined, ends

    def properties_bytes(self, index: int) -> bytes:
        row = self.rows[index]
        return self._slice(row["properties_position"], row["properties_size"])

    def properties(self, index: int) -> dict[str, str]:
        start = self.values("properties_position")[index]
        size = self.values("properties_size")[index]
        return decode_properties(self.buffer[start : start + size]) if size else {}

    def topic(self, index: int) -> str:
        row = self.rows[index]
        return str(self._slice(row["topic_position"], row["topic_size"]), "utf-8", "replace")

    def record_bytes(self, index: int) -> bytes:
        row = self.rows[index]
        return self._slice(row["position"], row["size"])

    def record(self, index: int) -> Record:
        """The record with every field decoded; the body stays compressed."""
        return decode_record(self.record_bytes(index))

    def born_host(self, index: int) -> Host:
        """The producer's address."""
        is_v6 = bool(self.values("sys_flag")[index] & SysFlag.BORN_HOST_V6)
        return self._host(self.values("position")[index] + 48, is_v6)

    def store_host(self, index: int) -> Host:
        """The broker's address."""
        is_v6 = bool(self.values("sys_flag")[index] & SysFlag.STORE_HOST_V6)
        return self._host(self.values("body_position")[index] - 16 - (20 if is_v6 else 8), is_v6)

    def offset_message_id(self, index: int) -> str:
        """The broker's id of the message."""
        return offset_message_id(self.store_host(index), int(self.rows["physical_offset"][index]))

    def _host(self, position: int, is_v6: bool) -> Host:
        return Host.decode(self.buffer[position : position + (20 if is_v6 else 8)])

    def _slice(self, start: int, size: int) -> bytes:
        return bytes(self.buffer[start : start + size])

    def __iter__(self) -> Iterator[Record]:
        return (self.record(index) for index in range(len(self.rows)))

    def to_arrow(self) -> Any:
        """The batch as a ``pyarrow.RecordBatch``: ids, offsets, times, tag hash, body, raw properties.

        Raises:
            PenstockError: pyarrow is not installed.
        """
        try:
            import pyarrow as pa  # type: ignore[import-not-found, unused-ignore]
        except ImportError as error:
            raise PenstockError("to_arrow needs the package pyarrow: pip install pyarrow") from error
        names = ("queue_id", "queue_offset", "physical_offset", "born_timestamp", "store_timestamp", "tags_code")
        columns = {name: pa.array(np.ascontiguousarray(self.rows[name])) for name in names}
        data, ends = self.body_array()
        offsets = np.concatenate((np.zeros(1, np.int64), ends))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        columns["body"] = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self.rows), buffers)
        columns["properties"] = pa.array(
            [self.properties_bytes(index) for index in range(len(self.rows))], type=pa.binary()
        )
        return pa.RecordBatch.from_pydict(columns)


def _whole_buffer(buffer: bytes | bytearray | memoryview) -> tuple[bytes | memoryview, Bytes, int]:
    """What to slice, the same memory as an array, and where ``buffer`` begins in them.

    Slicing ``bytes`` is three times as fast as slicing a view of them and copying that: so a view of ``bytes``
    is looked through.
    """
    if isinstance(buffer, bytes):
        return buffer, np.frombuffer(buffer, np.uint8), 0
    view = memoryview(buffer).cast("B")
    array = np.frombuffer(view, np.uint8)
    whole = view.obj
    if isinstance(whole, bytes):
        whole_array = np.frombuffer(whole, np.uint8)
        return whole, whole_array, array.ctypes.data - whole_array.ctypes.data if len(array) else 0
    return view, array, 0
