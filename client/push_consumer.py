"""Consuming by a listener."""

from __future__ import annotations

import inspect
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal, Self

from penstock.formats.trace import TRACE_TOPIC
from penstock.proto.errors import InvalidArgument
from penstock.runtime.conf import require
from penstock.runtime.security.credentials import Credentials, Tls

from . import arguments
from .cluster import Expression, check_timeout
from .cluster.subscription import ALL, parse_subscription
from .consume.consumer_config import CONSUME_FROM_LAST, ConsumerConfig, new_client_id, stable_client_id
from .consume.core import Consumer, ConsumerCore
from .consume.group.broadcasting import Broadcasting
from .consume.group.membership import Membership
from .consume.group.notices import Callback, Callbacks
from .consume.group.rebalance import Strategy, strategy_named
from .consume.offsets import FileOffsets
from .consume.push.outcomes import ConsumeResult, Listener, is_success
from .consume.push.push_queue import PushedQueue
from .consume.push.redelivery import Dropped, InPlace, Local, Redelivery, SendBack
from .consume.push.workers import Workers
from .consume.send_backs import SendBacks
from .statistics import Latency, latency_of
from .telemetry import telemetry_of
from .trace.consuming import ConsumeTrace
from .trace.making import tracer_of

__all__ = ["ConsumeResult", "PushConsumer"]

log = logging.getLogger(__name__)

CLUSTERING, BROADCASTING = "clustering", "broadcasting"
WAIT_STEP_S = 0.5
COMMIT_SHARE_S = 1.0
CONSUME_TIMEOUT_S = 900.0
TIMEOUT_S_MAX = 7 * 24 * 3600.0
BROADCAST_TIMES = 16


class PushConsumer(Consumer):
    """Calls a listener with every message of its share of the queues (``clustering``), or of all (``broadcasting``).

    The listener gets one message, or with ``consume_batch_max > 1`` a list of messages of one queue. It succeeds when
    it returns ``None`` or ``ConsumeResult.SUCCESS``. When it returns ``RETRY_LATER`` or anything else, raises, or takes
    longer than ``consume_timeout_s``, the message goes back to its broker, and the messages behind it go on. The broker
    has it come again to any member of the group after 10 s, 30 s, 1 min, … 2 h, or as the group's ``retry_policy``
    says, and keeps it as a dead letter after ``max_reconsume_times`` (without: the group's ``retry_max_times``, 16
    unless set). While the broker has no master the message waits, and the commit of its queue with it.

    ``consume_threads`` listeners run at once, also for messages of one queue. With ``orderly`` at most one runs per
    queue, in the queue's order, and a failed message is tried again before those behind it, every second, until it is a
    dead letter after ``max_reconsume_times`` (without: for ever). Broadcasting consumers try a failed message again
    themselves (``ConsumerConfig.retry_delays_ms``) and drop it after ``max_reconsume_times``, 16 unless set.
    """

    def __init__(
        self,
        nameservers: str,
        *,
        group: str,
        listener: Listener,
        consume_threads: int = 4,
        consume_batch_max: int = 1,
        orderly: bool = False,
        model: Literal["clustering", "broadcasting"] = "clustering",
        client_id: str | None = None,
        consume_from: str | int = CONSUME_FROM_LAST,
        strategy: str | Strategy = "AVG",
        max_reconsume_times: int | None = None,
        consume_timeout_s: float = CONSUME_TIMEOUT_S,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        config: ConsumerConfig | None = None,
        trace: bool | float = False,
        trace_topic: str = TRACE_TOPIC,
        telemetry: Any = False,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """``consume_from`` (``"last"``, ``"first"``, or ms since 1970) holds for queues without a committed offset.

        ``on_assigned``, ``on_revoked`` are called with the queues that come to this member, before the first message of
        one is handed out, and with those that go, when their last work has ended and before another member gets them;
        also at the close. Calls come one after the other, in a thread of the client. What one raises is logged and
        changes nothing. While ``on_assigned`` runs, its queues wait; ``on_revoked`` is waited for as long as work is
        (``ConsumerConfig.revoke_timeout_ms``; at the close, half of its time). When a session broke and others went on
        with a queue meanwhile, both are called when it is back.

        ``trace``, ``trace_topic``: tell of each message, or of a share of them (0..1), when a listener begins with it
        and how it ended; as of :class:`~penstock.client.ProducerConfig`. ``telemetry``: True, or a tracer of
        OpenTelemetry: the listener runs inside of a span, whose parent is the send.
        ``tls``, ``credentials``: as of :class:`~penstock.client.Producer`.

        A broadcasting consumer keeps its offsets in ``~/.penstock/offsets`` under its ``client_id``; two on one host
        need a client id each.

        Raises:
            ConfigError, InvalidName: an argument is wrong.
        """
        require(callable(listener), "listener must be callable", listener)
        require(not inspect.iscoroutinefunction(listener), "an async listener needs AsyncPushConsumer", listener)
        consume_threads = arguments.whole("consume_threads", consume_threads, 1, 1024)
        consume_batch_max = arguments.whole("consume_batch_max", consume_batch_max, 1, 10_000)
        require(model in (CLUSTERING, BROADCASTING), "model must be 'clustering' or 'broadcasting'", model)
        times = max_reconsume_times
        if times is not None:
            times = arguments.whole("max_reconsume_times", times, 0, 1024)
        consume_timeout_s = arguments.seconds("consume_timeout_s", consume_timeout_s, TIMEOUT_S_MAX)
        self._callbacks = Callbacks(on_assigned, on_revoked)
        is_shared = model == CLUSTERING or not self._callbacks
        require(is_shared, "on_assigned and on_revoked are for clustering; broadcasting has all queues, not", model)
        orderly = arguments.flag("orderly", orderly)
        self._model = model
        self._strategy = strategy_named(strategy)
        if client_id is None:
            client_id = new_client_id() if model == CLUSTERING else stable_client_id()
        self._core = ConsumerCore(
            nameservers,
            group=group,
            client_id=client_id,
            consume_from=consume_from,
            config=ConsumerConfig() if config is None else config,
            tls=tls,
            credentials=credentials,
            new_queue=PushedQueue,
        )
        self._core.is_orderly, self._core.is_concurrent = orderly, not orderly
        self._core.is_broadcasting = model == BROADCASTING
        self._redelivery = self._redelivery_of(times, orderly=orderly)
        tracer = tracer_of(trace, trace_topic, nameservers, tls, credentials)
        self._trace = None if tracer is None else ConsumeTrace(tracer, group)
        if (spans := telemetry_of(telemetry, group)) is not None:
            listener = spans.listener(listener, is_success)
        if self._trace is not None:
            listener = self._trace.listener(listener, math.inf if orderly else consume_timeout_s)
        self._workers = Workers(
            self._core.buffers,
            listener,
            self._redelivery,
            name=group,
            threads=consume_threads,
            batch_max=consume_batch_max,
            is_orderly=orderly,
            timeout_s=consume_timeout_s,
            on_idle=self._core.poke,
            fetch=self._core.fetcher.fetch,
        )
        self._core.fetcher.crew = self._workers
        self._core.watch = self._workers.watch
        self._is_started = False
        self._ended = threading.Event()

    def _redelivery_of(self, times: int | None, *, orderly: bool) -> Redelivery:
        config = self._core.config
        delays_ms = [config.suspend_ms] if orderly else config.retry_delays_ms
        if self._model == BROADCASTING:
            return Dropped(delays_ms, BROADCAST_TIMES if times is None else times)
        if orderly and times is None:
            return Local(delays_ms)
        send_backs = SendBacks(self._core.calls, self.group, times)
        if orderly:
            return InPlace(delays_ms, times or 0, send_backs)
        return SendBack(send_backs, Local(delays_ms), self.group)

    def __enter__(self) -> Self:
        self.start()
        return self

    def subscribe(self, topic: str, expression: Expression = ALL) -> None:
        """Consume ``topic``: everything, tags (``"a || b"``), or what an :class:`Sql` condition selects.

        Before the start or after it. A topic that does not exist is waited for.

        Raises:
            InvalidName, InvalidArgument: the topic's name or the expression is wrong.
        """
        self._core.subscribe(parse_subscription(topic, expression))

    def start(self) -> None:
        """Join the group and begin. Called by ``with``; calling it again changes nothing.

        Raises:
            InvalidArgument: no topic is subscribed.
            NameserverUnavailable: no nameserver answers. ClientClosed: it was closed: make a new one.
            ConfigError: the offsets of a broadcasting consumer are in use or damaged.
        """
        if self._is_started and not self._core.is_closed:
            return
        self._core.require_open()
        if not self._core.subscriptions:
            raise InvalidArgument("no topic is subscribed: call subscribe before start")
        core = self._core
        if self._model == CLUSTERING:
            core.begin(Membership(core, self._strategy, self._callbacks))
        else:
            offsets = FileOffsets(core.config.offsets_root, core.client_id, core.group)
            try:
                core.begin(Broadcasting(core, offsets))
            except BaseException:
                offsets.close()  # for the next start
                raise
        self._is_started = True
        self._workers.start()
        if self._ended.is_set():  # whoever closes it may have come before there were workers to end
            self._workers.close(time.monotonic())

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until SIGINT, SIGTERM or :meth:`close`; false when ``timeout_s`` ran out before.

        The signals are caught only when called from the main thread, and only while waiting.

        Raises:
            Refused: a broker refused the group or a filter, by its own error: nothing more will arrive.
        """
        check_timeout(timeout_s)
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with ending_signals(self._ended.set):
            while not self.has_ended():
                left_s = WAIT_STEP_S if deadline_s is None else min(deadline_s - time.monotonic(), WAIT_STEP_S)
                if left_s <= 0:
                    return False
                self._ended.wait(left_s)
        return True

    def has_ended(self) -> bool:
        """True if the consumer was closed. Raises what it failed with, as :meth:`wait` does."""
        if not self._ended.is_set():
            self._core.require_alive()
        return self._ended.is_set()

    def _listener_statistics(self) -> tuple[int, int, Latency]:
        return self._workers.failed, self._redelivery.dropped, latency_of([self._workers.stopwatch])

    def close(self, timeout_s: float | None = None) -> None:
        """Let running listeners finish, commit, release the queues, disconnect. May be called again.

        Returns after ``timeout_s`` at the latest, 5 s by default; what a listener is still at then is not committed.
        """
        self.close_within(timeout_s, threading.current_thread())

    def close_within(self, timeout_s: float | None, caller: threading.Thread | None) -> None:
        """See :meth:`close`, which was called by the listener in the thread ``caller``, if that is a worker."""
        timeout_s = check_timeout(timeout_s)
        timeout_s = self._core.config.close_timeout_ms / 1000 if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + timeout_s
        self._ended.set()
        try:
            if self._is_started and not self._core.is_closed:
                before_s = deadline_s - min(COMMIT_SHARE_S, timeout_s / 2)
                self._workers.close(before_s, caller)
                self._redelivery.close(before_s)
            self._core.close(deadline_s)
        except BaseException:  # Ctrl-C: what listeners are at comes again
            deadline_s = time.monotonic()
            self._core.close(deadline_s)
            raise
        finally:
            if self._trace is not None:
                self._trace.tracer.close(deadline_s - time.monotonic())


@contextmanager
def ending_signals(end: Callable[[], object]) -> Iterator[None]:
    """SIGINT and SIGTERM call ``end`` inside; outside they do what they did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        log.info("signal ended the consumer signal=%s", signal.Signals(number).name)
        end()

    former = {each: signal.signal(each, handle) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)
