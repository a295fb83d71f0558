from __future__ import annotations

import pytest

from penstock.broker.core.tables.producers import (
    IDLE_MS_MAX,
    OWN_PRODUCERS,
    RECEIPTS_MAX,
    SEQUENCES,
    ProducerTable,
    Receipt,
    mark_of,
)
from penstock.broker.limits import Limits
from penstock.formats.record.layout import Host
from penstock.formats.record.producer_mark import ProducerMark, producer_mark
from penstock.proto.errors import CorruptBatch, InvalidArgument, MessageTooLarge, StaleProducer
from tests.support.record.encoding import encode_messages

P = 0xABCDEF


def receipt(sequence: int, at: int = 0, time_ms: int = 1000) -> Receipt:
    return Receipt(sequence, at, at + 100, time_ms, [0], [sequence])


def test_the_same_sequence_gets_the_first_receipt_and_a_greater_one_is_new() -> None:
    table = ProducerTable()
    assert table.find_duplicate(P, 1, "orders", 0, 5) is None
    table.remember(P, 1, "orders", 0, receipt(5, at=700))
    assert table.find_duplicate(P, 1, "orders", 0, 5) == receipt(5, at=700)
    assert table.find_duplicate(P, 1, "orders", 0, 9) is None
    assert table.find_duplicate(P, 1, "orders", 1, 5) is None, "another lane"
    assert table.find_duplicate(P, 1, "refunds", 0, 5) is None, "another topic"
    assert table.duplicates == 1


def test_a_sequence_below_the_remembered_ones_is_refused_by_name() -> None:
    table = ProducerTable()
    for sequence in range(10, 10 + RECEIPTS_MAX + 1):
        table.remember(P, 1, "orders", 0, receipt(sequence))
    assert table.find_duplicate(P, 1, "orders", 0, 11) == receipt(11)
    with pytest.raises(InvalidArgument, match="sequence 10 is below the last one"):
        table.find_duplicate(P, 1, "orders", 0, 10)


def test_an_older_epoch_is_stale_in_every_lane_of_the_producer() -> None:
    table = ProducerTable()
    table.remember(P, 3, "orders", 0, receipt(5))
    with pytest.raises(StaleProducer, match="epoch 2 is older than 3"):
        table.find_duplicate(P, 2, "refunds", 7, 1)
    assert table.find_duplicate(P, 4, "orders", 0, 1) is None, "a newer epoch begins its sequences again"
    table.remember(P, 4, "orders", 0, receipt(1))
    assert table.find_duplicate(P, 4, "orders", 0, 1) == receipt(1)


def test_the_least_recently_used_lanes_are_forgotten_first() -> None:
    table = ProducerTable(Limits(lanes_max=1000))
    for lane in range(1000):
        table.remember(P, 1, "orders", lane, receipt(1))
    table.remember(P, 1, "orders", 0, receipt(2))
    table.remember(P, 1, "orders", 1000, receipt(1))
    assert len(table) == 1000
    assert table.find_duplicate(P, 1, "orders", 0, 2) is not None
    assert table.find_duplicate(P, 1, "orders", 1, 1) is None


def test_lanes_idle_for_a_week_are_forgotten() -> None:
    table = ProducerTable()
    table.remember(P, 1, "orders", 0, receipt(1, time_ms=1000))
    table.remember(P, 1, "orders", 1, receipt(1, time_ms=5000))
    table.expire(1001 + IDLE_MS_MAX)
    assert len(table) == 1


def test_the_broker_s_own_lanes_are_remembered_however_long_they_are_idle() -> None:
    table = ProducerTable()
    own = OWN_PRODUCERS.start
    table.remember(own, 0, "orders", 0, receipt(7, time_ms=1000))
    table.remember(P, 1, "orders", 0, receipt(1, time_ms=1000))
    table.remember(P, 1, "orders", 1, receipt(1, time_ms=5000))
    table.expire(1001 + IDLE_MS_MAX)
    assert (len(table), table.last_sequence(own, "orders", 0)) == (2, 7)
    assert table.last_sequence(P, "orders", 0) is None


def test_the_table_survives_its_rows_without_what_the_log_lost() -> None:
    table = ProducerTable()
    table.remember(P, 1, "orders", 0, receipt(1, at=0))
    table.remember(P, 1, "orders", 0, receipt(2, at=100))
    again = ProducerTable()
    again.load({"producers": table.rows()}, 150)
    assert again.find_duplicate(P, 1, "orders", 0, 1) == receipt(1, at=0)
    assert again.find_duplicate(P, 1, "orders", 0, 2) is None, "its bytes were lost: it must be stored again"


def test_what_a_shorter_log_does_not_tell_is_repeated_in_records_of_bounded_size() -> None:
    table = ProducerTable()
    wide = Receipt(3, 0, 100, 1000, list(range(5000)), list(range(5000)))
    for lane in range(5):
        table.remember(P, 1, "orders", lane, wide)
    table.remember(P, 1, "orders", 5, receipt(1, at=100))
    again = ProducerTable()
    bodies = [body for kind, body in table.repeated(100) if kind == SEQUENCES]
    assert [len(body["rows"]) for body in bodies] == [2, 2, 1]
    for position, body in enumerate(bodies, 200):
        again.apply(position, SEQUENCES, body)
        table.apply(position, SEQUENCES, body)
    assert again.find_duplicate(P, 1, "orders", 4, 3) == wide
    assert len(again) == 5
    assert list(table.repeated(100)) == []
    assert len(list(table.repeated(300))) == 3


@pytest.mark.parametrize("topic", ["orders", "t" * 200])
@pytest.mark.parametrize("host", ["10.0.0.1:1", "[::1]:1"])
def test_the_mark_is_found_in_records_of_either_version_and_address_family(topic: str, host: str) -> None:
    mark = producer_mark(P, 2, 3, 4, 2)
    records = encode_messages(topic, [b"a", b"b"], [b"K\x01v\x02"] * 2, born_host=Host.parse(host), mark=mark)
    assert mark_of(memoryview(records)) == ProducerMark(P, 2, 3, 4, 2)
    plain = encode_messages(topic, [b"a", b"b"], born_host=Host.parse(host))
    assert mark_of(memoryview(plain)) is None


def test_a_truncated_batch_is_refused_by_name_wherever_it_ends() -> None:
    mark = producer_mark(P, 1, 0, 1, 1)
    records = encode_messages("orders", [b"abc"], born_host=Host.parse("10.0.0.1:1"), mark=mark)
    for end in range(len(records)):
        with pytest.raises(CorruptBatch):
            mark_of(memoryview(records)[:end])


@pytest.mark.parametrize("mark", [None, producer_mark(P, 1, 0, 1, 1)], ids=["unmarked", "marked"])
def test_a_first_record_with_too_large_properties_is_refused_as_that(mark: bytes | None) -> None:
    records = encode_messages("orders", [b"abc"], [b"k"], born_host=Host.parse("10.0.0.1:1"), mark=mark)
    at = records.index(b"orders") + len(b"orders")
    properties = records[at + 2 :] + b"k" * 32767
    made = records[:at] + len(properties).to_bytes(2, "big") + properties
    with pytest.raises(MessageTooLarge, match="record 0: properties too large, at most 32767 bytes"):
        mark_of(memoryview(len(made).to_bytes(4, "big") + made[4:]))


def test_a_broken_mark_is_a_corrupt_batch() -> None:
    records = encode_messages("orders", [b"abc"], born_host=Host.parse("10.0.0.1:1"), mark=b"not a mark")
    with pytest.raises(CorruptBatch, match="record 0"):
        mark_of(memoryview(records))
