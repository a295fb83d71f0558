"""A broker and what befalls it: full disks, replicas that are away, failovers that cut off what was not confirmed, also
in the middle of a call, restarts, retention, and clocks that are set. For models of what waits at a broker.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from penstock.broker.core import dispatch
from penstock.broker.core.feature import Feature
from penstock.broker.core.tables.topics import Topic
from penstock.broker.store import AppendResult, Store
from penstock.formats.record.layout import Record
from penstock.proto.errors import DiskFull, PenstockError
from tests.support.broker.kit import FEATURES, Kit, close_all
from tests.support.broker.stores import batch, read
from tests.support.clock import ManualClock

T = TypeVar("T")
START = 1_700_000_000_000
SEGMENT = 16_384
ROUNDS_MAX = 20_000
QUEUES = 3


class Troubled(RuleBasedStateMachine):
    """Ends with :meth:`end_well`; whoever derives says what is done at the broker, and what must come of it."""

    features: ClassVar[tuple[type[Feature], ...]] = FEATURES
    settings_of_broker: ClassVar[dict[str, Any]] = {}
    topics: ClassVar[tuple[str, ...]] = ("orders", "bills", "gone")
    """Of the producers; ``gone`` may be deleted. Consumers read them all, and those of ``made``."""
    made: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(asyncio, "to_thread", _at_once)
        self.patches.setattr(dispatch, "LINGER_S", 0.0)
        self.root = Path(tempfile.mkdtemp(prefix="model-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.manual = ManualClock(START)
        self.set_back_ms = 0  # the last time
        self.ends: list[int] = []  # of what was appended and is not confirmed: where a failover may cut
        self.fails_after = -2  # so many appends: the next one fails, once
        self.is_away_for = 0  # so many calls there are no replicas
        self.end_cuts_at: int | None = None  # of the call at which one of these comes to its end
        self.failover_in: tuple[int, int] | None = None  # rounds of the event loop, and where it cuts
        self.is_gone = False  # the topic `gone`, perhaps
        self.seen: dict[tuple[str, int, int], bytes] = {}
        self.call(self._begin)
        self.call(self._add_topics)
        self.heal()

    def _add_topics(self) -> None:
        for topic in self.topics:
            self.node.add_topic(topic, queues=QUEUES)
        self.node.add_topic("noise", queues=1)

    # For whoever derives.

    def began(self, node: Kit) -> None:
        """A broker is master now."""

    async def turn(self) -> None:
        """What the broker does by itself."""
        raise NotImplementedError

    def end_well(self) -> None:
        """Nothing befalls the broker any more: everything must come to its end."""
        raise NotImplementedError

    def look(self) -> None:
        """What the broker has told by itself is looked at."""

    def is_theirs(self, topic: str, record: Record) -> None:
        """Consumers see the message for the first time."""
        raise NotImplementedError

    def do(self, work: Awaitable[T]) -> T:
        """What comes of work that may not fail."""
        return self.loop.run_until_complete(self._steps(work))

    def call(self, work: Callable[[], None]) -> None:
        """Do it within the event loop."""

        async def inside() -> None:
            work()

        self.loop.run_until_complete(inside())

    def attempt(self, work: Awaitable[T]) -> T | PenstockError:
        """The same of work that may."""
        try:
            return self.do(work)
        except PenstockError as error:
            return error
        finally:
            self.failover_in = None
            self.settle()
            self.is_away_for -= 1
            if self.end_cuts_at is not None and (self.is_away_for == 0 or self.fails_after == -1):
                end_cuts_at, self.end_cuts_at = self.end_cuts_at, None
                self.call(lambda: self._fail_over(end_cuts_at))
            if self.is_away_for == 0:
                self.heal()

    def settle(self) -> None:
        """What is confirmed is dispatched, and consumers look at it."""
        if not self.node.role.holds:
            self.node.confirm()
        self.node.dispatch()
        self._consume()
        self.look()

    def heal(self) -> None:
        """Disk and replicas are as they should be."""
        self.fails_after = self.is_away_for = -2
        self.node.role.holds, self.node.role.confirms = False, True
        self.settle()
        self.ends.clear()

    def pass_s(self, seconds: float) -> None:
        """Time passes, and the broker does its work."""
        self.manual.advance(seconds)
        self.attempt(self.turn())

    def teardown(self) -> None:
        try:
            self.failover_in = self.end_cuts_at = None
            self.heal()
            self.end_well()
        finally:
            self.patches.undo()
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()
            close_all()
            shutil.rmtree(self.root)

    # What befalls brokers.

    @rule(seconds=st.sampled_from((0.0, 1.0, 6.0, 31.0)), back_ms=st.sampled_from((0, 0, 5, 700)))
    def time_passes(self, seconds: float, back_ms: int) -> None:
        self.manual.set_wall(self.manual.wall_ms() - back_ms)
        self.set_back_ms = back_ms
        self.pass_s(seconds)

    @rule(count=st.integers(1, 6), end_cuts_at=st.none() | st.integers(0, 9))
    def replicas_go(self, count: int, end_cuts_at: int | None) -> None:
        """For so many calls, and then another broker goes on, or they are back."""
        self.is_away_for, self.end_cuts_at = count, end_cuts_at
        self.node.role.holds, self.node.role.confirms = True, False

    @rule(count=st.integers(0, 4), ends=st.booleans())
    def disk_fills_up(self, count: int, ends: bool) -> None:
        """One append finds no space, and nothing else happens, or another broker goes on when the call is over."""
        self.fails_after, self.end_cuts_at = count, 9 if ends else self.end_cuts_at

    @rule(rounds=st.integers(-1, 6), at=st.integers(0, 9))
    def failover(self, rounds: int, at: int) -> None:
        """Now, or so many rounds of the event loop after the next call has begun."""
        if rounds < 0:
            self.call(lambda: self._fail_over(at))
        else:
            self.failover_in = rounds, at

    @rule(writes_snapshot=st.booleans(), forgets_snapshots=st.booleans())
    def restart(self, writes_snapshot: bool, forgets_snapshots: bool) -> None:
        former = self.node
        if writes_snapshot:
            former.snapshots.write_all(former.store.dispatched_offset)
        _silence(former)
        former.close(unclean=not writes_snapshot)
        if forgets_snapshots and former.store.min_offset == 0:
            shutil.rmtree(self.root / "config", ignore_errors=True)
        self.call(lambda: self._go_on(former, None))

    @rule(topic=st.sampled_from(topics), queues=st.integers(1, QUEUES))
    def topic_changes(self, topic: str, queues: int) -> None:
        if topic != "gone":
            self._put(lambda: self.node.put_topic(Topic(topic, QUEUES, queues)))
        elif not self.is_gone:
            self.is_gone = True
            self._put(lambda: self.node.delete_topic("gone"))

    def _put(self, put: Callable[[], int]) -> None:
        async def write() -> None:
            put()

        self.attempt(write())

    @rule(count=st.integers(0, 20))
    def files_are_old(self, count: int) -> None:
        """The log grows; who holds its files makes way, and what nobody holds goes, but for the last one."""
        self.attempt(self._noise(count))
        if self.is_away_for <= 0 and self.fails_after < 0 and self.failover_in is None:
            self.attempt(self._retain())

    async def _noise(self, count: int) -> None:
        if count:
            self.node.store.append("noise", batch("noise", [bytes(1000)] * min(count, 12)), queues=1)
            self.node.role.on_appended()

    async def _retain(self) -> None:
        node = self.node
        old = node.store.removal.files()[-1].base
        for hold in node.core.features.holds():
            if hold.offset < old and hold.make_way:
                hold.make_way(old)
        for _ in range(2):
            await self.turn()
            node.confirm()
            node.dispatch()
        node.repeat(old)
        node.confirm()
        node.dispatch()
        self._consume()
        node.snapshots.write_all(node.store.dispatched_offset)
        node.store.checkpoint()
        safe = min(node.snapshots.covered(), node.store.flushed_offset, node.store.checkpointed_offset)
        while node.store.removal.files()[0].end <= min(old, safe):
            end = node.store.removal.files()[0].end
            if any(hold.offset < end for hold in node.core.features.holds()):
                break
            node.store.removal.take_out(end)
            node.store.removal.delete_taken(0)
        for _ in node.store.removal.align():
            pass

    # Inside.

    async def _steps(self, work: Awaitable[T]) -> T:
        """Let the event loop do the work, and fail over in between if that is to be."""
        task = asyncio.ensure_future(work)
        for number in range(ROUNDS_MAX):
            if task.done():
                break
            if self.failover_in is not None and self.failover_in[0] == number:
                self._fail_over(self.failover_in[1])
                self.failover_in = None
            await asyncio.sleep(0)
        assert task.done(), "it does not come to its end"
        return task.result()

    def _fail_over(self, at: int) -> None:
        """Another one goes on with everything confirmed, and with some of what is not; replicas are away as before."""
        former, store = self.node, self.node.store
        ends = [store.confirm_offset, *(end for end in self.ends if end > store.confirm_offset)]
        end = ends[at % len(ends)]
        former.change_role(master=False)
        _silence(former)
        if end < store.end_offset:
            store.truncate_to(end, rebuild=True)
        self.ends = [each for each in self.ends if each <= end]
        self._go_on(former, store)

    def _go_on(self, former: Kit, store: Store | None) -> None:
        node = self._made(store)
        epoch, has_replicas = former.role.epoch + 1, self.is_away_for <= 0
        node.role.confirms, node.role.holds = has_replicas, not has_replicas
        node.role.epoch, node.role.history = epoch, former.role.history.lead(epoch, node.store.end_offset)
        self._lead(node)
        self.settle()

    def _begin(self) -> None:
        self._lead(self._made(None))

    def _lead(self, node: Kit) -> None:
        self.node = node
        node.role.waits_for_replicas = True
        node.dispatch()
        node.change_role(master=True)
        self.began(node)

    def _made(self, store: Store | None) -> Kit:
        node = Kit(
            self.root,
            features=self.features,
            store=store,
            clock=self.manual,
            master=False,
            sizes={"segment_bytes": SEGMENT, "consume_queue_bytes": 400},
            **self.settings_of_broker,
        )
        if store is None:
            self._watch(node.store)
        else:
            node._replay(0)
        return node

    def _watch(self, store: Store) -> None:
        append = store.append

        def watched(topic: str, records: Any, **named: Any) -> AppendResult:
            self.fails_after -= 1
            if self.fails_after == -1:
                raise DiskFull("the test ends it here")
            result = append(topic, records, **named)
            self.ends.append(store.end_offset)
            return result

        store.append = watched  # type: ignore[method-assign]

    def _consume(self) -> None:
        """What was shown stays as it was, and everything new is reported once."""
        there = [topic for topic in self.topics if topic != "gone" or not self.is_gone]
        for topic in (*there, *self.made):
            for queue_id in range(QUEUES):
                low, high = self.node.store.reader.queue_range(topic, queue_id)
                if low < high and (topic, queue_id, high - 1) in self.seen:
                    continue
                for record in read(self.node.store, topic, queue_id):
                    place = topic, queue_id, record.queue_offset
                    if place not in self.seen:
                        self.is_theirs(topic, record)
                    assert self.seen.setdefault(place, record.body) == record.body, f"{place}: it was another message"


def _silence(former: Kit) -> None:
    """A broker that is gone dispatches nothing."""
    for handle in (former.core.dispatcher._timer, former.core.dispatcher._soon):
        if handle is not None:
            handle.cancel()


async def _at_once(call: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """In place of a thread, so that the same happens each time."""
    await asyncio.sleep(0)
    return call(*arguments, **named)
