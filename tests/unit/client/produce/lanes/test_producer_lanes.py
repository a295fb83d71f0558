"""Decisions of the producer: who is sent with whom, where, and again."""

from __future__ import annotations

import pytest

from penstock.client.cluster.queues import WriteQueues
from penstock.client.produce.lanes import Lanes
from penstock.client.produce.parts import Batch, Kind, Part
from penstock.client.produce.sharding.key_moves import KEY_AWAY_S
from penstock.proto.errors import (
    BrokerUnavailable,
    CorruptBatch,
    FlowControl,
    Forbidden,
    LaneForgotten,
    NotEnoughReplicas,
    NotMaster,
    OutcomeUnknown,
    PenstockError,
    TopicNotFound,
)
from tests.support.client.lanes import BROKEN, NOW, bodies, lanes, part, start

UNWRITABLE = Forbidden("topic orders may not be written: its perm is 4", perm=4)
QUEUE_GONE = Forbidden("topic orders, record 0 of the batch: bad queue, the topic has 4", queues=4)
NEVER_CONNECTED = BrokerUnavailable("broker 1: failed to connect to all addresses", status="UNAVAILABLE")


def test_batches_without_keys_go_to_one_queue_after_the_other() -> None:
    topic = lanes(("a", 2), ("b", 2), batch_count_max=1)
    topic.add(part(b"%d" % number) for number in range(4))
    sent = [(batch.lane.broker_name, int(batch.queue_ids[0])) for batch in start(topic)]
    assert sent == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_what_waits_for_a_free_lane_is_joined_into_the_next_batch() -> None:
    topic = lanes(("a", 1))
    topic.add([part(b"first")])
    (first,) = start(topic)
    topic.add([part(b"2"), part(b"3")])
    assert start(topic) == []
    topic.acknowledged(first)
    (second,) = start(topic)
    assert bodies(second) == [b"2", b"3"]
    assert second.sequence > first.sequence


def send(topic: Lanes, *bodies: bytes) -> Batch | None:
    """What a waiting sender does."""
    one = part(*bodies, kind=Kind.SEND)
    one.properties = [None] * len(bodies)
    if topic.has_waiting:
        topic.join(one)
        return None
    return topic.start_one(one, NOW)


def test_waiting_senders_share_the_batch_behind_two_small_ones() -> None:
    topic = lanes(("a", 8))
    first, second = send(topic, b"1"), send(topic, b"2")
    assert first is not None
    assert second is not None
    assert [send(topic, b"3"), send(topic, b"4"), *start(topic)] == [None, None]
    topic.acknowledged(first)
    (third,) = start(topic)
    assert bodies(third) == [b"3", b"4"]


def test_a_shared_batch_goes_when_it_is_half_full_or_something_waits_behind_it() -> None:
    topic = lanes(("a", 8), batch_bytes_max=2000)
    for body in (b"1", b"2", b"3"):
        send(topic, body)
    assert start(topic) == []
    send(topic, *[b"4"] * 4)  # 200 each: half full
    (half,) = start(topic)
    assert half.count == 5
    send(topic, b"5")
    topic.add([part(b"produced")])
    assert [bodies(batch) for batch in start(topic)] == [[b"5", b"produced"]]


@pytest.mark.parametrize("kind", [Kind.PRODUCE, Kind.SEND])
def test_batches_that_are_tried_again_keep_no_sender_waiting(kind: Kind) -> None:
    topic = lanes(("a", 8), batch_count_max=1)
    topic.add([part(b"1", kind=kind), part(b"2", kind=kind)])
    for batch in start(topic):
        topic.on_error(batch, OutcomeUnknown("no answer"), NOW)
    assert send(topic, b"3") is not None


def test_keyed_messages_go_to_the_queue_of_their_hash_in_order() -> None:
    topic = lanes(("a", 16))
    topic.add([part(b"0", b"8", b"1", b"0 again", hashes=[16, 8, 1, -16])])
    by_lane = {batch.lane.number: batch for batch in start(topic)}
    assert bodies(by_lane[0]) == [b"0", b"8", b"0 again"]  # queues 0 and 8 share lane 0
    assert by_lane[0].queue_ids.tolist() == [0, 8, 0]
    assert bodies(by_lane[1]) == [b"1"]


def test_messages_behind_a_batch_under_way_wait_for_its_lane_and_keep_their_order() -> None:
    topic = lanes(("a", 1))
    topic.add([part(b"1", hashes=[0])])
    (first,) = start(topic)
    topic.add([part(b"2", hashes=[0]), part(b"3", hashes=[0])])
    assert start(topic) == []
    topic.acknowledged(first)
    (second,) = start(topic)
    assert bodies(second) == [b"2", b"3"]


def test_a_batch_whose_lane_the_broker_has_forgotten_is_given_up_as_unknown_and_the_lane_goes_on() -> None:
    topic = lanes(("a", 1))
    topic.add([part(b"1")])
    (batch,) = start(topic)
    assert topic.on_error(batch, BROKEN, NOW) == []
    (failure,) = topic.on_error(batch, LaneForgotten("forgotten"), NOW + 1)
    assert isinstance(failure.error, OutcomeUnknown)
    assert [body for each in failure.parts for body in each.bodies] == [b"1"]
    topic.add([part(b"2")])
    (fresh,) = start(topic, NOW + 2)
    assert (bodies(fresh), fresh.attempts) == ([b"2"], 0)


def test_a_refused_batch_without_keys_goes_to_another_broker_group_at_once() -> None:
    topic = lanes(("a", 4), ("b", 4))
    topic.add([part(b"x")])
    (batch,) = start(topic)
    assert batch.lane.broker_name == "a"
    assert topic.on_error(batch, NotEnoughReplicas("too few"), NOW) == []
    (again,) = start(topic)
    assert again.lane.broker_name == "b"


def test_what_a_group_may_not_write_any_more_goes_elsewhere_and_the_group_counts_as_well() -> None:
    topic = lanes(("a", 4), ("b", 4))
    topic.add([part(b"x", kind=Kind.SEND)])
    (batch,) = start(topic)
    assert batch.lane.broker_name == "a"
    assert topic.on_error(batch, UNWRITABLE, NOW) == []
    (again,) = start(topic)
    assert again.lane.broker_name == "b"
    topic.add([part(b"y")])
    assert [each.lane.broker_name for each in start(topic)] == ["a"]


def test_a_refused_keyed_batch_is_tried_again_before_what_came_after_it() -> None:
    topic = lanes(("a", 1), ("b", 1))
    topic.add([part(b"1", hashes=[0])])
    (batch,) = start(topic)
    topic.add([part(b"2", hashes=[0])])
    start(topic)
    topic.on_error(batch, NotEnoughReplicas("too few"), NOW)
    assert start(topic) == []
    (again,) = start(topic, NOW + 5)
    assert bodies(again) == [b"1", b"2"]
    assert again.lane is batch.lane


def test_an_unknown_outcome_keeps_lane_sequence_and_broker_group() -> None:
    topic = lanes(("a", 1), ("b", 1))
    topic.add([part(b"x")])
    (batch,) = start(topic)
    topic.on_error(batch, BROKEN, NOW)
    assert start(topic) == []
    assert start(topic, NOW + 5) == [batch]


def test_not_stored_after_unknown_is_still_unknown() -> None:
    topic = lanes(("a", 1), ("b", 1))
    topic.add([part(b"x")])
    (batch,) = start(topic)
    topic.on_error(batch, BROKEN, NOW)
    (batch,) = start(topic, NOW + 5)
    topic.on_error(batch, NEVER_CONNECTED, NOW + 5)
    assert start(topic, NOW + 10) == [batch]
    topic.on_error(batch, BROKEN, NOW + 29)
    (failure,) = topic.expire(NOW + 31)
    assert isinstance(failure.error, OutcomeUnknown)


def test_an_unknown_batch_whose_group_died_waits_for_it_by_default() -> None:
    topic = lanes(("a", 1), ("b", 1))
    topic.add([part(b"x")])
    (batch,) = start(topic)
    topic.on_error(batch, BROKEN, NOW)
    topic.adopt(WriteQueues([("b", 1)]), NOW)
    assert start(topic, NOW + 5) == []
    topic.adopt(WriteQueues([("a", 1), ("b", 1)]), NOW + 6)
    assert start(topic, NOW + 6) == [batch]


def test_an_unknown_batch_whose_group_died_moves_after_a_second_if_that_is_wanted() -> None:
    topic = lanes(("a", 1), ("b", 1), retry_another_shard_on_unknown=True)
    topic.add([part(b"x")])
    (batch,) = start(topic)
    topic.on_error(batch, BROKEN, NOW)
    topic.adopt(WriteQueues([("b", 1)]), NOW)
    assert start(topic, NOW + 0.5) == []
    (moved,) = start(topic, NOW + 1.5)
    assert moved.lane.broker_name == "b"


def test_keys_wait_for_their_group_through_a_failover() -> None:
    topic = lanes(("a", 1), ("b", 1))
    topic.adopt(WriteQueues([("b", 1)]), NOW)
    topic.add([part(b"1", hashes=[0]), part(b"other", hashes=[1])])
    (other,) = start(topic)
    assert bodies(other) == [b"other"]
    assert topic.next_due(NOW) == NOW + KEY_AWAY_S
    topic.acknowledged(other)
    (moved,) = start(topic, NOW + KEY_AWAY_S)
    assert (moved.lane.broker_name, bodies(moved)) == ("b", [b"1"])


def test_keys_behind_an_unknown_batch_wait_for_its_word_before_they_go_elsewhere() -> None:
    topic = lanes(("a", 1), ("b", 1))
    topic.add([part(b"1", hashes=[0])])
    (batch,) = start(topic)
    topic.on_error(batch, BROKEN, NOW)
    topic.adopt(WriteQueues([("b", 1)]), NOW)
    topic.add([part(b"2", hashes=[0])])
    assert start(topic, NOW + 2 * KEY_AWAY_S) == []
    topic.adopt(WriteQueues([("a", 1), ("b", 1)]), NOW + 9)
    (again,) = start(topic, NOW + 9)
    assert again is batch
    topic.acknowledged(again)
    (second,) = start(topic, NOW + 9)
    assert (second.lane.broker_name, bodies(second)) == ("a", [b"2"])  # home again, since that is back


def test_only_the_corrupt_message_of_a_batch_is_refused() -> None:
    topic = lanes(("a", 1))
    topic.add([part(b"1", b"2", b"bad", b"4")])
    stored, failed = [], []
    for _ in range(20):
        for batch in start(topic):
            if b"bad" in bodies(batch):
                failed += topic.on_error(batch, CorruptBatch("bad record"), NOW)
            else:
                stored += bodies(batch)
                topic.acknowledged(batch)
    assert stored == [b"1", b"2", b"4"]
    assert [body for failure in failed for each in failure.parts for body in each.bodies] == [b"bad"]


@pytest.mark.parametrize("error", [TopicNotFound("gone"), Forbidden("not a right of this user")])
def test_a_refusal_that_concerns_all_messages_is_final(error: PenstockError) -> None:
    topic = lanes(("a", 1))
    topic.add([part(b"1", b"2")])
    (batch,) = start(topic)
    (failure,) = topic.on_error(batch, error, NOW)
    assert failure.error is error
    assert not topic.has_waiting
    assert all(lane.is_free for lane in topic.lanes.values())


def test_a_waiting_send_gives_up_after_its_retries_and_a_produced_message_does_not() -> None:
    for kind, gives_up in ((Kind.SEND, True), (Kind.PRODUCE, False)):
        topic = lanes(("a", 1), send_retries=2)
        topic.add([part(b"x", kind=kind)])
        failures = []
        for attempt in range(6):
            for batch in start(topic, NOW + attempt * 2):
                failures += topic.on_error(batch, FlowControl("too many"), NOW + attempt * 2)
        assert bool(failures) is gives_up


@pytest.mark.parametrize(
    "error", [NEVER_CONNECTED, NotMaster("a slave"), NotEnoughReplicas("one of two"), UNWRITABLE, QUEUE_GONE]
)
def test_a_group_without_a_master_or_replicas_for_the_moment_uses_up_no_retries(error: PenstockError) -> None:
    topic = lanes(("a", 1), send_retries=0)
    topic.add([part(b"x", kind=Kind.SEND)])
    (batch,) = start(topic)
    assert topic.on_error(batch, error, NOW) == []
    (again,) = start(topic, NOW + 2)
    (failure,) = topic.on_error(again, error, again.parts[0].deadline)
    assert failure.error is error


def test_what_waits_ends_at_once_when_its_topic_is_closed_everywhere_and_waits_while_a_master_is_missing() -> None:
    topic = lanes(("a", 1))
    topic.add([part(b"1")])
    (batch,) = start(topic)
    topic.add([part(b"2", hashes=[0])])
    topic.adopt(WriteQueues([]), NOW)
    assert topic.on_error(batch, UNWRITABLE, NOW) == []
    assert topic.expire(NOW) == [], "its master may be moving"
    topic.adopt(WriteQueues([], is_closed=True), NOW)
    failures = topic.expire(NOW)
    assert [type(failure.error) for failure in failures] == [Forbidden, Forbidden]


def test_what_was_never_sent_is_not_stored_when_its_time_is_up() -> None:
    topic = lanes()
    topic.add([part(b"x", deadline=NOW + 1)])
    assert topic.expire(NOW) == []
    (failure,) = topic.expire(NOW + 2)
    assert not isinstance(failure.error, OutcomeUnknown)
    assert failure.error.retryable


def test_a_waiting_message_joins_the_newest_waiting_one_of_its_kind() -> None:
    topic = lanes()
    first, second = (
        Part(Kind.SEND, [body], [b""], cost=200, deadline=NOW + wait, message_ids=[body.decode()])
        for body, wait in ((b"1", 3), (b"2", 5))
    )
    assert topic.join(first) is None
    assert topic.join(second) is first
    assert (first.count, first.cost, first.deadline, first.message_ids) == (2, 400, NOW + 5, ["1", "2"])
    assert topic.join(part(b"other kind")) is None


def test_at_most_the_configured_batches_are_under_way_at_a_broker() -> None:
    topic = lanes(("a", 16), batch_count_max=1)
    topic.add(part(b"%d" % number) for number in range(10))
    assert len(topic.start(NOW, 3, bool)) == 3
    assert topic.start(NOW, 3, bool) == []


@pytest.mark.parametrize("error", [UNWRITABLE, QUEUE_GONE])
def test_groups_that_all_refuse_what_routes_have_not_told_yet_are_not_asked_in_circles(error: PenstockError) -> None:
    topic = lanes(("a", 8), ("b", 8))
    topic.add([part(b"1")])
    asked = []
    while (started := start(topic)) and len(asked) < 10:
        asked += [batch.lane.broker_name for batch in started]
        assert [failure for batch in started for failure in topic.on_error(batch, error, NOW)] == []
    assert asked == ["a", "b"]
    assert NOW < topic.next_due(NOW) <= NOW + 1


def test_who_chose_a_removed_queue_is_told_and_holds_up_nobody_in_its_lane() -> None:
    topic = lanes(("a", 16))
    parts = [part(b"gone"), part(b"kept")]
    for each, queue_id in zip(parts, (11, 3), strict=True):
        each.bind(("a", queue_id))
    topic.add(parts)
    (batch,) = start(topic)
    assert batch.queue_ids.tolist() == [11, 3]
    (failure,) = topic.on_error(batch, QUEUE_GONE, NOW)
    assert (failure.parts, failure.error) == (parts[:1], QUEUE_GONE)
    (again,) = start(topic, NOW + 1)
    assert bodies(again) == [b"kept"]
