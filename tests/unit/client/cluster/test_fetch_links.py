"""A thread's fetch links at a broker that the test plays, and single fetches: what comes, and what breaks."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.client.cluster import fetch_links
from penstock.client.cluster.fetch_links import FetchCall, FetchLinks
from penstock.client.cluster.single_fetches import SingleFetches
from penstock.proto import frames
from penstock.proto.data_frames import FRAME_BYTES_MAX, HEAD, Kind, Method
from penstock.proto.errors import (
    BrokerUnavailable,
    ClientClosed,
    Forbidden,
    InvalidArgument,
    OutcomeUnknown,
    PenstockError,
    to_bytes,
)
from penstock.proto.wire.broker_pb2 import FetchHeader
from penstock.runtime.data.link import DataLink
from tests.support.data import Peer, trust_silence
from tests.support.waiting import PATIENCE_S, wait_until

HEADER = FetchHeader(group="g", client_id="c")
FETCH = frames.pack(HEADER)
LARGE = bytes(range(256)) * 20_000


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    trust_silence(monkeypatch)
    found = Peer()
    yield found
    found.close()


@pytest.fixture
def links(peer: Peer) -> Iterator[FetchLinks]:
    found = FetchLinks(opening(peer))
    yield found
    found.close()


def opening(peer: Peer) -> Callable[[str], DataLink]:
    return lambda _: DataLink("127.0.0.1:1", peer.port)


def begun(links: FetchLinks, peer: Peer, count: int = 1, timeout_s: float = 60.0) -> list[FetchCall]:
    """Fetches that the peer has got."""
    calls = [links.fetch("a", HEADER, timeout_s) for _ in range(count)]
    greeting = threading.Thread(target=peer.greet)
    greeting.start()
    wait_until(lambda: not links.landed(0.05) and not greeting.is_alive(), what="the connection")
    wait_until(lambda: links.landed(0.0) == [] and links._lines["a"].link is not None, what="the link")
    for call in calls:
        assert peer.receive() == (call.number, Method.FETCH, FETCH)
    return calls


def landed(links: FetchLinks, count: int) -> list[FetchCall]:
    """What lands, looked for without a pause: time that the thread is elsewhere is nobody's silence."""
    found: list[FetchCall] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        found.extend(links.landed(0.05))
    assert len(found) >= count, f"{len(found)} of {count} answers"
    return found


def error_of(call: FetchCall) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        call.message()
    return caught.value


def test_answers_come_in_any_order_and_size_and_errors_are_answers_too(links: FetchLinks, peer: Peer) -> None:
    first, second, third = begun(links, peer, 3)
    sending = threading.Thread(target=lambda: peer.answer(third.number, Method.FETCH, LARGE))
    sending.start()
    assert landed(links, 1) == [third]
    sending.join(30)
    assert third.message() == LARGE
    refusal = to_bytes(Forbidden("not you"))
    peer.say(HEAD.pack(len(refusal), first.number, Method.FETCH, Kind.ERROR) + refusal)
    peer.answer(second.number, Method.FETCH, b"small")
    assert landed(links, 2) == [first, second]
    assert isinstance(error_of(first), Forbidden)
    assert second.message() == b"small"


def test_an_answer_may_come_in_pieces_cut_anywhere(links: FetchLinks, peer: Peer) -> None:
    calls = begun(links, peer, 3)
    content = LARGE[: 40 << 10]
    frame = b"".join(HEAD.pack(len(content), call.number, Method.FETCH, Kind.ANSWER) + content for call in calls)
    found: list[FetchCall] = []
    cuts = [0, 1, 11, 12, 13, 16_384, 40 << 10, (40 << 10) + 12, (40 << 10) + 20, 100_000, len(frame)]
    for start, end in itertools.pairwise(cuts):
        peer.say(frame[start:end])
        found += links.landed(0.0)
    found += landed(links, 3 - len(found)) if len(found) < 3 else []
    assert [call.message() for call in found] == [content] * 3


def test_a_connection_that_breaks_in_the_middle_of_an_answer_fails_all_and_the_next_is_anew(
    links: FetchLinks, peer: Peer
) -> None:
    calls = begun(links, peer, 2)
    peer.say(HEAD.pack(len(LARGE), calls[0].number, Method.FETCH, Kind.ANSWER) + LARGE[:100_000])
    peer.leave()
    assert landed(links, 2) == calls
    assert all(isinstance(error_of(call), BrokerUnavailable) for call in calls)
    (again,) = begun(links, peer)
    peer.answer(again.number, Method.FETCH, b"x")
    assert landed(links, 1) == [again]


@pytest.mark.parametrize("is_in_the_middle", [False, True])
def test_a_broker_that_falls_silent_is_pinged_and_then_left(
    links: FetchLinks, peer: Peer, monkeypatch: pytest.MonkeyPatch, is_in_the_middle: bool
) -> None:
    (call,) = begun(links, peer)
    monkeypatch.setattr(fetch_links, "PING_S", 0.05)

    def hear() -> int:
        method = peer.receive()[1]
        monkeypatch.setattr(fetch_links, "SILENCE_S", 0.1)
        return method

    if is_in_the_middle:
        peer.say(HEAD.pack(len(LARGE), call.number, Method.FETCH, Kind.ANSWER) + LARGE[:100_000])
    with ThreadPoolExecutor(1) as threads:
        heard = threads.submit(hear)
        assert landed(links, 1) == [call]
        assert heard.result(30) == Method.PING
    assert "silent for" in error_of(call).message


def test_a_broker_that_has_nothing_to_tell_and_answers_pings_is_waited_for(
    links: FetchLinks, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (call,) = begun(links, peer)
    monkeypatch.setattr(fetch_links, "PING_S", 0.02)

    def pong() -> None:
        for _ in range(5):
            number, method, _ = peer.receive()
            assert method == Method.PING
            peer.answer(number, Method.PING)
        peer.answer(call.number, Method.FETCH, b"at last")

    ponging = threading.Thread(target=pong)
    ponging.start()
    assert landed(links, 1) == [call]
    ponging.join(30)
    assert call.message() == b"at last"


def test_what_is_not_answered_in_time_is_unknown_and_a_late_answer_nobodys(links: FetchLinks, peer: Peer) -> None:
    (call,) = begun(links, peer, timeout_s=0.2)
    (late,) = landed(links, 1)
    assert (late, type(error_of(late))) == (call, OutcomeUnknown)
    second = links.fetch("a", HEADER, 60.0)
    peer.answer(call.number, Method.FETCH, LARGE[:100])
    peer.answer(second.number, Method.FETCH, b"second")
    assert landed(links, 1) == [second]


def test_time_that_the_thread_is_elsewhere_counts_against_nobody(
    links: FetchLinks, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (call,) = begun(links, peer, timeout_s=60.0)
    now = fetch_links.time.monotonic()
    monkeypatch.setattr(fetch_links.time, "monotonic", lambda: now + 3600.0)
    assert links.landed(0.0) == []
    peer.answer(call.number, Method.FETCH, b"x")
    monkeypatch.undo()
    assert landed(links, 1)[0].message() == b"x"


def test_what_could_not_be_sent_in_time_is_told_from_what_is_unknown(links: FetchLinks) -> None:
    """The peer takes the connection and says nothing."""
    call = links.fetch("a", HEADER, 0.1)
    assert landed(links, 1) == [call]
    assert isinstance(error_of(call), BrokerUnavailable)
    assert "no connection" in error_of(call).message or "connect" in error_of(call).message


def test_a_wait_is_ended_once_by_a_fetch_of_nothing(links: FetchLinks, peer: Peer) -> None:
    (call,) = begun(links, peer)
    links.hurry(call)
    links.hurry(call)
    second = links.fetch("a", HEADER, 60.0)
    assert [peer.receive() for _ in range(2)] == [
        (call.number, Method.FETCH, b""),
        (second.number, Method.FETCH, FETCH),
    ]
    peer.answer(call.number, Method.FETCH, b"nothing")
    assert landed(links, 1) == [call]
    links.hurry(call)
    early = links.fetch("b", HEADER, 60.0)
    links.hurry(early)
    assert landed(links, 1) == [early]
    assert early.message() == fetch_links.NOTHING


def test_an_answer_larger_than_a_frame_may_be_ends_the_connection(links: FetchLinks, peer: Peer) -> None:
    (call,) = begun(links, peer)
    peer.say(HEAD.pack(FRAME_BYTES_MAX + 1, call.number, Method.FETCH, Kind.ANSWER))
    assert landed(links, 1) == [call]
    assert isinstance(error_of(call), InvalidArgument)


def test_a_broker_that_ends_the_connection_says_why(links: FetchLinks, peer: Peer) -> None:
    (call,) = begun(links, peer)
    refusal = to_bytes(Forbidden("no user any more"))
    peer.say(HEAD.pack(len(refusal), 0, Method.HELLO, Kind.ERROR) + refusal)
    assert landed(links, 1) == [call]
    assert isinstance(error_of(call), Forbidden)


def test_a_connection_that_ended_while_it_was_idle_is_made_anew(links: FetchLinks, peer: Peer) -> None:
    (call,) = begun(links, peer)
    peer.answer(call.number, Method.FETCH, b"x")
    landed(links, 1)
    peer.leave()
    (second,) = begun(links, peer)
    peer.answer(second.number, Method.FETCH, b"y")
    assert landed(links, 1)[0].message() == b"y"


def test_others_wake_the_thread_that_waits(links: FetchLinks, peer: Peer) -> None:
    begun(links, peer)
    waking = threading.Thread(target=links.wake)
    waking.start()
    assert links.landed(None) == []
    waking.join(30)
    links.wake()
    assert links.landed(None) == [], "a wake from before the wait counts too"


def test_a_broker_that_is_left_fails_what_is_under_way_there_alone(links: FetchLinks, peer: Peer) -> None:
    (call,) = begun(links, peer)
    other = links.fetch("b", HEADER, 60.0)
    links.leave("a")
    links.leave("nobody's")
    assert landed(links, 1) == [call]
    assert other.outcome is None


def test_the_end_leaves_neither_threads_nor_descriptors(peer: Peer) -> None:
    before, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    links = FetchLinks(opening(peer))
    (call,) = begun(links, peer)
    opened_late = links.fetch("b", HEADER, 60.0)
    ending = threading.Thread(target=links.end)
    ending.start()
    assert {id(each) for each in landed(links, 2)} == {id(call), id(opened_late)}
    ending.join(30)
    assert isinstance(error_of(call), BrokerUnavailable)
    with pytest.raises(ClientClosed):
        links.fetch("a", HEADER, 60.0)
    assert links.landed(None) == []
    links.close()
    peer.close()
    wait_until(lambda: threading.active_count() <= before, what="the threads' end")
    wait_until(lambda: len(os.listdir("/proc/self/fd")) < descriptors, what="the descriptors' end")


def test_single_fetches_use_a_connection_again_and_one_each_at_the_same_time(peer: Peer) -> None:
    singles = SingleFetches(opening(peer))

    def serve() -> None:
        peer.greet()
        for answer in (b"1", b"2"):
            peer.answer(peer.receive()[0], Method.FETCH, answer)

    serving = threading.Thread(target=serve)
    serving.start()
    assert [singles.fetch("a", HEADER, 60.0).result() for _ in range(2)] == [b"1", b"2"]
    serving.join(30)
    first, second = singles.fetch("a", HEADER, 60.0), singles.fetch("a", HEADER, 60.0)
    assert len(singles._used) == 2
    first.cancel()
    first.cancel()
    closing = threading.Thread(target=singles.close)
    closing.start()
    with pytest.raises(BrokerUnavailable, match="cancelled"):
        second.result()
    closing.join(30)
    assert not singles._used
    with pytest.raises(ClientClosed):
        singles.fetch("a", HEADER, 60.0)


def test_a_single_fetch_that_the_clients_end_overtakes_leaves_no_connection(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    singles = SingleFetches(opening(peer))
    kept = FetchLinks(opening(peer))
    kept._make_waker()
    singles.give_back(kept)
    fetch = FetchLinks.fetch

    def overtaken(links: FetchLinks, *arguments: Any) -> FetchCall:
        singles.close()
        return fetch(links, *arguments)

    monkeypatch.setattr(FetchLinks, "fetch", overtaken)
    with pytest.raises(ClientClosed):
        singles.fetch("a", HEADER, 60.0)
    assert kept._waker is not None
    assert kept._waker.fileno() < 0, "nobody else knows of it"
