"""What the jobs over topics say of names that nobody has, of brokers that are gone, and at their end by a signal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.bench.spark.generate import generate
from penstock.client import Admin
from penstock.pipeline.jobs import dead_letters, mirror, query, replay, trace
from penstock.pipeline.jobs.archive import job as archive
from penstock.pipeline.jobs.lag import job as lag
from penstock.pipeline.jobs.lag import sampling
from penstock.pipeline.jobs.lag.columns import LAG_COLUMNS
from penstock.proto.errors import ConfigError
from tests.cluster.spark.test_lag import GONE_S
from tests.support.cluster.cluster import Cluster, cluster
from tests.support.spark.topics import count, make
from tests.support.waiting import wait_until

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("brokers"), shards=2, replicas=1) as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Forty messages of four queues."""
    folder = tmp_path_factory.mktemp("generated") / "store"
    generate(folder, records=40, body_bytes=50, queues=4, segment_bytes=65_536)
    return str(folder)


def pub(message: str, *behind: str) -> str:
    fields = ("Pub", "1000", "region", "producers", "orders", message, "", "", "host:1", "5", "7", "0", *behind)
    return "\x01".join(fields) + "\x02"


@pytest.fixture
def traces(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = [
        pub("old-ok", "true"),
        pub("old-failed", "false"),
        pub("ok", "offset-id", "true"),
        pub("failed", "offset-id", "false"),
        pub("new-failed", "offset-id", "false", "client"),
    ]
    frame = spark.createDataFrame(pa.table({"body": [context.encode() for context in contexts]}))
    monkeypatch.setattr(trace, "_read", lambda *_: frame)


@pytest.mark.usefixtures("traces")
def test_a_trace_says_by_its_number_of_fields_whether_a_send_succeeded(spark: Any) -> None:
    report = trace.run(spark, trace.Config(namesrv="unused:1"))
    (table,) = (each for each in report.tables if each.title.startswith("Sessions"))
    assert {row[0]: row[3] for row in table.rows} == {
        "old-ok": True,
        "old-failed": False,
        "ok": True,
        "failed": False,
        "new-failed": False,
    }
    assert report.figures["failed_sends"] == 3


@pytest.mark.usefixtures("traces")
@pytest.mark.parametrize("named", [{"message_id": "NOPE"}, {"topic": "NOPE"}])
def test_a_trace_of_what_nobody_sent_is_a_problem(spark: Any, named: dict[str, str]) -> None:
    report = trace.run(spark, trace.Config(namesrv="unused:1", **named))
    assert not report.ok
    assert "'NOPE'" in report.problems[0]["problem"]
    assert trace.run(spark, trace.Config(namesrv="unused:1", message_id="ok")).ok


def test_stores_without_dead_letters_are_told(spark: Any, store: str) -> None:
    figures = dead_letters.run(spark, dead_letters.Config(store=(store,))).figures
    assert (figures["messages"], figures["note"]) == (0, "the stores have no message of %DLQ%…")


def test_a_replay_leaves_the_brokers_own_topics_out_unless_one_is_named(
    spark: Any, brokers: Cluster, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import functions as f

    make(brokers, "replayed")
    lake = str(tmp_path / "lake")
    archive.run(spark, archive.Config(store=(store,), lake=lake, tail=True))
    find = query.find

    def found(spark: Any, config: query.Config, report: Any) -> Any:
        all_of_it = query.Config(lake=config.lake)
        half = f.when(f.col("queueId") == 0, f.lit(HALF)).otherwise(f.col("topic"))
        rows = find(spark, all_of_it, report).withColumn("topic", half)
        return rows if config.topic is None else rows.where(f.col("topic") == config.topic)

    monkeypatch.setattr(query, "find", found)
    given = {"lake": lake, "namesrv": brokers.nameservers, "to_topic": "replayed"}
    figures = replay.run(spark, replay.Config(**given)).figures
    assert (figures["selected"], count(spark, brokers, "replayed")) == (30, 30)
    assert HALF in str(figures)
    figures = replay.run(spark, replay.Config(**given, topic=HALF)).figures
    assert (figures["selected"], count(spark, brokers, "replayed")) == (10, 40)


def test_a_checkpoint_is_of_one_source_target_and_job(spark: Any, brokers: Cluster, tmp_path: Path) -> None:
    make(brokers, "t", bodies=20)
    for name in "xy":
        make(brokers, name)
    with Admin(brokers.nameservers) as admin:
        admin.create_group("readers")
    checkpoint = str(tmp_path / "checkpoint")

    def mirrored(target: str) -> int:
        config = mirror.Config(
            namesrv=brokers.nameservers,
            topic="t",
            to_namesrv=brokers.nameservers,
            to_topic=target,
            checkpoint=checkpoint,
        )
        return int(mirror.run(spark, config).figures["messages"])

    assert (mirrored("x"), mirrored("x")) == (20, 0)
    with pytest.raises(ConfigError, match=r"checkpoint .*'x', not 'y'"):
        mirrored("y")
    config = lag.Config(
        namesrv=brokers.nameservers, groups=("readers",), lake=str(tmp_path / "lake"), checkpoint=checkpoint
    )
    with pytest.raises(ConfigError, match=r"checkpoint .*'mirror', not 'lag'"):
        lag.run(None, config)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_mirror_that_follows_reports_when_a_signal_ends_it(
    spark: Any, brokers: Cluster, tmp_path: Path, number: signal.Signals
) -> None:
    source, target = f"{number.name}-from", f"{number.name}-to"
    make(brokers, source, bodies=20)
    make(brokers, target)

    def end() -> None:
        with Admin(brokers.nameservers) as admin:
            wait_until(
                lambda: sum(queue.max_offset for queue in admin.topic_stats(target).queues) == 20, 120, "20 messages"
            )
        os.kill(os.getpid(), number)

    ending = threading.Thread(target=end)
    ending.start()
    config = mirror.Config(
        namesrv=brokers.nameservers,
        topic=source,
        to_namesrv=brokers.nameservers,
        to_topic=target,
        checkpoint=str(tmp_path / "checkpoint"),
        follow=True,
    )
    former = signal.getsignal(number)
    report = mirror.run(spark, config)
    ending.join()
    assert report.ok
    assert signal.getsignal(number) is former
    assert count(spark, brokers, target) == 20


def test_a_broker_that_is_gone_is_told_for_as_long_as_it_is(
    spark: Any, brokers: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(brokers, "watched", bodies=100)
    with Admin(brokers.nameservers) as admin:
        admin.create_group("watchers")
        admin.reset_offset("watchers", "watched", offset=0, queues=[("broker-a", 0)])
    config = lag.Config(
        namesrv=brokers.nameservers,
        groups=("watchers",),
        lake=str(tmp_path / "lake"),
        checkpoint=str(tmp_path / "checkpoint"),
    )
    assert lag.run(None, config).figures["lag"] == {"watchers": 100}
    rows = spark.read.parquet(str(tmp_path / "lake" / "lag"))
    assert rows.where("lag > 0").groupBy("dt").sum("lag").first()[1] == 100
    assert {name: of for name, of in rows.dtypes if name != "dt"} == LAG_COLUMNS
    brokers.broker("b", 0).kill()
    monkeypatch.setattr(sampling, "TIMEOUT_S", GONE_S)
    try:
        told = [lag.run(None, config)]
        # As when the nameservers have forgotten it.
        monkeypatch.setattr(sampling, "require_groups", lambda *_: [])
        monkeypatch.setattr(sampling, "places", lambda _, topics: {topic: {"broker-a"} for topic in topics})
        told += [lag.run(None, config), lag.run(None, config)]
    finally:
        brokers.broker("b", 0).restart()
    for report in told:
        assert not report.ok
        assert "broker-b" in report.problems[0]["problem"]
        assert report.figures["lag"] == {"watchers": None}
        assert report.plots[0].series == {"watchers": [None]}
