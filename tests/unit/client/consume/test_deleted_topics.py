"""What consumers and producers of a topic say when it is deleted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.cli.main import main
from penstock.client import Admin, MessageQueue, Producer, PullConsumer, TopicNotFound
from penstock.proto.wire.nameserver_pb2 import TopicRoute
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"orders": 2}) as made:
        yield made


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "topic is gone" in each.getMessage()]


@pytest.mark.parametrize("is_assigned", [False, True])
def test_a_reader_is_told_once_that_its_topic_is_gone(
    cluster: RunningCluster, caplog: pytest.LogCaptureFixture, is_assigned: bool
) -> None:
    with (
        Admin(cluster.namesrv) as admin,
        PullConsumer(cluster.namesrv, group="g", consume_from="first") as consumer,
    ):
        if is_assigned:
            consumer.assign([MessageQueue("orders", "broker-a", 0)])
        else:
            consumer.subscribe("orders")
        cluster.put("orders", [b"before"], 0)
        assert [each.body for each in consumer.poll(10)] == [b"before"]
        admin.delete_topic("orders")
        wait_until(lambda: warnings_of(caplog), what="the warning")
        assert consumer.poll(0.3) == []
    assert len(warnings_of(caplog)) == 1
    assert "topic=orders" in warnings_of(caplog)[0]


def test_a_producer_says_that_the_topic_was_deleted(cluster: RunningCluster) -> None:
    with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv, auto_create_topics=False) as producer:
        producer.send("orders", b"x")
        heard: list[TopicRoute] = []
        producer._calls.directory.add_listener(heard.append)  # after the producer's own, which has heard it by then
        admin.delete_topic("orders")
        wait_until(lambda: any(not route.exists for route in heard), what="the producer's hearing of it")
        with pytest.raises(TopicNotFound, match="topic orders was deleted: not sent"):
            producer.send("orders", b"y", timeout_s=0.3)


def test_tail_ends_when_its_topic_is_deleted(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("penstock.cli.commands.messages.POLL_S", 0.05)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    polls = PullConsumer.poll

    def delete_first(self: PullConsumer, timeout_s: float, max_messages: int = 500) -> list[object]:
        monkeypatch.setattr(PullConsumer, "poll", polls)
        with Admin(cluster.namesrv) as admin:
            admin.delete_topic("orders")
        return []

    monkeypatch.setattr(PullConsumer, "poll", delete_first)
    assert main(["tail", "orders", "--namesrv", cluster.namesrv]) == 1
    assert capsys.readouterr().err == "error: topic 'orders' is gone: it was deleted\n"
