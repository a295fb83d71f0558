"""The ``Broker`` service of the wire: administration, offsets, queries. Its methods are edges: rules are elsewhere."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol

from penstock.proto import names
from penstock.proto.errors import (
    Forbidden,
    GroupNotFound,
    InvalidArgument,
    NotEnoughReplicas,
    OutcomeUnknown,
    TopicNotFound,
)
from penstock.proto.wire import broker_pb2, common_pb2
from penstock.proto.wire.broker_pb2_grpc import BrokerServicer
from penstock.runtime.channel import reporting, reporting_stream

from ..consume.consumer_sessions import ConsumerSessions
from ..consume.offsets import OffsetService, to_wire
from ..core.acknowledge import SEND_OK, Acknowledgements
from ..core.state import CREATED_MS, State, Topic
from ..core.state_log import StateLog
from ..features.exactly_once.writers import now_ms
from ..store.lookup import Lookup
from ..store.reading import Reader
from .topics import group_of, removed_queues, topic_to_create

QUERY_COUNT_MAX = 10_000
QUERY_COUNT_DEFAULT = 32
REPLY_BYTES_MAX = 32 * 1024 * 1024
TIMESTAMP_MAX = (1 << 63) - 1


class QueryStore(Protocol):
    """What of the store this module needs."""

    @property
    def dispatched_offset(self) -> int: ...
    @property
    def reader(self) -> Reader: ...
    @property
    def lookup(self) -> Lookup: ...


class AdminRole(Protocol):
    """What of the role this module needs."""

    def check_master(self) -> None: ...
    def can_acknowledge(self) -> bool: ...


class Admin:
    """Topics and groups: checks against what is stored, changes the state, waits for the acknowledgement."""

    def __init__(
        self,
        store: QueryStore,
        state: State,
        state_log: StateLog | None,
        role: AdminRole,
        sessions: ConsumerSessions,
        acknowledgements: Acknowledgements,
        *,
        auto_create: bool,
        default_queues: int,
        wait_dispatched: Callable[[int], Awaitable[None]],
    ) -> None:
        self._store = store
        self._state = state
        self.state_log = state_log
        self._role = role
        self._sessions = sessions
        self._acknowledgements = acknowledgements
        self._auto_create = auto_create
        self._default_queues = default_queues
        self._wait_dispatched = wait_dispatched
        self._dropping: dict[str, int] = {}  # deleted topic -> end of the record that says so

    async def create_topic(self, request: broker_pb2.CreateTopicRequest) -> Topic:
        """Create or change a topic; it exists durably, as far as the mode promises, when this returns.

        Raises:
            InvalidName, InvalidArgument, Forbidden, TopicExists: see :func:`.topics.topic_to_create`.
            TopicNotFound: automatic creation is off.
            NotMaster, NotEnoughReplicas: nothing was changed.
            OutcomeUnknown: it exists here, replicas or disk did not confirm in time.
        """
        name = request.config.topic
        existing = self._state.topic(name)
        wanted = topic_to_create(request, existing, auto_create=self._auto_create, default_queues=self._default_queues)
        if wanted is None:
            assert existing is not None, "nothing to do for a topic that does not exist"
            return existing
        log = self._writer()
        if self._is_dropping(name):
            raise NotEnoughReplicas(f"topic {name} is being deleted: try again")
        self._check_drained(wanted, removed_queues(existing, wanted))
        if existing is None:
            wanted = replace(wanted, extra={**wanted.extra, CREATED_MS: now_ms()})
        await self._acknowledged(log.put_topic(wanted), f"topic {name}")
        return wanted

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its queues and committed offsets.

        Raises:
            TopicNotFound, Forbidden, NotMaster, NotEnoughReplicas: nothing was changed.
            OutcomeUnknown: it is gone here, replicas or disk did not confirm in time.
        """
        if names.is_system_topic(names.check_topic(name)):
            raise Forbidden(f"topic {name} is internal: clients may not delete it")
        log = self._writer()
        if self._state.topic(name) is None:
            raise TopicNotFound(f"topic {name} does not exist at this broker", topic=name)
        end = self._dropping[name] = log.delete_topic(name)
        await self._acknowledged(end, f"deletion of topic {name}")
        await self._wait_dispatched(end)  # then its queues are gone

    def put_group(self, config: common_pb2.GroupConfig) -> common_pb2.GroupConfig:
        """Create or change a consumer group."""
        log = self._writer()
        existing = self._state.group(config.group)
        wanted = group_of(config, existing)
        if wanted != existing:
            log.put_group(wanted)
        return wanted.to_wire()

    def delete_group(self, name: str) -> None:
        """Delete a group without members, and its committed offsets."""
        names.check_group(name)
        log = self._writer()
        if self._state.group(name) is None:
            raise GroupNotFound(f"group {name} does not exist at this broker", group=name)
        members = self._sessions.describe(name)
        if members:
            raise InvalidArgument(f"group {name} has {len(members)} members: stop them first")
        log.delete_group(name)

    def describe_group(self, name: str) -> broker_pb2.GroupDescription:
        """Settings, members and committed offsets of a group."""
        group = self._state.group(names.check_group(name))
        if group is None:
            raise GroupNotFound(f"group {name} does not exist at this broker", group=name)
        table = self._state.offsets
        return broker_pb2.GroupDescription(
            config=group.to_wire(),
            generation=self._sessions.generation(name),
            members=self._sessions.describe(name),
            committed=to_wire({topic: table.row(name, topic) for topic in table.topics_of(name)}),
        )

    def query_messages(self, request: broker_pb2.QueryMessagesRequest) -> broker_pb2.MessageRecords:
        """Records of a topic by key (or unique id), newest limit 32 MiB of them."""
        if self._state.topic(request.topic) is None:
            raise TopicNotFound(f"topic {names.check_topic(request.topic)} does not exist at this broker")
        if not request.key:
            raise InvalidArgument("a query needs a key")
        count = min(request.max_count if request.max_count > 0 else QUERY_COUNT_DEFAULT, QUERY_COUNT_MAX)
        end_ms = request.end_timestamp_ms if request.end_timestamp_ms > 0 else TIMESTAMP_MAX
        found = self._store.lookup.query(request.topic, request.key, count, request.begin_timestamp_ms, end_ms)
        reply = broker_pb2.MessageRecords()
        size = 0
        for record in found:
            size += len(record)
            if size > REPLY_BYTES_MAX and reply.records:
                break
            reply.records.append(record)
        return reply

    def view_message(self, physical_offset: int) -> broker_pb2.MessageRecords:
        """The record at a physical offset. Raises MessageNotFound, InvalidArgument."""
        if physical_offset < 0:
            raise InvalidArgument(f"physical offset {physical_offset} may not be negative")
        return broker_pb2.MessageRecords(records=[bytes(self._store.lookup.view(physical_offset))])

    def _is_dropping(self, name: str) -> bool:
        """Whether the topic's deletion is not dispatched yet: made anew now, it would show its old messages."""
        if self._dropping.get(name, 0) <= self._store.dispatched_offset:
            self._dropping.pop(name, None)
        return name in self._dropping

    def _writer(self) -> StateLog:
        self._role.check_master()
        assert self.state_log is not None, "a master without a state log"
        if not self._role.can_acknowledge():
            raise NotEnoughReplicas("fewer in-sync replicas than inSyncReplicas demands; nothing was changed")
        return self.state_log

    async def _acknowledged(self, end: int, what: str) -> None:
        if self._acknowledgements.is_immediate:
            return
        status = await self._acknowledgements.wait(end)
        if status != SEND_OK:
            raise OutcomeUnknown(f"{what}: done here, {broker_pb2.SendStatus.Name(status)}: ask again")

    def _check_drained(self, topic: Topic, queues: range) -> None:
        table = self._state.offsets
        for queue_id in queues:
            low, high = self._store.reader.queue_range(topic.name, queue_id)
            behind = [
                group
                for group, name in table.pairs()
                if name == topic.name and low <= table.get(group, name, queue_id) < high
            ]
            if behind:
                raise InvalidArgument(
                    f"topic {topic.name}: queue {queue_id} still has messages for group {behind[0]}: let it drain"
                )


def _up_to_date(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A unary handler that sees everything confirmed before it is called; its errors are told to the caller."""

    @reporting
    @functools.wraps(method)
    async def call(self: BrokerService, request: Any, context: Any) -> Any:
        self.catch_up()
        return await method(self, request, context)

    return call


class BrokerService(BrokerServicer):
    """The wire's methods."""

    def __init__(
        self,
        admin: Admin,
        offsets: OffsetService,
        sessions: ConsumerSessions,
        state: State,
        status: Callable[[], broker_pb2.BrokerStatus],
        *,
        catch_up: Callable[[], None],
        transfer: Callable[[int], Awaitable[int]] | None = None,
    ) -> None:
        """``transfer(broker id)``: make that slave master; its epoch. None: nobody elects masters here."""
        self._admin = admin
        self._offsets = offsets
        self._sessions = sessions
        self._state = state
        self._status = status
        self.catch_up = catch_up
        self._transfer = transfer

    @_up_to_date
    async def CreateTopic(self, request: broker_pb2.CreateTopicRequest, context: Any) -> common_pb2.TopicConfig:
        return (await self._admin.create_topic(request)).to_wire()

    @_up_to_date
    async def DeleteTopic(self, request: broker_pb2.TopicName, context: Any) -> common_pb2.Empty:
        await self._admin.delete_topic(request.topic)
        return common_pb2.Empty()

    @_up_to_date
    async def ListTopics(self, request: common_pb2.Empty, context: Any) -> broker_pb2.TopicConfigs:
        return broker_pb2.TopicConfigs(topics=[topic.to_wire() for topic in self._state.topics.values()])

    @_up_to_date
    async def CreateGroup(self, request: common_pb2.GroupConfig, context: Any) -> common_pb2.GroupConfig:
        return self._admin.put_group(request)

    @_up_to_date
    async def DeleteGroup(self, request: broker_pb2.GroupName, context: Any) -> common_pb2.Empty:
        self._admin.delete_group(request.group)
        return common_pb2.Empty()

    @_up_to_date
    async def ListGroups(self, request: common_pb2.Empty, context: Any) -> broker_pb2.GroupConfigs:
        return broker_pb2.GroupConfigs(groups=[group.to_wire() for group in self._state.groups.values()])

    @_up_to_date
    async def DescribeGroup(self, request: broker_pb2.GroupName, context: Any) -> broker_pb2.GroupDescription:
        return self._admin.describe_group(request.group)

    @_up_to_date
    async def CommitOffsets(
        self, request: broker_pb2.CommitOffsetsRequest, context: Any
    ) -> broker_pb2.CommitOffsetsReply:
        return self._offsets.commit(request)

    @_up_to_date
    async def QueryOffsets(self, request: broker_pb2.QueryOffsetsRequest, context: Any) -> broker_pb2.QueryOffsetsReply:
        return self._offsets.query(request)

    @_up_to_date
    async def QueryQueueRanges(self, request: common_pb2.TopicQueues, context: Any) -> broker_pb2.QueueRanges:
        return self._offsets.ranges(request)

    @_up_to_date
    async def SearchOffset(self, request: broker_pb2.SearchOffsetRequest, context: Any) -> broker_pb2.QueueOffset:
        return self._offsets.search(request)

    @reporting_stream
    async def ConsumerSession(
        self, requests: AsyncIterator[broker_pb2.ConsumerRequest], context: Any
    ) -> AsyncIterator[broker_pb2.ConsumerEvent]:
        async with contextlib.aclosing(self._sessions.serve(requests, context)) as events:  # type: ignore[type-var]
            async for event in events:
                yield event

    @reporting
    async def TransferMaster(
        self, request: broker_pb2.TransferMasterRequest, context: Any
    ) -> broker_pb2.TransferMasterReply:
        if self._transfer is None:
            raise InvalidArgument(
                "the master of this broker group is configured, not elected: enableControllerMode=false"
            )
        return broker_pb2.TransferMasterReply(
            epoch=await self._transfer(request.to_broker_id), former_broker_id=self._status().identity.broker_id
        )

    @_up_to_date
    async def Status(self, request: common_pb2.Empty, context: Any) -> broker_pb2.BrokerStatus:
        return self._status()

    @_up_to_date
    async def QueryMessages(self, request: broker_pb2.QueryMessagesRequest, context: Any) -> broker_pb2.MessageRecords:
        return self._admin.query_messages(request)

    @_up_to_date
    async def ViewMessage(self, request: broker_pb2.ViewMessageRequest, context: Any) -> broker_pb2.MessageRecords:
        return self._admin.view_message(request.physical_offset)
