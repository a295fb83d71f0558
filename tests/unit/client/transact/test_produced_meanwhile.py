"""What threads produce in a transaction while another one ends it."""

from __future__ import annotations

import pytest

from penstock.client import TransactionEnded, TransactionProducer
from penstock.formats.record.layout import decode_record
from tests.support.client.running_cluster import RunningCluster


def test_what_is_produced_while_a_commit_is_under_way_is_committed_too_or_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with RunningCluster(topics={"orders": 2}) as cluster:
        with TransactionProducer(cluster.namesrv, group="payments") as producer, producer.transaction() as tx:
            tx.produce("orders", b"1")
            waiting, seal = tx._open["orders"], tx._seal
            extend = waiting.extend

            def seal_while_others_produce(topic: str) -> None:
                seal(topic)
                monkeypatch.setattr(tx, "_seal", seal)
                tx.produce("orders", b"2")

            def extend_behind_the_end(item: tuple[object, ...]) -> None:
                waiting.extend = extend
                tx.commit()
                extend(item)

            monkeypatch.setattr(tx, "_seal", seal_while_others_produce)
            waiting.extend = extend_behind_the_end  # type: ignore[assignment]
            with pytest.raises(TransactionEnded):
                tx.produce("orders", b"3")
        records = cluster.brokers["broker-a"].records("orders").values()
        assert sorted(decode_record(each).body for each in records) == [b"1", b"2"]
