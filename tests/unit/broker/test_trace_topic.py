"""The topic of message traces, which a broker has by ``traceTopicEnable``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config import TopicsConfig, load_broker_config
from penstock.client import Admin, Producer
from penstock.formats.trace import TRACE_TOPIC
from penstock.proto.errors import ConfigError, NotEnoughReplicas
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until


def queues(cluster: RunningCluster, topic: str = TRACE_TOPIC) -> int:
    return sum(each.read_queues for each in cluster.route(topic).queues)


def test_a_broker_makes_it_with_one_queue_and_leaves_it_as_it_is_afterwards() -> None:
    with RunningCluster(traceTopicEnable="true", autoCreateTopicEnable="false", topics={"orders": 1}) as cluster:
        wait_until(lambda: queues(cluster) == 1, what="the topic")
        with Producer(cluster.namesrv, trace=True) as producer:
            producer.send("orders", b"x")
        assert producer.statistics().traces_dropped == 0
        cluster.create_topic(TRACE_TOPIC, 4)
        cluster.kill("broker-a")
        cluster.revive("broker-a")
        wait_until(lambda: queues(cluster) == 4, what="the topic as it was")
        with Admin(cluster.namesrv) as admin:
            assert admin.topic_stats(TRACE_TOPIC).messages == 1


def test_without_the_key_there_is_none_and_its_name_can_be_another() -> None:
    with RunningCluster(traceTopicEnable="true", msgTraceTopicName="traces") as cluster:
        wait_until(lambda: queues(cluster, "traces") == 1, what="the topic")
        assert TRACE_TOPIC not in cluster.brokers["broker-a"].topics()


def test_a_creation_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.broker.admin import administration

    monkeypatch.setattr(administration, "TRACE_RETRY_S", 0.01)
    real = administration.check_creatable
    failures = iter([NotEnoughReplicas("not yet"), NotEnoughReplicas("not yet")])

    def failing(*arguments: Any) -> None:
        error = next(failures, None)
        if error is not None:
            raise error
        real(*arguments)

    monkeypatch.setattr(administration, "check_creatable", failing)
    with RunningCluster(traceTopicEnable="true") as cluster:
        wait_until(lambda: queues(cluster) == 1, what="the topic")
    assert next(failures, None) is None


@pytest.mark.parametrize("name", ["no name", "", "rmq_sys_PENSTOCK_STATE", "SCHEDULE_TOPIC_XXXX"])
def test_a_name_that_clients_may_not_write_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="msgTraceTopicName"):
        TopicsConfig(trace_topic=name)


def test_rocketmqs_keys_are_read(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=a\nnamesrvAddr=127.0.0.1:1\ntraceTopicEnable=true\nmsgTraceTopicName=traces\n")
    topics = load_broker_config(path).topics
    assert (topics.trace, topics.trace_topic) == (True, "traces")
