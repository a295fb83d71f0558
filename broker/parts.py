"""The parts of one broker and how they know each other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import grpc.aio

from penstock.formats.record.layout import Host
from penstock.proto import distribution
from penstock.proto.errors import DiskFull, PenstockError, StorageError
from penstock.proto.wire import common_pb2
from penstock.proto.wire.broker_pb2_grpc import add_BrokerServicer_to_server
from penstock.runtime.channel import reporting, reporting_stream
from penstock.runtime.clock import SystemClock

from .admin.admin import Admin, BrokerService
from .admin.status import Status
from .config import BrokerConfig, BrokerRole, MetricsExporterType
from .consume.consumer_sessions import ConsumerSessions
from .consume.fetch import Fetch
from .consume.fetch_waiters import Waiters
from .consume.offsets import OffsetService, PendingCommits
from .core.acknowledge import Acknowledgements
from .core.dispatch import Dispatcher, apply
from .core.metrics import Counters, MetricsServer
from .core.producers import ProducerTable
from .core.snapshots import Snapshots
from .core.state import State, Topic
from .core.state_log import StateLog
from .features.archive.positions import Positions
from .features.exactly_once.staging import Staging
from .features.exactly_once.writers import WriterLog
from .features.later.timer_table import TIMER_RUN
from .features.later.timers import Timers
from .group.elected_role import ElectedRole
from .group.leadership import Leadership
from .group.registration import Registration
from .group.role_parts import RoleParts
from .group.roles import Role
from .pipeline_parts import PipelineParts
from .produce.append_streams import AppendStreams
from .produce.send import Send
from .produce.stalls import AppendStalls
from .retention.retention import Retention, RetentionTimes
from .startup import Opened
from .store.config import FlushMode
from .store.recovery.cleaning import HOUR_MS, CleaningRules
from .store.store import Store

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Parts:
    """Everything one broker consists of; made by :meth:`assemble`."""

    config: BrokerConfig
    server: grpc.aio.Server
    store: Store
    state: State
    snapshots: Snapshots
    dispatcher: Dispatcher
    role: Role | ElectedRole
    leadership: Leadership | None
    state_log: StateLog | None
    """At a master."""
    acknowledgements: Acknowledgements
    sessions: ConsumerSessions
    offsets: OffsetService
    send: Send
    appends: AppendStreams
    fetch: Fetch
    staging: Staging
    timers: Timers
    writer_log: WriterLog
    positions: Positions
    status: Status
    counters: Counters
    registration: Registration
    metrics: MetricsServer | None
    retention: Retention
    imported: bool
    admin: Admin
    producers: ProducerTable
    pending: PendingCommits
    log_of_master: StateLog
    """What :attr:`state_log` is while this broker is master."""
    on_refused: Callable[[PenstockError], None]
    """A nameserver refuses this broker; the owner of the parts sets what follows."""

    @classmethod
    def assemble(cls, config: BrokerConfig, opened: Opened, server: grpc.aio.Server, instance: str) -> Parts:
        """Make all parts for the running event loop; nothing serves or runs yet."""
        return _Assembly(config, opened, server, instance).parts()

    def listen_to_store(self, loop: asyncio.AbstractEventLoop, on_fatal: Callable[[StorageError], None]) -> None:
        """Have the flusher's thread report to the event loop."""

        def tell(callback: Callable[..., None], value: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(callback, value)

        self.store.on_flushed = lambda offset: tell(self.on_flushed, offset)
        self.store.on_committed = lambda end: tell(self.on_committed, end)
        self.store.on_fatal = lambda error: tell(on_fatal, error)

    def on_committed(self, end: int) -> None:
        """What was appended to buffers is in the log up to ``end``, unless it has been cut since."""
        self.role.on_appended()
        self.acknowledgements.on_committed(min(end, self.store.end_offset))

    def on_flushed(self, offset: int) -> None:
        """The log is synced up to ``offset``, unless it has been cut since."""
        offset = min(offset, self.store.flushed_offset)
        self.acknowledgements.on_flushed(offset)
        self.role.on_flushed(offset)

    async def start(self) -> None:
        """Bring tables and queues up to the log, then serve.

        Raises:
            ConfigError: the metrics port is in use.
        """
        self.on_flushed(self.store.flushed_offset)  # what was synced before anybody listened
        if self.leadership is not None:
            self.leadership.on_role = self.on_role
            self.leadership.on_news = self.registration.changed
        if self.role.is_master:
            self.role.on_appended()  # with ASYNC_MASTER everything in the log is confirmed from the start
            self._record_import()
        await self.dispatcher.drain()
        self.state.on_topics_changed = self._on_topics_changed
        self.offsets.lower_to_log()
        self.retention.start()
        if self.metrics is not None:
            self.metrics.start(self.config.metrics.host, self.config.metrics.port)
        await self.server.start()

    def on_role(self) -> None:
        """The broker has become master, or slave, of its elected group: the services work for that role now."""
        is_master = self.role.is_master
        state_log = self.log_of_master if is_master else None
        self.state_log = state_log
        for service in (self.offsets, self.admin, self.positions):
            service.state_log = state_log
        self.retention.on_role(state_log)
        if is_master:
            self._take_over()
        self.writer_log.on_role(state_log, self.store.end_offset)
        self.timers.on_role(state_log)
        self.fetch.waiters.wake_all()  # a consumer that waits here learns where to go on
        self.dispatcher.poke()

    def _take_over(self) -> None:
        """Have the tables know everything that is in the log; then confirm what the set has, and take what was kept."""
        for result in self.store.undispatched():
            apply(result, self.state, self.producers)
        self.on_flushed(self.store.flushed_offset)
        self.role.on_appended()
        self.offsets.take_over()
        try:
            self._record_import()
        except DiskFull as error:  # the next change of role, or start, tries again
            log.error("imported tables not recorded error=%s", error)

    def _record_import(self) -> None:
        """Put what RocketMQ's files said into the log, so that replicas and later starts find it there."""
        if not self.imported or self.state_log is None:
            return
        for topic in self.state.topics.values():
            self.state_log.put_topic(topic)
        for group in self.state.groups.values():
            self.state_log.put_group(group)
        for group_name, topic_name in self.state.offsets.pairs():
            self.state_log.record(group_name, {topic_name: self.state.offsets.row(group_name, topic_name)})
        if self.state.timers.last.number:
            self.state_log.put(TIMER_RUN, self.state.timers.last.to_json())
        self.imported = False
        log.info("tables imported topics=%d groups=%d", len(self.state.topics), len(self.state.groups))

    def _on_topics_changed(self, updated: list[Topic], removed: list[str]) -> None:
        self.registration.topics_changed([topic.to_wire() for topic in updated], removed)
        self.counters.forget(removed)
        for topic in [each.name for each in updated] + removed:
            self.fetch.waiters.wake_topic(topic)


class _Assembly:
    """Makes the parts in the order in which they need each other."""

    def __init__(self, config: BrokerConfig, opened: Opened, server: grpc.aio.Server, instance: str) -> None:
        self._config = config
        self._opened = opened
        self._server = server
        self._instance = instance
        self._security = config.security.outgoing()
        self._store, self._state = opened.store, opened.state
        is_fixed = not config.replication.is_elected
        self._is_master = is_fixed and config.replication.role is not BrokerRole.SLAVE
        identity = config.identity
        self._identity = common_pb2.BrokerIdentity(
            cluster=identity.cluster,
            broker_name=identity.broker_name,
            broker_id=identity.broker_id,
            address=config.advertised_address,
        )
        self._counters = Counters()
        self._pending = PendingCommits(self._state)
        self._state.on_offsets_applied = self._pending.on_applied
        self._state.on_offsets_deleted = self._pending.on_deleted

    def parts(self) -> Parts:
        config, opened, store, state = self._config, self._opened, self._store, self._state
        waiters = Waiters()
        self._dispatcher = Dispatcher(
            store, state, opened.producers, waiters.on_arrived, is_awaited=lambda: bool(waiters)
        )
        self._roles = RoleParts(
            config,
            opened,
            self._identity,
            self._instance,
            on_slave_appended=self._dispatcher.poke,
            on_confirm=self._on_confirm,
            on_commits=lambda commits: self._offsets.take_from_slave(commits),
            pending_commits=self._pending.take,
            security=self._security,
        )
        self._role = self._roles.make()
        born_host = Host.parse(config.advertised_address)
        log_of_master = StateLog(state, store, born_host, self._on_appended)
        state_log = log_of_master if self._is_master else None
        self._acknowledgements = Acknowledgements(
            store,
            self._role,
            sync_flush=config.store.flush_mode is FlushMode.SYNC_FLUSH,
            flush_timeout_s=config.appends.flush_timeout_ms / 1000,
            replica_timeout_s=config.replication.slave_timeout_ms / 1000,
            commits=config.uses_transient_store_pool,
        )
        sessions = ConsumerSessions(
            committed=self._pending.committed,
            queue_range=store.queue_range,
            join_group=lambda group: self._offsets.join_group(group),
            clock=SystemClock(),
            catch_up=self._dispatcher.catch_up,
        )
        self._offsets = OffsetService(
            store,
            state,
            sessions,
            self._pending,
            state_log=state_log,
            auto_create_groups=config.topics.auto_create_groups,
            check_master=self._role.check_master,
        )
        timers = Timers(
            store,
            state,
            opened.producers,
            state_log,
            self._role,
            self._counters,
            on_appended=self._on_appended,
            clock=SystemClock(),
            page_bytes_max=config.store.body_bytes_max,
            delay_ms_max=config.timers.delay_s_max * 1000,
            waiting_max=config.timers.messages_max,
        )
        send = Send(
            store,
            state,
            opened.producers,
            self._role,
            self._acknowledgements,
            self._counters,
            body_bytes_max=config.store.body_bytes_max,
            on_appended=self._on_appended,
            timers=timers,
            stalls=AppendStalls(config.appends.stall_limit_ms / 1000, SystemClock()),
        )
        self._fetch = Fetch(
            store,
            state,
            self._role,
            self._counters,
            waiters=waiters,
            catch_up=self._dispatcher.catch_up,
            takes_sql=config.topics.property_filter,
        )
        pipeline = PipelineParts.make(
            config,
            opened,
            self._role,
            self._acknowledgements,
            state_log,
            send,
            timers,
            self._dispatcher,
            security=self._security,
            born_host=born_host,
            on_appended=self._on_appended,
        )
        status = self._make_status()
        retention = self._make_retention(state_log, timers)
        status.more_metrics += [retention.describe, pipeline.staging.describe, timers.describe]
        admin = Admin(
            store,
            state,
            state_log,
            self._role,
            sessions,
            self._acknowledgements,
            auto_create=config.topics.auto_create,
            default_queues=config.topics.default_queues,
            wait_dispatched=self._dispatcher.wait_dispatched,
        )
        leadership = self._roles.leadership
        transfer = None
        if leadership is not None:
            status.candidacy, status.sync_state_set = leadership.candidacy, lambda: leadership.sync_state_set

            async def transfer(to_id: int) -> int:
                return (await leadership.hand_over(to_id)).epoch

        service = BrokerService(
            admin,
            self._offsets,
            sessions,
            state,
            status.status,
            catch_up=self._dispatcher.catch_up,
            transfer=transfer,
        )
        appends = AppendStreams(send)
        if leadership is not None:
            leadership.is_answered = appends.is_answered
        self._register(service, appends)
        pipeline.register(self._server)
        registration = Registration(
            config.nameservers.addresses,
            status.registration,
            status.heartbeat,
            self._role.on_shard,
            lambda error: parts.on_refused(error),
            leadership.on_register_hint if leadership is not None else None,
            self._security,
        )
        parts = Parts(
            config=config,
            server=self._server,
            store=store,
            state=state,
            snapshots=opened.snapshots,
            dispatcher=self._dispatcher,
            role=self._role,
            leadership=leadership,
            state_log=state_log,
            acknowledgements=self._acknowledgements,
            sessions=sessions,
            offsets=self._offsets,
            send=send,
            appends=appends,
            fetch=self._fetch,
            staging=pipeline.staging,
            timers=timers,
            writer_log=pipeline.writer_log,
            positions=pipeline.positions,
            status=status,
            counters=self._counters,
            registration=registration,
            metrics=self._make_metrics(status),
            retention=retention,
            imported=opened.imported,
            admin=admin,
            producers=opened.producers,
            pending=self._pending,
            log_of_master=log_of_master,
            on_refused=lambda error: None,
        )
        return parts

    def _make_status(self) -> Status:
        return Status(
            self._config,
            self._identity,
            self._instance,
            self._store,
            self._role,
            self._state,
            self._opened.producers,
            self._counters,
            waiting_fetches=lambda: len(self._fetch.waiters),
            version=distribution.version(),
        )

    def _make_retention(self, state_log: StateLog | None, timers: Timers) -> Retention:
        settings = self._config.retention
        rules = CleaningRules(
            reserved_ms=settings.reserved_hours * HOUR_MS,
            delete_hours=settings.delete_hours,
            used_max=settings.used_max,
            forced_from=settings.forced_from,
            full_from=settings.full_from,
            is_forcing=settings.is_forcing,
            files_max=settings.files_max,
        )
        times = RetentionTimes(
            interval_s=settings.interval_ms / 1000, pause_s=settings.pause_ms / 1000, grace_s=settings.grace_ms / 1000
        )
        return Retention(
            self._store,
            self._state,
            self._opened.snapshots,
            self._role,
            state_log,
            rules,
            times,
            protect_unread=settings.protect_unread,
            first_waiting=timers.first_waiting,
            wait_dispatched=self._dispatcher.wait_dispatched,
            clock=SystemClock(),
        )

    def _make_metrics(self, status: Status) -> MetricsServer | None:
        if self._config.metrics.exporter is not MetricsExporterType.PROM:
            return None
        return MetricsServer(status.metrics, asyncio.get_running_loop())

    def _register(self, service: BrokerService, appends: AppendStreams) -> None:
        add_BrokerServicer_to_server(service, self._server)  # type: ignore[no-untyped-call]  # generated code
        # No (de)serializers: requests and answers are bytes, framed by the services themselves.
        data = {
            "Append": grpc.stream_stream_rpc_method_handler(appends.serve),
            "Fetch": grpc.unary_unary_rpc_method_handler(reporting(self._fetch.fetch)),
        }
        replication = {"Replicate": grpc.stream_stream_rpc_method_handler(reporting_stream(self._role.serve))}
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler("penstock.v1.BrokerData", data),
                grpc.method_handlers_generic_handler("penstock.v1.Replication", replication),
            )
        )

    def _on_appended(self, end: int) -> None:
        self._acknowledgements.start(end)
        self._role.on_appended()
        self._dispatcher.poke()

    def _on_confirm(self, offset: int) -> None:
        self._store.set_confirm(offset)
        self._dispatcher.poke()
