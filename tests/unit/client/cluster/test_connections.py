"""Channels: addresses, fail-over between nameservers, errors of broken calls."""

from __future__ import annotations

import contextlib
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.client import MessageQueue
from penstock.client.cluster import Sql, check_timeout, parse_subscription, topic_offsets
from penstock.client.cluster.calls import Calls
from penstock.client.cluster.connections import Connections, parse_addresses
from penstock.client.cluster.retry import (
    Outcome,
    back_off_s,
    counts_as_refusal,
    never_reached,
    outcome_of,
    pause_before_retry_s,
    reworded,
)
from penstock.proto.errors import (
    BrokerUnavailable,
    ClientClosed,
    ConfigError,
    DiskFull,
    FlowControl,
    InvalidArgument,
    InvalidName,
    LaneForgotten,
    NameserverUnavailable,
    NotEnoughReplicas,
    NotMaster,
    OutcomeUnknown,
    PenstockError,
    SyncFailed,
    TopicNotFound,
    Unauthorized,
)
from penstock.proto.names import check_broker_name, check_group, check_topic
from penstock.proto.wire.common_pb2 import Empty, TopicQueues
from penstock.proto.wire.nameserver_pb2 import TopicNames
from penstock.runtime.security.certificates import ServerTls
from penstock.runtime.security.credentials import Tls
from tests.support.client.running_cluster import RunningCluster
from tests.support.cluster.certificates import Authority, Pair, put


def test_addresses_may_be_text_or_a_list() -> None:
    assert parse_addresses(" a:1; b:2 ,a:1;") == ["a:1", "b:2"]
    assert parse_addresses(["a:1", "[::1]:2"]) == ["a:1", "[::1]:2"]


@pytest.mark.parametrize(
    "wrong", ["", " ; ", "host", "host:", ":1", "host:0", "host:65536", "host:x", "host:²", "http://host:1"]
)
def test_wrong_addresses_are_named(wrong: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        parse_addresses(wrong)


@pytest.mark.parametrize("wrong", [5, None, ["a:1", 5], b"a:1"])
def test_addresses_that_are_no_text_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=rf"nameservers {re.escape(repr(wrong))}: must be text, or a list of texts"):
        parse_addresses(wrong)


@pytest.mark.parametrize("wrong", ["5", math.nan, -1, [1]])
def test_a_time_out_that_is_no_length_of_time_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(f"timeout_s={wrong!r}: must be 0 or more seconds")):
        check_timeout(wrong)


@pytest.mark.parametrize("long_s", [math.inf, 1e300])
def test_a_time_out_without_an_end_is_one_that_threads_can_wait(long_s: float) -> None:
    assert 1e8 <= check_timeout(long_s) < threading.TIMEOUT_MAX


@pytest.mark.parametrize("wrong", [5, None, b"x", ["a", 5], "a\ud800", Sql(5), Sql("a = '\ud800'")])  # type: ignore[arg-type]
def test_a_subscription_of_something_else_than_text_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"subscription of topic 'orders': .* must be text"):
        parse_subscription("orders", wrong)


@pytest.mark.parametrize("check", [check_topic, check_group, check_broker_name])
@pytest.mark.parametrize("wrong", [5, None, b"orders", ["orders"]])
def test_a_name_that_is_no_text_is_refused(check: Callable[[Any], str], wrong: Any) -> None:
    with pytest.raises(InvalidName, match=rf"name must be text, not {re.escape(repr(wrong))}"):
        check(wrong)


@pytest.mark.parametrize("wrong", [math.nan, 1.5, True, 1 << 70])
def test_an_offset_that_is_no_whole_number_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match=rf"offset {wrong!r} of queue 0 of topic orders"):
        topic_offsets({MessageQueue("orders", "broker-a", 0): wrong})


@pytest.mark.parametrize("settings", [{"tls": 5}, {"credentials": ("user", "secret")}])
def test_what_is_neither_tls_nor_credentials_is_refused_and_not_told(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"(tls must be Tls, not int|credentials must be Credentials, not tuple)$"):
        Connections("a:1", **settings)


def test_a_dead_nameserver_is_skipped_and_the_living_one_preferred() -> None:
    with RunningCluster(topics={"t": 1}) as cluster:
        connections = Connections(f"127.0.0.1:1;{cluster.namesrv}")
        found = connections.query_nameserver("ListTopics", Empty(), 4.0)
        assert list(found.topics) == ["t"]
        assert connections.addresses[connections._preferred] == cluster.namesrv
        connections.close()


def test_an_open_client_goes_on_with_the_certificates_that_replaced_its_own(tmp_path: Path) -> None:
    former, later = Authority(tmp_path / "former"), Authority(tmp_path / "later")
    pair, trusted = former.issue("node"), put(tmp_path / "ca.pem", former.file.read_bytes())
    client = Connections("127.0.0.1:1", tls=Tls(ca_file=trusted, cert_file=pair.cert, key_file=pair.key))
    with _nameserver(pair, trusted) as port:
        assert client.nameserver(f"127.0.0.1:{port}").ListTopics(Empty(), timeout=10.0) == TopicNames()
    put(trusted, later.file.read_bytes())
    fresh = later.issue("node")
    put(pair.key, fresh.key.read_bytes())
    put(pair.cert, fresh.cert.read_bytes())
    with _nameserver(pair, trusted, port):
        assert client.nameserver(f"127.0.0.1:{port}").ListTopics(Empty(), timeout=10.0) == TopicNames()
    client.close()


@contextlib.contextmanager
def _nameserver(pair: Pair, trusted: Path, port: int = 0) -> Iterator[int]:
    """A nameserver without topics, which demands certificates; its port."""
    handler = grpc.unary_unary_rpc_method_handler(lambda *_: TopicNames().SerializeToString())
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        methods = grpc.method_handlers_generic_handler("penstock.v1.Nameserver", {"ListTopics": handler})
        server.add_generic_rpc_handlers((methods,))
        tls = ServerTls(cert_file=pair.cert, key_file=pair.key, client_ca_file=trusted)
        port = server.add_secure_port(f"127.0.0.1:{port}", tls.server_credentials())
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait()


def test_no_living_nameserver_names_them_all() -> None:
    connections = Connections("127.0.0.1:1;127.0.0.1:2")
    with pytest.raises(NameserverUnavailable, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2"):
        connections.query_nameserver("ListTopics", Empty(), 1.0)
    connections.close()


def test_an_error_of_the_broker_arrives_as_itself() -> None:
    with RunningCluster() as cluster:
        connections = Connections(cluster.namesrv)
        with pytest.raises(TopicNotFound, match="missing"):
            connections.call(cluster.brokers["broker-a"].address, "QueryQueueRanges", TopicQueues(topic="missing"), 2.0)
        connections.close()


def test_closed_connections_open_no_more() -> None:
    connections = Connections("127.0.0.1:1")
    connections.close()
    connections.close()
    with pytest.raises(ClientClosed):
        connections.append("127.0.0.1:1", b"", 1.0)


def test_a_stub_that_a_thread_took_before_they_closed_says_so() -> None:
    connections = Connections("127.0.0.1:1")
    broker, nameserver = connections.stub("127.0.0.1:1"), connections.nameserver("127.0.0.1:1")
    connections.close()
    for call in (
        broker.QueryQueueRanges,
        broker.QueryQueueRanges.future,
        nameserver.ListTopics,
        nameserver.ListTopics.future,
    ):
        with pytest.raises(ClientClosed, match="make a new one"):
            call(Empty())
    for stream in (broker.ConsumerSession, nameserver.WatchRoutes):
        with pytest.raises(ClientClosed, match="make a new one"):
            stream(iter(()))


def test_a_call_under_way_ends_when_they_close() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as pool:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        calls = Calls.to(address)
        gathered = pool.submit(calls.at_addresses, {"b": address}, "QueryQueueRanges", lambda _: Empty(), 60)
        with silent.accept()[0]:  # the call is under way
            calls.close()
            answers, errors = gathered.result()
    assert not answers
    assert isinstance(errors["b"], BrokerUnavailable)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NotMaster("no"), Outcome.NOT_STORED),
        (FlowControl("busy"), Outcome.NOT_STORED),
        (DiskFull("full"), Outcome.NOT_STORED),
        (BrokerUnavailable("the broker is shutting down"), Outcome.NOT_STORED),
        (BrokerUnavailable("x: failed to connect to all addresses", status="UNAVAILABLE"), Outcome.NOT_STORED),
        (BrokerUnavailable("x: Socket closed", status="UNAVAILABLE"), Outcome.UNKNOWN),
        (BrokerUnavailable("x: cancelled", status="CANCELLED"), Outcome.UNKNOWN),
        (OutcomeUnknown("no answer"), Outcome.UNKNOWN),
        (SyncFailed("disk"), Outcome.UNKNOWN),
        (PenstockError("internal"), Outcome.UNKNOWN),
        (InvalidArgument("bad"), Outcome.REFUSED),
        (Unauthorized("no such key"), Outcome.REFUSED),
        (Unauthorized("removed while the call was under way", is_unknown=True), Outcome.UNKNOWN),
    ],
)
def test_what_an_error_says_about_the_batch(error: PenstockError, outcome: Outcome) -> None:
    assert outcome_of(error) is outcome


def test_a_group_that_is_not_ready_did_not_refuse() -> None:
    assert never_reached(BrokerUnavailable("failed to connect to all addresses", status="UNAVAILABLE"))
    assert not counts_as_refusal(BrokerUnavailable("no master", no_master=True))
    assert not counts_as_refusal(NotMaster("no"))
    assert not counts_as_refusal(NotEnoughReplicas("one of two"))
    assert counts_as_refusal(FlowControl("too many"))


def test_back_off_grows_to_a_second() -> None:
    assert back_off_s(1) < 0.03
    assert all(back_off_s(attempt) <= 1.2 for attempt in range(1, 100))
    assert back_off_s(50) >= 0.8


def test_no_further_try_after_the_deadline_or_a_refusal() -> None:
    now = time.monotonic()
    assert pause_before_retry_s(NotMaster("no"), 1, now + 60) is not None
    assert pause_before_retry_s(NotMaster("no"), 50, now + 0.5) is None
    for error in (InvalidArgument("never"), LaneForgotten("whoever asks")):
        assert pause_before_retry_s(error, 1, now + 60) is None


def test_a_reworded_error_keeps_class_and_details() -> None:
    made = reworded(NotMaster("not here", epoch=3), "time is up")
    assert type(made) is NotMaster
    assert (str(made), made.details) == ("not here; time is up", {"epoch": 3})
