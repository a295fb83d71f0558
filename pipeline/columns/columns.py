"""Record bytes to Arrow columns: a kernel per kind of column, no Python per row.

The exceptions cost Python per row that needs it: compressed bodies, and text columns of a batch in which a byte
sequence is not UTF-8 (Arrow would pass it on and Spark would fail on it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.formats.intrinsics.memory import LANES
from penstock.formats.record.compression import decompress
from penstock.formats.record.layout import Host, SysFlag
from penstock.formats.record.rows import ROW
from penstock.proto.errors import Corrupt, MessageTooLarge

from . import column_kernels as kernels
from .schema import TIME_MS_MAX, TIME_MS_MIN

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Rows = npt.NDArray[np.void]

BATCH_ROWS = 10_000
BATCH_BYTES = 32 << 20
"""Stored bytes in one batch, and bytes of decompressed bodies: a batch ends before it would exceed either."""
_LONGS = {name: k for k, name in enumerate(name for name in ROW.names or () if ROW[name] == np.int64)}
_INTS = {name: k for k, name in enumerate(name for name in ROW.names or () if ROW[name] == np.int32)}
"""The fields of a row by their size, numbered as they stand in it: the long ones first."""
assert all(ROW.fields[name][1] == 8 * k for name, k in _LONGS.items())  # type: ignore[index]
assert all(ROW.fields[name][1] == 8 * len(_LONGS) + 4 * k for name, k in _INTS.items())  # type: ignore[index]


class ColumnWriter:
    """Makes record batches of ``schema`` (from Spark's ``to_arrow_schema``), any selection of the columns.

    ``on_bad_body`` is asked about a body that cannot be decompressed, with the row's index and the error: it raises,
    or answers the text for the column ``corrupt``, and the body becomes null, or with ``keeps_bad_bodies`` what is
    stored.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        broker_name: str,
        decompress: bool = True,
        batch_rows: int = BATCH_ROWS,
        on_bad_body: Callable[[Rows, int, Exception], str] | None = None,
        keeps_bad_bodies: bool = False,
    ) -> None:
        self.schema = schema
        self._broker_name = broker_name
        self._batch_rows = batch_rows
        self._on_bad_body = on_bad_body
        self._keeps_bad_bodies = keeps_bad_bodies
        self._makers = [(_MAKERS[field.name], field.type) for field in schema]
        names = set(schema.names)
        self._decompresses = decompress and "body" in names
        self._has_bytes = bool(names & {"body", "properties", "keys", "keyHashes", "tags", "messageId"})

    def batches(self, buffer: Bytes, rows: Rows) -> Iterator[pa.RecordBatch]:
        """The rows that :func:`penstock.formats.record.kernels.scan` made of ``buffer``, as batches in their order."""
        start = 0
        ends = np.cumsum(rows["size"], dtype=np.int64) if self._has_bytes else np.zeros(len(rows), np.int64)
        while start < len(rows):
            before = int(ends[start - 1]) if start else 0
            end = int(np.searchsorted(ends, before + BATCH_BYTES, side="right"))
            end = max(start + 1, min(end, start + self._batch_rows, len(rows)))
            part = rows[start:end]
            bodies = self._expand(buffer, part) if self._decompresses else None
            if bodies is not None:
                part = part[: bodies.rows]
            yield self._batch(_Part(buffer, part, self._broker_name, bodies))
            start += len(part)

    def _batch(self, part: _Part) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([make(part, kind) for make, kind in self._makers], schema=self.schema)

    def _expand(self, buffer: Bytes, rows: Rows) -> _Bodies | None:
        """Decompress as many of the compressed bodies as one batch may hold."""
        compressed = np.flatnonzero(rows["sys_flag"] & SysFlag.COMPRESSED)
        if not len(compressed):
            return None
        found: dict[int, bytes | None] = {}
        bad: dict[int, str] = {}
        total = 0
        for index in compressed.tolist():
            row = rows[index]
            start = int(row["body_position"])
            stored = buffer[start : start + int(row["body_size"])].tobytes()
            try:
                body: bytes | None = decompress(stored, int(row["sys_flag"]))
            except (Corrupt, MessageTooLarge) as error:
                if self._on_bad_body is None:
                    raise
                bad[index] = self._on_bad_body(rows, index, error)
                body = stored if self._keeps_bad_bodies else None
            total += len(body or b"")
            if total > BATCH_BYTES and index > 0:
                bad.pop(index, None)
                return _Bodies(index, found, bad)
            found[index] = body
        return _Bodies(len(rows), found, bad)


class _Bodies(NamedTuple):
    """Decompressed bodies of the first ``rows`` rows, by row; None or as stored where ``bad`` says why."""

    rows: int
    found: dict[int, bytes | None]
    bad: dict[int, str]


class _Part:
    """The rows of one batch, and what several columns need of them."""

    def __init__(self, buffer: Bytes, rows: Rows, broker_name: str, bodies: _Bodies | None) -> None:
        self.buffer = buffer
        self.count = len(rows)
        self.broker_name = broker_name
        self.bodies = bodies
        self._longs: npt.NDArray[np.int64] = np.empty((len(_LONGS), self.count), np.int64)
        self._ints: npt.NDArray[np.int32] = np.empty((len(_INTS), self.count), np.int32)
        rows = np.ascontiguousarray(rows)
        longs = rows.view(np.int64).reshape(self.count, -1)[:, : len(_LONGS)]
        ints = rows.view(np.int32).reshape(self.count, -1)[:, 2 * len(_LONGS) :]
        kernels.turn(longs, ints, self._longs, self._ints)

    def longs(self, field: str) -> Longs:
        """A field of eight bytes, contiguous."""
        found: Longs = self._longs[_LONGS[field]]
        return found

    def ints(self, field: str) -> Ints:
        """A field of four bytes, contiguous."""
        found: Ints = self._ints[_INTS[field]]
        return found

    @cached_property
    def properties(self) -> tuple[Longs, Ints]:
        """Positions and sizes of the property strings."""
        return self.longs("properties_position"), self.ints("properties_size")

    @cached_property
    def is_ascii(self) -> bool:
        """True if the property strings are ASCII, and thus all pieces of them good UTF-8."""
        return bool(kernels.all_ascii(self.buffer, *self.properties))

    @cached_property
    def well_known(self) -> tuple[Longs, Ints, Longs, Ints, Longs, Ints]:
        """Positions and sizes of the values of TAGS, KEYS and UNIQ_KEY."""
        made: list[Any] = [np.empty(self.count, kind) for _ in range(3) for kind in (np.int64, np.int32)]
        kernels.find_well_known(self.buffer, *self.properties, *made)
        return made[0], made[1], made[2], made[3], made[4], made[5]

    @cached_property
    def store_host_positions(self) -> Longs:
        """Where each store host begins, in the buffer."""
        wide = (self.ints("sys_flag") & SysFlag.STORE_HOST_V6) != 0
        found: Longs = self.longs("body_position") - np.where(wide, 36, 24)
        return found


def _validity(is_valid: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    return None if is_valid.all() else pa.py_buffer(np.packbits(is_valid, bitorder="little"))


def _laid_out(sizes: Ints) -> tuple[Ints, bool]:
    """Offsets of pieces laid end to end, and whether one is missing (size -1)."""
    offsets: Ints = np.empty(len(sizes) + 1, np.int32)
    some_missing = bool(kernels.lay_out(sizes, offsets))
    return offsets, some_missing


def text_column(buffer: Bytes, starts: Longs, sizes: Ints, kind: pa.DataType, *, is_utf8: bool = False) -> pa.Array:
    """A column of type ``kind``, string or binary, of pieces of the buffer; null where the size is -1.

    ``is_utf8``: the pieces are known to be; else strings are looked through, and what is not gets replacements.
    """
    offsets, some_missing = _laid_out(sizes)
    validity = _validity(sizes >= 0) if some_missing else None
    data: Bytes = np.empty(int(offsets[-1]) + LANES, np.uint8)
    are_inside = kernels.gather_pieces(buffer, starts, sizes, data)
    assert are_inside
    return _text(kind, validity, offsets, data, is_utf8=is_utf8)


def _text(kind: pa.DataType, validity: pa.Buffer | None, offsets: Ints, data: Bytes, *, is_utf8: bool) -> pa.Array:
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data[: int(offsets[-1])])]
    array = pa.Array.from_buffers(kind, len(offsets) - 1, buffers)
    if is_utf8 or kind != pa.string():
        return array
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:  # not UTF-8 somewhere
        raw = array.view(pa.binary()).to_pylist()
        return pa.array([None if text is None else text.decode("utf-8", "replace") for text in raw], kind)
    return array


def _number(field: str) -> Callable[[_Part, pa.DataType], pa.Array]:
    def make(part: _Part, kind: pa.DataType) -> pa.Array:
        values = part.longs(field) if field in _LONGS else part.ints(field)
        return pa.array(values.astype(kind.to_pandas_dtype(), copy=False), kind)

    return make


def _time(field: str) -> Callable[[_Part, pa.DataType], pa.Array]:
    def make(part: _Part, kind: pa.DataType) -> pa.Array:
        values = part.longs(field)
        is_time = (values >= TIME_MS_MIN) & (values <= TIME_MS_MAX)
        micros = np.where(is_time, values, 0) * 1000
        return pa.Array.from_buffers(kind, part.count, [_validity(is_time), pa.py_buffer(micros)])

    return make


def _topic(part: _Part, kind: pa.DataType) -> pa.Array:
    starts, sizes = part.longs("topic_position"), part.ints("topic_size")
    if kernels.all_equal(part.buffer, starts, sizes):  # mostly so, and half the work
        one = text_column(part.buffer, starts[:1], sizes[:1], kind)
        return pa.repeat(one[0], part.count)
    return text_column(part.buffer, starts, sizes, kind)


def _keys(part: _Part, kind: pa.DataType) -> pa.Array:
    starts, sizes = part.well_known[2:4]
    present = sizes >= 0
    room = (int(sizes.sum(where=present)) + part.count) // 2
    words: Longs = np.empty(room, np.int64)
    word_sizes: Ints = np.empty(room, np.int32)
    offsets: Ints = np.empty(part.count + 1, np.int32)
    count = kernels.split_at_blanks(part.buffer, starts, sizes, offsets, words, word_sizes)
    values = text_column(part.buffer, words[:count], word_sizes[:count], kind.value_type, is_utf8=part.is_ascii)
    buffers = [_validity(present), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, part.count, buffers, children=[values])


def _key_hashes(part: _Part, kind: pa.DataType) -> pa.Array:
    _, _, keys, key_sizes, unique, unique_sizes = part.well_known
    used = np.where(key_sizes > 0, key_sizes, 0).astype(np.int32, copy=False)
    hashes: Ints = np.empty((int(used.sum()) + part.count) // 2 + part.count, np.int32)
    offsets: Ints = np.empty(part.count + 1, np.int32)
    topics = part.longs("topic_position"), part.ints("topic_size")
    count = kernels.hash_index_keys(part.buffer, *topics, unique, unique_sizes, keys, used, offsets, hashes)
    values = pa.array(hashes[:count], kind.value_type)
    return pa.Array.from_buffers(kind, part.count, [None, pa.py_buffer(offsets)], children=[values])


def _properties(part: _Part, kind: pa.DataType) -> pa.Array:
    starts, sizes = part.properties
    if not pa.types.is_map(kind):
        return text_column(part.buffer, starts, sizes, kind, is_utf8=part.is_ascii)
    stored = int(sizes.sum())
    room = (stored + part.count) // 4 + 1
    offsets: Ints = np.empty(part.count + 1, np.int32)
    name_offsets, value_offsets = np.empty(room, np.int32), np.empty(room, np.int32)
    names, values = np.empty(stored + LANES, np.uint8), np.empty(stored + LANES, np.uint8)
    pairs = name_offsets, names, value_offsets, values
    count = kernels.split_properties(part.buffer, starts, sizes, offsets, *pairs)
    columns = [
        _text(of, None, ends[: count + 1], data, is_utf8=part.is_ascii)
        for of, ends, data in ((kind.key_type, name_offsets, names), (kind.item_type, value_offsets, values))
    ]
    entries = pa.StructArray.from_arrays(columns, fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(kind, part.count, [None, pa.py_buffer(offsets)], children=[entries])


def _body(part: _Part, kind: pa.DataType) -> pa.Array:
    starts, sizes = part.longs("body_position"), part.ints("body_size")
    bodies = part.bodies
    if bodies is None:
        return text_column(part.buffer, starts, sizes, kind)
    used = sizes.copy()
    for index, body in bodies.found.items():
        used[index] = len(body or b"")
    offsets, _ = _laid_out(used)
    data: Bytes = np.empty(int(offsets[-1]), np.uint8)
    plain = sizes.copy()
    plain[list(bodies.found)] = -1
    kernels.scatter(part.buffer, starts, plain, offsets[:-1].astype(np.int64), data)
    view = data.data
    for index, body in bodies.found.items():
        view[offsets[index] : offsets[index + 1]] = body or b""
    is_valid = np.ones(part.count, np.bool_)
    is_valid[[index for index, body in bodies.found.items() if body is None]] = False
    return pa.Array.from_buffers(kind, part.count, [_validity(is_valid), pa.py_buffer(offsets), pa.py_buffer(data)])


def _corrupt(part: _Part, kind: pa.DataType) -> pa.Array:
    bad = part.bodies.bad if part.bodies is not None else {}
    if not bad:
        return pa.nulls(part.count, kind)
    return pa.array([bad.get(index) for index in range(part.count)], kind)


def _message_id(part: _Part, kind: pa.DataType) -> pa.Array:
    starts, sizes = part.well_known[4:6]
    missing = sizes < 0
    if not missing.any():
        return text_column(part.buffer, starts, sizes, kind, is_utf8=part.is_ascii)
    host_sizes = np.where((part.ints("sys_flag") & SysFlag.STORE_HOST_V6) != 0, 20, 8)
    used = np.where(missing, 2 * (host_sizes + 8), sizes).astype(np.int32)
    offsets, _ = _laid_out(used)
    targets = offsets[:-1].astype(np.int64)
    data: Bytes = np.empty(int(offsets[-1]), np.uint8)
    kernels.scatter(part.buffer, starts, sizes, targets, data)
    hosts = np.where(missing, host_sizes, 0).astype(np.int32)
    kernels.scatter_hex(part.buffer, part.store_host_positions, hosts, targets, data)
    physical = np.where(missing, 8, 0).astype(np.int32)
    kernels.scatter_hex(part.buffer, part.longs("position") + 28, physical, targets + 2 * hosts, data)
    return _text(kind, None, offsets, data, is_utf8=part.is_ascii)


def _hosts(part: _Part, starts: Longs, wide_bit: int, kind: pa.DataType) -> pa.Array:
    """Few hosts occur in one batch, so each is formatted once."""
    wide = (part.ints("sys_flag") & wide_bit) != 0
    sizes = np.where(wide, 20, 8).astype(np.int32)
    starts = np.ascontiguousarray(starts)
    if kernels.all_equal(part.buffer, starts, sizes):
        first = part.buffer[starts[0] : starts[0] + sizes[0]].tobytes()
        return pa.repeat(pa.scalar(str(Host.decode(first)), kind), part.count)
    raw: npt.NDArray[np.uint8] = np.zeros((part.count, 24), np.uint8)
    targets = np.arange(part.count, dtype=np.int64) * 24
    kernels.scatter(part.buffer, starts, sizes, targets, raw.reshape(-1))
    raw[:, 20] = wide
    distinct, indexes = np.unique(raw.view("V24").reshape(-1), return_inverse=True)
    names = [_host(np.frombuffer(one.tobytes(), np.uint8)) for one in distinct]
    return pa.array(names, kind).take(pa.array(indexes))


def _host(raw: Bytes) -> str:
    return str(Host.decode(raw[: 20 if raw[20] else 8].tobytes()))


_MAKERS: Final[dict[str, Callable[[_Part, pa.DataType], pa.Array]]] = {
    "topic": _topic,
    "brokerName": lambda part, kind: pa.repeat(pa.scalar(part.broker_name, kind), part.count),
    "queueId": _number("queue_id"),
    "queueOffset": _number("queue_offset"),
    "physicalOffset": _number("physical_offset"),
    "size": _number("size"),
    "messageId": _message_id,
    "tags": lambda part, kind: text_column(part.buffer, *part.well_known[:2], kind, is_utf8=part.is_ascii),
    "keys": _keys,
    "body": _body,
    "properties": _properties,
    "bornTimestamp": _time("born_timestamp"),
    "storeTimestamp": _time("store_timestamp"),
    "bornHost": lambda part, kind: _hosts(part, part.longs("position") + 48, SysFlag.BORN_HOST_V6, kind),
    "storeHost": lambda part, kind: _hosts(part, part.store_host_positions, SysFlag.STORE_HOST_V6, kind),
    "flag": _number("flag"),
    "sysFlag": _number("sys_flag"),
    "reconsumeTimes": _number("reconsume_times"),
    "bodyCrc": _number("body_crc"),
    "preparedTransactionOffset": _number("prepared_transaction_offset"),
    "tagsCode": _number("tags_code"),
    "keyHashes": _key_hashes,
    "corrupt": _corrupt,
}
