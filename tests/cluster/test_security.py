"""A cluster in which every connection has TLS and certificates on both sides, and every call a signature."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from penstock.bench.health import broker_statuses
from penstock.cli.main import main
from penstock.client import (
    Admin,
    Credentials,
    Forbidden,
    NameserverUnavailable,
    PenstockError,
    Producer,
    PullConsumer,
    PushConsumer,
    Tls,
    Unauthorized,
)
from penstock.client.aio import AsyncAdmin, AsyncProducer, AsyncPullConsumer
from penstock.proto.data_frames import Kind, Method
from penstock.proto.errors import from_bytes, from_rpc_error
from penstock.proto.wire.common_pb2 import MASTER, BrokerIdentity, Empty
from penstock.proto.wire.data_pb2_grpc import BrokerDataStub
from penstock.proto.wire.nameserver_pb2 import BrokerReport
from penstock.proto.wire.nameserver_pb2_grpc import NameserverStub
from penstock.runtime.channel import open_channel
from penstock.runtime.data.link import DataLink
from penstock.runtime.security.credentials import Security
from tests.support.cluster.certificates import Authority, Pair, put
from tests.support.cluster.cluster import Cluster, cluster
from tests.support.waiting import wait_until

INNER_SECRET, SECRET = "PLANTED-inner", "PLANTED-loader"
LOADER = Credentials("loader", SECRET)
TOPIC = "orders"


class Secured(NamedTuple):
    """The cluster, and what its clients are given."""

    cluster: Cluster
    authority: Authority
    client: Pair
    users: Path
    credentials_file: Path

    @property
    def nameservers(self) -> str:
        return self.cluster.nameservers

    def with_all(self) -> dict[str, Any]:
        """The arguments of a client that is let in."""
        return {"tls": self.authority.tls(self.client), "credentials": LOADER}

    def security(self) -> Security:
        return Security(**self.with_all())

    def environment(self) -> dict[str, str]:
        return {
            "PENSTOCK_TLS_CA_FILE": str(self.authority.file),
            "PENSTOCK_TLS_CERT_FILE": str(self.client.cert),
            "PENSTOCK_TLS_KEY_FILE": str(self.client.key),
            "PENSTOCK_CREDENTIALS_FILE": str(self.credentials_file),
        }

    def allow(self, *users: Credentials) -> None:
        put(self.users, "".join(f"{user.access_key} = {user.secret_key}\n" for user in users))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A nameserver that elects, and a group of three brokers."""
    directory = tmp_path_factory.mktemp("secured")
    authority = Authority(directory / "tls")
    server, client = authority.issue("server"), authority.issue("client", "client")
    keys = put(directory / "keys", f"accessKey = loader\nsecretKey = {SECRET}\n")
    settings: dict[str, object] = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": server.cert,
        "tls.server.keyPath": server.key,
        "tls.server.trustCertPath": authority.file,
        "tls.server.need.client.auth": "require",
        "authenticationEnabled": "true",
        "authConfigPath": directory / "users",
        "innerClientAuthenticationCredentials": f'{{"accessKey":"cluster","secretKey":"{INNER_SECRET}"}}',
    }
    elected = {"enableControllerMode": "true", "enableAutoInSyncReplicas": "true", "brokerRole": "SYNC_MASTER"}
    with cluster(directory, replicas=3) as made:
        for node in made.nodes.values():
            node.settings |= settings
            if node.kind == "broker":
                node.settings |= elected
        controller = {"enableControllerInNamesrv": "true", "controllerStorePath": directory / "controller.json"}
        made.nodes["nameserver-0"].settings |= controller
        found = Secured(made, authority, client, directory / "users", keys)
        found.allow(LOADER)
        made.start()
        wait_whole(found)
        with Admin(found.nameservers, **found.with_all()) as admin:
            admin.create_topic(TOPIC, queues=4)
        yield found


def masters(secured: Secured) -> list[tuple[str, tuple[int, ...]]]:
    """Names and sets of the masters that act."""
    nodes = [node for node in secured.cluster.nodes.values() if node.kind == "broker" and node.is_running]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in secured.environment().items():
            patch.setenv(name, value)
        statuses = broker_statuses([node.address for node in nodes])
    return [
        (node.name, tuple(status.sync_state_set))
        for node, status in zip(nodes, statuses, strict=True)
        if status is not None and status.role == MASTER and status.is_acting
    ]


def wait_whole(secured: Secured) -> str:
    """The master's name, once everybody is in its set."""

    def whole() -> str:
        found = masters(secured)
        return found[0][0] if len(found) == 1 and found[0][1] == (0, 1, 2) else ""

    return wait_until(whole, 40, "a master with everybody in its set")


def wait_read(secured: Secured, wanted: set[bytes], group: str) -> None:
    """Read the topic until all of these have come."""
    found: set[bytes] = set()
    with PullConsumer(secured.nameservers, group=group, consume_from="first", **secured.with_all()) as consumer:
        consumer.subscribe(TOPIC)
        wait_until(
            lambda: found.update(bytes(each.body) for each in consumer.poll(timeout_s=1)) or wanted <= found,
            30,
            f"{len(wanted)} messages",
        )


def test_producers_and_consumers_work_with_both(secured: Secured) -> None:
    sent = {b"both-%d" % number for number in range(200)}
    with Producer(secured.nameservers, **secured.with_all()) as producer:
        assert producer.send(TOPIC, b"both-0").queue_offset >= 0
        producer.produce_many(TOPIC, sorted(sent - {b"both-0"}))
        producer.flush()
    wait_read(secured, sent, "pulls")

    got: set[bytes] = set()
    lock = threading.Lock()

    def listen(message: Any) -> None:
        with lock:
            got.add(bytes(message.body))

    consumer = PushConsumer(
        secured.nameservers, group="pushes", listener=listen, consume_from="first", **secured.with_all()
    )
    consumer.subscribe(TOPIC)
    with consumer:
        wait_until(lambda: sent <= got, 30, "all of them pushed")


def test_so_do_those_of_asyncio(secured: Secured) -> None:
    async def work() -> None:
        given = secured.with_all()
        admin = AsyncAdmin(secured.nameservers, **given)
        assert TOPIC in await admin.list_topics()
        await admin.close()
        async with AsyncProducer(secured.nameservers, **given) as producer:
            await producer.send(TOPIC, b"awaited")
        async with AsyncPullConsumer(secured.nameservers, group="awaits", consume_from="first", **given) as consumer:
            await consumer.subscribe(TOPIC)
            async with asyncio.timeout(30):
                while b"awaited" not in [bytes(each.body) for each in await consumer.poll(timeout_s=1)]:
                    pass

    asyncio.run(work())


def refused(secured: Secured, tls: Tls | None, credentials: Credentials | None) -> PenstockError:
    with Admin(secured.nameservers, tls=tls, credentials=credentials) as admin, pytest.raises(PenstockError) as caught:
        admin.create_topic("forged")
    return caught.value


def test_nobody_else_gets_in(secured: Secured, tmp_path: Path) -> None:
    ours, others = secured.authority, Authority(tmp_path)
    ours_tls = ours.tls(secured.client)
    for tls in (None, ours.tls(), ours.tls(others.issue("client", "client"))):
        error = refused(secured, tls, LOADER)
        assert isinstance(error, NameserverUnavailable)
        assert "it may demand TLS, or a client's certificate" in str(error)
    error = refused(secured, others.tls(secured.client), LOADER)
    assert "the server's certificate is not accepted" in str(error)
    for credentials in (None, Credentials("loader", "another"), Credentials("nobody", SECRET)):
        assert isinstance(refused(secured, ours_tls, credentials), Unauthorized)
        with Admin(secured.nameservers, tls=ours_tls, credentials=credentials) as admin, pytest.raises(Unauthorized):
            admin.cluster()  # which no nameserver tells, though each answers
    with Admin(secured.nameservers, **secured.with_all()) as admin:
        assert "forged" not in admin.list_topics()


def test_a_user_can_neither_register_a_broker_nor_follow_one(secured: Secured) -> None:
    with Admin(secured.nameservers, **secured.with_all()) as admin:
        before = {broker.name for broker in admin.cluster().brokers}
        address = admin.cluster().brokers[0].address
        identity = BrokerIdentity(cluster="main", broker_name="broker-z", broker_id=0, address="127.0.0.1:1")
        registration = BrokerReport(registration=BrokerReport.Registration(identity=identity))
        with open_channel(secured.nameservers, secured.security()) as channel:
            stub: Any = NameserverStub(channel)  # type: ignore[no-untyped-call]
            assert isinstance(_error(lambda: list(stub.BrokerSession(iter([registration])))), Forbidden)
        with open_channel(address, secured.security()) as channel:
            broker: Any = BrokerDataStub(channel)  # type: ignore[no-untyped-call]
            data = DataLink(address, broker.Open(Empty(), timeout=60).port, secured.security())
        with contextlib.closing(data):
            data.send(1, Method.REPLICATE, b"hello")
            [frame] = data.receive()
            assert (frame.number, frame.kind) == (1, Kind.ERROR)
            assert isinstance(from_bytes(frame.content), Forbidden)
        assert {broker.name for broker in admin.cluster().brokers} == before


def _error(call: Any) -> PenstockError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return from_rpc_error(caught.value, "server")


def test_the_command_line_finds_its_files_in_the_environment(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["topic", "list", "--namesrv", secured.nameservers]
    assert main(command) == 1
    assert "it may demand TLS" in capsys.readouterr().err
    for name, value in secured.environment().items():
        monkeypatch.setenv(name, value)
    assert main(command) == 0
    assert TOPIC in capsys.readouterr().out
    monkeypatch.setenv("PENSTOCK_CREDENTIALS_FILE", "/nowhere")
    assert main(command) == 2
    assert "/nowhere: cannot be read" in capsys.readouterr().err


def test_a_pipeline_reads_with_files_named_by_options(secured: Secured) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.types import BinaryType, StructField, StructType

    from penstock.pipeline.topics.options import source_options
    from penstock.pipeline.topics.read.source import TopicReader

    with Producer(secured.nameservers, **secured.with_all()) as producer:
        producer.send(TOPIC, b"for a pipeline")
    given = {"nameServer": secured.nameservers, "subscribe": TOPIC, "driverRetryTimeoutMs": "3000"}
    schema = StructType([StructField("body", BinaryType())])
    with pytest.raises(PenstockError, match="it may demand TLS"):
        TopicReader(source_options(given, streaming=False), schema).partitions()
    given |= {
        "tlsCaFile": str(secured.authority.file),
        "tlsCertFile": str(secured.client.cert),
        "tlsKeyFile": str(secured.client.key),
        "credentialsFile": str(secured.credentials_file),
    }
    reader = TopicReader(source_options(given, streaming=False), schema)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pydict()["body"]]
    assert b"for a pipeline" in rows


def test_a_removed_key_ends_its_users_access(secured: Secured) -> None:
    given = secured.with_all()
    with (
        Producer(secured.nameservers, send_timeout_s=1.0, **given) as producer,
        PullConsumer(secured.nameservers, group="removed", consume_from="last", **given) as consumer,
    ):
        consumer.subscribe(TOPIC)
        producer.send(TOPIC, b"before")
        secured.allow()
        try:
            wait_until(lambda: _is_unauthorized(lambda: producer.send(TOPIC, b"after")), 30, "sends refused")
            wait_until(lambda: _is_unauthorized(lambda: consumer.poll(timeout_s=0.2)), 30, "the consumer's end")
            wait_until(lambda: _is_unauthorized(lambda: _topics(secured)), 30, "the nameserver's refusal")
        finally:
            secured.allow(LOADER)
        wait_until(lambda: _sent(producer), 30, "the key is back")


def _is_unauthorized(call: Any) -> bool:
    try:
        call()
    except Unauthorized:
        return True
    except PenstockError:
        return False
    return False


def _topics(secured: Secured) -> list[str]:
    with Admin(secured.nameservers, **secured.with_all()) as admin:
        return list(admin.list_topics())


def _sent(producer: Producer) -> bool:
    with contextlib.suppress(PenstockError):
        producer.send(TOPIC, b"again")
        return True
    return False


def test_every_process_shows_a_replaced_certificate(secured: Secured) -> None:
    def shown() -> set[str]:
        context = ssl.create_default_context(cafile=str(secured.authority.file))
        context.load_cert_chain(secured.client.cert, secured.client.key)
        return {_certificate(context, node.address) for node in secured.cluster.nodes.values() if node.is_running}

    before = shown()
    assert len(before) == 1
    secured.authority.issue("server")
    after = wait_until(lambda: found if len(found := shown()) == 1 and found != before else set(), 30, "the new one")
    assert not after & before
    with Producer(secured.nameservers, **secured.with_all()) as producer:
        producer.send(TOPIC, b"with the new certificate")


def _certificate(context: ssl.SSLContext, address: str) -> str:
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 5) as plain,
        context.wrap_socket(plain, server_hostname=host) as found,
    ):
        return ssl.DER_cert_to_PEM_cert(found.getpeercert(binary_form=True) or b"")


def test_a_killed_master_is_replaced_and_nothing_acknowledged_is_lost(secured: Secured) -> None:
    master = wait_whole(secured)
    acknowledged: set[bytes] = set()
    with Producer(secured.nameservers, send_timeout_s=20.0, **secured.with_all()) as producer:
        for number in range(50):
            body = b"kill-%d" % number
            if number == 20:
                secured.cluster.nodes[master].kill()
            producer.send(TOPIC, body)
            acknowledged.add(body)
    secured.cluster.nodes[master].restart()
    assert wait_whole(secured) != master
    wait_read(secured, acknowledged, "killed")


def test_no_secret_and_no_signature_is_in_any_log(secured: Secured) -> None:
    for node in secured.cluster.nodes.values():
        text = node.log_path.read_text(errors="replace")
        assert "PLANTED" not in text
        assert "Signature=" not in text
        assert not re.search(r"ssl_transport|Traceback", text)
