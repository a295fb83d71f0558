from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message import Message

from penstock.gateway.v2.consume import handles, renewal
from penstock.gateway.v2.wire import definition_pb2 as v2
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.proto.receipts import Receipt
from tests.support.client.running_cluster import RunningCluster
from tests.support.gateway import (
    Client,
    Received,
    RunningGateway,
    acknowledged,
    changed,
    message,
    orderly_group,
    topic_of_type,
    wish,
)
from tests.support.waiting import wait_until

FORGED = Receipt("g", "normal", "broker-a", 0, 0, 1, 1, 1).text()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster() as running:
        topic_of_type(running, "normal", "NORMAL")
        topic_of_type(running, "fifo", "FIFO", queues=1)
        yield running


@pytest.fixture(scope="module")
def client(cluster: RunningCluster) -> Iterator[Client]:
    with RunningGateway(cluster) as gateway, Client(gateway.address) as made:
        yield made


@pytest.fixture
def topic(cluster: RunningCluster, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "_").replace("]", "").replace(" ", "_")[:60]
    topic_of_type(cluster, name, "NORMAL", queues=1)
    return str(name)


def received(client: Client, request: wire.ReceiveMessageRequest, count: int = 1) -> Received:
    """An answer with so many messages; they may take more than one long poll to come."""
    found = client.receive(request)
    if not found.messages:
        found = client.receive(request)
    assert len(found.messages) == count, found.status
    return found


def handle(found: v2.Message) -> str:
    return found.system_properties.receipt_handle


def code(answer: wire.AckMessageResponse) -> str:
    return v2.Code.Name(answer.status.code)


def test_a_message_comes_with_everything_that_clients_look_at(client: Client, topic: str) -> None:
    sent = message(topic, b"body", tag="t", keys=["a", "b"], user={"p": "q"}, born_host="host", trace_context="00-1")
    client.send(sent)
    answer = received(client, wish("g", topic, invisible_ms=60_000))
    assert answer.kinds == ["status", "message", "delivery_timestamp"]
    (got,) = answer.messages
    system = got.system_properties
    assert (got.topic.name, got.body, dict(got.user_properties)) == (
        topic,
        b"body",
        {"p": "q", "TRACE_CONTEXT": "00-1"},
    )
    assert (system.message_id, system.tag, list(system.keys)) == (sent.system_properties.message_id, "t", ["a", "b"])
    assert (system.body_digest.type, system.body_digest.checksum) == (
        v2.DigestType.MD5,
        "841A2D689AD86BD1611447453C22C6FC",
    )
    assert (system.body_encoding, system.message_type) == (v2.Encoding.IDENTITY, v2.MessageType.NORMAL)
    assert (system.delivery_attempt, system.born_host, system.trace_context) == (1, "host", "00-1")
    assert system.born_timestamp == sent.system_properties.born_timestamp
    assert code(client.call("AckMessage", acknowledged("g", topic, system.receipt_handle))) == "OK"


def test_an_empty_answer_never_comes_before_its_time(client: Client, topic: str) -> None:
    began = time.monotonic()
    answer = client.receive(wish("g", topic, wait_s=1.0))
    assert time.monotonic() - began >= 1.0
    assert (answer.code, answer.kinds) == ("MESSAGE_NOT_FOUND", ["status", "delivery_timestamp"])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"invisible_ms": 9_999}, "ILLEGAL_INVISIBLE_TIME"),
        ({"invisible_ms": 12 * 3600 * 1000 + 1}, "ILLEGAL_INVISIBLE_TIME"),
        ({"expression": "||"}, "ILLEGAL_FILTER_EXPRESSION"),
        ({"expression": "a >", "sql": True}, "ILLEGAL_FILTER_EXPRESSION"),
        ({"expression": " ", "sql": True}, "ILLEGAL_FILTER_EXPRESSION"),
        ({"expression": "x" * 20_000}, "ILLEGAL_FILTER_EXPRESSION"),
        ({"batch": 0, "wait_s": 0}, "MESSAGE_NOT_FOUND"),
        ({"batch": 100_000, "wait_s": 0}, "MESSAGE_NOT_FOUND"),
    ],
)
def test_bad_receives_have_their_code(client: Client, change: dict[str, object], expected: str) -> None:
    request = wish("codes", "normal", **change)  # type: ignore[arg-type]
    assert client.receive(request).code == expected


@pytest.mark.parametrize(
    ("group", "topic_name", "expected"),
    [
        ("", "normal", "ILLEGAL_CONSUMER_GROUP"),
        ("a b", "normal", "ILLEGAL_CONSUMER_GROUP"),
        ("g" * 256, "normal", "ILLEGAL_CONSUMER_GROUP"),
        ("CID_RMQ_SYS_TRANS", "normal", "ILLEGAL_CONSUMER_GROUP"),
        ("g", "", "ILLEGAL_TOPIC"),
        ("g", "missing", "TOPIC_NOT_FOUND"),
    ],
)
def test_names_of_receives(client: Client, group: str, topic_name: str, expected: str) -> None:
    assert client.receive(wish(group, topic_name, wait_s=0)).code == expected


def test_handles_that_can_never_succeed_are_invalid_everywhere(client: Client) -> None:
    for text in ("", "x", FORGED, FORGED[:-1], "ä", "y" * 3000):
        answer = client.call("AckMessage", acknowledged("g", "normal", text))
        assert (code(answer), answer.status) == ("INVALID_RECEIPT_HANDLE", answer.entries[0].status)
        again = client.call("ChangeInvisibleDuration", changed("g", "normal", text, 10_000))
        assert (again.status.code, again.receipt_handle) == (v2.Code.INVALID_RECEIPT_HANDLE, text)
        forward = wire.ForwardMessageToDeadLetterQueueRequest(
            group=v2.Resource(name="g"), topic=v2.Resource(name="normal"), receipt_handle=text
        )
        told = client.code("ForwardMessageToDeadLetterQueue", forward)  # clients would send a FORGED one for ever
        assert told == ("OK" if text == FORGED else "INVALID_RECEIPT_HANDLE")
    assert code(client.call("AckMessage", acknowledged("g", "normal"))) == "INTERNAL_SERVER_ERROR"


def test_one_bad_handle_harms_no_other(client: Client, topic: str) -> None:
    client.send(message(topic))
    (got,) = received(client, wish("g", topic)).messages
    answer = client.call("AckMessage", acknowledged("g", topic, FORGED, handle(got)))
    codes = [v2.Code.Name(entry.status.code) for entry in answer.entries]
    assert (code(answer), codes) == ("MULTIPLE_RESULTS", ["INVALID_RECEIPT_HANDLE", "OK"])


def test_a_handle_is_good_for_its_own_topic_alone(client: Client, topic: str) -> None:
    client.send(message(topic))
    (got,) = received(client, wish("g", topic)).messages
    forward = wire.ForwardMessageToDeadLetterQueueRequest(
        group=v2.Resource(name="g"), topic=v2.Resource(name="normal"), receipt_handle=handle(got)
    )
    for other in ("normal", "missing"):
        forward.topic.name = other
        change = client.call("ChangeInvisibleDuration", changed("g", other, handle(got), 0))
        assert (v2.Code.Name(change.status.code), change.receipt_handle) == ("INVALID_RECEIPT_HANDLE", handle(got))
        assert client.code("ForwardMessageToDeadLetterQueue", forward) == "INVALID_RECEIPT_HANDLE"
        assert code(client.call("AckMessage", acknowledged("g", other, handle(got)))) == "INVALID_RECEIPT_HANDLE"
    assert code(client.call("AckMessage", acknowledged("g", topic, handle(got)))) == "OK"


def test_a_changed_message_comes_again_as_the_next_attempt_and_its_old_handle_is_void(
    client: Client, topic: str
) -> None:
    client.send(message(topic, b"again"))
    (first,) = received(client, wish("g", topic)).messages
    answer = client.call("ChangeInvisibleDuration", changed("g", topic, handle(first), 0))
    assert answer.status.code == v2.Code.OK
    assert answer.receipt_handle != handle(first)
    (second,) = received(client, wish("g", topic)).messages
    assert (second.body, second.topic.name, second.system_properties.delivery_attempt) == (b"again", topic, 2)
    assert second.system_properties.message_id == first.system_properties.message_id
    client.call("AckMessage", acknowledged("g", topic, handle(first)))
    answer = client.call("ChangeInvisibleDuration", changed("g", topic, handle(second), 0))
    assert answer.status.code == v2.Code.OK, "the old handle finishes nothing"
    (third,) = received(client, wish("g", topic)).messages
    assert third.system_properties.delivery_attempt == 3
    assert code(client.call("AckMessage", acknowledged("g", topic, handle(third)))) == "OK"


def test_a_change_of_what_is_acknowledged_is_refused_and_leaves_the_handle_as_it_was(
    client: Client, topic: str
) -> None:
    client.send(message(topic))
    (got,) = received(client, wish("g", topic)).messages
    assert code(client.call("AckMessage", acknowledged("g", topic, handle(got)))) == "OK"
    for invisible_ms in (0, 10_000):
        answer = client.call("ChangeInvisibleDuration", changed("g", topic, handle(got), invisible_ms))
        assert (v2.Code.Name(answer.status.code), answer.receipt_handle) == ("INVALID_RECEIPT_HANDLE", handle(got))
    assert code(client.call("AckMessage", acknowledged("g", topic, handle(got)))) == "OK", "as often as it is asked"


def test_a_dead_letter_that_comes_too_late_is_told_as_done_and_its_message_left_to_who_has_it(
    client: Client, cluster: RunningCluster, topic: str
) -> None:
    orderly_group(cluster, "late")
    client.send(message(topic))
    (first,) = received(client, wish("late", topic)).messages
    client.call("ChangeInvisibleDuration", changed("late", topic, handle(first), 0))
    (second,) = received(client, wish("late", topic)).messages
    forward = wire.ForwardMessageToDeadLetterQueueRequest(
        group=v2.Resource(name="late"), topic=v2.Resource(name=topic), receipt_handle=handle(first)
    )
    assert client.code("ForwardMessageToDeadLetterQueue", forward) == "OK", "or the client would ask for ever"
    client.call("ChangeInvisibleDuration", changed("late", topic, handle(second), 0))
    (third,) = received(client, wish("late", topic)).messages
    assert third.system_properties.delivery_attempt == 3


@pytest.mark.parametrize(("invisible_ms", "expected"), [(-1, 40011), (12 * 3600 * 1000 + 1, 40011)])
def test_a_change_has_limits(client: Client, invisible_ms: int, expected: int) -> None:
    answer = client.call("ChangeInvisibleDuration", changed("g", "normal", FORGED, invisible_ms))
    assert answer.status.code == expected


def test_filters_select_by_text_and_by_condition(client: Client, topic: str) -> None:
    tags = ["Aa", "BB", "b", None]
    for n, tag in enumerate(tags):
        client.send(
            message(topic, (tag or "none").encode(), user={"price": str(n * 10)}, **({"tag": tag} if tag else {}))
        )
    assert received(client, wish("tag", topic, expression=" Aa ||  || b ", batch=10), 2).bodies == [b"Aa", b"b"]
    assert received(client, wish("sql", topic, expression="price > 15", sql=True), 2).bodies == [b"b", b"none"]
    assert received(client, wish("true", topic, expression="TRUE", sql=True), 4).bodies == [b"Aa", b"BB", b"b", b"none"]


def test_a_very_long_tag_is_found_by_itself(client: Client, topic: str) -> None:
    tag = "t" * 10240
    client.receive(wish("long", topic, expression=tag, wait_s=0))
    assert client.send(message(topic, b"other"), message(topic, b"wanted", tag=tag)).status.code == v2.Code.OK
    assert received(client, wish("long", topic, expression=tag)).bodies == [b"wanted"]


def test_the_message_groups_of_one_queue_wait_for_each_other(
    client: Client, cluster: RunningCluster, topic: str
) -> None:
    """As RocketMQ's brokers lock a queue for its group, not a message group."""
    orderly_group(cluster, "locking")
    topic_of_type(cluster, f"{topic}-fifo", "FIFO", queues=1)
    client.receive(wish("locking", f"{topic}-fifo", wait_s=0))
    for key in ("a", "b"):
        client.send(message(f"{topic}-fifo", key.encode(), message_group=key))
    first = received(client, wish("locking", f"{topic}-fifo", batch=1))
    assert first.bodies == [b"a"]
    assert not client.receive(wish("locking", f"{topic}-fifo", wait_s=0)).messages
    assert code(client.call("AckMessage", acknowledged("locking", f"{topic}-fifo", handle(first.messages[0])))) == "OK"
    assert received(client, wish("locking", f"{topic}-fifo", batch=1)).bodies == [b"b"]


def test_a_push_consumer_that_makes_its_attempt_again_gets_again_what_it_has_not_acknowledged(
    client: Client, topic: str
) -> None:
    for body in (b"one", b"two"):
        client.send(message(topic, body))
    request = wish("g", topic, auto_renew=True, attempt_id="a")
    first = received(client, request, 2)
    client.call("AckMessage", acknowledged("g", topic, handle(first.messages[0])))
    (again,) = received(client, request).messages
    assert (again.body, again.system_properties.delivery_attempt) == (b"two", 1)
    assert code(client.call("AckMessage", acknowledged("g", topic, handle(again)))) == "OK"


def test_an_orderly_group_gets_one_batch_at_a_time_and_the_same_for_the_same_attempt(
    client: Client, cluster: RunningCluster
) -> None:
    orderly_group(cluster, "orderly")
    client.receive(wish("orderly", "fifo", wait_s=0))
    for n in range(4):
        client.send(message("fifo", b"%d" % n, message_group="k"))
    first = received(client, wish("orderly", "fifo", batch=2, attempt_id="one"), 2)
    assert first.bodies == [b"0", b"1"]
    assert first.messages[0].system_properties.message_group == "k"
    assert not client.receive(wish("orderly", "fifo", wait_s=0, attempt_id="two")).messages
    again = received(client, wish("orderly", "fifo", batch=2, attempt_id="one"), 2)
    assert [each.system_properties.delivery_attempt for each in again.messages] == [1, 1]
    handles = [handle(each) for each in again.messages]
    assert code(client.call("AckMessage", acknowledged("orderly", "fifo", *handles))) == "OK"
    third = received(client, wish("orderly", "fifo", batch=1), 1)
    assert third.bodies == [b"2"]
    forward = wire.ForwardMessageToDeadLetterQueueRequest(
        group=v2.Resource(name="orderly"), topic=v2.Resource(name="fifo"), receipt_handle=handle(third.messages[0])
    )
    assert client.code("ForwardMessageToDeadLetterQueue", forward) == "OK"
    assert received(client, wish("orderly", "fifo", batch=1), 1).bodies == [b"3"]
    dead = received(client, wish("undertaker", "%DLQ%orderly"), 1).messages[0]
    assert (dead.body, dead.system_properties.dead_letter_queue.topic) == (b"2", "fifo")


def test_dead_letters_name_their_topic_as_the_client_in_a_namespace_does_also_of_a_very_long_group(
    client: Client, cluster: RunningCluster
) -> None:
    topic_of_type(cluster, "space%inner", "NORMAL", queues=1)
    group = "g" * 249
    inside = Client("", channel=client.channel, x_mq_namespace="space")
    assert inside.send(message("inner", b"dead")).status.code == v2.Code.OK
    found = received(inside, wish(group, "inner")).messages[0]
    forward = wire.ForwardMessageToDeadLetterQueueRequest(
        group=v2.Resource(name=group), topic=v2.Resource(name="inner"), receipt_handle=handle(found)
    )
    assert inside.code("ForwardMessageToDeadLetterQueue", forward) == "OK"
    dead = received(inside, wish("undertaker", f"%DLQ%{group}")).messages[0]
    assert (dead.body, dead.system_properties.dead_letter_queue.topic) == (b"dead", "inner")


def test_messages_of_a_client_that_says_it_ends_are_given_to_others_soon(
    client: Client, cluster: RunningCluster, topic: str
) -> None:
    with RunningGateway(cluster) as gateway, Client(gateway.address) as leaving, Client(gateway.address) as staying:
        assert leaving.send(message(topic, b"left")).status.code == v2.Code.OK
        received(leaving, wish("g", topic, auto_renew=True))
        leaving.call("NotifyClientTermination", wire.NotifyClientTerminationRequest(group=v2.Resource(name="g")))
        found = wait_until(lambda: staying.receive(wish("g", topic, wait_s=2)).messages, 30, "the message again")
        assert found[0].body == b"left"


def test_the_handle_of_a_renewed_delivery_is_good_at_every_gateway(
    client: Client, cluster: RunningCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "AHEAD_S", renewal.INVISIBLE_MS / 1000)  # it is due at once
    renewed: list[bool] = []

    async def counted(*arguments: Any, **settings: Any) -> Any:
        reply, are_changed = await handles.changed(*arguments, **settings)
        renewed.extend(are_changed)
        return reply, are_changed

    monkeypatch.setattr(renewal, "changed", counted)
    with RunningGateway(cluster) as gateway, Client(gateway.address) as pushed:
        for body in (b"one", b"two"):
            assert client.send(message(topic, body)).status.code == v2.Code.OK
        found = received(pushed, wish("g", topic, auto_renew=True), 2).messages
        wait_until(lambda: len(renewed) >= 2, 30, "renewed")
        assert all(renewed)
        for at, each in zip((client, pushed), found, strict=True):
            assert code(at.call("AckMessage", acknowledged("g", topic, handle(each)))) == "OK"
    assert not client.receive(wish("g", topic, wait_s=0)).messages


def test_queues_are_read_and_committed_by_offset(client: Client, topic: str) -> None:
    for n in range(3):
        client.send(message(topic, b"%d" % n))
    queue = v2.MessageQueue(topic=v2.Resource(name=topic), id=0, broker=v2.Broker(name="broker-a"))
    group = v2.Resource(name="pullers")
    pull = wire.PullMessageRequest(group=group, message_queue=queue, offset=1, batch_size=1)
    answers = list(client.call("PullMessage", pull))
    assert [answer.WhichOneof("content") for answer in answers] == ["status", "message", "next_offset"]
    assert (answers[1].message.body, answers[2].next_offset) == (b"1", 2)
    for offset in (99, -1, 2**63 - 1):
        pull.offset = offset
        assert client.code("PullMessage", pull) == "ILLEGAL_OFFSET"
    pull.offset = 99
    assert list(client.call("PullMessage", pull))[-1].next_offset == 3
    get = wire.GetOffsetRequest(group=group, message_queue=queue)
    assert client.code("GetOffset", get) == "OFFSET_NOT_FOUND"
    for length, expected in ((121, "OFFSET_NOT_FOUND"), (256, "ILLEGAL_CONSUMER_GROUP")):
        longer = wire.GetOffsetRequest(group=v2.Resource(name="g" * length), message_queue=queue)
        assert client.code("GetOffset", longer) == expected
    assert client.code("UpdateOffset", wire.UpdateOffsetRequest(group=group, message_queue=queue, offset=2)) == "OK"
    assert client.call("GetOffset", get).offset == 2
    ask = wire.QueryOffsetRequest(message_queue=queue, query_offset_policy=v2.QueryOffsetPolicy.END)
    assert client.call("QueryOffset", ask).offset == 3
    ask.query_offset_policy = v2.QueryOffsetPolicy.TIMESTAMP
    assert client.code("QueryOffset", ask) == "BAD_REQUEST"
    ask.timestamp.seconds = 1
    assert client.call("QueryOffset", ask).offset == 0
    queue.id = 7
    assert client.code("QueryOffset", wire.QueryOffsetRequest(message_queue=queue)) == "BAD_REQUEST"


@pytest.mark.parametrize(
    ("method", "request_of_nothing"),
    [
        ("ReceiveMessage", wire.ReceiveMessageRequest()),
        ("AckMessage", wire.AckMessageRequest()),
        ("ChangeInvisibleDuration", wire.ChangeInvisibleDurationRequest()),
        ("ForwardMessageToDeadLetterQueue", wire.ForwardMessageToDeadLetterQueueRequest()),
    ],
)
def test_of_a_request_without_anything_the_topic_is_missed_first(
    client: Client, method: str, request_of_nothing: Message
) -> None:
    assert client.code(method, request_of_nothing) == "ILLEGAL_TOPIC"
