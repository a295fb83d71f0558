"""Byte strings as columns: what kernels read, without work in Python for each.

Kernels are loaded when first needed: importing them costs half a second.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.proto.errors import InvalidArgument

Bytes = npt.NDArray[np.uint8]
Ends = npt.NDArray[np.int64]
_ITEM = "bodies must be a list of bytes, a NumPy array of S or of rows of uint8, or an Arrow binary array"


@dataclass(frozen=True, slots=True)
class Column:
    """``data[ends[i - 1]:ends[i]]`` is value ``i``; value 0 begins at 0. ``len(data) == ends[-1]``."""

    data: Bytes
    ends: Ends

    @classmethod
    def of(cls, values: Sequence[bytes], lengths: Ends | None = None) -> Column:
        """The column of ``values`` (copied); ``lengths`` if they are known."""
        lengths = lengths_of(values) if lengths is None else lengths
        return cls(np.frombuffer(b"".join(values), dtype=np.uint8), np.cumsum(lengths))

    @staticmethod
    def listed(values: list[bytes]) -> Listed | None:
        """The column of a list that nobody else changes. None: there is something else than ``bytes`` in it.

        The values are read where CPython has them, so nothing is copied here.
        """
        from .record.kernels.columns import locate_bytes

        count = len(values)
        pointers = np.fromiter(values, object, count)
        addresses, ends = np.empty(count, np.int64), np.empty(count, np.int64)
        found = locate_bytes(pointers.ctypes.data, id(bytes), addresses, ends)
        return Listed(values, addresses, ends) if found == count else None

    @staticmethod
    def repeated(value: bytes, count: int) -> Column:
        return Repeated(value, count)

    @classmethod
    def joined(cls, columns: Sequence[Column]) -> Column:
        """All values of ``columns``, one after the other."""
        if len(columns) == 1:
            return columns[0]
        bases = np.cumsum([0, *(len(column.data) for column in columns[:-1])])
        ends = [column.ends + base for column, base in zip(columns, bases, strict=True)]
        return cls(np.concatenate([column.data for column in columns]), np.concatenate(ends))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> bytes:
        start = int(self.ends[index - 1]) if index else 0
        return self.data[start : int(self.ends[index])].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        data, ends = self.data.tobytes(), self.ends.tolist()
        return (data[start:end] for start, end in itertools.pairwise([0, *ends]))

    @property
    def lengths(self) -> Ends:
        lengths = self.ends.copy()
        lengths[1:] -= self.ends[:-1]
        return lengths

    def part(self, start: int, stop: int) -> Column:
        """The values of ``[start, stop)``; a view."""
        if start == 0 and stop >= len(self):
            return self
        base = int(self.ends[start - 1]) if start else 0
        return Column(self.data[base : int(self.ends[stop - 1])], self.ends[start:stop] - base)

    def take(self, indexes: npt.NDArray[np.int64]) -> Column:
        """The values at ``indexes``, in that order (copied)."""
        from .record.kernels.columns import gather_rows

        ends = np.cumsum(self.lengths[indexes])
        data = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
        gather_rows(self.data, self.ends, indexes, data)
        return Column(data, ends)


class Listed(Column):
    """Values that are ``bytes`` objects, each where it is; ``addresses`` tell where. Joined when that is asked for."""

    __slots__ = ("_joined", "addresses", "values")

    values: list[bytes]
    addresses: Ends
    _joined: Bytes | None

    def __init__(self, values: list[bytes], addresses: Ends, ends: Ends) -> None:
        content = (("values", values), ("addresses", addresses), ("ends", ends), ("_joined", None))
        for name, each in content:
            object.__setattr__(self, name, each)

    def __getitem__(self, index: int) -> bytes:
        return self.values[index]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.values)

    @property
    def data(self) -> Bytes:
        joined = self._joined
        if joined is None:
            joined = np.frombuffer(b"".join(self.values), np.uint8)
            object.__setattr__(self, "_joined", joined)
        return joined

    def part(self, start: int, stop: int) -> Column:
        base = int(self.ends[start - 1]) if start else 0
        return Listed(self.values[start:stop], self.addresses[start:stop], self.ends[start:stop] - base)

    def take(self, indexes: npt.NDArray[np.int64]) -> Column:
        values = [self.values[index] for index in indexes.tolist()]
        return Listed(values, self.addresses[indexes], np.cumsum(self.lengths[indexes]))


class Repeated(Column):
    """One value several times; its bytes are written when they are first asked for."""

    __slots__ = ("_made", "count", "value")

    value: bytes
    count: int
    _made: tuple[Bytes, Ends] | None

    def __init__(self, value: bytes, count: int) -> None:
        for name, content in (("value", value), ("count", count), ("_made", None)):
            object.__setattr__(self, name, content)

    def __len__(self) -> int:
        return self.count

    @property
    def data(self) -> Bytes:
        return self._whole()[0]

    @property
    def ends(self) -> Ends:
        return self._whole()[1]

    @property
    def lengths(self) -> Ends:
        return np.full(self.count, len(self.value), np.int64)

    def part(self, start: int, stop: int) -> Column:
        return Repeated(self.value, len(range(self.count)[start:stop]))

    def take(self, indexes: npt.NDArray[np.int64]) -> Column:
        return Repeated(self.value, len(indexes))

    def _whole(self) -> tuple[Bytes, Ends]:
        if self._made is None:
            ends = np.arange(1, self.count + 1, dtype=np.int64) * len(self.value)
            object.__setattr__(self, "_made", (np.frombuffer(self.value * self.count, np.uint8), ends))
        assert self._made is not None
        return self._made


def lengths_of(values: Sequence[bytes]) -> Ends:
    return np.fromiter(map(len, values), dtype=np.int64, count=len(values))


def hashes_of(values: Column) -> npt.NDArray[np.int32]:
    """Java's string hash of each value, which is UTF-8: what a sharding key selects its queue by."""
    from .record.kernels.columns import hash_rows

    hashes = np.empty(len(values), dtype=np.int32)
    hash_rows(values.data, values.ends, hashes)
    return hashes


def with_property(properties: Column | None, name: str, values: Column) -> Column:
    """The property strings with one more pair each, but where the value is empty; ``None``: there are no pairs yet."""
    from .record.kernels.columns import append_property

    count = len(values)
    if isinstance(properties, Repeated) and isinstance(values, Repeated) and values.value:
        return Repeated(b"%b%b\x01%b\x02" % (properties.value, name.encode(), values.value), count)
    if count == 1 and len(values.data):  # a message that is sent alone is waited for
        base = b"" if properties is None else properties.data.tobytes()
        row = b"%b%b\x01%b\x02" % (base, name.encode(), values.data.tobytes())
        return Column(np.frombuffer(row, np.uint8), np.array([len(row)], np.int64))
    if properties is None:
        properties = Column(np.empty(0, np.uint8), np.zeros(count, np.int64))
    encoded = np.frombuffer(name.encode(), np.uint8)
    room = len(properties.data) + len(values.data) + count * (len(encoded) + 2)
    out, ends = np.empty(room, np.uint8), np.empty(count, np.int64)
    size = append_property(properties.data, properties.ends, encoded, values.data, values.ends, out, ends)
    return Column(out[:size], ends)


def column_of(values: Any) -> Column:
    """The column of a list of bytes, a NumPy array (``S``, rows of ``uint8``, or objects) or an Arrow binary array.

    Arrow and row arrays are not copied where their layout allows it. Trailing zero bytes of an ``S`` array are
    padding, as NumPy defines it.

    Raises:
        InvalidArgument: something else, or an Arrow array with nulls.
    """
    if isinstance(values, np.ndarray):
        return _of_array(values)
    if hasattr(values, "combine_chunks") or hasattr(values, "buffers"):
        return _of_arrow(values)
    return Column.of(bytes_list(values))


def bytes_list(values: Any) -> list[bytes]:
    """``values`` as a list of nothing but bytes; itself if it is one.

    Raises:
        InvalidArgument: no sequence, or something else in it.
    """
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes, bytearray, memoryview)):
        raise InvalidArgument(f"{_ITEM}, not {type(values).__name__}")
    kinds = set(map(type, values))
    if kinds <= {bytes}:
        return values if isinstance(values, list) else list(values)
    for index, value in enumerate(values):
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise InvalidArgument(f"{_ITEM}; item {index} is {type(value).__name__}")
    return [bytes(value) for value in values]


def _of_array(values: npt.NDArray[Any]) -> Column:
    if values.dtype.kind == "S" and values.ndim == 1:
        width = values.dtype.itemsize
        lengths = np.strings.str_len(values).astype(np.int64)
        rows = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), width)
        if len(values) and int(lengths.min()) == width:
            return _of_array(rows)
        return Column(rows[np.arange(width) < lengths[:, None]], np.cumsum(lengths))
    if values.dtype == np.uint8 and values.ndim == 2:
        count, width = values.shape
        return Column(np.ascontiguousarray(values).reshape(-1), np.arange(1, count + 1, dtype=np.int64) * width)
    if values.dtype == object and values.ndim == 1:
        return column_of(values.tolist())
    raise InvalidArgument(f"{_ITEM}, not an array of {values.dtype} with {values.ndim} dimensions")


def _of_arrow(values: Any) -> Column:
    array = values.combine_chunks() if hasattr(values, "combine_chunks") else values
    if hasattr(array, "num_chunks"):
        array = array.chunk(0)
    kind, count, first = str(array.type), len(array), array.offset
    if array.null_count:
        raise InvalidArgument(f"{_ITEM}; this one has {array.null_count} nulls")
    if kind.startswith("fixed_size_binary"):
        width = array.type.byte_width
        data = np.frombuffer(array.buffers()[1], dtype=np.uint8)[first * width : (first + count) * width]
        return Column(data, np.arange(1, count + 1, dtype=np.int64) * width)
    offset_type = {"binary": np.int32, "string": np.int32, "large_binary": np.int64, "large_string": np.int64}.get(kind)
    if offset_type is None:
        raise InvalidArgument(f"{_ITEM}, not an Arrow array of {kind}")
    if not count:
        return Column(np.empty(0, np.uint8), np.empty(0, np.int64))
    _, offsets, data_buffer = array.buffers()
    ends = np.frombuffer(offsets, dtype=offset_type)[first : first + count + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    return Column(data[ends[0] : ends[-1]], ends[1:] - ends[0])
