"""Transactions against a model: halves and decisions in any order, while brokers fail as they do.

Whatever befalls the broker, nothing is shown that was not committed, nothing twice, nothing that was rolled back; in
the end every half is a message, or was rolled back, or is parked, as its producer was told.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from penstock.broker.features.transactions.transactions import Transactions
from penstock.formats.record.layout import Record, decode_record
from penstock.proto import names
from penstock.proto.errors import MessageNotFound, PenstockError, TopicNotFound, TransactionEnded
from penstock.proto.wire import transactions_pb2 as wire
from penstock.proto.wire.broker_pb2 import SEND_OK
from tests.support.broker.kit import Kit
from tests.support.broker.stores import split
from tests.support.broker.transacting import Member, half_batch

from .trouble import QUEUES, Troubled

GROUPS = "payments", "refunds"
TIMEOUT_S, INTERVAL_S, CHECKS = 5, 10, 2
LAST_TURNS = 12


class Sent:
    """A half, as its producer knows it."""

    def __init__(self, body: bytes, topic: str, group: str, at_s: float) -> None:
        self.body, self.topic, self.group = body, topic, group
        self.at_s = at_s
        self.offset, self.epoch = -1, 0  # unknown until its receipt, or a question about it, has come
        self.is_there = False  # for sure
        self.position = -1
        self.ended: int | None = None  # how, as the broker has answered
        self.may_be: set[int] = set()  # how, perhaps


class Transacting(Troubled):
    made = (names.PARKED_TOPIC,)
    settings_of_broker: ClassVar = {
        "transactionTimeOut": TIMEOUT_S * 1000,
        "transactionCheckInterval": INTERVAL_S * 1000,
        "transactionCheckMax": CHECKS,
    }

    def __init__(self) -> None:
        self.sent: dict[bytes, Sent] = {}
        self.shown: Counter[bytes] = Counter()
        self.parked: Counter[bytes] = Counter()
        super().__init__()
        for group in GROUPS:
            for topic in self.topics:
                self.send(topic, group, 1, 4)

    def began(self, node: Kit) -> None:
        node.transactions = node[Transactions]  # type: ignore[attr-defined]
        node.asked = []  # type: ignore[attr-defined]
        Member(node, GROUPS, "c")  # type: ignore[arg-type]

    async def turn(self) -> None:
        node = self.node
        await node[Transactions].turn()

    def is_theirs(self, topic: str, record: Record) -> None:
        body = record.body
        half = self.sent[body]
        if topic == names.PARKED_TOPIC:
            self.parked[body] += 1
            return
        self.shown[body] += 1
        assert self.shown[body] == 1, f"{body!r} comes twice"
        assert half.topic == topic
        assert wire.COMMIT in {half.ended, *half.may_be}, f"{body!r} is shown, nobody has committed it"
        assert half.ended != wire.ROLLBACK, f"{body!r} was rolled back"

    @rule(
        topic=st.sampled_from(("orders", "orders", "bills", "gone")),
        group=st.sampled_from(GROUPS),
        queue_id=st.integers(0, QUEUES - 1),
        count=st.integers(1, 4),
        is_cut_off=st.booleans(),
    )
    def send(self, topic: str, group: str, queue_id: int, count: int, is_cut_off: bool = False) -> None:
        if is_cut_off:
            self.replicas_go(1, 0)
        topic = "orders" if self.is_gone and topic == "gone" else topic
        now_s, first = self.manual.monotonic_s(), len(self.sent)
        halves = [Sent(b"%d" % number, topic, group, now_s) for number in range(first, first + count)]
        self.sent |= {half.body: half for half in halves}
        batch = half_batch([half.body for half in halves], topic, queue_id, group)
        receipt = self.attempt(self.node.append_bytes(batch))
        if not isinstance(receipt, PenstockError):
            for number, half in enumerate(halves):
                half.offset, half.epoch = receipt.queue_offsets[0] + number, receipt.epoch
                half.is_there, half.position = receipt.status == SEND_OK, receipt.physical_offset

    @rule(group=st.sampled_from(GROUPS), at=st.integers(0, 9), step=st.integers(1, 2), count=st.integers(1, 6))
    def commit(self, group: str, at: int, step: int, count: int) -> None:
        self._choose(group, at, step, count, wire.COMMIT)

    @rule(group=st.sampled_from(GROUPS), at=st.integers(0, 9), step=st.integers(1, 2), count=st.integers(1, 6))
    def roll_back(self, group: str, at: int, step: int, count: int) -> None:
        self._choose(group, at, step, count, wire.ROLLBACK)

    def _choose(self, group: str, at: int, step: int, count: int, resolution: int) -> None:
        """End some halves: those that are open as far as the producer knows, or, now and then, any."""
        known = [half for half in self.sent.values() if half.group == group and self._is_told(half)]
        chosen = (known if at >= 8 else [half for half in known if half.ended is None])[at::step][:count]
        if chosen:
            self._end(group, sorted(chosen, key=lambda half: half.offset), resolution)

    def _is_told(self, half: Sent) -> bool:
        """True if its producer has its offset; of one that may not be there, not for as long as log files are kept."""
        return half.is_there or (half.offset >= 0 and half.position >= self.node.store.min_offset)

    def _end(self, group: str, chosen: list[Sent], resolution: int) -> None:
        ranges = [wire.HalfRange(offset=half.offset, count=1, epoch=half.epoch) for half in chosen]
        request = wire.EndRequest(group=group, halves=ranges, resolution=resolution)  # type: ignore[arg-type]
        before = [set(half.may_be) for half in chosen]
        for half in chosen:
            half.may_be.add(resolution)  # consumers may see it before its producer is told
        reply = self.attempt(self.node[Transactions].end(request))
        if isinstance(reply, (TransactionEnded, TopicNotFound, MessageNotFound)):
            for half, may_be in zip(chosen, before, strict=True):
                half.may_be = may_be
            if isinstance(reply, TopicNotFound):
                assert self.is_gone, f"{reply}"
            elif isinstance(reply, MessageNotFound):
                assert not all(half.is_there for half in chosen), f"an acknowledged half is not found: {reply}"
            else:
                is_forgotten = reply.details["state"] == "ENDED"
                others = [half for half in chosen if self._may_have_ended(half, resolution, is_forgotten)]
                assert others, f"they are open, or ended so: {reply}"
        elif not isinstance(reply, PenstockError):
            states = [each.state for each in reply.states for _ in range(each.count)]
            ended = {wire.COMMIT: wire.COMMITTED, wire.ROLLBACK: wire.ROLLED_BACK}[resolution]  # type: ignore[index]
            for half, state, may_be in zip(chosen, states, before, strict=True):
                assert state in (wire.OPEN, ended), f"{half.body!r} was {state}"
                assert state != wire.OPEN or half.ended is None, f"{half.body!r} had ended"
                assert state == wire.OPEN or half.ended or resolution in may_be, f"{half.body!r} was not ended before"
                half.ended, half.is_there = resolution, True

    def _may_have_ended(self, half: Sent, asked: int, is_forgotten: bool) -> bool:
        """True if it may have ended otherwise, or so that nobody knows how: with the log file of its decision."""
        outcomes = {half.ended, *half.may_be} - {None}
        may_be_parked = self.manual.monotonic_s() - half.at_s >= TIMEOUT_S + CHECKS * INTERVAL_S
        if is_forgotten:
            return self.node.store.min_offset > 0 and (may_be_parked or bool(outcomes))
        return may_be_parked or bool(outcomes - {asked})

    def look(self) -> None:
        """Read what the producers are asked."""
        asked, self.node.asked = self.node.asked, []  # type: ignore[attr-defined]
        for check in asked:
            for offset, times, record in zip(check.offsets, check.times, split(check.records), strict=True):
                half = self.sent[decode_record(record).body]
                assert half.group == check.group
                assert half.ended is None, f"{half.body!r} is asked about, it has ended"
                assert self.manual.monotonic_s() - half.at_s >= TIMEOUT_S, f"{half.body!r} is asked about too soon"
                assert half.offset in (-1, offset) or not half.is_there, (
                    f"{half.body!r} lies at {half.offset}, not {offset}"
                )
                assert times <= CHECKS
                if not half.is_there:
                    half.offset, half.epoch, half.is_there = offset, self.node.role.epoch, True

    def end_well(self) -> None:
        for _ in range(LAST_TURNS):
            self.pass_s(INTERVAL_S + 1)
        assert self.node.metrics()["penstock_transactions_open", ""] == 0
        for half in self.sent.values():
            became = self.shown[half.body], self.parked[half.body]
            if half.topic == "gone" and self.is_gone:
                continue
            if half.ended is not None:
                assert became == (half.ended == wire.COMMIT, 0), f"{half.body!r} has ended: {half.ended}, {became}"
            elif not half.may_be and half.is_there:
                assert became == (0, 1), f"{half.body!r} is undecided: {became}"
            elif wire.ROLLBACK not in half.may_be and half.is_there:
                assert sum(became) == 1, f"{half.body!r} is gone"
            assert sum(became) <= 1, f"{half.body!r}: {became}"


Transacting.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
TestTransacting = Transacting.TestCase
