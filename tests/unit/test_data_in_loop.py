"""An event loop reads what comes on a data stream, and sends for a producer, in the place of threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from penstock.client.cluster.data_streams import DataStreams
from penstock.client.produce.sender import Sender
from penstock.proto.data_frames import HEAD, Kind, Method
from penstock.proto.errors import BrokerUnavailable
from penstock.runtime.data.link import BUFFER_BYTES, SILENCE_S, DataLink
from tests.support.data import Peer, trust_silence
from tests.support.loops import RunningLoop, running_loop
from tests.support.waiting import wait_until

__all__ = ["running_loop"]


class Asking:
    """Asks at a peer; ``read_by``: the threads' names by the answers that they read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.peer = Peer()
        self.streams = DataStreams(lambda _: DataLink(f"127.0.0.1:{self.peer.port}", self.peer.port))
        self.streams.work_in(loop)
        self.read_by: dict[bytes, str] = {}

    def ask(self, content: bytes, *, is_awaited: bool = False) -> Future[bytes]:
        def take(answer: bytes) -> bytes:
            self.read_by[answer] = threading.current_thread().name
            return answer

        return self.streams.ask("a", Method.APPEND, content, take, 60.0, is_awaited=is_awaited)


@pytest.fixture
def asking(running_loop: RunningLoop, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asking]:
    trust_silence(monkeypatch)
    made = Asking(running_loop.loop)
    yield made
    made.streams.close()
    made.peer.close()


def test_the_loop_reads_also_for_threads_and_what_comes_in_pieces(asking: Asking) -> None:
    large = b"l" * (BUFFER_BYTES * 8)
    first = asking.ask(b"first")
    asking.peer.greet()
    second = asking.ask(b"second", is_awaited=True)
    numbers = [asking.peer.receive()[0] for _ in range(2)]
    frame = HEAD.pack(len(large), numbers[0], Method.APPEND, Kind.ANSWER) + large
    for at in range(0, len(frame), BUFFER_BYTES):
        asking.peer.say(frame[at : at + BUFFER_BYTES])
        time.sleep(0)
    assert first.result(30) == large
    waiting: list[bytes] = []
    thread = threading.Thread(target=lambda: waiting.append(second.result()))
    thread.start()
    asking.peer.answer(numbers[1], Method.APPEND, b"small")
    thread.join(30)
    assert waiting == [b"small"]
    assert asking.read_by == {large: "loop", b"small": "loop"}


def test_when_the_loop_is_closed_the_streams_own_thread_reads(asking: Asking, running_loop: RunningLoop) -> None:
    first = asking.ask(b"first")
    asking.peer.greet()
    asking.peer.answer(asking.peer.receive()[0], Method.APPEND, b"1")
    assert first.result(30) == b"1"
    running_loop.close()
    second = asking.ask(b"second")
    asking.peer.answer(asking.peer.receive()[0], Method.APPEND, b"2")
    assert second.result(30) == b"2"
    assert asking.read_by == {b"1": "loop", b"2": "penstock-data-answers"}


def test_a_stream_that_breaks_leaves_nothing_in_the_loop(asking: Asking, running_loop: RunningLoop) -> None:
    broken = asking.ask(b"broken")
    asking.peer.greet()
    asking.peer.receive()
    wait_until(lambda: readers_of(running_loop), what="the reader")
    asking.peer.leave()
    with pytest.raises(BrokerUnavailable):
        broken.result(30)
    wait_until(lambda: not readers_of(running_loop), what="a loop without the reader")
    again = asking.ask(b"again")
    asking.peer.greet()
    asking.peer.answer(asking.peer.receive()[0], Method.APPEND, b"there")
    assert again.result(30) == b"there"


def readers_of(running: RunningLoop) -> set[int]:
    """Descriptors that the loop reads besides its own."""
    loop: Any = running.loop
    return {descriptor for descriptor in loop._selector.get_map() if descriptor != loop._ssock.fileno()}


@pytest.mark.parametrize("has_come", [True, False])
def test_a_loop_that_is_busy_is_not_taken_for_a_silent_broker(
    asking: Asking, running_loop: RunningLoop, has_come: bool
) -> None:
    answer = asking.ask(b"slow")
    asking.peer.greet()
    number = asking.peer.receive()[0]
    is_busy, may_go_on = threading.Event(), threading.Event()
    running_loop.loop.call_soon_threadsafe(lambda: (is_busy.set(), may_go_on.wait(60)))
    assert is_busy.wait(30)
    stream = asking.streams._streams["a"]
    if has_come:
        asking.peer.answer(number, Method.APPEND, b"here")
        wait_until(lambda: stream._link is not None and stream._link.has_unread(), what="bytes that nobody reads")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.client.cluster.data_stream.SILENCE_S", SILENCE_S)
        stream.look(time.monotonic() + SILENCE_S * 2)
    may_go_on.set()
    if has_come:
        assert answer.result(30) == b"here"
    else:
        with pytest.raises(BrokerUnavailable, match="silent"):
            answer.result(30)


def test_what_was_read_while_a_stream_was_looked_at_is_not_silence(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = asking.ask(b"late")
    asking.peer.greet()
    number = asking.peer.receive()[0]
    stream = asking.streams._streams["a"]
    wait_until(lambda: stream._link is not None, what="the connection")
    link = stream._link
    assert link is not None

    def has_unread() -> bool:
        heard_at = link.heard_at
        asking.peer.answer(number + 1, Method.APPEND, b"nobody's")
        wait_until(lambda: link.heard_at != heard_at, what="a loop that reads")
        return False

    monkeypatch.setattr(link, "has_unread", has_unread)
    monkeypatch.setattr("penstock.client.cluster.data_stream.SILENCE_S", SILENCE_S)
    stream.look(time.monotonic() + SILENCE_S * 2)
    asking.peer.answer(number, Method.APPEND, b"here")
    assert answer.result(30) == b"here"


class Topic:
    """Counts how often it was pumped, and by whom."""

    topic = "orders"

    def __init__(self) -> None:
        self.open: list[bytes] = []
        self.due_s = 0.0
        self.pumped: list[str] = []

    def pump(self, now: float) -> float:
        self.pumped.append(threading.current_thread().name)
        return now + self.due_s


def test_a_sender_in_a_loop_has_turns_when_it_is_woken_and_when_it_is_due(running_loop: RunningLoop) -> None:
    sender, topic = Sender(1.0), Topic()
    topic.due_s = 3600.0
    sender.add(topic)  # type: ignore[arg-type]
    running_loop.loop.call_soon_threadsafe(sender.work_in, running_loop.loop)
    wait_until(lambda: "loop" in topic.pumped, what="a turn of the loop")
    sender._thread.join(30)
    assert sender.is_sleeping, "whoever produces has to wake it"
    topic.pumped.clear()
    for _ in range(3):  # from another thread
        sender.wake()
    wait_until(lambda: topic.pumped, what="a turn")
    topic.due_s = 0.0
    sender.wake()
    wait_until(lambda: len(topic.pumped) > 5, what="turns because it is due")
    assert set(topic.pumped) == {"loop"}
    sender.stop()
    done = threading.Event()
    running_loop.loop.call_soon_threadsafe(done.set)  # behind the last turn
    assert done.wait(30)
    count = len(topic.pumped)
    sender.wake()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01), running_loop.loop).result(30)
    assert len(topic.pumped) == count


def test_a_sender_that_is_stopped_waits_for_the_turn_of_its_loop(running_loop: RunningLoop) -> None:
    sender, topic = Sender(1.0), Topic()
    is_pumping, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()

    def pump(now: float) -> float:
        is_pumping.set()
        assert may_end.wait(30)
        has_ended.set()
        return now + 3600

    topic.pump = pump  # type: ignore[method-assign]
    running_loop.loop.call_soon_threadsafe(sender.work_in, running_loop.loop)
    sender._thread.join(30)
    sender.add(topic)  # type: ignore[arg-type]
    assert is_pumping.wait(30)
    stopping = threading.Thread(target=sender.stop)
    stopping.start()
    wait_until(lambda: sender._is_stopped, what="a sender that is told")
    assert stopping.is_alive()
    may_end.set()
    stopping.join(30)
    assert has_ended.is_set()
