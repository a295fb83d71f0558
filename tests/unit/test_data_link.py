"""The client's end of the data port, at a peer that the test plays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from penstock.client.cluster.data_streams import DataStreams
from penstock.client.cluster.retry import Outcome, outcome_of
from penstock.proto.data_frames import VERSION, Kind, Method
from penstock.proto.errors import (
    BrokerUnavailable,
    Forbidden,
    NotMaster,
    to_bytes,
)
from penstock.proto.wire.broker_pb2 import AppendReceipt
from penstock.proto.wire.data_pb2 import Hello
from penstock.runtime.data.link import DataLink
from tests.support.data import Peer, trust_silence
from tests.support.waiting import wait_until

HELLO = Hello(version=VERSION).SerializeToString()


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    trust_silence(monkeypatch)
    found = Peer()
    yield found
    found.close()


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[DataStreams]:
    ping_after(3600, monkeypatch)  # a test that a busy machine holds up is not pinged between two of its frames
    found = DataStreams(nobody)
    yield found
    found.close()


def nobody(address: str) -> DataLink:
    raise BrokerUnavailable(f"{address}: no test has said how to connect")


def append(
    streams: DataStreams, opening: Callable[[], DataLink], content: bytes, timeout_s: float, address: str = "a"
) -> Future[AppendReceipt]:
    streams.open_link = lambda _: opening()
    return streams.ask(address, Method.APPEND, content, AppendReceipt.FromString, timeout_s)


def opening(peer: Peer) -> Callable[[], DataLink]:
    return lambda: DataLink("127.0.0.1:1", peer.port)


def ping_after(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("data_stream", "data_streams"):
        monkeypatch.setattr(f"penstock.client.cluster.{module}.PING_S", seconds)


def test_a_silent_broker_is_pinged_and_then_left(
    peer: Peer, streams: DataStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    ping_after(0.05, monkeypatch)
    future = append(streams, opening(peer), b"batch", 60.0)
    peer.greet()
    assert peer.receive()[1:] == (Method.APPEND, b"batch")
    assert peer.receive()[1] == Method.PING
    monkeypatch.setattr("penstock.client.cluster.data_stream.SILENCE_S", 0.1)
    error = future.exception(30)
    assert isinstance(error, BrokerUnavailable)
    assert "silent for" in error.message
    assert outcome_of(error) is Outcome.UNKNOWN


def test_a_slow_broker_that_answers_pings_is_waited_for(
    peer: Peer, streams: DataStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    ping_after(0.02, monkeypatch)
    future = append(streams, opening(peer), b"batch", 60.0)
    peer.greet()
    number, method, _ = peer.receive()
    for _ in range(5):
        ping, method, _ = peer.receive()
        assert method == Method.PING
        peer.answer(ping, Method.PING)
    assert not future.done()
    peer.answer(number, Method.APPEND, AppendReceipt(physical_offset=7).SerializeToString())
    assert future.result(30).physical_offset == 7


def test_a_request_that_stands_takes_many_answers_beside_others_until_it_is_refused(
    peer: Peer, streams: DataStreams
) -> None:
    heard: list[bytes] = []
    streams.open_link = lambda _: opening(peer)()
    standing = streams.stand("a", Method.LISTEN, b"from here", heard.append)
    peer.greet()
    number, method, content = peer.receive()
    assert (method, content) == (Method.LISTEN, b"from here")
    peer.answer(number, Method.LISTEN, b"one")
    beside = append(streams, opening(peer), b"batch", 60.0)
    other = peer.receive()[0]
    peer.answer(number, Method.LISTEN, b"two")
    peer.answer(other, Method.APPEND, AppendReceipt(physical_offset=7).SerializeToString())
    assert beside.result(30).physical_offset == 7
    assert heard == [b"one", b"two"]
    assert not standing.done()
    peer.answer(number, Method.LISTEN, to_bytes(NotMaster("not here", epoch=3)), Kind.ERROR)
    assert isinstance(standing.exception(30), NotMaster)
    peer.answer(number, Method.LISTEN, b"nobody's")
    wait_until(lambda: not streams._streams["a"]._standing, what="its end")
    assert heard == [b"one", b"two"]


def test_a_request_that_has_just_begun_to_stand_needs_no_ping(
    peer: Peer, streams: DataStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    ping_after(60, monkeypatch)
    streams.open_link = lambda _: opening(peer)()
    streams.stand("a", Method.LISTEN, b"", lambda content: None)
    peer.greet()
    assert peer.receive()[1] == Method.LISTEN
    streams._streams["a"].look(time.monotonic())  # as the watch does when it is late
    append(streams, opening(peer), b"batch", 60.0)
    assert peer.receive()[1] == Method.APPEND


def test_a_broker_hears_from_a_client_whose_request_stands_and_is_left_when_it_is_frozen(
    peer: Peer, streams: DataStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    ping_after(0.02, monkeypatch)
    heard: list[bytes] = []
    streams.open_link = lambda _: opening(peer)()
    standing = streams.stand("a", Method.LISTEN, b"", heard.append)
    peer.greet()
    number, _, _ = peer.receive()
    for turn in range(5):
        peer.answer(number, Method.LISTEN, b"%d" % turn)  # it is not silent, and is pinged all the same
        assert peer.receive()[1] == Method.PING
    monkeypatch.setattr("penstock.client.cluster.data_stream.SILENCE_S", 0.1)
    error = standing.exception(30)
    assert isinstance(error, BrokerUnavailable)
    assert "silent for" in error.message
    assert heard == [b"%d" % turn for turn in range(5)]


def test_who_cannot_take_an_answer_ends_alone(peer: Peer, streams: DataStreams) -> None:
    streams.open_link = lambda _: opening(peer)()
    standing = streams.stand("a", Method.LISTEN, b"", lambda _: 1 / 0)
    beside = append(streams, opening(peer), b"batch", 60.0)
    peer.greet()
    number, other = peer.receive()[0], peer.receive()[0]
    peer.answer(number, Method.LISTEN, b"one")
    error = standing.exception(30)
    assert "is not understood: ZeroDivisionError" in str(error)
    peer.answer(other, Method.APPEND, b"\xff")
    unread = beside.exception(30)
    assert isinstance(unread, BrokerUnavailable)
    assert outcome_of(unread) is Outcome.UNKNOWN


def test_what_was_never_sent_is_told_from_what_is_unknown(peer: Peer, streams: DataStreams) -> None:
    """The peer takes the connection and says nothing: no batch is sent before it has greeted."""
    future = append(streams, opening(peer), b"batch", 0.1)
    error = future.exception(30)
    assert isinstance(error, BrokerUnavailable)
    assert outcome_of(error) is Outcome.NOT_STORED
    peer.greet()
    second = append(streams, opening(peer), b"second", 30.0)
    assert peer.receive()[2] == b"second"
    assert not second.done()


def test_a_refused_greeting_is_the_brokers_own_error(peer: Peer, streams: DataStreams) -> None:
    def refuse() -> DataLink:
        raise Forbidden("not you")

    for number in range(200):  # it may be there before the batch is
        assert isinstance(append(streams, refuse, b"batch", 30.0, f"broker-{number}").exception(30), Forbidden)


def test_sends_never_wait_for_a_peer_that_does_not_read(peer: Peer, streams: DataStreams) -> None:
    futures = [append(streams, opening(peer), b"x" * (1 << 20), 60.0)]
    peer.greet()
    wait_until(lambda: streams._streams["a"]._link is not None, what="the connection")
    sending = threading.Thread(
        target=lambda: futures.extend(append(streams, opening(peer), b"x" * (1 << 20), 60.0) for _ in range(40))
    )
    sending.start()
    sending.join(30)
    assert not sending.is_alive()
    for number in range(1, 42):
        while (found := peer.receive())[1] == Method.PING:
            peer.answer(found[0], Method.PING)
        assert (found[0], len(found[2])) == (number, 1 << 20)


def test_closing_leaves_neither_threads_nor_descriptors(peer: Peer) -> None:
    before = threading.active_count()
    streams = DataStreams(nobody)
    future: Any = append(streams, opening(peer), b"batch", 60.0)
    peer.greet()
    peer.receive()
    started = time.monotonic()
    streams.close()
    assert isinstance(future.exception(30), BrokerUnavailable)
    wait_until(lambda: threading.active_count() <= before, what="the threads' end")
    assert time.monotonic() >= started
