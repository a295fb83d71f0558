"""Append streams from the client's side: one per broker, answers in order, time-outs, and what a broken one says."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from penstock.client.cluster.connections import Connections, Receipts
from penstock.client.cluster.data_stream import Stream
from penstock.client.cluster.data_streams import DataStreams
from penstock.client.cluster.retry import Outcome, outcome_of
from penstock.proto.data_frames import Method
from penstock.proto.errors import BrokerUnavailable, ClientClosed, NotMaster, OutcomeUnknown, TopicNotFound
from penstock.runtime.data.link import DataLink
from tests.support.broker.requests import batch
from tests.support.client.running_cluster import RunningBroker, RunningCluster
from tests.support.data import Peer, trust_silence
from tests.support.loops import RunningLoop, running_loop
from tests.support.waiting import wait_until

__all__ = ["running_loop"]


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"orders": 4}) as made:
        yield made


@pytest.fixture
def broker(cluster: RunningCluster) -> RunningBroker:
    return cluster.brokers["broker-a"]


@pytest.fixture(params=["threads", "a loop"])
def connections(
    cluster: RunningCluster, running_loop: RunningLoop, request: pytest.FixtureRequest
) -> Iterator[Connections]:
    """Whose answers are read by threads, or by a loop."""
    made = Connections(cluster.namesrv)
    if request.param == "a loop":
        made.data.work_in(running_loop.loop)
    yield made
    made.close()


def send(connections: Connections, broker: RunningBroker, *bodies: bytes, timeout_s: float = 10.0) -> Receipts:
    return connections.append(broker.address, batch(bodies), timeout_s)


def test_answers_come_in_the_order_of_the_batches(connections: Connections, broker: RunningBroker) -> None:
    answers = [send(connections, broker, b"%d" % number) for number in range(100)]
    receipts = [answer.result(10) for answer in answers]
    assert [list(receipt.queue_offsets) for receipt in receipts] == [[number] for number in range(100)]
    assert broker.bodies("orders") == [b"%d" % number for number in range(100)]


def test_numbers_begin_again_and_leave_those_that_wait_alone(connections: Connections, broker: RunningBroker) -> None:
    with broker.faults.holding("Append"):
        first = send(connections, broker, b"1")
        wait_until(lambda: broker.faults.calls["Append"] == 1, what="the stream")
        connections.data._streams[broker.address]._number = 0xFFFFFFFF  # behind it comes 1, which the first one has
        second = send(connections, broker, b"2")
    assert [list(each.result(10).queue_offsets) for each in (first, second)] == [[0], [1]]


def test_a_refused_batch_leaves_the_stream_and_its_neighbours_alone(
    connections: Connections, broker: RunningBroker
) -> None:
    broker.faults.refuse("Append", NotMaster("not here", epoch=3), times=1)
    with broker.faults.holding("Append"):
        first, second = send(connections, broker, b"1"), send(connections, broker, b"2")
        missing = connections.append(broker.address, batch([b"3"], topic="missing"), 10.0)
    with pytest.raises(NotMaster, match="not here") as caught:
        first.result(10)
    assert caught.value.details == {"epoch": 3}
    assert list(second.result(10).queue_offsets) == [0]
    with pytest.raises(TopicNotFound, match="missing"):
        missing.result(10)
    assert broker.faults.calls["Append"] == 1


def test_what_is_under_way_at_a_broker_that_is_left_is_unknown_at_once(
    connections: Connections, broker: RunningBroker
) -> None:
    with broker.faults.holding("Append"):  # as if frozen
        answer = send(connections, broker, b"1", timeout_s=3600)
        wait_until(lambda: broker.faults.calls["Append"] == 1, what="the stream")
        connections.data.leave(broker.address)
        with pytest.raises(BrokerUnavailable, match=r"(?i)cancelled") as caught:
            answer.result(30)
        assert outcome_of(caught.value) is Outcome.UNKNOWN
    assert send(connections, broker, b"2").result(30).status == 0
    assert broker.faults.calls["Append"] == 2
    connections.data.leave("127.0.0.1:1")  # nobody's


def test_a_broker_that_is_left_while_its_stream_is_made_leaves_nobody_waiting() -> None:
    class Seen(dict[str, Stream]):
        def __setitem__(self, address: str, stream: Stream) -> None:
            super().__setitem__(address, stream)
            streams.leave(address)  # by another thread, at once

    def away(_: str) -> DataLink:
        raise BrokerUnavailable("away")

    streams = DataStreams(away)
    streams._streams = Seen()
    asked = streams.ask("a:1", Method.APPEND, b"", bytes, 3600.0)
    with pytest.raises(BrokerUnavailable, match="failed to connect"):
        asked.result(10)
    streams.close()


def test_a_batch_without_an_answer_in_time_is_unknown_and_its_late_answer_nobodys(
    connections: Connections, broker: RunningBroker
) -> None:
    assert send(connections, broker, b"warm").result(10).status == 0
    with broker.faults.holding("Append"):
        patient = send(connections, broker, b"1", timeout_s=30.0)
        hasty = send(connections, broker, b"2", timeout_s=0.05)
        with pytest.raises(OutcomeUnknown, match=f"{broker.address}: no answer within the time-out"):
            hasty.result(10)
        assert not patient.done()
    assert list(patient.result(10).queue_offsets) == [1]
    assert list(send(connections, broker, b"3").result(10).queue_offsets) == [3]
    assert broker.faults.calls["Append"] == 1


def test_a_broken_stream_leaves_all_its_batches_unknown(connections: Connections, broker: RunningBroker) -> None:
    broker.faults.drop_answers("Append", 1)
    with broker.faults.holding("Append"):
        answers = [send(connections, broker, b"%d" % number) for number in range(3)]
    for answer in answers:
        with pytest.raises(BrokerUnavailable, match="the answer was lost") as caught:
            answer.result(10)
        assert caught.value.details == {"status": "UNAVAILABLE"}
    assert send(connections, broker, b"again").result(10).status == 0
    assert broker.faults.calls["Append"] == 2


def test_a_broker_that_is_not_there_is_told_from_a_broken_stream(
    cluster: RunningCluster, connections: Connections, broker: RunningBroker
) -> None:
    cluster.kill("broker-a")
    with pytest.raises(BrokerUnavailable, match="failed to connect"):
        send(connections, broker, b"1").result(10)
    cluster.revive("broker-a")
    wait_until(lambda: send(connections, broker, b"2").exception(10) is None, what="a new stream")


def test_closing_fails_what_is_under_way_and_opens_nothing_more(
    connections: Connections, broker: RunningBroker
) -> None:
    with broker.faults.holding("Append"):
        answer = send(connections, broker, b"1")
        wait_until(lambda: broker.faults.requests["Append"], what="the batch at the broker")
        connections.close()
        with pytest.raises(BrokerUnavailable):
            answer.result(10)
        with pytest.raises(ClientClosed):
            send(connections, broker, b"2")


def test_a_cancelled_answer_is_ignored_when_it_comes(connections: Connections, broker: RunningBroker) -> None:
    with broker.faults.holding("Append"):
        first, second = send(connections, broker, b"1"), send(connections, broker, b"2")
        assert first.cancel()
    assert list(second.result(10).queue_offsets) == [1]


class Receiver:
    """Receives from a broker that is in the test's hands."""

    def __init__(self) -> None:
        self.peer = Peer()
        self.streams = DataStreams(lambda _: DataLink(f"127.0.0.1:{self.peer.port}", self.peer.port))
        self.late: queue.Queue[bytes] = queue.Queue()

    def ask(self, content: bytes, timeout_s: float = 60.0) -> Future[bytes]:
        return self.streams.ask(
            "peer", Method.RECEIVE, content, bytes, timeout_s, late=lambda given: self.late.put(bytes(given))
        )

    def heard(self) -> tuple[int, bytes]:
        """What the broker hears next of receives: number, content."""
        while True:
            number, method, content = self.peer.receive()
            if method != Method.PING:
                return number, content
            self.peer.answer(number, Method.PING)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    trust_silence(monkeypatch)
    made = Receiver()
    yield made
    made.streams.close()
    made.peer.close()


def test_a_receive_that_nobody_waits_for_is_ended_at_the_broker(receiver: Receiver) -> None:
    cancelled = receiver.ask(b"cancelled")
    receiver.peer.greet()
    number, _ = receiver.heard()
    cancelled.cancel()
    assert receiver.heard() == (number, b"")
    receiver.peer.answer(number, Method.RECEIVE, b"crossed the end")
    late = receiver.ask(b"late", 0.05)
    number, content = receiver.heard()
    assert content == b"late"
    with pytest.raises(OutcomeUnknown, match="no answer"):
        late.result(30)
    assert receiver.heard() == (number, b"")
    receiver.peer.answer(number, Method.RECEIVE, b"too late")
    assert [receiver.late.get(timeout=30), receiver.late.get(timeout=30)] == [b"crossed the end", b"too late"]


def test_a_receive_that_is_answered_or_was_never_sent_is_not_ended(receiver: Receiver) -> None:
    receiver.ask(b"never sent").cancel()
    answered = receiver.ask(b"answered")
    receiver.peer.greet()
    number, content = receiver.heard()
    assert content == b"answered"
    receiver.peer.answer(number, Method.RECEIVE, b"messages")
    assert answered.result(30) == b"messages"
    receiver.ask(b"next")
    assert receiver.heard()[1] == b"next"
    assert receiver.late.empty()
