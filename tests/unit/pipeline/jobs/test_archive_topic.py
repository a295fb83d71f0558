"""What the job that archives topics takes, from a broker without sockets, its tasks run here, without Spark."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock.broker.core.tables.topics import CREATED_MS, Topic
from penstock.broker.features.archive.archive import Archive
from penstock.pipeline.jobs.archive import topic as archive_topic
from penstock.pipeline.jobs.framework.report import Report
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.topics.cluster import Cluster
from penstock.proto.errors import StorageError
from penstock.proto.wire.broker_pb2 import FetchHeader
from penstock.proto.wire.nameserver_pb2 import QueueData, ShardView, TopicRoute
from tests.support.broker.kit import Kit, close_all
from tests.unit.pipeline.topics.test_topic_reading import Call

pytestmark = pytest.mark.usefixtures("here")

BROKER = "broker-a"


class Shard:
    """A broker group of one broker, as pipelines see it. ``before_fetch`` runs before each fetch."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.kit: Kit = self._run(Kit)
        self.calls = self.connections = self.directory = self
        self.before_fetch: Callable[[], None] = lambda: None

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
        found = self.kit.tables.topic(topic)
        queues = [QueueData(broker_name=BROKER, read_queues=found.read_queues, perm=6)] if found is not None else []
        shards = [ShardView(broker_name=BROKER)]
        return TopicRoute(topic=topic, exists=found is not None, queues=queues, shards=shards)

    def address(self, broker: str, *, reading: bool = False, fresh: bool = False) -> str:
        return "master:1"

    def at_reader(self, broker: str, method: str, request: Any, timeout_s: float, service: Any) -> Any:
        services = {"QueryTopic": "_query_topic", "ListArchiveWatermarks": "_list_watermarks"}
        return self._await(getattr(self.kit[Archive], services[method])(request))

    def at_master(self, broker: str, method: str, request: Any, timeout_s: float, service: Any) -> Any:
        assert method == "SetArchiveWatermark"
        return self._await(self.kit[Archive]._set_watermark(request))

    def fetch(self, address: str, header: FetchHeader, timeout_s: float) -> Call:
        def answer() -> Any:
            self.before_fetch()
            return self._await(self.kit.fetched_bytes(header))

        return Call(answer)

    def close(self) -> None:
        close_all()
        self.loop.close()

    def _run(self, call: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return call()

        return self._await(run())

    def _await(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)


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
