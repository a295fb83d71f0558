"""The broker's services around a fake store, for tests without files and sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from penstock.broker.admin.admin import Admin
from penstock.broker.consume.fetch import Fetch
from penstock.broker.consume.offsets import OffsetService, PendingCommits
from penstock.broker.core.acknowledge import Acknowledgements
from penstock.broker.core.dispatch import Dispatcher, apply
from penstock.broker.core.metrics import Counters
from penstock.broker.core.producers import ProducerTable
from penstock.broker.core.state import State, Topic
from penstock.broker.core.state_log import StateLog
from penstock.broker.features.exactly_once.staging import Staging
from penstock.broker.features.exactly_once.writers import WriterLog, Writers
from penstock.broker.features.later.timers import Timers
from penstock.broker.group.roles import Following
from penstock.broker.produce.send import Send
from penstock.formats.record.batch import encode_messages, producer_mark
from penstock.formats.record.layout import Host, decode_record
from penstock.formats.record.properties import TAGS, encode_properties
from penstock.proto import frames
from penstock.proto.errors import NotMaster, from_bytes
from penstock.proto.wire import broker_pb2, pipeline_pb2
from penstock.runtime.clock import SystemClock
from tests.support.broker.fake_store import FakeStore

BORN = Host.parse("10.0.0.9:4711")


class FakeRole:
    """A role whose answers a test sets."""

    def __init__(self) -> None:
        self.is_master = True
        self.epoch = 1
        self.enough = True
        self.waits_for_replicas = False
        self.is_acting = True
        self.confirms = True
        self.lag_bytes = 0
        self.following = Following(False, "")

    def check_master(self) -> None:
        if not self.is_master:
            raise NotMaster("a slave: the master is 10.0.0.1:10911", master="10.0.0.1:10911")

    def can_acknowledge(self) -> bool:
        return self.enough

    async def wait_confirmed(self, end: int, timeout_s: float) -> bool:
        return self.confirms

    def suggested_broker_id(self, behind_bytes: int) -> int:
        return 0

    def replicas(self) -> list[broker_pb2.BrokerStatus.Replica]:
        return []


class FakeSessions:
    """Owns what ``owned`` holds: (session id, group, topic, queue id)."""

    def __init__(self) -> None:
        self.owned: set[tuple[int, str, str, int]] = set()
        self.resets: list[tuple[str, str, int, int]] = []
        self.members: list[Any] = []

    def owns(self, session_id: int, group: str, topic: str, queue_id: int) -> bool:
        return (session_id, group, topic, queue_id) in self.owned

    def notify_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.resets.append((group, topic, queue_id, offset))

    def describe(self, group: str) -> list[Any]:
        return self.members

    def generation(self, group: str) -> int:
        return 7


class Parts:
    """One broker's services; made inside a running event loop."""

    def __init__(
        self,
        *,
        sync_flush: bool = False,
        commits: bool = False,
        master: bool = True,
        auto_create: bool = True,
        store: FakeStore | None = None,
        broker_name: str = "broker-a",
    ) -> None:
        self.store: Any = store or FakeStore()
        self.producers = ProducerTable()
        self.state = State(self.producers)
        self.role = FakeRole()
        self.role.is_master = master
        self.counters = Counters()
        self.sessions: Any = FakeSessions()
        self.fetch = Fetch(self.store, self.state, self.role, self.counters)
        self.dispatcher = Dispatcher(self.store, self.state, self.producers, self.fetch.waiters.on_arrived)
        self.acknowledgements = Acknowledgements(
            self.store,
            self.role,
            sync_flush=sync_flush,
            flush_timeout_s=0.05,
            replica_timeout_s=0.05,
            commits=commits,
        )
        self.store.on_flushed = self.acknowledgements.on_flushed
        self.store.on_committed = self.acknowledgements.on_committed
        self.state_log = StateLog(self.state, self.store, BORN, self.on_appended)
        self.pending = PendingCommits(self.state)
        self.state.on_offsets_applied = self.pending.on_applied
        self.state.on_offsets_deleted = self.pending.on_deleted
        self.offsets = OffsetService(
            self.store,
            self.state,
            self.sessions,
            self.pending,
            state_log=self.state_log if master else None,
            auto_create_groups=auto_create,
            check_master=self.role.check_master,
        )
        self.timers = Timers(
            self.store,
            self.state,
            self.producers,
            self.state_log if master else None,
            self.role,
            self.counters,
            on_appended=self.on_appended,
            clock=SystemClock(),
            page_bytes_max=64 * 1024,
            delay_ms_max=86_400_000,
            waiting_max=1 << 20,
        )
        self.send = Send(
            self.store,
            self.state,
            self.producers,
            self.role,
            self.acknowledgements,
            self.counters,
            body_bytes_max=64 * 1024,
            on_appended=self.on_appended,
            timers=self.timers,
        )
        writer_log = WriterLog(
            self.state.staging,
            self.state_log if master else None,
            self.role,
            self.acknowledgements,
            start_end=self.store.end_offset,
        )
        self.writers = Writers(writer_log)
        self.broker_name = broker_name
        self.other_coordinators: dict[str, Writers] = {}
        self.staging = Staging(
            self.store,
            self.state,
            self.producers,
            self.writers,
            writer_log,
            broker_name=broker_name,
            born_host=BORN,
            body_bytes_max=64 * 1024,
            timers=self.timers,
            check_topic=self.send.writable_topic,
            on_appended=self.on_appended,
            wait_dispatched=self.dispatcher.wait_dispatched,
            ask_coordinator=lambda name, writer, number, keys: self.other_coordinators[name].give_up(
                writer, number, keys
            ),
        )
        self.admin = Admin(
            self.store,
            self.state,
            self.state_log if master else None,
            self.role,
            self.sessions,
            self.acknowledgements,
            auto_create=auto_create,
            default_queues=8,
            wait_dispatched=self.dispatcher.wait_dispatched,
        )

    def on_appended(self, end: int) -> None:
        self.acknowledgements.start(end)
        self.dispatcher.poke()

    def add_topic(self, name: str = "orders", queues: int = 4, perm: int = 6) -> Topic:
        """A topic that is in the log and in the tables."""
        topic = Topic(name, queues, queues, perm)
        self.state_log.put_topic(topic)
        self.dispatch()
        return topic

    def dispatch(self) -> None:
        """Dispatch everything confirmed."""
        while self.dispatcher.dispatch_slice():
            pass

    @classmethod
    def restarted(cls, before: Parts) -> Parts:
        """A broker that starts on the other's log and has nothing else of it."""
        store = before.store
        store.failure = None
        again = cls(store=store, broker_name=before.broker_name)
        for result in store.replay(0):
            apply(result, again.state, again.producers)
        again.dispatch()
        return again

    async def stage(
        self,
        bodies: Sequence[bytes] = (b"one",),
        *,
        mark: tuple[int, int, int] = (7, 0, 0),
        queue_id: int = 0,
        coordinator: str = "broker-a",
        **header: Any,
    ) -> pipeline_pb2.StageReply:
        """Stage one chunk; ``mark``: (producer id, lane, sequence)."""
        producer_id, lane, sequence = mark
        topic = header.setdefault("topic", "orders")
        header = {"writer": "w", "batch": 0, "key": "k", "count": len(bodies), "keep_ms": 60_000} | header
        marked = producer_mark(producer_id, 0, lane, sequence, len(bodies))
        records = encode_messages(topic, bodies, None, queue_id, born_host=BORN, mark=marked)
        request = frames.pack(pipeline_pb2.StageHeader(coordinator=coordinator, **header), records)
        reply = await self.staging.stage(request, None)  # type: ignore[arg-type]
        self.dispatch()
        return frames.unpack(reply, pipeline_pb2.StageReply)[0]

    def bodies(self, topic: str = "orders", queues: int = 4) -> list[bytes]:
        """What consumers see, queue after queue."""
        self.dispatch()
        found = []
        for queue_id in range(queues):
            low, high = self.store.reader.queue_range(topic, queue_id)
            if low < high:
                read = self.store.reader.read(topic, queue_id, low, 1 << 30)
                found += [decode_record(each).body for each in read.records]
        return found

    async def append(self, bodies: Sequence[bytes] = (b"one",), **settings: Any) -> broker_pb2.AppendReceipt:
        """Append one batch and answer its receipt."""
        return await self.append_bytes(batch(bodies, **settings))

    async def append_bytes(self, request: bytes) -> broker_pb2.AppendReceipt:
        """The same for a framed batch."""
        return await self.send.acknowledge(self.send.place(request))

    async def fetched(self, header: broker_pb2.FetchHeader) -> tuple[broker_pb2.FetchReply, bytes]:
        """Fetch; the reply and its record bytes."""
        reply, body = frames.unpack(await self.fetch.fetch(frames.pack(header), None), broker_pb2.FetchReply)  # type: ignore[arg-type]
        return reply, bytes(body)


def receipt_of(answer: bytes) -> broker_pb2.AppendReceipt:
    """The receipt in an ``AppendAnswer``; raises the error in it."""
    decoded = broker_pb2.AppendAnswer.FromString(answer)
    if decoded.WhichOneof("outcome") == "receipt":
        return decoded.receipt
    raise from_bytes(decoded.error)


def batch(
    bodies: Sequence[bytes] = (b"one",),
    *,
    topic: str = "orders",
    queue_id: int = 0,
    tag: str = "",
    producer: tuple[int, int, int, int] | None = None,
    marked: bool = True,
    digest: int = 0,
    **header: Any,
) -> bytes:
    """A framed append; ``producer``: (producer id, epoch, lane, sequence)."""
    mark = None
    header.setdefault("count", len(bodies))
    if producer is not None:
        producer_id, epoch, lane, sequence = producer
        mark = producer_mark(producer_id, epoch, lane, sequence, len(bodies), digest) if marked else None
        header |= {"producer_id": producer_id, "producer_epoch": epoch, "lane": lane, "sequence": sequence}
    properties = [encode_properties({TAGS: tag})] * len(bodies) if tag else None
    records = encode_messages(topic, bodies, properties, queue_id, born_host=BORN, mark=mark)
    return frames.pack(broker_pb2.AppendHeader(topic=topic, **header), records)


def wanting(
    *queues: tuple[int, int], topic: str = "orders", expression: str = "", kind: int | None = None, **header: Any
) -> broker_pb2.FetchHeader:
    """A fetch of (queue id, offset) pairs of one topic."""
    if kind is None:
        kind = broker_pb2.Filter.TAG if expression else broker_pb2.Filter.ALL
    part = broker_pb2.FetchHeader.Topic(
        topic=topic,
        queue_ids=[queue_id for queue_id, _ in queues],
        offsets=[offset for _, offset in queues],
        filter=broker_pb2.Filter(kind=broker_pb2.Filter.Kind.Name(kind), expression=expression),
    )
    return broker_pb2.FetchHeader(group="billing", topics=[part], **header)


def in_loop(test: Callable[[], Any]) -> Callable[[], None]:
    """Run an async test in an event loop of its own, which must be empty of tasks at the end."""

    def call() -> None:
        async def body() -> None:
            await test()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"tasks left behind: {left}"

        asyncio.run(body())

    call.__name__ = test.__name__
    call.__doc__ = test.__doc__
    return call
