from __future__ import annotations

import gzip
import hashlib
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.client import Producer, ProducerConfig, PullConsumer
from penstock.formats.recall_handle import RecallHandle
from penstock.gateway.v2.wire import definition_pb2 as v2
from penstock.gateway.v2.wire import service_pb2 as wire
from tests.support.client.running_cluster import RunningCluster
from tests.support.gateway import Client, RunningGateway, changed, message, topic_of_type, wish
from tests.support.waiting import wait_until

MIB4 = 4 * 1024 * 1024
PACKED = gzip.compress(b"unpacked")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(mappedFileSizeCommitLog=16 << 20, maxMessageSize=4 << 20) as running:
        for kind in ("NORMAL", "FIFO", "DELAY", "MIXED"):
            topic_of_type(running, kind, kind)
        topic_of_type(running, "plain")
        topic_of_type(running, "large", "MIXED")
        yield running


@pytest.fixture(scope="module")
def gateway(cluster: RunningCluster) -> Iterator[RunningGateway]:
    with RunningGateway(cluster) as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: RunningGateway) -> Iterator[Client]:
    with Client(gateway.address) as made:
        yield made


def code(client: Client, *messages: v2.Message) -> str:
    return v2.Code.Name(client.send(*messages).status.code)


def stamp(seconds: float) -> Any:
    return v2.SystemProperties(delivery_timestamp={"seconds": int(seconds)}).delivery_timestamp


BAD = {
    "empty body": ("MESSAGE_BODY_EMPTY", {"body": b""}),
    "body above 4 MiB": ("MESSAGE_BODY_TOO_LARGE", {"body": bytes(MIB4 + 1)}),
    "129 properties": ("MESSAGE_PROPERTIES_TOO_LARGE", {"user": {f"k{n}": "v" for n in range(129)}}),
    "properties above 16 KiB": ("MESSAGE_PROPERTIES_TOO_LARGE", {"user": {"k": "v" * 16384}}),
    "tag and keys above 16 KiB": ("MESSAGE_PROPERTIES_TOO_LARGE", {"tag": "t" * 16000, "keys": ["k" * 385]}),
    "system property": ("ILLEGAL_MESSAGE_PROPERTY_KEY", {"user": {"TAGS": "x"}}),
    "control character in a value": ("ILLEGAL_MESSAGE_PROPERTY_KEY", {"user": {"k": "a\x01"}}),
    "blank tag": ("ILLEGAL_MESSAGE_TAG", {"tag": "  "}),
    "tag with a bar": ("ILLEGAL_MESSAGE_TAG", {"tag": "a|b"}),
    "tag with NUL": ("ILLEGAL_MESSAGE_TAG", {"tag": "a\0"}),
    "blank key": ("ILLEGAL_MESSAGE_KEY", {"keys": [" "]}),
    "key with a control character": ("ILLEGAL_MESSAGE_KEY", {"keys": ["a\x7f"]}),
    "message group of 64 bytes": ("ILLEGAL_MESSAGE_GROUP", {"message_group": "g" * 64}),
    "blank message group": ("ILLEGAL_MESSAGE_GROUP", {"message_group": " "}),
    "blank id": ("ILLEGAL_MESSAGE_ID", {"message_id": " "}),
    "recovery above an hour": (
        "BAD_REQUEST",
        {"message_type": v2.MessageType.TRANSACTION, "orphaned_transaction_recovery_duration": {"seconds": 3601}},
    ),
    "a time before the year 1": ("ILLEGAL_DELIVERY_TIME", {"delivery_timestamp": {"seconds": -(2**62)}}),
    "a time with too many ns": ("ILLEGAL_DELIVERY_TIME", {"delivery_timestamp": {"nanos": 1_000_000_000}}),
    "a time with negative ns": ("ILLEGAL_DELIVERY_TIME", {"delivery_timestamp": {"nanos": -1}}),
    "not GZIP": ("MESSAGE_CORRUPTED", {"body_encoding": v2.Encoding.GZIP}),
    "unknown encoding": ("BAD_REQUEST", {"body_encoding": 99}),
    "GZIP that ends too early": ("MESSAGE_CORRUPTED", {"body": PACKED[:-1], "body_encoding": v2.Encoding.GZIP}),
    "bytes behind GZIP": ("MESSAGE_CORRUPTED", {"body": PACKED + PACKED, "body_encoding": v2.Encoding.GZIP}),
    "empty, and called GZIP": ("MESSAGE_BODY_EMPTY", {"body": b"", "body_encoding": v2.Encoding.GZIP}),
    "nothing in GZIP": ("MESSAGE_BODY_EMPTY", {"body": gzip.compress(b""), "body_encoding": v2.Encoding.GZIP}),
    "unpacks to more than 4 MiB": (
        "MESSAGE_BODY_TOO_LARGE",
        {"body": gzip.compress(bytes(MIB4 + 1)), "body_encoding": v2.Encoding.GZIP},
    ),
    "two group names of one message": ("MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", {"user": {"__SHARDINGKEY": "g"}}),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_messages_have_their_code(client: Client, name: str) -> None:
    expected, fields = BAD[name]
    assert code(client, message("NORMAL", **fields)) == expected


def test_four_mib_are_taken_of_each_type(client: Client) -> None:
    fields: dict[str, dict[str, Any]] = {
        "FIFO": {"message_group": "g"},
        "DELAY": {"delivery_timestamp": stamp(time.time() + 3600)},
        "TRANSACTION": {"message_type": v2.MessageType.TRANSACTION},
    }
    for kind, given in fields.items():
        properties = {"k": "v" * 16383}
        assert code(client, message("large", bytes(MIB4), user=properties, **given)) == "OK", kind
        larger = message("large", bytes(MIB4 + 1), **given)
        assert code(client, larger) == "MESSAGE_BODY_TOO_LARGE", kind


def test_a_tag_with_spaces_around_comes_as_it_was_sent(client: Client) -> None:
    assert code(client, message("plain", tag=" a ", user={"n": "spaces"})) == "OK"
    found: list[v2.Message] = []
    while not found:
        found = client.receive(wish("spaces", "plain", expression="n = 'spaces'", sql=True)).messages
    assert found[0].system_properties.tag == " a "


GOOD = {
    "4 MiB": {"body": bytes(MIB4)},
    "4 MiB and 16 KiB of properties": {"body": bytes(MIB4), "user": {"k": "v" * 16383}},
    "16 KiB of properties": {"user": {"k": "v" * 16383}},
    "128 properties": {"user": {f"k{n}": "v" for n in range(128)}},
    "GZIP of 4 MiB": {"body": gzip.compress(bytes(MIB4)), "body_encoding": v2.Encoding.GZIP},
    "Chinese keys": {"keys": ["中文"], "tag": "标签"},
}


@pytest.mark.parametrize("name", GOOD)
def test_messages_at_a_limit_are_taken(client: Client, name: str) -> None:
    answer = client.send(message("NORMAL", **GOOD[name]))
    assert answer.status.code == answer.entries[0].status.code == v2.Code.OK, answer.status


@pytest.mark.parametrize("kind", ["NORMAL", "FIFO", "DELAY"])
def test_a_topic_takes_messages_of_its_type(client: Client, kind: str) -> None:
    fields: dict[str, dict[str, Any]] = {
        "NORMAL": {},
        "FIFO": {"message_group": "g" * 63},
        "DELAY": {"delivery_timestamp": stamp(time.time() + 3600)},
    }
    for sent, given in fields.items():
        expected = "OK" if sent == kind else "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
        assert code(client, message(kind, **given)) == expected, (sent, kind)
        assert code(client, message("MIXED", **given)) == "OK"
    assert code(client, message("plain", message_group="g")) == "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"


def test_a_delivery_in_more_than_a_day_is_refused(client: Client) -> None:
    late = message("DELAY", delivery_timestamp=stamp(time.time() + 24 * 3600 + 5))
    assert code(client, late) == "ILLEGAL_DELIVERY_TIME"
    assert code(client, message("DELAY", delivery_timestamp=stamp(time.time() - 100))) == "OK"


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("missing", "TOPIC_NOT_FOUND"),
        ("", "ILLEGAL_TOPIC"),
        ("a b", "ILLEGAL_TOPIC"),
        ("t" * 128, "ILLEGAL_TOPIC"),
        ("t" * 127, "TOPIC_NOT_FOUND"),
        ("TBW102", "ILLEGAL_TOPIC"),
        ("rmq_sys_x", "ILLEGAL_TOPIC"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "ILLEGAL_TOPIC"),
    ],
)
def test_topics(client: Client, topic: str, expected: str) -> None:
    assert code(client, message(topic)) == expected


def test_requests_as_a_whole(client: Client) -> None:
    assert client.code("SendMessage", wire.SendMessageRequest()) == "MESSAGE_CORRUPTED"
    assert code(client, message("NORMAL"), message("MIXED")) == "MESSAGE_CORRUPTED"


def test_every_message_of_a_request_is_itself(client: Client) -> None:
    sent = [message("MIXED", b"%d" % n, tag=f"tag{n}", keys=[f"key{n}"], user={"n": str(n)}) for n in range(20)]
    answer = client.send(*sent)
    assert [entry.message_id for entry in answer.entries] == [each.system_properties.message_id for each in sent]
    assert all(entry.transaction_id == entry.message_id for entry in answer.entries)
    found: dict[str, v2.Message] = {}
    while len(found) < 20:
        for each in client.receive(wish("batch", "MIXED")).messages:
            found[each.system_properties.message_id] = each
    for n, each in enumerate(sent):
        got = found[each.system_properties.message_id]
        assert (got.body, got.system_properties.tag, got.user_properties["n"]) == (b"%d" % n, f"tag{n}", str(n))
        assert list(got.system_properties.keys) == [f"key{n}"]


def test_plain_messages_of_a_request_go_to_one_queue_with_their_ids(client: Client) -> None:
    client.send(message("NORMAL"))  # the first of a topic waits for its route, and goes by itself
    sent = [message("NORMAL", b"%d" % number, user={"n": str(number)}) for number in range(32)]
    answer = client.send(*sent)
    offsets = [entry.offset for entry in answer.entries]
    assert offsets == list(range(offsets[0], offsets[0] + 32))
    assert [entry.message_id for entry in answer.entries] == [each.system_properties.message_id for each in sent]
    assert len({entry.message_id for entry in answer.entries}) == 32


def test_gzip_is_stored_as_it_is_sent_and_read_by_all(client: Client, cluster: RunningCluster) -> None:
    """Also of a transaction, of a message for later, and of one that comes again."""
    topic_of_type(cluster, "packed", "MIXED")
    fields: list[dict[str, Any]] = [
        {"message_group": "g"},
        {"delivery_timestamp": stamp(time.time())},
        {"message_type": v2.MessageType.TRANSACTION},
    ]
    for given in fields:
        sent = message("packed", PACKED, body_encoding=v2.Encoding.GZIP, **given)
        entry = client.send(sent).entries[0]
        assert entry.status.code == v2.Code.OK, entry.status
    end = wire.EndTransactionRequest(
        topic=v2.Resource(name="packed"),
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=v2.TransactionResolution.COMMIT,
    )
    assert client.code("EndTransaction", end) == "OK"
    again: dict[str, v2.Message] = {}
    while len(again) < 3:
        for each in client.receive(wish("packed", "packed", invisible_ms=10_000)).messages:
            system = each.system_properties
            digest = hashlib.md5(PACKED, usedforsecurity=False).hexdigest().upper()
            assert (each.body, system.body_encoding, system.body_digest.checksum) == (PACKED, v2.Encoding.GZIP, digest)
            if system.delivery_attempt > 1:
                again[system.message_id] = each
                continue
            back = changed("packed", "packed", system.receipt_handle, 1000)
            assert client.code("ChangeInvisibleDuration", back) == "OK"
    with PullConsumer(cluster.namesrv, group="others", consume_from="first") as consumer:
        consumer.subscribe("packed")
        found: list[bytes] = []
        wait_until(lambda: found.extend(each.body for each in consumer.poll()) or len(found) == 3, 30.0, "all three")
    assert found == [b"unpacked"] * 3


def test_what_others_have_compressed_comes_unpacked(client: Client, cluster: RunningCluster) -> None:
    """Also of the C++ client, which sends zlib's form and calls it GZIP."""
    topic_of_type(cluster, "zlib")
    assert code(client, message("zlib", zlib.compress(b"C++"), body_encoding=v2.Encoding.GZIP)) == "OK"
    with Producer(cluster.namesrv, config=ProducerConfig(compression="lz4", compress_bytes_min=1)) as producer:
        producer.send("zlib", b"l" * 1000)
    found: dict[bytes, v2.Message] = {}
    while len(found) < 2:
        found |= {each.body: each for each in client.receive(wish("zlib", "zlib")).messages}
    assert found.keys() == {b"C++", b"l" * 1000}
    assert {each.system_properties.body_encoding for each in found.values()} == {v2.Encoding.IDENTITY}


def test_a_message_is_taken_back_before_it_is_due(client: Client) -> None:
    entry = client.send(message("DELAY", delivery_timestamp=stamp(time.time() + 3600))).entries[0]
    request = wire.RecallMessageRequest(topic=v2.Resource(name="DELAY"), recall_handle=entry.recall_handle)
    answer = client.call("RecallMessage", request)
    assert (answer.status.code, answer.message_id) == (v2.Code.OK, entry.message_id)
    assert client.code("RecallMessage", request) == "OK"  # a client that got no answer asks again
    said = RecallHandle.decode(entry.recall_handle)
    for forged in (
        "forged",
        said._replace(topic="NORMAL").encode(),
        said._replace(broker_name="nowhere").encode(),
        said._replace(due_ms=10**15).encode(),
    ):
        request.recall_handle = forged
        assert client.code("RecallMessage", request) == "BAD_REQUEST", forged
    request.topic.name = "NORMAL"
    assert client.code("RecallMessage", request) == "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"


def test_a_client_without_an_id_is_refused(gateway: RunningGateway) -> None:
    with Client(gateway.address, x_mq_client_id=" ") as nobody:
        assert code(nobody, message("NORMAL")) == "CLIENT_ID_REQUIRED"


def test_a_namespace_keeps_topics_apart(gateway: RunningGateway, cluster: RunningCluster) -> None:
    topic_of_type(cluster, "space%inner", "NORMAL")
    with Client(gateway.address, x_mq_namespace="space") as inside:
        assert code(inside, message("inner")) == "OK"
        assert code(inside, message("NORMAL")) == "TOPIC_NOT_FOUND"
