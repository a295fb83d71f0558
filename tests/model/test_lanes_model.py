"""Whatever becomes of batches and routes: of one key, no queue stores a message behind a later one, and none twice.

What is sent as one lies together in one queue, or nowhere.

A machine of random steps over :class:`~penstock.client.produce.lanes.Lanes` and groups that store what they are sent:
answers come, are lost or are refusals, masters go and return, groups and queues are added, and time passes.
"""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import Future
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.client.cluster.queues import WriteQueues
from penstock.client.cluster.retry import NEVER
from penstock.client.produce.config import ProducerConfig
from penstock.client.produce.health import BrokerHealth
from penstock.client.produce.lanes import Lanes
from penstock.client.produce.parts import LANES, Batch, Failure, Kind, Part
from penstock.proto.errors import BrokerUnavailable, FlushTimeout, MessageTooLarge, NotMaster

BROKEN = BrokerUnavailable("broker: unavailable: Socket closed", status="UNAVAILABLE")
REFUSED = NotMaster("broker is a slave", epoch=2)
SLOW = FlushTimeout("stored, not confirmed in time")
TOO_LARGE = MessageTooLarge("one of these is too large")
KEYS = 12
GROUPS = ("a", "b", "c")


class Groups:
    """What broker groups have stored, by queue; a batch that comes again is stored once."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        self.whole: list[bytes] = []
        self._seen: set[tuple[str, int, int]] = set()

    def store(self, batch: Batch) -> None:
        mark = (batch.lane.broker_name, batch.lane.number, batch.sequence)
        if mark in self._seen:
            return
        self._seen.add(mark)
        queue_ids = iter(batch.queue_ids.tolist())
        for part in batch.parts:
            own = [next(queue_ids) for _ in part.bodies]
            if part.is_whole:
                assert len(set(own)) == 1
                self.whole.append(b" ".join(part.bodies))
                continue
            assert len(part.futures) in (0, part.count), "who waits is another than whose message it is"
            for body, queue_id in zip(part.bodies, own, strict=True):
                key, number = map(int, body.split(b":"))
                self.stored[batch.lane.broker_name, queue_id].append((key, number))
        assert not list(queue_ids)


class LanesMachine(RuleBasedStateMachine):
    """Keyed messages on their way while masters come and go."""

    @initialize(queues=st.integers(1, 3))
    def begin(self, queues: int) -> None:
        self.now = 1000.0
        self.queues = dict.fromkeys(GROUPS[:2], queues)
        self.gone: set[str] = set()
        config = ProducerConfig(batch_count_max=4)
        self.lanes = Lanes("orders", config, BrokerHealth(), WriteQueues(self.queues.items()))
        self.groups = Groups()
        self.under_way: list[Batch] = []
        self.sent: dict[int, int] = defaultdict(int)
        self.waiting_for: list[Future[None]] = []
        self.failed: set[bytes] = set()
        self.sent_whole: list[bytes] = []
        self.failed_whole: list[bytes] = []

    @rule(keys=st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=6), is_mixed=st.booleans())
    def produce(self, keys: list[int], is_mixed: bool) -> None:
        bodies = []
        for key in keys:
            bodies.append(b"%d:%d" % (key, self.sent[key]))
            self.sent[key] += 1
        hashes = np.array([key * 7 for key in keys], dtype=np.int32)
        part = Part(Kind.PRODUCE, bodies, None, cost=100 * len(keys), deadline=self.now + 60, hashes=hashes)
        if is_mixed:
            part.bodies = [*bodies, b"-1:0"]
            part.hashes = np.array([*hashes, 0], dtype=np.int32)
            part.keyed = np.array([True] * len(keys) + [False])
        self.lanes.add([part])
        self.pump()

    @rule(key=st.integers(-1, KEYS - 1), seconds=st.sampled_from([3, 60]))
    def send(self, key: int, seconds: int) -> None:
        body = b"%d:%d" % (key, self.sent[key])
        self.sent[key] += key >= 0
        hashes = None if key < 0 else np.array([key * 7], dtype=np.int32)
        part = Part(Kind.SEND, [body], [None], cost=100, deadline=self.now + seconds, hashes=hashes, futures=[Future()])
        self.waiting_for += part.futures
        self.lanes.join(part)
        self.pump()

    @rule(count=st.integers(1, 4), large=st.booleans())
    def send_whole(self, count: int, large: bool) -> None:
        number = len(self.sent_whole)
        bodies = [b"%d.%d" % (number, each) for each in range(count)]
        self.sent_whole.append(b" ".join(bodies))
        cost = 300_000 if large else 100
        part = Part(Kind.SEND, bodies, None, cost=cost, deadline=self.now + 60, is_whole=True)
        if self.lanes.has_waiting or not self.lanes.queues.total:
            assert self.lanes.join(part) is None
        elif (batch := self.lanes.start_one(part, self.now)) is not None:
            self.under_way.append(batch)
        self.pump()

    @rule(
        index=st.integers(0, 20),
        fate=st.sampled_from(["stored", "stored", "lost", "lost before", "refused", "too large", "too slow"]),
    )
    def answer(self, index: int, fate: str) -> None:
        if not self.under_way:
            return
        batch = self.under_way.pop(index % len(self.under_way))
        has_master = batch.lane.broker_name not in self.gone
        if has_master and fate in ("stored", "lost"):
            self.groups.store(batch)
        if has_master and fate == "stored":
            self.acknowledge(batch)
        elif has_master and fate == "too slow":
            self.groups.store(batch)
            self.end(batch.take_late(NEVER))
            self.fail(self.lanes.on_error(batch, SLOW, self.now))
        elif fate == "refused":
            self.fail(self.lanes.on_error(batch, REFUSED, self.now))
        elif fate == "too large":
            self.fail(self.lanes.on_error(batch, TOO_LARGE, self.now))
        else:
            self.fail(self.lanes.on_error(batch, BROKEN, self.now))
        self.pump()

    @rule(name=st.sampled_from(GROUPS))
    def lose_or_find(self, name: str) -> None:
        self.gone ^= {name}
        self.adopt()

    @rule()
    def grow(self) -> None:
        self.queues = {name: count + 1 for name, count in self.queues.items()} | {"c": 1}
        self.adopt()

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.5, 4.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.pump()

    def adopt(self) -> None:
        living = WriteQueues((name, count) for name, count in self.queues.items() if name not in self.gone)
        self.lanes.adopt(living, self.now)
        self.pump()

    def pump(self) -> None:
        self.fail(self.lanes.expire(self.now))
        self.end(self.lanes.late(self.now))
        for batch in self.lanes.start(self.now, LANES, lambda name: name not in self.gone):
            self.under_way.append(batch)

    def acknowledge(self, batch: Batch) -> None:
        self.lanes.acknowledged(batch)
        self.end([future for part in batch.parts for future in part.futures])

    def end(self, futures: list[Future[Any]]) -> None:
        for future in futures:
            future.set_result(None)  # raises at the second time

    def fail(self, failures: list[Failure]) -> None:
        parts = [part for failure in failures for part in failure.parts]
        self.failed_whole += [b" ".join(part.bodies) for part in parts if part.is_whole]
        self.failed |= {body for part in parts if not part.is_whole for body in part.bodies}
        self.end([future for part in parts for future in part.futures])

    @invariant()
    def each_queue_has_the_messages_of_a_key_once_and_in_order(self) -> None:
        if not hasattr(self, "groups"):
            return
        for queue, messages in self.groups.stored.items():
            last: dict[int, int] = {}
            for key, number in messages:
                if key >= 0:
                    assert last.get(key, -1) < number, f"queue {queue}: key {key} number {number} behind {last[key]}"
                    last[key] = number

    @property
    def is_empty(self) -> bool:
        return not self.lanes.has_waiting and all(lane.is_free for lane in self.lanes.lanes.values())

    def teardown(self) -> None:
        """With all groups back and every batch answered, nothing is left and every message is stored or given up."""
        if not hasattr(self, "groups"):
            return
        self.gone = set()
        self.adopt()
        for _ in range(2000):
            self.now += 0.5
            self.pump()
            while self.under_way:
                batch = self.under_way.pop(0)
                self.groups.store(batch)
                self.acknowledge(batch)
                self.pump()
            if self.is_empty:
                break
        assert self.is_empty
        assert all(future.done() for future in self.waiting_for), "somebody waits for ever"
        stored = [message for messages in self.groups.stored.values() for message in messages if message[0] >= 0]
        assert len(stored) == len(set(stored)), "a message is stored twice"
        assert self.lanes._moves._former is None
        for key, count in self.sent.items():
            for number in range(count):
                assert (key, number) in stored or b"%d:%d" % (key, number) in self.failed
        assert len(self.groups.whole) == len(set(self.groups.whole)), "what was sent as one is stored twice"
        assert set(self.sent_whole) == {*self.groups.whole, *self.failed_whole}
        self.each_queue_has_the_messages_of_a_key_once_and_in_order()


TestLanes = LanesMachine.TestCase
TestLanes.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
