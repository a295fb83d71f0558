"""Receipts that a simple consumer hands in: how requests name them, and which are told when some are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.client import InvalidReceipt, ReceiptExpired
from penstock.client.consume.pop.receipts import CALL_MAX, Lot, Settling
from penstock.proto.data_frames import Method
from penstock.proto.receipts import Receipt
from penstock.proto.wire import pop_pb2 as wire

FIRST = Lot("orders", 0, 7, 1, 1_700_000_000_000, "workers", "broker-a")
SECOND = FIRST._replace(queue_id=3)
ELSEWHERE = FIRST._replace(broker_name="broker-b")


class Brokers:
    """What was asked, and an answer by what is refused: an offset's status."""

    def __init__(self, **refused: int) -> None:
        self.asked: list[tuple[str, list[tuple[int, list[int]]]]] = []
        self._refused = {int(offset[1:]): status for offset, status in refused.items()}

    def at_data_port(
        self, broker_name: str, method: Method, content: bytes, take: Callable[[bytes], Any], timeout_s: float
    ) -> Any:
        assert method == Method.ACKNOWLEDGE
        request = wire.AcknowledgeRequest.FromString(content)
        self.asked.append((broker_name, [(part.queue_id, list(part.offsets)) for part in request.receipts]))
        statuses = [self._refused.get(offset, 0) for part in request.receipts for offset in part.offsets]
        return take(wire.AcknowledgeReply(statuses=statuses if any(statuses) else ()).SerializeToString())


def settling(brokers: Brokers) -> Settling:
    return Settling(brokers, "workers")  # type: ignore[arg-type]


def test_each_lot_is_named_once_by_ascending_offsets() -> None:
    brokers = Brokers()
    settling(brokers).acknowledge({SECOND: [5, 4, 5], ELSEWHERE: [9], FIRST: [1, 2, 1 << 40]}, 1.0)
    assert sorted(brokers.asked) == [
        ("broker-a", [(0, [1, 2, 1 << 40]), (3, [4, 5])]),
        ("broker-b", [(0, [9])]),
    ]


def test_many_go_in_several_calls() -> None:
    brokers = Brokers()
    settling(brokers).acknowledge({FIRST: range(CALL_MAX - 1), SECOND: range(CALL_MAX + 2)}, 1.0)
    sizes = [[len(offsets) for _, offsets in parts] for _, parts in brokers.asked]
    assert sizes == [[CALL_MAX - 1, 1], [CALL_MAX], [1]]
    assert [offset for _, parts in brokers.asked for _, offsets in parts for offset in offsets] == [
        *range(CALL_MAX - 1),
        *range(CALL_MAX + 2),
    ]


@pytest.mark.parametrize(
    ("status", "error"), [(wire.RECEIPT_EXPIRED, ReceiptExpired), (wire.RECEIPT_UNKNOWN, InvalidReceipt)]
)
def test_those_that_are_refused_are_told(status: int, error: type[ReceiptExpired | InvalidReceipt]) -> None:
    brokers = Brokers(_2=status, _8=status)
    with pytest.raises(error) as raised:
        settling(brokers).acknowledge({FIRST: [3, 2, 1], SECOND: [7, 8]}, 1.0)
    assert raised.value.details["receipts"] == [FIRST.receipt(2).text(), SECOND.receipt(8).text()]


def test_a_lot_is_that_of_its_receipts() -> None:
    receipt = Receipt("workers", "orders", "broker-a", 3, 12, 7, 1, 1_700_000_000_000)
    assert Lot.of(receipt) == SECOND
    assert SECOND.receipt(12) == receipt
