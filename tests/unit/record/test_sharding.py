"""Which records of a batch have a sharding key."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.formats.record.layout import Host
from penstock.formats.record.sharding import keyed_records
from tests.support.record.encoding import encode_messages

KEY = b"__SHARDINGKEY\x01k\x02"


def records(*properties: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    born = Host.parse("10.0.0.9:4711")
    return np.frombuffer(encode_messages("t", [b"x"] * len(properties), properties, born_host=born), np.uint8)


@pytest.mark.parametrize(
    ("properties", "with_key", "without"),
    [
        ((), (0, -1), (0, -1)),
        ((KEY, b"", KEY), (2, 0), (1, 1)),
        ((b"a\x01b\x02" + KEY[:-1], b"TAGS\x01__SHARDINGKEY\x02"), (1, 0), (1, 1)),
        ((b"__SHARDINGKEY\x01\x02", b"a__SHARDINGKEY\x01k\x02", b"__SHARDINGKEY2\x01k\x02"), (0, -1), (3, 0)),
    ],
)
def test_keys_are_counted(properties: tuple[bytes, ...], with_key: tuple[int, int], without: tuple[int, int]) -> None:
    assert keyed_records(records(*properties), True) == with_key
    assert keyed_records(records(*properties), False) == without


def test_what_is_no_record_ends_the_batch() -> None:
    whole = records(b"", KEY)
    for end in range(len(whole)):
        count, first = keyed_records(whole[:end], True)
        assert (count, first) == (0, -1)
