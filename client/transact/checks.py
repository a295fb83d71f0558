"""Answers to brokers that ask about halves: what this producer knows by itself, else what its user's function says."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.proto.errors import PenstockError, Refused

from ..message import MessageView
from .questions import HalfMessage
from .ranges import Ranges
from .sessions import Halves
from .transaction import TransactionState

log = logging.getLogger(__name__)

Check = Callable[[MessageView], Any]
"""A user's function, which is to return a TransactionState."""
Answer = Callable[[str, Ranges, TransactionState], None]

WAITING_MAX: Final = 64
"""Questions that wait for their turn, each about many halves; further ones are dropped, and asked again."""


class Checks:
    """One thread that answers. ``known(transaction id)`` says what was decided here; None asks the user."""

    def __init__(self, check: Check | None, known: Callable[[str], TransactionState | None], answer: Answer) -> None:
        self._check = check
        self._known = known
        self._answer = answer
        self._waiting: queue.Queue[tuple[str, Halves] | None] = queue.Queue(WAITING_MAX)
        self._thread = threading.Thread(target=self._run, name="penstock-transaction-checks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self, broker_name: str, halves: Halves) -> None:
        try:
            self._waiting.put_nowait((broker_name, halves))
        except queue.Full:
            log.warning("question about a transaction dropped, %d wait: it will be asked again", WAITING_MAX)

    def close(self, timeout_s: float) -> None:
        """End the thread, after the question that it is at."""
        if not self._thread.is_alive():
            return
        while True:
            try:
                self._waiting.put_nowait(None)
                break
            except queue.Full:
                with contextlib.suppress(queue.Empty):  # the thread was quicker
                    self._waiting.get_nowait()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (asked := self._waiting.get()) is not None:
            broker_name, halves = asked
            try:
                for state, offsets in self._states(halves).items():
                    self._tell(broker_name, offsets, state)
            except PenstockError as error:
                log.info("question about a transaction not answered broker=%s error=%s", broker_name, error.message)
            except Exception:  # the thread answers for all transactions: what fails is logged, the others go on
                log.exception("question about a transaction not answered broker=%s", broker_name)

    def _states(self, halves: Halves) -> Mapping[TransactionState, list[int]]:
        """The offsets by what is decided about them, without those about which nothing is."""
        found: dict[TransactionState, list[int]] = {}
        for offset, message in halves:
            state = self._state(message)
            if state is not TransactionState.UNKNOWN:
                found.setdefault(state, []).append(offset)
        return found

    def _state(self, message: HalfMessage) -> TransactionState:
        known = self._known(message.transaction_id)
        if known is not None or self._check is None:
            return known or TransactionState.UNKNOWN
        try:
            state = self._check(message)
        except BaseException:  # a user's function: nothing is decided by its failure
            log.exception("check failed topic=%s transaction=%s", message.topic, message.transaction_id)
            return TransactionState.UNKNOWN
        if not isinstance(state, TransactionState):
            log.error(
                "check returned %r, not a TransactionState: nothing is decided topic=%s transaction=%s",
                *(state, message.topic, message.transaction_id),
            )
            return TransactionState.UNKNOWN
        return state

    def _tell(self, broker_name: str, offsets: list[int], state: TransactionState) -> None:
        try:
            self._answer(broker_name, Ranges(offsets), state)
        except Refused as error:
            log.info("answer about a transaction refused broker=%s error=%s", broker_name, error.message)
            if len(offsets) > 1:  # one of them is decided otherwise, or gone: the others are not
                for offset in offsets:
                    self._tell(broker_name, [offset], state)
