"""Traces on their way: collected, and sent in the background.

Whoever tells something never waits. What waits to be sent is bounded, and goes twice a second: so a program that
sends more than can be told spends a small share of its time on telling, and the rest is dropped and counted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Protocol

from penstock.formats.trace import Context, packed
from penstock.proto.errors import PenstockError

from .sampling import Sample

log = logging.getLogger(__name__)

CONTEXTS_MAX: Final = 10_000
"""So many wait at most; one batch more where the last one found room."""
LINGER_S: Final = 0.5
"""Between two rounds: so about 20,000 contexts a second are told at most."""
RETRY_S: Final = 1.0
"""After nobody was there to send to."""
PREPARE_S: Final = 3.0
SEND_S: Final = 10.0
CLOSE_S: Final = 3.0
BUFFER_BYTES: Final = 8 << 20
"""Of the producer that sends them."""
WARN_EVERY_S: Final = 60.0

Told = Callable[[], Iterable[Context]]
"""Makes the contexts, in the thread that sends them."""


class TraceSender(Protocol):
    """What sends trace messages: a :class:`~penstock.client.Producer`."""

    def prepare(self, topic: str, timeout_s: float | None = None) -> None:
        """Find the topic."""

    def would_block(self, topic: str, body_bytes: int) -> bool:
        """True if a message would have to wait for room."""

    def send_async(self, topic: str, body: bytes, *, keys: Sequence[str], timeout_s: float) -> Future[Any]:
        """Begin to send."""

    def close(self, timeout_s: float) -> None:
        """End."""


class Tracer:
    """Takes what one client tells of its messages. Thread-safe."""

    def __init__(self, sample: Sample, topic: str, make_sender: Callable[[], TraceSender]) -> None:
        self.sample = sample
        self.topic = topic
        self._make_sender = make_sender
        self._lock = threading.Lock()  # guards the next five
        self._waiting: list[tuple[int, Told]] = []
        self._held = 0  # contexts in there
        self._is_closed = False
        self.dropped = 0  # contexts that nobody will read
        self._warned_s = -WARN_EVERY_S
        self._news = threading.Event()
        self._ended = threading.Event()
        self._deadline_s = 0.0  # of the close
        self._sender: TraceSender | None = None  # the thread's own
        self._thread = threading.Thread(target=self._run, name="penstock-trace", daemon=True)
        self._thread.start()

    def take(self, count: int, told: Told) -> None:
        """Have ``count`` contexts sent, if there is room; never waits, and raises nothing."""
        with self._lock:
            because = "the client was closed" if self._is_closed else ""
            if not because and self._held >= CONTEXTS_MAX:
                because = f"{CONTEXTS_MAX} wait already"
            if not because:
                self._held += count
                self._waiting.append((count, told))
        if because:
            self._drop(count, because)
        elif not self._news.is_set():
            self._news.set()

    def close(self, timeout_s: float) -> None:
        """Send what waits, for a moment at most; what comes later is dropped. May be called again."""
        with self._lock:
            self._is_closed = True
        self._deadline_s = time.monotonic() + max(min(timeout_s, CLOSE_S), 0.0)
        self._ended.set()
        self._news.set()
        if self._thread is not threading.current_thread():
            self._thread.join(max(self._deadline_s - time.monotonic(), 0.0) + RETRY_S)

    # The thread.

    def _run(self) -> None:
        while not self._ended.is_set():
            self._news.wait()
            self._ended.wait(LINGER_S)  # others join it
            self._news.clear()
            if not self._send_waiting():
                self._ended.wait(RETRY_S)
                self._news.set()
        self._send_waiting()
        with self._lock:
            left, self._waiting, self._held = self._held, [], 0
        if left:
            self._drop(left, "the client was closed")
        if self._sender is not None:
            try:
                self._sender.close(max(self._deadline_s - time.monotonic(), 0.0))
            except PenstockError as error:
                log.debug("trace sender closed error=%s", error)

    def _send_waiting(self) -> bool:
        """Send everything; False, with everything still there, if nobody was there to send to."""
        if not self._waiting:
            return True
        refused = ""
        try:
            sender = self._opened()
        except PenstockError as error:
            if error.retryable:
                log.debug("traces wait topic=%s error=%s", self.topic, error.message)
                return False
            refused = error.message
        with self._lock:
            taken, self._waiting, self._held = self._waiting, [], 0
        if refused:
            self._drop(sum(count for count, _ in taken), refused)
        else:
            self._send(sender, taken)
        return True

    def _opened(self) -> TraceSender:
        if self._sender is None:
            self._sender = self._make_sender()
        left_s = self._deadline_s - time.monotonic() if self._ended.is_set() else PREPARE_S
        self._sender.prepare(self.topic, timeout_s=max(left_s, 0.0))
        return self._sender

    def _send(self, sender: TraceSender, taken: list[tuple[int, Told]]) -> None:
        contexts: list[Context] = []
        for count, told in taken:
            try:
                contexts.extend(told())
            except Exception:  # what one message's properties hold must not cost the others their trace
                log.exception("trace not made count=%d", count)
                self._drop(count, "they could not be made")
        for body, keys, count in packed(contexts):
            if sender.would_block(self.topic, len(body)):
                self._drop(count, f"{BUFFER_BYTES} bytes are not acknowledged yet")
                continue
            try:
                sent = sender.send_async(self.topic, body, keys=keys, timeout_s=SEND_S)
            except PenstockError as error:
                self._drop(count, error.message)
            else:
                sent.add_done_callback(partial(self._on_sent, count))

    def _on_sent(self, count: int, sent: Future[Any]) -> None:
        error = sent.exception()
        if error is not None:
            self._drop(count, str(error))

    def _drop(self, count: int, because: str) -> None:
        now_s = time.monotonic()
        with self._lock:
            self.dropped += count
            is_due = now_s - self._warned_s >= WARN_EVERY_S
            if is_due:
                self._warned_s = now_s
            dropped = self.dropped
        if is_due:
            log.warning("traces dropped topic=%s count=%d so_far=%d because=%s", self.topic, count, dropped, because)
