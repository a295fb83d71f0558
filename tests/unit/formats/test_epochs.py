"""``epochFileCheckpoint``: RocketMQ's text, and nothing else is believed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.epochs import Epoch, decode, encode
from penstock.proto.errors import Corrupt

STORES = Path(__file__).parents[2] / "golden" / "ha" / "controller"
GOLDEN = b"3\n642014906\n1-0\n2-12712\n3-26618\n"  # written by RocketMQ 5.3.3 in controller mode
ENTRIES = (Epoch(1, 0), Epoch(2, 12712), Epoch(3, 26618))
STEPS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 50)), max_size=8)


@pytest.mark.parametrize("broker", ["broker-1", "broker-2"])
def test_the_text_is_what_rocketmq_writes(broker: str) -> None:
    assert (STORES / broker / "epochFileCheckpoint").read_bytes() == GOLDEN
    assert encode(ENTRIES) == GOLDEN
    assert decode(GOLDEN, "epochFileCheckpoint") == ENTRIES


@given(STEPS)
def test_text_and_entries_are_the_same_thing(steps: list[tuple[int, int]]) -> None:
    entries = tuple(Epoch(sum(e for e, _ in steps[:i]), sum(s for _, s in steps[:i])) for i in range(1, len(steps) + 1))
    assert decode(encode(entries), "f") == entries


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"3",
        b"3\n642014906",
        b"3\n642014907\n1-0\n2-12712\n3-26618\n",
        b"2\n642014906\n1-0\n2-12712\n3-26618\n",
        b"3\nx\n1-0\n",
        b"\xff\xfe\n1\n2",
        GOLDEN[:-1],
        GOLDEN.replace(b"2-1", b"2-2"),
        b"9" * 5000 + b"\n1\n",
    ],
)
def test_a_damaged_text_is_named_corrupt(content: bytes) -> None:
    with pytest.raises(Corrupt, match="epochFileCheckpoint"):
        decode(content, "epochFileCheckpoint")


@given(st.integers(0, len(GOLDEN) - 1), st.integers(0, 255))
def test_no_changed_byte_reads_as_another_history(position: int, byte: int) -> None:
    damaged = bytearray(GOLDEN)
    damaged[position] = byte
    with contextlib.suppress(Corrupt):
        assert decode(bytes(damaged), "f") == ENTRIES  # a leading blank or zero changes nothing
