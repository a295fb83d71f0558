"""The judge, piece by piece as the audit job does it and as a whole: what a count message by message finds."""

from __future__ import annotations

import bisect
import itertools
import pickle
import random
from collections import defaultdict, namedtuple
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy as np
import pytest

from penstock.judge import judge, tallied
from penstock.judge.conditions import LOSS_WINDOW_NS, UNREPLICATED
from penstock.judge.history import EVENT, NO_KEY, Op, Outcome
from penstock.judge.invariants.promises import LATER, TRANSACTIONS
from penstock.judge.judging import epoch_limits, judge_epochs, judge_groups, settle
from penstock.judge.pieces import STRETCH_ROWS, grouped, split
from penstock.judge.queues import went_back
from penstock.judge.tally import Tally, percentiles_ms
from penstock.pipeline.jobs.audit.history import cut, groups
from penstock.proto.errors import Corrupt
from tests.support.cluster import drill_history
from tests.support.cluster.drill_history import MS, SHARDS, Damaged

Row: Any = namedtuple("Row", [*EVENT.names, "id", "place", "home"])  # type: ignore[misc]


class Plainly:
    """The invariants by lists and dictionaries: slow, and easy to believe."""

    def __init__(self, made: Damaged) -> None:
        self.conditions = made.conditions
        fields = [dict(zip(EVENT.names or (), row, strict=True)) for row in made.history.events.tolist()]
        rows = [
            Row(
                **each,
                id=(each["stream"], each["sequence"]),
                place=(each["shard"], each["queue"], each["offset"]),
                home=(each["shard"], each["queue"]),
            )
            for each in fields
        ]
        ops = (Op.INVOKE, Op.SEND, Op.RECEIVE, Op.READ, Op.POSITION)
        self.invoked, self.sends, received, self.read, looks = ([row for row in rows if row.op == op] for op in ops)
        self.sent = [row for row in self.sends if row.outcome == Outcome.OK]
        self.received = sorted(received, key=lambda row: row.end_ns)
        self.looks = sorted(looks, key=lambda row: row.end_ns)

    def violations(self) -> dict[str, int]:
        """How often each invariant is broken."""
        counted = (self.lost, self.phantoms, self.values, self.order, self.offsets, self.duplicates, self.writers)
        return {name: count() for name, count in zip(INVARIANTS, counted, strict=True)}

    def lost(self) -> int:
        there = {(row.place, row.id) for row in self.read}
        lost = [row for row in self.sent if (row.place, row.id) not in there]
        if self.conditions.mode not in UNREPLICATED or not self.read:
            return len(lost)
        tail: dict[Any, int] = defaultdict(lambda: -1)
        for row in self.sent:
            if (row.place, row.id) in there:
                tail[row.home, row.epoch] = max(tail[row.home, row.epoch], row.offset)
        return sum(not self._at_fault(row) or row.offset < tail[row.home, row.epoch] for row in lost)

    def _at_fault(self, row: Any) -> bool:
        return any(each.start_ns - LOSS_WINDOW_NS <= row.end_ns < each.end_ns for each in self.conditions.windows)

    def phantoms(self) -> int:
        possible = {row.id for row in self.sends if row.outcome != Outcome.REFUSED}
        possible -= (refused := {row.id for row in self.sends if row.outcome == Outcome.REFUSED} - possible)
        announced = [(row.stream, row.sequence, row.sequence + row.offset) for row in self.invoked]
        return sum(
            row.id in refused or not any(of == row.stream and low <= row.sequence < end for of, low, end in announced)
            for row in [*self.read, *self.received]
            if row.id not in possible
        )

    def values(self) -> int:
        told = by([*self.read, *self.received, *self.sent], lambda row: row.place)
        return sum(len({row.id for row in rows}) > 1 for rows in told)

    def order(self) -> int:
        count = 0
        for rows in by(self.sent, lambda row: row.home):
            earliest = 1 << 62
            for row in sorted(rows, key=lambda row: -row.offset):
                count += earliest < row.start_ns
                earliest = min(earliest, row.end_ns)
        for found in by([*self.sent, *self.read], lambda row: row.home):
            read = first_of_each([row for row in found if row.op == Op.READ], lambda row: row.offset)
            keyed = [row for row in read if row.key != NO_KEY]
            keyed = keyed or [row for row in found if row.op == Op.SEND and row.key != NO_KEY]
            for rows in by(first_of_each(keyed, lambda row: row.id), lambda row: (row.stream, row.key)):
                count += falls([row.sequence for row in rows])
        return count + sum(
            falls(list(dict.fromkeys(row.offset for row in rows))) for rows in by(self.received, lambda row: row.home)
        )

    def offsets(self) -> int:
        count = 0
        for rows in by(self.read, lambda row: row.home):
            count += sum(b - a > 1 for a, b in itertools.pairwise(sorted({row.offset for row in rows})))
        for rows in by(self.looks, lambda row: row.home):
            looks = [(row.end_ns, row.sequence, row.position, row.offset) for row in rows]
            acknowledged = sorted(row.end_ns for row in self.sent if row.home == rows[0].home)
            count += len(went_back(looks, self.conditions, SHARDS[rows[0].shard], acknowledged))
        return count

    def duplicates(self) -> int:
        again = len(self.received) - len({row.place for row in self.received})
        stored = len({(row.id, row.place) for row in self.read}) - len({row.id for row in self.read})
        return stored + max(again - self.conditions.duplicates_allowed, 0)

    def writers(self) -> int:
        count = 0
        for rows in by([row for row in self.sent if row.epoch > 0], lambda row: row.shard):
            done = sorted(rows, key=lambda row: row.end_ns)
            highest = list(itertools.accumulate((row.epoch for row in done), max, initial=0))
            ends = [row.end_ns for row in done]
            count += sum(row.epoch < highest[bisect.bisect_left(ends, row.start_ns)] for row in rows)
        return count


def first_of_each(rows: Iterable[Any], key: Callable[[Any], Hashable]) -> list[Any]:
    """The row of each key that has the lowest offset, or was first; by offset."""
    found: dict[Hashable, Any] = {}
    for row in sorted(rows, key=lambda row: (row.offset, row.end_ns)):
        found.setdefault(key(row), row)
    return list(found.values())


def by(rows: Iterable[Any], key: Callable[[Any], Hashable]) -> list[list[Any]]:
    """The rows of each key, in their order."""
    found: dict[Hashable, list[Any]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return list(found.values())


def falls(numbers: list[int]) -> int:
    return sum(b < a for a, b in itertools.pairwise(numbers))


PARTS = 3
INVARIANTS = ("I1", "I2", "I3", "I4", "I5", "I7", "I9")


def audited(damaged: Damaged, chooser: random.Random) -> Tally:
    """What the job finds: the rows in files of one client each, cut into blocks of any length."""
    conditions = damaged.conditions
    parts: list[list[Any]] = [[] for _ in range(2 * PARTS)]
    blocks = []
    files = [damaged.invoked, damaged.sent, damaged.received, damaged.read, damaged.looks, *damaged.extra]
    for number, events in enumerate(files):
        first = 0
        while first < len(events):
            count = chooser.randrange(1, 3000)
            blocks.append(events[first : first + count])
            batch = cut(events[first : first + count].copy(), PARTS, number, first)
            for at in range(batch.num_rows):
                parts[batch.column("part")[at].as_py()].append(batch.slice(at, 1))
            first += count
    total = Tally()
    for batches in parts:
        chooser.shuffle(batches)  # as a shuffle brings them
        total.add(judge_groups(groups(batches), SHARDS, conditions))
    settle(total, conditions)
    limits = epoch_limits(total)
    for events in blocks:
        total.add(judge_epochs(events, limits, SHARDS))
    return total


def some(chooser: random.Random, count: int, most: int = 4) -> list[int]:
    return [chooser.randrange(count) for _ in range(chooser.randrange(1, most + 1))]


def damage(made: Damaged, chooser: random.Random) -> None:
    """One thing that can go wrong, somewhere."""
    sent, received, read = made.sent, made.received, made.read
    match chooser.randrange(15):
        case 0:
            made.read = np.delete(read, some(chooser, len(read)))
        case 1:
            read["sequence"][some(chooser, len(read))] += chooser.choice([1, 5000, 70_000])
        case 2:
            sent["outcome"][some(chooser, len(sent))] = chooser.choice([Outcome.REFUSED, Outcome.UNKNOWN])
        case 3:
            one, other = some(chooser, len(received), 1) + some(chooser, len(received), 1)
            received["end_ns"][[one, other]] = received["end_ns"][[other, one]]
        case 4:
            again = received[some(chooser, len(received), 20)].copy()
            again["end_ns"] += chooser.randrange(100) * MS
            made.extra.append(again)
        case 5:
            twice = read[some(chooser, len(read))].copy()
            twice["offset"] += 100_000 + np.arange(len(twice))
            made.extra.append(twice)
        case 6:
            sent["epoch"][some(chooser, len(sent))] = chooser.choice([0, 1, 2, 3])
        case 7:
            start = some(chooser, len(sent), 1)
            sent["start_ns"][start] += 500 * MS
            sent["end_ns"][start] += 500 * MS
        case 8:
            made.looks[chooser.choice(["sequence", "offset", "position"])][some(chooser, 20)] -= chooser.randrange(80)
        case 9:
            one, other = some(chooser, len(sent), 1) + some(chooser, len(sent), 1)
            for name in ("shard", "queue", "offset"):
                for rows in (sent, read, received):
                    rows[name][[one, other]] = rows[name][[other, one]]
        case 10:
            made.conditions.mode = chooser.choice(["async", "flush", "sync", "durable"])
            lost = read["end_ns"] > 0
            lost[(sent["end_ns"] > 3500 * MS) & (sent["end_ns"] < 4200 * MS)] = chooser.random() < 0.5
            made.read = read[lost] if len(lost) == len(read) else read
        case 11:
            made.invoked["offset"] -= chooser.randrange(50)
            made.sent = np.delete(sent, [len(sent) - 1])
        case 12:
            foreign = some(chooser, len(read))
            read["stream"][foreign], read["sequence"][foreign] = 0xFFFF_FFFF, 0
        case 13:
            made.conditions.mode = chooser.choice(["async", "durable"])
            made.read = read[:0]
        case 14:
            wrong = some(chooser, len(read))
            read["offset"][wrong] = read["offset"][np.roll(wrong, 1)] + 1


@pytest.mark.parametrize("seed", range(100))
def test_pieces_and_the_whole_agree_with_a_count_message_by_message(seed: int) -> None:
    chooser = random.Random(seed)
    made = drill_history.clean(chooser.choice([40, 400, 4000]))
    made.conditions.duplicates_allowed = chooser.randrange(4)
    for _ in range(chooser.randrange(4)):
        if len(made.sent) == len(made.read):
            damage(made, chooser)
    expected = Plainly(made).violations()
    whole, found = tallied(made.history, made.conditions), audited(made, chooser)
    assert {name: found.wrong[name] for name in INVARIANTS} == expected
    assert {name: whole.wrong[name] for name in INVARIANTS} == expected
    assert found.checked == whole.checked
    for name in INVARIANTS:
        shown = 1 if name == "I1" and not len(made.read) else min(found.wrong[name], 20)
        assert len(found.examples.get(name, [])) == len(whole.examples.get(name, [])) == shown


def test_what_nobody_was_to_read_is_not_judged_as_lost() -> None:
    made = drill_history.clean(40)
    made.read = made.read[:0]
    for reads_due, lost in ((True, 40), (False, 0)):
        pieces = ((each.kind, each.a, each.b, (0, 0), each.rows, each.data) for each in split(made.history.events, 1))
        total = judge_groups(grouped(pieces), SHARDS, made.conditions)
        settle(total, made.conditions, reads_due=reads_due)
        assert (total.checked["I1"], total.wrong["I1"]) == (lost, lost)
        assert total.acknowledged.total() == 40


PROMISES = ("I15", "I16", "I17", "I18", "I19", "I20")


@pytest.mark.parametrize("seed", range(20))
def test_what_was_promised_is_judged_in_pieces_as_a_drill_judges_it(seed: int) -> None:
    chooser = random.Random(seed)
    made = drill_history.clean(400)
    drill_history.given_back(made)
    decided, later, worked = (drill_history.rows(60) for _ in range(3))
    for events, op, stream in ((decided, Op.DECIDE, TRANSACTIONS), (later, Op.LATER, LATER)):
        events["op"], events["stream"], events["sequence"] = op, stream, np.arange(60) * STRETCH_ROWS // 20
        events["outcome"] = [chooser.choice([Outcome.OK, Outcome.REFUSED, Outcome.UNKNOWN]) for _ in range(60)]
        shown = events[chooser.sample(range(60), 40)].copy()
        shown["op"], shown["shard"], shown["queue"], shown["offset"] = Op.SHOWN, 0, 0, np.arange(40)
        made.extra += [events, shown]
    worked["op"], worked["shard"], worked["queue"], worked["offset"] = Op.WORK, 1, np.arange(60) % 3, np.arange(60)
    worked["start_ns"], worked["end_ns"] = np.arange(60), np.arange(60) + chooser.choice([2, 4])
    made.extra.append(worked)
    held, done = made.received.copy(), made.received[some(chooser, 400)].copy()
    held["op"], held["offset"], done["op"] = Op.HOLD, held["end_ns"] + 10_000 * drill_history.MS, Op.ACKNOWLEDGE
    again = held[some(chooser, 400)].copy()
    again["start_ns"] += 6_000 * drill_history.MS
    again["end_ns"] += chooser.choice([6_000, 11_000]) * drill_history.MS
    made.extra += [np.delete(held, some(chooser, 400)), done, again]
    for number in chooser.sample(range(8), 3):
        made.extra[number] = np.delete(made.extra[number], some(chooser, len(made.extra[number])))
    whole = {each.invariant: each for each in judge(made.history, made.conditions)}
    found = audited(made, chooser)
    assert {name: found.wrong[name] for name in PROMISES} == {name: whole[name].violations for name in PROMISES}
    assert {name: found.checked[name] for name in PROMISES} == {name: whole[name].checked for name in PROMISES}
    assert min(found.wrong["I17"], found.wrong["I18"], found.wrong["I20"]) > 0


def test_sequences_that_were_announced_count_in_every_stretch_that_they_reach_into() -> None:
    made = drill_history.clean(40)
    made.invoked["sequence"], made.invoked["offset"] = 0, 3 * STRETCH_ROWS + 1
    seen = made.read[:4].copy()
    seen["sequence"] = [STRETCH_ROWS, 3 * STRETCH_ROWS - 1, 3 * STRETCH_ROWS, 3 * STRETCH_ROWS + 1]
    seen["offset"] += 10
    made.extra.append(seen)
    found = audited(made, random.Random(1))
    assert found.wrong["I2"] == 1
    assert found.examples["I2"][0].startswith(f"message 7.{3 * STRETCH_ROWS + 1} at ")


def test_numbers_that_no_history_has_are_refused() -> None:
    for field, value in (("sequence", -1), ("sequence", 1 << 40), ("stream", 1 << 23)):
        made = drill_history.clean(40)
        made.read[field][3] = value
        with pytest.raises(Corrupt, match="a history numbers messages"):
            audited(made, random.Random(1))
    made = drill_history.clean(40)
    made.invoked["offset"] = 1 << 60
    with pytest.raises(Corrupt, match="a history announces"):
        audited(made, random.Random(1))


def test_percentiles_are_within_a_thousandth() -> None:
    chooser = np.random.default_rng(3)
    values = np.exp(chooser.uniform(0, 20, 10_000)).astype(np.int64) + 1
    tally = Tally()
    tally.on_delivered(values)
    again = pickle.loads(pickle.dumps(tally))
    for share, found in zip((0.5, 0.99, 0.999), percentiles_ms(again.deliveries, (0.5, 0.99, 0.999)), strict=True):
        exact = np.sort(values)[int(share * len(values)) - 1] / 1e6
        assert abs(found - exact) <= exact / 500
    assert again.longest_ns == [0, int(values.max())]
