"""SIGKILL of a writing job in every phase of a batch, and of the broker that publishes it: every row is there once.

At least once, where no more is promised.

``SINK_KILLS=n`` (``make test-spark-full`` sets it) adds the other phases and guarantee, the broker, and n kills at
random moments per guarantee.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client import Admin, PullConsumer
from tests.support.cluster.cluster import BrokerNode, Cluster, cluster
from tests.support.cluster.nursery import start_from_nursery
from tests.support.waiting import wait_until

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from tests.support.spark import sink_job
from tests.support.spark.sink_job import PHASES, rows_of

KILLS = int(os.environ.get("SINK_KILLS", "0"))
full_only = pytest.mark.skipif(not KILLS, reason="SINK_KILLS is not set: make test-spark-full sets it")
SHORT = ("written", "after-OpenWriter", "before-Decide", "after-Decide", "after-Publish")
"""What `make test` tries of the phases."""
WRITING = ("in-writing", "written", "after-OpenWriter", "committed")


@pytest.fixture(scope="module", autouse=True)
def _forked_jobs() -> Iterator[None]:
    with start_from_nursery(sink_job):
        yield


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("brokers"), shards=2, replicas=1, flushDiskType="SYNC_FLUSH") as made:
        made.start()
        yield made


def job(
    directory: Path, brokers: Cluster, topic: str, guarantee: str, batches: int, phase: str
) -> subprocess.Popen[str]:
    return sink_job.started(directory, brokers.nameservers, topic, guarantee, str(batches), phase)


def received(brokers: Cluster, topic: str, count: int) -> Counter[bytes]:
    """Everything in the topic, and a moment longer for what should not be there."""
    found: Counter[bytes] = Counter()
    with PullConsumer(brokers.nameservers, group=f"check-{topic}", consume_from="first") as consumer:
        consumer.subscribe(topic)

        def all_there() -> bool | None:
            found.update(bytes(message.body) for message in consumer.poll(timeout_s=0.5, max_messages=10_000))
            return len(found) >= count or None  # no two rows are alike

        wait_until(all_there, 60, f"{count} messages of {topic}")
        found.update(bytes(message.body) for message in consumer.poll(timeout_s=0.5, max_messages=10_000))
    return found


def wanted(batches: int) -> Counter[bytes]:
    return Counter(row for batch in range(batches) for row in rows_of(batch))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("guarantee", ["exactly-once", pytest.param("idempotent", marks=full_only)])
def test_a_job_killed_in_each_phase_leaves_every_row_once(brokers: Cluster, tmp_path: Path, guarantee: str) -> None:
    topic = f"phases-{guarantee}"
    phases = WRITING if guarantee == "idempotent" else PHASES if KILLS else SHORT
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(topic, queues=3)
    for number, phase in enumerate(phases):
        with job(tmp_path, brokers, topic, guarantee, number // 3 + 1, phase) as killed:
            assert killed.wait(120) == -signal.SIGKILL, f"the job did not come to {phase}"
    batches = (len(phases) - 1) // 3 + 1
    with job(tmp_path, brokers, topic, guarantee, batches + 1, "none") as last:
        assert last.wait(120) == 0
    assert received(brokers, topic, wanted(batches + 1).total()) == wanted(batches + 1)


@full_only
@pytest.mark.timeout(600)
def test_a_broker_killed_between_decision_and_publication_publishes_once(brokers: Cluster, tmp_path: Path) -> None:
    topic = "broker-killed"
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(topic, queues=3)
    for number, phase in enumerate(("after-Decide", "after-Publish")):
        with job(tmp_path, brokers, topic, "exactly-once", number + 1, phase) as killed:
            assert killed.wait(120) == -signal.SIGKILL
        for shard in "ab":
            broker = brokers.broker(shard, 0)
            broker.kill()
            broker.restart()
        with job(tmp_path, brokers, topic, "exactly-once", number + 1, "none") as again:
            assert again.wait(120) == 0
    assert received(brokers, topic, wanted(2).total()) == wanted(2)


@full_only
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("guarantee", ["exactly-once", "idempotent", "at-least-once"])
def test_random_kills_of_job_and_brokers(brokers: Cluster, tmp_path: Path, guarantee: str) -> None:
    seed = int(os.environ.get("SINK_SEED", str(random.SystemRandom().randrange(1 << 32))))
    print(f"SINK_SEED={seed}")
    randomly = random.Random(seed)
    topic, batches, kills = f"random-{guarantee}", 1_000_000, 0
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(topic, queues=3)
    while kills < KILLS:
        with job(tmp_path, brokers, topic, guarantee, batches, "none") as running:
            assert running.stdout is not None
            running.stdout.readline()
            time.sleep(randomly.random() * 0.5)
            if randomly.random() < 0.25:
                restarting = threading.Thread(target=kill_and_restart, args=(brokers.broker(randomly.choice("ab"), 0),))
                restarting.start()
                time.sleep(randomly.random())
                running.kill()
                restarting.join()
            running.kill()
            kills += 1
    done = int((tmp_path / f"{topic}.committed").read_text()) + 2
    with job(tmp_path, brokers, topic, guarantee, done, "none") as last:
        assert last.wait(120) == 0
    found = received(brokers, topic, wanted(done).total())
    if guarantee == "at-least-once":
        assert found.keys() == wanted(done).keys()
    else:
        assert found == wanted(done)


def kill_and_restart(broker: BrokerNode) -> None:
    broker.kill()
    broker.restart()
