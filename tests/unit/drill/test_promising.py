"""What a drill notes of work in order, of transactions, of messages for later, and of simple consumers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.load.ledger import HEADER
from penstock.client import Producer, SendReceipt, SendStatus
from penstock.drill.load.popping import GIVEN_BACK_EVERY, Popping
from penstock.drill.load.promising import Promising
from penstock.drill.load.working import Working
from penstock.judge.history import Op, Outcome, Recorder, read_history
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until

RUN = 7
SHARDS = ("broker-a",)


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"orders": 1}) as made:
        yield made


@contextlib.contextmanager
def recorded(folder: Path) -> Iterator[Recorder]:
    with contextlib.closing(Recorder(folder / "one.history", 10, "one", SHARDS)) as made:
        yield made


def rows(folder: Path, op: Op) -> Any:
    return read_history(folder.glob("*.history")).of(op)


def test_what_may_be_shown_is_noted_before_it_is_tried(cluster: RunningCluster, tmp_path: Path) -> None:
    stop = threading.Event()
    with recorded(tmp_path) as recorder:
        made = Promising(cluster.namesrv, "orders", RUN, recorder, stop)
        thread = threading.Thread(target=made.run)
        thread.start()
        wait_until(lambda: min(rows(tmp_path, op)["sequence"].max(initial=0) for op in (Op.DECIDE, Op.LATER)) > 4)
        stop.set()
        thread.join()
        made.close()
    decided, later = rows(tmp_path, Op.DECIDE), rows(tmp_path, Op.LATER)
    of = {number: decided["outcome"][decided["sequence"] == number].tolist() for number in range(4)}
    assert of == {0: [Outcome.UNKNOWN, Outcome.OK], 1: [Outcome.REFUSED], 2: [], 3: []}
    for number in (0, 1):
        mine = later[later["sequence"] == number]
        assert mine["outcome"].tolist() == [Outcome.UNKNOWN, Outcome.OK]
        assert len(set(mine["offset"].tolist())) == 1


def test_what_no_replica_has_is_no_promise(
    cluster: RunningCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends = Producer.send
    stop = threading.Event()

    def send(self: Producer, *args: Any, **options: Any) -> SendReceipt:
        return sends(self, *args, **options)._replace(status=SendStatus.FLUSH_SLAVE_TIMEOUT)

    monkeypatch.setattr(Producer, "send", send)
    with recorded(tmp_path) as recorder:
        made = Promising(cluster.namesrv, "orders", RUN, recorder, stop)
        thread = threading.Thread(target=made.run)
        thread.start()
        try:
            wait_until(lambda: rows(tmp_path, Op.LATER)["sequence"].max(initial=0) > 1)
        finally:
            stop.set()
            thread.join()
            made.close()
    assert set(rows(tmp_path, Op.LATER)["outcome"].tolist()) == {Outcome.UNKNOWN}


def test_work_is_noted_when_it_begins_and_when_it_has_ended(cluster: RunningCluster, tmp_path: Path) -> None:
    cluster.put("orders", [HEADER.pack(RUN, 3, 0, 0), b"of somebody else", HEADER.pack(RUN, 3, 1, 0)])
    with (
        recorded(tmp_path) as recorder,
        contextlib.closing(Working(cluster.namesrv, "g", "orders", RUN, SHARDS, recorder)) as made,
    ):
        made.start()
        wait_until(lambda: cluster.committed("g", "orders", 0) == 3, what="all of it")
    work = rows(tmp_path, Op.WORK)
    assert work["outcome"].tolist() == [Outcome.UNKNOWN, Outcome.OK] * 2
    assert work["offset"].tolist() == [0, 0, 2, 2]
    assert (work["start_ns"][::2] == work["start_ns"][1::2]).all()
    assert (work["end_ns"][1::2] > work["start_ns"][1::2]).all()


def test_simple_consumers_note_what_they_have_what_they_give_back_and_what_is_done(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    fails = GIVEN_BACK_EVERY - 1
    cluster.put("orders", [HEADER.pack(RUN, 3, 0, 0), b"of somebody else", HEADER.pack(RUN, 3, fails, 0)])
    stop = threading.Event()
    with (
        recorded(tmp_path) as recorder,
        contextlib.closing(Popping(cluster.namesrv, "g", "orders", RUN, recorder)) as made,
    ):
        thread = threading.Thread(target=made.run, args=(stop,))
        thread.start()
        wait_until(lambda: len(rows(tmp_path, Op.ACKNOWLEDGE)) == 2, what="both of the run")
        stop.set()
        thread.join()
    held, done = rows(tmp_path, Op.HOLD), rows(tmp_path, Op.ACKNOWLEDGE)
    of = {number: held["outcome"][held["sequence"] == number].tolist() for number in (0, fails)}
    assert of == {0: [Outcome.OK], fails: [Outcome.OK, Outcome.UNKNOWN, Outcome.OK]}
    has = held[held["outcome"] == Outcome.OK]
    assert (has["offset"] - has["start_ns"] > 9_000_000_000).all()
    assert sorted(done["sequence"].tolist()) == [0, fails]
