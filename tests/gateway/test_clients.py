from __future__ import annotations

import asyncio
import contextlib
import hmac
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.gateway.config import GatewaySecurity, GatewayTls
from penstock.gateway.v2.callers import NODE_JS, Caller
from penstock.gateway.v2.groups import Groups
from penstock.gateway.v2.routes import Routes
from penstock.gateway.v2.wire import definition_pb2 as v2
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.proto.wire import common_pb2
from penstock.proto.wire.nameserver_pb2 import TopicRoute
from penstock.runtime.security.settings import AuthenticationSettings, TlsServerMode, TlsSettings
from tests.support.client.running_cluster import RunningCluster
from tests.support.cluster.certificates import Authority, put
from tests.support.gateway import Client, OneBroker, RunningGateway, Telemetry, message, orderly_group, topic_of_type
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(transactionTimeOut=500, transactionCheckInterval=500) as running:
        topic_of_type(running, "normal", "NORMAL", queues=3)
        topic_of_type(running, "mixed", "MIXED")
        topic_of_type(running, "transaction", "TRANSACTION")
        yield running


@pytest.fixture(scope="module")
def gateway(cluster: RunningCluster) -> Iterator[RunningGateway]:
    with RunningGateway(cluster) as running:
        yield running


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[Client]:
    with Client(gateway.address) as made:
        yield made


@pytest.fixture
def stream(client: Client) -> Iterator[Telemetry]:
    made = client.telemetry()
    yield made
    made.close()


def producer_of(*topics: str) -> v2.Settings:
    return v2.Settings(
        client_type=v2.ClientType.PRODUCER,
        publishing=v2.Publishing(topics=[v2.Resource(name=topic) for topic in topics]),
    )


def consumer_of(group: str, *filters: v2.FilterExpression) -> v2.Settings:
    entries = [v2.SubscriptionEntry(topic=v2.Resource(name="normal"), expression=each) for each in filters]
    subscription = v2.Subscription(group=v2.Resource(name=group), subscriptions=entries)
    return v2.Settings(client_type=v2.ClientType.PUSH_CONSUMER, subscription=subscription)


def route(topic: str, host: str = "127.0.0.1", port: int = 8081) -> wire.QueryRouteRequest:
    endpoints = v2.Endpoints(scheme=v2.AddressScheme.IPv4, addresses=[v2.Address(host=host, port=port)])
    return wire.QueryRouteRequest(topic=v2.Resource(name=topic), endpoints=endpoints)


def test_a_route_names_every_queue_behind_the_address_that_the_client_has_reached(client: Client) -> None:
    answer = client.call("QueryRoute", route("normal"))
    assert [queue.id for queue in answer.message_queues] == [0, 1, 2]
    for queue in answer.message_queues:
        assert (queue.broker.name, queue.broker.id, queue.permission) == ("broker-a", 0, v2.Permission.READ_WRITE)
        assert list(queue.accept_message_types) == [v2.MessageType.NORMAL]
        assert queue.broker.endpoints.addresses[0].host == "127.0.0.1"
    assert len(client.call("QueryRoute", route("mixed")).message_queues[0].accept_message_types) == 4


class _Two(OneBroker):
    """Each topic has two queues at each of two broker groups."""

    def __init__(self) -> None:
        self.routes: dict[str, TopicRoute] = {}

    def known_route(self, topic: str) -> TopicRoute | None:
        return self.routes.get(topic)

    async def served_route(self, topic: str) -> TopicRoute:
        if topic not in self.routes:
            made = self.routes[topic] = TopicRoute(topic=topic, exists=True)
            for name in ("broker-b", "broker-a"):
                made.shards.add(broker_name=name).members.add(role=common_pb2.MASTER)
                made.queues.add(broker_name=name, perm=6, read_queues=2, write_queues=2)
        return self.routes[topic]


def routes_of(brokers: Any) -> Routes:
    return Routes(brokers, Groups(brokers), "127.0.0.1", 8081)


JAVA = Caller("client", "JAVA", "", "127.0.0.1:1", 5.0)


def test_queues_of_broker_groups_alternate_so_that_who_takes_them_in_turn_waits_long_at_none() -> None:
    answer = asyncio.run(routes_of(_Two()).query(JAVA, route("normal")))
    found = [(queue.broker.name, queue.id) for queue in answer.message_queues]
    assert found == [("broker-a", 0), ("broker-b", 0), ("broker-a", 1), ("broker-b", 1)]


def test_a_request_that_comes_again_has_the_route_of_now_for_its_caller() -> None:
    async def run() -> None:
        brokers = _Two()
        routes = routes_of(brokers)
        request = route("normal")
        request.endpoints.addresses.add(host="127.0.0.2", port=8081)
        first = await routes.query(JAVA, request)
        assert await routes.query(replace(JAVA, client_id="another"), request) is first
        only_one = await routes.query(replace(JAVA, language=NODE_JS), request)
        assert [len(each.message_queues[0].broker.endpoints.addresses) for each in (first, only_one)] == [2, 1]
        await routes.query(replace(JAVA, namespace="space"), request)
        assert brokers.routes.keys() == {"normal", "space%normal"}
        del brokers.routes["normal"]
        (await brokers.served_route("normal")).queues.pop()
        assert len((await routes.query(JAVA, request)).message_queues) == 2

    asyncio.run(run())


def test_bad_routes_have_their_code(client: Client) -> None:
    assert client.code("QueryRoute", route("missing")) == "TOPIC_NOT_FOUND"
    assert client.code("QueryRoute", route("")) == "ILLEGAL_TOPIC"
    assert client.code("QueryRoute", route("normal", host="")) == "ILLEGAL_ACCESS_POINT"
    assert client.code("QueryRoute", route("normal", port=70_000)) == "ILLEGAL_ACCESS_POINT"


def test_an_assignment_is_a_broker_and_for_an_orderly_group_a_queue(client: Client, cluster: RunningCluster) -> None:
    request = wire.QueryAssignmentRequest(topic=v2.Resource(name="normal"), group=v2.Resource(name="any"))
    assert [each.message_queue.id for each in client.call("QueryAssignment", request).assignments] == [-1]
    orderly_group(cluster, "orderly")
    request.group.name = "orderly"
    assert [each.message_queue.id for each in client.call("QueryAssignment", request).assignments] == [0, 1, 2]


def test_a_producer_is_told_its_limits(stream: Telemetry) -> None:
    stream.push(producer_of("normal"))
    answer = stream.next()
    settings = answer.settings
    assert answer.status.code == v2.Code.OK
    assert (settings.publishing.max_body_size, settings.publishing.validate_message_type) == (4194304, True)
    assert settings.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
    assert [topic.name for topic in settings.publishing.topics] == ["normal"]


def test_a_consumer_is_told_its_groups_delays(stream: Telemetry) -> None:
    stream.push(consumer_of("g"))
    settings = stream.next().settings
    assert (settings.backoff_policy.max_attempts, settings.subscription.receive_batch_size) == (17, 32)
    assert len(settings.backoff_policy.customized_backoff.next) == 18
    assert not settings.subscription.fifo
    stream.push(consumer_of("g"))
    assert stream.next().settings == settings


def test_node_js_is_told_twice_and_in_its_own_unit(gateway: RunningGateway) -> None:
    with Client(gateway.address, x_mq_language="HTTP") as node:
        stream = node.telemetry()
        stream.push(consumer_of("g"))
        first = stream.next()
        assert first.settings.backoff_policy.exponential_backoff.initial.seconds == 1000
        assert stream.next() == first
        stream.close()


WRONG_TYPE = v2.Settings(client_type=v2.ClientType.PUSH_CONSUMER, publishing=v2.Publishing())


@pytest.mark.parametrize(
    "settings",
    [
        v2.Settings(),
        producer_of("a b"),
        consumer_of(""),
        v2.Settings(client_type=v2.ClientType.PUSH_CONSUMER, publishing=v2.Publishing()),
        consumer_of("group", v2.FilterExpression(type=v2.FilterType.SQL, expression="")),
        consumer_of("group", v2.FilterExpression(type=v2.FilterType.TAG, expression="||")),
    ],
)
def test_bad_settings_end_the_stream(stream: Telemetry, settings: v2.Settings) -> None:
    stream.push(settings)
    with pytest.raises(grpc.RpcError) as caught:
        stream.next()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    assert "process client telemetryCommand failed." in caught.value.details()  # type: ignore[attr-defined]


def test_a_stream_without_a_client_id_is_told_why_it_ends(gateway: RunningGateway) -> None:
    with Client(gateway.address, x_mq_client_id="") as nobody:
        stream = nobody.telemetry()
        assert stream.next().status.code == v2.Code.CLIENT_ID_REQUIRED
        with pytest.raises(StopIteration):
            stream.next()
        stream.close()


def test_a_thousand_silent_streams_keep_nobody_waiting(gateway: RunningGateway, client: Client) -> None:
    with Client(gateway.address) as silent:
        crowd = [Client(gateway.address, channel=silent.channel) for _ in range(1000)]
        streams = [each.telemetry() for each in crowd]
        assert client.code("QueryRoute", route("normal")) == "OK"
        for each in streams:
            each.close()


def test_heartbeats(client: Client) -> None:
    beat = wire.HeartbeatRequest(client_type=v2.ClientType.PRODUCER)
    assert client.code("Heartbeat", beat) == "OK"
    assert client.code("Heartbeat", wire.HeartbeatRequest()) == "UNRECOGNIZED_CLIENT_TYPE"
    consumer = wire.HeartbeatRequest(client_type=v2.ClientType.SIMPLE_CONSUMER, group=v2.Resource(name=""))
    assert client.code("Heartbeat", consumer) == "ILLEGAL_CONSUMER_GROUP"


def test_a_heartbeat_without_a_type_is_of_the_type_in_the_settings(client: Client, stream: Telemetry) -> None:
    beat = wire.HeartbeatRequest(group=v2.Resource(name="a b"))
    for settings, expected in ((producer_of("normal"), "OK"), (consumer_of("group"), "ILLEGAL_CONSUMER_GROUP")):
        stream.push(settings)
        stream.next()
        assert client.code("Heartbeat", beat) == expected
    assert client.code("NotifyClientTermination", wire.NotifyClientTerminationRequest()) == "OK"
    assert client.code("NotifyClientTermination", wire.NotifyClientTerminationRequest()) == "OK"
    assert client.code("SyncLiteSubscription", wire.SyncLiteSubscriptionRequest()) == "NOT_IMPLEMENTED"


def end(
    message_id: str, resolution: int, source: int = v2.TransactionSource.SOURCE_CLIENT
) -> wire.EndTransactionRequest:
    return wire.EndTransactionRequest(
        topic=v2.Resource(name="transaction"),
        message_id=message_id,
        transaction_id=message_id,
        resolution=resolution,  # type: ignore[arg-type]
        source=source,  # type: ignore[arg-type]
    )


def half(client: Client, body: bytes = b"half") -> str:
    entry = client.send(message("transaction", body, message_type=v2.MessageType.TRANSACTION)).entries[0]
    assert entry.status.code == v2.Code.OK, entry.status
    return entry.transaction_id


def stored(cluster: RunningCluster) -> int:
    ranges = cluster.brokers["broker-a"].call("QueryQueueRanges", _queues()).ranges
    return sum(each.max_offset for each in ranges)


def _queues() -> object:
    from penstock.proto.wire.common_pb2 import TopicQueues

    return TopicQueues(topic="transaction", queue_ids=range(4))


def test_a_transaction_is_seen_when_it_is_committed(client: Client, cluster: RunningCluster) -> None:
    before = stored(cluster)
    committed, rolled_back = half(client), half(client)
    assert client.code("EndTransaction", end(committed, v2.TransactionResolution.COMMIT)) == "OK"
    assert client.code("EndTransaction", end(rolled_back, v2.TransactionResolution.ROLLBACK)) == "OK"
    assert client.code("EndTransaction", end(committed, v2.TransactionResolution.COMMIT)) == "OK"
    wait_until(lambda: stored(cluster) == before + 1, 30, "the committed message")
    assert client.code("EndTransaction", end(committed, v2.TransactionResolution.ROLLBACK)) == "INVALID_TRANSACTION_ID"
    assert client.code("EndTransaction", end("", v2.TransactionResolution.COMMIT)) == "INVALID_TRANSACTION_ID"
    undecided = v2.TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
    for resolution in (v2.TransactionResolution.COMMIT, undecided):
        assert client.code("EndTransaction", end("nobody's", resolution)) == "INVALID_TRANSACTION_ID"
        elsewhere = end("nobody's", resolution)
        elsewhere.topic.name = "missing"
        assert client.code("EndTransaction", elsewhere) == "TOPIC_NOT_FOUND"
    assert client.code("EndTransaction", end(half(client), undecided)) == "OK"
    assert client.code("EndTransaction", end("nobody's", 99)) == "BAD_REQUEST"


def test_a_gateway_that_was_started_anew_finds_the_half_by_its_id(
    client: Client, cluster: RunningCluster, gateway: RunningGateway
) -> None:
    before = stored(cluster)
    transaction_id = half(client)
    gateway.restart()
    assert client.code("EndTransaction", end(transaction_id, v2.TransactionResolution.COMMIT)) == "OK"
    wait_until(lambda: stored(cluster) == before + 1, 30, "the committed message")


def test_a_producer_is_asked_about_what_nobody_has_ended(client: Client, cluster: RunningCluster) -> None:
    stream = client.telemetry()
    stream.push(producer_of("transaction"))
    stream.next()
    before = stored(cluster)
    transaction_id = half(client, b"asked about")
    command = stream.next().recover_orphaned_transaction_command
    while command.transaction_id != transaction_id:  # of another test
        command = stream.next().recover_orphaned_transaction_command
    assert (command.message.body, command.message.topic.name) == (b"asked about", "transaction")
    assert command.message.system_properties.message_id == transaction_id
    answer = end(transaction_id, v2.TransactionResolution.COMMIT, v2.TransactionSource.SOURCE_SERVER_CHECK)
    assert client.code("EndTransaction", answer) == "OK"
    wait_until(lambda: stored(cluster) == before + 1, 30, "the committed message")
    stream.close()


def signed(key: str, secret: str, date: str = "19990101T000000Z", ending: str = "") -> dict[str, str]:
    digest = hmac.digest(secret.encode(), date.encode(), "sha1").hex().upper() + ending
    header = f"MQv2-HMAC-SHA1 Credential={key}//Rocketmq, SignedHeaders=x-mq-date-time, Signature={digest}"
    return {"x_mq_date_time": date, "authorization": header}


def test_calls_are_taken_of_users_alone(cluster: RunningCluster, tmp_path: Path) -> None:
    users = put(tmp_path / "users", "ann = secret\n")
    inner = '{"accessKey":"inner","secretKey":"inner secret"}'
    authentication = AuthenticationSettings(is_enabled=True, users_path=str(users), inner=inner)
    with RunningGateway(cluster, security=GatewaySecurity(authentication=authentication)) as running:
        for metadata, expected in (
            (signed("ann", "secret"), (v2.Code.OK, "OK")),
            (signed("ann", "wrong"), (v2.Code.UNAUTHORIZED, "check signature failed.")),
            (signed("bob", "secret"), (v2.Code.UNAUTHORIZED, "User:bob is not found.")),
            (signed("ann", "secret", ending="0"), (v2.Code.UNAUTHORIZED, "check signature failed.")),
            ({}, (v2.Code.UNAUTHORIZED, "username cannot be null")),
        ):
            with Client(running.address, **metadata) as caller:
                status = caller.call("QueryRoute", route("normal")).status
                assert (status.code, status.message) == expected
                stream = caller.telemetry()
                stream.push(producer_of("normal"))
                assert stream.next().status.code == expected[0]
                stream.close()


@contextlib.contextmanager
def over_tls(address: str, authority: bytes) -> Iterator[Client]:
    """A client that trusts so much, whatever name it reaches."""
    options = [("grpc.ssl_target_name_override", "localhost")]
    channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(authority), options)
    with Client("", channel=channel) as client:
        yield client


def check_serves(client: Client, address: str) -> None:
    told = client.call("QueryRoute", wire.QueryRouteRequest(topic=v2.Resource(name="normal")))
    endpoint = told.message_queues[0].broker.endpoints.addresses[0]
    assert f"{endpoint.host}:{endpoint.port}" == address
    stream = client.telemetry()
    stream.push(producer_of("normal"))
    assert stream.next().status.code == v2.Code.OK
    stream.close()
    assert client.send(message("normal", bytes(4 << 10))).status.code == v2.Code.OK


def test_a_port_takes_plain_connections_and_tls_with_a_certificate_of_its_own(cluster: RunningCluster) -> None:
    with RunningGateway(cluster) as running, Client(running.address) as plain:
        check_serves(plain, running.address)
        host, _, port = running.address.rpartition(":")
        shown = ssl.get_server_certificate((host, int(port)))
        with over_tls(running.address, shown.encode()) as client:
            check_serves(client, running.address)


def test_a_port_takes_plain_connections_and_tls_with_a_certificate_that_is_given(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("gateway")
    transport = GatewayTls(cert_path=str(pair.cert), key_path=str(pair.key))
    with (
        RunningGateway(cluster, security=GatewaySecurity(transport=transport)) as running,
        Client(running.address) as plain,
        over_tls(running.address, authority.file.read_bytes()) as client,
    ):
        check_serves(plain, running.address)
        check_serves(client, running.address)


def test_a_port_without_tls_takes_none(cluster: RunningCluster) -> None:
    security = GatewaySecurity(transport=GatewayTls(mode=TlsServerMode.disabled))
    with RunningGateway(cluster, security=security) as running, Client(running.address) as plain:
        check_serves(plain, running.address)
        host, _, port = running.address.rpartition(":")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ssl.get_server_certificate((host, int(port)), timeout=30)


def test_a_gateway_in_a_broker_takes_both_unless_the_broker_demands_tls() -> None:
    paths = {"cert_path": "cert", "key_path": "key", "trust_path": "trust"}
    assert GatewayTls.beside(TlsSettings()) == GatewayTls()
    demanding = GatewayTls.beside(TlsSettings(mode=TlsServerMode.enforcing, **paths))
    assert demanding == GatewayTls(mode=TlsServerMode.enforcing, **paths)
