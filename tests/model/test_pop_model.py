"""POP against a model: any order of receives, receipts, failures and failovers, some of which cut off what was written,
and behind log files that went.

Simple consumers remember what brokers told them and nothing else. At every moment nobody is given what another one has,
nothing comes that was acknowledged, and a receipt is good for its time; in the end every message is acknowledged once,
or a dead letter once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from penstock.broker.core.tables.groups import Group
from penstock.broker.features.pop import state
from penstock.broker.store import AppendResult
from penstock.proto.errors import DiskFull, PenstockError
from penstock.proto.wire import pop_pb2 as wire
from penstock.proto.wire.pop_pb2 import RECEIPT_OK
from tests.support.broker.kit import close_all
from tests.support.broker.popping import DEAD, GROUP, Node, Received
from tests.support.broker.stores import batch, read

T = TypeVar("T")
QUEUES = 2
TRIES = 2
INVISIBLE_MS = (10_000, 30_000)
PAUSES_S = (0.0, 1.0, 11.0, 31.0)
LAST_TURNS = 12


class Broker(Node):
    """One whose log is confirmed while there are replicas, and only then."""

    def settle(self) -> None:
        if not self.role.holds:
            self.confirm()
        self.dispatch()


class Held:
    """A message that a consumer has, as far as it knows."""

    def __init__(self, received: Received) -> None:
        self.received = received
        self.until_ms = received.visible_ms
        self.is_sure = True  # that its receipt is good until then
        self.may_be_done = False


class Popping(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.ops_behind_max, state.OPS_BEHIND_MAX = state.OPS_BEHIND_MAX, 6
        self.sent = 0
        self.held: dict[bytes, Held] = {}
        self.done: set[bytes] = set()
        self.may_be_done: set[bytes] = set()
        self.ends: list[int] = []  # of what was appended and is not confirmed: where a failover may cut
        self.places: list[int] = []  # where records begin
        self.begin = 0  # whoever is master next has nothing of the log before
        self.fails_after = -1  # so many appends: the next one fails, once
        self.is_away_for = 0  # so many calls there are no replicas
        self.node = self._do(self._first())
        for queue_id in range(QUEUES):
            self.send(queue_id, 5)

    async def _first(self) -> Broker:
        node = Broker()
        node.add_topic(queues=QUEUES)
        node.put_group(Group(GROUP, retry_max_times=TRIES))
        node.settle()
        self._watch(node)
        await node.receive(1)  # the group is there before its messages
        return node

    def _watch(self, node: Broker) -> None:
        append = node.store.append

        def watched(topic: str, records: Any, **named: Any) -> AppendResult:
            self.fails_after -= 1
            if self.fails_after == -1:
                raise DiskFull("the test ends it here")
            self.places.append(node.store.end_offset)
            result = append(topic, records, **named)
            self.ends.append(node.store.end_offset)
            return result

        node.store.append = watched  # type: ignore[method-assign]

    def _do(self, work: Awaitable[T]) -> T:
        return self.loop.run_until_complete(work)  # type: ignore[arg-type]

    def _try(self, work: Awaitable[T]) -> T | None:
        try:
            return self._do(work)
        except PenstockError:
            return None
        finally:
            self.is_away_for -= 1
            if self.is_away_for == 0:
                self.heal()

    @property
    def now_ms(self) -> int:
        return self.node.manual.wall_ms()

    def teardown(self) -> None:
        """Everybody acknowledges what comes, until nothing does."""
        try:
            self._end_well()
        finally:
            state.OPS_BEHIND_MAX = self.ops_behind_max
            self.loop.close()
            close_all()

    def _end_well(self) -> None:
        self.heal()
        for _ in range(LAST_TURNS):
            self._do(self.node.pass_s(61))
            for body in list(self._received(32, INVISIBLE_MS[0])):
                self._settle(body, self._end(wire.AcknowledgeRequest, self.node.pop.acknowledge, body))
        self._do(self.node.pass_s(61))
        assert self.node.metrics()["penstock_pop_in_flight", ""] == 0
        dead = Counter(record.body for record in self.node.records(DEAD))
        stored = {each.body for queue_id in range(QUEUES) for each in read(self.node.store, "orders", queue_id)}
        assert not [body for body, count in dead.items() if count > 1], "a dead letter twice"
        assert not self.done & dead.keys(), "acknowledged, and a dead letter"
        assert stored <= self.done | self.may_be_done | dead.keys(), "never given to anybody again"

    # What consumers do.

    @rule(queue_id=st.integers(0, QUEUES - 1), count=st.integers(1, 4))
    def send(self, queue_id: int, count: int) -> None:
        bodies = [b"%d" % (self.sent + number) for number in range(count)]
        self.sent += count
        try:
            self.node.store.append("orders", batch("orders", bodies, queue_id), queues=QUEUES)
        except DiskFull:
            return
        self.node.role.on_appended()
        self.node.dispatch()

    @rule(count=st.integers(1, 6), invisible_ms=st.sampled_from(INVISIBLE_MS))
    def receive(self, count: int, invisible_ms: int) -> None:
        self._received(count, invisible_ms)

    def _received(self, count: int, invisible_ms: int) -> list[bytes]:
        found = self._try(self.node.receive(count, invisible_ms=invisible_ms)) or []
        for each in found:
            body = each.record.body
            assert body not in self.done, f"{body!r} was acknowledged"
            held = self.held.get(body)
            assert held is None or self.now_ms >= held.until_ms, f"{body!r} is in another's hands"
            self.held[body] = Held(each)
        return [each.record.body for each in found]

    @rule(at=st.integers(0, 9), count=st.integers(1, 4))
    def acknowledge(self, at: int, count: int) -> None:
        for _ in range(count):
            if body := self._one(at):
                self._settle(body, self._end(wire.AcknowledgeRequest, self.node.pop.acknowledge, body))

    @rule(at=st.integers(0, 9), invisible_ms=st.sampled_from((0, *INVISIBLE_MS)), keeps=st.booleans())
    def change(self, at: int, invisible_ms: int, keeps: bool) -> None:
        body = self._one(at)
        if body is None:
            return
        held, until_ms = self.held[body], self.now_ms + invisible_ms
        request = wire.ChangeInvisibleRequest(
            group=GROUP, receipts=[held.received.receipts], invisible_ms=invisible_ms, keeps_receipts=keeps
        )
        reply = self._try(self._settled(self.node.pop.change_invisible(request)))
        if reply is None:
            held.until_ms, held.is_sure = min(held.until_ms, until_ms), False
        elif reply.check_point < 0:
            assert not self._is_sure(held), f"{body!r}: its receipt is good until {held.until_ms}: {reply}"
            del self.held[body]  # its time is over, or it was acknowledged
        else:
            if not keeps:
                named = {"check_point": reply.check_point, "epoch": reply.epoch, "visible_ms": reply.visible_ms}
                held.received, held.may_be_done = held.received._replace(**named), False
            held.until_ms, held.is_sure = until_ms, True

    @rule(at=st.integers(0, 9))
    def give_back(self, at: int) -> None:
        if body := self._one(at):
            receipts = [self.held[body].received.receipts]
            request = wire.ChangeInvisibleRequest(group=GROUP, receipts=receipts, is_given_back=True)
            self._try(self._settled(self.node.pop.change_invisible(request)))
            del self.held[body]

    @rule(seconds=st.sampled_from(PAUSES_S))
    def time_passes(self, seconds: float) -> None:
        self._try(self.node.pass_s(seconds))

    # What befalls brokers.

    @rule(count=st.integers(1, 4))
    def replicas_go(self, count: int) -> None:
        self.is_away_for = count
        self.node.role.waits_for_replicas, self.node.role.holds, self.node.role.confirms = True, True, False

    @rule(count=st.integers(0, 2))
    def disk_fills_up(self, count: int) -> None:
        self.fails_after = count

    @rule(at=st.integers(0, 9))
    def files_go(self, at: int) -> None:
        """What the brokers need of the log's beginning is recorded again, and whoever comes finds nothing else."""
        if not self.node.role.holds:
            self.node.pop._settle_at = 0.0
            self._try(self._let_go(at))

    async def _let_go(self, at: int) -> None:
        await self.node.pop.turn()
        held = min((hold.offset for hold in self.node.pop.holds()), default=self.node.store.end_offset)
        places = [place for place in self.places if self.begin < place <= held]
        if places:
            begin = places[-1 - at % len(places)]
            self.node.repeat(begin)
            self.node.settle()
            self.begin = begin

    def heal(self) -> None:
        self.fails_after = self.is_away_for = -1
        self.node.role.holds, self.node.role.confirms = False, True
        self.node.settle()
        self.ends.clear()

    @rule(at=st.integers(0, 9))
    def failover(self, at: int) -> None:
        """Another one goes on with everything confirmed, and with some of what is not; replicas are away as before."""
        confirmed = self.node.store.confirm_offset
        ends = [confirmed, *(end for end in self.ends if end > confirmed)]
        end = ends[at % len(ends)]
        self._do(self._step_down())
        if end < self.node.store.end_offset:
            self.node.store.truncate_to(end, rebuild=True)
        self.ends = [each for each in self.ends if each <= end]
        self.places = [each for each in self.places if each < end]
        former, has_replicas = self.node, self.is_away_for <= 0

        async def after() -> Broker:
            node = Broker.after(former, begin=self.begin, holds=not has_replicas)
            assert isinstance(node, Broker)
            node.role.waits_for_replicas, node.role.confirms = True, has_replicas
            node.role.epoch = former.role.epoch + 1
            node.settle()
            return node

        self.node = self._do(after())

    # Inside.

    async def _step_down(self) -> None:
        """In the loop, which the dispatcher calls where something is not dispatched yet."""
        self.node.change_role(master=False)

    def _one(self, at: int) -> bytes | None:
        return list(self.held)[at % len(self.held)] if self.held else None

    def _end(self, kind: Any, call: Any, body: bytes) -> list[int] | None:
        """The statuses of a call about one message; None without an answer."""
        request = kind(group=GROUP, receipts=[self.held[body].received.receipts])
        reply = self._try(self._settled(call(request)))
        return None if reply is None else list(reply.statuses)

    async def _settled(self, call: Awaitable[T]) -> T:
        reply = await call
        self.node.settle()
        return reply

    def _settle(self, body: bytes, statuses: list[int] | None) -> None:
        if statuses is None:
            self.held[body].may_be_done = True
            self.may_be_done.add(body)
        elif self._is_good(body, statuses):
            held = self.held.pop(body)
            # A receipt that says more than became of its message is good for what was done, whatever that was.
            is_told = self.now_ms < held.until_ms or held.received.visible_ms <= held.until_ms
            (self.done if is_told else self.may_be_done).add(body)

    def _is_good(self, body: bytes, statuses: list[int]) -> bool:
        held, is_good = self.held[body], statuses in ([], [RECEIPT_OK])
        assert is_good or not self._is_sure(held), f"{body!r}: its receipt is good until {held.until_ms}: {statuses}"
        return is_good

    def _is_sure(self, held: Held) -> bool:
        return held.is_sure and not held.may_be_done and self.now_ms < held.until_ms


Popping.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestPopping = Popping.TestCase
