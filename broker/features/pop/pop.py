"""POP: messages are received one by one, each for a time, by any number of consumers of a queue.

What is given out, and what becomes of it, is said by ops (:mod:`.ops`), so it survives whatever the log survives. A
receive is answered when its op is as safe as the mode promises: so nobody else is given the same before its time, at
the next master either. A message that is not acknowledged in time is copied into the group's retry topic, which every
receive of the group reads too, or becomes a dead letter; those of an orderly group come again in their place until they
become dead letters.

A group pops, or its members claim queues: not both at the same time.

Source: RocketMQ ``PopMessageProcessor``, ``AckMessageProcessor``, ``PopReviveService``; differs: the state of a queue
is a table that follows from binary ops, not from a timer topic; the retry topic is the one that push consumers have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from penstock.proto import names
from penstock.proto.data_frames import Method
from penstock.proto.errors import BrokerUnavailable, FlowControl, Forbidden, GroupNotFound
from penstock.proto.wire import pop_pb2 as wire
from penstock.runtime.data.port import Converse, Link
from penstock.runtime.data.sending import Data

from ...core.core import Core
from ...core.data_calls import DataCalls
from ...core.failed import ensure_group
from ...core.feature import Feature, Hold
from ...core.journal import Journal
from ...core.metrics import Families
from ...core.wire import Service, service
from ...store.absent import bring
from .finishing import Finisher
from .giving import Given, Giver
from .kernels import NEVER
from .request import Receipts, Wanted, Wants, check_invisible, receipts_of
from .state import QUEUE, PopState, flights
from .table import POP_GROUP, PopTable
from .waiting import Waiters

log = logging.getLogger(__name__)

TICK_S: Final = 0.05
SETTLE_S: Final = 1.0
RETRY_S: Final = 1.0
POPS_S: Final = 30.0
"""So long after its last receive a group still pops."""


class Pop(Feature):
    """Gives messages out, and looks after those in flight."""

    tables = (PopTable,)

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.state = PopState(core)
        self.waiters = Waiters(core.config.limits.fetches_max, core.dispatcher.hurry)
        self._giver = Giver(core, self.state)
        self._finisher = Finisher(core, self.state)
        self._table = core.tables[PopTable]
        self._received: dict[str, float] = {}  # group -> when it received last, by the monotonic clock
        self._given = 0
        self._settle_at = 0.0
        self._wants = Wants(core.tables, core.config.topics.property_filter)
        self._calls = (
            _Receives(self.receive, core.config.limits.fetches_max),
            DataCalls(Method.ACKNOWLEDGE, wire.AcknowledgeRequest, self.acknowledge),
            DataCalls(Method.CHANGE_INVISIBLE, wire.ChangeInvisibleRequest, self.change_invisible),
        )

    def services(self) -> Iterable[Service]:
        yield service(
            wire.DESCRIPTOR.services_by_name["Pop"],
            ForwardToDeadLetters=self.forward,
            DescribePop=self.describe_pop,
        )

    def data_methods(self) -> Mapping[int, Converse]:
        return {calls.method: calls for calls in self._calls}

    # What consumers ask.

    async def receive(self, header: bytes, has_room: Callable[[], bool] = lambda: True) -> list[Data]:
        """A framed :class:`ReceiveReply` with records, at once or when there is something, or the wait ran out.

        ``header``: the bytes of a ``ReceiveHeader``, which are decoded once of all that ask alike.
        Its pieces may be views of the log, as a fetch's are. Nothing is given unless ``has_room()``: the client takes
        its answers. What was given to one that goes before it is safe comes again at once.

        Raises:
            InvalidName, InvalidArgument, Forbidden, TopicNotFound, GroupNotFound, LimitReached: nothing was given.
            FlowControl, NotMaster, NotEnoughReplicas, BrokerUnavailable, DiskFull: the same; try again.
            OutcomeUnknown: given, and not known to be safe: the messages come again when their time is over.
        """
        journal = await self._ready()
        wanted = self._wants.of(header)
        is_orderly = self._check_group(journal, wanted.group)
        self._received[wanted.group] = self.core.clock.monotonic_s()
        given = await self._give(journal, wanted, is_orderly, has_room)
        if not given.count and wanted.wait_s:
            given = await self._awaited(journal, wanted, is_orderly, has_room, given)
            self._received[wanted.group] = self.core.clock.monotonic_s()
        if given.ops:
            try:
                await self.core.acknowledgements.safe(self.state.end, f"receive of group {wanted.group}")
            except asyncio.CancelledError:  # whoever asked has gone: others may have them now
                self._finisher.release(journal, given.ops, given.point, self.state.now_ms())
                for op in given.ops:
                    self.waiters.wake(op.topic)
                raise
        self._given += given.count
        return self._giver.pieces(given, self.core.role.epoch)

    async def _awaited(
        self, journal: Journal, wanted: Wanted, is_orderly: bool, has_room: Callable[[], bool], given: Given
    ) -> Given:
        """What is given when there is something, or the wait ran out; ``given``: what was."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wanted.wait_s
        topics = [*(each.topic for each in wanted.subscribed), names.RETRY_PREFIX + wanted.group]
        while not given.count and self.core.events.is_open and not journal.is_over and loop.time() < deadline:
            with self.waiters.waiting(topics) as woken:
                given = await self._give(journal, wanted, is_orderly, has_room)  # what came before somebody waited
                if not given.count:
                    timer = loop.call_at(deadline, _finish, woken)
                    try:
                        await woken
                    finally:
                        timer.cancel()
                    if self.core.events.is_open:
                        given = await self._give(journal, wanted, is_orderly, has_room)
        return given

    async def acknowledge(self, request: wire.AcknowledgeRequest) -> wire.AcknowledgeReply:
        """Finish messages by their receipts.

        Raises:
            InvalidName, InvalidArgument: nothing was done.
            NotMaster, NotEnoughReplicas, BrokerUnavailable, DiskFull: the same; repeat the call.
            OutcomeUnknown: done, and not known to be safe; repeat the call.
        """
        journal = await self._ready()
        receipts = receipts_of(request.group, request.receipts, self._op_end)
        statuses = self._finisher.acknowledge(journal, request.group, receipts, self.state.now_ms())
        self._wake(receipts, request.group)
        await self.core.acknowledgements.safe(self.state.end, f"acknowledgement of group {request.group}")
        return wire.AcknowledgeReply(statuses=statuses)

    async def change_invisible(self, request: wire.ChangeInvisibleRequest) -> wire.ChangeInvisibleReply:
        """Have messages come again at another time. Raises as :meth:`acknowledge`."""
        check_invisible(f"change of group {request.group[:100]}", request.invisible_ms, 0)
        journal = await self._ready()
        receipts = receipts_of(request.group, request.receipts, self._op_end)
        now_ms = self.state.now_ms()
        visible_ms = now_ms + request.invisible_ms
        if request.is_given_back:
            statuses, point = self._finisher.give_back(journal, request.group, receipts, now_ms)
            for each in receipts:
                self.waiters.wake(each.topic)
        else:
            statuses, point = self._finisher.change(
                *(journal, request.group, receipts, now_ms, visible_ms), keeps_receipts=request.keeps_receipts
            )
        await self.core.acknowledgements.safe(self.state.end, f"change of group {request.group}")
        epoch = self.core.role.epoch
        return wire.ChangeInvisibleReply(statuses=statuses, check_point=point, epoch=epoch, visible_ms=visible_ms)

    async def forward(self, request: wire.ForwardRequest) -> wire.AcknowledgeReply:
        """Make dead letters of messages. Raises as :meth:`acknowledge`."""
        journal = await self._ready()
        receipts = receipts_of(request.group, request.receipts, self._op_end)
        statuses = await self._finisher.forward(journal, request.group, receipts, self.state.now_ms())
        self._wake(receipts, request.group)
        await self.core.acknowledgements.safe(self.state.end, f"dead letters of group {request.group}")
        return wire.AcknowledgeReply(statuses=statuses)

    async def describe_pop(self, request: wire.PopGroup) -> wire.PopDescription:
        """What a group has in flight."""
        group = names.check_group(request.group)
        journal = self.core.writable()
        if self.core.tables.groups.get(group) is None:
            raise GroupNotFound(f"group {group} does not exist at this broker", group=group)
        await self.state.load(journal)
        queues = [queue for queue in self.state.queues.values() if queue.group == group]
        reply = wire.PopDescription(pops=bool(self.consumed_by(group)), in_flight=sum(map(len, queues)))
        for queue in sorted(queues, key=lambda queue: (queue.topic, queue.queue_id)):
            reply.queues.add(
                topic=queue.topic,
                queue_id=queue.queue_id,
                committed=queue.low,
                next=queue.next,
                in_flight=len(queue),
            )
        return reply

    # Its place in the broker.

    def consumed_by(self, group: str) -> str:
        received = self._received.get(group)
        if received is None or self.core.clock.monotonic_s() - received > POPS_S:
            return ""
        return "simple consumers, which pop"

    def holds(self) -> Iterable[Hold]:
        if self._table.held:
            yield Hold("messages of POP groups are in flight", self._table.held, self._on_taken, self.state.make_way)

    def describe(self, families: Families) -> None:
        families.gauge("penstock_pop_in_flight", "Messages that POP consumers were given", self.state.in_flight)
        families.gauge("penstock_pop_waiting", "Receives that wait for messages", self.waiters.count)
        families.counter("penstock_pop_received", "Messages that were given out", self._given)
        for name, doc, found in (
            ("penstock_pop_acknowledged", "Messages that were acknowledged one by one", self._finisher.acknowledged),
            ("penstock_pop_retries", "Messages that come again: nobody acknowledged them", self._finisher.again),
            ("penstock_pop_dead", "Messages of POP groups that became dead letters", self._finisher.dead),
        ):
            rows = [((group,), count) for group, count in found.items()]
            families.counters(name, doc, ("consumer_group",), rows)

    def start(self) -> None:
        self.core.dispatcher.watchers.append(self.waiters)

    def on_role(self, journal: Journal | None) -> None:
        self.state.on_role()
        self._received.clear()
        self.waiters.wake_all()

    async def run(self) -> None:
        """Look after messages in flight; what goes wrong is logged and tried again."""
        await self.take_turns(self.turn, TICK_S, RETRY_S, "messages in flight not looked after")

    async def turn(self) -> None:
        """Let come again what is due, and record how far everything is done with."""
        journal = self.core.events.journal
        if journal is None or not self._table.groups or not self.core.role.can_acknowledge():
            return
        self.core.dispatcher.catch_up()
        await self.state.load(journal)
        await self._finisher.finish(journal)
        now_ms = self.state.now_ms()
        failure: Exception | None = None
        for queue in flights(list(self.state.queues.values()), now_ms):
            try:
                await self._finisher.revive(journal, queue)
            except Exception as error:  # noqa: BLE001  raised below: what keeps one group need not keep the others
                failure = failure or error
            if queue.is_orderly:
                self.waiters.wake(queue.topic)
        now_s = self.core.clock.monotonic_s()
        if now_s >= self._settle_at and not journal.is_over and self.core.role.can_acknowledge():
            self._settle_at = now_s + SETTLE_S
            self.state.settle(journal)
        if failure is not None:
            raise failure

    async def stop(self) -> None:
        self.waiters.wake_all()
        for calls in self._calls:
            await calls.close()

    async def _ready(self) -> Journal:
        if not self.core.events.is_open:
            raise BrokerUnavailable("the broker is shutting down")
        journal = self.core.writable()
        if not self.state.is_loaded:
            self.core.dispatcher.catch_up()
            await self.state.load(journal)
            journal = self.core.writable()
        return journal

    def _check_group(self, journal: Journal, name: str) -> bool:
        """True if the group is orderly. It is created, and enters itself as one that pops, where it must."""
        group = self.core.tables.groups.get(name) or ensure_group(self.core, journal, name)
        if not group.consume_enable:
            raise Forbidden(f"group {name} may not consume: its consumeEnable is false")
        self.core.features.check_consumer(self, name)
        if name not in self._table.groups:
            journal.put(POP_GROUP, {"group": name})
        return group.orderly

    async def _give(self, journal: Journal, wanted: Wanted, is_orderly: bool, has_room: Callable[[], bool]) -> Given:
        self.core.dispatcher.catch_up(self._giver.asked(wanted))
        queues = self._giver.looked_at(journal, wanted)
        absent = self._giver.absent(wanted, queues)
        if absent:
            await asyncio.to_thread(bring, absent)
        if journal.is_over:
            raise BrokerUnavailable("the broker has ceased to be master meanwhile: ask the new one")
        if absent:
            queues = self._giver.looked_at(journal, wanted)
        if not has_room():
            raise FlowControl(f"receive of group {wanted.group}: answers over this connection are not taken: read them")
        return self._giver.give(journal, wanted, queues, self.state.now_ms(), is_orderly)

    def _op_end(self, epoch: int) -> int:
        """See :func:`receipts_of`. Of a later epoch than this master's nobody who asks here can have any."""
        role = self.core.role
        log_end = role.history.end_of_epoch(epoch) if epoch else None
        if log_end is None:
            return 0 if epoch > role.epoch else NEVER
        return self.core.store.removal.first_from(names.POP_TOPIC, QUEUE, log_end)

    def _wake(self, receipts: Iterable[Receipts], group: str) -> None:
        """An acknowledgement may have opened queues of an orderly group."""
        found = self.core.tables.groups.get(group)
        if found is not None and found.orderly:
            for topic in {each.topic for each in receipts}:
                self.waiters.wake(topic)

    def _on_taken(self, base: int, end: int) -> None:
        log.error("log file goes with messages in flight base=%d end=%d: they do not come again", base, end)


class _Receives(DataCalls[bytes]):
    """Receives over the data port. Those that wait hold up nothing else that comes over their connection."""

    def __init__(self, receive: Callable[..., Awaitable[list[Data]]], waiting_max: int) -> None:
        super().__init__(Method.RECEIVE, bytes, receive, under_way_max=waiting_max, may_end=True)
        self._receive = receive

    def request(self, content: memoryview) -> bytes:
        return bytes(content)

    async def found(self, request: bytes, link: Link) -> Sequence[Data]:
        return await self._receive(request, lambda: link.has_room)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
