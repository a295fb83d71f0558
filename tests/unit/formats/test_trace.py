"""RocketMQ's trace text, byte for byte, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats.trace import (
    KEYS_LENGTH_MAX,
    MESSAGE_LENGTH_MAX,
    Context,
    EndTransaction,
    MessageType,
    Pub,
    Recall,
    ReturnCode,
    SubAfter,
    SubBefore,
    decode,
    encoded,
    packed,
    place,
)

PUB = Pub(
    *(1700000000000, "DefaultRegion", "makers", "orders", "ID1", "paid", "k1 k2", "10.0.0.1:10911"),
    *(9, 3, MessageType.NORMAL, "OFF1", True),
)
SUB_BEFORE = SubBefore(1700000000005, "DefaultRegion", "buyers", "R1", "ID1", 2, "k1 k2")
SUB_AFTER = SubAfter("R1", "ID1", 7, False, "k1 k2", ReturnCode.FAILED, 1700000000012, "buyers")
END = EndTransaction(
    *(1700000000020, "DefaultRegion", "makers", "orders", "ID1", "", "", ""),
    *(MessageType.COMMIT, "T1", "COMMIT_MESSAGE", True),
)
RECALL = Recall(1700000000030, "DefaultRegion", "makers", "orders", "ID1", False)

GOLDEN = {
    PUB: b"Pub\x011700000000000\x01DefaultRegion\x01makers\x01orders\x01ID1\x01paid\x01k1 k2\x0110.0.0.1:10911"
    b"\x019\x013\x010\x01OFF1\x01true\x02",
    SUB_BEFORE: b"SubBefore\x011700000000005\x01DefaultRegion\x01buyers\x01R1\x01ID1\x012\x01k1 k2\x02",
    SUB_AFTER: b"SubAfter\x01R1\x01ID1\x017\x01false\x01k1 k2\x014\x011700000000012\x01buyers\x02",
    END: b"EndTransaction\x011700000000020\x01DefaultRegion\x01makers\x01orders\x01ID1\x01\x01\x01\x012"
    b"\x01T1\x01COMMIT_MESSAGE\x01true\x02",
    RECALL: b"Recall\x011700000000030\x01DefaultRegion\x01makers\x01orders\x01ID1\x01false\x02",
}
"""Written by hand, by the table of RocketMQ's TraceDataEncoder."""


@pytest.mark.parametrize("context", GOLDEN, ids=lambda context: type(context).__name__)
def test_each_context_is_written_as_rocketmq_writes_it_and_read_again(context: Context) -> None:
    assert encoded(context).encode() == GOLDEN[context]
    assert decode(GOLDEN[context]) == [context]


def test_a_message_holds_contexts_in_a_row_and_keys_to_find_it_by() -> None:
    ((body, keys, count),) = packed(GOLDEN)
    assert body == b"".join(GOLDEN.values())
    assert (keys, count) == (["ID1", "k1", "k2"], 5)
    assert decode(body) == list(GOLDEN)


def test_older_clients_and_nulls_of_java_are_read() -> None:
    old = b"Pub\x011\x01r\x01g\x01t\x01ID\x01null\x01null\x01h:1\x019\x013\x010\x01"
    assert decode(old + b"false\x02") == [Pub(1, "r", "g", "t", "ID", "", "", "h:1", 9, 3, 0, "", False)]
    with_client = old + b"OFF\x01true\x0110.0.0.2\x02"
    assert decode(with_client) == [Pub(1, "r", "g", "t", "ID", "", "", "h:1", 9, 3, 0, "OFF", True, "10.0.0.2")]
    assert decode(old[:-1] + b"\x02") == [Pub(1, "r", "g", "t", "ID", "", "", "h:1", 9, 3, 0, "", True)]
    assert decode(b"SubAfter\x01R\x01ID\x017\x01true\x02") == [SubAfter("R", "ID", 7, True, "", 0, 0, "")]


@pytest.mark.parametrize(
    "nonsense",
    [
        *(b"", b"\x02\x02", b"nonsense", b"Pub", b"Pub\x01", b"Pub\x01x\x01r\x02", b"Future\x011\x022", b"\xff\xfe"),
        b"SubBefore\x01" + b"9" * 5000 + b"\x01r\x01g\x01R\x01ID\x010\x02",
        b"Recall" + b"\x01" * 100_000,
    ],
)
def test_what_is_no_context_is_left_out_and_the_others_count(nonsense: bytes) -> None:
    assert decode(nonsense + b"\x02" + GOLDEN[PUB]) == [PUB]


@given(st.binary(max_size=300))
def test_reading_never_fails(body: bytes) -> None:
    decode(body)


def test_messages_stay_within_their_limits() -> None:
    contexts = [SUB_BEFORE._replace(message_id=f"{number:032X}", keys="") for number in range(2000)]
    found = list(packed(contexts))
    assert [context for body, _, _ in found for context in decode(body)] == contexts
    assert len(found) > 1
    for body, keys, count in found:
        assert len(body) <= MESSAGE_LENGTH_MAX
        assert len(" ".join(keys)) <= KEYS_LENGTH_MAX
        assert len(keys) == count
    many = " ".join(f"key-{number}" for number in range(3000))
    ((_, keys, _),) = packed([PUB._replace(keys=many)])
    assert keys[:2] == ["ID1", "key-0"]
    assert len(" ".join(keys)) <= KEYS_LENGTH_MAX


def test_fields_are_numbered_behind_the_kind() -> None:
    assert (place(Pub, "timestamp_ms"), place(Pub, "success"), place(SubAfter, "success")) == (1, 13, 4)
