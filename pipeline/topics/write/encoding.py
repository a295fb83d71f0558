"""Arrow columns to record bytes: property strings and queues of a whole batch at once, no Python per row.

| Column | Type | Becomes |
|---|---|---|
| body | binary or string | the body; required, not null, not empty |
| topic | string | the topic, unless the option names one |
| tags | string | property ``TAGS`` |
| keys | string or array of string | property ``KEYS``, joined with blanks |
| shardingKey | string | property ``__SHARDINGKEY``, and the queue: the same one as for ``Producer.send``; null: any |
| routingKey | string | the queue alone, which is then not the ``shardingKey``'s; null: as if it were not there |
| properties | map of string to string | properties; what a column of its own gives is left out here |
| queueId | int | the queue of that id, at the broker that ``queueId`` modulo their number names |
| deliverAt | timestamp, or bigint: ms since 1970 UTC | the brokers keep the message until then; null: at once |
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.columns import Column, column_of, hashes_of, with_property
from penstock.formats.destination import LATER_BYTES_MAX, LATER_PROPERTIES, LATER_S_MAX
from penstock.formats.record.compression import compressor
from penstock.formats.record.layout import BODY_BYTES_MAX
from penstock.formats.record.properties import (
    KEYS,
    NAME_VALUE_SEPARATOR,
    NUL,
    PROPERTIES_ROOM,
    PROPERTY_SEPARATOR,
    RECORD_CRC,
    SHARDING_KEY,
    START_DELIVER_TIME,
    TAGS,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TRANSIENT_PREFIX,
    UNKEPT,
)
from penstock.proto.errors import ConfigError, InvalidArgument, MessageTooLarge
from penstock.proto.names import PRODUCER_PROPERTY
from penstock.runtime.nearest import hint

from ...columns.schema import MESSAGE_COLUMNS
from .. import kafka

Ints = npt.NDArray[np.int32]

DELIVER_AT = "deliverAt"
SINK_COLUMNS = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "shardingKey": ("string",),
    "routingKey": ("string",),
    "queueId": ("int", "bigint", "smallint", "tinyint"),
    DELIVER_AT: ("timestamp", "bigint"),
}
_QUEUE_ID_MAX = (1 << 31) - 1


def check_sink_schema(schema: Any, topic: str) -> None:
    """Raises ConfigError: a column of ``schema`` (a ``StructType``) is unknown, missing or of a wrong type.

    ``topic``: the option, perhaps empty.
    """
    given = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in given.items():
        allowed = SINK_COLUMNS.get(name)
        if allowed is None:
            raise ConfigError(f"penstock sink: column {name!r} means nothing{_instead(name)}")
        if kind not in allowed and kind != "void":
            raise ConfigError(f"penstock sink: column {name} is {kind}, it must be {' or '.join(allowed)}")
    is_void = given.get("body") == "void"
    given = {name: kind for name, kind in given.items() if kind != "void"}  # lit(None): no row says anything
    if "body" not in given:
        only = "but one that is null in every row" if is_void else f"only {', '.join(given) or 'none at all'}"
        raise ConfigError(f"penstock sink: there is no column body, {only}")
    if "topic" not in given and not topic:
        raise ConfigError("penstock sink: which topic? Give the option topic, or a column of that name")


def _instead(name: str) -> str:
    if name in kafka.SINK_COLUMNS:
        return f": give {kafka.SINK_COLUMNS[name]}"
    if name in MESSAGE_COLUMNS:
        return f": it tells of a message that was read; select the others, of {', '.join(SINK_COLUMNS)}"
    return hint(name, SINK_COLUMNS) or f"; known are {', '.join(SINK_COLUMNS)}"


class Rows:
    """The messages of one topic out of one batch, encoded as far as it goes without knowing their queues.

    With a column deliverAt, which has no nulls, they are messages for :class:`~penstock.formats.destination.Later`.
    """

    def __init__(self, batch: pa.RecordBatch, turn: int = 0) -> None:
        """
        ``turn``: a number that spreads the rows whose sharding key is null, the same whenever the batch comes again.

        Raises InvalidArgument, MessageTooLarge: a row that cannot be a message, by its number in the batch.
        """
        names = batch.schema.names
        self.count = batch.num_rows
        self.bodies = bodies_of(batch)
        columns = {name: batch.column(name) for name in names}
        keys = _keys(columns["keys"]) if "keys" in columns else None
        own = {TAGS: ("tags", columns.get("tags")), KEYS: ("keys", keys)}
        own[SHARDING_KEY] = "shardingKey", columns.get("shardingKey")
        given = [name for name, (_, column) in own.items() if column is not None]
        self.properties = Column(np.empty(0, np.uint8), np.zeros(self.count, np.int64))
        for name in given:
            said, column = own[name]
            _check_text(said, column)
            self.properties = with_property(self.properties, name, _filled(column))
        if DELIVER_AT in columns:
            times = _deliver_times(columns[DELIVER_AT])
            for name in (TIMER_DELIVER_MS, TIMER_OUT_MS):
                self.properties = with_property(self.properties, name, times)
            given += LATER_PROPERTIES
        if "properties" in columns:
            self._join(_property_strings(columns["properties"], frozenset(given)))
        lengths = self.properties.lengths
        room = PROPERTIES_ROOM - (LATER_BYTES_MAX if DELIVER_AT in columns else 0)
        if self.count and int(lengths.max()) > room:
            row = int(lengths.argmax())
            raise MessageTooLarge(
                f"row {row} of the batch: its properties take {int(lengths[row])} bytes, at most {room} are allowed"
            )
        routes = [columns[name] for name in ("routingKey", "shardingKey") if name in columns]
        self.hashes = self._hashes(pc.coalesce(*routes) if routes else None, turn)
        self.queue_ids = _queue_ids(columns["queueId"]) if "queueId" in columns else None

    def _join(self, more: Column) -> None:
        """Append text to each property string: both columns as one, then taken in turns."""
        both = Column.joined([self.properties, more])
        order = np.arange(2 * self.count, dtype=np.int64).reshape(2, -1).T.ravel()
        taken = both.take(np.ascontiguousarray(order))
        self.properties = Column(taken.data, np.ascontiguousarray(taken.ends[1::2]))

    def _hashes(self, column: pa.Array | None, turn: int) -> Ints | None:
        if column is None or column.null_count == len(column) > 0:
            return None
        hashes = hashes_of(_filled(column))
        if column.null_count:
            hashes = np.where(column.is_null().to_numpy(zero_copy_only=False), np.int32(turn & _QUEUE_ID_MAX), hashes)
        return hashes


def compressed(bodies: Column, algorithm: str) -> tuple[Column, int]:
    """The bodies as brokers keep them, and the bits that say so; body by body, as RocketMQ's clients do.

    The one place that costs Python per row.
    """
    if algorithm == "none":
        return bodies, 0
    sys_flag, compress = compressor(algorithm)
    data, starts = bodies.data, [0, *bodies.ends.tolist()]
    return Column.of([compress(data[a:b].tobytes()) for a, b in itertools.pairwise(starts)]), sys_flag


def bodies_of(batch: pa.RecordBatch) -> Column:
    """The bodies of a batch. Raises InvalidArgument, MessageTooLarge: a body that cannot be a message's, by its row."""
    column = batch.column("body")
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise InvalidArgument(f"row {row} of the batch: body is null: a message needs at least one byte")
    bodies = column_of(column)
    lengths = bodies.lengths
    if not len(lengths):
        return bodies
    if int(lengths.min()) == 0:
        raise InvalidArgument(
            f"row {int(lengths.argmin())} of the batch: body is empty: a message needs at least one byte"
        )
    if int(lengths.max()) > BODY_BYTES_MAX:
        row = int(lengths.argmax())
        raise MessageTooLarge(
            f"row {row} of the batch: body of {int(lengths[row])} bytes, at most {BODY_BYTES_MAX} are allowed"
        )
    return bodies


def _keys(column: pa.Array) -> pa.Array:
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return column
    _check_words(column)
    # Made anew: the kernel knows no lists whose elements are declared not to be null, as Spark's are.
    offsets, words = column.offsets.cast(pa.int32()), column.values.cast(pa.string())  # Spark may give large ones
    words = pa.ListArray.from_arrays(offsets, pc.fill_null(words, ""))
    return pc.binary_join(words, " ")


def _check_words(column: pa.ListArray) -> None:
    words = column.flatten()
    bad = _first(pc.match_substring(words, " "))
    if bad >= 0:
        row, (word,) = _row(pc.list_parent_indices(column), bad), texts(words[bad : bad + 1])
        raise InvalidArgument(
            f"row {row} of the batch: column keys: {word!r:.80} has a blank, which separates keys: it would be found "
            "by none; replace the blanks"
        )


def _first(are: pa.BooleanArray) -> int:
    """Where the first true value is; -1: nowhere."""
    return int(pc.index(are, True).as_py())


def _row(rows: pa.Array | None, index: int) -> int:
    """The row of a value; ``rows``: those of all values, where a row has several or none."""
    return index if rows is None else int(rows[index].as_py())


def _filled(column: pa.Array) -> Column:
    return column_of(pc.fill_null(column, ""))


def texts(column: pa.Array) -> list[str]:
    """The texts of a column, for eyes: "" for a null, U+FFFD for what is no UTF-8, to which Spark does not see."""
    return [(each or b"").decode(errors="replace") for each in column.cast(pa.binary()).to_pylist()]


def _check_text(name: str, values: pa.Array, rows: pa.Array | None = None) -> None:
    for sign in (NUL, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR):
        bad = _first(pc.match_substring(values, sign))
        if bad >= 0:
            raise InvalidArgument(
                f"row {_row(rows, bad)} of the batch: column {name}: the characters 0x00, 0x01 and 0x02 are not "
                "allowed, as they separate properties, or are what a torn write leaves: replace them"
            )


def _deliver_times(column: pa.Array) -> Column:
    """The times as texts of milliseconds; never before the time, and what is before 1970 is over too."""
    if pa.types.is_timestamp(column.type):
        micros = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64()).to_numpy()
        times = -(-micros // 1000)
    else:
        times = column.cast(pa.int64()).to_numpy()
    late = np.flatnonzero(times > (time.time() + LATER_S_MAX) * 1000)
    if len(late):
        row = int(late[0])
        raise InvalidArgument(
            f"row {row} of the batch: deliverAt {np.datetime64(int(times[row]), 'ms')} is more than {LATER_S_MAX} s "
            "from now, which no broker allows"
        )
    return column_of(pa.array(np.maximum(times, 0)).cast(pa.string()))


def _queue_ids(column: pa.Array) -> Ints:
    if column.null_count:
        row = _first(column.is_null())
        raise InvalidArgument(f"row {row} of the batch: column queueId is null: give every row one, or drop the column")
    ids = column.to_numpy(zero_copy_only=False)
    for row in (int(ids.argmin()), int(ids.argmax())) if len(ids) else ():
        if not 0 <= int(ids[row]) <= _QUEUE_ID_MAX:
            raise InvalidArgument(f"row {row} of the batch: queueId {int(ids[row])} is not of 0..{_QUEUE_ID_MAX}")
    return np.asarray(ids, np.int32)


def _require_kept(names: pa.Array, values: pa.Array, rows: pa.Array, given: frozenset[str]) -> None:
    """Refuse properties that ask for a delivery later, or a transaction: the message would be delivered at once.

    A time that has passed asks for nothing: copies of messages that were delivered later have one.
    """
    wishes = pc.is_in(names, pa.array(sorted(UNKEPT - given), pa.string()))
    wished = [texts(each.filter(wishes)) for each in (names, values)]
    for name, value, row in zip(*wished, rows.filter(wishes).to_pylist(), strict=True):
        is_time = name in (TIMER_DELIVER_MS, START_DELIVER_TIME) and value.isdecimal()
        if value and not (is_time and int(value) <= time.time() * 1000):
            raise InvalidArgument(
                f"row {row} of the batch: column properties: {name!r} would do nothing, and the message be delivered "
                "at once: give a column deliverAt, or leave the property out"
            )


def _property_strings(column: pa.MapArray, given: frozenset[str]) -> Column:
    """``name 0x01 value 0x02`` of each map, without what brokers and this sink write themselves."""
    names, values = column.keys, column.items
    start, stop = column.offsets[0].as_py(), column.offsets[-1].as_py()
    if len(names) != stop - start:
        names, values = names.slice(start, stop - start), values.slice(start, stop - start)
    offsets = pc.subtract(column.offsets, start)
    rows = pa.array(np.repeat(np.arange(len(column)), np.diff(offsets.to_numpy())))
    _check_text("properties", names, rows)
    _check_text("properties", pc.fill_null(values, ""), rows)
    empty = _first(pc.equal(pc.binary_length(names), 0))
    if empty >= 0:
        raise InvalidArgument(f"row {_row(rows, empty)} of the batch: column properties: a name is empty: give it one")
    names, values = names.cast(pa.string()), values.cast(pa.string())
    _require_kept(names, values, rows, given)
    pairs = pc.binary_join_element_wise(names, pc.fill_null(values, ""), "\x01")
    pairs = pc.binary_join_element_wise(pairs, "", "\x02")
    left_out = pa.array([PRODUCER_PROPERTY, RECORD_CRC, *sorted(given)], pa.string())
    drop = pc.or_(pc.is_in(names, left_out), pc.starts_with(names, TRANSIENT_PREFIX))
    drop = pc.or_(drop, pc.equal(pc.binary_length(pc.fill_null(values, "")), 0))
    pairs = pc.if_else(drop, "", pairs)
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, pairs), "")
    return column_of(pc.fill_null(joined, ""))
