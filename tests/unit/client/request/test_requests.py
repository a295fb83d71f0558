"""Requests and replies of producers at real brokers, and what happens to them where it breaks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from penstock.client import (
    Admin,
    BufferFull,
    ClientClosed,
    InvalidArgument,
    Message,
    MessageView,
    OutcomeUnknown,
    Producer,
    TopicNotFound,
)
from penstock.client.aio import AsyncProducer
from penstock.client.request import requests
from penstock.formats.record.layout import decode_record
from penstock.proto.errors import LimitReached
from tests.support.client.push_consumers import Seen, consumer
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until

TOPIC, REPLIES = "orders", "main_REPLY_TOPIC"
LONG_S = 60.0


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={TOPIC: 4}) as made:
        yield made


@pytest.fixture
def producer(cluster: RunningCluster) -> Iterator[Producer]:
    with Producer(cluster.namesrv) as made:
        yield made


def echo(producer: Producer) -> Callable[[MessageView], None]:
    def reply(message: MessageView) -> None:
        producer.reply(message, b"re: " + message.body, timeout_s=LONG_S)

    return reply


def stored(cluster: RunningCluster, name: str = "broker-a") -> list[bytes]:
    return [decode_record(record).body for record in cluster.brokers[name].records(REPLIES).values()]


def waiting(producer: Producer) -> int:
    return len(producer._request_reply.requests)


class Asking:
    """A request in a thread."""

    def __init__(self, producer: Producer, body: bytes = b"one", timeout_s: float = LONG_S) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(producer.request, TOPIC, body, timeout_s=timeout_s)
        self._pool.shutdown(wait=False)

    def reply(self) -> MessageView:
        return self._future.result(LONG_S)


def test_a_request_gets_the_reply_of_whoever_consumes_it(cluster: RunningCluster, producer: Producer) -> None:
    receipts = []

    def answer(message: MessageView) -> None:
        receipts.append(producer.reply(message, b"42", tag="done", keys="k", properties={"unit": "EUR"}))

    seen = Seen(answer)
    with consumer(cluster, seen):
        reply = producer.request(TOPIC, b"what?", tag="ask", properties={"for": "me"}, timeout_s=LONG_S)
    (request,) = seen.messages
    assert (request.body, request.tag, request.properties) == (b"what?", "ask", {"for": "me"})
    told = request.all_properties
    assert (told["REPLY_TO_CLIENT"], told["TTL"]) == (producer.client_id, "60000")
    assert (reply.body, reply.tag, reply.keys, reply.properties) == (b"42", "done", ["k"], {"unit": "EUR"})
    assert (reply.topic, reply.broker_name, reply.queue_id) == (REPLIES, "broker-a", 0)
    mine = reply.all_properties
    assert [mine[name] == told[name] for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL")] == [True] * 3
    assert mine["MSG_TYPE"] == "reply"
    assert int(mine["PUSH_REPLY_TIME"]) > 0
    assert int(mine["ARRIVE_TIME"]) > 0
    (receipt,) = receipts
    assert (receipt.topic, receipt.broker_name, receipt.queue_offset) == (REPLIES, "broker-a", 0)
    assert receipt.message_id == reply.message_id
    assert waiting(producer) == 0


def test_a_thousand_requests_at_once_each_get_their_own_reply() -> None:
    with RunningCluster(shards=2, topics={TOPIC: 4}) as cluster, Producer(cluster.namesrv) as responder:

        async def ask() -> list[bytes]:
            async with AsyncProducer(cluster.namesrv) as producer:
                asked = (producer.request(TOPIC, b"%d" % number, timeout_s=LONG_S) for number in range(1000))
                return [reply.body for reply in await asyncio.gather(*asked)]

        with consumer(cluster, Seen(echo(responder)), consume_threads=8):
            assert asyncio.run(ask()) == [b"re: %d" % number for number in range(1000)]
        # A broker group that was sent no request has no topic of replies.
        holders = [name for name, broker in cluster.brokers.items() if REPLIES in broker.topics()]
        assert sum(len(stored(cluster, name)) for name in holders) == 1000


def test_requests_of_many_threads_each_get_their_own_reply(cluster: RunningCluster, producer: Producer) -> None:
    with consumer(cluster, Seen(echo(producer)), consume_threads=4), ThreadPoolExecutor(50) as pool:
        asked = pool.map(lambda number: producer.request(TOPIC, b"%d" % number, timeout_s=LONG_S).body, range(200))
        assert list(asked) == [b"re: %d" % number for number in range(200)]


def test_without_a_reply_in_time_the_error_says_that_the_request_is_stored(
    cluster: RunningCluster, producer: Producer
) -> None:
    with pytest.raises(OutcomeUnknown, match=r"no reply within 0\.5 s; the request is stored \(broker group broker-a"):
        producer.request(TOPIC, b"one", timeout_s=0.5)
    assert waiting(producer) == 0

    async def ask() -> None:
        async with AsyncProducer(cluster.namesrv) as asking:
            with pytest.raises(OutcomeUnknown, match=r"no reply within 0\.5 s; the request is stored"):
                await asking.request(TOPIC, b"two", timeout_s=0.5)
            assert waiting(asking.producer) == 0

    asyncio.run(ask())


def test_a_reply_that_comes_too_late_is_stored_and_nobodys(cluster: RunningCluster, producer: Producer) -> None:
    may_reply, seen = threading.Event(), Seen()
    seen.then = lambda message: may_reply.wait(LONG_S) and echo(producer)(message)
    with consumer(cluster, seen):
        with pytest.raises(OutcomeUnknown, match="no reply"):
            producer.request(TOPIC, b"one", timeout_s=0.5)
        may_reply.set()
        wait_until(lambda: producer._request_reply.requests.late == 1, what="the late reply")
    assert stored(cluster) == [b"re: one"]


def test_a_request_that_is_not_stored_is_refused_by_name_and_forgotten(cluster: RunningCluster) -> None:
    with Producer(cluster.namesrv, auto_create_topics=False) as producer:
        with pytest.raises(TopicNotFound):
            producer.request("unknown", b"one")
        with pytest.raises(InvalidArgument, match="body is empty"):
            producer.request(TOPIC, b"")
        assert waiting(producer) == 0


def test_too_many_requests_at_once_are_refused(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "REQUESTS_MAX", 0)
    with pytest.raises(BufferFull, match="requests wait for their replies"):
        producer.request(TOPIC, b"one")


def test_what_is_no_request_has_no_reply(cluster: RunningCluster, producer: Producer) -> None:
    with pytest.raises(InvalidArgument, match="give a message that a consumer received"):
        producer.reply(Message(TOPIC, b"one"), b"two")  # type: ignore[arg-type]
    errors: list[Exception] = []

    def answer(message: MessageView) -> None:
        try:
            producer.reply(message, b"two")
        except InvalidArgument as error:
            errors.append(error)

    client = {"REPLY_TO_CLIENT": "c"}
    huge = {**client, "CORRELATION_ID": "x" * 20_000}
    forged: tuple[dict[str, str], ...] = ({}, client, huge, {"CORRELATION_ID": "x"})
    seen = Seen(answer)
    with consumer(cluster, seen):
        for properties in forged:
            producer.send(TOPIC, b"one", properties=properties)
            wait_until(lambda: len(errors) == len(seen) > 0, what="the refusal")
        wait_until(lambda: len(errors) == len(forged), what="all refusals")
    assert sum("it is no request" in str(error) for error in errors) == 3
    assert sum("its CORRELATION_ID has 20000 bytes, at most 255" in str(error) for error in errors) == 1
    assert not cluster.route(REPLIES).exists


def test_a_reply_to_a_client_that_is_not_there_is_stored_all_the_same(
    cluster: RunningCluster, producer: Producer
) -> None:
    done = threading.Event()

    def answer(message: MessageView) -> None:
        producer.reply(message, b"two")
        done.set()

    with consumer(cluster, Seen(answer)):
        producer.send(TOPIC, b"one", properties={"CORRELATION_ID": "x" * 255, "REPLY_TO_CLIENT": "nobody"})
        assert done.wait(LONG_S)
    assert stored(cluster) == [b"two"]


@pytest.mark.parametrize("how", ["cut", "killed"])
def test_a_reply_that_was_stored_while_the_line_was_broken_arrives(
    cluster: RunningCluster, producer: Producer, how: str
) -> None:
    broker, seen = cluster.brokers["broker-a"], Seen()
    with consumer(cluster, seen):
        asking = Asking(producer)
        wait_until(lambda: len(seen) == 1 and broker.faults.calls["Listen"] == 1, what="the request, and its line")
        if how == "killed":
            cluster.kill("broker-a")
            cluster.revive("broker-a")
            producer.reply(seen.messages[0], b"two", timeout_s=LONG_S)
        else:
            with broker.faults.holding("Listen"):
                broker.faults.cut("Listen")
                producer.reply(seen.messages[0], b"two", timeout_s=LONG_S)
        assert asking.reply().body == b"two"


def test_a_reply_that_was_there_before_anybody_listened_arrives(cluster: RunningCluster, producer: Producer) -> None:
    broker = cluster.brokers["broker-a"]
    with consumer(cluster, Seen(echo(producer))):
        with broker.faults.holding("Listen"):
            askings = [Asking(producer, b"%d" % number) for number in range(20)]
            wait_until(lambda: cluster.route(REPLIES).exists and len(stored(cluster)) == 20, what="the stored replies")
        assert [asking.reply().body for asking in askings] == [b"re: %d" % number for number in range(20)]


def test_a_broker_that_hears_nobody_ends_the_wait_at_once(cluster: RunningCluster, producer: Producer) -> None:
    cluster.brokers["broker-a"].faults.refuse("Listen", LimitReached("too many listen"))
    with pytest.raises(OutcomeUnknown, match="its reply cannot be heard: too many listen; the request is stored"):
        producer.request(TOPIC, b"one", timeout_s=LONG_S)


def test_closing_ends_the_wait_and_leaves_no_thread(cluster: RunningCluster) -> None:
    producer = Producer(cluster.namesrv)
    asking = Asking(producer)
    wait_until(lambda: cluster.brokers["broker-a"].faults.calls["Listen"] == 1, what="the line")
    producer.close()
    with pytest.raises(ClientClosed, match="closed before the reply came; the request is stored"):
        asking.reply()
    with pytest.raises(ClientClosed):
        producer.request(TOPIC, b"two")
    names: list[Any] = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("penstock-replies")]


def test_replies_to_requests_of_a_topic_that_demands_keys_have_none(
    cluster: RunningCluster, producer: Producer
) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("fifo", queues=2, type="FIFO", order_topic=True)
    with consumer(cluster, Seen(echo(producer))) as made:
        made.subscribe("fifo")
        assert producer.request("fifo", b"one", sharding_key="k", timeout_s=LONG_S).body == b"re: one"


def test_the_asyncio_twin_takes_what_request_takes(cluster: RunningCluster) -> None:
    async def ask() -> None:
        async with AsyncProducer(cluster.namesrv) as producer:
            with pytest.raises(TypeError, match="delay_s"):
                await producer.request(TOPIC, b"one", delay_s=1.0)  # type: ignore[call-arg]
            assert producer.pending == 0

    asyncio.run(ask())


def test_closing_while_the_last_one_gives_up_is_no_error() -> None:
    class Leaving(dict[str, Any]):
        """Everybody in it gives up as soon as somebody has looked."""

        def __len__(self) -> int:
            found = super().__len__()
            self.clear()
            return found

        def values(self) -> Any:
            found = list(super().values())
            self.clear()
            return found

    waiting = requests.Requests(cast(Any, None), "client")
    asked = waiting.begin(TOPIC, 1.0)
    waiting._waiting = Leaving(waiting._waiting)
    waiting.close()
    assert not asked.future.done()
