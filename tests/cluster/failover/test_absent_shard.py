"""A whole broker group goes: who comes then learns that a part of the topic is missing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.cli.main import main
from penstock.client import Admin, MessageView, Producer, PushConsumer
from penstock.proto.errors import BrokerUnavailable, InvalidArgument, Retryable, RouteNotFound, TopicNotFound
from tests.support.cluster.cluster import Cluster, cluster
from tests.support.waiting import wait_until

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.types import BinaryType, StructField, StructType

from penstock.pipeline.jobs.lag import sampling
from penstock.pipeline.topics.cluster import Cluster as View
from penstock.pipeline.topics.options import source_options
from penstock.pipeline.topics.read.source import TopicReader
from penstock.pipeline.topics.read.stream import TopicStreamReader

SCHEMA = StructType([StructField("body", BinaryType())])


@pytest.fixture
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("brokers"), shards=2, replicas=1) as made:
        made.start()
        yield made


def options(brokers: Cluster, **more: str) -> dict[str, str]:
    subscribed = {} if "subscribePattern" in more else {"subscribe": "both"}
    return {"nameServer": brokers.nameservers, "driverRetryTimeoutMs": "1500", **subscribed, **more}


def read(brokers: Cluster, **more: str) -> int:
    reader = TopicReader(source_options(options(brokers, **more), streaming=False), SCHEMA)
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))


def test_a_group_that_is_gone_is_part_of_its_topics_until_it_is_forgotten(
    brokers: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    names = brokers.nameservers
    with Admin(names) as admin, Producer(names) as producer:
        admin.create_topic("both", queues=1)
        admin.create_topic("only-b", queues=1, brokers=["broker-b"])
        producer.produce_many("only-b", [b"x"] * 7)
        for number in range(20):
            producer.send("both", b"%d" % number)
        producer.flush()
    everything = read(brokers)
    assert everything == 20
    node = brokers.broker("b", 0)
    node.kill()
    with Admin(names) as admin:
        wait_until(lambda: admin.topic_stats("both").unreachable == ["broker-b"], 30, "a group that is gone is told")
        left = admin.topic_stats("both").messages
        assert 0 < left < 20
        assert admin.list_topics() == ["both", "only-b"]
        for given in ({}, {"subscribePattern": "both"}, {"subscribe": "only-b"}):
            with pytest.raises(RouteNotFound, match=r"topic .*: no member of broker-b lives, where messages of it are"):
                read(brokers, **given)
        assert read(brokers, failOnDataLoss="false") == left
        stream = TopicStreamReader(source_options(options(brokers, startingOffsets="earliest"), streaming=True), SCHEMA)
        with pytest.raises(RouteNotFound, match="no member of broker-b lives"):
            stream.initialOffset()
        began = time.monotonic()
        only = TopicStreamReader(source_options(options(brokers, subscribe="only-b"), streaming=True), SCHEMA)
        with pytest.raises(RouteNotFound, match="no member of broker-b lives"):
            only.prepareForTriggerAvailableNow()
        assert time.monotonic() - began > 1.0  # of driverRetryTimeoutMs
        assert sampling.places(View(names), ["both", "only-b"]) == {
            "both": {"broker-a", "broker-b"},
            "only-b": {"broker-b"},
        }
        with pytest.raises(BrokerUnavailable, match="topic only-b is still on broker-b, of which no master lives"):
            admin.delete_topic("only-b")
        with pytest.raises(InvalidArgument, match="broker group broker-a is not gone"):
            admin.forget_shard("broker-a")
    node.restart()
    wait_until(lambda: not View(names).known_route("both").absent, 30, "the group is there again")
    assert read(brokers) == 20
    assert read(brokers, subscribe="only-b") == 7
    node.kill()
    wait_until(lambda: View(names).known_route("both").absent, 30, "the group is gone again")
    assert main(["cluster", "forget", "broker-b", "--namesrv", names]) == 0
    assert capsys.readouterr().out == "broker-b forgotten\n"
    assert read(brokers) == left
    with pytest.raises(TopicNotFound):
        View(names).known_route("only-b")
    assert main(["cluster", "forget", "broker-b", "--namesrv", names]) == 2
    assert "broker group broker-b is not known here" in capsys.readouterr().err


def test_who_comes_while_a_broker_group_is_down_works_with_the_others(brokers: Cluster) -> None:
    names = brokers.nameservers
    with Admin(names) as admin, Producer(names) as producer:
        admin.create_topic("both", queues=1)
        admin.create_topic("only-a", queues=1, brokers=["broker-a"])
        for number in range(20):
            producer.send("both", b"%d" % number)
        stored = {queue.broker_name: queue.messages for queue in admin.topic_stats("both").queues}
    node = brokers.broker("a", 0)
    assert node.stop() == 0  # in order, as an update does: the same as a crash
    got: set[bytes] = set()

    def take(message: MessageView) -> None:
        got.add(message.body)

    consumer = PushConsumer(names, group="late", listener=take, consume_from="first")
    consumer.subscribe("both")
    consumer.subscribe("only-a")
    with Producer(names) as producer, consumer, ThreadPoolExecutor(2) as pool:
        wait_until(lambda: len(got) == stored["broker-b"], 20, "what the other group has")
        assert producer.send("both", b"new").broker_name == "broker-b"
        with pytest.raises(Retryable):
            producer.send("only-a", b"too early", timeout_s=0.5)
        reading = pool.submit(read, brokers, driverRetryTimeoutMs="30000")
        sending = pool.submit(producer.send, "only-a", b"waits", timeout_s=30)
        node.restart()
        assert sending.result(30).broker_name == "broker-a"
        assert reading.result(30) == 21
        wait_until(lambda: len(got) == 22, 20, "all of it, also what was sent meanwhile")
