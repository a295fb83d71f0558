"""Renewal of deliveries, look by look: a client goes, a renewal fails, a broker does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client import BrokerUnavailable
from penstock.gateway.v2.consume import renewal
from penstock.gateway.v2.consume.handles import Together
from penstock.proto.data_frames import Method
from penstock.proto.receipts import Receipt
from penstock.proto.wire.pop_pb2 import RECEIPT_EXPIRED, ChangeInvisibleReply, ChangeInvisibleRequest

GIVEN = Receipt("g", "topic", "broker-a", 0, 7, 1, 1, 1)
RENEWED = ChangeInvisibleReply(visible_ms=3)


def given(offset: int) -> Receipt:
    return GIVEN._replace(offset=offset)


class _Brokers:
    """Answers changes one after the other, once it may."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, Any]] = []
        self.calls = asyncio.Semaphore(0)  # one for each that has come

    async def at_data_port(self, broker_name: str, method: Method, content: bytes, take: Any, timeout_s: float) -> Any:
        assert method is Method.CHANGE_INVISIBLE
        self.asked.append((broker_name, ChangeInvisibleRequest.FromString(content)))
        answer = self.answers.pop(0)
        self.calls.release()
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held is due at the next look."""
    monkeypatch.setattr(renewal, "AHEAD_S", renewal.INVISIBLE_MS / 1000)
    monkeypatch.setattr(renewal, "LOOK_S", 0.0)


def renewing(brokers: _Brokers, is_living: Callable[[str], bool] = lambda _: True) -> renewal.Renewal:
    return renewal.Renewal(brokers, is_living)  # type: ignore[arg-type]


def test_a_renewal_leaves_the_clients_handle_as_it_is_and_one_that_fails_is_made_up_for() -> None:
    async def scenario() -> None:
        brokers = _Brokers(BrokerUnavailable("for a moment"), RENEWED, RENEWED)
        held = renewing(brokers)
        held.hold(GIVEN, "client")
        for _ in range(3):
            await held.look()
        assert [request for _, request in brokers.asked] == [
            ChangeInvisibleRequest(
                group="g",
                receipts=Together.of([GIVEN]).receipts,
                invisible_ms=renewal.INVISIBLE_MS,
                keeps_receipts=True,
            )
        ] * 3
        held.drop(GIVEN)
        await held.look()
        assert len(brokers.asked) == 3
        assert not held.holds_any

    asyncio.run(scenario())


def test_what_a_gone_client_held_is_given_to_others_and_what_is_over_is_forgotten() -> None:
    async def scenario() -> None:
        brokers = _Brokers(ChangeInvisibleReply(statuses=[RECEIPT_EXPIRED]))
        held = renewing(brokers, lambda _: False)
        held.hold(GIVEN, "client")
        await held.look()
        assert brokers.asked[0][1].invisible_ms == renewal.GONE_MS
        await held.look()
        assert len(brokers.asked) == 1
        assert not held.holds_any

    asyncio.run(scenario())


def test_a_client_that_ends_lets_go_what_it_holds_then_though_it_takes_some_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        brokers = _Brokers(BrokerUnavailable("for a moment"), ValueError("unforeseen"), ChangeInvisibleReply())
        held = renewing(brokers)
        held.hold(GIVEN, "client")
        for _ in range(3):
            held.gone("client")
        monkeypatch.setattr(renewal, "AHEAD_S", 0.0)
        after = GIVEN._replace(broker_name="broker-b")
        held.hold(after, "client")
        await held.look()
        with pytest.raises(ValueError, match="unforeseen"):
            await held.look()
        await held.look()
        await held.look()
        asked = [(name, request.invisible_ms) for name, request in brokers.asked]
        assert asked == [("broker-a", renewal.GONE_MS)] * 3
        assert [*held._held] == [after]

    asyncio.run(scenario())


def test_what_a_silent_client_held_is_given_to_others_before_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "AHEAD_S", 0.0)

    async def scenario() -> None:
        living = {"client"}
        brokers = _Brokers(ChangeInvisibleReply())
        held = renewing(brokers, lambda client_id: client_id in living)
        held.hold(GIVEN, "client")
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
        held.hold(GIVEN, "client")
        for _ in range(renewal.FAILURES_MAX + 2):
            await held.look()
        assert len(brokers.asked) == renewal.FAILURES_MAX

    asyncio.run(scenario())


def test_a_broker_that_does_not_answer_is_asked_once_and_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(renewal, "_TOGETHER", 1)
        brokers = _Brokers(BrokerUnavailable("gone"), RENEWED)
        held = renewing(brokers)
        for n in range(3):
            held.hold(given(n), "client")
        held.hold(GIVEN._replace(broker_name="broker-b"), "client")
        await held.look()
        assert [name for name, _ in brokers.asked] == ["broker-a", "broker-b"]

    asyncio.run(scenario())


def test_an_error_that_nobody_foresaw_ends_no_renewal() -> None:
    async def scenario() -> None:
        brokers = _Brokers(ValueError("channel closed"), RENEWED)
        held = renewing(brokers)
        held.hold(given(1), "client")
        running = asyncio.create_task(held.run())
        await brokers.calls.acquire()
        held.hold(given(2), "client")
        await brokers.calls.acquire()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())
