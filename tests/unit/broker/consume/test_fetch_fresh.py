"""A record that comes alone goes to the fetches that wait for it, before it is dispatched."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any

import pytest

from penstock.broker.consume.consume import Consume
from penstock.broker.consume.fetch_poll import Poll
from penstock.broker.core import dispatch
from penstock.proto import frames
from penstock.proto.wire.broker_pb2 import FetchHeader, FetchReply, Filter
from penstock.runtime import turns
from tests.support.broker.kit import Kit, in_loop
from tests.support.broker.requests import wanting
from tests.support.broker.stores import bodies_of
from tests.support.waiting import eventually


class Fetching:
    """A fetch, and its answer: how far dispatch was when it came, its results and records."""

    def __init__(self, parts: Kit, header: FetchHeader) -> None:
        self.answer: tuple[int, list[FetchReply.Result], bytes] | None = None
        self._parts = parts
        self.poll = Poll(parts[Consume].fetch, header, self, self._tell, self._refuse)
        self.poll.start()

    async def cancel(self) -> None:
        """Return when its task, which it has if its turn was over as it came, has ended."""
        self.poll.cancel()
        if self.poll.task is not None:
            await asyncio.wait({self.poll.task})

    def _tell(self, pieces: Any) -> None:
        reply, records = frames.unpack(b"".join(map(bytes, pieces)), FetchReply, frames.ANSWER_FIELDS_MAX)
        self.answer = self._parts.store.dispatched_offset, list(reply.results), bytes(records)

    def _refuse(self, error: Exception) -> None:
        raise AssertionError(f"refused: {error!r}")

    async def result(self) -> tuple[int, FetchReply.Result, list[bytes]]:
        await eventually(lambda: self.answer is not None)
        assert self.answer is not None
        dispatched, results, records = self.answer
        assert len(results) == 1
        return dispatched, results[0], bodies_of(records)


def kit(*, holds: bool = False) -> Kit:
    parts = Kit(holds=holds)
    parts.add_topic()
    if holds:
        parts.confirm()
    parts.dispatch()
    return parts


@pytest.mark.parametrize("linger_s", [0, 3600])
def test_whoever_waits_for_it_has_it_before_it_is_dispatched_and_nobody_has_it_twice(
    linger_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TURN_S", 60.0)  # a busy machine ends no turn: the second fetch has time as well
    in_loop(partial(has_it_once, linger_s))()


async def has_it_once(linger_s: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "LINGER_S", linger_s)
        parts = kit()
    first, second = (Fetching(parts, wanting((0, 0), (1, 0), max_wait_ms=60_000)) for _ in range(2))
    await asyncio.sleep(0)  # a timer of before that is due comes behind this step, in the same round of the loop
    await parts.append([b"alone"], queue_id=1)
    for each in (first, second):
        dispatched, result, found = await each.result()
        assert dispatched < parts.store.confirm_offset
        assert (result.queue_id, result.next_offset, result.min_offset, result.max_offset) == (1, 1, 0, 1)
        assert found == [b"alone"]
    again = Fetching(parts, wanting((1, 1), max_wait_ms=60_000))
    if not linger_s:
        await eventually(lambda: parts.store.reader.queue_range("orders", 1) == (0, 1))
    assert again.answer is None
    await parts.append([b"next"], queue_id=1)
    _, result, found = await again.result()
    assert (result.next_offset, found) == (2, [b"next"])
    assert len(parts[Consume].fetch.waiters) == 0
    if linger_s:
        assert parts.store.reader.queue_range("orders", 1) == (0, 0), "whoever wants it has it: that has time"
    _, result, found = await Fetching(parts, wanting((1, 0), max_wait_ms=60_000)).result()
    assert (result.next_offset, found) == (2, [b"alone", b"next"]), "whoever looks for it finds it all the same"


@in_loop
async def test_who_comes_later_for_what_others_were_given_has_it_dispatched() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "LINGER_S", 3600)
        parts = kit(holds=True)
        first = Fetching(parts, wanting((0, 0), max_wait_ms=60_000))
        await parts.append([b"one"])
        parts.core.events.on_confirmed(parts.store.end_offset)
        assert (await first.result())[2] == [b"one"]
        first = Fetching(parts, wanting((0, 1), max_wait_ms=60_000))
        await parts.append([b"two"])
        second = Fetching(parts, wanting((0, 1), max_wait_ms=60_000))  # while it is not confirmed
        parts.core.events.on_confirmed(parts.store.end_offset)
        for each in (first, second):
            assert (await each.result())[2] == [b"two"]
        third = Fetching(parts, wanting((0, 2), max_wait_ms=60_000))
        await parts.append([b"three"])
        await asyncio.sleep(0)
        await third.cancel()  # nobody waits for it now
        parts.core.events.on_confirmed(parts.store.end_offset)
        await asyncio.sleep(0)
        assert (await Fetching(parts, wanting((0, 2), max_wait_ms=60_000)).result())[2] == [b"three"]
        await parts.append([b"four"])
        late = Fetching(parts, wanting((0, 3), max_wait_ms=60_000))
        parts.core.events.on_confirmed(parts.store.end_offset)
        assert (await late.result())[2] == [b"four"]


@in_loop
async def test_behind_a_record_of_the_brokers_state_nothing_is_given_away_before_it_is_dispatched() -> None:
    parts = kit()
    waiting = Fetching(parts, wanting((0, 0), max_wait_ms=60_000))
    journal = parts.core.events.journal
    assert journal is not None
    journal.put("anything", {})
    await parts.append([b"alone"])
    dispatched, _, found = await waiting.result()
    assert (dispatched, found) == (parts.store.confirm_offset, [b"alone"])


@pytest.mark.parametrize("when", ["as they come", "as it is offered"])
def test_when_the_turn_is_over_one_has_it_before_it_is_dispatched_and_the_other_behind_it(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_loop(partial(one_has_it_first, when, monkeypatch))()


async def one_has_it_first(when: str, patch: pytest.MonkeyPatch) -> None:
    parts = kit()
    patch.setattr(turns, "TURN_S", 0.0 if when == "as they come" else 60.0)
    both = [Fetching(parts, wanting((0, 0), (1, 0), max_wait_ms=60_000)) for _ in range(2)]
    await asyncio.sleep(0)  # the next turn begins, and whoever had no time in this one waits by now
    assert len(parts[Consume].fetch.waiters) == 2
    patch.setattr(turns, "TURN_S", 0.0)
    start = parts.store.dispatched_offset
    await parts.append([b"alone"], queue_id=1)
    answers = [await each.result() for each in both]
    assert sorted(dispatched for dispatched, _, _ in answers) == [start, parts.store.confirm_offset]
    for _, result, found in answers:
        assert (result.queue_id, result.next_offset, result.min_offset, result.max_offset) == (1, 1, 0, 1)
        assert found == [b"alone"]
    assert len(parts[Consume].fetch.waiters) == 0


@pytest.mark.parametrize("why", ["two records", "another queue", "a tag", "proof"])
def test_what_is_not_simply_the_next_one_waits_for_its_dispatch(why: str) -> None:
    in_loop(partial(once_dispatched, why))()


async def once_dispatched(why: str) -> None:
    parts = kit()
    header = wanting((0, 0), max_wait_ms=60_000)
    if why == "a tag":
        header.topics[0].filter.CopyFrom(Filter(kind=Filter.TAG, expression="red"))
    if why == "proof":
        header.verify = True
    waiting = Fetching(parts, header)
    count = 2 if why == "two records" else 1
    await parts.append([b"body"] * count, queue_id=1 if why == "another queue" else 0)
    await eventually(lambda: parts.store.dispatched_offset == parts.store.confirm_offset)
    if why in ("another queue", "a tag"):
        assert waiting.answer is None
        await waiting.cancel()
    else:
        dispatched, result, found = await waiting.result()
        assert (dispatched, result.next_offset, found) == (parts.store.confirm_offset, count, [b"body"] * count)


@in_loop
async def test_what_is_not_confirmed_is_not_given_away_nor_when_another_has_become_master_since() -> None:
    parts = kit(holds=True)
    waiting = Fetching(parts, wanting((0, 0), max_wait_ms=60_000))
    await parts.append([b"not yet"])
    for _ in range(5):
        await asyncio.sleep(0)
    assert waiting.answer is None
    parts.core.events.on_confirmed(parts.store.end_offset)
    dispatched, _, found = await waiting.result()
    assert (dispatched < parts.store.confirm_offset, found) == (True, [b"not yet"])
    await eventually(lambda: parts.store.dispatched_offset == parts.store.confirm_offset)

    offered: list[object] = []
    parts[Consume].fetch.waiters.offer = offered.append
    again = Fetching(parts, wanting((0, 1), max_wait_ms=60_000))
    await parts.append([b"of the former master"])
    parts.core.dispatcher.on_role()
    parts.core.events.on_confirmed(parts.store.end_offset)
    assert (await again.result())[2] == [b"of the former master"]
    assert offered == [], "the bytes there may be others by now"


@in_loop
async def test_an_offset_above_the_end_is_named_at_once_while_other_topics_messages_are_not_dispatched() -> None:
    parts = kit()
    parts.add_topic("others")
    parts.dispatch()
    await parts.append([b"last"])
    parts.dispatch()
    await parts.append([b"of others"] * 9, topic="others")
    assert parts.store.dispatched_offset < parts.store.confirm_offset
    _, result, _ = await Fetching(parts, wanting((0, 4), max_wait_ms=60_000)).result()
    assert (result.status, result.next_offset) == (FetchReply.OFFSET_OVERFLOW, 1)
    assert parts.store.dispatched_offset < parts.store.confirm_offset, "nobody had to look there"


@in_loop
async def test_an_offset_above_the_end_is_named_at_once_with_the_true_end_while_what_was_given_away_lingers() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "LINGER_S", 3600)
        parts = kit()
        for number in range(2):
            waiting = Fetching(parts, wanting((1, number), max_wait_ms=60_000))
            await parts.append([b"x" * 1000], queue_id=1)
            await waiting.result()
        assert parts.store.reader.queue_range("orders", 1) == (0, 0)
        _, result, _ = await Fetching(parts, wanting((0, 4), max_wait_ms=60_000)).result()  # with 24 of these hidden
        assert (result.status, result.max_offset) == (FetchReply.OFFSET_OVERFLOW, 0)
        _, result, _ = await Fetching(parts, wanting((1, 100), max_wait_ms=60_000)).result()
        assert (result.status, result.next_offset, result.max_offset) == (FetchReply.OFFSET_OVERFLOW, 2, 2)


@in_loop
async def test_a_consumer_that_fetches_on_and_on_gets_each_message_once_in_order() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    parts = kit()
    got: list[bytes] = []
    sent: list[bytes] = []
    offset = 0
    waiting = Fetching(parts, wanting((0, offset), max_wait_ms=60_000))
    while len(got) < 300:
        if rng.random() < 0.6 and len(sent) < 300:
            some = [b"%d" % number for number in range(len(sent), len(sent) + rng.choice([1, 1, 1, 3]))]
            sent += some
            await parts.append(some)
        if rng.random() < 0.2:
            await parts.append([b"elsewhere"], queue_id=1)
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        if waiting.answer is not None:
            _, result, found = await waiting.result()
            offset, got = result.next_offset, got + found
            waiting = Fetching(parts, wanting((0, offset), max_wait_ms=60_000))
        assert got == sent[: len(got)]
    assert offset == len(got) == len(sent)
    await waiting.cancel()


def test_nobody_waits_for_what_lingers_whoever_else_has_it_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "LINGER_S", 3600)  # whatever is not hurried for stays away
    monkeypatch.setattr(turns, "TURN_S", 60.0)
    in_loop(everybody_gets_everything)()


async def everybody_gets_everything() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    parts = Kit(holds=True)
    parts.add_topic()
    parts.add_topic("others")
    parts.confirm()
    parts.dispatch()
    sent: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    readers: list[tuple[dict[int, int], Fetching]] = []

    def fetch(offsets: dict[int, int]) -> None:
        readers.append((offsets, Fetching(parts, wanting(*offsets.items(), max_wait_ms=60_000))))

    for _ in range(400):
        step = rng.random()
        if step < 0.5:
            queue_id, topic = rng.randrange(3), rng.choice(["orders", "orders", "others"])
            some = [b"%d" % rng.randrange(1 << 30) for _ in range(rng.choice([1, 1, 1, 2]))]
            await parts.append(some, topic=topic, queue_id=queue_id)
            if topic == "orders":
                sent[queue_id] += some
        elif step < 0.7 and len(readers) < 6:
            wanted = rng.sample(range(3), rng.randint(1, 3))
            fetch({queue_id: rng.randint(0, len(sent[queue_id])) for queue_id in wanted})
        elif step < 0.75 and readers:
            _, fetching = readers.pop(rng.randrange(len(readers)))
            await fetching.cancel()
        else:
            parts.core.events.on_confirmed(parts.store.end_offset)
        if rng.random() < 0.5:
            parts.core.events.on_confirmed(parts.store.end_offset)
            for _ in range(6):  # turns of the loop, for the offer, the slice, and who is told
                await asyncio.sleep(0)
            for offsets, fetching in list(readers):
                is_owed = any(offset < len(sent[queue_id]) for queue_id, offset in offsets.items())
                assert is_owed is (fetching.answer is not None), (seed, offsets)
                if fetching.answer is not None:
                    _, results, records = fetching.answer
                    expected = [body for each in results for body in _next(sent, offsets, each)]
                    assert bodies_of(records) == expected
                    readers.remove((offsets, fetching))
                    fetch({queue_id: offsets[queue_id] for queue_id in offsets})
    for _, fetching in readers:
        await fetching.cancel()


def _next(sent: dict[int, list[bytes]], offsets: dict[int, int], result: FetchReply.Result) -> list[bytes]:
    """The bodies that a result has; its reader goes on behind them."""
    begin, offsets[result.queue_id] = offsets[result.queue_id], result.next_offset
    return sent[result.queue_id][begin : result.next_offset]
