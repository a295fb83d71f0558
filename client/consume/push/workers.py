"""Threads that call a listener with the messages of the consumer's queues.

A worker takes several messages of one queue at a time, as many as it has lately done in about five milliseconds, so
that the locks cost nothing with fast listeners and nothing is taken in advance with slow ones. Workers with nothing
to do join a run that has lasted for a while: one slow message keeps one thread, not the messages behind it.

Where listeners are quick and messages come one by one, the thread that has read one calls the listener itself
(:mod:`.standing_in`).
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence

from ...statistics import Stopwatch
from ..local_queue import Buffers, Standing
from .outcomes import ConsumeResult, Failures, Listener, complaint, is_success
from .push_queue import Failed, Item, PushedQueue, Run, Slot, first_offset_of, items_of, redelivered
from .redelivery import Again, Done, Pending, Redelivery
from .standing_in import Role, StandingIn
from .worker_threads import WorkerThreads

log = logging.getLogger(__name__)

RUN_TARGET_S = 0.005
RUN_MESSAGES_MAX = 1000
HELP_AFTER_S = 0.02
SUSPENDED_RETRY_S = 0.2
WATCH_SHARE = 8
"""A listener is looked at so often before its time is over."""
CAME_LATE = "listener came back late, its result was ignored queue=%s"


class Workers:
    """The workers of one consumer.

    What becomes of a failed item is the ``redelivery``'s decision. While it waits for its next try the messages behind
    it go on and the queue's commit waits for it. Orderly: nothing behind it in its queue goes on.

    A listener that holds an item for longer than ``timeout_s`` has failed: another thread takes its thread's place, and
    what it says later counts no more. Not so with orderly ones, whose next message may not begin before.
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
        timeout_s: float,
        on_idle: Callable[[], None],
        fetch: Callable[[], Role],
    ) -> None:
        """``on_idle`` is called when the last work on a revoked queue has ended; it must not block.

        ``fetch`` makes the calling thread the one that fetches; it says what the thread does afterwards.
        """
        self._buffers = buffers
        self._lock = buffers.lock  # guards all fields below, and is what idle workers wait on
        # Several come as a list of the listener's own: what it does with that changes nothing of what is in work.
        self._listener: Listener = listener if batch_max == 1 else lambda messages: listener(list(messages))
        self._redelivery = redelivery
        self._batch_max = batch_max
        self._is_orderly = is_orderly
        self._timeout_s = timeout_s
        self._on_idle = on_idle
        self._fetch = fetch
        self._failures = Failures()
        self.failed = 0  # calls of the listener
        self.stopwatch = Stopwatch()  # of all of them
        self._run_messages = batch_max  # grows with what is done in RUN_TARGET_S
        self._later: list[tuple[float, int, Failed | Run]] = []  # a heap of what is tried again, and when
        self._numbers = itertools.count()  # so that the heap never compares jobs
        self._retries: dict[Failed, Slot] = {}  # in work
        self._active: list[Run] = []  # in work; an orderly run that waits for its next try is in _later instead
        self._is_closed = False
        self._threads = WorkerThreads(name, self.work, threads)
        self._standing_in = StandingIn(self._lock, self._threads.members, lambda: bool(buffers.ready))
        self._is_quick = False  # the listener, when it was called last

    def start(self) -> None:
        self._threads.start()

    def close(self, deadline_s: float, caller: threading.Thread | None = None) -> bool:
        """Begin nothing more and wait for what runs. Returns True if all of it ended before the deadline.

        ``caller``: a worker whose listener closes the consumer; it is not waited for.
        """
        with self._lock:
            self._is_closed = True
            self._standing_in.relieve()
            for local in self._buffers.queues.values():
                local.stop()
            self._lock.notify_all()
        late = self._threads.join(deadline_s, caller)
        if late:
            log.warning("listeners did not return in time, their messages are delivered again threads=%s", late)
        return not late

    def watch(self, now_s: float) -> float:
        """Take their items from listeners that hold them for too long; when to look again."""
        if self._is_orderly:
            return now_s + self._timeout_s
        with self._lock:
            has_room = self._threads.may_replace()
            active = [(run, slot) for run in self._active for slot in run.slots if has_room]
            overdue = [(run, slot) for run, slot in active if slot.is_overdue(now_s, self._timeout_s)]
            retries = [(failed, slot) for failed, slot in self._retries.items() if has_room]
            stuck = [(failed, slot) for failed, slot in retries if slot.is_overdue(now_s, self._timeout_s)]
        error = TimeoutError(f"no end after {self._timeout_s:g} s")
        for run, slot in overdue:
            assert slot.seen is not None
            self._note_failure(run, slot.seen, error, slot)
        for failed, slot in stuck:
            self._note_next_failure(failed, error, slot)
        return now_s + self._timeout_s / WATCH_SHARE

    def work_here(self) -> Role:
        """Do one run, if there is one, in the calling, fetching thread; else leave it to a worker."""
        with self._lock:
            may_work = self._is_quick and self._standing_in.has_place and not self._is_closed
            job = self._next_run(time.monotonic()) if may_work else None
            if job is None:
                if self._buffers.ready:
                    self._lock.notify()
                return Role.FETCH
            self._standing_in.leave()
        is_late = False
        try:
            is_late = self._carry_out(*job)
        except Exception:  # the run stays open, as when a worker ends by it; fetching goes on
            log.exception("work failed queue=%s", job[0].local.queue)
        with self._lock:
            if is_late:
                self._standing_in.relieve(threading.current_thread())
            if self._standing_in.come_back():
                return Role.FETCH
        return Role.END if is_late else Role.WORK

    # The workers' loop

    def work(self, job: Failed | tuple[Run, Slot] | Role | None = None) -> None:
        """What a worker does, ``job`` first, until the consumer is closed or another has its place."""
        while True:
            if job is None:
                with self._lock:
                    job = self._next_job()
            if isinstance(job, Failed):
                if self._try_again(job):
                    return
            elif isinstance(job, tuple):
                if self._carry_out(*job):
                    return
            elif job is Role.END or self._fetch() is Role.END:
                return
            job = None

    def _carry_out(self, run: Run, slot: Slot) -> bool:
        """Do a run, or what is left of it. True if the listener came back late: another has the thread's place."""
        slot.thread = threading.current_thread()
        is_done = self._perform_in_order(run, slot) if self._is_orderly else self._perform(run, slot)
        with self._lock:
            if slot.calls:
                self.stopwatch.add(slot.seconds / slot.calls, slot.calls)
                self._is_quick = slot.seconds < RUN_TARGET_S * slot.calls
            if slot.is_late:
                log.warning(CAME_LATE, run.local.queue)
                return True
            self._leave(run, slot, is_done)
        return False

    def _next_job(self) -> Failed | tuple[Run, Slot] | Role:
        """Something to do, waiting for it; END when closed. The lock is held, and free while waiting."""
        turns = -1
        while not self._is_closed:
            now_s = time.monotonic()
            job = self._due(now_s) or self._next_run(now_s) or self._help(now_s)
            if job is not None:
                return job
            is_idle = not self._later and not self._active
            if is_idle and self._is_quick and self._standing_in.is_wanted(turns):
                turns = self._standing_in.turns
                if self._standing_in.stand_by():
                    return Role.FETCH
                continue
            timeout_s = self._later[0][0] - now_s if self._later else None
            if self._active and not self._is_orderly:
                timeout_s = HELP_AFTER_S if timeout_s is None else min(timeout_s, HELP_AFTER_S)
            self._lock.wait(None if timeout_s is None else max(timeout_s, 0.001))
        return Role.END

    def _next_run(self, now_s: float) -> tuple[Run, Slot] | None:
        for local in self._buffers.take_turns():
            assert isinstance(local, PushedQueue)
            if self._is_orderly and (local.runs or local.former):
                continue  # the end of that run puts it in line again
            run = local.take(max(self._run_messages, self._batch_max))
            self._buffers.handed_out += run.messages
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
            has_failed, error = False, None
            try:
                outcome = listener(item)
                if outcome is not None and outcome is not ConsumeResult.SUCCESS:
                    has_failed, error = True, complaint(outcome)
            except BaseException as raised:  # noqa: BLE001  the listener's edge: a redelivery, and logged; sys.exit too
                has_failed, error = True, raised
            slot.finished = item
            if slot.is_late:  # perhaps: the watch may be in two minds
                with self._lock:
                    if slot.is_late:
                        slot.calls, slot.seconds = done, time.monotonic() - started_s
                        return False
            if has_failed:
                self._note_failure(run, item, error)
        self._adapt(slot, time.monotonic() - started_s, done)
        return True

    def _perform_in_order(self, run: Run, slot: Slot) -> bool:
        """Work until an item has to wait. Returns True if none has."""
        if not run.is_filled:
            self._fill(run)
        started_s = time.monotonic()
        done = 0
        item = run.pending or next(run.iterator, None)
        while item is not None:
            if not run.local.may_begin():  # revoked, or perhaps another member's by now
                run.pending, run.pause_s = item, SUSPENDED_RETRY_S
                slot.calls, slot.seconds = done, time.monotonic() - started_s
                return False
            slot.current = item
            done += 1
            failed, error = self._ask(item)
            if failed:
                run.attempts += 1
                self._log_failure(run.local, item, run.attempts, error)
                decision = self._redelivery.on_failure(item, run.attempts)
                assert not isinstance(decision, Pending), "what is behind it would wait for nobody"
                if isinstance(decision, Again):
                    run.pending, run.pause_s = redelivered(item, run.attempts), decision.after_s
                    slot.calls, slot.seconds = done, time.monotonic() - started_s
                    return False
            run.pending, run.attempts = None, 0
            item = next(run.iterator, None)
        self._adapt(slot, time.monotonic() - started_s, done)
        return True

    def _fill(self, run: Run) -> None:
        """Make the objects; outside of the lock, because it takes longest."""
        items = items_of(run.taken, run.local.queue, self._batch_max)
        with self._lock:
            run.fill(items)
            if run.epoch != run.local.epoch or run.local.standing is Standing.REVOKED or self._is_closed:
                run.cut()

    def _adapt(self, slot: Slot, seconds: float, items: int) -> None:
        slot.calls, slot.seconds = items, seconds
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
        return (False, None) if is_success(outcome) else (True, complaint(outcome))

    def _note_failure(self, run: Run, item: Item, error: BaseException | None, late: Slot | None = None) -> None:
        """``late``: where the listener still is at the item, so that another takes its place."""
        local = run.local
        self._log_failure(local, item, 1, error)
        decision = self._redelivery.on_failure(item, 1)
        failed = Failed(local, run.epoch, item)
        if isinstance(decision, Again):
            failed.for_next_try()
        with self._lock:
            is_current = run.epoch == local.epoch
            if is_current and not isinstance(decision, Done):
                local.add_failed(failed)
                self._buffers.held_bytes += failed.record_bytes
                if isinstance(decision, Again):
                    self._schedule(failed, decision)
                else:
                    local.retrying += 1
            if late is not None:
                self._replace(run, late)
        if is_current and isinstance(decision, Pending):
            decision.take(failed, self.settle)

    def _replace(self, run: Run, slot: Slot) -> None:
        """Let a new thread go on where a listener does not come back. The lock is held."""
        successor = None if self._is_closed else run.replace(slot)
        if successor is None:
            self._leave(run, slot, is_done=True)
        self._replace_thread(slot, (run, successor) if successor is not None else None)

    def _replace_thread(self, slot: Slot, job: tuple[Run, Slot] | None) -> None:
        assert slot.thread is not None
        self._standing_in.relieve(slot.thread)
        self._threads.replace(slot.thread, job, with_another=not self._is_closed)

    def _schedule(self, failed: Failed, again: Again) -> None:
        self._put_off(failed, time.monotonic() + again.after_s)
        self._lock.notify()

    def _try_again(self, failed: Failed) -> bool:
        """Call the listener with it once more. True if it came back late: another has the thread's place."""
        slot = Slot(failed.item)
        slot.thread = threading.current_thread()
        with self._lock:
            self._retries[failed] = slot
        started_s = time.monotonic()
        has_failed, error = self._ask(failed.item)
        slot.finished = slot.current
        with self._lock:
            self.stopwatch.add(time.monotonic() - started_s)
            if slot.is_late:
                log.warning(CAME_LATE, failed.local.queue)
                return True
            del self._retries[failed]
        if has_failed:
            self._note_next_failure(failed, error)
        else:
            self.settle([failed], Done())
        return False

    def _note_next_failure(self, failed: Failed, error: BaseException | None, late: Slot | None = None) -> None:
        """Of an item that was tried again; ``late`` as above."""
        self._log_failure(failed.local, failed.item, failed.attempts + 1, error)
        decision = self._redelivery.on_failure(failed.item, failed.attempts + 1)
        if late is not None:
            with self._lock:
                del self._retries[failed]
                self._replace_thread(late, None)
        if isinstance(decision, Pending):
            decision.take(failed, self.settle)
        else:
            self.settle([failed], decision)

    def settle(self, items: Sequence[Failed], decision: Again | Done) -> None:
        """What becomes of items that are being tried again, or were left to somebody else."""
        if isinstance(decision, Again):
            for failed in items:
                failed.for_next_try()
        with self._lock:
            for failed in items:
                local = failed.local
                local.retrying -= 1
                if failed.epoch == local.epoch:
                    if isinstance(decision, Again):
                        self._schedule(failed, decision)
                    else:
                        del local.failed[failed.offset]
                        self._buffers.finish(local, failed.record_bytes, failed.messages)
                self._after_work(local)

    def _after_work(self, local: PushedQueue) -> None:
        if local.standing is Standing.REVOKED and not local.is_busy():
            self._on_idle()

    def _log_failure(self, local: PushedQueue, item: Item, attempts: int, error: BaseException | None) -> None:
        with self._lock:
            self.failed += 1
        if error is not None or not self._is_closed:  # else it was interrupted: close has said whose work did not end
            self._failures.tell(local.queue, first_offset_of(item), attempts, error)
