from __future__ import annotations

import base64

import pytest

from penstock.formats.recall_handle import RecallHandle
from penstock.proto.errors import InvalidArgument

ROCKETMQS = "djEgVCBicm9rZXItYSAxNzAwMDAwMDAwMDAxIDBBMDAwMDAxMDAwMDE4QjRBQUMyMDAwMDAwMDAwMDAw"
MEANT = RecallHandle("T", "broker-a", 1_700_000_000_000, "0A000001000018B4AAC2000000000000")


def test_a_handle_is_as_rocketmq_writes_it() -> None:
    assert MEANT.encode() == ROCKETMQS
    assert RecallHandle.decode(ROCKETMQS) == MEANT
    padded = base64.urlsafe_b64encode(b"v1 T broker-a 5 K?>").decode()
    assert RecallHandle.decode(padded) == RecallHandle("T", "broker-a", 4, "K?>")


@pytest.mark.parametrize(
    "text", ["v2 T b 1 K", "v1 T b 1", "v1 T b 1 K more", "v1 T b x K", "v1 T b -1 K", "v1  b 1 K", "v1 T b 1 ", ""]
)
def test_what_says_something_else_is_no_handle(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is none: give the recall_handle of a receipt"):
        RecallHandle.decode(base64.urlsafe_b64encode(text.encode()).decode())


@pytest.mark.parametrize("handle", [None, b"x", "", "*", "\u20ac", "x" * 3000, "/w==", "_w"])
def test_what_is_no_such_text_is_no_handle(handle: object) -> None:
    with pytest.raises(InvalidArgument, match="recall handle"):
        RecallHandle.decode(handle)
