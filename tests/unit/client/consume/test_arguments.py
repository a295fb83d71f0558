"""Arguments of consumers that make no sense: refused at once and by name, before they end a thread that nobody sees."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.client import ConsumerConfig, PullConsumer, PushConsumer, SimpleConsumer
from penstock.client.message import MessageQueue
from penstock.proto.errors import ClientClosed, ConfigError, InvalidArgument, InvalidName
from tests.support.client.pull_consumers import begun, consumer
from tests.support.client.running_cluster import RunningCluster

NAN, INF = math.nan, math.inf
NOWHERE = "127.0.0.1:1"
Q0 = MessageQueue("orders", "broker-a", 0)

NOT_OF_ANY = [
    {"client_id": 5},
    {"client_id": ""},
    {"client_id": []},
    {"client_id": "a\ud800"},
    {"client_id": "a\nb"},
    {"consume_from": 2**70},
]
NOT_OF_QUEUES = [
    *({"strategy": 5}, {"strategy": None}, {"config": 5}, {"consume_from": True}, {"consume_from": -1}),
    *({"consume_from": NAN}, {"config": 0}, {"config": {}}),
]
NOT_OF_PUSH: list[dict[str, Any]] = [
    *({"consume_threads": 1.5}, {"consume_threads": "4"}, {"consume_batch_max": 1.5}, {"consume_batch_max": NAN}),
    *({"max_reconsume_times": 1.5}, {"max_reconsume_times": "x"}, {"max_reconsume_times": -1}),
    *({"consume_timeout_s": NAN}, {"consume_timeout_s": "x"}, {"consume_timeout_s": 0}, {"orderly": None}),
]
NOT_OF_SIMPLE = [{"invisible_s": each} for each in (NAN, INF, 1e30, 0, -1, "x", True)]


def refused(name: str, call: Callable[[], object]) -> None:
    with pytest.raises((ConfigError, InvalidArgument, InvalidName)) as error:
        call()
    assert name in error.value.message
    assert "must be" in error.value.message or "choose one" in error.value.message


@pytest.mark.parametrize("options", [*NOT_OF_ANY, *NOT_OF_QUEUES, {"auto_commit": None}, {"auto_commit": "no"}])
def test_pull_consumers_are_not_made_of_it(options: dict[str, Any]) -> None:
    (name,) = options
    refused(name, lambda: PullConsumer(NOWHERE, group="g", **options))


@pytest.mark.parametrize("options", [*NOT_OF_ANY, *NOT_OF_QUEUES, *NOT_OF_PUSH])
def test_push_consumers_are_not_made_of_it(options: dict[str, Any]) -> None:
    (name,) = options
    refused(name, lambda: PushConsumer(NOWHERE, group="g", listener=print, **options))


@pytest.mark.parametrize("options", [*NOT_OF_ANY, *NOT_OF_SIMPLE])
def test_simple_consumers_are_not_made_of_it(options: dict[str, Any]) -> None:
    (name,) = options
    refused(name, lambda: SimpleConsumer(NOWHERE, group="g", **options))


NOT_OF_A_CONFIGURATION: list[dict[str, Any]] = [
    *({"fetch_bytes": 1.5}, {"fetch_bytes": 1 << 31}, {"queue_messages": True}, {"close_timeout_ms": 0}),
    *({"retry_delays_ms": 5}, {"retry_delays_ms": "15"}, {"retry_delays_ms": b"15"}, {"retry_delays_ms": [NAN]}),
    *({"retry_delays_ms": [-1]}, {"check_crc": None}, {"skip_damaged": 0}),
]


@pytest.mark.parametrize("options", NOT_OF_A_CONFIGURATION)
def test_a_configuration_is_of_values_that_it_can_have(options: dict[str, Any]) -> None:
    (name,) = options
    refused(name, lambda: ConsumerConfig(**options))


def test_numbers_and_flags_of_numpy_are_such() -> None:
    ConsumerConfig(check_crc=np.True_, queue_messages=np.int64(5))  # type: ignore[arg-type]
    PullConsumer(NOWHERE, group="g", auto_commit=np.False_).close()  # type: ignore[arg-type]
    for of_numpy in (np.int64(20), np.float32(20)):
        SimpleConsumer(NOWHERE, group="g", invisible_s=of_numpy).close()  # type: ignore[arg-type]
    refused("invisible_s", lambda: SimpleConsumer(NOWHERE, group="g", invisible_s=np.True_))  # type: ignore[arg-type]


def test_a_pull_consumer_goes_on_after_what_it_has_refused() -> None:
    with RunningCluster(topics={"orders": 1}) as cluster:
        cluster.put("orders", [b"0", b"1", b"2"], 0)
        with consumer(cluster, auto_commit=False) as puller:
            puller.subscribe("orders")
            begun(puller, Q0)
            for value in (NAN, INF, 1.5, True, -1, 2**63, "x", None):
                refused("offset", lambda value=value: puller.seek(Q0, value))
                refused("offset of", lambda value=value: puller.commit({Q0: value}))
            for value in (NAN, 1.5, "x", None, 2**63):
                refused("timestamp_ms", lambda value=value: puller.offset_for_time(Q0, value))
            for value in (NAN, 1.5, "x", 0):
                refused("max_messages", lambda value=value: puller.poll(0, max_messages=value))
                refused("max_messages", lambda value=value: puller.poll_batch(0, max_messages=value))
            for value in (None, NAN, -1, True):
                refused("timeout_s", lambda value=value: puller.poll(value))
            for value in (None, 5, "x", "", {}, b"x"):
                refused("message", lambda value=value: puller.send_back(value))
                refused("queues", lambda value=value: puller.assign(value))
                refused("queue", lambda value=value: puller.committed(value))
                refused("queue", lambda value=value: puller.offset_for_time(value, 0))
            refused("offsets", lambda: puller.commit([Q0]))  # type: ignore[arg-type]
            refused("delay_level", lambda: puller.send_back([], delay_level=None))  # type: ignore[arg-type]
            refused("timeout_s", lambda: puller.send_back([], timeout_s=None))  # type: ignore[arg-type]
            refused("timeout_s", lambda: puller.commit(timeout_s=None))  # type: ignore[arg-type]
            refused("topic name", lambda: puller.queues(None))  # type: ignore[arg-type]
            refused("topic name", lambda: puller.unsubscribe(None))  # type: ignore[arg-type]
            assert [each.body for each in puller.poll(INF, max_messages=2)] == [b"0", b"1"]
            puller.commit({Q0: np.int64(2)})  # as columns have them
            puller.seek(Q0, np.int64(1))
            assert puller.poll(INF)[0].body == b"1"
            waiting = threading.Timer(0.1, cluster.put, ("orders", [b"more"], 0))
            waiting.start()
            puller.seek_to_end()
            assert [each.body for each in puller.poll(INF)] == [b"more"]
            waiting.join()
        for call in (lambda: puller.seek(Q0, 0), lambda: puller.position(Q0), lambda: puller.pause([Q0])):
            with pytest.raises(ClientClosed):
                call()


def test_the_directory_of_offsets_is_a_path_in_any_form(tmp_path: Path) -> None:
    for given in (str(tmp_path), tmp_path):
        assert ConsumerConfig(offsets_directory=given).offsets_root == tmp_path
    refused("offsets_directory", lambda: ConsumerConfig(offsets_directory=5))  # type: ignore[arg-type]


@pytest.mark.parametrize("queue", [5, "x", ("orders",), ("orders", "broker-a", "0"), ("orders", 5, 0), (*Q0[:2], -1)])
def test_no_queue_is_assigned_that_cannot_be_one(queue: Any) -> None:
    with RunningCluster(topics={"orders": 1}) as cluster, consumer(cluster) as puller:
        refused("queue", lambda: puller.assign([queue]))
        cluster.put("orders", [b"0"], 0)
        puller.assign([Q0])
        assert [each.body for each in puller.poll(INF)] == [b"0"]
        refused("queue", lambda: puller.pause([queue]))


def test_a_simple_consumer_goes_on_after_what_it_has_refused() -> None:
    with RunningCluster(topics={"orders": 1}) as cluster:
        cluster.put("orders", [b"0"], 0)
        with SimpleConsumer(cluster.namesrv, group="g", consume_from="first") as simple:
            simple.subscribe("orders")
            for value in (NAN, INF, 1e30, 0, "x"):
                refused("invisible_s", lambda value=value: simple.receive(timeout_s=0, invisible_s=value))
            for value in (NAN, 1.5, "x", 0, None, 1025):
                refused("max_messages", lambda value=value: simple.receive(value))
            refused("timeout_s", lambda: simple.receive(timeout_s=None))  # type: ignore[arg-type]
            (message,) = simple.receive(timeout_s=INF)
            for value in (NAN, INF, 1e30, -1, "x", None):
                refused("invisible_s", lambda value=value: simple.change_invisible(message, value))
            for settle in (simple.ack, simple.give_back, simple.forward_to_dead_letters):
                for value in (None, 5, b"receipt", {}):
                    refused("messages", lambda settle=settle, value=value: settle(value))
            simple.ack(message)
