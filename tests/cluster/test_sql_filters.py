"""Conditions at a real broker: what consumers and the Spark source get, and how far they are then."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from penstock.client import Admin, Message, MessageView, Producer, PullConsumer, PushConsumer, Sql
from penstock.proto.errors import InvalidArgument
from tests.support.cluster.cluster import Cluster, cluster
from tests.support.waiting import wait_until

CONDITION = "amount > 10 AND region = 'eu'"


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("brokers"), shards=1, replicas=1) as made:
        made.start()
        with Admin(made.nameservers) as admin, Producer(made.nameservers) as producer:
            admin.create_topic("orders", queues=3)
            for start in range(0, 900, 100):
                producer.send_batch([message(number) for number in range(start, start + 100)])
        yield made


def message(number: int) -> Message:
    properties = {"amount": str(number % 30), "region": "eu" if number % 2 else "us"}
    return Message("orders", b"%d" % number, properties=properties, sharding_key=str(number))


WANTED = sorted(b"%d" % number for number in range(900) if number % 30 > 10 and number % 2)


def test_a_push_consumer_gets_what_the_condition_selects_and_commits_all(brokers: Cluster) -> None:
    got: list[bytes] = []
    lock = threading.Lock()

    def listener(view: MessageView) -> None:
        with lock:
            got.append(view.body)

    consumer = PushConsumer(brokers.nameservers, group="sql", listener=listener, consume_from="first")
    consumer.subscribe("orders", Sql(CONDITION))
    with consumer, Admin(brokers.nameservers) as admin:
        wait_until(lambda: len(got) >= len(WANTED), 20, "all that is wanted")
        wait_until(lambda: admin.group_lag("sql").lag == 0, 20, "offsets behind what was filtered out")
    assert sorted(got) == WANTED


def test_a_pull_consumer_gets_it_too_and_a_wrong_condition_is_named(brokers: Cluster) -> None:
    with PullConsumer(brokers.nameservers, group="pull-sql", consume_from="first") as consumer:
        consumer.subscribe("orders", Sql(CONDITION))
        got: list[bytes] = []
        wait_until(lambda: got.extend(m.body for m in consumer.poll(1)) or len(got) >= len(WANTED), 20, "all")
        with pytest.raises(InvalidArgument, match="SQL92 condition, character 9: expected a property, a value"):
            consumer.subscribe("orders", Sql("amount >"))
    assert sorted(got) == WANTED


def test_the_spark_source_reads_it(brokers: Cluster) -> None:
    pytest.importorskip("pyspark")
    pytest.importorskip("pyarrow")
    from pyspark.sql.types import BinaryType, StructField, StructType

    from penstock.pipeline.topics.options import source_options
    from penstock.pipeline.topics.read.source import TopicReader

    given = {"nameServer": brokers.nameservers, "subscribe": "orders", "filterSql": CONDITION}
    schema = StructType([StructField("body", BinaryType())])
    reader = TopicReader(source_options(given, streaming=False), schema)
    found = [body for part in reader.partitions() for batch in reader.read(part) for body in batch[0].to_pylist()]
    assert sorted(found) == WANTED
    wrong = TopicReader(source_options(given | {"filterSql": "amount LIKE 1"}, streaming=False), schema)
    with pytest.raises(InvalidArgument, match="found 'LIKE'"):
        wrong.partitions()
