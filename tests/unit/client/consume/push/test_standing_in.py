"""Listeners that are called by the thread that fetches, in the place of an idle worker."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from penstock.client.consume.push import standing_in
from penstock.client.message import MessageView
from tests.support.client.push_consumers import Seen, consumer
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until

TRIES = 1000


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningCluster]:
    monkeypatch.setattr(standing_in, "PATIENCE_S", 0.2)
    with RunningCluster(topics={"orders": 2}) as made:
        yield made


class Listener(Seen):
    """Writes down which threads call it; ``gate`` holds up bodies that begin with ``slow``."""

    def __init__(self) -> None:
        super().__init__(self.work)
        self.gate = threading.Event()
        self.threads: list[str] = []
        self.at_work = self.most = 0

    def work(self, message: MessageView) -> None:
        with self.lock:
            self.at_work += 1
            self.most = max(self.most, self.at_work)
            self.threads.append(threading.current_thread().name)
        if message.body.startswith(b"slow"):
            assert self.gate.wait(60)
        with self.lock:
            self.at_work -= 1


def let_it_fetch(cluster: RunningCluster, listener: Listener, body: bytes = b"quick") -> int:
    """Send single messages until the fetching thread works on one of ``body``; how many there are."""
    for _ in range(TRIES):
        before = len(listener.threads)
        cluster.put("orders", [b"quick"])
        wait_until(lambda before=before: len(listener.threads) > before, what="the message")
        if not listener.threads[-1].startswith("penstock-fetch"):
            continue
        if body == b"quick":
            return len(listener.threads)
        before = len(listener.threads)
        cluster.put("orders", [body])
        wait_until(lambda before=before: len(listener.threads) > before, what="the other message")
        if listener.threads[-1].startswith("penstock-fetch"):
            return len(listener.threads)
        listener.gate.set()  # a worker has it
        wait_until(lambda: listener.at_work == 0, what="its end")
        listener.gate.clear()
    raise AssertionError("the fetching thread never worked")


def names() -> list[str]:
    """The consumer's threads."""
    every = [each.name for each in threading.enumerate()]
    return sorted(name for name in every if name.startswith(("penstock-fetch-g", "penstock-consume")))


@pytest.mark.parametrize("orderly", [False, True])
def test_messages_that_come_one_by_one_are_worked_on_where_they_are_read(
    cluster: RunningCluster, orderly: bool
) -> None:
    listener = Listener()
    with consumer(cluster, listener, orderly=orderly):
        count = let_it_fetch(cluster, listener)
        wait_until(lambda: cluster.committed("g", "orders", 0) == count, what="the commit of all")
    assert len(listener) == count


@pytest.mark.parametrize("threads", [1, 2])
def test_another_fetches_while_a_message_takes_long(cluster: RunningCluster, threads: int) -> None:
    listener = Listener()
    with consumer(cluster, listener, consume_threads=threads) as made:
        before = names()
        count = let_it_fetch(cluster, listener, b"slow")
        cluster.put("orders", [b"behind"], 1)
        wait_until(lambda: made.statistics().received == count + 1, what="the message behind it is fetched")
        if threads > 1:
            wait_until(lambda: listener.threads[count:], what="and worked on")
        assert listener.most <= threads
        assert listener.threads[count:] == [] or threads > 1, "there is one thread for listeners, and it is at work"
        listener.gate.set()
        wait_until(lambda: len(listener) == count + 1, what="all of them")
        assert names() == before, "threads have changed places, there are none besides"
        count = let_it_fetch(cluster, listener)
        wait_until(lambda: sum(cluster.committed("g", "orders", n) for n in (0, 1)) == count, what="the commits")
    assert listener.most <= threads
    wait_until(lambda: names() == [], what="the threads' end")


def test_close_waits_for_what_the_fetching_thread_works_on_and_commits_it(cluster: RunningCluster) -> None:
    listener = Listener()
    made = consumer(cluster, listener)
    with made:
        count = let_it_fetch(cluster, listener, b"slow")
        threading.Timer(0.05, listener.gate.set).start()
    assert cluster.committed("g", "orders", 0) == count
    wait_until(lambda: names() == [], what="the threads' end")


def test_a_listener_may_close_its_consumer_from_there(cluster: RunningCluster) -> None:
    closed = threading.Event()
    listener = Listener()
    made = consumer(cluster, listener)

    def close(message: MessageView) -> None:
        Listener.work(listener, message)
        if message.body == b"last":
            made.close()
            closed.set()

    listener.then = close
    with made:
        let_it_fetch(cluster, listener, b"last")
        assert closed.wait(30)
    wait_until(lambda: names() == [], what="the threads' end")


def test_one_that_never_comes_back_leaves_its_place(cluster: RunningCluster) -> None:
    listener = Listener()
    with consumer(cluster, listener, consume_threads=1, consume_timeout_s=1):
        count = let_it_fetch(cluster, listener, b"slow")
        cluster.put("orders", [b"behind"], 1)
        wait_until(lambda: len(listener) > count, what="the message behind it, after the time-out")
        listener.gate.set()
        let_it_fetch(cluster, listener)


def test_never_more_listeners_work_than_there_are_threads(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    monkeypatch.setattr(standing_in, "PATIENCE_S", 0.005)
    threads = rng.choice([1, 2, 3])
    listener = Listener()
    pauses = {b"%d" % number: rng.choice([0, 0, 0, 0.002, 0.012]) for number in range(400)}

    def work(message: MessageView) -> None:
        with listener.lock:
            listener.at_work += 1
            listener.most = max(listener.most, listener.at_work)
            listener.threads.append(threading.current_thread().name)
        time.sleep(pauses[message.body])
        with listener.lock:
            listener.at_work -= 1

    listener.then = work
    bodies = list(pauses)
    with consumer(cluster, listener, consume_threads=threads):
        sent = 0
        while sent < len(bodies):
            burst = bodies[sent : sent + rng.choice([1, 1, 1, 1, 3])]
            cluster.put("orders", burst, rng.randrange(2))
            sent += len(burst)
            if rng.random() < 0.7:
                wait_until(lambda sent=sent: len(listener) == sent, what="everything so far")
        wait_until(lambda: sum(cluster.committed("g", "orders", n) for n in (0, 1)) == sent, what="the commits")
    assert listener.most <= threads
    assert sorted(listener.bodies()) == sorted(bodies)
    assert any(name.startswith("penstock-fetch") for name in listener.threads)
