"""Who reads what comes on a data stream: its own thread, or one that waits for an answer."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from penstock.client.cluster.data_streams import DataStreams
from penstock.proto.data_frames import Kind, Method
from penstock.proto.errors import BrokerUnavailable, OutcomeUnknown
from penstock.runtime.data.link import DataLink
from tests.support.data import Peer, poll_always, trust_silence
from tests.support.waiting import wait_until

OWN = "penstock-data-answers"


class Asking:
    """Threads that ask at a peer, and the peer; ``read_by``: the threads' names by the answers that they read."""

    def __init__(self) -> None:
        self.peer = Peer()
        self.streams = DataStreams(lambda _: self.link())
        self.read_by: dict[bytes, str] = {}
        self.looks: Counter[str] = Counter()  # by the threads' names, where they look before they sleep
        self._threads = ThreadPoolExecutor(4, "asking")

    def link(self) -> DataLink:
        return DataLink("127.0.0.1:1", self.peer.port)

    def ask(self, content: bytes, timeout_s: float = 60.0, *, is_awaited: bool = False) -> Future[bytes]:
        return self.streams.ask("a", Method.APPEND, content, self._take, timeout_s, is_awaited=is_awaited)

    def wait_for(self, content: bytes, timeout_s: float = 60.0) -> Future[bytes]:
        """A thread asks, and waits for the answer."""
        return self._threads.submit(lambda: self.ask(content, timeout_s, is_awaited=True).result())

    def stand(self, is_attended: Callable[[], bool] = lambda: True) -> dict[bytes, Future[bytes]]:
        """A request stands; what is put into the table is completed by the answer of that content."""
        wanted: dict[bytes, Future[bytes]] = {}

        def take(content: bytes) -> None:
            wanted.pop(content).set_result(self._take(content))

        self.streams.stand("a", Method.LISTEN, b"", take, is_attended)
        self.standing = self.peer.receive()[0]
        wait_until(self.streams._streams["a"]._reading.locked, what="the own thread, whose rest has ended")
        return wanted

    def tell(self, content: bytes) -> None:
        """The peer answers the request that stands."""
        self.peer.answer(self.standing, Method.LISTEN, content)

    def attend(self, wanted: dict[bytes, Future[bytes]], content: bytes, timeout_s: float = 60.0) -> Future[bytes]:
        """A thread waits for that answer of the request that stands."""
        future = wanted[content] = Future()
        return self._threads.submit(lambda: self.streams.wait("a", future, timeout_s))

    def exchange(self, content: bytes) -> None:
        """One request of a waiting thread, from its beginning to its end."""
        waiting = self.wait_for(content)
        self.answer()
        assert waiting.result(30) == content

    def answer(self) -> None:
        """The peer answers the next request with what it asked, and pings before it."""
        number, method, content = self.peer.receive()
        while method == Method.PING:
            self.peer.answer(number, Method.PING)
            number, method, content = self.peer.receive()
        self.peer.answer(number, Method.APPEND, content)

    def rest(self) -> None:
        """Have the stream's own thread leave the reading to others, as it does behind an answer that it has read."""

        def is_resting() -> bool:
            self.exchange(b"before")
            return self.streams._streams["a"]._is_resting

        wait_until(is_resting, what="the rest of the stream's own thread")

    def close(self) -> None:
        self.streams.close()
        self.peer.close()
        self._threads.shutdown()

    def _take(self, content: bytes) -> bytes:
        self.read_by[content] = threading.current_thread().name
        return content


@pytest.fixture(params=["sleeping", "polling"])
def asking(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Asking]:
    looks = poll_always(monkeypatch) if request.param == "polling" else Counter()
    monkeypatch.setattr("penstock.client.cluster.data_stream.REST_S", 60.0)
    trust_silence(monkeypatch)
    made = Asking()
    made.looks = looks
    first = made.ask(b"first")
    made.peer.greet()
    made.answer()
    assert first.result(30) == b"first"
    yield made
    made.close()


def test_who_waits_for_one_answer_after_the_other_reads_them(asking: Asking) -> None:
    assert asking.read_by[b"first"] == OWN
    for content in (b"one", b"two", b"three"):
        asking.rest()
        asking.exchange(content)
        assert asking.read_by[content].startswith("asking")


def test_an_answer_that_nobody_awaits_ends_the_rest_of_the_streams_own_thread(asking: Asking) -> None:
    asking.rest()
    future = asking.ask(b"beside")
    asking.answer()
    assert future.result(30) == b"beside"
    assert asking.read_by[b"beside"] == OWN


def test_who_has_its_answer_leaves_the_others_answers_to_the_streams_own_thread(asking: Asking) -> None:
    asking.rest()
    reading = asking.wait_for(b"of the one that reads")
    first, _, _ = asking.peer.receive()
    wait_until(asking.streams._streams["a"]._reading.locked, what="the reader")
    behind = asking.wait_for(b"behind it")
    second, _, _ = asking.peer.receive()
    asking.peer.answer(first, Method.APPEND, b"of the one that reads")
    assert reading.result(30)
    asking.peer.answer(second, Method.APPEND, b"behind it")
    assert behind.result(30) == b"behind it"
    assert asking.read_by[b"behind it"] == OWN


def test_the_own_thread_reads_again_when_nobody_does(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.cluster.data_stream.REST_S", 0.01)
    beside = asking.ask(b"beside")
    asking.answer()
    assert beside.result(30)
    asking.exchange(b"one")
    asking.peer.leave()
    wait_until(lambda: asking.streams._streams["a"]._is_broken, what="that the peer has gone")


def test_who_waits_for_answers_of_a_request_that_stands_reads_them(asking: Asking) -> None:
    wanted = asking.stand()
    asking.exchange(b"beside")
    for content in (b"one", b"two"):
        asking.rest()
        waiting = asking.attend(wanted, content)
        wait_until(asking.streams._streams["a"]._reading.locked, what="the reader")
        asking.tell(content)
        assert waiting.result(30) == content
        assert asking.read_by[content].startswith("asking")
        asking.exchange(b"behind " + content)
        assert asking.read_by[b"behind " + content].startswith("asking")


def test_of_two_that_wait_for_answers_of_a_request_that_stands_the_second_is_told(asking: Asking) -> None:
    wanted = asking.stand()
    asking.exchange(b"beside")
    asking.rest()
    reading = asking.attend(wanted, b"one")
    stream = asking.streams._streams["a"]
    wait_until(stream._reading.locked, what="the reader")
    behind = asking.attend(wanted, b"two")
    wait_until(lambda: stream._left, what="the second one")
    asking.tell(b"one")
    assert reading.result(30) == b"one"
    asking.tell(b"two")
    assert behind.result(30) == b"two"
    assert asking.read_by[b"one"].startswith("asking")
    assert asking.read_by[b"two"] == OWN
    wait_until(lambda: not stream._left, what="its end")


def test_the_own_thread_reads_for_whoever_waits_for_an_answer_of_a_request_that_stands_otherwise(
    asking: Asking,
) -> None:
    wanted = asking.stand(lambda: not wanted)
    future = wanted[b"told"] = Future()
    asking.exchange(b"beside")
    asking.tell(b"told")
    assert future.result(30) == b"told"
    assert asking.read_by[b"told"] == OWN


def test_who_waits_for_an_answer_of_a_request_that_stands_waits_no_longer_than_its_time(asking: Asking) -> None:
    wanted = asking.stand()
    asking.exchange(b"beside")
    asking.rest()
    with pytest.raises(TimeoutError):
        asking.attend(wanted, b"late", timeout_s=0.05).result(30)
    asking.exchange(b"next")


def test_who_reads_is_told_when_its_time_is_up_and_the_stream_goes_on(asking: Asking) -> None:
    asking.rest()
    late = asking.wait_for(b"late", timeout_s=0.05)
    number, _, _ = asking.peer.receive()
    with pytest.raises(OutcomeUnknown, match="no answer within the time-out"):
        late.result(30)
    asking.peer.answer(number, Method.APPEND, b"late")
    asking.exchange(b"next")
    assert b"late" not in asking.read_by


def test_a_connection_that_breaks_under_the_one_that_reads_ends_all_that_is_under_way(asking: Asking) -> None:
    asking.rest()
    reading = asking.wait_for(b"one")
    asking.peer.receive()
    wait_until(asking.streams._streams["a"]._reading.locked, what="the reader")
    beside = asking.ask(b"two")
    asking.peer.leave()
    for future in (reading, beside):
        assert isinstance(future.exception(30), BrokerUnavailable)


@pytest.mark.parametrize("at", ["recv", "settle"])
def test_who_is_interrupted_while_it_reads_breaks_the_stream_and_the_next_request_opens_another(
    asking: Asking, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    asking.rest()
    stream = asking.streams._streams["a"]
    settle = stream._settle

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    if at == "recv":
        monkeypatch.setattr(stream._link, "receive", interrupted)
    else:
        monkeypatch.setattr(stream, "_settle", interrupted)
    caught: list[BaseException] = []

    def ask(content: Callable[[], Future[bytes]]) -> None:
        try:
            content().result()
        except KeyboardInterrupt as error:
            caught.append(error)

    thread = threading.Thread(target=ask, args=(lambda: asking.ask(b"one", is_awaited=True),))
    thread.start()
    asking.answer()
    thread.join()
    assert caught
    monkeypatch.setattr(stream, "_settle", settle)
    wait_until(lambda: stream._is_broken, what="its end")
    asking.peer.leave()
    again = asking.wait_for(b"again")
    asking.peer.greet()
    asking.answer()
    assert again.result(30) == b"again"


def test_who_left_the_reading_to_the_streams_own_thread_is_not_left_alone_by_it(asking: Asking) -> None:
    asking.rest()
    beside = asking.ask(b"beside")
    number, _, _ = asking.peer.receive()
    wait_until(asking.streams._streams["a"]._reading.locked, what="the stream's own thread")
    first = asking.wait_for(b"one")
    one, _, _ = asking.peer.receive()
    second = asking.wait_for(b"two")
    two, _, _ = asking.peer.receive()
    asking.peer.answer(number, Method.APPEND, b"beside")
    assert beside.result(30)
    asking.peer.answer(one, Method.APPEND, b"one")
    assert first.result(30)
    asking.peer.answer(two, Method.APPEND, b"two")
    assert second.result(30) == b"two"


def test_what_one_that_is_interrupted_was_settling_for_another_is_unknown(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(content: bytes) -> bytes:
        if content == b"another's":
            raise KeyboardInterrupt
        return content

    monkeypatch.setattr(asking, "_take", take)
    asking.rest()
    reading = asking.wait_for(b"one")
    asking.peer.receive()
    wait_until(asking.streams._streams["a"]._reading.locked, what="the reader")
    another = asking.ask(b"another's")
    asking.answer()
    assert isinstance(another.exception(30), BrokerUnavailable)
    assert reading.exception(30) is not None


@pytest.mark.parametrize("is_awaited", [False, True])
def test_an_error_that_is_not_understood_ends_its_own_request_only(asking: Asking, *, is_awaited: bool) -> None:
    asking.rest()
    future = asking.wait_for(b"one") if is_awaited else asking.ask(b"one")
    number, _, _ = asking.peer.receive()
    asking.peer.answer(number, Method.APPEND, b"{", Kind.ERROR)
    assert isinstance(future.exception(30), BrokerUnavailable)
    beside = asking.ask(b"beside")
    asking.answer()
    assert beside.result(30) == b"beside"


def test_an_end_that_is_not_understood_breaks_the_stream(asking: Asking) -> None:
    future = asking.ask(b"one")
    asking.peer.receive()
    asking.peer.answer(0, Method.PING, b"{", Kind.ERROR)
    assert isinstance(future.exception(30), BrokerUnavailable)
    wait_until(lambda: asking.streams._streams["a"]._is_broken, what="its end")


def test_what_is_late_before_there_is_a_connection_leaves_nothing_behind() -> None:
    may_connect = threading.Event()

    def open_link(_: str) -> DataLink:
        may_connect.wait(60)
        raise BrokerUnavailable("not there")

    streams = DataStreams(open_link)
    try:
        late = streams.ask("a", Method.APPEND, b"late", bytes, 0.05)
        with pytest.raises(BrokerUnavailable, match="in time"):
            late.result(30)
        wait_until(lambda: not streams._streams["a"]._under_way, what="its end")
    finally:
        may_connect.set()
        streams.close()


@pytest.mark.parametrize("asking", ["polling"], indirect=True)
def test_who_waits_for_an_answer_looks_for_it_and_who_waits_for_what_stands_sleeps(asking: Asking) -> None:
    def has_looked() -> bool:
        asking.rest()
        asking.exchange(b"one")
        return any(name.startswith("asking") for name in asking.looks)

    wait_until(has_looked, what="a look")
    wanted = asking.stand()
    asking.exchange(b"beside")
    asking.rest()
    asking.looks.clear()
    waiting = asking.attend(wanted, b"later")
    wait_until(asking.streams._streams["a"]._reading.locked, what="the reader")
    asking.tell(b"later")
    assert waiting.result(30) == b"later"
    assert asking.read_by[b"later"].startswith("asking")
    assert not asking.looks
