"""Threads that are told to end at the worst moment: between their last look, and the next wait for a wake-up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.store.log.flush import Checkpointer
from penstock.client.cluster import Calls
from penstock.client.cluster.data_streams import DataStreams
from penstock.client.consume.group.consumer_session import ConsumerSession, SessionListener
from penstock.client.produce import sender as sender_module
from penstock.client.produce.sender import Sender
from penstock.client.transact.sessions import ProducerSessions
from penstock.proto.data_frames import Method
from penstock.proto.errors import BrokerUnavailable
from penstock.runtime.data.link import DataLink


class Overtaken(threading.Event):
    """An event whose thread is told to end right before it takes the event back; so once."""

    def __init__(self, end: Callable[[], object]) -> None:
        super().__init__()
        self._told = threading.Event()
        self._end: Callable[[], object] | None = end

    def set(self) -> None:
        super().set()
        self._told.set()

    def clear(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            self._told.clear()
            threading.Thread(target=end).start()  # which waits for the thread of the event
            assert self._told.wait(30)
        super().clear()


def overtake(owner: Any, name: str, end: Callable[[], object]) -> None:
    """Have ``owner``'s thread, which waits for the event of that name, or is about to, be overtaken by its ``end``."""
    former, latter = getattr(owner, name), Overtaken(end)
    setattr(owner, name, latter)
    latter.set()
    former.set()


def test_a_sender_that_falls_asleep_hears_that_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "IDLE_ROUNDS", 0)
    sender = Sender(1.0)
    overtake(sender, "_event", sender.stop)
    sender._thread.join(30)
    assert not sender._thread.is_alive()


def test_the_thread_that_looks_for_late_answers_ends_with_its_client() -> None:
    def away(_: str) -> DataLink:
        raise BrokerUnavailable("away")

    streams = DataStreams(away)
    with pytest.raises(BrokerUnavailable):
        streams.ask("a:1", Method.APPEND, b"", bytes, 3600.0).result(30)
    watching = streams._watching
    assert watching is not None
    overtake(streams, "_changed", streams.close)
    watching.join(30)
    assert not watching.is_alive()


def test_the_sessions_of_a_producer_end_when_they_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.transact.sessions.LOOK_S", 3600.0)
    calls = Calls.to("127.0.0.1:1")
    sessions = ProducerSessions(calls, "client", lambda *_: None)
    overtake(sessions, "_changed", sessions.close)
    sessions._thread.join(30)
    assert not sessions._thread.is_alive()
    calls.close()


def test_a_session_with_a_broker_group_of_which_nobody_lives_ends_when_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.client.consume.group.consumer_session.NOBODY_S", 3600.0)
    core = cast(Any, SimpleNamespace(directory=SimpleNamespace(read_address=lambda _: None)))
    session = ConsumerSession(core, "broker-a", {}, SessionListener(), lambda call: call())
    session.start()
    overtake(session, "_route_changed", session.begin_close)
    session._thread.join(30)
    assert not session._thread.is_alive()


def test_a_checkpointer_that_is_stopped_looks_for_nothing_more() -> None:
    looks: list[bool] = []

    def progress() -> tuple[int, int]:
        looks.append(checkpointer._is_stopping)
        return 0, 0

    checkpointer = Checkpointer(3600.0, progress, lambda: None)
    checkpointer.start()
    overtake(checkpointer, "_wake", checkpointer.stop)
    checkpointer.join(30)
    assert not checkpointer.is_alive()
    assert not any(looks)
