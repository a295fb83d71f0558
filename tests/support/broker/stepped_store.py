"""A store without threads: what they would do happens when the test says so, so that a seed repeats a run exactly.

The buffers are made small as well, so that a few messages fill them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar
from unittest import mock

from penstock.broker.store import Store, dispatch
from penstock.broker.store import store as store_module
from penstock.broker.store.index import index_file
from penstock.broker.store.log import log_file, placement, prefault
from penstock.broker.store.log.commit import Committer
from penstock.broker.store.log.flush import Checkpointer, Flusher
from penstock.broker.store.queues import consume_queue, slots
from penstock.broker.store.recovery import log_recovery, truncation

T = TypeVar("T")


class SteppedFlusher(Flusher):
    """Syncs in the caller's thread, when :meth:`step` is called."""

    def start(self) -> None:
        """No thread."""

    def step(self) -> None:
        """What the thread does when somebody has asked."""
        if self._asked > self.flushed_offset and self.failure is None:
            self._sync()

    def flush(self, timeout_s: float | None = None) -> None:
        self.request(self.commit())
        self.step()
        if self.failure is not None:
            raise self.failure


class SteppedCommitter(Committer):
    """Commits in the caller's thread, when :meth:`step` is called."""

    def start(self) -> None:
        """No thread."""

    def step(self) -> None:
        """What the thread does when somebody has asked."""
        self._work()


class SteppedCheckpointer(Checkpointer):
    """Never writes a checkpoint by itself."""

    def start(self) -> None:
        """No thread."""


class LateFuture(Future[T]):
    """Done when its result is asked for, or :func:`run_background` comes by."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__()
        self.work: Callable[[], T] | None = work

    def run(self) -> None:
        work, self.work = self.work, None
        if work is None:
            return
        try:
            self.set_result(work())
        except Exception as error:  # BaseException is the power cut, which ends everything
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> T:
        self.run()
        return super().result(timeout)


class LateExecutor:
    """A ``ThreadPoolExecutor`` without threads, and so without an initializer for them."""

    waiting: list[LateFuture[Any]] = []  # noqa: RUF012  of all executors

    def __init__(self, max_workers: int, thread_name_prefix: str = "", initializer: object = None) -> None:
        pass

    def submit(self, work: Callable[..., T], *args: object) -> LateFuture[T]:
        future: LateFuture[T] = LateFuture(lambda: work(*args))
        self.waiting.append(future)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass


def run_background() -> None:
    """Do what was given to executors and is not done yet."""
    waiting, LateExecutor.waiting = LateExecutor.waiting, []
    for future in waiting:
        future.run()


def forget_background() -> None:
    """The process is gone, and with it what it would have done."""
    LateExecutor.waiting = []


@contextlib.contextmanager
def stepped_stores(*, arena_entries: int = 3) -> Iterator[None]:
    """Stores opened inside have no threads, and buffers for a few entries."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (store_module, "Flusher", SteppedFlusher),
            (store_module, "Committer", SteppedCommitter),
            (store_module, "Checkpointer", SteppedCheckpointer),
            (log_file, "ThreadPoolExecutor", LateExecutor),
            (consume_queue, "ThreadPoolExecutor", LateExecutor),
            (prefault, "ThreadPoolExecutor", LateExecutor),
            (consume_queue, "ARENA_MAX", arena_entries),
            (placement, "ROWS_AT_ONCE", 4),
            (truncation, "ROWS_AT_ONCE", 4),
            (log_recovery, "ROWS_AT_ONCE", 4),
            (slots, "_FIRST_CAPACITY", 4),
            (dispatch, "_ROWS_FIRST", 4),
            (index_file, "_BUFFERED", 5),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        try:
            yield
        finally:
            forget_background()


def flusher_of(store: Store) -> SteppedFlusher:
    """Its flusher, to be stepped."""
    flusher = store._flusher
    assert isinstance(flusher, SteppedFlusher), "open the store inside stepped_stores()"
    return flusher


def committer_of(store: Store) -> SteppedCommitter:
    """Its committer, to be stepped; it has a pool."""
    committer = store._committer
    assert isinstance(committer, SteppedCommitter), "open the store inside stepped_stores()"
    return committer


def abandon(store: Store) -> None:
    """The store's process is gone: nothing is written, and the lock is free."""
    forget_background()
    store._parts.lock.release()
