"""What is read without an object per message is what would be read with one; the rest is left to that."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from penstock.client import Forbidden, SendReceipt, SendStatus
from penstock.client.produce.drafts import Draft
from penstock.formats.columns import Column
from penstock.formats.record.properties import PROPERTIES_ROOM, TRANSIENT_PREFIX, decode_properties
from penstock.gateway.v2.callers import Caller
from penstock.gateway.v2.messages import SYSTEM_NAMES, draft_of
from penstock.gateway.v2.names import resource_in, topic_of
from penstock.gateway.v2.produce import together
from penstock.gateway.v2.produce.plain import PlainSend, answers, survey
from penstock.gateway.v2.produce.plain import read as read_counted
from penstock.gateway.v2.produce.sending import STORED, entry, response
from penstock.gateway.v2.status import Refusal
from penstock.gateway.v2.wire import definition_pb2 as v2
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.proto.errors import MessageTooLarge
from penstock.proto.requests import decoded
from tests.support.client.running_cluster import RunningCluster
from tests.support.gateway import Client, RunningGateway, damaged, message, topic_of_type, wish

CALLER = Caller("client", "JAVA", "", "127.0.0.1:1", 5.0)

TEXTS = ("a", "key-1", "two words", " ", "", "a|b", "a||b", "中文", "a\x01", "a\x7f", "x" * 300, "~", "\x1f")
NAMES = ("user", "n", *sorted(SYSTEM_NAMES), TRANSIENT_PREFIX, f"{TRANSIENT_PREFIX}x", "__RMQ.TRANSIEN", "TAG")
UNUSUAL: tuple[tuple[str, Any], ...] = (
    ("message_group", "g"),
    ("delivery_timestamp", {"seconds": 1}),
    ("delivery_attempt", 2),
    ("trace_context", "t"),
    ("priority", 0),
    ("lite_topic", "l"),
    ("receipt_handle", "r"),
    ("queue_offset", 7),
    ("orphaned_transaction_recovery_duration", {"seconds": 1}),
    ("body_digest", {"type": v2.DigestType.MD5, "checksum": "0"}),
    ("store_timestamp", {"seconds": 1}),
    ("body_encoding", v2.Encoding.GZIP),
    ("body_encoding", 99),
    ("message_type", v2.MessageType.TRANSACTION),
    ("message_type", v2.MessageType.FIFO),
    ("message_type", 99),
    ("queue_id", -1),
    ("born_timestamp", {"seconds": -1}),
    ("born_timestamp", {"seconds": 253_402_300_800}),
    ("born_timestamp", {"nanos": 1_000_000_000}),
    ("message_id", ""),
    ("message_id", "i" * 256),
    ("born_host", " "),
    ("born_host", "h" * 300),
)


def ordinary(chance: random.Random, topic: str) -> v2.Message:
    """A message as clients send them."""
    fields: dict[str, Any] = {}
    if chance.random() < 0.5:
        fields |= {"born_host": "10.0.0.1:2", "message_type": v2.MessageType.NORMAL, "queue_id": chance.randrange(8)}
    if chance.random() < 0.5:
        nanos = chance.choice([0, 999, 999_999_999])
        fields["born_timestamp"] = {"seconds": chance.randrange(253_402_300_800), "nanos": nanos}
    if chance.random() < 0.5:
        fields["tag"] = chance.choice(["tag", "", "t" * 200])
    fields["keys"] = [chance.choice(["key", "", "k" * 200]) for _ in range(chance.choice([0, 0, 1, 3]))]
    user = {f"name {number}": chance.choice(["", "value", "v" * 99]) for number in range(chance.choice([0, 1, 2, 32]))}
    return message(topic, chance.randbytes(chance.choice([1, 100, 1000])), user=user, **fields)


def changed(chance: random.Random, sent: v2.Message) -> None:
    """Change something of it that may make it unusual, or refused."""
    system = sent.system_properties
    kind = chance.randrange(6)
    if kind == 0:
        name, value = chance.choice(UNUSUAL)
        if isinstance(value, dict):
            getattr(system, name).CopyFrom(type(getattr(system, name))(**value))
        else:
            setattr(system, name, value)
    elif kind == 1:
        setattr(system, chance.choice(["tag", "message_id", "born_host"]), chance.choice(TEXTS))
    elif kind == 2:
        system.keys.append(chance.choice(TEXTS))
    elif kind == 3:
        sent.user_properties[chance.choice(NAMES)] = chance.choice(TEXTS)
    elif kind == 4:
        sent.user_properties[chance.choice(TEXTS)] = chance.choice(["v", "v" * 16384])
    else:
        sent.body = b""


def as_one_by_one(content: bytes) -> tuple[str, list[tuple[str, bytes, dict[str, str]]]]:
    """Topic, ids, bodies and properties of a request's messages. Raises Refusal: one is refused."""
    request = decoded(wire.SendMessageRequest, content, 1 << 30)
    (topic,) = {topic_of(each.topic, CALLER.namespace) for each in request.messages}
    found = []
    for each in request.messages:
        draft = draft_of(each, CALLER)
        assert draft.type == v2.MessageType.NORMAL
        assert type(draft.body) is bytes
        assert (draft.sharding_key, draft.deliver_at_ms, draft.check_after_s) == (None, None, None)
        sent = Draft(topic, draft.body, draft.tag, draft.keys, draft.properties, message_id=draft.message_id)
        assert sent.due_ms is None
        assert not sent.no_wait
        encoded = sent.encoded(draft.message_id)
        assert encoded is not None
        found.append((draft.message_id, draft.body, decode_properties(encoded)))
    return topic, found


def read(content: bytes, host: str) -> PlainSend | None:
    count, topic = survey(content)
    is_named = bool(topic) and resource_in(topic) is not None
    found = read_counted(content, count, host) if count > 0 and is_named else 0
    return found if isinstance(found, PlainSend) else None


def check_same(content: bytes) -> bool:
    """Make sure that it is read as one by one, if it is read as plain; True if it is."""
    plain = read(content, CALLER.host)
    if plain is None:
        return False
    properties = [decode_properties(each) for each in plain.properties]
    mine = list(zip(plain.message_ids, plain.bodies, properties, strict=True))
    try:
        topic = topic_of(resource_in(survey(content)[1]) or v2.Resource(), CALLER.namespace)
    except Refusal:
        with pytest.raises(Refusal):
            as_one_by_one(content)
        return False
    assert (topic, mine) == as_one_by_one(content)
    return True


def test_requests_of_every_kind_are_read_as_one_by_one() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    plain = 0
    for _ in range(1500):
        sent = [ordinary(chance, "topic") for _ in range(chance.choice([1, 1, 2, 5]))]
        is_ordinary = chance.random() < 0.3
        if not is_ordinary:
            for _ in range(chance.choice([1, 1, 2])):
                changed(chance, chance.choice(sent))
        content = wire.SendMessageRequest(messages=sent).SerializeToString()
        is_plain = check_same(content)
        assert is_plain or not is_ordinary
        plain += is_plain
        for _ in range(5):
            check_same(damaged(chance, content))
    assert plain > 450


@pytest.mark.parametrize("name", sorted(SYSTEM_NAMES))
def test_the_systems_names_are_looked_at_closely(name: str) -> None:
    sent = [message("topic"), message("topic", user={name: "v"})]
    assert read(wire.SendMessageRequest(messages=sent).SerializeToString(), CALLER.host) is None


def test_a_request_of_too_many_messages_or_bytes_or_of_none_is_looked_at_closely() -> None:
    def is_plain(*sent: v2.Message) -> bool:
        return check_same(wire.SendMessageRequest(messages=sent).SerializeToString())

    assert is_plain(*[message("topic")] * 1024)
    assert not is_plain(*[message("topic")] * 1025)
    assert not is_plain()
    assert not is_plain(message("topic", bytes(512 * 1024)))
    assert not is_plain(message("topic"), message("other"))


@pytest.mark.parametrize("count", [100, 8000, 16_000, 16_300, 16_301, 16_384])
def test_keys_that_fit_but_for_what_stands_between_them_are_looked_at_closely(count: int) -> None:
    sent = [message("topic"), message("topic", keys=["k"] * count), message("topic")]
    plain = read(wire.SendMessageRequest(messages=sent).SerializeToString(), CALLER.host)
    assert plain is None or int(plain.properties.lengths.max()) <= PROPERTIES_ROOM
    assert (plain is None) == (count >= 16_300)


@pytest.mark.parametrize("host", ["", "a b", "fe80::1%\x02TAGS\x01forged\x02", "ä", "h" * 256])
def test_of_a_caller_with_an_odd_host_all_is_looked_at_closely(host: str) -> None:
    content = wire.SendMessageRequest(messages=[message("topic")]).SerializeToString()
    assert read(content, CALLER.host) is not None
    assert read(content, host) is None
    # Only who says nothing of a host is of no account where each message says it.
    told = wire.SendMessageRequest(messages=[message("topic", born_host="h")] * 2).SerializeToString()
    assert (read(told, host) is None) == (host != "")


def test_a_topic_that_is_longer_than_any_is_not_kept() -> None:
    for length in (1, 1000, 1100, 400_000):
        content = wire.SendMessageRequest(messages=[message("t" * length)]).SerializeToString()
        assert (read(content, CALLER.host) is not None) == (length <= 1000)


def test_a_length_of_more_than_five_bytes_is_looked_at_closely() -> None:
    content = wire.SendMessageRequest(messages=[message("topic")]).SerializeToString()
    (size,) = content[1:2]
    for more in range(8):
        longer = content[:1] + bytes((size | 128, *[128] * more, 0)) + content[2:]
        assert check_same(longer) == (more + 2 <= 5)


@pytest.mark.parametrize("offset", [0, 1, 95, 127, 128, 1 << 40, (1 << 63) - 40])
@pytest.mark.parametrize("status", list(SendStatus))
def test_the_answer_is_that_of_messages_one_by_one(offset: int, status: SendStatus) -> None:
    sent = [message("topic", message_id="i" * (1 + number * 8)) for number in range(32)]
    plain = read(wire.SendMessageRequest(messages=sent).SerializeToString(), CALLER.host)
    assert isinstance(plain, PlainSend)
    receipts = [
        SendReceipt(message_id, "topic", "broker-a", 0, offset + number, "", status, 0)
        for number, message_id in enumerate(plain.message_ids)
    ]
    made = [entry(*each) for each in zip(plain.message_ids, receipts, strict=True)]
    for counts in ([32], [1] * 32, [5, 1, 26]):
        ends = np.cumsum([0, *counts])
        expected = [response(made[start:end]) for start, end in itertools.pairwise(ends.tolist())]
        found = answers(plain, counts, offset, STORED[status])
        assert found == [each.SerializeToString(deterministic=True) for each in expected]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(mappedFileSizeCommitLog=16 << 20, maxMessageSize=64 << 10) as running:
        topic_of_type(running, "topic")
        yield running


@pytest.fixture(scope="module")
def client(cluster: RunningCluster) -> Iterator[Client]:
    with RunningGateway(cluster) as gateway, Client(gateway.address) as made:
        made.send(message("topic"))  # the first of a topic waits for its route, and goes by itself
        yield made


def codes(answered: wire.SendMessageResponse) -> list[str]:
    return [v2.Code.Name(each.code) for each in (answered.status, *(entry.status for entry in answered.entries))]


def test_one_that_a_broker_refuses_takes_no_other_along(client: Client) -> None:
    sent = [message("topic", bytes(size)) for size in (100, 100 << 10, 101)]
    answered = client.send(*sent)
    assert codes(answered) == ["MULTIPLE_RESULTS", "OK", "MESSAGE_BODY_TOO_LARGE", "OK"]
    assert [each.message_id for each in answered.entries] == [each.system_properties.message_id for each in sent]
    found: set[int] = set()
    while {100, 101} - found:
        found |= {len(body) for body in client.receive(wish("group", "topic")).bodies}
    assert 100 << 10 not in found


def test_one_alone_that_a_broker_refuses_is_not_sent_again(client: Client, cluster: RunningCluster) -> None:
    asked = cluster.brokers["broker-a"].faults.requests["Append"]
    before = len(asked)
    assert codes(client.send(message("topic", bytes(100 << 10)))) == ["MESSAGE_BODY_TOO_LARGE"] * 2
    assert len(asked) == before + 1


def test_others_of_a_refused_batch_have_what_is_left_of_the_time(
    client: Client, cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []

    def noted(caller: Caller) -> float:
        times.append(caller.deadline_s)
        return before(caller)

    before = Caller.timeout_s.fget
    monkeypatch.setattr(Caller, "timeout_s", property(noted))
    cluster.brokers["broker-a"].faults.refuse("Append", MessageTooLarge("one of them"), times=1)
    assert codes(client.send(*[message("topic") for _ in range(3)])) == ["OK"] * 4
    as_one, one_by_one = times
    assert one_by_one < as_one


def test_one_that_cannot_be_laid_out_takes_no_other_along(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(content: bytes, count: int, host: str) -> PlainSend | int:
        found = read_counted(content, count, host)
        if isinstance(found, int) or "long" not in found.message_ids:
            return found
        long = b"k\x01" + b"v" * 33_000 + b"\x02"
        each = zip(found.message_ids, found.properties, strict=True)
        return found._replace(properties=Column.of([long if name == "long" else mine for name, mine in each]))

    monkeypatch.setattr(together, "read", unchecked)
    assert codes(client.send(message("topic", message_id="long"))) == ["MESSAGE_BODY_TOO_LARGE"] * 2
    with ThreadPoolExecutor(8) as callers:
        calls = [callers.submit(client.send, message("topic", message_id="long"))]
        calls += [callers.submit(client.send, *[message("topic") for _ in range(1 + n % 2)]) for n in range(40)]
        answers = [call.result() for call in calls]
    assert {code for answered in answers[1:] for code in codes(answered)} == {"OK"}


def test_an_error_is_each_messages_answer(client: Client, cluster: RunningCluster) -> None:
    refused = Forbidden("nobody writes here")
    cluster.brokers["broker-a"].faults.refuse("Append", refused, times=1)
    sent = [message("topic") for _ in range(3)]
    answered = client.send(*sent)
    assert codes(answered) == ["FORBIDDEN"] * 4
    assert {each.status.message for each in answered.entries} == {refused.message}
    assert [each.message_id for each in answered.entries] == [each.system_properties.message_id for each in sent]


def test_a_lost_answer_is_asked_for_again_and_they_are_stored_once(client: Client, cluster: RunningCluster) -> None:
    before = client.send(message("topic", queue_id=0)).entries[0]
    cluster.brokers["broker-a"].faults.drop_answers("Append", times=1)
    answered = client.send(*[message("topic", tag="once") for _ in range(3)])
    assert codes(answered) == ["OK"] * 4
    found: list[str] = []
    while len(found) < 3:
        received = client.receive(wish("once", "topic", expression="once"))
        found += [each.system_properties.message_id for each in received.messages]
    assert sorted(found) == sorted(each.message_id for each in answered.entries)
    assert before.message_id not in found


def test_many_at_once_have_each_their_own_place(client: Client) -> None:
    calls = [
        client._stub.SendMessage.future(
            wire.SendMessageRequest(messages=[message("topic", b"%d" % number) for _ in range(1 + number % 5)]),
            timeout=30,
            metadata=client.metadata,
        )
        for number in range(200)
    ]
    answers = [call.result() for call in calls]
    assert {code for answered in answers for code in codes(answered)} == {"OK"}
    for answered in answers:
        offsets = [each.offset for each in answered.entries]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
