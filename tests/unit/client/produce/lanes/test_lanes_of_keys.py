"""Decisions of the producer about keys: with whom they share batches, and where they go after a refusal."""

from __future__ import annotations

from penstock.client.cluster.queues import WriteQueues
from penstock.client.produce.parts import LANES, Kind
from penstock.client.produce.sharding.key_moves import KEY_AWAY_S
from penstock.proto.errors import Forbidden, MessageTooLarge, NotEnoughReplicas
from tests.support.client.lanes import BROKEN, NOW, bodies, lanes, part, start


def test_what_was_for_a_removed_queue_goes_with_its_key_in_order() -> None:
    topic = lanes(("a", 8))
    topic.add([part(b"1", hashes=[7])])
    (batch,) = start(topic)
    assert batch.queue_ids.tolist() == [7]
    topic.add([part(b"2", hashes=[7])])
    gone = Forbidden("topic orders, record 0 of the batch: bad queue, the topic has 4", queues=4)
    assert (start(topic), topic.on_error(batch, gone, NOW)) == ([], [])
    topic.adopt(WriteQueues([("a", 4)]), NOW)
    (again,) = start(topic)
    assert (again.queue_ids.tolist(), bodies(again)) == ([3, 3], [b"1", b"2"])


def test_messages_with_and_without_keys_do_not_divide_each_others_batches() -> None:
    topic = lanes(("a", 1))
    topic.add([part(b"first")])
    (first,) = start(topic)
    for number in range(3):
        topic.add([part(b"key %d" % number, hashes=[0]), part(b"%d" % number)])
    assert start(topic) == []
    topic.acknowledged(first)
    (second,) = start(topic)
    assert bodies(second) == [b"key 0", b"key 1", b"key 2", b"0", b"1", b"2"]
    assert second.queue_ids.tolist() == [0] * 6


def test_with_every_lane_busy_with_keys_what_has_none_goes_on_to_queues_in_turn() -> None:
    topic = lanes(("a", 16))
    topic.add([part(b"key", hashes=[3])])
    (busy,) = topic.start(NOW, 1, bool)
    for number in range(2):
        topic.add([part(b"key", hashes=[3]), part(b"%d" % number)])
        assert topic.start(NOW, 1, bool) == []
        topic.acknowledged(busy)
        (busy,) = topic.start(NOW, 1, bool)
        assert busy.queue_ids.tolist() == [3, (3, 11)[number]]


def test_what_cannot_ride_with_keys_has_every_other_batch_of_a_busy_lane() -> None:
    topic = lanes(("a", 1))
    topic.add([part(b"key 0", hashes=[0])])
    (busy,) = start(topic)
    topic.add([part(b"free", kind=Kind.SEND)])
    sent = []
    for number in range(1, 4):
        topic.add([part(b"key %d" % number, hashes=[0])])
        assert start(topic) == []
        topic.acknowledged(busy)
        (busy,) = start(topic)
        sent += bodies(busy)
    assert sent == [b"key 1", b"free", b"key 2", b"key 3"]


def test_nothing_rides_to_a_group_that_is_avoided() -> None:
    topic = lanes(("a", 2), ("b", 1))
    topic.add([part(b"first", hashes=[0]), part(b"second", hashes=[1])])
    first, _ = start(topic)
    topic.on_error(first, NotEnoughReplicas("one of two"), NOW)
    topic.add([part(b"free")])
    (free,) = start(topic)
    assert (free.lane.broker_name, bodies(free)) == ("b", [b"free"])
    topic.add([part(b"more")])
    (again,) = start(topic, NOW + 5)
    assert (again.lane.broker_name, bodies(again)) == ("a", [b"first"])


def test_a_keyed_batch_of_unknown_outcome_may_leave_a_group_that_stays_away() -> None:
    topic = lanes(("a", 1), ("b", 1), retry_another_shard_on_unknown=True)
    topic.add([part(b"key", hashes=[0])])
    (batch,) = start(topic)
    assert topic.on_error(batch, BROKEN, NOW) == []
    topic.adopt(WriteQueues([("b", 1)]), NOW)
    assert topic.start(NOW + 0.1, LANES, lambda name: name == "b") == []
    assert topic.start(NOW + 2, LANES, lambda name: name == "b") == []
    topic.start(NOW + 2.1, LANES, lambda name: name == "b")
    assert topic.next_due(NOW + 2.1) == NOW + KEY_AWAY_S
    (moved,) = topic.start(NOW + KEY_AWAY_S, LANES, lambda name: name == "b")
    assert (moved.lane.broker_name, bodies(moved)) == ("b", [b"key"])


def test_of_a_batch_that_was_not_stored_only_keys_keep_their_lane() -> None:
    topic = lanes(("a", 1), ("b", 1))
    topic.add([part(b"1", hashes=[0])])
    (first,) = start(topic)
    topic.add([part(b"2", hashes=[0])])
    start(topic)
    topic.add([part(b"free")])
    topic.acknowledged(first)
    (mixed,) = start(topic)
    assert bodies(mixed) == [b"2", b"free"]
    topic.add([part(b"3", hashes=[0])])
    topic.on_error(mixed, NotEnoughReplicas("too few"), NOW)
    (free,) = start(topic)
    assert (free.lane.broker_name, bodies(free)) == ("b", [b"free"])
    (keyed,) = start(topic, NOW + 5)
    assert (keyed.lane, bodies(keyed)) == (mixed.lane, [b"2", b"3"])


def test_after_a_message_was_too_large_keys_and_the_rest_are_tried_alone() -> None:
    topic = lanes(("a", 1))
    topic.add([part(b"first")])
    (first,) = start(topic)
    topic.add([part(b"1", hashes=[0]), part(b"2")])
    start(topic)
    topic.acknowledged(first)
    (mixed,) = start(topic)
    assert topic.on_error(mixed, MessageTooLarge("2 is too large"), NOW) == []
    (alone,) = start(topic)
    assert bodies(alone) == [b"1"]
    topic.acknowledged(alone)
    (other,) = start(topic)
    assert bodies(other) == [b"2"]
    (failure,) = topic.on_error(other, MessageTooLarge("too large"), NOW)
    assert failure.parts == other.parts


def test_messages_given_up_behind_a_refused_one_name_its_reason() -> None:
    topic = lanes(("a", 1))
    topic.add([part(b"tried", hashes=[0], deadline=NOW + 5)])
    (batch,) = start(topic)
    topic.add([part(b"behind", hashes=[0], deadline=NOW + 5)])
    assert start(topic) == []
    assert topic.on_error(batch, NotEnoughReplicas("one of two"), NOW) == []
    failures = topic.expire(NOW + 6)
    assert [type(failure.error) for failure in failures] == [NotEnoughReplicas, NotEnoughReplicas]
    assert "not stored when the time was up" in failures[1].error.message
