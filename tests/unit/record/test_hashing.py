"""String hashes: RocketMQ's numbers, and the kernel's twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from penstock.formats.hashing import index_key_hash, string_hash, tags_code
from penstock.formats.intrinsics.text import find_byte_at
from penstock.formats.record.kernels import string_hash_utf8, tags_code_at
from tests.support.record.guarded import GuardedMemory
from tests.support.record.reference import tags_code_of
from tests.support.record.shapes import property_strings

fast = hypothesis_settings(deadline=None, max_examples=200)
memory = GuardedMemory(8192)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("标签", 857175),
        ("polygenelubricants", -(1 << 31)),
        ("AaAa", string_hash("BBBB")),
        ("😀", 31 * 0xD83D + 0xDE00),
        ("TopicTest#KEY1", -1656969516),
    ],
)
def test_string_hash_is_javas(text: str, expected: int) -> None:
    assert string_hash(text) == expected
    encoded = np.frombuffer(text.encode(), np.uint8)
    assert string_hash_utf8(encoded, 0, len(encoded)) == expected


def test_index_key_hash_is_absolute_and_the_smallest_number_becomes_zero() -> None:
    assert index_key_hash("TopicTest", "KEY1") == 1656969516
    topic, key = "a", next(k for k in _keys_hashing_to(-(1 << 31), "a#"))
    assert string_hash(f"{topic}#{key}") == -(1 << 31)
    assert index_key_hash(topic, key) == 0


def _keys_hashing_to(wanted: int, prefix: str) -> list[str]:
    """A key of six characters, found by writing the missing hash in base 31."""
    missing = (wanted - string_hash(prefix) * 31**6) % (1 << 32)
    low = ord("0")
    missing = (missing - sum(low * 31**i for i in range(6))) % (1 << 32)
    digits = []
    for _ in range(5):
        missing, digit = divmod(missing, 31)
        digits.append(digit)
    return ["".join(chr(low + digit) for digit in [missing, *reversed(digits)])]


def test_tags_code_without_tag_is_zero() -> None:
    assert tags_code("") == 0


@fast
@given(st.text(st.characters(codec="utf-8")))
def test_kernel_hash_equals_the_reference_on_text(text: str) -> None:
    encoded = memory.before_the_wall(text.encode())
    assert string_hash_utf8(encoded, 0, len(encoded)) == string_hash(text)


@fast
@given(st.one_of(st.binary(), st.lists(st.sampled_from(b"a\xe0\xa0\x80\xed\x9f\xf0\x90\xf4\x8f\xc2\xc1"), max_size=12)))
@example(b"\xed\xa0\x80\xed\xb0\x80")
@example(b"\xf4\x90\x80\x80")
@example(b"abc\xf0\x9f\x98")
def test_kernel_hash_of_broken_utf8_is_that_of_its_replacement(data: bytes | list[int]) -> None:
    encoded = memory.before_the_wall(bytes(data))
    assert string_hash_utf8(encoded, 0, len(encoded)) == string_hash(bytes(data).decode("utf-8", "replace"))


@fast
@given(property_strings())
@example(b"TAGS\x01a\x02TAGS\x01b\x02")
@example(b"TAGS\x01a\x02TAGS\x01\x02")
@example(b"TAGS\x01a")
@example(b"xTAGS\x01a\x02")
@example(b"TAGS\x01\x01\x02")
def test_kernel_finds_the_tag_that_a_reader_of_the_properties_sees(properties: bytes) -> None:
    for placed in (memory.before_the_wall, memory.behind_the_wall):
        encoded = placed(properties)
        size = len(encoded)
        assert tags_code_at(encoded.ctypes.data, 0, size, size) == tags_code_of(properties)


@fast
@given(st.binary(max_size=70), st.integers(0, 70), st.integers(0, 255))
def test_find_byte_is_bytes_find(data: bytes, start: int, byte: int) -> None:
    start = min(start, len(data))
    found = data.find(bytes([byte]), start)
    placed, size = memory.before_the_wall(data), len(data)
    assert find_byte_at(placed.ctypes.data, start, size, size, byte) == (found if found >= 0 else size)
