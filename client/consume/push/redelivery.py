"""What becomes of a message that its listener could not take."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.proto.errors import LaneForgotten, PenstockError
from penstock.proto.wire.retry_pb2 import SendBackRequest

from ...cluster import may_pass
from ...message import MessageQueue
from ..send_backs import SendBacks, parts
from .push_queue import Failed, Item, messages_of

log = logging.getLogger(__name__)

TRY_S = 3.0
PAUSE_S = 0.2
DEAD_LEVEL = -1
DEAD_LETTER_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Again:
    """Call the listener with it again here, ``after_s`` from now; the commit of its queue waits for it until then."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Done:
    """This consumer is done with it, because somebody else keeps it: the commit may pass it."""


Settle = Callable[[Sequence[Failed], Again | Done], None]
"""Tells what becomes of items; from any thread that holds no lock of the consumer's."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Whoever gets the item by ``take`` decides later; until then the commit waits."""

    take: Callable[[Failed, Settle], None]


class Redelivery(ABC):
    """Decides on each failure, in the thread of the listener and without any lock: it may ask a broker."""

    dropped = 0
    """Messages that nobody gets again; grows."""

    @abstractmethod
    def on_failure(self, item: Item, attempts: int) -> Again | Done | Pending:
        """What to do with ``item``, which has failed ``attempts`` times here by now."""

    def close(self, deadline_s: float) -> None:  # noqa: B027  most decide at once
        """Return when every decision is made, at ``deadline_s`` at the latest; no failure comes any more."""


class Local(Redelivery):
    """Every message stays here: tried again after each of ``delays_ms`` in turn, the last of which repeats."""

    def __init__(self, delays_ms: Sequence[int]) -> None:
        self._delays_ms = delays_ms

    def on_failure(self, item: Item, attempts: int) -> Again:
        return Again(self._delays_ms[min(attempts, len(self._delays_ms)) - 1] / 1000)


class Dropped(Local):
    """Tried again here ``tries`` times, then dropped: nobody else would take a message that all members get."""

    def __init__(self, delays_ms: Sequence[int], tries: int) -> None:
        super().__init__(delays_ms)
        self._tries = tries
        self._counting = threading.Lock()  # guards `dropped`: listeners run at once

    def on_failure(self, item: Item, attempts: int) -> Again | Done:  # type: ignore[override]
        if attempts <= self._tries:
            return super().on_failure(item, attempts)
        messages = messages_of(item)
        with self._counting:
            self.dropped += len(messages)
        log.warning(
            "messages dropped, their listener failed too often queue=%s offset=%d attempts=%d dropped=%d",
            *(messages[0].message_queue, messages[0].queue_offset, attempts, self.dropped),
        )
        return Done()


class InPlace(Local):
    """Tried again here ``tries`` times, the messages behind it waiting; then its broker makes it a dead letter."""

    def __init__(self, delays_ms: Sequence[int], tries: int, send_backs: SendBacks) -> None:
        super().__init__(delays_ms)
        self._tries = tries
        self._send_backs = send_backs
        self._unanswered: dict[MessageQueue, SendBackRequest] = {}  # to be made again; a queue has one worker

    def on_failure(self, item: Item, attempts: int) -> Again | Done:  # type: ignore[override]
        if attempts <= self._tries:
            return super().on_failure(item, attempts)
        messages = messages_of(item)
        queue, offsets = messages[0].message_queue, [each.queue_offset for each in messages]
        with self._send_backs.turn(queue.broker_name):
            request = self._unanswered.pop(queue, None)
            if request is None or list(request.offsets) != offsets:
                times = [each.reconsume_times for each in messages]
                request = self._send_backs.request(
                    queue, offsets, delay_level=DEAD_LEVEL, reconsume_times=times, is_queues_own=True
                )
            try:
                self._send_backs.make(queue.broker_name, request, DEAD_LETTER_TIMEOUT_S)
            except PenstockError as error:
                if may_pass(error):
                    self._unanswered[queue] = request
                log.warning("message is no dead letter yet queue=%s error=%s", queue, error.message)
                return super().on_failure(item, attempts)
        return Done()


class SendBack(Redelivery):
    """Every message goes back to its broker, which has it come again later or makes it a dead letter.

    Failures of one broker group are collected while a call is under way there, so many that fail make few calls. While
    no master answers they wait. What a broker refuses, has no record of any more, or cannot tell whether it took, stays
    here, as :class:`Local`.
    """

    def __init__(self, send_backs: SendBacks, local: Local, name: str) -> None:
        self._send_backs = send_backs
        self._local = local
        self._name = name
        self._changed = threading.Condition()  # guards what follows
        self._lines: dict[str, _Line] = {}  # by broker name
        self._undecided = 0
        self._is_closed = False

    def on_failure(self, item: Item, attempts: int) -> Pending:
        return Pending(self._take)

    def close(self, deadline_s: float) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._undecided, deadline_s - time.monotonic()):
                log.warning("messages were not sent back in time, they are delivered again count=%d", self._undecided)

    def _take(self, failed: Failed, settle: Settle) -> None:
        broker_name = failed.local.queue.broker_name
        with self._changed:
            self._undecided += 1
            line = self._lines.get(broker_name)
            if line is None:
                line = self._lines[broker_name] = _Line([], settle)
                name = f"penstock-send-back-{self._name}-{broker_name}"
                threading.Thread(target=self._work, args=(broker_name, line), name=name, daemon=True).start()
            line.waiting.append(failed)
            is_stuck = line.is_stuck
            self._changed.notify_all()
        if is_stuck:
            failed.keep()

    def _work(self, broker_name: str, line: _Line) -> None:
        with self._send_backs.turn(broker_name):
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: line.waiting or self._is_closed)
                    if not line.waiting:
                        return
                    taken, line.waiting = line.waiting, []
                by_queue: dict[MessageQueue, list[Failed]] = {}
                for failed in taken:
                    by_queue.setdefault(failed.local.queue, []).append(failed)
                for queue, items in by_queue.items():
                    self._give_back(queue, items, line)
                    with self._changed:
                        self._undecided -= len(items)
                        self._changed.notify_all()

    def _give_back(self, queue: MessageQueue, items: list[Failed], line: _Line) -> None:
        """Have items of one queue sent back, and tell what became of them."""
        wanted = [each for each in items if each.epoch == each.local.epoch]  # else nobody waits for them any more
        sizes = {each.queue_offset: each.size for failed in wanted for each in messages_of(failed.item)}
        kept: dict[int, str] = {}
        for offsets in parts(sizes):
            kept |= self._not_taken(queue, offsets, line, wanted)
        done = []
        for failed in items:
            if kept and any(each.queue_offset in kept for each in messages_of(failed.item)):
                line.settle([failed], self._local.on_failure(failed.item, failed.attempts + 1))
            else:
                done.append(failed)
        line.settle(done, Done())
        if kept and not self._is_closed:
            first = min(kept)
            log.warning(
                "messages were not taken back, tried again here queue=%s count=%d first_offset=%d because=%s",
                *(queue, len(kept), first, kept[first]),
            )

    def _not_taken(self, queue: MessageQueue, offsets: list[int], line: _Line, items: list[Failed]) -> dict[int, str]:
        """Send messages back; those that the broker refused, or has no record of, and why."""
        request = self._send_backs.request(queue, offsets)
        try:
            gone = self._make(queue.broker_name, line, request, items)
        except PenstockError as error:
            if len(offsets) == 1 or self._is_closed or isinstance(error, LaneForgotten):
                return dict.fromkeys(offsets, error.message)
            half = len(offsets) // 2  # they may be too many, or one of them may be the reason
            return self._not_taken(queue, offsets[:half], line, items) | self._not_taken(
                queue, offsets[half:], line, items
            )
        return dict.fromkeys(gone, "their records are gone")

    def _make(self, broker_name: str, line: _Line, request: SendBackRequest, items: list[Failed]) -> Sequence[int]:
        """The offsets that the broker has no records of; waits for a master as long as it takes.

        Raises:
            PenstockError: it will not do, or the consumer is closed.
        """
        while True:
            try:
                reply = self._send_backs.make(broker_name, request, TRY_S)
            except PenstockError as error:
                if not may_pass(error) or self._is_closed:
                    raise
                with self._changed:
                    is_new, line.is_stuck = not line.is_stuck, True
                    waiting = list(line.waiting)
                if is_new:
                    log.warning("messages wait to be sent back broker=%s error=%s", broker_name, error.message)
                    for failed in items + waiting:
                        failed.keep()
                time.sleep(PAUSE_S)
            else:
                line.is_stuck = False
                return reply.gone


@dataclass(slots=True)
class _Line:
    """What waits to be sent back to one broker group; guarded by the condition of its :class:`SendBack`."""

    waiting: list[Failed]
    settle: Settle
    is_stuck: bool = False  # no master answers; the line's thread writes it
