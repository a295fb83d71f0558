"""What every consumer has: what it says once it cannot go on, and the thread of its decisions."""

from __future__ import annotations

import threading

import pytest

from penstock.client.consume.control import ControlLoop
from penstock.client.pull_consumer import PullConsumer
from penstock.proto.errors import GroupNotFound


def test_a_consumer_that_cannot_go_on_says_so_as_often_as_it_is_asked_and_keeps_nothing_of_it() -> None:
    with PullConsumer("127.0.0.1:1", group="g") as puller:
        puller._core.fail(GroupNotFound("group g is gone"))
        depths = []
        for _ in range(3):
            with pytest.raises(GroupNotFound, match="is gone") as failed:
                puller.poll(0)
            depths.append(len(failed.traceback))
        assert depths == depths[:1] * 3


def test_what_is_posted_runs_also_while_each_tick_fails() -> None:
    ran = threading.Event()

    def fail(now_s: float) -> float:
        raise ValueError("no decision")

    control = ControlLoop("test", fail)
    control.post(ran.set)
    control.start()
    assert ran.wait(30)
    control.close()
