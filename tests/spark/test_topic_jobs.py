"""Jobs that read and write topics, through Spark and against a real cluster."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Admin, Producer
from penstock.formats.trace import Pub, SubAfter, SubBefore, encoded
from penstock.pipeline.jobs import dead_letters, mirror, replay, trace
from penstock.pipeline.jobs.archive import job as archive
from penstock.pipeline.jobs.archive import topic as archive_topic
from penstock.pipeline.jobs.framework.topics import ORIGIN
from penstock.proto.errors import ConfigError, TopicNotFound
from tests.spark.test_topics import bodies, full, marks, read, send
from tests.support.client.traffic import send_to_dead_letters
from tests.support.cluster.cluster import Cluster


def test_a_topic_is_archived_run_by_run_and_replayed_in_order(
    spark: Any, brokers: Cluster, topic: str, tmp_path: Path
) -> None:
    lake, again = str(tmp_path / "lake"), f"{topic}-again"
    config = archive_topic.Config(namesrv=brokers.nameservers, topics=(topic,), lake=lake, archive_name=topic)
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(again, queues=1)
        admin.create_topic(f"{topic}-other", queues=1)
        assert archive_topic.run(spark, config).figures["rows"] == 0
        send(brokers, topic, [b"%d" % number for number in range(60)], lambda number: f"t{number % 2}")
        assert archive_topic.run(spark, config).figures["rows"] == 60
        admin.update_topic(topic, queues=3)
    before = marks(brokers, topic)
    send(brokers, topic, [b"%d" % number for number in range(60, 100)], lambda number: f"t{number % 2}")
    report = archive_topic.run(spark, config)
    assert report.figures["rows"] == 40
    rows = {row["physicalOffset"] + row["size"]: row["brokerName"] for row in read(spark, brokers, topic).collect()}
    ends = {broker: max(end for end, at in rows.items() if at == broker) for broker in set(rows.values())}
    reached = marks(brokers, topic)
    assert reached == report.figures["watermarks"]
    assert all(before[broker] < end <= reached[broker] for broker, end in ends.items())
    send(brokers, f"{topic}-other", [b"of another topic"])
    assert archive_topic.run(spark, config).figures["rows"] == 0
    assert sum(marks(brokers, topic).values()) > sum(reached.values())
    store = str(brokers.broker("a", 0).store)
    with pytest.raises(ConfigError, match="filled by the job archive-topic"):
        archive.run(spark, archive.Config(store=(store,), lake=lake))

    name = f"replay of {topic}"
    for written in (50, 0):  # the second time changes nothing
        wanted = replay.Config(lake=lake, namesrv=brokers.nameservers, to_topic=again, tag="t1", producer_id=name)
        figures = replay.run(spark, wanted).figures
        assert (figures["selected"], figures["written"]) == (50, written)
    found = read(spark, brokers, again).orderBy("brokerName", "queueId", "queueOffset").collect()
    assert Counter(bytes(row["body"]) for row in found) == Counter(b"%d" % number for number in range(1, 100, 2))
    last: dict[tuple[Any, ...], int] = {}
    for row in found:
        source, broker, queue, offset = row["properties"][ORIGIN[1]].split("/")
        assert source == topic
        assert row["properties"][ORIGIN[0]]
        place = row["brokerName"], row["queueId"], broker, queue
        assert last.get(place, -1) < int(offset)
        last[place] = int(offset)
    rated = replay.Config(lake=lake, namesrv=brokers.nameservers, to_topic=again, tag="t1", rate=20)
    assert replay.run(spark, rated).figures["written"] == 50
    paced = read(spark, brokers, again).collect()
    assert Counter(bytes(row["body"]) for row in paced) == Counter(dict.fromkeys({row["body"] for row in found}, 2))
    times = sorted(row["storeTimestamp"] for row in paced)
    assert (times[-1] - times[-50]).total_seconds() > 1.0
    nothing = replay.Config(lake=lake, namesrv=brokers.nameservers, to_topic=again, tag="absent")
    assert not replay.run(spark, nothing).ok


@full
def test_a_mirror_goes_on_where_it_was(spark: Any, brokers: Cluster, topic: str, tmp_path: Path) -> None:
    config = mirror.Config(
        namesrv=brokers.nameservers,
        topic=topic,
        to_namesrv=brokers.nameservers,
        to_topic=f"{topic}-copy",
        checkpoint=str(tmp_path / "checkpoint"),
    )
    with pytest.raises(TopicNotFound, match="copy does not exist"):
        mirror.run(spark, config)
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(f"{topic}-copy", queues=2)
    for first in (0, 30):
        send(brokers, topic, [b"%d" % number for number in range(first, first + 30)])
        assert mirror.run(spark, config).figures["messages"] == 30
    rows = read(spark, brokers, f"{topic}-copy").collect()
    assert Counter(bytes(row["body"]) for row in rows) == Counter(b"%d" % number for number in range(60))
    assert all(row["properties"][ORIGIN[1]].startswith(f"{topic}/") for row in rows)
    assert sorted(row["keys"][0] for row in rows) == sorted(f"key-{number}" for number in [*range(30)] * 2)


def test_dead_letters_are_counted_and_driven_again(spark: Any, brokers: Cluster, topic: str) -> None:
    config = dead_letters.Config(namesrv=brokers.nameservers)
    report = dead_letters.run(spark, config)
    assert report.ok
    assert report.figures == {"groups": 0, "messages": 0, "note": "the cluster has no topic %DLQ%…"}
    with pytest.raises(TopicNotFound, match="topic %DLQ%absent does not exist"):
        dead_letters.run(spark, dead_letters.Config(namesrv=brokers.nameservers, group="absent"))
    send_to_dead_letters(brokers.nameservers, "buyers", {f"{topic}-orders": 5, f"{topic}-returns": 5}, tag="late")
    again = dead_letters.Config(namesrv=brokers.nameservers, group="buyers", redrive_to=topic, producer_id=topic)
    assert dead_letters.run(spark, again).figures["redriven"] == 10
    report = dead_letters.run(spark, again)
    assert "used before" in report.figures.pop("note")
    assert report.figures == {"groups": 1, "messages": 10, "selected": 10, "redriven": 0}
    assert [row[:4] for row in report.tables[0].rows] == [
        ["buyers", f"{topic}-orders", "late", 5],
        ["buyers", f"{topic}-returns", "late", 5],
    ]
    assert bodies(read(spark, brokers, topic)) == Counter([b"%d" % number for number in range(5)] * 2)


def test_traces_become_sessions(spark: Any, brokers: Cluster, topic: str) -> None:
    config = trace.Config(namesrv=brokers.nameservers, trace_topic=topic)

    def context(*fields: object) -> str:
        return "\x01".join(str(field) for field in fields) + "\x02"

    def sent(number: int, cost: int, *, ok: str = "true") -> str:
        fields = (5_000 + number, "r", "makers", "orders", f"id-{number}", "", "k", "10.0.0.1:10911", 9, cost, 0, "o")
        return context("Pub", *fields, ok, "10.0.0.2")

    def received(number: int, request: str, at: int, cost: int, *, ok: str = "true") -> str:
        before = context("SubBefore", at, "r", "buyers", request, f"id-{number}", 0, "k")
        return before + context("SubAfter", request, f"id-{number}", cost, ok, "k", 0)

    ours = encoded(Pub(5_002, "r", "makers", "orders", "id-2", "", "k", "10.0.0.1:10911", 9, 5, 0, "o", True))
    taken = encoded(SubBefore(5_012, "r", "buyers", "c", "id-2", 0, "k"))
    taken += encoded(SubAfter("c", "id-2", 1, True, "k", 0, 5_013, "buyers"))
    told = [
        sent(1, 3) + ours,
        received(1, "a", 5_101, 7, ok="false") + received(1, "b", 5_400, 8),
        sent(3, 900, ok="false"),
        taken,
        "nonsense",
    ]
    with Producer(brokers.nameservers) as producer:
        for text in told:
            producer.send(topic, text.encode())
    report = trace.run(spark, config)
    assert report.figures == {
        "messages": 3,
        "deliveries": 2,
        "failed_sends": 1,
        "failed_deliveries": 0,
        "never_delivered": 1,
        "repeated_tries": 1,
    }
    assert not report.ok
    rows = {row[0]: row for row in report.tables[1].rows}
    columns = report.tables[1].columns
    assert [rows["id-1"][columns.index(name)] for name in ("deliveryMs", "tries", "consumed")] == [100, 2, True]
    assert rows["id-3"][columns.index("sent")] is False
    with pytest.raises(TopicNotFound, match="RMQ_SYS_TRACE_TOPIC does not exist"):
        trace.run(spark, trace.Config(namesrv=brokers.nameservers))
