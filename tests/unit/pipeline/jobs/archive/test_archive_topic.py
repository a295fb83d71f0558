"""What the job that archives topics takes, from a broker without sockets, its tasks run here, without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock.broker.core.tables.topics import CREATED_MS, Topic
from penstock.broker.features.archive.archive import Archive
from penstock.formats.epochs import Epoch
from penstock.formats.record.layout import SysFlag
from penstock.pipeline.jobs.archive import topic as archive_topic
from penstock.pipeline.jobs.framework.report import Report
from penstock.pipeline.lake import entries as entries_of
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.topics.cluster import Cluster
from penstock.proto.errors import DataLoss, StorageError
from penstock.proto.wire.broker_pb2 import FetchHeader
from penstock.proto.wire.nameserver_pb2 import QueueData, ShardView, TopicRoute
from penstock.replication import EpochHistory
from tests.support.broker.kit import Kit, WithKits
from tests.unit.pipeline.jobs.archive.test_archive import lose, problems
from tests.unit.pipeline.topics.test_topic_reading import Call

pytestmark = pytest.mark.usefixtures("here")

BROKER = "broker-a"


class Shard(WithKits):
    """A broker group of one broker, as pipelines see it.

    ``before_fetch`` runs before each fetch. What is below ``minimum`` is deleted, the broker says.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kit: Kit = self._run(Kit)
        self.calls = self.connections = self.directory = self
        self.before_fetch: Callable[[], None] = lambda: None
        self.minimum = 0

    def create(self, topic: str, *, queues: int = 1, created_ms: int = 1) -> None:
        """Create or change a topic."""
        self._run(lambda: self.kit.put_topic(Topic(topic, queues, queues, 6, extra={CREATED_MS: created_ms})))
        self._run(self.kit.dispatch)

    def delete(self, topic: str) -> None:
        self._run(lambda: self.kit.delete_topic(topic))
        self._run(self.kit.dispatch)

    def send(self, topic: str, *bodies: str, queue_id: int = 0, **settings: Any) -> None:
        encoded = [body.encode() for body in bodies]
        self._await(self.kit.append(encoded, topic=topic, queue_id=queue_id, **settings))
        self._run(self.kit.dispatch)

    def mark(self, name: str) -> int:
        """Up to where an archive has the log, as the broker was told."""
        return next(mark.offset for mark in self.kit[Archive]._table.values() if mark.name == name)

    # What a process asks its cluster.

    def route(self, topic: str) -> TopicRoute:
        found = self.kit.tables.topics.get(topic)
        queues = [QueueData(broker_name=BROKER, read_queues=found.read_queues, perm=6)] if found is not None else []
        shards = [ShardView(broker_name=BROKER)]
        return TopicRoute(topic=topic, exists=found is not None, queues=queues, shards=shards)

    def address(self, broker: str, *, reading: bool = False, fresh: bool = False) -> str:
        return "master:1"

    def at_reader(self, broker: str, method: str, request: Any, timeout_s: float, service: Any) -> Any:
        services = {"QueryTopic": "_query_topic", "ListArchiveWatermarks": "_list_watermarks"}
        answer = self._await(getattr(self.kit[Archive], services[method])(request))
        for each in answer.queues if method == "QueryTopic" else ():
            each.min_offset = max(each.min_offset, self.minimum)
        return answer

    def at_master(self, broker: str, method: str, request: Any, timeout_s: float, service: Any) -> Any:
        assert method == "SetArchiveWatermark"
        return self._await(self.kit[Archive]._set_watermark(request))

    def fetch(self, address: str, header: FetchHeader, timeout_s: float) -> Call:
        def answer() -> Any:
            self.before_fetch()
            return self._await(self.kit.fetched_bytes(header))

        return Call(answer)


@pytest.fixture
def shard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shard]:
    made = Shard()
    view = Cluster("127.0.0.1:1")
    view.calls.close()
    view.calls = made  # type: ignore[assignment]
    for module in ("topics.cluster", "jobs.archive.marks"):
        monkeypatch.setattr(f"penstock.pipeline.{module}.cluster", lambda *_: view)
    yield made
    made.close()


def run(lake: Lake, *topics: str, **options: Any) -> Report:
    config = archive_topic.Config(namesrv="127.0.0.1:1", topics=topics, lake=lake.root, archive_name="lake", **options)
    return archive_topic.run(None, config)


def bodies(lake: Lake) -> Counter[str]:
    """What is in the lake."""
    names = [f"{lake.path}/messages/{file.name}" for one in Lake(lake.root).readable() for file in one.files]
    return Counter(body.decode() for name in names for body in pq.read_table(name)["body"].to_pylist())


def test_the_mark_does_not_pass_messages_that_came_while_others_were_read(shard: Shard, lake: Lake) -> None:
    for topic in ("x", "y"):
        shard.create(topic)
        shard.send(topic, f"{topic}0")

    def more() -> None:
        shard.before_fetch = lambda: None
        shard.send("y", "y1")
        shard.send("x", "x1")

    shard.before_fetch = more
    before = shard.kit.store.end_offset
    report = run(lake, "x", "y")
    assert (report.ok, report.figures["rows"]) == (True, 2)
    assert shard.mark("lake") == report.figures["watermarks"][BROKER] == before
    assert run(lake, "x", "y").figures["rows"] == 2
    assert bodies(lake) == Counter(["x0", "x1", "y0", "y1"])


def test_a_second_run_over_the_same_topics_is_told_of_the_first(shard: Shard, lake: Lake) -> None:
    shard.create("x")
    shard.send("x", "x0")

    def another() -> None:
        shard.before_fetch = lambda: None
        assert run(lake, "x").figures["rows"] == 1

    shard.before_fetch = another
    with pytest.raises(StorageError, match=r"lake: another job has archived these topics .* run it again"):
        run(lake, "x")
    assert bodies(lake) == Counter(["x0"])
    assert len(list(Path(lake.path).rglob("*.parquet"))) == 1


def test_a_topic_that_was_made_anew_is_archived_from_its_first_message_on(shard: Shard, lake: Lake) -> None:
    for topic in ("x", "y"):
        shard.create(topic)
        shard.send(topic, *(f"{topic}{number}" for number in range(10)))
    assert run(lake, "x", "y").figures["rows"] == 20
    for life, count in ((2, 5), (3, 25)):  # fewer than before, so that others' new ones would be outweighed; and more
        shard.delete("y")
        shard.create("y", created_ms=life)
        shard.send("y", *(f"y{life}-{number}" for number in range(count)))
        shard.send("x", *(f"x{life}-{number}" for number in range(5)))
        assert run(lake, "x", "y").figures["rows"] == count + 5
        shard.send("y", f"y{life}-last")
        assert run(lake, "x", "y").figures["rows"] == 1
    found = bodies(lake)
    assert found.total() == len(found) == 20 + (5 + 5 + 1) + (25 + 5 + 1)
    assert lake.entries()[-1].created == (("y", 3),)


def test_a_lake_that_does_not_say_when_its_topics_were_created_is_gone_on_with(
    shard: Shard, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.create("x")
    shard.send("x", *(f"x{number}" for number in range(10)))

    def to_document(entries: Any) -> Any:
        document = entries_of.to_document(entries)
        for each in document["logFiles"]:
            del each["created"]
        return document

    with monkeypatch.context() as older:
        older.setattr("penstock.pipeline.lake.lake.to_document", to_document)
        run(lake, "x")
    assert lake.entries()[0].created is None
    shard.send("x", "x10")
    assert run(lake, "x").figures["rows"] == 1
    assert bodies(lake) == Counter(f"x{number}" for number in range(11))
    assert [one.created for one in lake.entries()] == [None, (("x", 1),)]
    with monkeypatch.context() as older:
        older.setattr("penstock.pipeline.lake.lake.to_document", to_document)
        shard.create("y")
        shard.send("y", "y0", "y1")
        run(lake, "y")
    shard.delete("y")
    shard.create("y", created_ms=lake.entries()[-1].archivedAt + 1)
    shard.send("y", "new0", "new1", "new2")
    assert run(lake, "y").figures["rows"] == 3


def test_a_queue_that_ends_before_what_the_lake_has_of_it_is_told(
    shard: Shard, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard.create("x", created_ms=0)  # as topics of RocketMQ's, which do not say when they were created
    shard.send("x", "x0", "x1")
    run(lake, "x")
    shard.delete("x")
    shard.create("x", created_ms=0)
    shard.send("x", "new")
    before = shard.mark("lake")
    told = r"messages of queue x/broker-a/0 up to 2, and the queue ends at 1: .* made anew .*: bring back an older"
    with pytest.raises(StorageError, match=told):
        run(lake, "x")
    assert shard.mark("lake") == before


def test_queues_that_a_topic_got_rid_of_before_they_were_archived_are_told(shard: Shard, lake: Lake) -> None:
    """Their messages are there, nobody can read them, and the mark would let retention delete them."""
    shard.create("x", queues=3)
    for queue_id in range(3):
        shard.send("x", f"{queue_id}-0", f"{queue_id}-1", queue_id=queue_id)
    run(lake, "x")
    shard.create("x", queues=2)  # all of it is archived
    assert run(lake, "x").figures["rows"] == 0
    shard.create("x", queues=3)
    shard.send("x", "2-2", queue_id=2)
    shard.create("x", queues=1)
    shard.send("x", "0-2")
    before = shard.mark("lake")
    told = r"queue x/broker-a/2: nobody can read its messages 2\.\.3, .* give it 3 again .* --read-queues 3\) until"
    with pytest.raises(DataLoss, match=told):
        run(lake, "x")
    assert shard.mark("lake") == before
    shard.create("x", queues=3)
    assert run(lake, "x").figures["rows"] == 2
    shard.create("x")
    assert run(lake, "x").figures["rows"] == 0


def test_what_a_lake_has_lost_is_archived_again_and_nothing_of_it_twice(
    shard: Shard, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that has lost a file, others may be left: of other days, or tasks."""
    monkeypatch.setattr(archive_topic, "plan", lambda wanted, _: [[each] for each in wanted])  # a file for each queue
    for topic in ("x", "y"):
        shard.create(topic, queues=2)
    for number in range(5):
        for topic in ("x", "y"):
            for queue_id in range(2):
                shard.send(topic, f"{topic}{queue_id}{number}a", f"{topic}{queue_id}{number}b", queue_id=queue_id)
        assert run(lake, "x", "y").figures["rows"] == 8
    everything = bodies(lake)
    runs = lake.entries()
    lose(lake, runs[1])
    lose(lake, runs[3])
    assert run(lake, "x").figures["rows"] == 8  # what is lost of the other topic stays so
    assert (len(bodies(lake)), bodies(lake).total()) == (32, 32)
    report = run(lake, "x", "y")
    assert (report.ok, report.figures["rows"], len(report.plots[0].x)) == (True, 8, 2)
    assert bodies(lake) == everything
    lose(lake, replace(runs[0], files=runs[0].files[:1]))
    lose(lake, replace(runs[4], files=runs[4].files[1:]))
    assert len(bodies(lake)) == 32
    shard.send("x", "more")
    assert run(lake, "x", "y").figures["rows"] == 2 + 6 + 1
    assert bodies(lake) == everything + Counter(["more"])
    assert run(lake, "x", "y").figures["rows"] == 0


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_run_that_lost_a_file_still_says_of_which_epoch_it_is(
    shard: Shard, lake: Lake, monkeypatch: pytest.MonkeyPatch, is_cut: bool
) -> None:
    """So a failover behind it that has cut off messages is seen, and one that has not is no trouble."""
    monkeypatch.setattr(archive_topic, "plan", lambda wanted, _: [[each] for each in wanted])  # a file for each queue
    role = shard.kit.core.role
    shard.create("x", queues=2)
    for queue_id in range(2):
        shard.send("x", f"{queue_id}a", f"{queue_id}b", queue_id=queue_id)
    assert run(lake, "x").ok
    role.history, role.epoch = EpochHistory([Epoch(1, 0), Epoch(2, shard.kit.store.end_offset)]), 2  # type: ignore[misc]
    for queue_id in range(2):
        shard.send("x", f"{queue_id}c", queue_id=queue_id)
    assert run(lake, "x").ok
    newest = lake.entries()[-1]
    lose(lake, replace(newest, files=newest.files[1:]))
    if is_cut:
        monkeypatch.setattr(type(shard.kit.core), "cut_of", lambda _, epoch, *__: 2 if epoch == 2 else None)
        with pytest.raises(StorageError, match="a failover has cut the log at 2"):
            run(lake, "x")
    else:
        assert run(lake, "x").figures["rows"] == 1
        assert len(bodies(lake)) == 6


def test_messages_that_were_deleted_before_they_were_archived_are_told_once(shard: Shard, lake: Lake) -> None:
    shard.create("x")
    shard.send("x", "x0", "x1")
    run(lake, "x")
    shard.send("x", "x2", "x3", "x4")
    shard.minimum = 3
    report = run(lake, "x")
    assert problems(report) == ["queue x/broker-a/0: the messages 2..3 were deleted before they were archived"]
    assert bodies(lake) == Counter(["x0", "x1", "x3", "x4"])
    assert (problems(run(lake, "x")), len(bodies(lake))) == ([], 4)
    lose(lake, lake.entries()[0])  # as days that are dropped: nobody has them any more
    assert (problems(run(lake, "x")), len(bodies(lake))) == ([], 2)


def test_a_body_that_cannot_be_decompressed_is_kept_as_it_is_stored_and_counted(shard: Shard, lake: Lake) -> None:
    shard.create("x")
    shard.send("x", "x0", "x1")
    shard.send("x", "no zlib", sys_flag=SysFlag.COMPRESSED)
    report = run(lake, "x")
    assert (report.ok, report.figures["rows"], report.figures["damages"]) == (True, 3, 1)
    assert bodies(lake) == Counter(["x0", "x1", "no zlib"])
    assert [one.damages for one in lake.entries()] == [1]
