"""What a pull consumer's expressions select, and which are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.client.cluster.subscription import Sql
from penstock.proto.errors import InvalidArgument
from penstock.proto.wire.broker_pb2 import Filter
from tests.support.client.pull_consumers import consumer, numbered, poll_all
from tests.support.client.running_cluster import RunningCluster


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"orders": 2}) as made:
        yield made


def test_tags_are_compared_by_text(cluster: RunningCluster) -> None:
    # "Aa" and "BB" have the same hash, by which the broker filters.
    cluster.put("orders", numbered(6), 0, tags=["Aa", "BB", "Aa", "x", "BB", "Aa"])
    with consumer(cluster) as puller:
        puller.subscribe("orders", "Aa || x")
        assert [each.body for each in poll_all(puller, 4)] == [b"0", b"2", b"3", b"5"]
        assert [each.tag for each in puller.poll(0)] == []
    assert cluster.committed("g", "orders", 0) == 6, "what was not wanted is consumed as well"


def test_sql_reaches_the_broker_and_its_refusal_the_caller() -> None:
    with RunningCluster(topics={"orders": 2}, enablePropertyFilter="false") as cluster, consumer(cluster) as puller:
        puller.subscribe("orders", Sql("amount > 10"))
        told = r"SQL92 filters are off.* consumer of group g \(orders 'amount > 10'\) gets nothing more"
        with pytest.raises(InvalidArgument, match=told):
            puller.poll(10)
        (topic,) = cluster.brokers["broker-a"].faults.requests["Fetch"][0].topics
        assert (topic.filter.kind, topic.filter.expression) == (Filter.SQL92, "amount > 10")


def test_an_expression_that_no_broker_takes_is_refused_at_once_and_the_consumer_goes_on(
    cluster: RunningCluster,
) -> None:
    cluster.put("orders", [b"0"], 0)
    with consumer(cluster) as puller:
        for wrong in (
            Sql("amount >"),
            Sql("amount LIKE 1"),
            Sql("a = 1" + " AND a = 1" * 2000),
            Sql(b"a = 1"),  # type: ignore[arg-type]
            "x" * 16385,
        ):
            with pytest.raises(InvalidArgument, match="subscription of topic 'orders'"):
                puller.subscribe("orders", wrong)
        puller.subscribe("orders", Sql("amount IS NULL"))
        assert [each.body for each in puller.poll(5)] == [b"0"]
