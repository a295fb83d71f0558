"""How push consumers end, and broadcasting consumers, which go on from their file."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Admin, PushConsumer
from penstock.client.consume.consumer_config import ConsumerConfig
from penstock.client.consume.push.worker_threads import WorkerThreads
from penstock.client.message import MessageView
from penstock.proto.errors import ClientClosed, ConfigError, GroupNotFound
from tests.support.client.push_consumers import Seen, consumer, numbered
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"orders": 2}) as made:
        yield made


def test_the_first_worker_may_end_while_the_others_have_not_begun() -> None:
    """Its listener closes the consumer, which is about to start them: they find it closed."""
    workers = WorkerThreads("g", lambda _: None, count=2)
    workers.members[0].start()
    assert workers.join(time.monotonic() + 20, None) == []
    assert not workers.members[0].is_alive()


def test_close_waits_for_running_listeners_and_commits_them(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(3), 0)
    began, gate = threading.Event(), threading.Event()

    def listener(message: MessageView) -> None:
        began.set()
        gate.wait(20)

    made = consumer(cluster, listener, consume_threads=1)
    with made:
        assert began.wait(10)
        threading.Timer(0.2, gate.set).start()
    assert cluster.committed("g", "orders", 0) == 1, "the one at work was finished, the others not begun"
    wait_until(lambda: cluster.brokers["broker-a"].members("g") == [], what="nobody left")


def test_close_does_not_wait_longer_than_it_was_told(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(3), 0)
    gate = threading.Event()
    seen = Seen(lambda message: gate.wait(3600) and None)
    made = consumer(cluster, seen)
    made.start()
    wait_until(lambda: len(seen) == 3, what="listeners at work")
    made.close(timeout_s=1.5)  # returns, though they are still at work
    gate.set()
    assert cluster.committed("g", "orders", 0) == 0


def test_wait_ends_at_a_signal_and_leaves_the_former_handlers(cluster: RunningCluster) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with consumer(cluster, Seen()) as made:
        assert made.wait(0.05) is False
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        assert made.wait(10) is True
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("where", ["a listener", "the last commit"])
def test_a_close_that_ctrl_c_interrupts_leaves_no_member_and_no_thread(
    cluster: RunningCluster, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.put("orders", [b"1"], 0)
    began, may_end = threading.Event(), threading.Event()

    def listener(message: MessageView) -> None:
        began.set()
        may_end.wait(20)

    consumer = PushConsumer(cluster.namesrv, group="g", listener=listener, consume_from="first", trace=True)
    consumer.subscribe("orders")
    consumer.start()
    assert began.wait(20)
    wait: Any = consumer._workers._threads
    name = "join"
    if where != "a listener":
        may_end.set()
        wait, name = consumer._core.owner, "_end"
    interrupted, real = [], getattr(wait, name)

    def interrupt_once(*arguments: Any) -> Any:
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(wait, name, interrupt_once)
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    with Admin(cluster.namesrv) as admin:
        wait_until(lambda: not admin.group("g").members, what="no member")
    may_end.set()
    own = ("penstock-member-g", "penstock-session", "penstock-fetch-g", "penstock-consume-g", "penstock-trace")
    wait_until(lambda: not [each for each in threading.enumerate() if each.name.startswith(own)], what="no thread")
    consumer.close()


def test_a_push_consumer_that_was_closed_neither_begins_again_nor_takes_topics(cluster: RunningCluster) -> None:
    consumer = PushConsumer(cluster.namesrv, group="g", listener=print)
    consumer.subscribe("orders")
    consumer.start()
    consumer.start()
    consumer.close()
    for call in (consumer.start, consumer.__enter__, lambda: consumer.subscribe("payments")):
        with pytest.raises(ClientClosed, match="group g is closed: make a new one"):
            call()


def test_wait_ends_when_closed_and_raises_what_broke_the_consumer() -> None:
    with RunningCluster(topics={"orders": 2}, autoCreateSubscriptionGroup="false") as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_group("g")
        made = consumer(cluster, Seen())
        made.start()
        threading.Timer(0.2, made.close).start()
        assert made.wait(10) is True
        with consumer(cluster, Seen(), group="bad") as refused, pytest.raises(GroupNotFound):
            refused.wait(10)


def test_broadcasting_reads_every_queue_and_goes_on_from_its_file(cluster: RunningCluster, tmp_path: Path) -> None:
    config = ConsumerConfig(commit_interval_ms=30, offsets_directory=tmp_path)
    cluster.put("orders", numbered(10), 0)
    cluster.put("orders", numbered(10, 100), 1)
    seen = {name: Seen() for name in ("x", "y")}
    made = {name: consumer(cluster, seen[name], model="broadcasting", client_id=name, config=config) for name in seen}
    with made["x"], made["y"]:
        wait_until(lambda: len(seen["x"]) == len(seen["y"]) == 20, what="everything at both")
        wait_until(lambda: cluster.brokers["broker-a"].members("g") == ["x", "y"], what="both known")
    document = json.loads((tmp_path / "x" / "g.json").read_text())
    assert [row[:4] for row in document["offsets"]] == [["orders", "broker-a", 0, 10], ["orders", "broker-a", 1, 10]]
    assert cluster.committed("g", "orders", 0) == -1
    assert cluster.brokers["broker-a"].members("g") == []
    cluster.put("orders", [b"later"], 0)
    again = Seen()
    with consumer(cluster, again, model="broadcasting", client_id="x", config=config):
        wait_until(lambda: again.bodies() == [b"later"], what="only what is new")


def test_broadcasting_offsets_belong_to_one_consumer_and_must_be_whole(cluster: RunningCluster, tmp_path: Path) -> None:
    config = ConsumerConfig(offsets_directory=tmp_path)
    first = consumer(cluster, Seen(), model="broadcasting", config=config)
    second = consumer(cluster, Seen(), model="broadcasting", config=config)
    with first:
        with pytest.raises(ConfigError, match="give this one a client_id"):
            second.start()
        second.close()
    path = tmp_path / first.client_id / "g.json"
    path.write_text("{")
    third = consumer(cluster, Seen(), model="broadcasting", config=config)
    with pytest.raises(ConfigError, match="damaged"):
        third.start()
    third.close()
