"""Members of consumer groups at the sessions of one broker: streams without a port."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable

from penstock.broker.consume.consumer_sessions import ConsumerSessions
from penstock.proto.errors import (
    GroupNotFound,
    PenstockError,
)
from penstock.proto.wire.broker_pb2 import ConsumerEvent, ConsumerRequest, Filter
from penstock.proto.wire.common_pb2 import Empty, TopicQueues
from tests.support.clock import ManualClock


class Broker:
    """The sessions of one broker, with settable offsets."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.committed: dict[tuple[str, str, int], int] = {}
        self.sessions = ConsumerSessions(
            committed=lambda group, topic, queue_id: self.committed.get((group, topic, queue_id), -1),
            queue_range=lambda topic, queue_id: (5, self.queue_end),
            join_group=self.join_group,
            clock=self.clock,
            catch_up=lambda: self.catch_up(),
            is_acting=lambda: self.is_acting,
        )
        self.is_acting = True
        self.queue_end = 50
        self.catch_up: Callable[[], None] = lambda: None
        self.forbidden: set[str] = set()
        self.members: list[Member] = []

    def join_group(self, group: str) -> None:
        if group in self.forbidden:
            raise GroupNotFound(f"group {group!r} does not exist")

    def all_compared(self) -> bool:
        return all(session.compare_at_s == math.inf for session in self.sessions._sessions.values())

    def connect(self) -> Member:
        member = Member(self)
        self.members.append(member)
        return member

    async def join(self, client_id: str, group: str = "g", lock_ms: int = 0, **subscriptions: Filter) -> Member:
        member = self.connect()
        member.send_join(client_id, group, lock_ms, **subscriptions)
        joined = (await member.next()).joined
        member.session_id = joined.session_id
        assert member.session_id
        assert joined.heartbeat_interval_ms == 1000
        return member


class Member:
    """A client's end of one stream."""

    def __init__(self, broker: Broker) -> None:
        self.session_id = 0
        self.error: PenstockError | None = None
        self.requests: asyncio.Queue[ConsumerRequest | None] = asyncio.Queue()
        self.events: asyncio.Queue[ConsumerEvent] = asyncio.Queue()
        self.reads = asyncio.Event()
        self.reads.set()
        self.task = asyncio.create_task(self._serve(broker))

    async def _serve(self, broker: Broker) -> None:
        async def incoming() -> AsyncIterator[ConsumerRequest]:
            while (request := await self.requests.get()) is not None:
                yield request

        try:
            async for event in broker.sessions.serve(incoming(), None):
                await self.reads.wait()
                self.events.put_nowait(event)
        except PenstockError as error:
            self.error = error

    def send_join(self, client_id: str, group: str = "g", lock_ms: int = 0, **subscriptions: Filter) -> None:
        join = ConsumerRequest.Join(group=group, client_id=client_id, subscriptions=subscriptions, lock_ms=lock_ms)
        self.requests.put_nowait(ConsumerRequest(join=join))

    def claim(self, *queue_ids: int) -> None:
        self.requests.put_nowait(ConsumerRequest(claim=TopicQueues(topic="T", queue_ids=queue_ids)))

    def reclaim(self, left_ms: int, *queue_ids: int) -> None:
        queues = TopicQueues(topic="T", queue_ids=queue_ids)
        reclaim = ConsumerRequest.Reclaim(queues=queues, left_ms=left_ms)
        self.requests.put_nowait(ConsumerRequest(reclaim=reclaim))

    def release(self, *queue_ids: int) -> None:
        self.requests.put_nowait(ConsumerRequest(release=TopicQueues(topic="T", queue_ids=queue_ids)))

    def beat(self) -> None:
        self.requests.put_nowait(ConsumerRequest(heartbeat=Empty()))

    def leave(self) -> None:
        self.requests.put_nowait(None)

    async def next(self) -> ConsumerEvent:
        return await asyncio.wait_for(self.events.get(), 30)

    async def next_members(self) -> list[str]:
        while True:
            event = await self.next()
            if event.HasField("members"):
                return list(event.members.client_ids)

    async def next_grants(self, count: int) -> list[int]:
        granted: list[int] = []
        while len(granted) < count:
            event = await self.next()
            if event.HasField("granted"):
                granted.append(event.granted.queue_id)
        return granted

    async def ended(self) -> PenstockError | None:
        await asyncio.wait_for(self.task, 60)
        return self.error


def with_broker(test: Callable[[Broker], Awaitable[None]]) -> Callable[[], None]:
    """Run ``test`` in a loop and take every stream down afterwards."""

    def run() -> None:
        async def body() -> None:
            broker = Broker()
            try:
                await test(broker)
            finally:
                broker.sessions.close()
                for member in broker.members:
                    member.reads.set()
                    await asyncio.wait_for(member.task, 60)

        asyncio.run(body())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run
