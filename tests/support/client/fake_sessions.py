"""Consumer groups for :class:`tests.support.client.fake_cluster.FakeCluster`: the real session service."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc

from penstock.broker.consume.consumer_sessions import ConsumerSessions
from penstock.formats.record.batch import encode_messages
from penstock.formats.record.layout import Host
from penstock.formats.record.properties import encode_properties
from penstock.proto.errors import PenstockError
from penstock.proto.wire import broker_pb2, common_pb2
from penstock.runtime.clock import SystemClock
from tests.support.client.fake_broker import FakeBroker, fail
from tests.support.client.fake_cluster import FakeCluster

BORN_HOST = Host.parse("127.0.0.1:1")


class BrokerGroups:
    """Sessions of one fake broker, on an event loop in a thread of its own; commits are held to the claims."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.refused_groups: dict[str, PenstockError] = {}
        self.commits: list[tuple[str, str, int, int]] = []  # client id, topic, queue id, offset
        self.committed_by: dict[tuple[str, int], str] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-sessions", daemon=True)
        self._thread.start()
        self._calls: dict[str, grpc.ServicerContext] = {}
        self.sessions = self._new_sessions()
        broker.ConsumerSession = self._serve  # type: ignore[method-assign]
        broker.CommitOffsets = self._commit  # type: ignore[method-assign]

    def _new_sessions(self) -> ConsumerSessions:
        return ConsumerSessions(
            committed=lambda group, topic, queue_id: self.broker.committed.get((group, topic, queue_id), -1),
            queue_range=lambda topic, queue_id: (0, len(self.broker.queues.get((topic, queue_id), ()))),
            join_group=self._join_group,
            clock=SystemClock(),
        )

    def restart(self) -> None:
        """Forget every session, as a broker that starts again."""
        self.call(self.sessions.close)
        self.sessions = self._new_sessions()

    def _join_group(self, group: str) -> None:
        if group in self.refused_groups:
            raise self.refused_groups[group]

    def call(self, function: Any, *arguments: Any) -> Any:
        """Run something in the sessions' loop."""

        async def run() -> Any:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(timeout=5)

    def members(self, group: str) -> list[str]:
        return [member.client_id for member in self.call(self.sessions.describe, group)]

    def claimed(self, group: str) -> dict[str, list[int]]:
        """Client id -> queue ids of all topics that it holds."""
        described = self.call(self.sessions.describe, group)
        return {member.client_id: [q for each in member.claimed for q in each.queue_ids] for member in described}

    def break_stream(self, client_id: str) -> None:
        """End a member's stream as a broken connection would."""
        self._calls[client_id].cancel()

    def close(self) -> None:
        self.call(self.sessions.close)

        async def stop_rest() -> None:
            rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop_rest(), self._loop).result(timeout=5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._loop.close()

    def _serve(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        incoming: asyncio.Queue[Any] = asyncio.Queue()
        outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()

        async def incoming_requests() -> AsyncIterator[Any]:
            while (request := await incoming.get()) is not None:
                yield request

        async def run() -> None:
            try:
                async for event in self.sessions.serve(incoming_requests(), None):
                    outgoing.put(event)
                outgoing.put(None)
            except PenstockError as error:
                outgoing.put(error)
            except asyncio.CancelledError:
                outgoing.put(None)
                raise

        def read() -> None:
            try:
                for request in requests:
                    if request.HasField("join"):
                        self._calls[request.join.client_id] = context
                    self._post(incoming, request)
            except grpc.RpcError:
                task.cancel()
            self._post(incoming, None)

        task = asyncio.run_coroutine_threadsafe(run(), self._loop)
        context.add_callback(lambda: self._post(incoming, None))
        threading.Thread(target=read, name="fake-session-read", daemon=True).start()
        while (event := outgoing.get()) is not None:
            if isinstance(event, PenstockError):
                fail(context, event)
            yield event

    def _post(self, target: asyncio.Queue[Any], item: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(target.put_nowait, item)

    def _commit(self, request: Any, context: grpc.ServicerContext) -> Any:
        reply = broker_pb2.CommitOffsetsReply()
        for offsets in request.offsets:
            refused = common_pb2.TopicQueues(topic=offsets.topic)
            for queue_id, offset in zip(offsets.queue_ids, offsets.offsets, strict=True):
                key = (request.group, offsets.topic, queue_id)
                owns = not request.session_id or self.call(
                    self.sessions.owns, request.session_id, request.group, offsets.topic, queue_id
                )
                if not owns or (offset < self.broker.committed.get(key, -1) and not request.force):
                    refused.queue_ids.append(queue_id)
                    continue
                self.broker.committed[key] = offset
                if request.force:
                    self.call(self.sessions.notify_reset, request.group, offsets.topic, queue_id, offset)
                self.commits.append((request.client_id, offsets.topic, queue_id, offset))
            if refused.queue_ids:
                reply.refused.append(refused)
        return reply


class GroupCluster(FakeCluster):
    """A fake cluster whose brokers have consumer groups."""

    def __init__(self, shards: int = 1, *, topics: dict[str, int] | None = None) -> None:
        super().__init__(shards, topics=topics)
        self.groups = {name: BrokerGroups(broker) for name, broker in self.brokers.items()}

    def add_slave(self, broker_name: str = "broker-a") -> FakeBroker:
        """A slave of that shard that always has what its master has, messages and committed offsets."""
        master, slave = self.brokers[broker_name], FakeBroker(self, broker_name, 1)
        slave.topics, slave.queues, slave.committed = master.topics, master.queues, master.committed
        slave._changed = master._changed
        self.brokers[f"{broker_name}-1"] = slave
        self.groups[f"{broker_name}-1"] = BrokerGroups(slave)
        slave.start()
        self.push_routes()
        return slave

    def __exit__(self, *details: object) -> None:
        for groups in self.groups.values():
            groups.call(groups.sessions.close)
        super().__exit__(*details)
        for groups in self.groups.values():
            groups.close()

    def put(
        self,
        topic: str,
        bodies: list[bytes],
        queue_id: int = 0,
        *,
        broker_name: str = "broker-a",
        tags: list[str] | None = None,
    ) -> None:
        """Store messages in one queue."""
        properties = None if tags is None else [encode_properties({"TAGS": tag}) for tag in tags]
        records = encode_messages(topic, bodies, properties, queue_id, born_host=BORN_HOST)
        self.brokers[broker_name].store(topic, records)

    def committed(self, group: str, topic: str, queue_id: int, broker_name: str = "broker-a") -> int:
        return self.brokers[broker_name].committed.get((group, topic, queue_id), -1)
