"""One broker's core on a real store, with the features under test: no ports, and no thread that a test waits for."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from penstock.broker import broker
from penstock.broker.broker import make_core
from penstock.broker.config import BrokerConfig
from penstock.broker.consume.consume import Consume
from penstock.broker.core.feature import Feature
from penstock.broker.core.journal import Journal
from penstock.broker.core.metrics import Families
from penstock.broker.core.role import Following
from penstock.broker.core.tables.groups import GROUP, Group
from penstock.broker.core.tables.offsets import OffsetsByQueue, offset_records
from penstock.broker.core.tables.snapshots import Snapshots
from penstock.broker.core.tables.tables import Tables
from penstock.broker.core.tables.topics import TOPIC, TOPIC_DELETED, Topic, deleted_topic
from penstock.broker.features.exactly_once.exactly_once import ExactlyOnce
from penstock.broker.group.group import BrokerGroup
from penstock.broker.produce.produce import Produce
from penstock.broker.retention.retention import Retention
from penstock.broker.store import AppendResult, Disk, Store
from penstock.formats.epochs import Epoch
from penstock.proto import frames
from penstock.proto.errors import DiskFull, NotMaster
from penstock.proto.wire import broker_pb2, nameserver_pb2, pipeline_pb2
from penstock.replication import EpochHistory, Primary
from penstock.runtime.clock import Clock, SystemClock
from penstock.runtime.conf import Setting, bind
from tests.support.broker.requests import batch, chunk
from tests.support.broker.stores import NEVER_MS, bodies, store_config

FEATURES = tuple(each for each in broker.FEATURES if each not in (BrokerGroup, Retention))
SETTINGS: dict[str, object] = {
    "brokerClusterName": "main",
    "brokerName": "broker-a",
    "brokerIP1": "10.0.0.9",
    "listenPort": 4711,
    "maxMessageSize": 1 << 16,
    "syncFlushTimeout": 50,
    "slaveTimeout": 50,
}
SYNC = {"flushDiskType": "SYNC_FLUSH"}
POOL = {"transientStorePoolEnable": "true"}
F = TypeVar("F", bound=Feature)
_open: list[Kit] = []


class FakeRole:
    """A role whose answers a test sets; what a master appends is confirmed at once, unless it ``holds``."""

    def __init__(self, kit: Kit) -> None:
        self.instance = "instance"
        self.is_master = self.is_acting = self.is_current = self.enough = self.confirms = True
        self.waits_for_replicas = self.holds = False
        self.epoch = 1
        self.history = EpochHistory([Epoch(1, 0)])
        self.lag_bytes = 0
        self.needed: int | None = None
        self.master_address: str | None = None
        self.following = Following(False, "")
        self._kit = kit

    def check_master(self) -> None:
        if not self.is_master:
            raise NotMaster("a slave: the master is 10.0.0.1:10911", master="10.0.0.1:10911")

    def can_acknowledge(self) -> bool:
        return self.is_master and self.enough

    async def wait_confirmed(self, end: int, timeout_s: float) -> bool:
        return self.confirms

    def on_appended(self) -> None:
        if not self.holds:
            self._kit.confirm()

    def on_flushed(self, offset: int) -> None:
        """Nobody follows."""

    def on_shard(self, view: nameserver_pb2.ShardView) -> None:
        """Nobody else is in the group."""

    def suggested_broker_id(self, behind_bytes: int) -> int:
        return 0

    def replicas(self) -> list[broker_pb2.BrokerStatus.Replica]:
        return []

    def followed(self) -> Primary:
        raise AssertionError("a slave comes to a broker that serves no data port")

    def needed_from(self, patience_s: float) -> int | None:
        return self.needed


class Writes:
    """Puts records of the broker's state into the log."""

    journal: Journal

    def put_topic(self, topic: Topic) -> int:
        return self.journal.put(TOPIC, topic.to_json())

    def delete_topic(self, name: str) -> int:
        return self.journal.put(TOPIC_DELETED, {"topicName": name})

    def put_group(self, group: Group) -> int:
        return self.journal.put(GROUP, group.to_json())

    def commit(self, group: str, offsets: OffsetsByQueue) -> None:
        for kind, document in offset_records(group, offsets):
            self.journal.put(kind, document)


class Kit(Writes):
    """Made inside a running event loop; :func:`in_loop` and :func:`close_all` end it.

    ``flushes``, ``commits``: what is asked for is done at once; else by :meth:`flush` and :meth:`commit_pool`.
    ``sizes`` are the test store's, other settings keys of ``broker.conf``.
    """

    def __init__(
        self,
        root: Path | None = None,
        *,
        features: Sequence[type[Feature]] = FEATURES,
        store: Store | None = None,
        clock: Clock | None = None,
        disk: Disk | None = None,
        master: bool = True,
        holds: bool = False,
        flushes: bool = True,
        commits: bool = True,
        sizes: dict[str, Any] | None = None,
        **settings: object,
    ) -> None:
        self.clock, self.flushes, self.commits = clock or SystemClock(), flushes, commits
        self._settings = settings
        self.requested = 0  # end of the last flush, or commit, that was asked for
        texts = {key: Setting(str(value), 0) for key, value in (SETTINGS | settings).items()}
        config = bind(BrokerConfig, texts, path="test")
        self._temporary = None if root or store else Path(tempfile.mkdtemp(prefix="kit-", dir=_memory()))
        self.root = root or self._temporary or Path("reused")
        self.tables = Tables((table for feature in features for table in feature.tables), config.limits)
        self.snapshots = Snapshots(self.root / "config", self.tables)
        self.store = store or Store.open(
            store_config(self.root, **_sizes(config, sizes or {})), disk=disk, clock=self.clock, deletes=deleted_topic
        )
        self.snapshots.sync_log = self.store.flush
        self.store.request_flush = self._request_flush  # type: ignore[method-assign]
        self.store.request_commit = self._request_commit  # type: ignore[method-assign]
        if store is None:
            found = self.snapshots.load(self.store.min_offset, self.store.end_offset, log_has_all=True)
            self._replay(found.replay_from)
        self.role = FakeRole(self)
        self.role.is_master, self.role.holds = master, holds
        self.core = make_core(config, self.clock, self.store, self.tables, lambda events: self.role)  # type: ignore[arg-type, return-value]
        self.events = self.core.events
        self.core.features.make(features, self.core)
        if master:
            self.events.on_role()
        _open.append(self)

    def __getitem__(self, kind: type[F]) -> F:
        return self.core.features[kind]

    @classmethod
    def restarted(cls, before: Kit, *, begin: int = 0, **settings: Any) -> Kit:
        """A broker that starts on the other's log, from ``begin`` on, and has nothing else of it."""
        again = cls(store=before.store, **(before._settings | settings))
        again._replay(begin)
        again.dispatch()
        return again

    def change_role(self, *, master: bool) -> None:
        """As an election does."""
        self.role.is_master = master
        self.events.on_role()

    @property
    def journal(self) -> Journal:  # type: ignore[override]
        """The master's; at a slave one as if its master's records came."""
        return self.events.journal or Journal(self.core)

    def repeat(self, position: int) -> None:
        """As retention does before files go."""
        for kind, document in self.tables.repeated(position):
            self.journal.put(kind, document)

    def add_topic(self, name: str = "orders", queues: int = 4, perm: int = 6) -> Topic:
        """A topic that is in the log and in the tables."""
        topic = Topic(name, queues, queues, perm)
        self.put_topic(topic)
        self.dispatch()
        return topic

    def confirm(self) -> None:
        """What is in the log may be read."""
        self.store.set_confirm(self.store.end_offset)

    def dispatch(self) -> None:
        """Dispatch everything confirmed."""
        while self.core.dispatcher.dispatch_slice():
            pass

    def flush(self) -> None:
        """Sync the log."""
        self.store._flusher.flush()
        self.events.on_flushed(self.store.flushed_offset)

    def commit_pool(self) -> None:
        """Bring what is in buffers into the log."""
        self.store.commit()
        self.events.on_committed(self.store.end_offset)

    def bodies(self, topic: str = "orders", queues: int = 4) -> list[bytes]:
        """What consumers see, queue after queue."""
        self.dispatch()
        return [body for queue_id in range(queues) for body in bodies(self.store, topic, queue_id)]

    async def append(self, bodies: Sequence[bytes] = (b"one",), **settings: Any) -> broker_pb2.AppendReceipt:
        """Append one batch and answer its receipt."""
        return await self.append_bytes(batch(bodies, **settings))

    async def append_bytes(self, request: bytes) -> broker_pb2.AppendReceipt:
        """The same for a framed batch."""
        send = self[Produce].send
        return await send.acknowledge(send.place(request))

    async def fetched(self, header: broker_pb2.FetchHeader) -> tuple[broker_pb2.FetchReply, bytes]:
        """Fetch; the reply and its record bytes."""
        reply, body = frames.unpack(await self.fetched_bytes(header), broker_pb2.FetchReply)
        return reply, bytes(body)

    async def fetched_bytes(self, header: broker_pb2.FetchHeader) -> bytes:
        """The framed reply."""
        return b"".join(await self[Consume].fetch.fetch(header, "the test's connection"))

    async def stage(self, bodies: Sequence[bytes] = (b"one",), **settings: Any) -> pipeline_pb2.StageReply:
        """Stage one chunk of an exactly-once writer."""
        staging = self[ExactlyOnce].staging
        reply = await staging.acknowledge(staging.place(memoryview(chunk(bodies, **settings))))
        self.dispatch()
        return reply

    def fail_appends(self, after: int = 0, to: str | None = None) -> list[int]:
        """Let so many appends succeed, of any topic or ``to`` one; each behind them finds no space, until the number is
        raised again.
        """
        append, left = self.store.append, [after]

        def failing(topic: str, records: Any, **settings: Any) -> AppendResult:
            left[0] -= to in (None, topic)
            if left[0] < 0 and to in (None, topic):
                raise DiskFull("no space")
            return append(topic, records, **settings)

        self.store.append = failing  # type: ignore[method-assign]
        return left

    @contextlib.contextmanager
    def changing_role_at(self, topic: str) -> Iterator[None]:
        """In the block each append to ``topic`` ends the mastership; the next one begins before anybody looks."""
        append = self.store.append

        def turning(name: str, records: Any, **settings: Any) -> AppendResult:
            placed = append(name, records, **settings)
            if name == topic:
                self.change_role(master=False)
                self.change_role(master=True)
            return placed

        self.store.append = turning  # type: ignore[method-assign]
        try:
            yield
        finally:
            self.store.append = append  # type: ignore[method-assign]

    def know_coordinators(self, others: Mapping[str, Kit]) -> None:
        """Ask these, by broker name, what they have decided."""
        self[ExactlyOnce].staging._ask_coordinator = lambda name, *asked: others[name][ExactlyOnce].writers.give_up(
            *asked
        )

    def metrics(self) -> dict[tuple[str, str], float]:
        """(name, label values) -> value."""
        families = Families({})
        self.core.features.describe(families)
        samples = [sample for family in families.made for sample in family.samples]
        return {(sample.name, ",".join(sample.labels.values())): sample.value for sample in samples}

    def close(self, *, unclean: bool = False) -> None:
        """End as a stopped process does, or as a killed one."""
        _open.remove(self)
        if any(isinstance(feature, Consume) for feature in self.core.features.made):
            self[Consume].fetch.close()
        if unclean:
            self.store.abandon()
        else:
            self.store.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary)

    def _replay(self, start: int) -> None:
        for result in self.store.replay(start):
            self.tables.take(result)

    def _request_flush(self, end: int) -> None:
        self.requested = end
        if self.flushes:
            self.flush()

    def _request_commit(self, end: int) -> None:
        self.requested = end
        if self.commits:
            self.commit_pool()


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _sizes(config: BrokerConfig, changes: dict[str, Any]) -> dict[str, Any]:
    sizes = {"segment_bytes": 1 << 20, "consume_queue_bytes": 40_000, "body_bytes_max": config.store.body_bytes_max}
    never = {"commit_interval_ms": NEVER_MS, "commit_thorough_interval_ms": NEVER_MS}
    return {**sizes, **never, "is_pooled": config.uses_transient_store_pool, "pool_size": 2, **changes}


def close_all() -> None:
    """End every kit that is open."""
    for kit in list(_open):
        kit.close()


class WithKits:
    """What lets threads without an event loop use kits: they live in its own loop, one call at a time."""

    def __init__(self) -> None:
        self.loop, self._lock = asyncio.new_event_loop(), threading.Lock()

    def close(self) -> None:
        """End every kit, and the loop."""
        close_all()
        self.loop.close()

    def _run(self, call: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return call()

        return self._await(run())

    def _await(self, work: Any) -> Any:
        with self._lock:
            return self.loop.run_until_complete(work)


def in_loop(test: Callable[..., Any]) -> Callable[..., None]:
    """Run an async test, with its fixtures, in an event loop of its own, which must be empty of tasks at the end; its
    kits are closed.
    """

    @functools.wraps(test)
    def call(**fixtures: Any) -> None:
        async def body() -> None:
            await test(**fixtures)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"tasks left behind: {left}"

        try:
            asyncio.run(body())
        finally:
            close_all()

    return call
