"""A master dies and comes back while clients send and receive: what was told OK is received, and codes are right."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from penstock.gateway.v2.wire import definition_pb2 as v2
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.proto.wire.broker_pb2 import CreateTopicRequest
from penstock.proto.wire.common_pb2 import TopicConfig
from tests.support.client.running_cluster import RunningCluster
from tests.support.gateway import Client, RunningGateway, acknowledged, message, topic_of_type, wish
from tests.support.waiting import wait_until

TRANSIENT = {"INTERNAL_SERVER_ERROR", "PROXY_TIMEOUT", "HA_NOT_AVAILABLE", "MASTER_PERSISTENCE_TIMEOUT"}
"""What a client is told while there is no master: it tries again."""


class _Worker:
    """Does one thing again and again in a thread, and counts the codes of the answers."""

    def __init__(self, address: str) -> None:
        self.codes: Counter[str] = Counter()
        self.client = Client(address)
        self.errors: list[BaseException] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                self.codes[self.work()] += 1
        except BaseException as error:
            self.errors.append(error)
            raise

    def work(self) -> str:
        raise NotImplementedError

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "a call through the gateway does not end"
        self.client.channel.close()

    def wait_more(self, count: int = 20) -> None:
        """Until so many more answers were OK."""
        wanted = self.codes["OK"] + count
        wait_until(lambda: self.errors or self.codes["OK"] >= wanted, 60, f"{count} more answers that are OK")
        assert not self.errors


class _Sender(_Worker):
    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.sent: set[bytes] = set()

    def work(self) -> str:
        body = b"%d" % self.codes.total()
        code = v2.Code.Name(self.client.send(message("kept", body)).status.code)
        if code == "OK":
            self.sent.add(body)
        return code


class _Receiver(_Worker):
    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.received: set[bytes] = set()
        self.ends: Counter[str] = Counter()

    def work(self) -> str:
        answer = self.client.receive(wish("g", "kept", wait_s=1.0, invisible_ms=10_000))
        self.received.update(answer.bodies)
        if answer.messages:
            handles = [each.system_properties.receipt_handle for each in answer.messages]
            ended = self.client.call("AckMessage", acknowledged("g", "kept", *handles))
            self.ends.update(v2.Code.Name(entry.status.code) for entry in ended.entries)
        return answer.code


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster() as running:
        topic_of_type(running, "kept", "NORMAL")
        yield running


def test_a_topic_whose_only_master_is_away_is_not_called_unknown() -> None:
    with RunningCluster(shards=2) as cluster:
        config = TopicConfig(topic="apart", read_queues=1, write_queues=1, perm=6)
        cluster.brokers["broker-b"].call("CreateTopic", CreateTopicRequest(config=config))
        wait_until(lambda: cluster.route("apart").exists, 60, "the topic in the routes")
        asked = wire.QueryRouteRequest(topic=v2.Resource(name="apart"))
        with RunningGateway(cluster) as used, Client(used.address) as before:
            assert before.code("QueryRoute", asked) == "OK"
            cluster.kill("broker-b")
            with RunningGateway(cluster) as fresh, Client(fresh.address) as after:
                for client in (before, after):
                    assert client.code("QueryRoute", asked) in TRANSIENT
                    assert client.code("ReceiveMessage", wish("g", "apart", wait_s=0)) in TRANSIENT
                assert v2.Code.Name(after.send(message("apart")).status.code) in TRANSIENT
                cluster.revive("broker-b")
                for client in (before, after):
                    wait_until(lambda client=client: client.code("QueryRoute", asked) == "OK", 60, "the route again")


def test_nothing_is_lost_when_a_master_dies_under_clients(cluster: RunningCluster) -> None:
    with RunningGateway(cluster) as gateway:
        sender, receiver = _Sender(gateway.address), _Receiver(gateway.address)
        try:
            sender.start()
            receiver.start()
            sender.wait_more()
            receiver.wait_more(5)
            cluster.kill("broker-a")
            cluster.revive("broker-a")
            sender.wait_more()
            receiver.wait_more(5)
            sender.stop()
            wait_until(lambda: receiver.errors or sender.sent <= receiver.received, 60, "all that was told OK")
        finally:
            sender.stop()
            receiver.stop()
        assert not sender.errors
        assert not receiver.errors
        assert set(sender.codes) <= TRANSIENT | {"OK"}
        assert set(receiver.codes) <= TRANSIENT | {"OK", "MESSAGE_NOT_FOUND"}
        assert set(receiver.ends) <= TRANSIENT | {"OK", "INVALID_RECEIPT_HANDLE"}
