"""The messages of one topic between ``produce`` and their receipts: threads and calls around :mod:`.lanes`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.formats.destination import Destination
from penstock.proto import errors
from penstock.proto.errors import PenstockError
from penstock.proto.wire.broker_pb2 import FLUSH_DISK_TIMEOUT, SEND_OK, AppendReceipt

from ..cluster import Connections, Directory, WriteQueues, store_host_of
from ..cluster.connections import Receipts
from ..cluster.retry import NEVER
from ..message import Delivery, FailedDelivery
from ..statistics import Stopwatch
from .accumulator import Accumulator
from .buffer import Buffer
from .config import ProducerConfig
from .health import BrokerHealth
from .lanes import Lanes
from .parts import Batch, Failure, Kind, Part, limited, new_part
from .receipts import Failures, receipts_of

if TYPE_CHECKING:
    from ..trace.sending import SendTrace
    from .encoding import Encoder

log = logging.getLogger(__name__)

TRY_TIMEOUT_S = 10.0  # of one Append; a frozen broker is noticed within 2.5 s by keepalive
TRY_TIMEOUT_S_MIN = 0.05
BODIES_SHOWN = 10


@dataclass(slots=True)
class Shipping:
    """The things that all destinations of one producer share."""

    config: ProducerConfig
    connections: Connections
    directory: Directory
    encoder: Encoder
    buffer: Buffer
    health: BrokerHealth
    wake: Callable[[], None]  # the sender
    may_wait: Callable[[], bool]  # for what the sender does
    on_delivery: Callable[[Delivery], None] | None
    trace: SendTrace | None = None
    failures: Failures = field(default_factory=Failures)

    def wait_for_room(self, cost: int, timeout_s: float) -> None:
        """Return when ``cost`` fits the buffer; at once, where the caller may not wait. Raises BufferFull."""
        if self.may_wait():
            self.buffer.wait_for_room(cost, timeout_s, self.wake)


class TopicDelivery:
    """The messages for one destination, from the accumulator to their receipts. Thread-safe.

    The lock guards everything but what ``produce`` does to ``open``; counts are read without it. A batch under way
    belongs to the thread that sends it; nobody else touches it until its outcome is known.
    """

    def __init__(self, destination: Destination, shipping: Shipping, queues: WriteQueues, turn: int) -> None:
        self.destination = destination
        self.topic = destination.topic
        self.open = Accumulator(shipping.buffer.room(shipping.config.batch_bytes_max))
        self._shipping = shipping
        self._config = shipping.config
        self._lock = threading.Lock()
        # Guarded by the lock, like everything but `open` and `_new_queues`.
        self._lanes = Lanes(self.topic, shipping.config, shipping.health, queues, turn)
        self._new_queues: WriteQueues | None = None  # put by the watch thread, taken under the lock
        self._tell: list[Callable[[], None]] = []  # futures to complete, outside the lock
        self._rests = False  # nothing was due when it was pumped last
        self.acknowledged = self.refused = self.unknown = 0  # messages
        self.batches = self.failed_tries = 0  # of batches
        self.stopwatch = Stopwatch()  # of acknowledged batches
        self._is_given_up = False  # once true, nothing is taken any more; never taken back

    # What callers' threads do.

    def seal(self) -> None:
        """Turn the open messages into parts that wait for a lane."""
        with self._lock:
            self._seal(time.monotonic())

    def enqueue(self, parts: Iterable[Part]) -> None:
        """Add parts behind everything accepted so far. Raises ClientClosed after :meth:`give_up`."""
        parts = list(parts)
        with self._lock:
            self._require_open(parts)
            self._seal(time.monotonic())
            self._lanes.add(parts)

    def join(self, part: Part) -> None:
        """Add one waiting message behind everything accepted so far, to an older one's batch where possible.

        Raises ClientClosed after :meth:`give_up`.
        """
        with self._lock:
            self._require_open([part])
            self._seal(time.monotonic())
            is_news = self._join(part)
        if is_news:
            self._shipping.wake()

    def start_now(self, part: Part) -> Batch | None:
        """A batch for the caller to :meth:`transmit`, if nothing has to go before ``part``; else it is joined.

        Raises ClientClosed after :meth:`give_up`.
        """
        now = time.monotonic()
        with self._lock:
            self._require_open([part])
            self._seal(now)
            self._adopt(now)
            if self._lanes.has_waiting or not self._lanes.queues.total:
                batch, is_news = None, self._join(part)
            else:
                batch = self._lanes.start_one(part, now)
                is_news = batch is None
        if is_news:
            self._shipping.wake()
        return batch

    def on_route(self, queues: WriteQueues) -> None:
        """Broker groups came, went or changed their master: the sender thread acts on it at once."""
        self._new_queues = queues
        self._shipping.wake()

    def admit(self, part: Part, deadline: float) -> None:
        """Count a part into the buffer as soon as there is room; at once, where the caller may not wait.

        Raises:
            BufferFull: there was none before the deadline; nobody sends it.
        """
        try:
            self._shipping.wait_for_room(part.held_bytes, max(deadline - time.monotonic(), 0.0))
        except BaseException as error:
            part.fail(error)
            raise
        self.hold(part)

    def hold(self, part: Part) -> None:
        if self._shipping.trace is not None:
            part.held_s = time.monotonic()
        part.ticket = self._shipping.buffer.hold(part.held_bytes, part.count)

    # What the sender thread does.

    def pump(self, now: float) -> float:
        """Start every batch that can go; when to call again at the latest."""
        master = self._shipping.directory.master
        with self._lock:
            if self._rests and self._is_idle():
                return NEVER  # as nearly all of very many do
            due = self._seal_if_due(now)
            self._adopt(now)
            self._fail(self._lanes.expire(now))
            self._end_late(self._lanes.late(now))
            batches = self._lanes.start(now, self._config.in_flight_per_broker, lambda name: bool(master(name)))
            due = min(due, self._lanes.next_due(now))
            self._rests = due == NEVER
        for batch in batches:
            self.transmit(batch)
        self._tell_all()
        return due

    def give_up(self, error: PenstockError) -> None:
        """Fail everything that is not settled, and take nothing more."""
        with self._lock:
            self._seal(time.monotonic())
            self._is_given_up = True
            self._fail(self._lanes.clear(error))
        self._tell_all()

    def check_taken(self, body: bytes, properties: bytes | None, key: str | None) -> None:
        """Make sure of the outcome of a message that was put into :attr:`open` while the producer was closing.

        Until :meth:`give_up` the message will have one: that takes everything out. A later message is taken back.

        Raises:
            ClientClosed: it was too late; the message is not sent.
        """
        with self._lock:
            if self._is_given_up and self.open.withdraw(body, properties, key):
                raise closed()

    def transmit(self, batch: Batch, *, wait: bool = False) -> None:
        """Send ``batch``; with ``wait`` in this thread until its outcome, else the outcome comes by callback."""
        shipping, name = self._shipping, batch.lane.broker_name
        address = shipping.directory.master(name)
        batch.sent_at = time.monotonic()
        if address is None:
            self._on_error(batch, errors.BrokerUnavailable(f"broker group {name} has no living master", no_master=True))
            return
        until = min(batch.deadline, batch.tells_at)
        timeout_s = max(min(until - batch.sent_at, TRY_TIMEOUT_S), TRY_TIMEOUT_S_MIN)
        try:
            if not batch.message:
                batch.message = shipping.encoder.frame(
                    batch,
                    self.destination,
                    store_host_of(address),
                    timeout_ms=max(int(timeout_s * 900), 1),
                    no_wait=batch.parts[0].no_wait or batch.parts[0].kind is Kind.ONEWAY,
                )
            if batch.lane.batch is not batch:
                return  # given up, and told so: nobody may send it now
            message = shipping.encoder.again(batch.message) if batch.attempts else batch.message
            answer = shipping.connections.append(address, message, timeout_s, is_awaited=wait)
            if shipping.directory.master(name) not in (address, None):
                shipping.connections.data.leave(address)  # the route changed meanwhile: who left it then was early
            if not wait:
                answer.add_done_callback(partial(self._on_answer, batch, address))
                return
            receipt = self._awaited(batch, address, answer)
        except PenstockError as error:
            self._on_error(batch, error)
        except Exception as error:  # what cannot be encoded or sent must not stop the other batches
            log.exception("batch not sent topic=%s count=%d", self.topic, batch.count)
            self._on_error(batch, PenstockError(f"topic {self.topic}: batch not sent: {error!r}"), is_final=True)
        else:
            self._on_receipt(batch, receipt, address)

    def _awaited(self, batch: Batch, address: str, answer: Future[AppendReceipt]) -> AppendReceipt:
        try:
            return answer.result()
        except (KeyboardInterrupt, SystemExit):  # the sender goes; the batch still frees its lane
            answer.add_done_callback(partial(self._on_answer, batch, address))
            raise

    # The lock is held.

    def _is_idle(self) -> bool:
        """True if nothing came since it was pumped, and nothing is under way."""
        lanes = self._lanes
        if self.open or self._new_queues is not None or self._tell or lanes.has_waiting:
            return False
        return all(lane.batch is None and not lane.pending for lane in lanes.lanes.values())

    def _adopt(self, now: float) -> None:
        queues, self._new_queues = self._new_queues, None
        if queues is not None:
            self._rests = False
            self._lanes.adopt(queues, now)

    def _require_open(self, parts: list[Part]) -> None:
        """Refuse parts that nobody would send, and count them out of the buffer again."""
        if self._is_given_up:
            error = closed()
            for part in parts:
                self._shipping.buffer.settle(part)
                part.fail(error)
            raise error

    def _seal(self, now: float) -> None:
        if self._is_given_up or not self.open:
            return
        taken = self.open.drain()
        deadline = now + self._config.delivery_timeout_s
        part = new_part(Kind.PRODUCE, taken.bodies, taken.properties, deadline)
        if taken.keys is not None:
            part.set_hashes(taken.keys)
        self.hold(part)
        self.open.limit = self._shipping.buffer.room(self._config.batch_bytes_max)
        # Threads that append at the same time may overshoot the limits a little, which is harmless.
        self._lanes.add(limited(part, self._config.batch_bytes_max * 2, self._config.batch_count_max * 2))

    def _seal_if_due(self, now: float) -> float:
        if not self.open:
            return NEVER
        if self.open.opened_at is None:
            self.open.opened_at = now
        due = self.open.opened_at + self._config.linger_ms / 1000
        if now < due:
            return due
        self._seal(now)
        return NEVER

    def _join(self, part: Part) -> bool:
        """Add a waiting message. Returns True if the sender thread has to hear of it.

        The thread knows of what ``part`` may join, until that is half full.
        """
        taken_by = self._lanes.join(part)
        if taken_by is None:
            return True
        self._shipping.buffer.merge(taken_by.ticket, part.ticket)
        return taken_by.cost - part.cost < self._lanes.half_full <= taken_by.cost

    # Outcomes, in the thread of the call.

    def _on_answer(self, batch: Batch, address: str, answer: Receipts) -> None:
        try:
            receipt = answer.result()
        except PenstockError as error:
            self._on_error(batch, error)
        else:
            self._on_receipt(batch, receipt, address)

    def _on_receipt(self, batch: Batch, receipt: AppendReceipt, address: str) -> None:
        now = time.monotonic()
        self._shipping.health.on_latency(batch.lane.broker_name, (now - batch.sent_at) * 1000, now * 1000)
        first = batch.parts[0]
        if receipt.status != SEND_OK and any(part.kind is Kind.PRODUCE or part.owner for part in batch.parts):
            if first.owner is None:
                self._tell_senders(batch, receipt, address)
            kind = errors.FlushTimeout if receipt.status == FLUSH_DISK_TIMEOUT else errors.ReplicaTimeout
            self._on_error(batch, kind(f"broker {address}: stored, not confirmed within the broker's time-out"))
            return
        with self._lock:
            if batch.lane.batch is not batch:
                return  # given up while it was under way
            self._lanes.acknowledged(batch)
            self.acknowledged += batch.count
            self.batches += 1
            self._shipping.buffer.trouble = ""
            self.stopwatch.add(now - batch.sent_at)
            futures = [future for part in batch.parts for future in part.futures]
            has_more = bool(self._lanes.has_waiting or batch.lane.pending)
        if has_more:
            self._shipping.wake()
        if first.owner is not None:
            _tell_owners(batch, receipt)
        if futures:
            receipts = receipts_of(self.destination, batch, receipt, store_host_of(address))
            for future, one in zip(futures, receipts, strict=True):
                _complete(future, one)
        if self._shipping.trace is not None:  # before the parts are counted out, since a close waits for that
            self._shipping.trace.on_stored(self.destination, batch, receipt, address)
        for part in batch.parts:
            self._report(part, batch.lane.broker_name, None)

    def _tell_senders(self, batch: Batch, receipt: AppendReceipt, address: str) -> None:
        """Tell those that wait for messages of the batch how they are stored; for the others it is tried on."""
        with self._lock:
            receipts = receipts_of(self.destination, batch, receipt, store_host_of(address))
            futures = batch.take_late(NEVER)
        for future, one in zip(futures, receipts, strict=True):
            _complete(future, one)

    def _on_error(self, batch: Batch, error: PenstockError, *, is_final: bool = False) -> None:
        """A try has failed; ``is_final``: there can be no other."""
        log.debug("append failed topic=%s broker=%s %s", self.topic, batch.lane.broker_name, error)
        with self._lock:
            if batch.lane.batch is not batch:
                return
            lanes = self._lanes
            self.failed_tries += 1
            self._shipping.buffer.trouble = error.message
            self._fail([lanes.failed(batch, error)] if is_final else lanes.on_error(batch, error, time.monotonic()))
        self._shipping.wake()
        self._tell_all()

    def _fail(self, failures: list[Failure]) -> None:
        for parts, error in failures:
            for part in parts:
                if isinstance(error, errors.OutcomeUnknown):
                    self.unknown += part.count
                else:
                    self.refused += part.count
                if part.kind is Kind.PRODUCE and part.owner is None:
                    failed = FailedDelivery(self.topic, part.count, error, part.first_bodies(BODIES_SHOWN))
                    self._shipping.failures.add(failed)
                self._tell.append(partial(self._end, part, error))

    def _end_late(self, futures: list[Future[Any]]) -> None:
        error = errors.OutcomeUnknown(
            f"topic {self.topic}: no answer when the time was up: it may be stored, or be yet"
        )
        self._tell += [partial(_complete, future, error=error) for future in futures]

    def _end(self, part: Part, error: PenstockError) -> None:
        if part.owner is not None:
            part.owner.on_given_up(part.count, error)
        for future in part.futures:
            _complete(future, error=error)
        if self._shipping.trace is not None:  # as above
            self._shipping.trace.on_failed(self.destination, part)
        self._report(part, "", error)

    def _report(self, part: Part, broker_name: str, error: PenstockError | None) -> None:
        """Tell ``on_delivery``, then count the part out."""
        on_delivery = self._shipping.on_delivery
        try:
            if on_delivery is not None and part.kind is Kind.PRODUCE and part.owner is None:
                on_delivery(Delivery(self.topic, broker_name, part.bodies_as_given(), error))
        except BaseException:  # what a user's function raises must not cost other messages their outcome
            log.exception("on_delivery failed topic=%s count=%d", self.topic, part.count)
        finally:
            self._shipping.buffer.settle(part)

    def _tell_all(self) -> None:
        """Complete futures outside the lock: what users hang on them may call the producer again."""
        if not self._tell:
            return
        with self._lock:
            telling, self._tell = self._tell, []
        for tell in telling:
            tell()


def _tell_owners(batch: Batch, receipt: AppendReceipt) -> None:
    offset = receipt.queue_offsets[0]  # owned messages are stored in one queue
    for part in batch.parts:
        if part.owner is not None:
            part.owner.on_stored(batch.lane.broker_name, offset, part.count, receipt.epoch)
        offset += part.count


def closed() -> errors.ClientClosed:
    return errors.ClientClosed("the producer is closed: make a new one")


def _complete(future: Future[Any], receipt: object = None, error: PenstockError | None = None) -> None:
    try:
        if error is not None:
            future.set_exception(error)
        elif receipt is not None:
            future.set_result(receipt)
    except InvalidStateError:
        pass  # cancelled by its owner, who wants no answer
    except BaseException:  # of a user's callback that is no Exception: concurrent.futures lets it through
        log.exception("callback of a future failed")
