"""Transactions at a gateway: of whose groups it is a member, and what becomes of brokers' questions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.client import BrokerUnavailable, PenstockError
from penstock.gateway.v2.clients import COMMANDS_MAX, Clients, Stream
from penstock.gateway.v2.produce import transactions as module
from penstock.gateway.v2.produce.transactions import QUESTIONS_MAX, Transactions, group_of_topic
from penstock.gateway.v2.status import status_of
from penstock.gateway.v2.wire import definition_pb2 as v2
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.proto.errors import LimitReached
from penstock.proto.names import TOPIC_LENGTH_MAX
from penstock.proto.wire.nameserver_pb2 import TopicRoute
from penstock.runtime.clock import SystemClock
from tests.support.client.running_cluster import RunningCluster
from tests.support.gateway import Client, RunningGateway, Telemetry, message, topic_of_type
from tests.support.waiting import eventually, wait_until

COMMIT = v2.TransactionResolution.COMMIT
ROLLBACK = v2.TransactionResolution.ROLLBACK


class World:
    """Brokers with topics of one type, the sessions with them, and the publishers of all topics but ``gone``."""

    def __init__(self, kind: str = "TRANSACTION") -> None:
        self.kind = kind
        self.gone: set[str] = set()
        self.error: PenstockError | None = None  # of routes
        self.room = 1 << 10  # for groups
        self.groups: list[str] = []
        self.sent: list[tuple[Any, ...]] = []
        self.asked: list[str] = []
        self.is_closed = False
        self.ask: Callable[[str, Any], None]

    # In the place of the brokers.

    async def in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return call(*arguments)

    async def route(self, topic: str) -> TopicRoute:
        if self.error is not None:
            raise self.error
        return TopicRoute(topic=topic, exists=True, attributes={"message.type": self.kind})

    # Of the clients.

    def publishers(self, topic: str) -> list[Any]:
        def push(command: wire.TelemetryCommand) -> bool:
            self.asked.append(command.recover_orphaned_transaction_command.message.topic.name)
            return True

        return [] if topic in self.gone else [SimpleNamespace(namespace="", push=push)]

    # Of the producer and its sessions.

    def producer_sessions(self, on_question: Any) -> World:
        self.ask = on_question
        return self

    def join(self, group: str) -> None:
        if len(self.groups) >= self.room:
            raise LimitReached("so many groups")
        self.groups.append(group)

    def leave(self, group: str) -> None:
        self.groups.remove(group)

    def close(self) -> None:
        self.is_closed = True

    def send_half(self, group: str, owner: Any, *draft: Any, **options: Any) -> asyncio.Future[Any]:
        self.sent.append((group, *draft))
        owner.on_stored("broker-a", 7, 1, 3)
        sent = asyncio.get_running_loop().create_future()
        sent.set_result("receipt")
        return sent


Scenario = Callable[[Any, Transactions], Awaitable[None]]


def played(scenario: Scenario, kind: str = "TRANSACTION") -> None:
    async def play() -> None:
        world: Any = World(kind)
        transactions = Transactions(world, world, world)
        running = asyncio.create_task(transactions.run())
        try:
            await scenario(world, transactions)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await transactions.close()
        assert world.is_closed

    asyncio.run(play())


def named(*topics: str) -> Any:
    """A producer that has told these topics."""
    return SimpleNamespace(topics=dict.fromkeys(topics))


def draft(message_id: str = "id") -> Any:
    return SimpleNamespace(
        message_id=message_id, body=b"", tag=None, keys=[], properties={}, sharding_key=None, check_after_s=None
    )


def half(topic: str, message_id: str = "id") -> Any:
    """A message, as brokers ask about it."""
    return SimpleNamespace(
        topic=topic,
        message_id=message_id,
        all_properties={},
        body=b"",
        sys_flag=0,
        tag=None,
        born_timestamp_ms=0,
        born_host="host",
        store_timestamp_ms=0,
        store_host="host",
        queue_id=0,
        queue_offset=0,
    )


def question(*topics: str) -> Iterator[tuple[int, Any]]:
    return ((offset, half(topic)) for offset, topic in enumerate(topics))


@pytest.mark.parametrize("kind", ["TRANSACTION", "MIXED"])
def test_a_gateway_is_a_member_of_all_groups_whose_producers_are_there(kind: str) -> None:
    topics = [f"topic-{number:03}" for number in range(300)]

    async def scenario(world: Any, transactions: Transactions) -> None:
        transactions.on_producer(named(*topics))
        transactions.on_producer(named(*topics[:10]))
        await eventually(lambda: not transactions._tasks)
        await transactions.send("another", draft(), 1.0)
        await transactions.send("another", draft(), 1.0)
        assert world.groups == [*topics, "another"]
        world.gone = {"another", *topics[:-1]}
        await transactions.sweep()
        assert world.groups == [*topics, "another"], "their clients may come back"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "IDLE_S", -1.0)
            await transactions.sweep()
        assert world.groups == topics[-1:]
        await transactions.send("another", draft(), 1.0)
        assert world.groups == [*topics[-1:], "another"]

    played(scenario, kind)


def test_a_gateway_is_no_member_for_topics_that_take_no_transactions() -> None:
    async def scenario(world: Any, transactions: Transactions) -> None:
        transactions.on_producer(named("one", "two"))
        await eventually(lambda: not transactions._tasks)
        assert world.groups == []

    played(scenario, "NORMAL")


def test_topics_of_which_nothing_was_known_are_joined_later() -> None:
    async def scenario(world: Any, transactions: Transactions) -> None:
        world.error = BrokerUnavailable("away")
        transactions.on_producer(named("one", "two", "three"))
        await eventually(lambda: not transactions._tasks)
        await transactions.sweep()
        assert (world.groups, len(transactions._missed)) == ([], 3)
        world.error, world.gone = None, {"two"}
        await transactions.sweep()
        assert (sorted(world.groups), transactions._missed) == (["one", "three"], {})

    played(scenario)


def test_a_half_that_nobody_could_be_asked_about_is_refused() -> None:
    async def scenario(world: Any, transactions: Transactions) -> None:
        world.room = 1
        await transactions.send("one", draft(), 1.0)
        with pytest.raises(LimitReached) as refused:
            await transactions.send("two", draft(), 1.0)
        assert status_of(refused.value, "SendMessage").code == v2.Code.TOO_MANY_REQUESTS
        transactions.on_producer(named("three"))
        await eventually(lambda: not transactions._tasks)
        assert (world.groups, [group for group, *_ in world.sent]) == (["one"], ["one"])
        world.room = 2
        await transactions.send("two", draft(), 1.0)

    played(scenario)


def test_a_topic_with_a_name_too_long_for_a_group_is_asked_about_by_its_name() -> None:
    topic = "t" * TOPIC_LENGTH_MAX

    async def scenario(world: Any, transactions: Transactions) -> None:
        await transactions.send(topic, draft(), 1.0)
        assert world.groups == [group_of_topic(topic)]
        assert len(group_of_topic(topic)) == 32
        world.ask("broker-a", question(topic, "other"))
        await eventually(lambda: len(world.asked) == 2)
        assert world.asked == [topic, "other"]

    played(scenario)


def test_more_questions_than_are_passed_on_are_dropped_and_a_broken_one_stops_no_other() -> None:
    async def scenario(world: Any, transactions: Transactions) -> None:
        world.ask("broker-a", iter([None]))
        for _ in range(QUESTIONS_MAX + 5):
            world.ask("broker-a", question("topic"))
        await eventually(lambda: len(world.asked) == QUESTIONS_MAX - 1)
        await asyncio.sleep(0)
        world.ask("broker-a", question("topic"))
        await eventually(lambda: len(world.asked) == QUESTIONS_MAX)

    played(scenario)


def test_a_client_that_reads_takes_a_question_about_many_halves() -> None:
    async def scenario(world: Any, transactions: Transactions) -> None:
        stream, clients = Stream(), Clients()
        world.publishers = lambda _: [SimpleNamespace(namespace="", push=stream.push)]
        world.ask("broker-a", question(*["topic"] * (4 * COMMANDS_MAX)))
        for _ in range(4 * COMMANDS_MAX):
            assert await stream.next() is not None, "its stream has not ended"
        assert list(clients) == []

    played(scenario)


# With brokers.


def end(topic: str, transaction_id: str, resolution: int) -> wire.EndTransactionRequest:
    return wire.EndTransactionRequest(
        topic=v2.Resource(name=topic),
        message_id=transaction_id,
        transaction_id=transaction_id,
        resolution=resolution,  # type: ignore[arg-type]
        source=v2.TransactionSource.SOURCE_SERVER_CHECK,
    )


def producing(client: Client, *topics: str) -> Telemetry:
    """The stream of a client that has told these topics, and knows that they are known."""
    stream = client.telemetry()
    names = [v2.Resource(name=topic) for topic in topics]
    stream.push(v2.Settings(client_type=v2.ClientType.PRODUCER, publishing=v2.Publishing(topics=names)))
    stream.next()
    return stream


def sent(client: Client, topic: str, body: bytes = b"x") -> str:
    entry = client.send(message(topic, body, message_type=v2.MessageType.TRANSACTION)).entries[0]
    assert entry.status.code == v2.Code.OK, entry.status
    return entry.transaction_id


def test_halves_of_very_many_topics_are_asked_about_over_one_session_and_end_at_another_gateway() -> None:
    topics = [f"topic-{number:02}" for number in range(80)]
    soon = {"transactionTimeOut": 500, "transactionCheckInterval": 500, "transactionCheckMax": 10_000}
    with RunningCluster(**soon) as cluster:
        for topic in topics:
            topic_of_type(cluster, topic, "TRANSACTION", queues=1)
        with RunningGateway(cluster) as one, RunningGateway(cluster) as other:
            with Client(one.address) as client, Client(other.address) as elsewhere:
                stream = producing(client, *topics)
                waiting = {sent(client, topic): topic for topic in topics}
                assert len(waiting) == len(topics)
                committed = list(waiting.values())[::2]
                while waiting:
                    asked = stream.next().recover_orphaned_transaction_command
                    topic = waiting.pop(asked.transaction_id, "")
                    if topic:
                        assert asked.message.topic.name == topic
                        resolution = COMMIT if topic in committed else ROLLBACK
                        assert elsewhere.code("EndTransaction", end(topic, asked.transaction_id, resolution)) == "OK"
                stream.close()
            broker = cluster.brokers["broker-a"]
            for topic in topics:
                expected = 1 if topic in committed else 0
                wait_until(lambda t=topic, e=expected: len(broker.records(t)) == e, what=topic)  # type: ignore[misc]
            clients = {request.client_id for request in broker.faults.requests["Join"]}
            assert len(clients) == 1, "the other gateway has nobody who could be asked"


def test_a_half_is_asked_about_after_its_gateway_and_its_broker_have_died() -> None:
    with RunningCluster(transactionTimeOut=500, transactionCheckInterval=500) as cluster:
        topic_of_type(cluster, "topic", "TRANSACTION")
        with RunningGateway(cluster) as gateway, Client(gateway.address) as client:
            transaction_id = sent(client, "topic", b"asked about")
        cluster.kill("broker-a")
        with RunningGateway(cluster) as gateway, Client(gateway.address) as client:
            stream = client.telemetry()
            names = [v2.Resource(name="topic")]
            stream.push(v2.Settings(client_type=v2.ClientType.PRODUCER, publishing=v2.Publishing(topics=names)))
            stream.next()
            cluster.revive("broker-a")
            for _ in range(2):
                asked = stream.next().recover_orphaned_transaction_command
                assert asked.transaction_id == transaction_id
                cluster.kill("broker-a")
                cluster.revive("broker-a")
            assert client.code("EndTransaction", end("topic", transaction_id, COMMIT)) == "OK"
            broker = cluster.brokers["broker-a"]
            (record,) = wait_until(lambda: broker.records("topic"), what="the committed message").values()
            assert b"asked about" in record
            stream.close()


def test_halves_are_found_at_brokers_whose_clocks_are_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemClock, "wall_ms", lambda self: time.time_ns() // 1_000_000 + 600_000)
    with RunningCluster() as cluster:
        topic_of_type(cluster, "topic", "TRANSACTION")
        with RunningGateway(cluster) as gateway, Client(gateway.address) as client:
            producing(client, "topic").close()
            transaction_id = sent(client, "topic")
        with RunningGateway(cluster) as other, Client(other.address) as client:
            assert client.code("EndTransaction", end("topic", transaction_id, COMMIT)) == "OK"
