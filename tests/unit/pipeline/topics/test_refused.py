"""Rows that cannot be messages, as messages for the topic of dead letters: without Spark and without a broker."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats.record.properties import PROPERTIES_ROOM, UNKEPT, decode_properties
from penstock.pipeline.topics.write.encoding import Rows
from penstock.pipeline.topics.write.refused import REASON, without_refused
from penstock.pipeline.topics.write.routing import by_topic
from penstock.proto.errors import InvalidArgument


def texts(values: list[bytes | None]) -> pa.Array:
    """A column of strings as Spark may give one: nobody has seen to it that it is UTF-8."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


def offsets(values: list[Any]) -> pa.Array:
    return pa.array([*itertools.accumulate(map(len, values), initial=0)], pa.int32())


def refuse(batch: pa.RecordBatch) -> None:
    """As a task encodes rows, of which these have no topic."""
    for topic, part in by_topic(batch, ""):
        Rows(part)
        if topic != "there":
            raise InvalidArgument(f"topic {topic} does not exist")


signs = st.sampled_from([b"a", b" ", b"\0", b"\x01", b"\x02", b"\xff", "ä".encode(), "😀".encode(), b"DELAY"])
words = st.one_of(
    st.lists(signs, max_size=4).map(b"".join),
    st.tuples(signs, st.integers(900, 1100)).map(lambda told: told[0] * told[1]),
    st.sampled_from([b"there", b"__PSEQ", *(name.encode() for name in sorted(UNKEPT))]),
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.none() | words,
            st.none() | words,
            st.none() | words,
            st.none() | words,
            st.lists(words, max_size=3),
            st.lists(st.tuples(words, words), max_size=30),
            st.none() | st.sampled_from([0, 3 * 10**17, -(3 * 10**17)]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_whatever_a_row_has_it_is_a_message_or_a_dead_letter_that_can_be_one(rows: list[Any]) -> None:
    bodies, topics, tags, sharding_keys, keys, properties, times = (list(part) for part in zip(*rows, strict=True))
    pairs = [pair for each in properties for pair in each]
    names, values = (texts([pair[index] for pair in pairs]) for index in (0, 1))
    batch = pa.RecordBatch.from_pydict(
        {
            "body": texts(bodies),
            "topic": texts(topics),
            "tags": texts(tags),
            "shardingKey": texts(sharding_keys),
            "keys": pa.ListArray.from_arrays(offsets(keys), texts([word for each in keys for word in each])),
            "properties": pa.MapArray.from_arrays(offsets(properties), names, values),
            "deliverAt": pa.array([time or 0 for time in times], pa.int64()).cast(pa.timestamp("us", "UTC")),
        }
    )
    kept, letters = without_refused(batch, refuse, "")
    assert kept.num_rows + letters.num_rows == len(rows)
    if kept.num_rows:
        refuse(kept)
    made = Rows(letters)
    assert made.count == 0 or int(made.properties.lengths.max()) <= PROPERTIES_ROOM // 2
    starts = [0, *made.properties.ends.tolist()]
    for start, end in itertools.pairwise(starts):
        assert REASON in decode_properties(made.properties.data[start:end].tobytes())


@pytest.mark.parametrize("name", sorted(UNKEPT))
def test_a_property_that_asks_for_something_is_refused_also_where_its_value_is_no_text(name: str) -> None:
    properties = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), texts([name.encode()]), texts([b"\xff"]))
    with pytest.raises(InvalidArgument, match=f"row 0 of the batch: column properties: '{name}' would do nothing"):
        Rows(pa.RecordBatch.from_pydict({"body": [b"x"], "properties": properties}))
