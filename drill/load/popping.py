"""The simple consumers of a drill: a row when one has a message, before it gives one back, and when it is done."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from penstock.bench.load.ledger import header_of
from penstock.client import ReceivedMessage, SimpleConsumer
from penstock.judge.history import Op, Outcome, Recorder
from penstock.proto.errors import InvalidReceipt, PenstockError, ReceiptExpired

INVISIBLE_S = 10.0
"""The least that brokers take: what a dead consumer had comes again after it."""
RECEIVE_S = 1.0
RECEIVE_MESSAGES_MAX = 200
TRY_S = 5.0
PAUSE_S = 0.05
GIVEN_BACK_EVERY = 512
"""So manieth message of a stream is given back the first time, by a call of its own, and comes again at once."""


class Popping:
    """One of them. That it has messages is in the file before it does anything with them."""

    def __init__(self, nameservers: str, group: str, topic: str, run: int, recorder: Recorder) -> None:
        self._run = run
        self._recorder = recorder
        self._consumer = SimpleConsumer(nameservers, group=group, invisible_s=INVISIBLE_S, consume_from="first")
        self._consumer.subscribe(topic)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self._turn(stop)
            except PenstockError as error:
                if not error.retryable:
                    raise
                stop.wait(PAUSE_S)

    def close(self) -> None:
        self._consumer.close()

    def _turn(self, stop: threading.Event) -> None:
        start_ns = time.monotonic_ns()
        messages = self._consumer.receive(RECEIVE_MESSAGES_MAX, RECEIVE_S)
        end_ns = time.monotonic_ns()
        wall_ns = time.time_ns()
        for each in messages:
            until_ns = end_ns + each.visible_at_ms * 1_000_000 - wall_ns
            self._note(Op.HOLD, Outcome.OK, each, start_ns, end_ns, until_ns)
        self._recorder.flush()
        failed = [each for each in messages if self._is_to_fail(each)]
        self._acknowledge([each for each in messages if each not in failed], stop)
        for each in failed:
            self._give_back(each, stop)

    def _is_to_fail(self, message: ReceivedMessage) -> bool:
        return message.reconsume_times == 0 and header_of(message.body)[2] % GIVEN_BACK_EVERY == GIVEN_BACK_EVERY - 1

    def _acknowledge(self, messages: Sequence[ReceivedMessage], stop: threading.Event) -> None:
        start_ns, refused = time.monotonic_ns(), set[str]()
        while messages:
            try:
                self._consumer.ack(messages, timeout_s=TRY_S)
                break
            except (ReceiptExpired, InvalidReceipt) as error:
                refused |= set(error.details["receipts"])
                messages = [each for each in messages if each.receipt not in refused]
            except PenstockError as error:
                if stop.is_set() or not error.retryable:
                    return
                stop.wait(PAUSE_S)
        end_ns = time.monotonic_ns()
        for each in messages:
            self._note(Op.ACKNOWLEDGE, Outcome.OK, each, start_ns, end_ns)
        self._recorder.flush()

    def _give_back(self, message: ReceivedMessage, stop: threading.Event) -> None:
        now_ns = time.monotonic_ns()
        self._note(Op.HOLD, Outcome.UNKNOWN, message, now_ns, now_ns, now_ns)
        self._recorder.flush()
        while not stop.is_set():
            try:
                self._consumer.change_invisible(message, 0, timeout_s=TRY_S)
                return
            except (ReceiptExpired, InvalidReceipt):
                return
            except PenstockError as error:
                if not error.retryable:
                    raise
                stop.wait(PAUSE_S)

    def _note(
        self, op: Op, outcome: Outcome, message: ReceivedMessage, start_ns: int, end_ns: int, until_ns: int = -1
    ) -> None:
        run, stream, sequence = header_of(message.body)
        if run == self._run:
            named = {"stream": stream, "sequence": sequence, "offset": until_ns}
            self._recorder.add(op, outcome, start_ns, end_ns, **named)
