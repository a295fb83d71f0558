"""Renewal of deliveries, look by look: a client goes, a renewal fails, an end comes while one is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client import BrokerUnavailable
from penstock.gateway.v2.consume import renewal
from penstock.proto.data_frames import Method
from penstock.proto.receipts import Receipt
from penstock.proto.wire.pop_pb2 import RECEIPT_EXPIRED, ChangeInvisibleReply, ChangeInvisibleRequest

GIVEN = Receipt("g", "topic", "broker-a", 0, 7, 1, 1, 1)
RENEWED = ChangeInvisibleReply(check_point=9, epoch=2, visible_ms=3)
NEWEST = GIVEN._replace(check_point=9, epoch=2, visible_ms=3)


class _Brokers:
    """Answers changes one after the other, once it may."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, Any]] = []
        self.calls = asyncio.Semaphore(0)  # one for each that has come
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def at_data_port(self, broker_name: str, method: Method, content: bytes, take: Any, timeout_s: float) -> Any:
        assert method is Method.CHANGE_INVISIBLE
        self.asked.append((broker_name, ChangeInvisibleRequest.FromString(content)))
        answer = self.answers.pop(0)
        self.calls.release()
        await self.may_answer.wait()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held is due at the next look."""
    monkeypatch.setattr(renewal, "AHEAD_S", renewal.INVISIBLE_MS / 1000)
    monkeypatch.setattr(renewal, "LOOK_S", 0.0)
    monkeypatch.setattr(renewal, "SPARED_S", 0.0)


def renewing(brokers: _Brokers, is_living: Callable[[str], bool] = lambda _: True) -> renewal.Renewal:
    return renewal.Renewal(brokers, is_living)  # type: ignore[arg-type]


def test_the_clients_handle_stands_for_the_newest_receipt_also_after_a_failed_renewal() -> None:
    async def scenario() -> None:
        brokers = _Brokers(BrokerUnavailable("for a moment"), RENEWED, BrokerUnavailable("gone"))
        held = renewing(brokers)
        held.hold("text", GIVEN, "client")
        for expected in (GIVEN, NEWEST, NEWEST):
            await held.look()
            assert await held.current("text", GIVEN) == expected
        assert [request.receipts[0].check_point for _, request in brokers.asked] == [1, 1, 9]
        held.drop("text")
        assert await held.current("text", GIVEN) == GIVEN

    asyncio.run(scenario())


def test_what_a_gone_client_held_is_given_to_others_and_what_is_over_is_forgotten() -> None:
    async def scenario() -> None:
        brokers = _Brokers(ChangeInvisibleReply(statuses=[RECEIPT_EXPIRED]))
        held = renewing(brokers, lambda _: False)
        held.hold("text", GIVEN, "client")
        await held.look()
        assert brokers.asked[0][1].invisible_ms == renewal.GONE_MS
        await held.look()
        assert len(brokers.asked) == 1
        assert await held.current("text", GIVEN) == GIVEN

    asyncio.run(scenario())


def test_a_client_that_ends_lets_go_what_it_holds_then_though_it_takes_some_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        brokers = _Brokers(BrokerUnavailable("for a moment"), ValueError("unforeseen"), ChangeInvisibleReply())
        held = renewing(brokers)
        held.hold("before", GIVEN, "client")
        for _ in range(3):
            held.gone("client")
        monkeypatch.setattr(renewal, "AHEAD_S", 0.0)
        held.hold("after", GIVEN._replace(broker_name="broker-b"), "client")
        await held.look()
        with pytest.raises(ValueError, match="unforeseen"):
            await held.look()
        await held.look()
        await held.look()
        asked = [(name, request.invisible_ms) for name, request in brokers.asked]
        assert asked == [("broker-a", renewal.GONE_MS)] * 3
        assert held.holds("after")
        assert not held.holds("before")

    asyncio.run(scenario())


def test_what_a_silent_client_held_is_given_to_others_before_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "AHEAD_S", 0.0)

    async def scenario() -> None:
        living = {"client"}
        brokers = _Brokers(ChangeInvisibleReply())
        held = renewing(brokers, lambda client_id: client_id in living)
        held.hold("text", GIVEN, "client")
        await held.look()
        assert not brokers.asked
        living.clear()
        await held.look()
        assert brokers.asked[0][1].invisible_ms == renewal.GONE_MS

    asyncio.run(scenario())


def test_a_renewal_that_keeps_failing_is_given_up() -> None:
    async def scenario() -> None:
        brokers = _Brokers(*[BrokerUnavailable("gone")] * 99)
        held = renewing(brokers)
        held.hold("text", GIVEN, "client")
        for _ in range(renewal.FAILURES_MAX + 2):
            await held.look()
        assert len(brokers.asked) == renewal.FAILURES_MAX

    asyncio.run(scenario())


def test_no_renewal_begins_while_an_end_is_on_its_way_by_the_receipt_that_it_was_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the broker would refuse the end, and its client would have the message again."""

    async def scenario() -> None:
        brokers = _Brokers(RENEWED)
        held = renewing(brokers)
        held.hold("text", GIVEN, "client")
        monkeypatch.setattr(renewal, "SPARED_S", 1000.0)
        assert await held.current("text", GIVEN) == GIVEN
        await held.look()
        assert not brokers.asked
        monkeypatch.setattr(renewal, "SPARED_S", 0.0)
        held.hold("other", GIVEN, "client")
        await held.current("other", GIVEN)
        await held.look()
        assert len(brokers.asked) == 1, "it is over for that one only, and for a time"

    asyncio.run(scenario())


def test_an_end_that_comes_while_its_delivery_is_renewed_takes_the_new_receipt() -> None:
    async def scenario() -> None:
        brokers = _Brokers(RENEWED)
        brokers.may_answer.clear()
        held = renewing(brokers)
        held.hold("text", GIVEN, "client")
        looking = asyncio.create_task(held.look())
        await brokers.calls.acquire()
        ending = asyncio.ensure_future(held.current("text", GIVEN))
        await asyncio.sleep(0)
        assert not ending.done()
        brokers.may_answer.set()
        assert await ending == NEWEST
        await looking

    asyncio.run(scenario())


def test_a_broker_that_does_not_answer_is_asked_once_and_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(renewal, "_TOGETHER", 1)
        brokers = _Brokers(BrokerUnavailable("gone"), RENEWED)
        held = renewing(brokers)
        for n in range(3):
            held.hold(f"a{n}", GIVEN, "client")
        held.hold("b", GIVEN._replace(broker_name="broker-b"), "client")
        await held.look()
        assert [name for name, _ in brokers.asked] == ["broker-a", "broker-b"]
        assert (await held.current("b", GIVEN)).check_point == 9

    asyncio.run(scenario())


def test_an_error_that_nobody_foresaw_ends_no_renewal() -> None:
    async def scenario() -> None:
        brokers = _Brokers(ValueError("channel closed"), RENEWED)
        held = renewing(brokers)
        held.hold("a", GIVEN, "client")
        running = asyncio.create_task(held.run())
        await brokers.calls.acquire()
        held.hold("b", GIVEN, "client")
        await brokers.calls.acquire()
        assert await held.current("b", GIVEN) == NEWEST
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())
