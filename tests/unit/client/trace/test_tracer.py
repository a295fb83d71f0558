"""What is told is sent in the background, or dropped and counted; nobody who tells ever waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from penstock.client.trace import tracer as module
from penstock.client.trace.making import tracer_of
from penstock.client.trace.sampling import Sample, checked_share
from penstock.client.trace.tracer import CONTEXTS_MAX, Tracer
from penstock.formats.record.layout import Host, offset_message_id
from penstock.formats.record.unique_key import new_unique_key
from penstock.formats.trace import Context, Recall, decode
from penstock.proto.errors import BrokerUnavailable, ConfigError, InvalidName, OutcomeUnknown, TopicNotFound
from tests.support.waiting import wait_until


class Sender:
    """Takes trace messages, or does what it is told."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.keys: list[Sequence[str]] = []
        self.missing: Exception | None = None
        self.outcome: Exception | None = None
        self.is_full = False
        self.prepared = 0
        self.is_closed = False

    def prepare(self, topic: str, timeout_s: float | None = None) -> None:
        self.prepared += 1
        if self.missing is not None:
            raise self.missing

    def would_block(self, topic: str, body_bytes: int) -> bool:
        return self.is_full

    def send_async(self, topic: str, body: bytes, *, keys: Sequence[str], timeout_s: float) -> Future[Any]:
        self.bodies.append(body)
        self.keys.append(keys)
        future: Future[Any] = Future()
        if self.outcome is None:
            future.set_result(None)
        else:
            future.set_exception(self.outcome)
        return future

    def close(self, timeout_s: float) -> None:
        self.is_closed = True

    def told(self) -> list[Context]:
        return [context for body in self.bodies for context in decode(body)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_S", 0.001)
    monkeypatch.setattr(module, "RETRY_S", 0.01)


@pytest.fixture
def sender() -> Sender:
    return Sender()


@pytest.fixture
def tracer(sender: Sender) -> Iterator[Tracer]:
    made = Tracer(Sample(1.0), "traces", lambda: sender)
    yield made
    made.close(1.0)


def context(number: int) -> Recall:
    return Recall(number, "r", "g", "t", f"ID{number}", True)


def tell(tracer: Tracer, *numbers: int) -> None:
    tracer.take(len(numbers), lambda: [context(number) for number in numbers])


def test_what_is_told_arrives_in_order_with_its_keys(tracer: Tracer, sender: Sender) -> None:
    tell(tracer, 1, 2)
    tell(tracer, 3)
    wait_until(lambda: len(sender.told()) == 3, what="the traces")
    assert sender.told() == [context(1), context(2), context(3)]
    assert [key for keys in sender.keys for key in keys] == ["ID1", "ID2", "ID3"]
    assert tracer.dropped == 0


def test_what_finds_no_room_is_dropped_and_counted(sender: Sender, caplog: pytest.LogCaptureFixture) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow() -> list[Context]:
        entered.set()
        assert leave.wait(30)
        return [context(0)]

    tracer = Tracer(Sample(1.0), "traces", lambda: sender)
    tracer.take(1, slow)
    assert entered.wait(30)
    for number in range(CONTEXTS_MAX):
        tell(tracer, number)
    assert tracer.dropped == 0
    tell(tracer, -1)
    tracer.take(5, lambda: [context(-1)] * 5)
    assert tracer.dropped == 6
    leave.set()
    wait_until(lambda: len(sender.told()) == CONTEXTS_MAX + 1, what="what there was room for")
    assert context(-1) not in sender.told()
    assert len([each for each in caplog.messages if "traces dropped" in each]) == 1
    tracer.close(1.0)


def test_while_nobody_is_there_they_wait(tracer: Tracer, sender: Sender) -> None:
    sender.missing = BrokerUnavailable("nobody")
    tell(tracer, 1)
    wait_until(lambda: sender.prepared > 2, what="tries")
    tell(tracer, 2)
    assert (sender.bodies, tracer.dropped) == ([], 0)
    sender.missing = None
    wait_until(lambda: len(sender.told()) == 2, what="both")


def test_without_a_topic_they_are_dropped_and_come_again_when_there_is_one(tracer: Tracer, sender: Sender) -> None:
    sender.missing = TopicNotFound("no such topic")
    tell(tracer, 1)
    wait_until(lambda: tracer.dropped == 1, what="the drop")
    sender.missing = None
    tell(tracer, 2)
    wait_until(lambda: sender.told() == [context(2)], what="the next")


def test_every_failure_behind_it_is_counted_and_costs_the_others_nothing(tracer: Tracer, sender: Sender) -> None:
    sender.outcome = OutcomeUnknown("no answer")
    tell(tracer, 1)
    wait_until(lambda: tracer.dropped == 1, what="the failed send")
    sender.outcome, sender.is_full = None, True
    tell(tracer, 2)
    wait_until(lambda: tracer.dropped == 2, what="the full buffer")
    sender.is_full = False
    tracer.take(3, lambda: [context(int("no number"))])
    tell(tracer, 4)
    wait_until(lambda: sender.told()[-1] == context(4), what="the one behind the broken one")
    assert tracer.dropped == 5


def test_the_close_sends_what_waits_and_what_comes_later_is_counted(
    tracer: Tracer, sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    tell(tracer, 1)
    tracer.close(5.0)
    assert (sender.told(), sender.is_closed) == ([context(1)], True)
    tell(tracer, 2)
    assert tracer.dropped == 1
    assert "because=the client was closed" in caplog.text
    tracer.close(5.0)


def test_a_close_with_nobody_there_counts_what_is_left(sender: Sender) -> None:
    sender.missing = BrokerUnavailable("nobody")
    tracer = Tracer(Sample(1.0), "traces", lambda: sender)
    tell(tracer, 1, 2)
    tracer.close(0.0)
    wait_until(lambda: sender.is_closed, what="the end of the thread, for which the close waits a moment only")
    assert tracer.dropped == 2


def test_a_share_is_the_same_for_all_who_look_and_about_as_large_as_asked() -> None:
    host = Host.parse("10.0.0.1:10911")
    positions = np.arange(0, 2_000_000, 200, dtype=np.int64) + 12_345_678_901
    ids = [offset_message_id(host, position) for position in positions.tolist()]
    for share in (0.01, 0.25, 0.9):
        sample = Sample(share)
        chosen = sample.positions(positions).tolist()
        assert chosen == [at for at, each in enumerate(ids) if Sample(share).has(each)]
        assert abs(len(chosen) / len(ids) - share) < 0.02
        keys = [new_unique_key() for _ in range(5000)]
        assert abs(sum(map(sample.has, keys)) / len(keys) - share) < 0.03
    smaller, larger = Sample(0.1), Sample(0.3)
    assert all(larger.has(each) for each in ids if smaller.has(each))
    assert all(Sample(1.0).has(each) for each in [*ids, "of another client", ""])
    assert 0 < sum(Sample(0.5).has(f"order-{number}") for number in range(100)) < 100


@pytest.mark.parametrize("wrong", [-0.1, 1.5, "yes", None, float("nan")])
def test_no_share_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="trace must be False, True, or a share"):
        checked_share(wrong)


def test_off_makes_nothing_and_a_wrong_topic_is_refused() -> None:
    assert tracer_of(False, "traces", "127.0.0.1:1", None, None) is None
    assert tracer_of(0, "traces", "127.0.0.1:1", None, None) is None
    with pytest.raises(InvalidName):
        tracer_of(True, "no topic", "127.0.0.1:1", None, None)
