"""Deciding about halves: exactly once, whoever is interrupted.

A decision is an op (:mod:`.ops`). Right behind it, before anything else has its turn, follows what it decides for: the
committed messages in one batch for each topic, the halves that are stored anew, and those that are parked. Each of
these batches carries a producer mark whose sequence is the op's offset plus one. So nothing but the last op can lack
some of what follows from it, and whoever is master next sees what, from the marks, and posts it.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.formats.record.form import RecordForm
from penstock.formats.record.kernels.pairs import name_hash
from penstock.formats.record.producer_mark import ProducerMark, mark_property
from penstock.formats.record.reposting.halves import GROWTH_MAX, Becomes, committed, facts_of, homes_of, restated
from penstock.proto import names
from penstock.proto.errors import (
    BrokerUnavailable,
    MessageNotFound,
    MessageTooLarge,
    PenstockError,
    TopicNotFound,
    TransactionEnded,
)
from penstock.proto.wire import transactions_pb2 as wire

from ...core.core import Core
from ...core.delivering import topic_at
from ...core.intake import RESERVED_PRODUCERS
from ...core.journal import Journal, Target
from ...core.reposting import Records, Reposter
from ...store.queues.kernels import Ints
from .halves import OPEN, Halves, Longs, States, Waiting
from .ops import Stretch, op_record
from .settings import TransactionSettings

log = logging.getLogger(__name__)

PRODUCER_ID: Final = RESERVED_PRODUCERS.start + ord("T")
LANE: Final = 0
QUEUE: Final = 0
RUN_COUNT: Final = 4096
RUN_BYTES: Final = 2 << 20
AT_ONCE_COUNT: Final = 256
OPS_TOGETHER: Final = 256
_LETTERS: Final[dict[int, str]] = {wire.COMMIT: "C", wire.ROLLBACK: "R"}
_FIRST_LETTERS: Final = {"C": "c", "P": "p", "R": "R"}
_NOTHING: Final = np.empty(0, np.int64)


class Homes(NamedTuple):
    """Where halves belong, a row each; see :func:`~penstock.formats.record.reposting.halves.homes_of`."""

    topics: Longs
    hashes: Longs
    groups: Longs
    queues: Ints
    kept: Ints

    @classmethod
    def of(cls, records: Records) -> Homes:
        """As their records tell of them."""
        count = len(records.offsets)
        topics, hashes, groups = (np.empty(count, np.int64) for _ in range(3))
        made = cls(topics, hashes, groups, np.empty(count, np.int32), np.empty(count, np.int32))
        homes_of(records.data, records.positions, records.sizes, *made)
        return made


class Decisions:
    """Decides as the master of one broker; event loop only."""

    def __init__(self, core: Core) -> None:
        self.halves: Halves | None = None
        """None unless all of them are known to this mastership; :class:`~.loading.Loading` makes it."""
        self.unfinished: tuple[list[Stretch], int] | None = None
        """An op that may lack some of what follows from it, and its offset."""
        self.end = 0  # of the newest decision in the log
        self.reaches: deque[tuple[int, int]] = deque()
        """Offsets of ops, ascending, and the last half that each, or one of those up to the next, decides about."""
        self.ended: Counter[str] = Counter()  # by what was decided
        # Of the records that are being decided about, by their positions: the records would hold their log file.
        self._homes: tuple[Longs, Homes] | None = None
        self._core = core
        self._settings: TransactionSettings = core.config.transactions
        self._reposter = Reposter(core)
        self._form = RecordForm.own(names.OP_TOPIC, core.config.advertised_address)

    def forget(self) -> None:
        """The mastership is over, or a new one begins."""
        self.halves = self.unfinished = None
        self.reaches.clear()
        self.end = self._core.store.end_offset

    def known(self) -> Halves:
        """The halves, those that came last included. Raises BrokerUnavailable while the queue is still to be read."""
        if self.halves is None:
            raise BrokerUnavailable("the halves of transactions are being read: try again")
        self.halves.grow(self._core.store.reader.queue_range(names.HALF_TOPIC, QUEUE)[1])
        return self.halves

    async def resolve(self, journal: Journal, group: str, firsts: Longs, resolution: int) -> States:
        """Commit or roll back the halves whose first records have these offsets, which ascend; their states before.

        Raises:
            MessageNotFound: some are no halves of the group's.
            TransactionEnded: some were decided otherwise, or nobody knows how any more; nothing was decided.
            TopicNotFound: the topic of a committed message is gone.
            NotMaster, BrokerUnavailable, DiskFull: repeat the call.
        """
        if self._is_behind(firsts):
            await self._core.dispatcher.drain()
        await self.finish(journal)  # a half that is stored anew, whose copy is missing yet, is undecided
        halves = self.known()
        self._check_there(firsts, halves)
        before = halves.states(halves.current(firsts))
        if resolution == wire.UNRESOLVED:
            return before
        letter = _LETTERS[resolution]
        _check_same(group, firsts, before, letter)
        for start in range(0, len(firsts), RUN_COUNT):
            await self._resolve(journal, group, firsts[start : start + RUN_COUNT], letter)
        return before

    def resolve_at_once(self, journal: Journal, group: str, firsts: Longs, resolution: int) -> States | None:
        """The same of a few that have just come; None if something is to be waited for, and nothing was done."""
        if self.halves is None or self.unfinished is not None or len(firsts) > AT_ONCE_COUNT:
            return None
        if self._is_behind(firsts):
            return None
        halves = self.known()
        self._check_there(firsts, halves)
        offsets = np.sort(halves.current(firsts))  # those that were stored anew come behind others
        before = halves.states(offsets)
        if resolution == wire.UNRESOLVED or not (before == OPEN).all():
            return None
        records = self._reposter.recent(names.HALF_TOPIC, QUEUE, offsets)
        if records is None or self._fitting(records.sizes) < len(offsets):
            return None
        self._decide(journal, group, _LETTERS[resolution], records)
        return before

    async def _resolve(self, journal: Journal, group: str, firsts: Longs, letter: str) -> None:
        while True:
            await self.finish(journal)
            halves = self.known()
            offsets = halves.current(firsts)
            states = halves.states(offsets)
            _check_same(group, firsts, states, letter)
            offsets = offsets[states == OPEN]
            if not len(offsets):
                return
            records = await self.read(journal, offsets, in_place=True)
            if self.unfinished is not None or not (self.known().states(records.offsets) == OPEN).all():
                continue  # others had their turn meanwhile
            if not len(records.offsets):
                raise MessageNotFound(f"transaction of group {group}: the half at {offsets[0]} cannot be read")
            self._decide(journal, group, letter, records)

    async def read(self, journal: Journal, offsets: Longs, *, in_place: bool = False) -> Records:
        """The records of as many of these halves as one op may decide, by their offsets; ``in_place``: see Reposter.

        Raises:
            NotMaster: the mastership ended while the disk was waited for.
            BrokerUnavailable: some are not dispatched yet. MessageNotFound: their log files are gone.
        """
        if (offsets[1:] < offsets[:-1]).any():
            offsets = np.sort(offsets)
        picked = await self._reposter.locate(names.HALF_TOPIC, QUEUE, offsets)
        if len(picked.offsets) < len(offsets):
            missing = int(np.setdiff1d(offsets, picked.offsets)[0])
            if missing >= self._core.store.reader.queue_range(names.HALF_TOPIC, QUEUE)[1]:
                raise BrokerUnavailable(f"the half at {missing} is not confirmed yet: try again")
            raise MessageNotFound(f"the half at {missing} is gone: its log file was deleted")
        fits = self._fitting(picked.sizes)
        picked = picked if fits == len(offsets) else picked.part(np.arange(fits))
        return await self._reposter.read_as_master(journal, picked, in_place=in_place)

    def _fitting(self, sizes: Any) -> int:
        """How many of these one op may decide: what follows from it is a batch, which a log file must hold."""
        return min(self._reposter.fitting(sizes, RUN_BYTES, growth=GROWTH_MAX), RUN_COUNT)

    # Without waiting: whoever is asked next finds the op and all that follows from it.

    def carry_out(self, journal: Journal, letter: str, records: Records) -> None:
        """Record that these open halves are decided so, their first records too; post what follows from it."""
        assert self.halves is not None
        assert self.unfinished is None, "one op after the other"
        firsts, stretches = self.halves.firsts(records.offsets), [Stretch(letter, records.offsets)]
        others = firsts[firsts != records.offsets]
        if letter in _FIRST_LETTERS and len(others):
            stretches.append(Stretch(_FIRST_LETTERS[letter], others))
        receipt = journal.append(Target(names.OP_TOPIC, 1), op_record(stretches, self._form), count=1)
        self.unfinished = stretches, receipt.queue_offsets[0]
        self.end = receipt.end
        for stretch in stretches:
            self.halves.decide(stretch.offsets, stretch.state)
            self.ended[stretch.letter] += len(stretch.offsets)
        self.note_reach(receipt.queue_offsets[0], stretches)
        self._post(journal, records)

    def note_reach(self, op_offset: int, stretches: list[Stretch]) -> None:
        """Remember how far an op reaches, roughly."""
        last = max((int(stretch.offsets.max()) for stretch in stretches if len(stretch.offsets)), default=-1)
        if self.reaches and op_offset < self.reaches[-1][0] + OPS_TOGETHER:
            first, before = self.reaches.pop()
            self.reaches.append((first, max(last, before)))
        else:
            self.reaches.append((op_offset, last))

    def first_op(self, op_end: int) -> int:
        """The first op that may decide about halves from the first open one on; ``op_end`` without one."""
        floor = self.known().floor
        while self.reaches and self.reaches[0][1] < floor:
            self.reaches.popleft()
        return self.reaches[0][0] if self.reaches else op_end

    async def finish(self, journal: Journal) -> None:
        """Post what is still missing of the last op."""
        while self.unfinished is not None:
            unfinished = self.unfinished
            wanted = [stretch.offsets for stretch in unfinished[0] if stretch.letter in "CPKN"]
            offsets = np.sort(np.concatenate(wanted)) if wanted else _NOTHING
            picked = await self._reposter.locate(names.HALF_TOPIC, QUEUE, offsets)
            records = await self._reposter.read_as_master(journal, picked)
            if self.unfinished is unfinished:
                if len(records.offsets) < len(offsets):
                    log.warning(
                        "records of decided halves are gone op=%d missing=%d: whether they were posted cannot be told",
                        *(unfinished[1], len(offsets) - len(records.offsets)),
                    )
                self._post(journal, records)

    def _post(self, journal: Journal, records: Records) -> None:
        assert self.unfinished is not None
        stretches, op_offset = self.unfinished
        for letter, offsets in stretches:
            chosen = _places(records.offsets, offsets)
            if len(chosen):
                self._post_stretch(journal, letter, records, chosen, op_offset + 1)
        self.unfinished = None
        self._homes = None
        self.end = self._core.store.end_offset

    def _post_stretch(self, journal: Journal, letter: str, records: Records, chosen: Longs, sequence: int) -> None:
        if letter == "C":
            for name, places in self._by_topic(records, chosen):
                topic = self._core.tables.topics.get(name)
                if topic is None or names.is_system_topic(name):
                    log.error("committed messages dropped, their topic is gone topic=%s count=%d", name, len(places))
                    continue
                target = Target(name, max(topic.write_queues, 1))
                self._post_batch(journal, target, None, records, places, sequence)
        elif letter == "P":
            self._post_batch(journal, Target(names.PARKED_TOPIC, 1), Becomes.PARKED, records, chosen, sequence)
        elif letter in ("K", "N"):
            becomes = Becomes.ASKED if letter == "K" else Becomes.RENEWED
            posted = self._post_batch(journal, Target(names.HALF_TOPIC, 1), becomes, records, chosen, sequence)
            if posted is not None and self.halves is not None:
                self._add_renewed(records, *posted, is_asked=letter == "K")

    def _post_batch(
        self, journal: Journal, target: Target, becomes: Becomes | None, records: Records, chosen: Longs, sequence: int
    ) -> tuple[Longs, int] | None:
        """Post the records at the places ``chosen``, as messages if they become nothing else: those that will do.

        Answers their places and the first one's offset in its queue; None if they are there, or none will do.
        """
        mark = ProducerMark(PRODUCER_ID, 0, LANE, sequence, 1)
        if self._reposter.is_done(target, mark, below=sequence + 1):
            return None

        def on_bad(place: int, error: PenstockError) -> None:
            log.error("half cannot be posted topic=%s half=%d error=%s", target.topic, records.offsets[place], error)

        batch_of = partial(self._batch, target, becomes, records)
        posted = self._reposter.append_sound(journal, target, mark, chosen, batch_of, on_bad)
        return None if posted is None else (posted[0], posted[1].queue_offsets[0])

    def _batch(
        self, target: Target, becomes: Becomes | None, records: Records, chosen: Longs, mark: ProducerMark
    ) -> memoryview:
        """What the records at the places ``chosen`` become. Raises MessageTooLarge."""
        sizes = records.sizes[chosen]
        out = np.empty(int(sizes.sum()) + (len(chosen) + 1) * GROWTH_MAX, np.uint8)
        name, prefix = np.frombuffer(target.topic.encode(), np.uint8), np.frombuffer(mark_property(*mark), np.uint8)
        rows = records.data, records.positions[chosen], sizes
        if becomes is None:
            homes = self._homes_of(records)
            own = homes.queues[chosen], homes.kept[chosen]
            length = int(committed(*rows, *own, name, target.queues, prefix, out))
        else:
            length = int(restated(*rows, int(becomes), name, prefix, out))
        if length < 0:
            raise MessageTooLarge("its properties leave no room for what must be said", index=-1 - length)
        return out[:length].data

    def _by_topic(self, records: Records, chosen: Longs) -> Iterable[tuple[str, Longs]]:
        """The topics of the records at the places ``chosen``, and the places of each one's."""
        homes = self._homes_of(records)
        left, hashes = chosen, homes.hashes[chosen]
        while len(left):
            is_this = hashes == hashes[0]
            start = int(homes.topics[left[0]])
            yield "" if start < 0 else topic_at(records.data, start), left[is_this]
            left, hashes = left[~is_this], hashes[~is_this]

    def _homes_of(self, records: Records) -> Homes:
        """Where they belong, which is asked for several times."""
        if self._homes is None or self._homes[0] is not records.positions:
            self._homes = records.positions, Homes.of(records)
        return self._homes[1]

    def _decide(self, journal: Journal, group: str, letter: str, records: Records) -> None:
        """Commit or roll back the group's halves. Raises MessageNotFound, TopicNotFound: nothing was decided."""
        foreign = np.flatnonzero(self._homes_of(records).groups != name_hash(group))
        if len(foreign):
            raise MessageNotFound(
                f"transaction of group {group}: the half at {records.offsets[foreign[0]]} is of another producer group"
            )
        for name, places in self._by_topic(records, np.arange(len(records.offsets))) if letter == "C" else ():
            if self._core.tables.topics.get(name) is None or names.is_system_topic(name):
                raise TopicNotFound(
                    f"transaction of group {group}: the half at {records.offsets[places[0]]} is for topic {name}, "
                    "which is not there any more: create it, or roll back",
                    topic=name,
                )
        self.carry_out(journal, letter, records)

    def _add_renewed(self, records: Records, chosen: Longs, first: int, *, is_asked: bool) -> None:
        assert self.halves is not None
        own = records.positions[chosen], records.sizes[chosen], records.offsets[chosen]
        rows, _ = self.rows(records.data, *own)
        rows.times += is_asked
        rows.offsets = np.arange(first, first + len(chosen))
        rows.due = self.due(np.zeros(len(rows), np.int64), rows.times, np.full(len(rows), -1))
        self.halves.grow(first + len(chosen))
        self.halves.add(rows)

    def rows(self, data: Any, positions: Longs, sizes: Any, offsets: Longs) -> tuple[Waiting, Longs]:
        """Halves as their records tell of them, and hashes of their unique keys; of what is none the group is 0."""
        stored, immunity, times, firsts, groups, keys = (np.empty(len(offsets), np.int64) for _ in range(6))
        facts_of(data, positions, sizes, stored, immunity, times, firsts, groups, keys)
        times = np.maximum(times, 0)
        firsts = np.where(firsts >= 0, firsts, offsets)
        ages = np.maximum(self._core.clock.due_ms() - stored, 0)  # the log's times may be ahead of the clock
        return Waiting(offsets, firsts, self.due(ages, times, immunity), times, groups), keys

    def now_ms(self) -> int:
        """The time by which halves are due, which is monotonic: nobody sets it."""
        return round(self._core.clock.monotonic_s() * 1000)

    def due(self, ages_ms: Longs, times: Longs, immunity_s: Longs) -> Longs:
        """When each is to be asked about: some time after it was stored, or was asked about last, so long ago."""
        settings = self._settings
        at_first = np.where(immunity_s >= 0, immunity_s * 1000, settings.timeout_ms)
        due: Longs = self.now_ms() - ages_ms + np.where(times > 0, settings.check_interval_ms, at_first)
        return due

    def _is_behind(self, firsts: Longs) -> bool:
        """True if some are not to be seen yet, and what is confirmed and not dispatched may show them."""
        store = self._core.store
        return int(firsts[-1]) >= self.known().end and store.dispatched_offset < store.confirm_offset

    def _check_there(self, firsts: Longs, halves: Halves) -> None:
        if firsts[-1] < halves.end:
            return
        store = self._core.store
        if store.dispatched_offset < store.end_offset:
            raise BrokerUnavailable(f"the half at {firsts[-1]} is not confirmed yet: try again")
        raise MessageNotFound(
            f"transaction: there is no half at {firsts[-1]}, the last one is at {halves.end - 1}: this broker did not "
            "give the producer that offset"
        )


def _places(known: Longs, wanted: Longs) -> Longs:
    """Where those of ``wanted`` that are in ``known``, which ascends, are."""
    if not len(known):
        return _NOTHING
    if len(known) == len(wanted) and (known == wanted).all():
        return np.arange(len(known))
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return at if (found := known[at] == wanted).all() else at[found]


def _check_same(group: str, firsts: Longs, states: States, letter: str) -> None:
    other = np.flatnonzero((states != OPEN) & (states != Stretch(letter, firsts).state))
    if len(other):
        state = int(states[other[0]])
        told: dict[int, str] = {
            wire.ENDED: "decided so long ago that nobody knows how any more",
            wire.RENEWED: "stored anew: it is known by the offset of its first record",
            wire.PARKED: f"asked about too often: it lies in topic {names.PARKED_TOPIC}",
        }
        raise TransactionEnded(
            f"transaction of group {group}: the half at {firsts[other[0]]} is "
            f"{told.get(state, wire.HalfState.keys()[state].lower().replace('_', ' '))}; nothing was decided now",
            state=wire.HalfState.keys()[state],
        )
