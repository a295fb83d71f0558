"""Consumers for asyncio: the same consumers, seen from an event loop.

Fetching, membership and commits run in the threads of :mod:`penstock.client`; the loop only waits for them. What may
ask a broker is a coroutine, what only changes a number is not.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import inspect
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Self, TypeVar

from penstock.proto.errors import PenstockError
from penstock.runtime.conf import require

from ..cluster import Expression, check_timeout, require_timeout
from ..cluster.subscription import ALL
from ..consume.message_batch import MessageBatch
from ..consume.pop.receiving import ReceivedMessage
from ..consume.push.outcomes import ConsumeResult, Listener
from ..message import MessageQueue, MessageView
from ..pull_consumer import POLL_TIMEOUT_S, PullConsumer
from ..push_consumer import WAIT_STEP_S, PushConsumer, ending_signals
from ..signatures import taking
from ..simple_consumer import SimpleConsumer
from .turns import Twin, at_once, in_loop, in_thread, run_in, to_the_end

log = logging.getLogger(__name__)

T = TypeVar("T")

RECEIVES_MAX: Final = 256
_LISTENER: Final = contextvars.ContextVar[asyncio.Task[Any] | None]("_LISTENER", default=None)
"""The task that runs a listener; the tasks which that one makes inherit it."""


class _Consumer(Twin):
    _sync: PullConsumer | PushConsumer | SimpleConsumer
    _loop: asyncio.AbstractEventLoop | None = None  # once it has begun

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._sync.group

    @property
    def client_id(self) -> str:
        """The name of this consumer."""
        return self._sync.client_id


class AsyncPullConsumer(_Consumer):
    """:class:`~penstock.client.PullConsumer` for one event loop.

    A cancelled poll has returned nothing: its messages come with the next one. Methods, arguments and errors are the
    same. ``on_assigned`` and ``on_revoked`` may be coroutine functions, which run in the loop.
    """

    _sync: PullConsumer

    @taking(PullConsumer.__init__)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._sync = PullConsumer(*arguments, **in_loop(settings, lambda: self._loop))
        self._ready = asyncio.Event()

    async def subscribe(self, topic: str, expression: Expression = ALL) -> None:
        """Share the queues of ``topic`` with the group's other members; also while consuming."""
        self._listen()
        await asyncio.to_thread(self._sync.subscribe, topic, expression)

    unsubscribe = in_thread(PullConsumer.unsubscribe)

    async def assign(self, queues: Iterable[MessageQueue], expression: Expression = ALL) -> None:
        """Consume exactly these queues, whoever else does."""
        self._listen()
        await asyncio.to_thread(self._sync.assign, list(queues), expression)

    queues = in_thread(PullConsumer.queues)
    assignment = at_once(PullConsumer.assignment)
    statistics = at_once(PullConsumer.statistics)

    async def poll(self, timeout_s: float = POLL_TIMEOUT_S, max_messages: int = 500) -> list[MessageView]:
        """The next messages, at most so many, as soon as there is one; none when ``timeout_s`` runs out or on close."""
        found = await self._when_ready(lambda: self._sync.poll(0, max_messages), timeout_s)
        return found if found is not None else []

    async def poll_batch(self, timeout_s: float = POLL_TIMEOUT_S, max_messages: int | None = None) -> MessageBatch:
        """The next messages of one queue as columns; an empty batch when ``timeout_s`` runs out or on close."""
        found = await self._when_ready(lambda: self._sync.poll_batch(0, max_messages), timeout_s)
        return found if found is not None else MessageBatch.empty()

    async def __aiter__(self) -> AsyncIterator[MessageView]:
        """Every message until the consumer is closed; each counts as processed when the next one is asked for."""
        while not self._sync.is_closed:
            for message in await self.poll(max_messages=1):
                yield message

    send_back = in_thread(PullConsumer.send_back)
    commit = in_thread(PullConsumer.commit)
    committed = in_thread(PullConsumer.committed)
    position = at_once(PullConsumer.position)
    seek = at_once(PullConsumer.seek)
    seek_to_begin = in_thread(PullConsumer.seek_to_begin)
    seek_to_end = in_thread(PullConsumer.seek_to_end)
    offset_for_time = in_thread(PullConsumer.offset_for_time)
    pause = at_once(PullConsumer.pause)
    resume = at_once(PullConsumer.resume)
    close = in_thread(PullConsumer.close)

    def _listen(self) -> None:
        loop = self._loop = asyncio.get_running_loop()

        def on_ready() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed before the consumer was
                loop.call_soon_threadsafe(self._ready.set)

        self._sync.on_ready(on_ready)

    async def _when_ready(self, poll: Callable[[], T], timeout_s: float) -> T | None:
        timeout_s = require_timeout(timeout_s)
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._ready.clear()
            found = poll()
            left_s = deadline_s - time.monotonic()
            if found or left_s <= 0:
                return found
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ready.wait(), left_s)
            if self._sync.is_closed:
                return None


class AsyncPushConsumer(_Consumer):
    """:class:`~penstock.client.PushConsumer` for one event loop.

    The listener may be a coroutine function; then it runs in the loop, ``consume_threads`` (16 by default) of them at a
    time. A plain function is called in the consumer's own threads. The same holds for ``on_assigned`` and
    ``on_revoked``.
    """

    _sync: PushConsumer

    @taking(PushConsumer.__init__)
    def __init__(self, *arguments: Any, listener: Listener, consume_threads: int = 16, **settings: Any) -> None:
        require(callable(listener), "listener must be callable", listener)
        self._listener = listener
        self._is_closing = False
        self._listening: dict[asyncio.Task[Any] | None, threading.Thread] = {}  # who waits for it; the loop's alone
        called = self._call if inspect.iscoroutinefunction(listener) else listener
        settings = in_loop(settings, lambda: self._loop)
        self._sync = PushConsumer(*arguments, listener=called, consume_threads=consume_threads, **settings)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *outcome: Any) -> None:
        await self.close()

    def subscribe(self, topic: str, expression: Expression = ALL) -> None:
        """Consume ``topic``; before the start. Afterwards use :meth:`subscribe_more`, which may wait for a route."""
        self._sync.subscribe(topic, expression)

    async def subscribe_more(self, topic: str, expression: Expression = ALL) -> None:
        """Consume another topic while running."""
        await asyncio.to_thread(self._sync.subscribe, topic, expression)

    unsubscribe = in_thread(PushConsumer.unsubscribe)
    assignment = at_once(PushConsumer.assignment)
    statistics = at_once(PushConsumer.statistics)

    async def start(self) -> None:
        """Join the group and begin. Called by ``async with``."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._sync.start)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Until SIGINT, SIGTERM or :meth:`close`; false when ``timeout_s`` ran out before.

        Raises:
            Refused: a broker refused the group or a filter, by its own error: nothing more will arrive.
        """
        timeout_s = check_timeout(timeout_s)
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        with ending_signals(lambda: loop.call_soon_threadsafe(ended.set)):
            while not ended.is_set():
                # In slices, so that a failure and a close by somebody else are noticed.
                left_s = WAIT_STEP_S if deadline_s is None else min(WAIT_STEP_S, deadline_s - time.monotonic())
                if self._sync.has_ended():
                    return True
                if left_s <= 0:
                    return False
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), left_s)
        return True

    async def close(self, timeout_s: float | None = None) -> None:
        """Let running listeners finish, commit, release the queues, disconnect."""
        timeout_s = check_timeout(timeout_s)
        self._is_closing = True
        # A listener that closes its consumer is not waited for: its worker waits for it.
        caller = self._listening.get(_LISTENER.get())
        await to_the_end(self._sync.close_within, timeout_s, caller)

    async def _listen(self, item: Any, worker: threading.Thread) -> Any:
        task = asyncio.current_task()
        _LISTENER.set(task)
        self._listening[task] = worker
        try:
            return await self._listener(item)
        finally:
            del self._listening[task]

    def _call(self, item: Any) -> Any:
        assert self._loop is not None, "workers begin after start"
        try:
            return run_in(self._loop, self._listen(item, threading.current_thread()))
        except RuntimeError:
            if not self._loop.is_closed():
                raise  # else it ended before the listener began: the message is delivered again
        except concurrent.futures.CancelledError:
            if not self._is_closing:
                raise
        return ConsumeResult.RETRY_LATER


class AsyncSimpleConsumer(_Consumer):
    """:class:`~penstock.client.SimpleConsumer`, awaited. Methods, arguments and errors are the same.

    What a receive is given that is cancelled comes again at once. 256 receives wait at once, in threads of the
    consumer's own; with more of them the next one begins when one has ended.
    """

    _sync: SimpleConsumer

    @taking(SimpleConsumer.__init__)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._sync = SimpleConsumer(*arguments, **settings)
        # Of its own: receives that wait would keep the loop's few threads from acknowledgements, and from the user.
        self._threads = ThreadPoolExecutor(RECEIVES_MAX, "penstock-receive")

    async def __aexit__(self, *outcome: Any) -> None:
        await self.close()

    subscribe = at_once(SimpleConsumer.subscribe)
    unsubscribe = at_once(SimpleConsumer.unsubscribe)

    @taking(SimpleConsumer.receive)
    async def receive(self, *arguments: Any, **options: Any) -> list[ReceivedMessage]:
        self._sync.require_open()
        receiving = self._threads.submit(self._sync.receive, *arguments, **options)
        try:
            return await asyncio.wrap_future(receiving)
        except asyncio.CancelledError:
            receiving.add_done_callback(self._on_left)
            raise

    ack = in_thread(SimpleConsumer.ack)
    change_invisible = in_thread(SimpleConsumer.change_invisible)
    give_back = in_thread(SimpleConsumer.give_back)
    forward_to_dead_letters = in_thread(SimpleConsumer.forward_to_dead_letters)

    @taking(SimpleConsumer.close)
    async def close(self) -> None:
        try:
            await to_the_end(self._sync.close)
        finally:
            self._threads.shutdown(wait=False)  # receives that wait end by the close

    def _on_left(self, receiving: Future[list[ReceivedMessage]]) -> None:
        """Nobody waits for that receive any more: what it has got comes again at once."""
        if not receiving.cancelled() and receiving.exception() is None and (found := receiving.result()):
            threading.Thread(target=self._give_back, args=(found,), name="penstock-give-back").start()

    def _give_back(self, found: list[ReceivedMessage]) -> None:
        try:
            self._sync.give_back(found)
        except PenstockError as error:
            log.info("messages of a receive that was cancelled come again later error=%s", error.message)
