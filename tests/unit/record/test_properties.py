"""Property strings: written as RocketMQ writes them, read as tolerantly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.record.properties import decode_properties, encode_properties
from penstock.proto.errors import InvalidArgument
from tests.support.record.shapes import PLAIN_TEXT, property_strings

TEXT = PLAIN_TEXT.filter(lambda text: text != "" and "\0" not in text)


@given(st.dictionaries(TEXT, TEXT, max_size=6))
def test_properties_come_back_in_order(properties: dict[str, str]) -> None:
    decoded = decode_properties(encode_properties(properties))
    assert decoded == properties
    assert list(decoded) == list(properties)


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (b"", {}),
        (b"TAGS\x01TagA", {"TAGS": "TagA"}),
        (b"a\x01\x02b\x011\x02", {"b": "1"}),
        (b"\x01x\x02", {}),
        (b"a\x011\x02a\x012\x02", {"a": "2"}),
        (b"a\x011\x02a\x01\x02", {"a": "1"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"no separator\x02\x02", {}),
        (b"a\x01\xff\x02", {"a": "\ufffd"}),
    ],
)
def test_odd_property_strings_are_read_as_rocketmq_reads_them(encoded: bytes, expected: dict[str, str]) -> None:
    assert decode_properties(encoded) == expected
    assert decode_properties(memoryview(encoded)) == expected


@given(property_strings())
def test_reading_properties_never_fails(encoded: bytes) -> None:
    assert all(decode_properties(encoded).values())


@pytest.mark.parametrize(
    "properties",
    [
        {"": "x"},
        {"a\x01": "b"},
        {"a": "b\x02"},
        {"a": "b\x01"},
        {"a\x02b": "c"},
        {"a": "\ud800"},
        {"a": "x" * 32766},
        {"a": "\0"},
    ],
)
def test_properties_that_would_not_come_back_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        encode_properties(properties)


def test_the_longest_property_string_is_accepted() -> None:
    assert len(encode_properties({"a": "x" * 32764})) == 32767
