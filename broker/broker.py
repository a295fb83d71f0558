"""One broker from start to stop, inside a running event loop.

Start: port → store (recovery) → snapshots and replay → role → features → registration.
Stop: refuse new work → let what runs finish → out of the routes → last dispatch → snapshots → close the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from penstock.proto.errors import DiskFull, PenstockError, StorageError
from penstock.proto.wire import data_pb2
from penstock.proto.wire.common_pb2 import Empty
from penstock.runtime.clock import Clock, DueClock, SystemClock
from penstock.runtime.turns import tasks_together

from .admin.administration import Administration
from .config import BrokerConfig
from .consume.consume import Consume
from .core.acknowledge import Acknowledgements
from .core.core import Core
from .core.dispatch import Dispatcher
from .core.events import LogEvents
from .core.feature import Feature, Features
from .core.metrics import Counters
from .core.role import Role
from .core.tables.tables import Tables
from .core.wire import service
from .features.archive.archive import Archive
from .features.exactly_once.exactly_once import ExactlyOnce
from .features.later.later import Later
from .features.levels.levels import DelayLevels
from .features.pop.pop import Pop
from .features.replies.replies import Replies
from .features.retry.retry import Retry
from .features.transactions.transactions import Transactions
from .group.group import BrokerGroup
from .group.making import RoleMaker
from .opening import Opened, Ports, open_ports, open_store
from .produce.produce import Produce
from .retention.retention import Retention
from .store.store import Store

log = logging.getLogger(__name__)

FEATURES: Final[tuple[type[Feature], ...]] = (
    Administration,
    BrokerGroup,
    Produce,
    Consume,
    Later,
    DelayLevels,
    Retry,
    Pop,
    Transactions,
    Replies,
    ExactlyOnce,
    Archive,
    Retention,
)
"""In the order in which they start; they stop in reverse. None of them knows another."""

STOP_GRACE_S = 1.0
STOP_LATE_S = 20.0
LAST_DISPATCH_S = 1.0
FOLLOW_LOOK_S = 0.01


def make_core(
    config: BrokerConfig, clock: Clock, store: Store, tables: Tables, make_role: Callable[[LogEvents], Role]
) -> Core:
    """A core whose features are yet to be made; for the running event loop."""
    store.removal.remember(tables.queue_ends.of)
    dispatcher = Dispatcher(store, tables)
    events = LogEvents(store, dispatcher)
    role = make_role(events)
    return Core(
        config=config,
        clock=DueClock(clock),
        store=store,
        tables=tables,
        role=role,
        acknowledgements=Acknowledgements(config, store, role),
        dispatcher=dispatcher,
        counters=Counters(),
        events=events,
        features=Features(),
    )


class Broker:
    """One running broker."""

    def __init__(self, config: BrokerConfig, opened: Opened, ports: Ports, clock: Clock) -> None:
        """``config``: with the port that was opened. Nothing serves or runs yet."""
        self.config = config
        self.core = make_core(
            config, clock, opened.store, opened.tables, lambda events: RoleMaker(config, opened, events, clock).make()
        )
        self.features = self.core.features
        self.features.make(FEATURES, self.core)
        self.data = ports.data
        self.core.events.abort_unsent = self.data.abort_unsent
        self._server = ports.server
        self._imported = opened.imported
        self._failed: asyncio.Future[PenstockError] = asyncio.get_running_loop().create_future()
        self._store_failed = False
        service(data_pb2.DESCRIPTOR.services_by_name["BrokerData"], Open=self._open_data).register(self._server)
        for feature in self.features.made:
            self.data.methods.update(feature.data_methods())
            for each in feature.services():
                each.register(self._server)
        leadership = self.features[BrokerGroup].leadership
        if leadership is not None:
            leadership.on_role = self._on_role
            leadership.is_answered = self.features[Produce].streams.is_answered
        self.core.events.listen(asyncio.get_running_loop(), self.on_fatal)

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return self.config.advertised_address

    async def registered(self) -> None:
        """Return when each nameserver has taken the broker into its routes, or could not be reached."""
        await self.features[BrokerGroup].registration.settled()

    def on_fatal(self, error: StorageError) -> None:
        """The store failed for good: acknowledge nothing any more, and end the process."""
        self.core.events.on_fatal(error)
        self._store_failed = True
        if not self._failed.done():
            self._failed.set_result(error)

    async def start(self) -> None:
        """Bring tables and queues up to the log, then serve. Raises ConfigError: the metrics port is in use."""
        core = self.core
        core.events.on_flushed(core.store.flushed_offset)  # what was synced before anybody listened
        if core.role.is_master:  # by configuration: who is elected learns that later
            core.events.on_role()
            self._record_import()
        await core.dispatcher.drain()
        for feature in self.features.made:
            feature.start()
        await self.data.start(self.address)
        await self._server.start()

    async def run(self) -> None:
        """Do the background work until cancelled; raises what makes it impossible."""
        core = self.core
        try:
            async with tasks_together() as tasks:
                tasks.create_task(core.dispatcher.run(), name="dispatch")
                tasks.create_task(core.clock.run(), name="clock")
                tasks.create_task(core.tables.files.run(lambda: core.store.dispatched_offset), name="snapshots")
                for feature in self.features.made:
                    tasks.create_task(feature.run(), name=type(feature).__name__)
                raise await self._failed
        except StorageError as error:
            self.on_fatal(error)
            raise

    async def hand_over(self) -> None:
        """Before a stop: where masters are elected, make a slave master. Where that fails, an election follows."""
        leadership = self.features[BrokerGroup].leadership
        if leadership is None:
            return
        try:
            register = await leadership.hand_over_to_any()
        except PenstockError as error:
            log.warning("not handed over before the stop error=%s: %s", type(error).__name__, error)
            return
        while register is not None and not self.core.role.following.is_following:  # noqa: ASYNC110  for a moment
            await asyncio.sleep(FOLLOW_LOOK_S)

    async def stop(self) -> None:
        """Refuse new work, let requests finish, make all durable, however long it takes. ``run`` has ended before."""
        late = threading.Timer(STOP_LATE_S, self._tell_late)
        late.daemon = True
        late.start()
        try:
            await self._stop()
        finally:
            late.cancel()

    async def _stop(self) -> None:
        core, store = self.core, self.core.store
        core.events.is_open = False
        stopping = asyncio.create_task(self._server.stop(STOP_GRACE_S))
        for feature in reversed(self.features.made):
            await feature.stop()
        await stopping
        self.data.close()
        if not self._store_failed:
            deadline = time.monotonic() + LAST_DISPATCH_S
            while time.monotonic() < deadline and core.dispatcher.dispatch_slice():
                pass
            core.tables.files.write_all(store.dispatched_offset)
        store.close()

    async def _open_data(self, _: Empty) -> data_pb2.DataPort:
        return data_pb2.DataPort(port=self.data.number)

    def _tell_late(self) -> None:
        """From a thread: the loop may be what waits."""
        log.error(
            "broker has not stopped yet seconds=%.0f store=%s: its disk may not answer; killing it loses nothing "
            "that was acknowledged",
            *(STOP_LATE_S, self.core.config.store.root),
        )

    def _on_role(self) -> None:
        """The broker has been elected, or deposed."""
        self.core.events.on_role()
        try:
            self._record_import()
        except DiskFull as error:  # the next change of role, or start, tries again
            log.error("imported tables not recorded error=%s", error)

    def _record_import(self) -> None:
        """Put what RocketMQ's files said into the log, so that replicas and later starts find it there."""
        journal, tables = self.core.events.journal, self.core.tables
        if not self._imported or journal is None:
            return
        for kind, document in tables.repeated(self.core.store.end_offset):
            journal.put(kind, document)
        self._imported = False
        log.info("tables imported topics=%d groups=%d", len(tables.topics), len(tables.groups))


@contextlib.asynccontextmanager
async def serving(config: BrokerConfig, interceptors: Sequence[Any] = ()) -> AsyncIterator[Broker]:
    """A running broker for the length of the ``with`` block. ``interceptors`` stand in front of all that it serves.

    When a background task fails, the body is cancelled and the failure comes out of the block.

    Raises:
        ConfigError: port, directory or setting is wrong.
        StoreLocked, WrongStore, Corrupt, DiskFull: the store cannot be opened.
    """
    async with open_ports(config, interceptors) as ports:
        config = config.with_ports(ports.number, ports.data.number)
        with open_store(config, FEATURES) as opened:
            broker = Broker(config, opened, ports, SystemClock())
            try:
                await broker.start()
                async with tasks_together() as tasks:
                    work = tasks.create_task(broker.run(), name="broker")
                    yield broker
                    work.cancel()
            finally:
                await broker.stop()
