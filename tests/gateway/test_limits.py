"""Limits and codes that need no cluster: names, messages, settings, streams, and what brokers do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from penstock.client import MessageView, PenstockError, TopicNotFound
from penstock.formats.record.layout import Record, encode_record
from penstock.formats.record.properties import (
    BORN_HOST,
    BORN_TIMESTAMP,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    RECONSUME_TIME,
    TAGS,
    UNIQ_KEY,
    encode_properties,
)
from penstock.formats.record.reading import RecordBatch
from penstock.gateway.http2.frames import Code as End
from penstock.gateway.http2.frames import Setting, settings
from penstock.gateway.http2.method import Method
from penstock.gateway.v2 import clients
from penstock.gateway.v2.callers import Caller
from penstock.gateway.v2.clients import Clients
from penstock.gateway.v2.consume.finishing import Finishing
from penstock.gateway.v2.consume.receiving import Receiving
from penstock.gateway.v2.consume.renewal import Renewal
from penstock.gateway.v2.messages import deliver, draft_of, span_ms
from penstock.gateway.v2.names import group_of, resource_of, topic_of
from penstock.gateway.v2.produce.transactions import Transactions
from penstock.gateway.v2.service import SERVICE, Service
from penstock.gateway.v2.settings import BYTES_MAX, answer_to
from penstock.gateway.v2.status import Refusal, ok, status_of
from penstock.gateway.v2.wire import definition_pb2 as v2
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.proto.errors import FlowControl
from penstock.proto.names import check_group
from penstock.proto.receipts import Receipt
from penstock.proto.wire.nameserver_pb2 import QueueData, TopicRoute
from tests.support.gateway import OneBroker, acknowledged, changed, message, wish
from tests.support.http2 import serving

RECEIVE = f"/{SERVICE.full_name}/ReceiveMessage"
CALLER = Caller("client", "JAVA", "", "127.0.0.1:1", 5.0)
HANDLE = Receipt("g", "topic", "broker-a", 0, 7, 1, 1, 1).text()


def code_of(refused: pytest.ExceptionInfo[Refusal]) -> str:
    return v2.Code.Name(refused.value.status.code)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"lite_topic": ""}, "ILLEGAL_LITE_TOPIC"),
        ({"tag": " "}, "ILLEGAL_MESSAGE_TAG"),
        ({"lite_topic": "a b"}, "ILLEGAL_LITE_TOPIC"),
        ({"lite_topic": "x" * 65}, "ILLEGAL_LITE_TOPIC"),
        ({"body_encoding": 3}, "BAD_REQUEST"),
        ({"message_id": ""}, "ILLEGAL_MESSAGE_ID"),
        ({"delivery_timestamp": {"seconds": 2**40}}, "ILLEGAL_DELIVERY_TIME"),
        ({"message_type": 4, "orphaned_transaction_recovery_duration": {"seconds": -1}}, "BAD_REQUEST"),
        (
            {"message_type": 4, "orphaned_transaction_recovery_duration": {"seconds": 3600, "nanos": 1}},
            "BAD_REQUEST",
        ),
        (
            {"message_type": 4, "orphaned_transaction_recovery_duration": {"seconds": 1, "nanos": 1_000_000_000}},
            "BAD_REQUEST",
        ),
        ({"user": {"": "v"}}, "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        ({"user": {"k\x00": "v"}}, "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        ({"keys": ["a", " "]}, "ILLEGAL_MESSAGE_KEY"),
        ({"message_group": "中" * 22}, "ILLEGAL_MESSAGE_GROUP"),
        ({"message_type": 4, "delivery_timestamp": {"seconds": 1}}, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        ({"message_type": 4, "priority": 1}, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        ({"message_group": "g", "priority": 0}, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        ({"delivery_timestamp": {"seconds": 1}, "priority": 1}, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
    ],
)
def test_bad_fields_of_messages_have_their_code(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(Refusal) as refused:
        draft_of(message("topic", **fields), CALLER)
    assert code_of(refused) == expected


def test_empty_fields_are_none() -> None:
    draft = draft_of(message("topic", tag="", keys=["", "a"], message_group="", born_host=" "), CALLER)
    assert draft.properties[BORN_HOST] == CALLER.host
    assert (draft.tag, draft.keys, draft.sharding_key, draft.type) == (None, ["a"], None, v2.MessageType.NORMAL)


@pytest.mark.parametrize("seconds", [-1, 253_402_300_800, 2**62])
def test_a_time_that_clients_cannot_read_is_no_born_time(seconds: int) -> None:
    sent = message("topic", born_timestamp={"seconds": seconds})
    assert BORN_TIMESTAMP not in draft_of(sent, CALLER).properties


def test_fields_at_their_limits_are_taken() -> None:
    fields = {
        "lite_topic": "x" * 64,
        "message_group": "中" * 21,
        "message_type": 99,
        "tag": " a ",
        "delivery_attempt": 3,
    }
    draft = draft_of(message("topic", **fields), CALLER)
    assert (draft.type, draft.tag) == (v2.MessageType.FIFO, " a ")
    assert draft.properties[RECONSUME_TIME] == "3"


@pytest.mark.parametrize(
    ("namespace", "name"),
    [("rmq_sys_x", "topic"), ("", "rmq_sys_x"), ("", "TBW102"), ("a b", "topic"), ("n" * 127, "t"), ("", "t" * 128)],
)
def test_no_namespace_makes_a_topic_the_systems(namespace: str, name: str) -> None:
    with pytest.raises(Refusal) as refused:
        topic_of(v2.Resource(name=name), namespace)
    assert code_of(refused) == "ILLEGAL_TOPIC"


@pytest.mark.parametrize(("namespace", "name"), [("CID_RMQ_SYS_x", "group"), ("", "g" * 256), ("", "CID_RMQ_SYS_")])
def test_no_namespace_makes_a_group_the_systems(namespace: str, name: str) -> None:
    with pytest.raises(Refusal) as refused:
        group_of(v2.Resource(name=name), namespace)
    assert code_of(refused) == "ILLEGAL_CONSUMER_GROUP"


@pytest.mark.parametrize("length", [120, 121, 250])
def test_a_group_that_is_too_long_for_brokers_has_one_shorter_name_with_its_own_topics(length: int) -> None:
    name = "g" * length
    group = group_of(v2.Resource(name=name), "")
    assert check_group(group) == group
    assert (group == name) == (length == 120)
    assert group != group_of(v2.Resource(name=f"{name[:-1]}h"), "")
    for prefix in ("%DLQ%", "%RETRY%"):
        assert topic_of(v2.Resource(name=prefix + name), "") == prefix + group


@pytest.mark.parametrize("prefix", ["%DLQ%", "%RETRY%"])
def test_a_groups_own_topics_are_those_of_the_group_in_its_namespace(prefix: str) -> None:
    group = group_of(v2.Resource(name="g"), "space")
    topic = topic_of(v2.Resource(name=f"{prefix}g"), "space")
    assert topic == prefix + group
    assert resource_of(topic, "space") == v2.Resource(resource_namespace="space", name=f"{prefix}g")
    assert resource_of(topic, "") == v2.Resource(name=topic)


def test_settings_have_a_size() -> None:
    settings = v2.Settings(publishing=v2.Publishing(), user_agent=v2.UA(platform="x" * BYTES_MAX))
    with pytest.raises(Refusal) as refused:
        asyncio.run(answer_to(settings, CALLER, None))  # type: ignore[arg-type]
    assert code_of(refused) == "BAD_REQUEST"


@pytest.mark.parametrize(
    "properties",
    [
        {f"k{n}": "v" for n in range(33)},
        {"": "v"},
        {"1k": "v"},
        {"k" * 65: "v"},
        {"k/": "v"},
        {"rocketmq.k": "v"},
        {"k": "v" * 257},
        {f"k{n}": "v" * 255 for n in range(16)},
    ],
)
def test_client_properties_have_limits(properties: dict[str, str]) -> None:
    settings = v2.Settings(publishing=v2.Publishing(), client_properties=properties)
    with pytest.raises(Refusal) as refused:
        asyncio.run(answer_to(settings, CALLER, None))  # type: ignore[arg-type]
    assert code_of(refused) == "INVALID_CLIENT_PROPERTIES"


def test_client_properties_within_their_limits_are_sent_back() -> None:
    properties = {"k" * 64: "v" * 256} | {f"k.{n}": "" for n in range(31)}
    settings = v2.Settings(publishing=v2.Publishing(), client_properties=properties)
    answer = asyncio.run(answer_to(settings, CALLER, None))  # type: ignore[arg-type]
    assert dict(answer.client_properties) == properties


def test_a_stream_ends_whose_client_sends_no_settings_and_calls_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Clients()
    settled, silent, calling = (known.open(known.heard(replace(CALLER, client_id=name))) for name in "abc")
    settled.is_settled = True
    known.heard(replace(CALLER, client_id="c"))
    known.sweep()
    assert not silent.is_over
    monkeypatch.setattr(clients, "SETTINGS_S", 0.0)
    known.sweep()
    assert (settled.is_over, silent.is_over, calling.is_over) == (False, True, False)


def test_a_client_that_has_ended_meanwhile_publishes_nothing_that_is_kept() -> None:
    known = Clients()
    client = known.heard(CALLER)
    stream = known.open(client)
    known.forget(CALLER.client_id)
    known.publishes(client, "topic")  # by settings that it sent before
    assert known.publishers("topic") == []
    known.closed(client, stream)


def test_a_client_whose_stream_has_ended_lives_for_some_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Clients()
    client = known.heard(CALLER)
    stream = known.open(client)
    known.closed(client, stream)
    assert known.is_living(CALLER.client_id)
    monkeypatch.setattr(clients, "LIVING_S", 0.0)
    assert not known.is_living(CALLER.client_id)
    known.open(client)
    assert known.is_living(CALLER.client_id)


def test_a_client_that_never_had_a_stream_lives_until_it_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Clients()
    known.heard(CALLER)
    monkeypatch.setattr(clients, "LIVING_S", 0.0)
    assert known.is_living(CALLER.client_id)
    monkeypatch.setattr(clients, "SILENCE_S", 0.0)
    assert not known.is_living(CALLER.client_id)
    assert not known.is_living("nobody")


class _Failing:
    """Brokers whose calls fail in a way that nobody foresaw."""

    async def at_master(self, *_: Any, **__: Any) -> Any:
        raise ValueError("channel closed")

    async def route(self, topic: str) -> TopicRoute:
        return TopicRoute(topic=topic, exists=True, queues=[QueueData(broker_name="broker-a")])


def finishing() -> Finishing:
    brokers: Any = _Failing()
    return Finishing(brokers, Renewal(brokers, lambda _: True))


def test_an_acknowledgement_is_answered_whatever_happens() -> None:
    elsewhere = Receipt("g", "topic", "nowhere", 0, 7, 1, 1, 1).text()
    answer = asyncio.run(finishing().acknowledge(CALLER, acknowledged("g", "topic", HANDLE, "forged", elsewhere)))
    assert [v2.Code.Name(entry.status.code) for entry in answer.entries] == [
        "INTERNAL_SERVER_ERROR",
        "INVALID_RECEIPT_HANDLE",
        "INVALID_RECEIPT_HANDLE",
    ]


def test_a_request_whose_entries_failed_alike_says_why() -> None:
    answer = asyncio.run(finishing().acknowledge(CALLER, acknowledged("g", "topic", HANDLE)))
    (entry,) = answer.entries
    assert answer.status == entry.status
    assert "internal error" in answer.status.message


@pytest.mark.parametrize("nanos", [1_000_000_000, -1_000_000_000, -1])
def test_a_span_of_time_that_is_none_is_refused(nanos: int) -> None:
    with pytest.raises(Refusal, match=f"long_polling_timeout of 1 s and {nanos} ns") as refused:
        span_ms(Duration(seconds=1, nanos=nanos), "long_polling_timeout", v2.Code.ILLEGAL_POLLING_TIME)
    assert code_of(refused) == "ILLEGAL_POLLING_TIME"


def test_a_span_of_time_is_told_in_milliseconds() -> None:
    assert span_ms(Duration(seconds=1, nanos=999_999_999), "span", v2.Code.BAD_REQUEST) == 1999
    assert span_ms(Duration(seconds=-1, nanos=-1), "span", v2.Code.BAD_REQUEST) < 0


@pytest.mark.parametrize(
    ("group", "invisible_ms", "expected"),
    [("g", -1, "ILLEGAL_INVISIBLE_TIME"), ("", 0, "ILLEGAL_CONSUMER_GROUP"), ("other", 0, "INVALID_RECEIPT_HANDLE")],
)
def test_a_change_that_is_refused_leaves_the_client_its_handle(group: str, invisible_ms: int, expected: str) -> None:
    answer = asyncio.run(finishing().change(CALLER, changed(group, "topic", HANDLE, invisible_ms)))
    assert (v2.Code.Name(answer.status.code), answer.receipt_handle) == (expected, HANDLE)


def receiving(answers: Any) -> dict[str, Method]:
    """The method of the server for which ``answers`` answers."""
    return {
        RECEIVE: Method(
            Service(None)._streaming("ReceiveMessage", answers, wire.ReceiveMessageRequest, wire.ReceiveMessageResponse)
        )
    }


@pytest.mark.parametrize(
    ("error", "expected"),
    [(TopicNotFound("topic 'missing' does not exist"), "TOPIC_NOT_FOUND"), (KeyError(1), "INTERNAL_SERVER_ERROR")],
)
def test_a_receive_that_is_refused_ends_with_the_time_as_every_other(error: Exception, expected: str) -> None:
    async def answers(*_: Any) -> AsyncGenerator[Any, None]:
        raise error
        yield

    async def scenario() -> None:
        async with serving(receiving(answers)) as it, it.peer() as peer:
            answer = await peer.ask(1, b"", RECEIVE).answer(1)
            status, last = map(wire.ReceiveMessageResponse.FromString, answer.messages)
            assert v2.Code.Name(status.status.code) == expected
            assert last.delivery_timestamp.seconds > 0

    asyncio.run(scenario())


def test_an_answer_that_nobody_reads_ends_with_its_deadline() -> None:
    is_given_back = []

    async def answers(*_: Any) -> AsyncGenerator[Any, None]:
        try:
            yield wire.ReceiveMessageResponse(status=ok())
        finally:
            is_given_back.append(True)

    async def scenario() -> None:
        narrow = settings({Setting.INITIAL_WINDOW_SIZE: 1})
        async with serving(receiving(answers)) as it, it.peer(narrow) as peer:
            answer = await peer.ask(1, b"", RECEIVE, grpc_timeout="10m").answer(1)
            assert answer.fields["rst"] == str(int(End.CANCEL))

    asyncio.run(scenario())
    assert is_given_back == [True]


class _Slow(OneBroker):
    """Brokers whose answers to receives come when their time is over."""

    def __init__(self) -> None:
        self.timeouts_s: list[float] = []

    async def at_data_port(self, *request: Any, late: Any) -> Any:
        self.timeouts_s.append(request[-1])
        raise FlowControl("all queues are full")


@pytest.mark.parametrize(("deadline_s", "most_s"), [(1.0, 0.9), (60.0, 23.0)])
def test_a_receive_that_is_refused_for_long_is_answered_before_its_client_gives_up(
    deadline_s: float, most_s: float
) -> None:
    brokers: Any = _Slow()

    async def scenario() -> None:
        receiving = Receiving(brokers, Clients(), finishing(), Renewal(brokers, lambda _: True))
        async for _ in receiving.receive(replace(CALLER, deadline_s=deadline_s), wish("g", "topic", wait_s=60)):
            pass

    with pytest.raises(FlowControl):
        asyncio.run(scenario())
    assert most_s - 0.5 < brokers.timeouts_s[0] <= most_s


class _Halfless:
    """Brokers that have topics, and no halves."""

    calls = SimpleNamespace(everywhere=None)

    async def in_thread(self, *_: Any) -> Any:
        return {}, ()

    async def route(self, topic: str) -> TopicRoute:
        if topic == "missing":
            raise TopicNotFound("topic 'missing' does not exist")
        return TopicRoute(topic=topic, exists=True)


@pytest.mark.parametrize(
    ("topic", "resolution", "expected"),
    [
        ("topic", v2.TransactionResolution.COMMIT, "INVALID_TRANSACTION_ID"),
        ("topic", v2.TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED, "INVALID_TRANSACTION_ID"),
        ("missing", v2.TransactionResolution.COMMIT, "TOPIC_NOT_FOUND"),
        ("missing", v2.TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED, "TOPIC_NOT_FOUND"),
        ("topic", 99, "BAD_REQUEST"),
    ],
)
def test_an_end_of_no_transaction_has_its_code(topic: str, resolution: Any, expected: str) -> None:
    request = wire.EndTransactionRequest(
        topic=v2.Resource(name=topic), transaction_id="nobody's", resolution=resolution
    )

    async def scenario() -> None:
        brokers: Any = _Halfless()
        producer: Any = SimpleNamespace(producer_sessions=lambda _: None)
        await Transactions(brokers, Clients(), producer).end(CALLER, request)

    with pytest.raises((Refusal, PenstockError)) as refused:
        asyncio.run(scenario())
    assert v2.Code.Name(status_of(refused.value, "EndTransaction").code) == expected


@pytest.mark.parametrize(("own", "namespace"), [("", "space"), ("space", "")])
def test_a_dead_letter_names_its_topic_as_a_client_in_the_namespace_does(own: str, namespace: str) -> None:
    properties = encode_properties({DLQ_ORIGIN_TOPIC: "space%inner", DLQ_ORIGIN_MESSAGE_ID: "id", TAGS: " a "})
    record = encode_record(Record(topic="%DLQ%space%g", body=b"x", properties=properties))
    view = MessageView(RecordBatch(record), 0, "broker-a")
    message = v2.Message()
    deliver(message, view, v2.Resource(resource_namespace=own, name="%DLQ%g"), namespace)
    found = message.system_properties
    assert found.dead_letter_queue == v2.DeadLetterQueue(topic="inner", message_id="id")
    assert found.tag == " a "
    record = encode_record(
        Record(topic="%DLQ%g", body=b"x", properties=properties + encode_properties({UNIQ_KEY: "01"}))
    )
    view = MessageView(RecordBatch(record), 0, "broker-a")
    deliver(message := v2.Message(), view, v2.Resource(name="%DLQ%g"), "")
    assert message.system_properties.dead_letter_queue.message_id == "01"
    deliver(message := v2.Message(), view, v2.Resource(name="%DLQ%space%g"), "")
    assert message.system_properties.dead_letter_queue.topic == "space%inner"
