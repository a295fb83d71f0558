"""Ends of transactions share requests: who waits for whom, and whose an error is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from penstock.client.transact.ends import ENDS_MAX, Ends, HandedOver
from penstock.client.transact.ranges import Ranges
from penstock.proto.errors import BrokerUnavailable, MessageNotFound, PenstockError, TransactionEnded
from penstock.proto.wire.transactions_pb2 import COMMIT, ROLLBACK, EndReply, EndRequest
from tests.support.waiting import wait_until

Asked = list[tuple[str, list[int]]]


class Brokers:
    """Notes what is asked, and answers when the test says so."""

    def __init__(self) -> None:
        self.asked: Asked = []
        self.refusal: Callable[[list[int]], PenstockError | None] = lambda _: None
        self.answering = threading.Event()
        self.ends = Ends("payments", self.ask)

    def ask(self, broker_name: str, request: EndRequest, timeout_s: float) -> None:
        offsets = [offset for each in request.halves for offset in range(each.offset, each.offset + each.count)]
        self.asked.append((broker_name, offsets))
        if not self.answering.wait(min(timeout_s, 30)):
            raise BrokerUnavailable("no answer")
        refusal = self.refusal(offsets)
        if refusal is not None:
            raise refusal

    def waiting(self) -> int:
        return sum(map(len, self.ends._waiting.values()))


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def start(
    pool: ThreadPoolExecutor, brokers: Brokers, offset: int, name: str = "a", state: int = COMMIT, timeout_s: float = 30
) -> Future[None]:
    return pool.submit(brokers.ends.end, name, Ranges([offset]), state, timeout_s)  # type: ignore[arg-type]


def first_and_others(pool: ThreadPoolExecutor, brokers: Brokers, count: int) -> list[Future[None]]:
    """The first one's request is under way, and the others wait in order."""
    ends = [start(pool, brokers, 0)]
    wait_until(lambda: brokers.asked, what="the first request")
    for number in range(1, count):
        ends.append(start(pool, brokers, number))
        wait_until(lambda number=number: brokers.waiting() == number, what="one more that waits")
    return ends


def test_those_that_come_while_a_request_is_under_way_share_the_next_one(brokers: Brokers) -> None:
    with ThreadPoolExecutor(8) as pool:
        ends = first_and_others(pool, brokers, 5)
        brokers.answering.set()
        for each in ends:
            each.result(30)
    assert brokers.asked == [("a", [0]), ("a", [1, 2, 3, 4])]
    assert brokers.ends._waiting == {}


def test_other_brokers_and_other_decisions_do_not_wait(brokers: Brokers) -> None:
    with ThreadPoolExecutor(8) as pool:
        ends = [start(pool, brokers, 1), start(pool, brokers, 2, "b"), start(pool, brokers, 3, state=ROLLBACK)]
        wait_until(lambda: len(brokers.asked) == 3, what="three requests at once")
        brokers.answering.set()
        for each in ends:
            each.result(30)


def test_a_refusal_of_a_shared_request_is_that_ones_alone(brokers: Brokers) -> None:
    brokers.refusal = lambda offsets: TransactionEnded("rolled back") if 2 in offsets else None
    with ThreadPoolExecutor(8) as pool:
        ends = first_and_others(pool, brokers, 4)
        brokers.answering.set()
        errors = [each.exception(30) for each in ends]
    assert [type(error) for error in errors] == [type(None), type(None), TransactionEnded, type(None)]
    assert sorted(brokers.asked) == [("a", [0]), ("a", [1]), ("a", [1, 2, 3]), ("a", [2]), ("a", [3])]


def test_an_error_of_one_alone_is_raised_and_asked_once(brokers: Brokers) -> None:
    brokers.answering.set()
    brokers.refusal = lambda _: MessageNotFound("no such half")
    with pytest.raises(MessageNotFound):
        brokers.ends.end("a", Ranges([7]), COMMIT, 1.0)
    assert len(brokers.asked) == 1
    brokers.refusal = lambda _: None
    brokers.ends.end("a", Ranges([7]), COMMIT, 1.0)


def test_one_whose_time_is_up_goes_and_the_others_are_asked_for(brokers: Brokers) -> None:
    with ThreadPoolExecutor(8) as pool:
        ends = first_and_others(pool, brokers, 2)
        late = start(pool, brokers, 9, timeout_s=0.01)
        assert isinstance(late.exception(30), BrokerUnavailable)
        brokers.answering.set()
        for each in ends:
            each.result(30)
    assert brokers.asked[-1] == ("a", [1])


def test_a_request_takes_so_many_along_and_the_rest_comes_next(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ENDS_MAX > 3
    monkeypatch.setattr("penstock.client.transact.ends.ENDS_MAX", 3)
    with ThreadPoolExecutor(8) as pool:
        ends = first_and_others(pool, brokers, 6)
        brokers.answering.set()
        for each in ends:
            each.result(30)
    assert [offsets for _, offsets in brokers.asked] == [[0], [1, 2, 3], [4, 5]]


# Ends that nobody waits for.


class Handing:
    """Notes what is sent, and answers when the test says so."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, list[int], Future[EndReply]]] = []
        self.refusal: Exception | None = None
        self.ends = HandedOver("payments", self.start)

    def start(self, broker_name: str, request: EndRequest) -> Future[EndReply]:
        if self.refusal is not None:
            raise self.refusal
        offsets = [offset for each in request.halves for offset in range(each.offset, each.offset + each.count)]
        answer: Future[EndReply] = Future()
        follow = answer.add_done_callback

        def followed(then: Callable[[Future[EndReply]], object]) -> None:
            follow(then)
            self.sent.append((broker_name, offsets, answer))  # not before: what answers it is told then, at once

        answer.add_done_callback = followed  # type: ignore[method-assign]
        return answer

    def hand_over(self, *offsets: int, name: str = "a", state: int = COMMIT) -> list[bool]:
        return [self.ends.end(name, Ranges([offset]), state) for offset in offsets]  # type: ignore[arg-type]


@pytest.fixture
def handing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Handing]:
    monkeypatch.setattr("penstock.client.transact.ends.LINGER_S", 60.0)  # until somebody waits
    made = Handing()
    yield made
    made.ends.close(0)


def test_ends_that_nobody_waits_for_share_a_request_and_are_waited_for_at_the_end(handing: Handing) -> None:
    assert handing.hand_over(3, 1, 2) == [True] * 3
    handing.hand_over(7, name="b")
    handing.hand_over(8, state=ROLLBACK)
    assert handing.sent == []
    assert not handing.ends.settle(0.01), "their answers are still to come"
    wait_until(lambda: len(handing.sent) == 3, what="all requests")
    assert sorted((name, offsets) for name, offsets, _ in handing.sent) == [("a", [1, 2, 3]), ("a", [8]), ("b", [7])]
    for _, _, answer in handing.sent:
        answer.set_result(EndReply())
    assert handing.ends.settle(30)
    assert handing.ends.lost == 0


def test_without_a_wait_they_are_sent_soon(handing: Handing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.transact.ends.LINGER_S", 0.001)
    for offset in range(3):
        handing.hand_over(offset)
        wait_until(lambda offset=offset: len(handing.sent) == offset + 1, what="the request")
    handing.sent[0][2].set_result(EndReply())
    assert not handing.ends.settle(0)


def test_where_many_come_at_once_those_that_follow_go_with_them(
    handing: Handing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.transact.ends.LINGER_S", 0.001)
    monkeypatch.setattr("penstock.client.transact.ends.BUSY_LINGER_S", 60.0)
    waits, is_hurried = list[float](), handing.ends._is_hurried

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return is_hurried(seconds)

    monkeypatch.setattr(handing.ends, "_is_hurried", wait)
    with handing.ends._changed:  # all three are there before the thread looks
        handing.hand_over(1, 2, 3)
    wait_until(lambda: waits == [0.001, 60.0], what="the longer wait")
    handing.hand_over(4)
    assert handing.sent == []
    handing.ends.settle(0)
    wait_until(lambda: handing.sent, what="the request")
    assert [offsets for _, offsets, _ in handing.sent] == [[1, 2, 3, 4]]


def test_where_a_shared_request_is_refused_each_end_asks_by_itself_and_what_fails_is_lost(handing: Handing) -> None:
    handing.hand_over(1, 3, 5)
    handing.ends.settle(0)
    wait_until(lambda: handing.sent, what="the request")
    handing.sent[0][2].set_exception(TransactionEnded("rolled back"))
    assert [offsets for _, offsets, _ in handing.sent] == [[1, 3, 5], [1], [3], [5]]
    handing.sent[1][2].set_result(EndReply())
    handing.sent[2][2].set_exception(TransactionEnded("rolled back"))
    handing.sent[3][2].set_result(EndReply())
    assert handing.ends.settle(30)
    assert handing.ends.lost == 1


def test_what_a_broken_connection_takes_along_is_lost_and_counted(handing: Handing) -> None:
    handing.hand_over(1, 3)
    handing.ends.settle(0)
    wait_until(lambda: handing.sent, what="the request")
    handing.sent[0][2].set_exception(BrokerUnavailable("it broke"))
    assert handing.ends.lost == 2
    handing.refusal = BrokerUnavailable("no master")
    handing.hand_over(5)
    assert handing.ends.settle(30)
    assert (handing.ends.lost, len(handing.sent)) == (3, 1)


def test_an_error_that_nobody_foresees_is_lost_and_the_next_ones_are_sent(handing: Handing) -> None:
    handing.refusal = RuntimeError("can't start new thread")
    handing.hand_over(1, 3)
    assert handing.ends.settle(30)
    assert handing.ends.lost == 2
    handing.refusal = None
    handing.hand_over(5)
    handing.ends.settle(0)
    wait_until(lambda: handing.sent, what="the next request")
    handing.sent[0][2].set_result(EndReply())
    assert handing.ends.settle(30)


def test_beyond_the_bound_and_after_the_end_whoever_ends_waits(
    handing: Handing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.transact.ends.HANDED_OVER_MAX", 2)
    assert handing.hand_over(1, 2, 3) == [True, True, False]
    handing.ends.settle(0)
    wait_until(lambda: handing.sent, what="the request")
    handing.sent[0][2].set_result(EndReply())
    assert handing.hand_over(4) == [True]
    handing.ends.close(0)
    wait_until(lambda: len(handing.sent) == 2, what="the last request")
    assert handing.hand_over(5) == [False]
    wait_until(lambda: not any(each.name == "penstock-transaction-ends" for each in threading.enumerate()))
