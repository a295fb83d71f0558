"""One producer process of a load test, with a stand-in for the producer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import Future
from typing import Any

import pytest

from penstock.bench.load.ledger import HEADER
from penstock.bench.load.plan import STYLES, LoadPlan
from penstock.bench.load.senders import Budget, Load
from penstock.client import FailedDelivery
from penstock.proto.errors import BrokerUnavailable, BufferFull, ConfigError, DeliveryFailed, OutcomeUnknown


class FakeProducer:
    """Keeps bodies; fails for the sequence numbers it is told."""

    def __init__(self, refuse: set[int] = frozenset(), forget: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self.bodies: list[bytes] = []
        self.keys: Counter[str | None] = Counter()
        self._refuse, self._forget = refuse, forget
        self._lock = threading.Lock()
        self.flush_error: Exception | None = None

    def send(self, topic: str, body: bytes, keys: Any = None, sharding_key: str | None = None) -> None:
        with self._lock:
            number = len(self.bodies)
            self.bodies.append(body)
            self.keys[sharding_key] += 1
        if number in self._refuse:
            raise BrokerUnavailable("away")
        if number in self._forget:
            raise OutcomeUnknown("no answer")

    produce = send

    def send_async(self, topic: str, body: bytes, **options: Any) -> Future[None]:
        future: Future[None] = Future()
        try:
            self.send(topic, body, **options)
        except (BrokerUnavailable, OutcomeUnknown) as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        return future

    def send_batch(self, messages: Any) -> None:
        for message in messages:
            self.send(message.topic, message.body, message.keys, message.sharding_key)

    def produce_many(self, topic: str, bodies: Any, keys: Any = None, sharding_keys: Any = None) -> None:
        self.bodies += [bytes(body) for body in bodies]

    def flush(self, timeout_s: float = 30.0) -> None:
        if self.flush_error:
            raise self.flush_error


class ProbedProducer(FakeProducer):
    """Ends the load behind the first probe."""

    def __init__(self) -> None:
        super().__init__()
        self.probed = threading.Event()

    def send(self, topic: str, body: bytes, keys: Any = None, sharding_key: str | None = None) -> None:
        super().send(topic, body, keys, sharding_key)
        self.probed.set()


class FakeAwaited:
    """The asyncio twin of a stand-in; others get their turn before it answers."""

    def __init__(self, producer: FakeProducer) -> None:
        self._producer = producer

    async def send(self, topic: str, body: bytes, **options: Any) -> None:
        await asyncio.sleep(0)
        self._producer.send(topic, body, **options)


def load_with(producer: FakeProducer, **options: Any) -> Load:
    plan = LoadPlan(kind="produce", namesrv="x:1", size=options.pop("size", 32), probe=False, **options)
    load = Load(producer, plan.share(0), threading.Event(), FakeAwaited(producer))  # type: ignore[arg-type]
    load.run()
    return load


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("verify", [False, True])
def test_every_style_sends_what_was_asked_and_counts_it(style: str, verify: bool) -> None:
    producer = FakeProducer()
    load = load_with(producer, style=style, count=1000, verify=verify, batch=300 if style == "columnar" else None)
    assert len(producer.bodies) == 1000
    assert {len(body) for body in producer.bodies} == {32}
    assert (load.outcomes.sent, load.outcomes.acknowledged, load.outcomes.refused) == (1000, 1000, 0)
    if verify:
        assert [HEADER.unpack_from(body)[2] for body in producer.bodies] == list(range(1000))
        assert load.streams() == {0: 1000}


@pytest.mark.parametrize("style", ["sync", "async", "asyncio"])
def test_outcomes_are_told_apart_by_message(style: str) -> None:
    load = load_with(FakeProducer(refuse={3}, forget={5, 6}), style=style, count=10, verify=True)
    outcomes = load.outcomes
    assert (outcomes.acknowledged, outcomes.refused, outcomes.unknown) == (7, 1, 2)
    assert sorted(outcomes.failed[0]) == [3, 5, 6]
    assert outcomes.errors == {"BrokerUnavailable: away": 1, "OutcomeUnknown: no answer": 2}
    assert outcomes.latency.count == 7


def test_what_flush_reports_is_not_acknowledged() -> None:
    producer = FakeProducer()
    refused = [FailedDelivery("t", 4, BrokerUnavailable("away"))]
    unknown = [FailedDelivery("t", 6, OutcomeUnknown("no answer"))]
    producer.flush_error = DeliveryFailed("some", refused=refused, unknown=unknown)
    outcomes = load_with(producer, count=100).outcomes
    assert (outcomes.acknowledged, outcomes.refused, outcomes.unknown) == (90, 4, 6)
    assert outcomes.failed_uncounted == 10


class FullProducer(FakeProducer):
    """Has no room; each attempt to produce takes as long as a test's clock says."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self._stop = stop

    def produce(self, topic: str, body: bytes, keys: Any = None, sharding_key: str | None = None) -> None:
        self.bodies.append(body)
        if len(self.bodies) == 3:
            self._stop.set()
        raise BufferFull(f"none came within 2.{len(self.bodies)}98 s")


@pytest.mark.parametrize("verify", [False, True])
def test_a_producer_without_room_looks_at_its_time_after_each_attempt_and_counts_what_it_tried(verify: bool) -> None:
    stop = threading.Event()
    producer = FullProducer(stop)
    plan = LoadPlan(kind="produce", namesrv="x:1", size=32, probe=False, count=1000, verify=verify)
    load = Load(producer, plan.share(0), stop)  # type: ignore[arg-type]
    load.run()
    assert len(producer.bodies) == 3
    assert (load.outcomes.sent, load.outcomes.refused) == (3, 3)
    assert load.outcomes.errors == {"BufferFull: none came within 2.198 s": 3}, "numbers do not tell errors apart"
    assert load.outcomes.progress()["why"] == "BufferFull: none came within 2.198 s"


def test_keys_repeat_and_choose_the_queue() -> None:
    producer = FakeProducer()
    load_with(producer, count=100, keys=4)
    assert producer.keys == {f"key-{index}": 25 for index in range(4)}


@pytest.mark.parametrize("style", ["sync", "asyncio"])
def test_waiting_senders_have_streams_of_their_own(style: str) -> None:
    load = load_with(FakeProducer(), style=style, count=400, threads=4, verify=True)
    assert sum(load.streams().values()) == 400
    assert set(load.streams()) <= {0, 1, 2, 3}


def test_probes_measure_beside_the_fast_path_and_count_as_messages() -> None:
    producer = ProbedProducer()
    plan = LoadPlan(kind="produce", namesrv="x:1", size=32, seconds=60, rate=2000, verify=True)
    load = Load(producer, plan.share(0), producer.probed)  # type: ignore[arg-type]
    load.run()
    assert load.outcomes.latency.count >= 1
    assert load.outcomes.sent == load.outcomes.acknowledged == len(producer.bodies) == sum(load.streams().values())
    assert len(load.streams()) == 2


def test_a_rate_is_kept_and_lateness_counts_as_latency() -> None:
    began = time.monotonic()
    budget = Budget(count=50, seconds=None, rate=500, stop=threading.Event())
    granted = 0
    while (part := budget.take(10))[0]:
        granted += part[0]
    assert granted == 50
    assert time.monotonic() - began >= 0.09


def test_tasks_keep_a_rate_and_do_not_hold_up_their_loop() -> None:
    plan = LoadPlan(kind="produce", namesrv="x:1", size=32, probe=False, style="asyncio", threads=3, count=30, rate=300)
    producer = FakeProducer()
    load = Load(producer, plan.share(0), threading.Event(), FakeAwaited(producer))  # type: ignore[arg-type]
    budget = Budget(30, None, 300, threading.Event())
    turns = 0

    async def run() -> None:
        nonlocal turns
        sending = asyncio.create_task(load._send_in_tasks(budget))
        while not sending.done():
            turns += 1
            await asyncio.sleep(0.001)
        await sending

    began = time.monotonic()
    asyncio.run(run())
    assert time.monotonic() - began >= 0.09
    assert turns > 10
    assert (load.outcomes.acknowledged, load.outcomes.latency.count) == (30, 30)


def test_a_budget_ends_by_count_time_and_order() -> None:
    stop = threading.Event()
    budget = Budget(count=5, seconds=None, rate=None, stop=stop)
    assert [budget.take(3)[0], budget.take(3)[0], budget.take(3)[0]] == [3, 2, 0]
    assert Budget(count=None, seconds=-1, rate=None, stop=stop).take(1)[0] == 0
    stop.set()
    assert Budget(count=None, seconds=None, rate=None, stop=stop).take(1)[0] == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"size": 10, "verify": True}, "at least 24"),
        ({"count": 0}, "--count"),
        ({"rate": -1}, "--rate"),
        ({"producers": 0}, "--producers"),
        ({"batch": 10, "style": "async"}, "--batch goes with"),
        ({"size": 4 * 1024 * 1024 + 1}, "--size 4194305: at most 4194304"),
        ({"threads": 4}, "--threads goes with"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        LoadPlan(kind="produce", namesrv="x:1", **options)


def test_producers_share_count_and_rate() -> None:
    plan = LoadPlan(kind="produce", namesrv="x:1", count=10, rate=90.0, producers=3)
    shares = [plan.share(number) for number in range(3)]
    assert [share["count"] for share in shares] == [4, 3, 3]
    assert [share["rate"] for share in shares] == [30.0, 30.0, 30.0]
