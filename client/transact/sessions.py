"""A client's sessions with all masters: by them brokers know its producers, and ask about undecided halves."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from penstock.proto.data_frames import Method
from penstock.proto.errors import BrokerUnavailable, LimitReached, PenstockError
from penstock.proto.names import PRODUCER_GROUPS_MAX
from penstock.proto.wire.transactions_pb2 import JoinRequest, ProducerEvent

from ..cluster import Calls, back_off_s, master_of
from .questions import HalfMessage, halves_of

Halves = Iterator[tuple[int, HalfMessage]]
OnQuestion = Callable[[str, Halves], None]
"""Is given a broker's name, and what it asks about: halves, and the offsets by which they are decided."""

log = logging.getLogger(__name__)

LOOK_S: Final = 5.0
"""Between looks for broker groups that have come."""
CHANGE_S: Final = 0.2
"""Between two requests to a broker: groups that come and go meanwhile share one."""
TIMEOUT_S: Final = 3.0
LOG_EVERY: Final = 20


class _Session:
    """What stands at one broker group. The sessions' thread touches it, but for ``is_joined``."""

    def __init__(self) -> None:
        self.address = ""
        self.version = -1
        """Of the groups that it names; -1: nothing stands."""
        self.future: Future[Any] = Future()
        self.is_joined = False  # written by whoever reads answers
        self.failures = 0
        self.begins_at = 0.0
        """Before it, nothing more is sent there."""


class ProducerSessions:
    """One request stands at each master, and names all groups. A thread looks for masters; none waits for answers."""

    def __init__(self, calls: Calls, client_id: str, on_question: OnQuestion, *, answers: bool = True) -> None:
        """``on_question`` is called by whoever reads answers of brokers; it leaves the halves to others to look at.

        ``answers``: false for a client that is only to be listed.
        """
        self._calls = calls
        self._client_id = client_id
        self._on_question = on_question
        self._answers = answers
        self._lock = threading.Lock()  # guards what follows
        self._groups: dict[str, None] = {}
        self._version = 0  # of the groups
        self._changed = threading.Event()
        self._closed = threading.Event()
        # The thread's.
        self._sessions: dict[str, _Session] = {}  # by broker name
        self._masters: Mapping[str, str] = {}
        self._looks_at = 0.0
        self._thread = threading.Thread(target=self._run, name="penstock-producer-sessions", daemon=True)
        self._thread.start()

    def join(self, group: str) -> None:
        """Be a producer of that group too, soon. May be called again. Raises LimitReached: of so many none can be."""
        with self._lock:
            if group in self._groups:
                return
            if len(self._groups) >= PRODUCER_GROUPS_MAX:
                raise LimitReached(f"group {group}: the client is a producer of {PRODUCER_GROUPS_MAX} groups already")
            self._groups[group] = None
            self._version += 1
        self._changed.set()

    def leave(self, group: str) -> None:
        """Be none of that group any more, soon. May be called again."""
        with self._lock:
            if group not in self._groups:
                return
            del self._groups[group]
            self._version += 1
        self._changed.set()

    def close(self) -> None:
        """Leave all groups. May be called again."""
        self._closed.set()
        self._changed.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=TIMEOUT_S)

    def _run(self) -> None:
        while not self._closed.is_set():
            due = self._turn()
            self._changed.wait(max(due - time.monotonic(), 0.0))
            self._changed.clear()  # before looking: what happens from here on wakes again
        for session in self._sessions.values():
            if session.version >= 0:
                with contextlib.suppress(PenstockError):  # the client is closed, and its connections with it
                    self._stand(session.address, [], lambda _: None)

    def _turn(self) -> float:
        """Begin what is due; when there is more to do."""
        for name, session in self._sessions.items():
            if session.version >= 0 and session.future.done():
                self._fail(name, session, session.future.exception())
        with self._lock:
            groups, version = list(self._groups), self._version
        if not groups and not self._sessions:
            return time.monotonic() + LOOK_S  # nobody needs to know this client
        if time.monotonic() >= self._looks_at:
            self._look()
        due = self._looks_at
        for name, session in self._sessions.items():
            if session.version == version:
                continue
            if time.monotonic() >= session.begins_at:
                self._begin(name, session, groups, version)
            if session.version != version:
                due = min(due, session.begins_at)
        return due

    def _look(self) -> None:
        self._looks_at = time.monotonic() + LOOK_S
        try:
            shards = self._calls.directory.shards(TIMEOUT_S)
        except PenstockError as error:
            log.info("broker groups not known error=%s", error.message)
            return
        found = {name: master_of(shard) for name, shard in shards.items()}
        self._masters = {name: master.address for name, master in found.items() if master is not None}
        for name in shards:
            self._sessions.setdefault(name, _Session())

    def _begin(self, name: str, session: _Session, groups: list[str], version: int) -> None:
        """Have a request stand there. The broker ends the one before, unless it refuses this one."""
        address = self._masters.get(name)
        session.is_joined = False
        try:
            if address is None:
                raise BrokerUnavailable(f"broker group {name} has no living master")
            session.future = self._stand(address, groups, partial(self._take, name, session))
        except PenstockError as error:
            self._fail(name, session, error)
        else:
            session.address, session.version = address, version
            session.begins_at = time.monotonic() + CHANGE_S
            session.future.add_done_callback(lambda _: self._changed.set())

    def _stand(self, address: str, groups: list[str], take: Callable[[bytes], None]) -> Future[None]:
        request = JoinRequest(client_id=self._client_id, groups=groups, answers=self._answers).SerializeToString()
        # Whoever waits for a receipt may read meanwhile: a question is in no hurry.
        return self._calls.connections.stand(address, Method.JOIN, request, take, lambda: True)

    def _take(self, name: str, session: _Session, content: bytes) -> None:
        event = ProducerEvent.FromString(content)
        session.is_joined = True
        if event.WhichOneof("event") == "check" and not self._closed.is_set():
            self._on_question(name, halves_of(event.check, name))

    def _fail(self, name: str, session: _Session, error: BaseException | None) -> None:
        """Nothing stands there any more, or nothing could: another look for the master, and another try."""
        session.version = -1
        session.failures = 1 if session.is_joined else session.failures + 1
        session.begins_at = time.monotonic() + back_off_s(session.failures)
        self._looks_at = min(self._looks_at, session.begins_at)
        level = logging.WARNING if session.failures % LOG_EVERY == 2 else logging.DEBUG
        log.log(level, "producer session failed broker=%s error=%s", name, error)
