"""The job lag against real brokers: two shards of one broker each."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow.parquet as pq

from penstock.client import Admin, Producer
from penstock.pipeline.jobs.framework.report import Report
from penstock.pipeline.jobs.lag import job as lag
from penstock.pipeline.jobs.lag import sampling
from penstock.proto.errors import ConfigError, GroupNotFound, TopicNotFound
from tests.support.cluster.cluster import Cluster, cluster
from tests.support.waiting import wait_until

SHARDS = ("broker-a", "broker-b")
GONE_S = 2.5
"""How long a sample waits for a broker that is gone, in place of twice as long; the other one answers within it."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("brokers"), shards=2, replicas=1) as made:
        made.start()
        yield made


class Watched:
    """A topic of two queues at each shard, a group that has committed in some of them, and the job's rows."""

    def __init__(self, brokers: Cluster, name: str, folder: Path) -> None:
        self.brokers, self.topic, self.group, self.folder = brokers, name, f"{name}-g", folder
        with Admin(brokers.nameservers) as admin:
            admin.create_topic(name, queues=2)
            admin.create_group(self.group)

    def send(self, count: int) -> None:
        with Producer(self.brokers.nameservers) as producer:
            for number in range(count):
                producer.produce(self.topic, b"%d" % number, sharding_key=f"{number}")
            producer.flush(60)

    def commit(self, offset: int, *queues: tuple[str, int]) -> None:
        with Admin(self.brokers.nameservers) as admin:
            admin.reset_offset(self.group, self.topic, offset=offset, queues=queues)

    def ends(self) -> dict[tuple[str, int], int]:
        with Admin(self.brokers.nameservers) as admin:
            stats = admin.topic_stats(self.topic)
        return {(queue.broker_name, queue.queue_id): queue.max_offset for queue in stats.queues}

    def config(self, **changed: Any) -> lag.Config:
        given: dict[str, Any] = {
            "namesrv": self.brokers.nameservers,
            "groups": (self.group,),
            "lake": str(self.folder / "lake"),
            "checkpoint": str(self.folder / "checkpoint"),
            "interval_s": 0.1,
        }
        return lag.Config(**given | changed)

    def run(self, **changed: Any) -> Report:
        return lag.run(None, self.config(**changed))

    def samples(self) -> list[dict[tuple[str, int], dict[str, Any]]]:
        """The rows of each sample by broker and queue; no row is there twice."""
        found: dict[Any, dict[tuple[str, int], dict[str, Any]]] = {}
        for path in (self.folder / "lake" / "lag").glob("dt=*/*.parquet"):
            for row in pq.read_table(path, partitioning=None).to_pylist():
                place = row["brokerName"], row["queueId"]
                assert place not in found.setdefault(row["interval"], {}), "a row is there twice"
                found[row["interval"]][place] = row
                assert path.parent.name == f"dt={row['interval']:%Y-%m-%d}"
        return [found[interval] for interval in sorted(found)]


@pytest.fixture
def watched(brokers: Cluster, request: pytest.FixtureRequest, tmp_path: Path) -> Watched:
    name = "".join(sign if sign.isalnum() else "-" for sign in request.node.name)[:60]
    return Watched(brokers, name, tmp_path)


def passed_ms(before: dict[str, Any], after: dict[str, Any]) -> int:
    return round((after["time"] - before["time"]).total_seconds() * 1000)


def test_rows_say_how_far_a_group_is_and_go_on_over_a_restart(watched: Watched) -> None:
    watched.send(200)
    before = watched.ends()
    assert min(before.values()) > 5
    watched.commit(5, ("broker-a", 0), ("broker-a", 1), ("broker-b", 0))
    read = "broker-a", 1
    watched.commit(before[read], read)
    report = watched.run(intervals=2)

    first, second = watched.samples()
    assert first.keys() == second.keys() == before.keys()
    expected = {place: end - 5 for place, end in before.items()} | {read: 0, ("broker-b", 1): before["broker-b", 1]}
    for place, row in first.items():
        assert (row["consumerGroup"], row["topic"]) == (watched.group, watched.topic)
        assert (row["minOffset"], row["endOffset"], row["lag"]) == (0, before[place], expected[place])
        assert row["intervalMs"] is row["producedPerSecond"] is row["consumedPerSecond"] is None
        if place == read:
            assert row["oldestUnreadTimestamp"] is row["oldestUnreadAgeMs"] is None
        else:
            assert row["oldestUnreadAgeMs"] == passed_ms({"time": row["oldestUnreadTimestamp"]}, row) > 0
    assert {place: row["committedOffset"] for place, row in first.items()} == {
        ("broker-a", 0): 5,
        read: before[read],
        ("broker-b", 0): 5,
        ("broker-b", 1): None,
    }
    with Admin(watched.brokers.nameservers) as admin:
        message = admin.message_at(watched.topic, 0, 5, broker_name="broker-b")
    assert round(first["broker-b", 0]["oldestUnreadTimestamp"].timestamp() * 1000) == message.store_timestamp_ms
    for place, row in second.items():
        assert row["intervalMs"] == passed_ms(first[place], row) > 0
        assert row["producedPerSecond"] == 0
        assert row["consumedPerSecond"] == (None if place == ("broker-b", 1) else 0)
    behind = sum(expected.values())
    assert report.figures == {"samples": 2, "rows": 8, "lag": {watched.group: behind}}
    assert report.plots[0].series == {watched.group: [behind, behind]}
    assert [row[:5] for row in report.tables[0].rows] == [
        [watched.group, watched.topic, *place, behind]
        for place, behind in sorted(expected.items(), key=lambda item: (-item[1], item[0]))
        if behind
    ]
    json.dumps(asdict(report))
    report.write(watched.folder / "page.html")
    assert watched.group in (watched.folder / "page.html").read_text()

    watched.send(300)
    watched.commit(before["broker-a", 0], ("broker-a", 0))
    report = watched.run()
    after = watched.ends()
    *_, third = watched.samples()
    assert report.figures["samples"] == 1
    assert watched.samples()[:2] == [first, second]
    for place, row in third.items():
        assert row["intervalMs"] == passed_ms(second[place], row), "the job was stopped meanwhile, and that counts"
        assert row["producedPerSecond"] == 1000 * (after[place] - before[place]) / row["intervalMs"] > 0
    consumed = third["broker-a", 0]
    assert consumed["consumedPerSecond"] == 1000 * (before["broker-a", 0] - 5) / consumed["intervalMs"] > 0
    assert consumed["lag"] == after["broker-a", 0] - before["broker-a", 0]


@pytest.mark.parametrize("is_written", [False, True], ids=["before-its-file", "behind-its-file"])
def test_a_job_that_was_killed_over_a_sample_has_no_row_twice(watched: Watched, is_written: bool) -> None:
    watched.send(100)
    watched.commit(0, ("broker-a", 0))
    watched.run()
    checkpoint = watched.folder / "checkpoint" / "penstock-lag.json"
    killed = checkpoint.read_text()
    watched.run()  # its sample was planned, and what came behind that is taken back
    document = json.loads(checkpoint.read_text())
    checkpoint.write_text(json.dumps(json.loads(killed) | {"planned": document["planned"], "last": document["last"]}))
    if not is_written:
        (watched.folder / "lake" / document["planned"]).unlink()
    watched.commit(1, ("broker-a", 0))
    watched.run()
    first, *torn, last = watched.samples()
    assert len(torn) == is_written
    place = "broker-a", 0
    before = [first, *torn][-1][place]
    assert last[place]["intervalMs"] == passed_ms(before, last[place])
    assert last[place]["consumedPerSecond"] == 1000 / last[place]["intervalMs"]


def test_rows_that_somebody_deleted_cost_the_next_rates_alone(watched: Watched) -> None:
    watched.send(100)
    watched.commit(0, ("broker-a", 0))
    watched.run()
    shutil.rmtree(watched.folder / "lake")
    assert watched.run().ok
    (only,) = watched.samples()
    assert {row["intervalMs"] for row in only.values()} == {None}


def test_two_jobs_write_to_one_lake(watched: Watched) -> None:
    watched.send(100)
    watched.commit(0, ("broker-a", 0))
    watched.run()
    watched.run(checkpoint=str(watched.folder / "other"), topics=(watched.topic,))
    first, second = watched.samples()
    assert first.keys() == second.keys()
    assert {row["intervalMs"] for row in second.values()} == {None}


def test_what_does_not_exist_is_refused_before_anything_starts(watched: Watched) -> None:
    with pytest.raises(GroupNotFound, match=f"group '{watched.group}x' does not exist"):
        watched.run(groups=(watched.group, f"{watched.group}x"))
    with pytest.raises(TopicNotFound, match="topic absent does not exist"):
        watched.run(topics=(watched.topic, "absent"))
    with pytest.raises(ConfigError, match="follow has no end"):
        watched.run(intervals=1, follow=True)
    assert list(watched.folder.iterdir()) == []
    report = watched.run()  # there is nothing to watch yet, which is told
    assert [problem["problem"].partition(":")[0] for problem in report.problems] == ["nothing was seen"]


def test_a_broker_that_is_gone_costs_its_own_queues_alone(
    brokers: Cluster, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.send(100)
    watched.commit(0, ("broker-a", 0))
    watched.run()
    brokers.broker("b", 0).kill()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(sampling, "TIMEOUT_S", GONE_S)
            watched.run()
    finally:
        brokers.broker("b", 0).restart()
    watched.ends()
    watched.run()
    first, without, last = watched.samples()
    assert {broker for broker, _ in without} == {"broker-a"}
    assert first.keys() == last.keys()
    for place, row in last.items():
        assert row["intervalMs"] == passed_ms(without.get(place, first[place]), row)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_job_that_follows_goes_on_until_a_signal_ends_it(watched: Watched, number: signal.Signals) -> None:
    watched.send(100)
    watched.commit(0, ("broker-a", 0))

    def end() -> None:
        try:
            wait_until(lambda: len(watched.samples()) >= 3, 60, "three samples")
        finally:
            os.kill(os.getpid(), number)

    former = signal.getsignal(number)
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(end)
        report = watched.run(follow=True)
        ending.result()
    assert signal.getsignal(number) is former
    assert report.ok
    assert report.figures["samples"] == len(watched.samples()) >= 3
    assert len(report.plots[0].series[watched.group]) == report.figures["samples"]
