"""Ends of transactions on their way to brokers: those that come together share a request."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.proto.errors import PenstockError
from penstock.proto.wire.transactions_pb2 import EndReply, EndRequest, Resolution

from .ranges import Ranges

log = logging.getLogger(__name__)

Ask = Callable[[str, EndRequest, float], object]
"""Has the broker, by name, do what the request says within so many seconds; raises a PenstockError."""

Start = Callable[[str, EndRequest], Future[EndReply]]
"""The same without waiting for the answer."""

ENDS_MAX: Final = 256
"""Ends of one request."""
LINGER_S: Final = 0.005
"""Ends that nobody waits for are so long collected: a broker has little more work with some of them than with one."""
BUSY_ENDS: Final = 3
BUSY_LINGER_S: Final = 0.015
"""Where so many came meanwhile, others follow soon: all are collected for so much longer."""
HANDED_OVER_MAX: Final = 4096
"""Of them that are not answered; beyond it whoever ends waits."""
LOG_EVERY: Final = 100


class _Line(NamedTuple):
    """What ends of one request have in common."""

    broker_name: str
    resolution: Resolution
    is_answer: bool


class _End:
    """One that waits for others to take it along, or to leave it the turn. The lock of :class:`Ends` guards it."""

    __slots__ = ("halves", "is_done", "is_first", "is_taken", "woken")

    def __init__(self, halves: Ranges) -> None:
        self.halves = halves
        self.woken = threading.Event()
        self.is_taken = False  # it is in a request that is under way, or was
        self.is_done = False  # that request was answered
        self.is_first = False  # it is this one's turn to ask


class Ends:
    """Asks brokers to decide about halves. Thread-safe.

    One request of a line is under way at a time. Who comes meanwhile waits, and the first of those who wait asks for
    all of them next: so many threads that end small transactions cost a broker few requests, and one alone waits for
    nobody. Brokers do a request as a whole or not at all: where a shared one fails, each of its ends asks by itself,
    and has an error of its own.
    """

    def __init__(self, group: str, ask: Ask) -> None:
        self._group = group
        self._ask = ask
        self._lock = threading.Lock()
        self._waiting: dict[_Line, list[_End]] = {}  # with a key for each line whose turn somebody has

    def end(
        self, broker_name: str, halves: Ranges, resolution: Resolution, timeout_s: float, *, is_answer: bool = False
    ) -> None:
        """Return when the broker has decided so. Raises PenstockError: as :data:`Ask` does."""
        deadline = time.monotonic() + timeout_s
        line, mine = _Line(broker_name, resolution, is_answer), _End(halves)
        try:
            if not self._has_turn(line, mine):
                self._wait(line, mine, timeout_s)
            is_done = mine.is_done or (mine.is_first and self._ask_with_others(line, mine, deadline))
        finally:
            if mine.is_first:
                self._pass_on(line)
        if not is_done:
            self._request(line, halves, deadline)

    def _has_turn(self, line: _Line, mine: _End) -> bool:
        with self._lock:
            waiting = self._waiting.get(line)
            if waiting is None:
                self._waiting[line] = []
                mine.is_first = True
            else:
                waiting.append(mine)
        return mine.is_first

    def _wait(self, line: _Line, mine: _End, timeout_s: float) -> None:
        """Until it was taken along, or has the turn, or the time is up."""
        try:
            mine.woken.wait(timeout_s)
        finally:
            with self._lock:
                if not mine.is_first and not mine.is_taken:
                    self._waiting[line].remove(mine)

    def _ask_with_others(self, line: _Line, mine: _End, deadline: float) -> bool:
        """True if the broker has decided for this one, and for those that wait. Raises where it is alone."""
        with self._lock:
            waiting = self._waiting[line]
            taken = waiting[: ENDS_MAX - 1]
            del waiting[: len(taken)]
            for each in taken:
                each.is_taken = True
        if not taken:
            self._request(line, mine.halves, deadline)
            return True
        is_done = False
        try:
            self._request(line, Ranges.joined([mine.halves, *(each.halves for each in taken)]), deadline)
            is_done = True
        except PenstockError as error:
            log.debug("ends of transactions were refused together, each asks by itself error=%s", error)
        finally:
            for each in taken:
                each.is_done = is_done
                each.woken.set()
        return is_done

    def _pass_on(self, line: _Line) -> None:
        """Leave the turn to the first who waits."""
        with self._lock:
            waiting = self._waiting[line]
            if not waiting:
                del self._waiting[line]
                return
            following = waiting.pop(0)
            following.is_first = True
        following.woken.set()

    def _request(self, line: _Line, halves: Ranges, deadline: float) -> None:
        for request in halves.requests(self._group, line.resolution, is_answer=line.is_answer):
            self._ask(line.broker_name, request, max(deadline - time.monotonic(), 0.0))


class HandedOver:
    """Ends that nobody waits for. Thread-safe.

    One that fails is lost: it is counted and logged, and the broker asks about its half, when it is due, as about any
    that is undecided. Where a shared request is refused, each of its ends asks once more by itself.
    """

    def __init__(self, group: str, start: Start) -> None:
        self.lost = 0
        self._group = group
        self._start = start
        self._changed = threading.Condition()  # guards what follows, and `lost`
        self._waiting: dict[_Line, list[Ranges]] = {}  # to be sent together
        self._unanswered = 0  # those that wait and those that were sent
        self._hurries = False  # somebody waits all the same for what is to be sent
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def end(self, broker_name: str, halves: Ranges, resolution: Resolution) -> bool:
        """Have the broker decide so, soon. False: there is no room, ask it and wait."""
        line = _Line(broker_name, resolution, False)
        with self._changed:
            if self._is_closed or self._unanswered >= HANDED_OVER_MAX:
                return False
            self._unanswered += 1
            if not self._waiting:
                self._changed.notify_all()
            self._waiting.setdefault(line, []).append(halves)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="penstock-transaction-ends", daemon=True)
                self._thread.start()
        return True

    def settle(self, timeout_s: float) -> bool:
        """Send those that wait now, and wait for the answers. False: some are still to come."""
        with self._changed:
            self._hurries = bool(self._waiting)
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._unanswered, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Settle, and take no more. May be called again."""
        self.settle(timeout_s)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                if not self._is_hurried(LINGER_S) and sum(map(len, self._waiting.values())) >= BUSY_ENDS:
                    self._is_hurried(BUSY_LINGER_S)
                taken, self._waiting, self._hurries = self._waiting, {}, False
            for line, ends in taken.items():
                for at in range(0, len(ends), ENDS_MAX):
                    self._send(line, ends[at : at + ENDS_MAX])

    def _is_hurried(self, seconds: float) -> bool:
        """Collect for so long; True if somebody wants all to be sent before. The lock is held, but not meanwhile."""
        return self._changed.wait_for(lambda: self._hurries or self._is_closed, seconds)

    def _send(self, line: _Line, ends: list[Ranges]) -> None:
        futures: list[Future[Any]] = []
        try:
            for request in Ranges.joined(ends).requests(self._group, line.resolution):
                futures.append(self._start(line.broker_name, request))
        except Exception as error:  # noqa: BLE001  one thread sends for all: also what nobody foresees is lost, and told
            self._on_lost(line, len(ends), error)
            return
        assert len(futures) == 1, "so few halves are one request"
        futures[0].add_done_callback(partial(self._on_answer, line, ends))

    def _on_answer(self, line: _Line, ends: list[Ranges], answer: Future[EndReply]) -> None:
        error = answer.exception()
        if error is None:
            self._count_down(len(ends))
        elif len(ends) > 1 and isinstance(error, PenstockError) and not error.retryable:
            for each in ends:
                self._send(line, [each])
        else:
            self._on_lost(line, len(ends), error)

    def _on_lost(self, line: _Line, count: int, error: BaseException) -> None:
        is_told = self.lost // LOG_EVERY != (self.lost + count) // LOG_EVERY or not self.lost
        self._count_down(count, lost=count)
        log.log(
            logging.WARNING if is_told else logging.DEBUG,
            "ends of transactions were lost, the broker will ask broker=%s count=%d lost=%d error=%s",
            *(line.broker_name, count, self.lost, error),
        )

    def _count_down(self, count: int, lost: int = 0) -> None:
        with self._changed:
            self.lost += lost
            self._unanswered -= count
            if not self._unanswered:
                self._changed.notify_all()
