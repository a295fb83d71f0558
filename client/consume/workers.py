"""Threads that call a listener with the messages of the consumer's queues.

A worker takes several messages of one queue at a time, as many as it has lately done in about five milliseconds, so
that the locks cost nothing with fast listeners and nothing is taken in advance with slow ones. Workers with nothing
to do join a run that has lasted for a while: one slow message keeps one thread, not the messages behind it.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import logging
import reprlib
import threading
import time
from collections.abc import Callable
from itertools import repeat
from typing import Any

from penstock.proto.errors import InvalidArgument

from ..message import MessageView
from .local_queue import Buffers, Standing
from .push_queue import Failed, Item, PushedQueue, Run, Slot, first_offset_of, redelivered
from .redelivery import Again, Redelivery

log = logging.getLogger(__name__)

RUN_TARGET_S = 0.005
RUN_MESSAGES_MAX = 1000
HELP_AFTER_S = 0.02
SUSPENDED_RETRY_S = 0.2

Listener = Callable[[Any], Any]


class ConsumeResult(enum.Enum):
    """What a listener says about a message. Nothing at all (``None``) means success; anything else is an error."""

    SUCCESS = "success"
    RETRY_LATER = "retry_later"


class Workers:
    """The workers of one consumer.

    What becomes of a failed item is the ``redelivery``'s decision. While it waits for its next try the messages behind
    it go on and the queue's commit waits for it. Orderly: nothing behind it in its queue goes on.
    """

    def __init__(
        self,
        buffers: Buffers,
        listener: Listener,
        redelivery: Redelivery,
        *,
        name: str,
        threads: int,
        batch_max: int,
        is_orderly: bool,
        on_idle: Callable[[], None],
    ) -> None:
        """``on_idle`` is called when the last work on a revoked queue has ended; it must not block."""
        self._buffers = buffers
        self._lock = buffers.lock  # guards all fields below, and is what idle workers wait on
        self._listener = listener
        self._redelivery = redelivery
        self._batch_max = batch_max
        self._is_orderly = is_orderly
        self._on_idle = on_idle
        self._run_messages = batch_max  # grows with what is done in RUN_TARGET_S
        self._later: list[tuple[float, int, Failed | Run]] = []  # a heap of what is tried again, and when
        self._numbers = itertools.count()  # so that the heap never compares jobs
        self._active: list[Run] = []  # in work; an orderly run that waits for its next try is in _later instead
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"penstock-consume-{name}-{index}", daemon=True)
            for index in range(threads)
        ]

    def start(self) -> None:
        """Begin to call the listener."""
        for thread in self._threads:
            thread.start()

    def close(self, deadline_s: float) -> bool:
        """Begin nothing more and wait for what runs. Returns True if all of it ended before the deadline."""
        with self._lock:
            self._is_closed = True
            for local in self._buffers.queues.values():
                local.stop()
            self._lock.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=max(deadline_s - time.monotonic(), 0.01))
        me = threading.current_thread()  # a listener may close its consumer
        late = [thread.name for thread in self._threads if thread.is_alive() and thread is not me]
        if late:
            log.warning("listeners did not return in time, their messages are delivered again threads=%s", late)
        return not late

    # The workers' loop

    def _work(self) -> None:
        while True:
            with self._lock:
                job = self._next_job()
            if job is None:
                return
            if isinstance(job, Failed):
                self._try_again(job)
                continue
            run, slot = job
            is_done = self._perform_in_order(run, slot) if self._is_orderly else self._perform(run, slot)
            with self._lock:
                self._leave(run, slot, is_done)

    def _next_job(self) -> Failed | tuple[Run, Slot] | None:
        """Something to do, waiting for it; ``None`` when closed. The lock is held, and free while waiting."""
        while not self._is_closed:
            now_s = time.monotonic()
            job = self._due(now_s) or self._next_run(now_s) or self._help(now_s)
            if job is not None:
                return job
            timeout_s = self._later[0][0] - now_s if self._later else None
            if self._active and not self._is_orderly:
                timeout_s = HELP_AFTER_S if timeout_s is None else min(timeout_s, HELP_AFTER_S)
            self._lock.wait(None if timeout_s is None else max(timeout_s, 0.001))
        return None

    def _next_run(self, now_s: float) -> tuple[Run, Slot] | None:
        for local in self._buffers.take_turns():
            assert isinstance(local, PushedQueue)
            if self._is_orderly and local.runs:
                continue  # the end of that run puts it in line again
            run = local.take(max(self._run_messages, self._batch_max))
            run.started_s = now_s
            self._active.append(run)
            if not self._is_orderly:
                self._buffers.make_ready(local)
            return run, run.slots[0]
        return None

    def _help(self, now_s: float) -> tuple[Run, Slot] | None:
        if not self._is_orderly:
            for run in self._active:
                if now_s - run.started_s > HELP_AFTER_S and run.left() > 0:
                    return run, run.enter()
        return None

    def _due(self, now_s: float) -> Failed | tuple[Run, Slot] | None:
        while self._later and self._later[0][0] <= now_s:
            _, _, job = heapq.heappop(self._later)
            local = job.local
            is_current = job.epoch == local.epoch and self._buffers.queues.get(local.queue) is local
            if not is_current or local.standing is Standing.REVOKED:
                continue
            if local.standing is not Standing.OWNED:
                self._put_off(job, now_s + SUSPENDED_RETRY_S)
                continue
            if isinstance(job, Run):
                self._active.append(job)
                return job, job.enter()
            local.retrying += 1
            return job
        return None

    def _put_off(self, job: Failed | Run, when_s: float) -> None:
        heapq.heappush(self._later, (when_s, next(self._numbers), job))

    # Calling the listener, without the lock

    def _perform(self, run: Run, slot: Slot) -> bool:
        if not run.is_filled:
            self._fill(run)
        listener = self._listener
        started_s = time.monotonic()
        done = 0
        for item in run.iterator:
            slot.current = item
            done += 1
            try:
                outcome = listener(item)
                if outcome is None or outcome is ConsumeResult.SUCCESS:
                    continue
                error = _complaint(outcome)
            except BaseException as raised:  # noqa: BLE001  the listener's edge: a redelivery, and logged; sys.exit too
                error = raised
            self._note_failure(run, item, error)
        self._adapt(time.monotonic() - started_s, done)
        return True

    def _perform_in_order(self, run: Run, slot: Slot) -> bool:
        """Work until an item has to wait. Returns True if none has."""
        if not run.is_filled:
            self._fill(run)
        started_s = time.monotonic()
        done = 0
        item = run.pending or next(run.iterator, None)
        while item is not None:
            slot.current = item
            done += 1
            failed, error = self._ask(item)
            if failed:
                run.attempts += 1
                self._log_failure(run.local, item, run.attempts, error)
                decision = self._redelivery.on_failure(item, run.attempts)
                if isinstance(decision, Again):
                    run.pending, run.pause_s = redelivered(item, run.attempts), decision.after_s
                    return False
            run.pending, run.attempts = None, 0
            item = next(run.iterator, None)
        self._adapt(time.monotonic() - started_s, done)
        return True

    def _fill(self, run: Run) -> None:
        """Make the objects; outside of the lock, because it takes longest."""
        batch, indexes = run.taken.batch, run.taken.indexes
        views = list(map(MessageView, repeat(batch), indexes, repeat(run.local.queue.broker_name)))
        size = self._batch_max
        items: list[Item] = [*views] if size == 1 else [views[at : at + size] for at in range(0, len(views), size)]
        with self._lock:
            run.fill(items)
            if run.epoch != run.local.epoch or run.local.standing is Standing.REVOKED or self._is_closed:
                run.cut()

    def _adapt(self, seconds: float, items: int) -> None:
        if items:
            fitting = int(RUN_TARGET_S / max(seconds / items, 1e-7)) * self._batch_max
            self._run_messages = max(self._batch_max, min(fitting, self._run_messages * 2, RUN_MESSAGES_MAX))

    def _leave(self, run: Run, slot: Slot, is_done: bool) -> None:
        local = run.local
        is_over = local.leave(run, slot) if is_done else self._suspend(run, slot)
        if is_over:
            if run in self._active:
                self._active.remove(run)
            self._buffers.finish(local, run.record_bytes, run.messages)
            self._buffers.make_ready(local)
        self._after_work(local)

    def _suspend(self, run: Run, slot: Slot) -> bool:
        """Orderly mode: keep the failed item first and pause the run.

        Returns True if the run ends instead, because the queue went to another member or the consumer closes.
        """
        local = run.local
        self._active.remove(run)
        if run.epoch != local.epoch or local.standing is Standing.REVOKED or self._is_closed:
            run.cut()
            return local.leave(run, slot)
        run.slots.remove(slot)
        self._put_off(run, time.monotonic() + run.pause_s)
        return False

    # Failures

    def _ask(self, item: Item) -> tuple[bool, BaseException | None]:
        """Call the listener. Returns (True, the error if it raised one) if it could not take the item."""
        try:
            outcome = self._listener(item)
        except BaseException as raised:  # noqa: BLE001  the listener's edge, as above
            return True, raised
        if outcome is None or outcome is ConsumeResult.SUCCESS:
            return False, None
        return True, _complaint(outcome)

    def _note_failure(self, run: Run, item: Item, error: BaseException | None) -> None:
        local = run.local
        self._log_failure(local, item, 1, error)
        decision = self._redelivery.on_failure(item, 1)
        if not isinstance(decision, Again):
            return
        failed = Failed(local, run.epoch, item)
        failed.for_next_try()
        with self._lock:
            if run.epoch != local.epoch:
                return
            local.add_failed(failed)
            self._buffers.held_bytes += failed.record_bytes
            self._schedule(failed, decision)

    def _schedule(self, failed: Failed, again: Again) -> None:
        self._put_off(failed, time.monotonic() + again.after_s)
        self._lock.notify()

    def _try_again(self, failed: Failed) -> None:
        local, item = failed.local, failed.item
        has_failed, error = self._ask(item)
        again: Again | None = None
        if has_failed:
            failed.for_next_try()
            self._log_failure(local, item, failed.attempts, error)
            decision = self._redelivery.on_failure(item, failed.attempts)
            again = decision if isinstance(decision, Again) else None
        with self._lock:
            local.retrying -= 1
            if failed.epoch == local.epoch:
                if again is None:
                    del local.failed[failed.offset]
                    self._buffers.finish(local, failed.record_bytes, failed.messages)
                else:
                    self._schedule(failed, again)
            self._after_work(local)

    def _after_work(self, local: PushedQueue) -> None:
        if local.standing is Standing.REVOKED and not local.is_busy():
            self._on_idle()

    def _log_failure(self, local: PushedQueue, item: Item, attempts: int, error: BaseException | None) -> None:
        if self._is_closed and error is None:
            return  # it was interrupted: close has said whose work did not end
        # The trace once: the tries after it fail in the same way most of the time.
        trace = error if attempts == 1 else None
        log.warning(
            "listener failed, tried again later queue=%s offset=%d attempts=%d error=%r",
            local.queue,
            first_offset_of(item),
            attempts,
            error or ConsumeResult.RETRY_LATER,
            exc_info=trace,
        )


def _complaint(outcome: object) -> BaseException | None:
    """The error in a listener's answer that is not success, or None for RETRY_LATER.

    An answer of another kind says nothing about the message, so it comes again, as after RocketMQ's null.
    """
    if outcome is ConsumeResult.RETRY_LATER:
        return None
    return InvalidArgument(
        f"the listener returned {reprlib.repr(outcome)}: it must return ConsumeResult.SUCCESS, RETRY_LATER or None"
    )
