"""Transactions: halves come in, are decided by their producers, and those that are not are asked about."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from penstock.formats.attributes.message_types import MessageType
from penstock.formats.record.reposting.halves import HalfStatus, check_halves
from penstock.proto import names
from penstock.proto.data_frames import Method
from penstock.proto.errors import (
    BrokerUnavailable,
    Forbidden,
    InvalidArgument,
    MessageNotFound,
)
from penstock.proto.wire import transactions_pb2 as wire
from penstock.runtime.data.port import Converse

from ...core.core import Core
from ...core.data_calls import DataCalls
from ...core.feature import Feature, Hold
from ...core.intake import HALVES, Intake, refused
from ...core.journal import Journal, Target
from ...core.metrics import Families
from ...core.tables.topics import Topic
from ...core.wire import Service, check_count, service
from .checks import Checks
from .decisions import QUEUE, Decisions
from .halves import Longs, States
from .loading import Loading
from .producers import ProducerSessions
from .table import TransactionTable

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
RETRY_S: Final = 1.0
RANGES_MAX: Final = 4096
COUNT_MAX: Final = 1 << 17
OFFSET_MAX: Final = 1 << 62
_OUTCOMES: Final = {"C": "committed", "R": "rolled_back", "P": "parked"}


class Transactions(Feature, Intake):
    """Takes halves, decides about them as it is told, and asks about the others."""

    tables = (TransactionTable,)
    message_type = MessageType.TRANSACTION

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.decisions = Decisions(core)
        self.loading = Loading(core, self.decisions)
        self.producers = ProducerSessions(core.config.limits, core.role.check_master)
        self.checks = Checks(core, self.decisions, self.producers)
        catch_up = core.dispatcher.catch_up
        self._ends = DataCalls(Method.END, wire.EndRequest, self.end, before=catch_up)

    def intakes(self) -> Mapping[int, Intake]:
        return {HALVES: self}

    def services(self) -> Iterable[Service]:
        yield service(
            wire.DESCRIPTOR.services_by_name["Transactions"],
            before=self.core.dispatcher.catch_up,
            ListProducers=self._list_producers,
        )

    def data_methods(self) -> Mapping[int, Converse]:
        return {Method.END: self._ends, Method.JOIN: self.producers}

    # Halves come in.

    def target(self, topic: Topic) -> Target:
        return Target(names.HALF_TOPIC, 1)

    def check_room(self) -> None:
        if self.core.config.transactions.refuses:
            raise Forbidden("transactions are refused here (rejectTransactionMessage): send without one")

    def check(self, records: memoryview, topic: Topic) -> None:
        self.check_room()
        name = np.frombuffer(topic.name.encode(), np.uint8)
        status, index = check_halves(np.frombuffer(records, np.uint8), name, topic.queues)
        if status == HalfStatus.OK:
            self.core.store.lights.check(topic.name, records)
            return
        raise refused(HalfStatus(status), int(index), topic, "half of a transaction", "a decision")

    # They are decided.

    async def end(self, request: wire.EndRequest) -> wire.EndReply:
        """Commit or roll back halves of a producer group.

        Raises:
            InvalidArgument, InvalidName: the request makes no sense.
            MessageNotFound, TransactionEnded, TopicNotFound: nothing was decided.
            NotMaster, NotEnoughReplicas, BrokerUnavailable, DiskFull: repeat the call.
            OutcomeUnknown: decided, and not known to be safe; repeat the call.
        """
        offsets = _asked(request)
        if not self.core.events.is_open:
            raise BrokerUnavailable("the broker is shutting down")
        journal = self.core.writable()
        self._check_epochs(request)
        before = self.decisions.resolve_at_once(journal, request.group, offsets, request.resolution)
        if before is None:
            await self.loading.load(journal)
            before = await self.decisions.resolve(journal, request.group, offsets, request.resolution)
        await self.core.acknowledgements.safe(self.decisions.end, f"the end of a transaction of group {request.group}")
        return _told(before)

    def _check_epochs(self, request: wire.EndRequest) -> None:
        """Raises MessageNotFound where a failover has cut halves off: others have their offsets by now, or will."""
        ends: dict[int, int] = {}
        for epoch in {each.epoch for each in request.halves}:
            cut = self.core.cut_of(epoch, names.HALF_TOPIC, QUEUE)
            if cut is not None:
                ends[epoch] = cut
        for each in request.halves if ends else ():
            end = ends.get(each.epoch)
            if end is not None and each.offset + each.count > end:
                raise MessageNotFound(
                    f"transaction of group {request.group}: the half at {max(each.offset, end)} is gone, a failover "
                    f"has cut the log of epoch {each.epoch} before it: send its message in another transaction"
                )

    # Its place in the broker.

    def holds(self) -> Iterable[Hold]:
        first = self.loading.first_open()
        if first is not None:
            yield Hold("a transaction is undecided", first, self.checks.on_taken, self.checks.make_way)

    def describe(self, families: Families) -> None:
        halves, ended = self.decisions.halves, self.decisions.ended
        count = 0 if halves is None else halves.open_count
        families.gauge("penstock_transactions_open", "Halves that are undecided, without the newest", count)
        rows = [((name,), ended[letter]) for letter, name in _OUTCOMES.items()]
        families.counters("penstock_transactions_ended", "Halves that were decided", ("outcome",), rows)
        families.counter("penstock_transaction_checks", "Halves that a producer was asked about", self.checks.asked)
        families.counter("penstock_transactions_rolled", "Halves stored anew before retention", ended["N"])
        families.gauge("penstock_producers", "Producers with a session at this broker", len(self.producers))

    def on_role(self, journal: Journal | None) -> None:
        self.loading.on_role()
        if journal is None:
            self.producers.end_all(BrokerUnavailable("the broker is not master any more: join the new one"))

    async def run(self) -> None:
        """Look after open halves; what goes wrong is logged and tried again."""
        await self.take_turns(self.turn, TICK_S, RETRY_S, "transactions not looked after")

    async def turn(self) -> None:
        """Look at what has come, and ask about what is due."""
        journal = self.core.events.journal
        if journal is None or not self.core.role.can_acknowledge() or not await self.loading.load(journal):
            return
        await self.decisions.finish(journal)
        await self.loading.scan()
        if not journal.is_over and self.core.role.can_acknowledge():
            self.loading.settle(journal)  # first: what cannot be parked must not keep it from being done
            await self.checks.turn(journal)

    async def stop(self) -> None:
        self.producers.close()
        await self._ends.close()

    # The wire.

    async def _list_producers(self, request: wire.ProducerGroupName) -> wire.ProducerMembers:
        return wire.ProducerMembers(members=self.producers.members(names.check_group(request.group)))


def _asked(request: wire.EndRequest) -> Longs:
    """The offsets that a request names. Raises InvalidArgument, InvalidName."""
    where = f"end of a transaction of group {names.check_group(request.group)}"
    check_count("ranges of halves", len(request.halves), RANGES_MAX)
    starts = np.array([each.offset for each in request.halves], np.int64)
    counts = np.array([each.count for each in request.halves], np.int64)
    total = int(counts.clip(0).sum())
    if not 1 <= total <= COUNT_MAX or (counts < 1).any():
        raise InvalidArgument(f"{where}: {total} halves, and each range has some: 1..{COUNT_MAX} are allowed")
    ends = starts + counts
    if starts[0] < 0 or ends[-1] > OFFSET_MAX or (starts[1:] < ends[:-1]).any():
        raise InvalidArgument(f"{where}: offsets must ascend, and none may be negative")
    if request.resolution not in wire.Resolution.values():
        raise InvalidArgument(f"{where}: resolution {request.resolution}: COMMIT, ROLLBACK or UNRESOLVED")
    return np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(total)


def _told(states: States) -> wire.EndReply:
    """Runs of states."""
    if len(states) == 1:
        return wire.EndReply(states=[wire.EndReply.States(state=int(states[0]), count=1)])  # type: ignore[arg-type]
    starts = np.flatnonzero(np.diff(states, prepend=255))
    counts = np.diff(starts, append=len(states))
    runs = zip(states[starts].tolist(), counts.tolist(), strict=True)
    return wire.EndReply(states=[wire.EndReply.States(state=state, count=count) for state, count in runs])
