from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.columns import Column

VALUES = st.lists(st.binary(max_size=200), max_size=20)


class Own(bytes):
    """No plain bytes: what it holds may lie elsewhere."""


def listed(values: list[bytes]) -> Column:
    column = Column.listed(values)
    assert column is not None
    return column


@given(VALUES, st.data())
def test_a_listed_column_is_the_column_of_its_values(values: list[bytes], data: st.DataObject) -> None:
    def check(column: Column, expected: list[bytes]) -> None:
        whole = Column.of(expected)
        assert len(column) == len(expected)
        assert list(column) == [column[index] for index in range(len(column))] == expected
        assert column.ends.tolist() == whole.ends.tolist()
        assert column.lengths.tolist() == list(map(len, expected))
        places = zip(column.addresses.tolist(), column.lengths.tolist(), strict=True)
        assert [ctypes.string_at(place, size) for place, size in places] == expected
        assert column.data.tobytes() == b"".join(expected)

    column = listed(list(values))
    check(column, values)
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    if stop > start:
        check(column.part(start, stop), values[start:stop])
    if values:
        indexes = data.draw(st.lists(st.integers(0, len(values) - 1)))
        check(column.take(np.array(indexes, np.int64)), [values[index] for index in indexes])
        joined = Column.joined([column, Column.of([b"other"])])
        assert list(joined) == [*values, b"other"]


@pytest.mark.parametrize("other", [None, Own(b"own"), bytearray(b"array"), memoryview(b"view"), "text", 7, object()])
@pytest.mark.parametrize("before", [0, 1, 5])
def test_a_list_with_anything_but_bytes_in_it_is_none(other: object, before: int) -> None:
    assert Column.listed([*[b"one"] * before, other, b"two"]) is None  # type: ignore[list-item]


def test_the_values_live_as_long_as_their_column() -> None:
    column = listed([bytes([65 + number % 26]) * 1000 for number in range(2000)])
    half = column.part(1000, 2000)
    del column
    gc.collect()
    _ = [bytes(1000) for _ in range(2000)]  # would lie where the others were
    for number, place in enumerate(half.addresses.tolist(), 1000):
        assert ctypes.string_at(place, 1000) == bytes([65 + number % 26]) * 1000
