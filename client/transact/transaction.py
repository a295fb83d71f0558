"""One transaction of a producer: its halves, and the decision about them."""

from __future__ import annotations

import enum
import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.formats.columns import Column, with_property
from penstock.formats.record import properties as names
from penstock.formats.record.unique_key import new_unique_key
from penstock.proto.errors import InvalidArgument, OutcomeUnknown, PenstockError, TransactionEnded

from .. import arguments
from ..cluster import check_timeout, reworded
from ..message import SendReceipt
from ..produce.accumulator import MORE, Accumulator
from ..produce.drafts import Draft, PartMaker
from ..produce.keys import property_bytes
from ..produce.parts import RECORD_COST, Kind, Part, new_part
from .ranges import Ranges

if TYPE_CHECKING:
    from ..trace.sending import SendTrace
    from ..transaction_producer import TransactionProducer

log = logging.getLogger(__name__)

TRACED_MAX: Final = 1000
"""Messages of one transaction whose end is traced."""
ROOM: Final = 1024
"""What a half's properties leave free: for where it belongs, and what brokers add."""


class TransactionState(enum.Enum):
    """What a producer has decided about a transaction."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"  # not yet: the broker asks again


class Transaction:
    """Messages that consumers see when it is committed, and never if it is rolled back.

    Made by :meth:`~penstock.client.TransactionProducer.transaction`. Used with ``with``, its end commits, and an
    exception rolls back and goes on. ``send`` waits until a message is stored; ``produce`` and ``produce_many`` buffer,
    and the commit waits for all. Messages at one broker group are committed together, up to some thousands; those at
    several one group after the other.

    Thread-safe. An end that did not get its answer may be called again, and decides nothing twice.
    """

    def __init__(
        self,
        producer: TransactionProducer,
        maker: PartMaker,
        *,
        timeout_s: float,
        check_after_s: float | None,
        transaction_id: str | None = None,
        trace: SendTrace | None = None,
    ) -> None:
        if not isinstance(transaction_id, (str, type(None))):
            raise arguments.wrong("transaction_id", transaction_id, "text", InvalidArgument)
        self.id = transaction_id or new_unique_key()
        """What tells it from every other transaction: property ``__transactionId__`` of its messages."""
        self.state = TransactionState.UNKNOWN
        """What was decided, and perhaps not answered yet. Written under the lock."""
        self.is_left = False
        """True once nobody decides here any more: the broker asks ``check``."""
        self._own = own_properties(self.id, check_after_s)
        self._producer = producer
        self._maker = maker
        self._timeout_s = timeout_s
        self._trace = trace
        self._sent: list[tuple[str, str]] = []  # topic and id of messages, for the trace of its end
        self._deciding = threading.Lock()  # held while an end is under way
        self._changed = threading.Condition()  # guards what follows
        self._pending = 0  # halves whose outcome is not known
        self._stored: dict[str, Ranges] = {}  # by broker name
        self._error: PenstockError | None = None  # of the first half that was not stored, or may not be
        self._open: dict[str, Accumulator] = {}  # by topic; replaced by an end
        self._tags: dict[str | None, bytes] = {None: self._own}
        self._sealing = threading.Lock()  # one thread at a time takes messages out of `_open`

    def __repr__(self) -> str:
        return f"Transaction(id={self.id!r}, state={self.state.name})"

    # Its messages.

    def send(
        self,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: Sequence[str] | str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        *,
        message_id: str | None = None,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Send one message and wait until it is stored, for nobody to see yet. ``message_id``: as of ``Producer.send``.

        The receipt has no queue offset: the message gets one when it is committed.

        Raises:
            Refused, Retryable: not stored. OutcomeUnknown: it may be; it is never seen unless ``check`` says so.
            TransactionEnded: it is decided already.
        """
        deadline = time.monotonic() + check_timeout(self._timeout_s if timeout_s is None else timeout_s)
        draft = Draft(topic, body, tag, keys, properties, sharding_key, message_id=message_id)
        part = half_of(draft, self._own, self._maker, deadline)
        self._take(part)
        receipt = self._producer.send_half(topic, part, deadline)
        if self._trace is not None and len(self._sent) < TRACED_MAX:
            self._sent.append((topic, receipt.message_id))
        return receipt._replace(transaction_id=self.id)

    def produce(
        self,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: Sequence[str] | str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
    ) -> None:
        """Buffer one message; the commit waits until it is stored.

        Raises:
            BufferFull: the buffer stayed full. Refused: a bad argument. TransactionEnded: it is decided already.
        """
        accumulator = self._open.get(topic)
        if accumulator is None:
            accumulator = self._opened(topic)
        if keys is None and properties is None and sharding_key is None:
            encoded = self._tags.get(tag)
            if encoded is None:
                encoded = self._tags[tag] = _with_own(self._own, property_bytes(tag, None, None, None))
        else:
            encoded = _with_own(self._own, property_bytes(tag, keys, properties, sharding_key))
        if type(body) is not bytes or not 0 < len(body) < self._maker.plain_below:
            self._enqueue(topic, [self._maker.produced(topic, body, encoded, sharding_key, 0.0)])
            return
        cost = accumulator.cost + len(body) + len(encoded) + RECORD_COST
        accumulator.extend((MORE, body, encoded, sharding_key))
        accumulator.cost = cost
        if cost > accumulator.limit:
            self._seal(topic)
        if self._open.get(topic) is not accumulator:
            with self._changed:  # an end takes what is open, unless it is gone already
                if self._open.get(topic) is not accumulator and accumulator.withdraw(body, encoded, sharding_key):
                    self._require_open()

    def produce_many(
        self,
        topic: str,
        bodies: Any,
        tags: str | Sequence[str | None] | None = None,
        keys: str | Sequence[Any] | None = None,
        sharding_keys: Any = None,
    ) -> None:
        """Buffer many messages in one call, as :meth:`~penstock.client.Producer.produce_many` takes them."""
        self._require_open()
        for part in self._maker.columnar(topic, bodies, tags, keys, sharding_keys):
            own = Column.repeated(self._own[len(names.TRANSACTION_ID) + 1 : -1], part.count)
            part.properties = with_property(part.property_column(), names.TRANSACTION_ID, own)
            part.cost += len(self._own) * part.count
            self._enqueue(topic, [part])

    # Its end.

    def commit(self, timeout_s: float | None = None) -> None:
        """Have its messages seen. May be called again, also after an error that left the outcome open.

        Raises:
            TransactionEnded: it is rolled back.
            OutcomeUnknown: no answer in time: call it again, or leave it to ``check``.
            PenstockError: a message could not be stored; everything is rolled back.
        """
        self._end(TransactionState.COMMIT, timeout_s)

    def rollback(self, timeout_s: float | None = None) -> None:
        """Have its messages never seen. May be called again.

        Raises:
            TransactionEnded: it is committed. OutcomeUnknown: no answer in time.
        """
        self._end(TransactionState.ROLLBACK, timeout_s)

    def leave(self) -> None:
        """Decide nothing here: the broker will ask ``check``, of this producer or another of its group.

        Messages that were buffered, and not sent yet, go with it.
        """
        with self._changed:
            self._open = {}
            self.is_left = True

    def conclude(self, state: object) -> None:
        """Do as ``execute`` says, and wait for nothing, if the producer can mend it.

        Raises:
            InvalidArgument: that is no TransactionState; nothing is decided.
        """
        if state is TransactionState.COMMIT or state is TransactionState.ROLLBACK:
            self._end(state, None, waits=False)
        else:
            self.leave()
            if state is not TransactionState.UNKNOWN:
                raise InvalidArgument(
                    f"execute returned {state!r:.60}, not a TransactionState: nothing is decided, check will be asked"
                )

    @property
    def halves(self) -> list[tuple[str, int]]:
        """Where its stored messages lie until it is decided: names of broker groups, and offsets of halves there."""
        with self._changed:
            return [(name, offset) for name, ranges in self._stored.items() for offset in ranges]

    def give_up(self) -> None:
        """Have it rolled back as brokers ask about it: for one whose messages may not be stored at all."""
        with self._changed:
            self._open = {}
            self.state = TransactionState.ROLLBACK

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if self.is_left or self.state is not TransactionState.UNKNOWN:
            return  # the block has decided
        if error is None:
            self.commit()
            return
        try:
            self.rollback()
        except PenstockError as failed:  # the error that is on its way says more
            log.warning("transaction not rolled back yet, the broker will ask id=%s error=%s", self.id, failed)

    # What the delivery says of halves; any thread.

    def on_stored(self, broker_name: str, first: int, count: int, epoch: int) -> None:
        """So many halves lie at that broker group, from that offset on, which is of that epoch of its log."""
        with self._changed:
            self._stored.setdefault(broker_name, Ranges()).add(first, count, epoch)
            self._pending -= count
            self._changed.notify_all()

    def on_given_up(self, count: int, error: PenstockError) -> None:
        """So many halves are not stored, or it is not known."""
        with self._changed:
            self._error = self._error or error
            self._pending -= count
            self._changed.notify_all()

    # Inside.

    def _require_open(self) -> None:
        if self.is_left or self.state is not TransactionState.UNKNOWN:
            told = "left to the broker's question" if self.is_left else f"ended by a {self.state.value}"
            raise TransactionEnded(f"transaction {self.id} is {told}: begin another", state=self.state.name)

    def _opened(self, topic: str) -> Accumulator:
        with self._changed:
            self._require_open()
            return self._open.setdefault(topic, Accumulator(self._maker.batch_bytes_max))

    def _take(self, part: Part) -> None:
        """Count the halves of ``part``: their outcome is waited for."""
        part.owner = self
        with self._changed:
            self._require_open()
            self._pending += part.count

    def _enqueue(self, topic: str, parts: list[Part]) -> None:
        for part in parts:
            part.deadline = time.monotonic() + self._timeout_s
            self._take(part)
            self._producer.produce_halves(topic, part, part.deadline)

    def _seal(self, topic: str) -> None:
        """Send what was produced to ``topic`` and waits here."""
        with self._sealing:
            accumulator = self._open.get(topic)
            if not accumulator:
                return
            taken = accumulator.drain()
            part = new_part(Kind.PRODUCE, taken.bodies, taken.properties, 0.0)
            if taken.keys is not None:
                part.set_hashes(taken.keys)
            self._enqueue(topic, self._maker.limited(part))

    def _end(self, state: TransactionState, timeout_s: float | None, *, waits: bool = True) -> None:
        deadline = time.monotonic() + check_timeout(self._timeout_s if timeout_s is None else timeout_s)
        with self._deciding:
            if self.state not in (TransactionState.UNKNOWN, state):
                raise TransactionEnded(
                    f"transaction {self.id} was ended by a {self.state.value}: nothing else can be decided any more",
                    state=self.state.name,
                )
            if self.state is TransactionState.UNKNOWN:
                self._settle(state, deadline)
            if not waits and self._producer.hand_over(self._stored, state):
                self._tell()
                return
            try:
                self._producer.decide(self._stored, state, max(deadline - time.monotonic(), 0.0))
            except PenstockError as error:
                if not error.retryable:
                    raise
                told = f"not known to be decided: {state.value} it again, or leave it to check"
                raise OutcomeUnknown(reworded(error, f"transaction {self.id} is {told}").message) from error
            self._tell()

    def _settle(self, state: TransactionState, deadline: float) -> None:
        """Wait for the halves, then decide: from here on nothing else can be decided."""
        is_decided = False
        while not is_decided:  # others may produce meanwhile
            if state is TransactionState.COMMIT:
                for topic in list(self._open):
                    self._seal(topic)
            is_decided = self._decides(state, deadline)
        error = self._error if state is TransactionState.COMMIT else None
        if error is not None:
            try:
                self._producer.decide(self._stored, self.state, max(deadline - time.monotonic(), 0.0))
            except PenstockError as failed:
                log.warning("transaction not rolled back yet, the broker will ask id=%s error=%s", self.id, failed)
            else:
                self._tell()
            raise error

    def _decides(self, state: TransactionState, deadline: float) -> bool:
        """Wait for the halves that are sent, and decide; False: some of what is to be committed is to be sent first."""
        is_commit = state is TransactionState.COMMIT
        with self._sealing, self._changed:
            self._changed.wait_for(lambda: self._pending == 0, max(deadline - time.monotonic(), 0.0))
            if is_commit and self._pending:
                raise OutcomeUnknown(
                    f"transaction {self.id}: {self._pending} messages are not stored yet, nothing is decided: commit "
                    "it again, or roll it back"
                )
            left, self._open = self._open, {}
            if is_commit and any(left.values()):
                self._open = left
                return False
            self.state = TransactionState.ROLLBACK if is_commit and self._error is not None else state
        return True

    def _tell(self) -> None:
        """Trace the end, once."""
        sent, self._sent = self._sent, []
        if self._trace is not None and sent:
            self._trace.on_ended(sent, self.id, f"{self.state.name}_MESSAGE", from_check=False)


def own_properties(transaction_id: str, check_after_s: float | None) -> bytes:
    """What the halves of a transaction say of it, as a property string."""
    own = {names.TRANSACTION_ID: transaction_id}
    if check_after_s is not None:
        given: Any = check_after_s
        is_number = isinstance(given, Real)
        if not is_number or not 0 <= given < math.inf:
            raise arguments.wrong("check_after_s", given, "0 or more seconds", InvalidArgument)
        own[names.CHECK_IMMUNITY_SECONDS] = str(round(check_after_s))
    return names.encode_properties(own)


def half_of(draft: Draft, own: bytes, maker: PartMaker, deadline: float) -> Part:
    """One message as a half, by what its transaction says. Raises InvalidArgument: it cannot be one."""
    if draft.due_ms is not None or draft.delay_level is not None:
        raise InvalidArgument(f"topic {draft.topic}: a message of a transaction cannot have a time or a delay level")
    part = maker.one(Kind.SEND, draft, deadline)
    part.properties = [_with_own(own, encoded) for encoded in part.properties or ()]
    return part


def _with_own(own: bytes, encoded: bytes | None) -> bytes:
    """The property string of a half, from that of its transaction and that of its message. Raises InvalidArgument."""
    if encoded is None:
        return own
    if len(encoded) > names.PROPERTIES_ROOM - ROOM:
        raise InvalidArgument(
            f"properties take {len(encoded)} bytes: at most {names.PROPERTIES_ROOM - ROOM} are allowed in a transaction"
        )
    return own + encoded
