"""What the jobs that write topics say they have written, against a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.spark.generate import TOPIC, generate
from penstock.client import Admin, Producer, TransactionProducer
from penstock.formats.record.properties import PROPERTIES_ROOM, UNKEPT
from penstock.pipeline.jobs import dead_letters, mirror, replay
from penstock.pipeline.jobs.archive import job as archive
from penstock.pipeline.jobs.framework.topics import ORIGIN
from penstock.proto.errors import ChangedBatch, ConfigError, DataLoss
from tests.support import golden
from tests.support.client.traffic import send_to_dead_letters
from tests.support.cluster.cluster import Cluster, cluster
from tests.support.spark.topics import count, make
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("brokers"), shards=1, replicas=1) as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Forty messages of four queues."""
    folder = tmp_path_factory.mktemp("lake")
    generate(folder / "store", records=40, body_bytes=50, queues=4, segment_bytes=65_536)
    archive.run(spark, archive.Config(store=(str(folder / "store"),), lake=str(folder / "lake"), tail=True))
    return str(folder / "lake")


def test_a_repeated_replay_says_that_it_wrote_nothing(spark: Any, brokers: Cluster, lake: str) -> None:
    make(brokers, "again")
    given = {"lake": lake, "namesrv": brokers.nameservers, "to_topic": "again", "topic": TOPIC}

    def told(**more: Any) -> tuple[Any, ...]:
        figures = replay.run(spark, replay.Config(**given, **more)).figures
        return figures["selected"], figures.get("written"), figures.get("note", "")

    once = {"producer_id": "once", "queue": 1}
    assert told(**once) == (10, 10, "")
    assert told(**once) == (10, 0, "the producer id 'once' was used before: everything had been written")
    assert count(spark, brokers, "again") == 10
    with pytest.raises(ChangedBatch, match="once"):
        told(producer_id="once", queue=2)
    assert told(queue=2) == (10, 10, "")
    assert told(queue=3, producer_id="many", guarantee="idempotent") == (10, 10, "")
    selected, written, note = told(queue=3, producer_id="many", guarantee="idempotent")
    assert (selected, written) == (10, None)
    assert note.startswith("the producer id 'many' was used before")
    assert count(spark, brokers, "again") == 30
    with pytest.raises(ConfigError, match="replay: start is 'yesterday'"):
        told(start="yesterday")


def test_a_repeated_re_drive_says_that_it_wrote_nothing(spark: Any, brokers: Cluster) -> None:
    make(brokers, "target")
    send_to_dead_letters(brokers.nameservers, "group", {"origin": 10})
    config = dead_letters.Config(
        namesrv=brokers.nameservers, group="group", redrive_to="target", producer_id="re-drive"
    )
    figures = dead_letters.run(spark, config).figures
    assert figures == {"groups": 1, "messages": 10, "selected": 10, "redriven": 10}
    figures = dead_letters.run(spark, config).figures
    assert (figures["selected"], figures["redriven"]) == (10, 0)
    assert figures["note"] == "the producer id 're-drive' was used before: everything had been written"
    send_to_dead_letters(brokers.nameservers, "group", {"another": 1})  # it has grown
    with pytest.raises(ChangedBatch, match="re-drive"):
        dead_letters.run(spark, config)
    assert count(spark, brokers, "target") == 10


def test_a_mirror_counts_more_batches_than_spark_remembers(spark: Any, brokers: Cluster, tmp_path: Path) -> None:
    make(brokers, "from", bodies=60)
    make(brokers, "to")
    config = mirror.Config(
        namesrv=brokers.nameservers,
        topic="from",
        to_namesrv=brokers.nameservers,
        to_topic="to",
        checkpoint=str(tmp_path / "checkpoint"),
        batch=10,
        group="mirror",
    )
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 2)
    try:
        report = mirror.run(spark, config)
    finally:
        spark.conf.unset("spark.sql.streaming.numRecentProgressUpdates")
    assert (report.figures["messages"], report.figures["batches"]) == (60, 6)
    assert report.tables[0].rows == [["from", "broker-a", 0, 60, 0]]
    assert len(report.plots[0].x) == 6
    assert count(spark, brokers, "to") == 60
    assert mirror.run(spark, config).figures == {"messages": 0, "batches": 0}


def test_a_mirror_whose_topic_was_made_anew_goes_on_as_its_error_says(
    spark: Any, brokers: Cluster, tmp_path: Path
) -> None:
    make(brokers, "made-anew", bodies=5)
    make(brokers, "both-lives")
    given: dict[str, Any] = {"namesrv": brokers.nameservers, "to_namesrv": brokers.nameservers, "topic": "made-anew"}
    given |= {"to_topic": "both-lives", "checkpoint": str(tmp_path / "checkpoint")}
    assert mirror.run(spark, mirror.Config(**given)).figures["messages"] == 5
    with Admin(brokers.nameservers) as admin:
        admin.delete_topic("made-anew")
    make(brokers, "made-anew", bodies=9)
    with pytest.raises(DataLoss, match="failOnDataLoss=false"):
        mirror.run(spark, mirror.Config(**given))
    assert mirror.run(spark, mirror.Config(**given, fail_on_data_loss=False)).figures["messages"] == 9
    assert count(spark, brokers, "both-lives") == 14


def test_a_topic_is_not_mirrored_into_itself_whatever_the_nameservers_are_called(
    spark: Any, brokers: Cluster, tmp_path: Path
) -> None:
    make(brokers, "itself", bodies=1)
    for name in (brokers.nameservers, f"{brokers.nameservers};", brokers.nameservers.replace("127.0.0.1", "localhost")):
        config = mirror.Config(
            namesrv=brokers.nameservers, topic="itself", to_namesrv=name, checkpoint=str(tmp_path / "checkpoint")
        )
        with pytest.raises(ConfigError, match="topic itself would be copied into itself"):
            mirror.run(spark, config)
    assert count(spark, brokers, "itself") == 1


def test_copies_neither_wait_nor_ask_for_a_transaction_again_and_keep_sharding_keys_and_long_properties(
    spark: Any, brokers: Cluster, tmp_path: Path
) -> None:
    make(brokers, "many-kinds")
    make(brokers, "copied")
    long = "x" * (PROPERTIES_ROOM - 30)
    with Producer(brokers.nameservers) as producer, Admin(brokers.nameservers) as admin:
        producer.send("many-kinds", b"waited", properties={"DELAY": "1", "own": "yes"})
        producer.produce("many-kinds", b"keyed", sharding_key="anna")
        producer.produce("many-kinds", b"long", properties={"long": long})
        producer.flush()
        transactional = TransactionProducer(brokers.nameservers, group="g", check=lambda _: None)
        with transactional, transactional.transaction() as transaction:
            transaction.send("many-kinds", b"decided")
        wait_until(lambda: admin.topic_stats("many-kinds").messages == 4, what="those that are decided, or waited 1 s")
    config = mirror.Config(
        namesrv=brokers.nameservers,
        topic="many-kinds",
        to_namesrv=brokers.nameservers,
        to_topic="copied",
        checkpoint=str(tmp_path / "checkpoint"),
    )
    assert mirror.run(spark, config).figures["messages"] == 4
    options = {"nameServer": brokers.nameservers, "subscribe": "copied"}
    rows = spark.read.format("penstock").options(**options).load().collect()
    copied = {bytes(row.body): row.properties for row in rows}
    assert len(rows) == len(copied) == 4
    assert copied[b"waited"]["own"] == "yes"
    assert not any(copied[body].keys() & UNKEPT for body in copied)
    assert [copied[body].get("__SHARDINGKEY") for body in (b"waited", b"keyed", b"decided")] == [None, "anna", None]
    assert copied[b"long"]["long"] == long
    assert {body for body in copied if ORIGIN[1] not in copied[body]} == {b"long"}


def test_every_topic_of_rocketmqs_stores_is_replayed_and_what_cannot_be_written_is_a_dead_letter(
    spark: Any, brokers: Cluster, tmp_path: Path
) -> None:
    for dataset, refused in (("normal", 0), ("direct", 2)):
        store, lake = golden.unpack(dataset, tmp_path / dataset, only=("commitlog",)), str(tmp_path / f"lake-{dataset}")
        archive.run(spark, archive.Config(store=(str(store),), broker_name=("b",), lake=lake, tail=True, up_to="end"))
        for each in ("replayed", "refused"):
            make(brokers, f"{each}-{dataset}")
        given = {"lake": lake, "namesrv": brokers.nameservers, "to_topic": f"replayed-{dataset}"}
        config = replay.Config(**given, dead_letter_topic=f"refused-{dataset}")
        figures = replay.run(spark, config).figures
        assert count(spark, brokers, f"refused-{dataset}") == refused
        assert count(spark, brokers, f"replayed-{dataset}") == figures["selected"] - refused
        assert figures["refused"] == f"those that cannot be messages are in topic refused-{dataset}"
