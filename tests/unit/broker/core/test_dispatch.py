from __future__ import annotations

import asyncio
from functools import partial

import pytest

from penstock.broker.core import dispatch
from penstock.proto.errors import Corrupt, DiskFull
from penstock.runtime.busy_poll import PollingLoop
from tests.support.broker.kit import Kit, close_all, in_loop
from tests.support.waiting import eventually


class Awaiting:
    """Somebody who waits for messages, or not."""

    def __init__(self, *, waits: bool = True, topic: str = "orders") -> None:
        self.waits = waits
        self.topic = topic

    def __bool__(self) -> bool:
        return self.waits

    def waits_for(self, topic: str) -> bool:
        return self.waits and topic == self.topic

    def offer(self, fresh: dispatch.Fresh) -> bool:
        return not self.waits_for(fresh.topic)

    def on_arrived(self, arrivals: dispatch.Arrivals) -> None:
        pass


@in_loop
async def test_dispatch_follows_the_confirm_offset() -> None:
    parts = Kit(holds=True)
    parts.add_topic()
    await parts.append()
    task = asyncio.create_task(parts.core.dispatcher.run())
    parts.core.dispatcher.poke()
    await asyncio.sleep(0)
    assert parts.store.reader.queue_range("orders", 0) == (0, 0)
    parts.confirm()
    parts.core.dispatcher.poke()
    await asyncio.wait_for(parts.core.dispatcher.wait_dispatched(parts.store.end_offset), 30)
    assert parts.store.reader.queue_range("orders", 0) == (0, 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@in_loop
async def test_a_full_disk_is_waited_out_and_a_damaged_log_ends_the_task() -> None:
    parts = Kit()
    parts.add_topic()
    await parts.append()
    problems: list[Exception] = [DiskFull("no space"), DiskFull("no space")]
    real = parts.store.dispatch

    def failing(max_bytes: int) -> object:
        if problems:  # a full disk has space again; damage stays
            raise problems[0] if isinstance(problems[0], Corrupt) else problems.pop(0)
        return real(max_bytes)

    parts.store.dispatch = failing
    parts.core.dispatcher.watchers.append(Awaiting())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "DISK_FULL_RETRY_S", 0.001)
        task = asyncio.create_task(parts.core.dispatcher.run())
        parts.core.dispatcher.poke()
        await eventually(lambda: parts.store.reader.queue_range("orders", 0) == (0, 1))
        problems.append(Corrupt("a record does not continue its queue"))
        await parts.append()
        parts.core.dispatcher.poke()
        with pytest.raises(Corrupt):
            await task


@in_loop
async def test_what_nobody_waits_for_lingers_and_whoever_looks_sees_it_all_the_same() -> None:
    parts = Kit()
    awaiting = Awaiting(waits=False)
    lingering = dispatch.Dispatcher(parts.store, parts.tables)
    lingering.watchers.append(awaiting)
    slices: list[int] = []
    real = parts.store.dispatch
    parts.store.dispatch = lambda max_bytes: slices.append(max_bytes) or real(max_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "LINGER_S", 3600)
        parts.add_topic()  # here: the kit's own dispatcher would linger too, and end it
        slices.clear()
        task = asyncio.create_task(lingering.run())
        for _ in range(3):
            await parts.append()
            lingering.poke()
            await asyncio.sleep(0)
        assert slices == []
        lingering.catch_up()
        assert parts.store.reader.queue_range("orders", 0) == (0, 3)
        await parts.append()
        lingering.poke()
        await asyncio.wait_for(lingering.wait_dispatched(parts.store.end_offset), 30)
        assert parts.store.reader.queue_range("orders", 0) == (0, 4)
        awaiting.waits = True
        await parts.append()
        lingering.poke()
        await eventually(lambda: parts.store.reader.queue_range("orders", 0) == (0, 5))
        await parts.append()
        lingering.poke()
        lingering.catch_up()  # the task has its turn coming, whoever looks is here now
        assert parts.store.reader.queue_range("orders", 0) == (0, 6)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@in_loop
async def test_what_is_for_other_topics_than_those_waited_for_lingers_until_one_of_these_follows() -> None:
    parts = Kit()
    awaiting = Awaiting(topic="other")
    dispatcher = parts.core.dispatcher
    dispatcher.watchers.append(awaiting)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "LINGER_S", 3600)
        parts.add_topic()
        parts.dispatch()
        task = asyncio.create_task(dispatcher.run())
        for _ in range(2):
            await parts.append()
            for _ in range(3):
                await asyncio.sleep(0)
        assert parts.store.reader.queue_range("orders", 0) == (0, 0)
        awaiting.topic = "orders"
        await parts.append()
        await eventually(lambda: parts.store.reader.queue_range("orders", 0) == (0, 3))
        awaiting.topic = "other"
        await parts.append()
        await asyncio.sleep(0)
        assert parts.store.reader.queue_range("orders", 0) == (0, 3)
        dispatcher.catch_up([("other", [(0, 0)])])  # somebody looks, at something else
        assert parts.store.reader.queue_range("orders", 0) == (0, 3)
        awaiting.topic = "orders"
        dispatcher.hurry()  # somebody waits for it from now on
        await eventually(lambda: parts.store.reader.queue_range("orders", 0) == (0, 4))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@in_loop
async def test_lingering_ends_by_itself_and_a_store_that_cannot_is_left_to_the_task() -> None:
    parts = Kit()
    parts.add_topic()
    lingering = dispatch.Dispatcher(parts.store, parts.tables)
    task = asyncio.create_task(lingering.run())
    await parts.append()
    lingering.poke()
    await eventually(lambda: parts.store.reader.queue_range("orders", 0) == (0, 1))

    def damaged(max_bytes: int) -> object:
        raise Corrupt("no record")

    parts.store.dispatch = damaged
    await parts.append()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "LINGER_S", 3600)
        lingering.poke()
    lingering.catch_up()
    with pytest.raises(Corrupt):
        await asyncio.wait_for(task, 60)


def test_a_loop_with_nothing_else_to_do_dispatches_records_that_came_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "LINGER_S", 3600)

    async def scenario() -> None:
        parts = Kit()
        parts.add_topic()
        parts.dispatch()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, PollingLoop)
        await parts.append([b"two", b"together"])
        for _ in range(3):
            seen = parts.store.dispatched_offset
            for _ in range(dispatch.IDLE_RECORDS - 1):
                await parts.append()
            is_idle = loop.create_future()
            loop.when_idle(partial(is_idle.set_result, None))
            await is_idle
            assert parts.store.dispatched_offset == seen < parts.store.end_offset
            await parts.append()
            await eventually(lambda: parts.store.dispatched_offset == parts.store.end_offset)

    with asyncio.Runner(loop_factory=PollingLoop) as runner:
        runner.run(scenario())
    close_all()


@in_loop
async def test_whatever_goes_wrong_behind_the_store_ends_the_task() -> None:
    parts = Kit()
    parts.add_topic()
    parts.dispatch()
    awaiting = Awaiting()

    def broken(arrivals: dispatch.Arrivals) -> None:
        raise ValueError("a watcher's own")

    awaiting.on_arrived = broken  # type: ignore[method-assign]
    parts.core.dispatcher.watchers.append(awaiting)
    task = asyncio.create_task(parts.core.dispatcher.run())
    await parts.append([b"one", b"two"])
    with pytest.raises(ValueError, match="own"):
        await task


@in_loop
async def test_whoever_looks_at_a_topic_has_it_dispatched_however_many_others_were_appended() -> None:
    parts = Kit()
    topics = [f"t{number}" for number in range(8)]
    for topic in topics:
        parts.add_topic(topic)
    parts.dispatch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "TOPICS_MAX", 3)
        for count, topic in enumerate(topics, 1):
            for each in topics[:count]:
                await parts.append(topic=each)
            parts.core.dispatcher.catch_up([(topic, [(0, 0)])])
            assert parts.store.reader.queue_range(topic, 0)[1] == 1
            parts.dispatch()
