"""What every consumer has: what it says once it cannot go on, and the thread of its decisions."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from penstock.client import PullConsumer, PushConsumer
from penstock.client.consume.control import ControlLoop
from penstock.client.consume.core import ConsumerCore
from penstock.client.consume.owner import QueueOwner
from penstock.proto.errors import ClientClosed, GroupNotFound
from tests.support.waiting import wait_until


def threads_of(group: str) -> list[str]:
    names = [each.name for each in threading.enumerate()]
    return [name for name in names if name.startswith("penstock-") and f"-{group}" in name]


def test_a_consumer_that_cannot_go_on_says_so_as_often_as_it_is_asked_and_keeps_nothing_of_it() -> None:
    with PullConsumer("127.0.0.1:1", group="g") as puller:
        puller._core.fail(GroupNotFound("group g is gone"))
        depths = []
        for _ in range(3):
            with pytest.raises(GroupNotFound, match="is gone") as failed:
                puller.poll(0)
            depths.append(len(failed.traceback))
        assert depths == depths[:1] * 3


def test_a_consumer_fails_while_another_thread_subscribes() -> None:
    class Text(str):
        def __repr__(self) -> str:
            core.subscriptions["another"] = core.subscriptions["orders"]
            return super().__repr__()

    with PullConsumer("127.0.0.1:1", group="g") as puller:
        core = puller._core
        given = SimpleNamespace(topic="orders", filter=SimpleNamespace(expression=Text("a")))
        core.subscriptions["orders"] = given  # type: ignore[assignment]
        core.fail(GroupNotFound("group g is gone"))
        with pytest.raises(GroupNotFound, match=r"is gone; .*\(orders 'a'\)"):
            puller.poll(0)


def test_a_consumer_that_is_closed_while_it_subscribes_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, is_closed = threading.Event(), threading.Event()

    def look_up(owner: QueueOwner, topics: Iterable[str]) -> None:
        looks.set()
        assert is_closed.wait(30)

    monkeypatch.setattr(QueueOwner, "_look_up", look_up)
    puller = PullConsumer("127.0.0.1:1", group="late")
    with ThreadPoolExecutor() as pool:
        subscribed = pool.submit(puller.subscribe, "orders")
        assert looks.wait(30)
        puller.close()
        is_closed.set()
        with pytest.raises(ClientClosed, match="of group late is closed"):
            subscribed.result(30)
    wait_until(lambda: not threads_of("late"), what="no thread")


def test_a_push_consumer_that_is_closed_while_it_starts_leaves_no_worker_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(QueueOwner, "_look_up", lambda owner, topics: None)
    pusher = PushConsumer("127.0.0.1:1", group="late", listener=print)
    pusher.subscribe("orders")
    begin = ConsumerCore.begin

    def begin_and_close(core: ConsumerCore, owner: QueueOwner) -> None:
        begin(core, owner)
        pusher.close()

    monkeypatch.setattr(ConsumerCore, "begin", begin_and_close)
    pusher.start()
    wait_until(lambda: not threads_of("late"), what="no thread")


def test_what_is_subscribed_and_unsubscribed_while_a_consumer_starts_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes: list[threading.Thread] = []

    def look_up(owner: QueueOwner, topics: Iterable[str]) -> None:
        if not changes:
            changes.extend(
                threading.Thread(target=change, args=(topic,))
                for change, topic in [(pusher.subscribe, "late"), (pusher.unsubscribe, "gone")]
            )
            for each in changes:
                each.start()
            for each in changes:
                each.join(0.1)  # they may wait for the start

    monkeypatch.setattr(QueueOwner, "_look_up", look_up)
    pusher = PushConsumer("127.0.0.1:1", group="g", listener=print)
    pusher.subscribe("orders")
    pusher.subscribe("gone")
    with pusher:
        owner = pusher._core.begun()
        topics = ("orders", "late", "gone")
        wait_until(lambda: [owner._wants(each) for each in topics] == [True, True, False], what="topics")


def test_a_close_of_a_pull_consumer_that_ctrl_c_interrupts_ends_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(deadline_s: float) -> None:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    puller = PullConsumer("127.0.0.1:1", group="g", trace=True)
    with monkeypatch.context() as patched:
        patched.setattr(puller._core, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            puller.close()
    left = [each for each in threading.enumerate() if each not in before and each.name == "penstock-trace"]
    wait_until(lambda: not any(each.is_alive() for each in left), what="no thread")
    puller.close()


def test_what_is_posted_runs_also_while_each_tick_fails() -> None:
    ran = threading.Event()

    def fail(now_s: float) -> float:
        raise ValueError("no decision")

    control = ControlLoop("test", fail)
    control.post(ran.set)
    control.start()
    assert ran.wait(30)
    control.close()
