"""Hypothesis strategies: records of all shapes, batches of them, and enemies' bytes."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from penstock.formats.record.layout import Host, PhysicalOffset, QueueOffset, Record, SysFlag, encode_record

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
PLAIN_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=12)

HOSTS = st.builds(
    Host, st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)), st.integers(0, 65535)
)
TOPICS = st.one_of(
    st.sampled_from(["TopicTest", "t", "%RETRY%group", "标签", "x" * 127, "x" * 128, "y" * 255, "é" * 64]),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=40),
)
BODIES = st.one_of(
    st.binary(max_size=80), st.sampled_from([b"", b"hello", "😀".encode(), bytes(range(256)) * 5, b"z" * 4000])
)
PAIRS = st.one_of(
    st.tuples(st.sampled_from(["TAGS", "TAG", "TAGSX", "KEYS", "UNIQ_KEY", ""]), PLAIN_TEXT),
    st.tuples(st.just("TAGS"), st.sampled_from(["TagA", "", "标签", "😀", "polygenelubricants", "a\x01b"])),
    st.tuples(PLAIN_TEXT, PLAIN_TEXT),
)


@st.composite
def property_strings(draw: st.DrawFn) -> bytes:
    """Property strings as found in logs: names twice, empty parts, no final separator, broken UTF-8."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in draw(st.lists(PAIRS, max_size=5)))
    encoded = text.encode()
    kind = draw(st.integers(0, 5))
    if kind == 0:
        encoded = encoded.removesuffix(b"\x02")
    elif kind == 1:
        encoded += draw(st.binary(max_size=20))
    return encoded


RECORDS = st.builds(
    Record,
    topic=TOPICS,
    body=BODIES,
    properties=property_strings(),
    queue_id=INT32,
    flag=INT32,
    queue_offset=INT64.map(QueueOffset),
    physical_offset=INT64.map(PhysicalOffset),
    sys_flag=st.sampled_from([0, 1, 2, 4, 8, 12, 64, 128, 1 | SysFlag.COMPRESSION_LZ4, 1 << 30]),
    born_timestamp_ms=INT64,
    born_host=HOSTS,
    store_timestamp_ms=INT64,
    store_host=HOSTS,
    reconsume_times=INT32,
    prepared_transaction_offset=INT64,
)


@st.composite
def damaged(draw: st.DrawFn, records: st.SearchStrategy[bytes]) -> bytes:
    """Bytes of records with a few bytes, or a whole length field, overwritten, and perhaps cut."""
    data = bytearray(draw(records))
    for _ in range(draw(st.integers(1, 4))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        new = draw(
            st.one_of(
                st.binary(min_size=1, max_size=4),
                st.sampled_from([0, 1, -1, 90, 91, 92, 127, 128, (1 << 31) - 1, -(1 << 31), 1 << 16]).map(
                    lambda number: struct.pack(">i", number)
                ),
            )
        )
        data[at : at + len(new)] = new[: len(data) - at]
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


RECORD_RUNS = st.lists(RECORDS, max_size=4).map(lambda records: b"".join(encode_record(r) for r in records))
HOSTILE = st.one_of(st.binary(max_size=300), damaged(RECORD_RUNS), damaged(RECORD_RUNS.map(lambda run: run[:400])))
