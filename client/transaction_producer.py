"""The producer for transactions: messages that are seen when it says so, and never without."""

from __future__ import annotations

import inspect
import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.formats.destination import Half
from penstock.formats.record.properties import TRANSACTION_ID, UNIQ_KEY
from penstock.proto.data_frames import Method
from penstock.proto.errors import BrokerUnavailable, InvalidArgument, PenstockError
from penstock.proto.wire.transactions_pb2 import COMMIT, ROLLBACK, EndReply, EndRequest

from .arguments import wrong
from .cluster import check_timeout
from .message import Message, MessageView, SendReceipt
from .produce.delivery import TopicDelivery
from .produce.parts import Part
from .produce.receipts import result_of
from .producer import CLOSE_TIMEOUT_S, Producer
from .statistics import ProducerStatistics
from .transact.checks import Check, Checks
from .transact.ends import Ends, HandedOver
from .transact.ranges import Ranges
from .transact.sessions import ProducerSessions
from .transact.transaction import Transaction, TransactionState

if TYPE_CHECKING:
    from .trace.sending import SendTrace

T = TypeVar("T")

ENDED_KNOWN: Final = 10_000
"""Transactions that have ended, whose outcome is known without asking ``check``."""
CHECKS_CLOSE_S: Final = 5.0
_RESOLUTIONS: Final = {TransactionState.COMMIT: COMMIT, TransactionState.ROLLBACK: ROLLBACK}


class TransactionProducer(Producer):
    """A :class:`~penstock.client.Producer` that can also send in transactions; may be shared between threads.

    ``check(message)`` is asked by brokers about messages that nobody has decided, of this producer or of another one
    of its ``group``, as one that died: it looks up whether what belongs to the message was done, and returns a
    :class:`~penstock.client.TransactionState`. It is called in a thread of the client, one message at a time. Without
    it this producer is asked about nothing. Transactions that this producer has decided itself are answered by what it
    decided, and those that are still under way not at all.
    """

    def __init__(
        self, /, nameservers: str | Sequence[str], *, group: str, check: Check | None = None, **settings: Any
    ) -> None:
        if check is not None and not callable(check):
            raise InvalidArgument(f"check must be a function of a message, not {type(check).__name__}")
        if inspect.iscoroutinefunction(check):
            raise InvalidArgument("check must be an ordinary function, not an async one: it is called in a thread")
        super().__init__(nameservers, group=group, **settings)
        self._lock = threading.Lock()  # of the next one
        self._transactions: OrderedDict[str, Transaction] = OrderedDict()
        self._ends = Ends(group, self._ask)
        self._handed_over = HandedOver(group, self._start) if check is not None else None
        self._at_brokers = ThreadPoolExecutor(thread_name_prefix="penstock-transaction-ends")
        if check is not None and self._shipping.trace is not None:
            check = _traced(check, self._shipping.trace)
        self._checks = Checks(check, self._known, self._answer)
        self._checks.start()
        self._sessions = ProducerSessions(self._calls, self.client_id, self._checks.ask, answers=check is not None)
        self._sessions.join(group)

    def transaction(
        self, *, timeout_s: float | None = None, check_after_s: float | None = None, transaction_id: str | None = None
    ) -> Transaction:
        """A new transaction, for ``with``: its end commits, an exception rolls back and goes on.

        ``timeout_s``: of each send and each end, and of the delivery of what is buffered (default: the delivery
        time-out). ``check_after_s``: brokers ask nobody before it is so old (default: their ``transactionTimeOut``).
        ``transaction_id``: one that another has made; of all transactions it must be the only one.

        Raises:
            InvalidArgument: this producer has had a transaction with that id.
        """
        self._deliveries.require_open()
        wait_s = self._patience_s(timeout_s)
        trace = self._shipping.trace
        made = Transaction(
            *(self, self._maker),
            transaction_id=transaction_id,
            timeout_s=wait_s,
            check_after_s=check_after_s,
            trace=trace,
        )
        with self._lock:
            if made.id in self._transactions:
                raise InvalidArgument(
                    f"transaction {made.id}: this producer has had one with that id, and a broker that asks about it "
                    "would be told what became of the other: give each an id of its own, or none"
                )
            self._transactions[made.id] = made
            if len(self._transactions) > ENDED_KNOWN:
                self._forget_some()
        return made

    def send_in_transaction(
        self,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: Sequence[str] | str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        *,
        execute: Callable[[Message], TransactionState],
        timeout_s: float | None = None,
        check_after_s: float | None = None,
    ) -> SendReceipt:
        """Store one message, call ``execute(message)``, and do as it says: RocketMQ's way.

        With UNKNOWN, and when ``execute`` raises, nothing is decided: brokers ask ``check`` later. The message that it
        gets has the transaction's id among its properties, as ``__transactionId__``.

        A producer with a ``check`` does not wait for the broker's answer to what ``execute`` decided: this goes to the
        broker some milliseconds later, together with others. :meth:`flush` and :meth:`close` wait for it. If it is
        lost, as in a failover, the broker asks after its ``transactionTimeOut``: this producer answers what was
        decided, and when it is gone, ``check`` of another. Without a ``check`` the answer is waited for.

        Raises:
            Refused, Retryable, OutcomeUnknown: the message is not stored, or not known to be; ``execute`` is not
                called. After it, without a ``check``: the end got no answer, or was refused.
        """
        if not callable(execute):
            raise wrong("execute", execute, "a function of a message", InvalidArgument)
        made = self.transaction(timeout_s=timeout_s, check_after_s=check_after_s)
        try:
            receipt = made.send(topic, body, tag, keys, properties, sharding_key, timeout_s=timeout_s)
        except BaseException:
            made.give_up()
            raise
        own = {**(properties or {}), TRANSACTION_ID: made.id}
        try:
            state = execute(Message(topic, body, tag, keys or (), own, sharding_key))
        except BaseException:
            made.leave()
            raise
        made.conclude(state)
        return receipt

    def flush(self, timeout_s: float | None = None) -> None:
        """As :meth:`~penstock.client.Producer.flush`; ends of transactions that nobody waited for have their answers.

        Those that got none are no error here: :meth:`statistics` counts them as ``ends_lost``, and brokers ask.
        """
        deadline = time.monotonic() + self._patience_s(timeout_s)
        try:
            super().flush(timeout_s)
        finally:
            if self._handed_over is not None:
                self._handed_over.settle(max(deadline - time.monotonic(), 0.0))

    def statistics(self) -> ProducerStatistics:
        """As :meth:`~penstock.client.Producer.statistics`."""
        lost = 0 if self._handed_over is None else self._handed_over.lost
        return replace(super().statistics(), ends_lost=lost)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Flush, then stop, as :meth:`~penstock.client.Producer.close`; open transactions are left to ``check``."""
        timeout_s = check_timeout(timeout_s)
        deadline = time.monotonic() + timeout_s
        handed_over = self._handed_over
        try:
            if handed_over is not None:
                handed_over.close(timeout_s)
        except BaseException:  # Ctrl-C: brokers ask about what got no answer
            timeout_s, deadline = 0.0, time.monotonic()
            if handed_over is not None:
                handed_over.close(0.0)
            raise
        finally:
            self._sessions.close()
            self._checks.close(min(timeout_s, CHECKS_CLOSE_S))
            self._at_brokers.shutdown(wait=False, cancel_futures=True)
            super().close(max(deadline - time.monotonic(), 0.0))

    # What transactions ask for.

    def produce_halves(self, topic: str, part: Part, deadline: float) -> None:
        """Buffer the halves in ``part``; its owner learns what becomes of them, whatever this raises."""
        self._hand_on(topic, part, deadline, lambda delivery: delivery.enqueue([part]))
        self._sender.wake()

    def send_half(self, topic: str, part: Part, deadline: float) -> SendReceipt:
        """Send the one half in ``part``, and wait for its receipt; its owner learns the same in any case."""
        future = part.futures[0]
        delivery, batch = self._hand_on(topic, part, deadline, lambda delivery: delivery.start_now(part))
        if batch is not None:
            delivery.transmit(batch, wait=True)
        return result_of(future, topic, deadline)

    def decide(self, halves: Mapping[str, Ranges], state: TransactionState, timeout_s: float) -> None:
        """Have the brokers, by name, decide about these halves."""
        if len(halves) == 1:
            ((broker_name, ranges),) = halves.items()
            self._ends.end(broker_name, ranges, _RESOLUTIONS[state], timeout_s)
            return
        self._deliveries.require_open()
        ends = [
            self._at_brokers.submit(self._ends.end, broker_name, ranges, _RESOLUTIONS[state], timeout_s)
            for broker_name, ranges in halves.items()
        ]
        errors = [error for end in ends if (error := end.exception()) is not None]
        if errors:
            raise errors[0]

    def hand_over(self, halves: Mapping[str, Ranges], state: TransactionState) -> bool:
        """The same soon, with nobody waiting for it. False: nothing is done, decide."""
        if self._handed_over is None or len(halves) != 1:
            return False
        ((broker_name, ranges),) = halves.items()
        return self._handed_over.end(broker_name, ranges, _RESOLUTIONS[state])

    def _hand_on(
        self, topic: str, part: Part, deadline: float, how: Callable[[TopicDelivery], T]
    ) -> tuple[TopicDelivery, T]:
        """The delivery that has the part now, and what ``how`` answered."""
        try:
            delivery = self._delivery(Half(topic, self.group), deadline)
            delivery.admit(part, deadline)
            return delivery, how(delivery)
        except BaseException as error:
            if part.owner is not None:
                known = error if isinstance(error, PenstockError) else PenstockError(f"not sent: {error!r}")
                part.owner.on_given_up(part.count, known)
            raise

    def _ask(self, broker_name: str, request: EndRequest, timeout_s: float) -> None:
        self._calls.at_data_port(broker_name, Method.END, request.SerializeToString(), EndReply.FromString, timeout_s)

    def _start(self, broker_name: str, request: EndRequest) -> Future[EndReply]:
        address = self._calls.directory.master(broker_name)
        if address is None:
            raise BrokerUnavailable(f"broker group {broker_name} has no living master")
        content = request.SerializeToString()
        return self._calls.connections.ask(
            address, Method.END, content, EndReply.FromString, self.config.send_timeout_s
        )

    def _answer(self, broker_name: str, halves: Ranges, state: TransactionState) -> None:
        self._ends.end(broker_name, halves, _RESOLUTIONS[state], self.config.send_timeout_s, is_answer=True)

    def _known(self, transaction_id: str) -> TransactionState | None:
        """What was decided about a transaction here; UNKNOWN while it is under way, None to ask ``check``."""
        with self._lock:
            made = self._transactions.get(transaction_id)
        return None if made is None or made.is_left else made.state

    def _forget_some(self) -> None:
        """Forget the oldest that have ended; the lock is held."""
        oldest = list(itertools.islice(self._transactions.items(), len(self._transactions) - ENDED_KNOWN + 1))
        for transaction_id, made in oldest:
            if made.is_left or made.state is not TransactionState.UNKNOWN:
                del self._transactions[transaction_id]


def _traced(check: Check, trace: SendTrace) -> Check:
    """A check that does as ``check``, and tells what it has decided about messages that have an id."""

    def asked(message: MessageView) -> Any:
        state, found = check(message), message.all_properties
        if isinstance(state, TransactionState) and state is not TransactionState.UNKNOWN and UNIQ_KEY in found:
            transaction_id = found.get(TRANSACTION_ID) or message.message_id
            told = f"{state.name}_MESSAGE"
            trace.on_ended([(message.topic, message.message_id)], transaction_id, told, from_check=True)
        return state

    return asked
