"""Producer marks: what is written comes back, and nothing else is one. The grammar is written here once more."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.record.kernels import scan
from penstock.formats.record.kernels.marks import BATCH_NUMBERS, MARKED, NUMBERS, UNMARKED, first_mark, read_marks
from penstock.formats.record.layout import Host
from penstock.formats.record.producer_mark import ProducerMark, producer_mark
from penstock.formats.record.reading import RecordBatch
from penstock.formats.record.rows import ROW
from penstock.proto.names import PRODUCER_PROPERTY
from tests.support.record.encoding import encode_messages

HOST = Host.parse("10.0.0.1:5")
GRAMMAR = re.compile(
    rb"([0-9a-f]{16}):([0-9a-f]{1,8}):([0-9a-f]{1,8}):([0-9a-f]{1,16}):([0-9a-f]{1,8})(?::([0-9a-f]{16}))?"
)
NUMBER = st.text("0123456789abcdef", min_size=0, max_size=18)
DIGITS = (15, 17), (0, 9), (0, 9), (0, 17), (0, 9), (15, 17)
"""Of each number, from one below what there may be to one above."""
DAMAGE = st.sampled_from(["", "", "", "g", "F", ":", "\x01", " ", "-"])


def numbers_of(mark: bytes) -> list[int] | None:
    """What the kernel reads of a batch with that mark; None: it is no mark."""
    records = encode_messages("t", [b"x"], [b"TAGS\x01a\x02"], born_host=HOST, mark=mark)
    numbers = np.zeros(NUMBERS, np.uint64)
    found = first_mark(np.frombuffer(records, np.uint8), numbers)
    return numbers.tolist() if found == MARKED else None


@given(st.tuples(*[st.integers(0, (1 << bits) - 1) for bits in (64, 31, 31, 64, 31, 64)]))
def test_a_mark_comes_back(numbers: tuple[int, int, int, int, int, int]) -> None:
    assert numbers_of(producer_mark(*numbers)) == list(numbers)


@given(st.lists(st.tuples(NUMBER, DAMAGE), min_size=1, max_size=8))
def test_nothing_else_is_a_mark(fields: list[tuple[str, str]]) -> None:
    mark = ":".join(number + damage for number, damage in fields).encode()
    found = GRAMMAR.fullmatch(mark)
    assert numbers_of(mark) == (None if found is None else [int(each, 16) for each in found.groups(b"0")])


@given(st.tuples(*[st.text("0123456789abcdef", min_size=least, max_size=most) for least, most in DIGITS]))
def test_a_number_has_as_many_digits_as_it_may(fields: tuple[str, ...]) -> None:
    for mark in (":".join(fields).encode(), ":".join(fields[:5]).encode()):
        found = GRAMMAR.fullmatch(mark)
        assert numbers_of(mark) == (None if found is None else [int(each, 16) for each in found.groups(b"0")])


@pytest.mark.parametrize("properties", [None, [b"TAGS\x01a\x02", b"TAGS\x01b\x02"]])
def test_the_mark_is_the_first_property_of_the_first_record_alone(properties: list[bytes] | None) -> None:
    mark = producer_mark(0xABC, 1, 2, 3, 2)
    records = encode_messages("t", [b"x", b"y"], properties, born_host=HOST, mark=mark)
    batch = RecordBatch(records)
    assert next(iter(batch.properties(0).items())) == (PRODUCER_PROPERTY, mark.decode())
    assert batch.properties(1) == ({} if properties is None else {"TAGS": "b"})
    second = np.frombuffer(records, np.uint8)[int.from_bytes(records[:4], "big") :]
    assert first_mark(second, np.zeros(NUMBERS, np.uint64)) == UNMARKED


def test_batches_of_scanned_rows_end_with_their_last_record_or_the_last_row() -> None:
    marks = [producer_mark(7, 1, 2, 3, 3, 9), b"no mark", producer_mark(8, 0, 0, 1, 5)]
    batches = [
        encode_messages("orders", [b"x"] * count, born_host=HOST, mark=mark)
        for count, mark in zip((3, 1, 2), marks, strict=True)
    ]
    log, rows = np.frombuffer(b"".join(batches), np.uint8), np.zeros(10, ROW)
    count, _, _ = scan(log, 0, len(log), -1, False, rows)
    assert count == 6
    numbers = np.zeros(3 * BATCH_NUMBERS, np.uint64)
    read_marks(log, rows, count, np.array([0, 3, 4], np.int32), numbers)
    first, wrong, cut = numbers.reshape(3, BATCH_NUMBERS).tolist()
    assert ProducerMark(*first[:6]) == ProducerMark(7, 1, 2, 3, 3, 9)
    assert wrong[4] == 0
    assert ProducerMark(*cut[:6]) == ProducerMark(8, 0, 0, 1, 5)
    ends = (rows["physical_offset"] + rows["size"]).tolist()
    assert (first[6], first[7]) == (rows["physical_offset"][0], ends[2])
    assert (cut[6], cut[7]) == (rows["physical_offset"][4], ends[5])
    assert log[first[9] : first[9] + first[10]].tobytes() == b"orders"
