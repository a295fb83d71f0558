"""One connection to a data port: what is asked over it, and the answers.

A stream breaks as a whole: everything under way on it is then unknown, except when no connection was made at all. A
*standing* request has any number of answers, until the broker refuses it or the stream breaks. A request of
:data:`ENDABLE` whose future is cancelled, or whose time is over, is ended at the broker.

A thread reads what comes on a stream. One that waits for an answer does so in its place, where nothing else is under
way: the answer then wakes the thread that wants it, not another that would have to tell it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from penstock.proto.data_frames import Kind, Method
from penstock.proto.errors import OutcomeUnknown, PenstockError, from_bytes
from penstock.proto.handshakes import NEVER_CONNECTED
from penstock.runtime.data.link import PING_S, SILENCE_S, DataLink, Frame, broken

from .retry import NEVER

log = logging.getLogger(__name__)

T = TypeVar("T")

REST_S = 0.05
"""A stream's own thread reads again when nobody else has for so long."""
LOOP_LIVES_S = 1.0
"""A stream whose answers an event loop reads looks so often whether that still lives."""
PATIENCE_S = 0.05
"""Who reads for an answer looks so often for one that is late, or came otherwise."""

OpenLink = Callable[[], DataLink]
"""Connects, which may take a while. Raises a PenstockError."""
Take = Callable[[bytes], T]
"""What an answer's content stands for. Called by the thread that reads answers: it may not block."""

ENDABLE: Final = frozenset({Method.RECEIVE})
"""A request of nothing ends the one of its number, so that what is answered is not lost with nobody to have it."""


class Awaited(Future[T]):
    """What a thread waits for that may read meanwhile."""

    stream: Stream
    is_left = False  # its thread waits, and somebody else reads; guarded by the stream's lock

    def result(self, timeout: float | None = None) -> T:
        """The answer; without ``timeout`` the calling thread reads the stream for it, unless somebody else does."""
        if timeout is None:
            self.stream.read_for(self)
        return super().result(timeout)


class Asked(NamedTuple):
    """A request that waits for its answer."""

    deadline: float  # NEVER: it stands
    future: Future[Any]
    take: Take[Any]
    is_attended: Callable[[], bool] = lambda: False
    """Of one that stands: True while who waits for its answers reads for them."""
    late: Take[object] | None = None
    """What takes an answer that comes when nobody waits for it any more."""


class Stream:
    """One stream until it breaks."""

    def __init__(self, address: str, open_link: OpenLink, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """``loop``: reads, while it lives; None: threads do."""
        self._address = address
        self._open_link = open_link
        self._loop = loop
        self._lock = threading.Lock()  # guards all of this, and the order in which is sent
        self._number = 0
        self._under_way: dict[int, Asked] = {}  # by number
        self._standing: dict[int, Asked] = {}  # likewise
        self._early: list[tuple[int, Method, bytes]] = []  # what was to be sent before there was a connection
        self._link: DataLink | None = None
        self._owes_since = NEVER  # when the first of what is under way was sent, or something came last
        self._pinged_at = 0.0
        self._is_broken = False
        self._left: set[Future[Any]] = set()  # threads wait for these, of standing requests, and somebody else reads
        self._is_resting = False  # the own thread waits for `_wanted`, and whoever awaits an answer reads
        self._wanted = threading.Event()
        self._reading = threading.Lock()  # held by whoever reads; taken before the other one. It guards what follows.
        self._patience_s: float | None = 0.0  # of the link
        self._reads = 0  # how often somebody read for an answer
        self._was_awaited = False  # the last answer, by its own waiting thread

    def begin(self) -> None:
        """Connect, in a thread of its own."""
        threading.Thread(target=self._run, name="penstock-data-answers", daemon=True).start()

    def send(self, method: Method, content: bytes, asked: Asked) -> bool:
        """Send a request. False if the stream is broken and nothing was sent."""
        with self._lock:
            if self._is_broken:
                return False
            number = self._number % 0xFFFFFFFF + 1
            while number in self._under_way or number in self._standing:  # numbers begin again
                number = number % 0xFFFFFFFF + 1
            self._number = number
            if not self._under_way and not self._standing:
                self._owes_since = time.monotonic()
            (self._standing if asked.deadline == NEVER else self._under_way)[number] = asked
            if isinstance(asked.future, Awaited):
                asked.future.stream = self
            elif self._is_resting:
                self._end_rest()
            if self._link is None:
                self._early.append((number, method, content))
            else:
                self._link.send(number, method, content)
        if method in ENDABLE:
            asked.future.add_done_callback(partial(self._on_done, number, method))
        return True

    def _on_done(self, number: int, method: Method, _: Future[Any]) -> None:
        """End the request at the broker, unless that has ended it."""
        with self._lock:
            if number not in self._under_way:
                return
            if self._link is not None:
                self._link.send(number, method)
                return
            self._early = [each for each in self._early if each[0] != number]
            del self._under_way[number]

    def look(self, now: float) -> float:
        """Fail what is not answered in time, and break a stream whose broker is silent; when to look again.

        Late answers are nobody's.
        """
        due, late = NEVER, []
        with self._lock:
            for number, asked in self._under_way.items():
                if asked.future.done():
                    continue
                if asked.deadline <= now:
                    late.append((number, asked.future))
                else:
                    due = min(due, asked.deadline)
            if late and self._link is None:
                numbers = {number for number, _ in late}
                self._early = [each for each in self._early if each[0] not in numbers]
                for number in numbers:  # no answer will come
                    del self._under_way[number]
            link, owes = self._link, bool(self._under_way or self._standing)
            heard_at = link.heard_at if link is not None else now
            silent_s = now - max(self._owes_since, heard_at)
            is_due = silent_s >= PING_S or (self._standing and now - self._pinged_at >= PING_S)
            if link is not None and owes and is_due and silent_s < SILENCE_S:
                link.send(self._number, Method.PING)
                self._pinged_at = now
        for _, future in late:
            unanswered = OutcomeUnknown(f"broker {self._address}: no answer within the time-out")
            _fail(future, self._not_sent() if link is None else unanswered)
        # What has come may not be read yet, or have been read just now.
        if silent_s >= SILENCE_S and owes and (link is None or not (link.has_unread() or link.heard_at != heard_at)):
            self._break(broken(self._address, f"silent for {silent_s:.1f} s"))
        return min(due, now + PING_S) if owes else due

    def end(self) -> None:
        """Break it from here."""
        self._break(broken(self._address, "cancelled here", "CANCELLED"), unsent=self._not_sent())

    def _broken_by(self, error: Exception) -> PenstockError:
        if isinstance(error, PenstockError):
            return error
        log.error("stream failed broker=%s", self._address, exc_info=error)
        return broken(self._address, f"reading failed: {error!r}", "UNKNOWN")

    def _not_sent(self) -> PenstockError:
        return broken(self._address, f"{NEVER_CONNECTED}, in time")

    def _run(self) -> None:
        try:
            link = self._open_link()
        except Exception as error:  # noqa: BLE001  told to all who wait, and logged
            self._break(self._broken_by(error))
            return
        link.begin_to_receive(self._patience_s)
        try:
            with self._lock:
                for number, method, content in self._early:
                    link.send(number, method, content)
                self._early.clear()
                self._link = link
                self._owes_since = self._pinged_at = time.monotonic()
            if self._loop is not None:
                self._leave_to(self._loop, link)
            while not self._is_broken:
                with self._reading:
                    self._read(link, 0.0)
                self._rest()
        except Exception as error:  # noqa: BLE001  told to all who wait, and logged
            self._break(self._broken_by(error))
        finally:
            link.close()
            with self._reading:
                link.leave()

    def _leave_to(self, loop: asyncio.AbstractEventLoop, link: DataLink) -> None:
        """Have the loop read until the stream breaks, or the loop is closed."""
        has_left = threading.Event()

        def leave() -> None:
            link.unwatch(loop)
            has_left.set()

        self._patience_s = None
        link.begin_to_receive(None)
        with contextlib.suppress(RuntimeError):  # it is closed
            loop.call_soon_threadsafe(link.watch, loop, partial(self._read, link, None))
            while not self._is_broken and not loop.is_closed():
                self._wanted.wait(LOOP_LIVES_S)
            loop.call_soon_threadsafe(leave)
            while not has_left.wait(LOOP_LIVES_S) and not loop.is_closed():
                log.debug("the event loop is busy broker=%s", self._address)
        self._loop = None

    def read_for(self, future: Awaited[Any]) -> None:
        """Read until ``future`` is done, unless somebody else reads."""
        if not self._reads_until(future, NEVER):
            with self._lock:  # who reads then looks for it before it rests, or behind its last read
                future.is_left = True
                self._have_reader()

    def wait(self, future: Future[T], timeout_s: float) -> T:
        """The result of ``future``, of a standing request; read for it, unless somebody else does.

        Raises:
            TimeoutError: no answer came in time. What else the future has.
        """
        deadline = time.monotonic() + timeout_s
        if not future.done() and not self._reads_until(future, deadline):
            with self._lock:  # as above
                self._left.add(future)
                self._have_reader()
        try:
            return future.result(max(deadline - time.monotonic(), 0.0))
        finally:
            if self._left:
                with self._lock:
                    self._left.discard(future)

    def _have_reader(self) -> None:
        """The lock is held."""
        if self._is_resting and not self._reading.locked():
            self._end_rest()

    def _reads_until(self, future: Future[Any], deadline: float) -> bool:
        """Read until ``future`` is done, or it is too late. False: somebody else reads, or there is no connection."""
        link = self._link
        if link is None or self._loop is not None or not self._reading.acquire(blocking=False):
            return False
        try:
            self._reads += 1
            while not future.done() and not self._is_broken:
                self._read(link, PATIENCE_S, polls=deadline == NEVER)  # what stands may be answered much later
                if deadline != NEVER and time.monotonic() >= deadline:
                    break
        finally:
            self._reading.release()
            with self._lock:
                if self._is_resting and (self._under_way or not self._is_attended()):
                    self._end_rest()
        return True

    def _is_attended(self) -> bool:
        """True if nobody waits for an answer of a standing request while another reads. The lock is held."""
        if not self._left and not self._standing:
            return True
        if not all(future.done() for future in self._left):
            return False
        return all(asked.is_attended() for asked in self._standing.values())

    def _read(self, link: DataLink, patience_s: float | None, *, polls: bool = False) -> None:
        """Settle what has come; where that fails, the stream is broken."""
        try:
            if patience_s != self._patience_s:
                self._patience_s = patience_s
                link.begin_to_receive(patience_s)
            for frame in link.receive(polls=polls):
                self._settle(frame)
        except Exception as error:  # noqa: BLE001  told to all who wait, and logged
            self._break(self._broken_by(error))
        except BaseException:
            self._break(broken(self._address, "reading was interrupted", "CANCELLED"))
            raise

    def _rest(self) -> None:
        """Let those read who wait for answers, while one after the other does."""
        with self._lock:
            rest = [asked.future for asked in self._under_way.values()]
            is_alone = not rest or (len(rest) == 1 and isinstance(rest[0], Awaited) and not rest[0].is_left)
            if not (self._was_awaited and is_alone and self._is_attended()) or self._is_broken:
                return
            self._is_resting = True
            self._wanted.clear()
        reads = -1
        while self._reads != reads:
            reads = self._reads
            if self._wanted.wait(REST_S):
                return
        with self._lock:
            self._is_resting = False

    def _end_rest(self) -> None:
        self._is_resting = False
        self._wanted.set()

    def _break(self, error: PenstockError, *, unsent: PenstockError | None = None) -> None:
        """Fail all that is under way; with ``unsent`` if there was no connection yet."""
        with self._lock:
            self._is_broken = True
            if unsent is not None and self._link is None:
                error = unsent
            rest = [asked.future for asked in (*self._under_way.values(), *self._standing.values())]
            self._under_way.clear()
            self._standing.clear()
            self._early.clear()
            link = self._link
            self._end_rest()
        if link is not None:
            link.close()
        for future in rest:
            _fail(future, error)

    def _settle(self, frame: Frame) -> None:
        if frame.method == Method.PING:
            return
        asked = None
        try:
            with self._lock:
                asked = self._under_way.get(frame.number)
                if asked is not None:
                    del self._under_way[frame.number]
                elif self._standing:
                    asked = self._standing.get(frame.number)
                    if asked is not None and (frame.kind == Kind.ERROR or asked.future.done()):
                        del self._standing[frame.number]
            self._hand_over(asked, frame)
        except BaseException:  # an interrupt: nobody else knows of it
            if asked is not None:
                _fail(asked.future, broken(self._address, "reading was interrupted", "CANCELLED"))
            raise

    def _hand_over(self, asked: Asked | None, frame: Frame) -> None:
        self._was_awaited = asked is not None and isinstance(asked.future, Awaited)
        if asked is None:
            log.debug("an answer came that nobody waits for")
        elif not asked.future.done():
            self._take(asked, frame)
        elif asked.late is not None and frame.kind != Kind.ERROR:
            asked.late(frame.content)

    def _take(self, asked: Asked, frame: Frame) -> None:
        is_error = frame.kind == Kind.ERROR
        try:
            found = from_bytes(frame.content) if is_error else asked.take(frame.content)
        except Exception as error:
            log.error("answer not understood broker=%s", self._address, exc_info=error)
            _fail(asked.future, broken(self._address, f"its answer is not understood: {error!r}", "UNKNOWN"))
            return
        if is_error:
            _fail(asked.future, found)
        elif asked.deadline != NEVER and not _complete(asked.future, found) and asked.late is not None:
            asked.late(frame.content)


def _complete(future: Future[T], found: T) -> bool:
    try:
        future.set_result(found)
    except InvalidStateError:
        log.debug("an answer came after its time-out")
        return False
    return True


def _fail(future: Future[Any], error: PenstockError) -> None:
    try:
        future.set_exception(error)
    except InvalidStateError:
        log.debug("an error came after the time-out: %s", error)
