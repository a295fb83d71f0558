"""Messages of a drill that are not shown when they are sent: in transactions, and for later."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable

from penstock.bench.load.ledger import HEADER
from penstock.client import MessageView, SendStatus, TransactionProducer, TransactionState
from penstock.judge.history import Op, Outcome, Recorder
from penstock.judge.invariants.promises import LATER, TRANSACTIONS
from penstock.proto.errors import PenstockError

PAUSE_S = 0.05
TIMEOUT_S = 15.0
CHECK_AFTER_S = 1.0
LEVEL = 1
LATER_MS = (2000, 1000)
"""By a time, and by that delay level."""
COMMIT, ROLLBACK = TransactionState.COMMIT, TransactionState.ROLLBACK
PLAN = (COMMIT, ROLLBACK, None, None)
"""What becomes of a transaction, by its number; None: nobody decides until a broker asks."""
ANSWERS = (COMMIT, ROLLBACK, COMMIT, ROLLBACK)
"""What a broker is told that asks."""


class Promising:
    """Sends both, each in a thread of its own. What may be done is in the file before it is tried."""

    def __init__(self, nameservers: str, topic: str, run: int, recorder: Recorder, stop: threading.Event) -> None:
        self._topic = topic
        self._run = run
        self._recorder = recorder
        self._stop = stop
        self._producer = TransactionProducer(nameservers, group="drill-promises", check=self._check)

    def run(self) -> None:
        kinds = (self._transaction, self._later)
        threads = [threading.Thread(target=self._repeat, args=(each,), name=each.__name__) for each in kinds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def close(self) -> None:
        self._producer.close()

    def _repeat(self, one: Callable[[int], None]) -> None:
        for number in itertools.count():
            if self._stop.wait(PAUSE_S):
                return
            with contextlib.suppress(PenstockError):  # what is noted says what may be there
                one(number)

    def _transaction(self, number: int) -> None:
        plan = PLAN[number % len(PLAN)]
        made = self._producer.transaction(timeout_s=TIMEOUT_S, check_after_s=CHECK_AFTER_S)
        try:
            made.send(self._topic, self._body(TRANSACTIONS, number))
        except PenstockError:
            self._note(Op.DECIDE, TRANSACTIONS, number, Outcome.REFUSED)
            made.rollback()
            return
        if plan is None:
            made.leave()
        elif plan is ROLLBACK:
            self._note(Op.DECIDE, TRANSACTIONS, number, Outcome.REFUSED)
            made.rollback()
        else:
            self._note(Op.DECIDE, TRANSACTIONS, number, Outcome.UNKNOWN)
            made.commit()
            self._note(Op.DECIDE, TRANSACTIONS, number, Outcome.OK)

    def _check(self, message: MessageView) -> TransactionState:
        _, _, number, _ = HEADER.unpack_from(message.body)
        answer = ANSWERS[number % len(ANSWERS)]
        if answer is COMMIT:
            self._note(Op.DECIDE, TRANSACTIONS, number, Outcome.UNKNOWN)
        return answer

    def _later(self, number: int) -> None:
        by_level = number % len(LATER_MS)
        now_ms = time.time_ns() // 1_000_000
        due_ms = now_ms + LATER_MS[by_level]
        self._note(Op.LATER, LATER, number, Outcome.UNKNOWN, due_ms)
        body = self._body(LATER, number)
        if by_level:
            receipt = self._producer.send(self._topic, body, delay_level=LEVEL, timeout_s=TIMEOUT_S)
        else:
            receipt = self._producer.send(self._topic, body, deliver_at=due_ms, timeout_s=TIMEOUT_S)
        if receipt.status is SendStatus.SEND_OK:  # else it is stored at a master that may have lost its replicas
            self._note(Op.LATER, LATER, number, Outcome.OK, due_ms)

    def _body(self, stream: int, number: int) -> bytes:
        return HEADER.pack(self._run, stream, number, time.time_ns())

    def _note(self, op: Op, stream: int, number: int, outcome: Outcome, due_ms: int = -1) -> None:
        now_ns = time.monotonic_ns()
        self._recorder.add(op, outcome, now_ns, now_ns, stream=stream, sequence=number, offset=due_ms)
        self._recorder.flush()
