"""How producers of transactions end."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest

from penstock.client import TransactionProducer, TransactionState
from penstock.client.transact.checks import Checks
from penstock.client.transact.ends import HandedOver
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until


def test_a_close_that_ctrl_c_interrupts_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with RunningCluster(topics={"orders": 1}) as cluster:
        before = set(threading.enumerate())
        producer = TransactionProducer(cluster.namesrv, group="payments", check=lambda _: TransactionState.COMMIT)
        producer.send_in_transaction("orders", b"x", execute=lambda _: TransactionState.COMMIT)
        interrupted: list[bool] = []
        settle = HandedOver.settle

        def interrupt_once(self: HandedOver, *arguments: Any) -> None:
            if not interrupted:
                interrupted.append(True)
                raise KeyboardInterrupt
            settle(self, *arguments)

        monkeypatch.setattr(HandedOver, "settle", interrupt_once)
        with pytest.raises(KeyboardInterrupt):
            producer.close()

        def left() -> list[str]:
            found = [each.name for each in threading.enumerate() if each not in before]
            return [name for name in found if name.startswith("penstock-")]

        wait_until(lambda: not left(), what="no thread")


def test_a_close_that_finds_all_questions_waiting_and_then_none_ends_the_thread() -> None:
    class Taken(queue.Queue[Any]):
        """Full, and all of it taken before the next look; so once."""

        is_full = True

        def put_nowait(self, item: Any) -> None:
            if self.is_full:
                self.is_full = False
                raise queue.Full
            super().put_nowait(item)

    checks = Checks(None, lambda _: None, lambda *_: None)
    checks._waiting = Taken()
    checks.start()
    checks.close(30)
    assert not checks._thread.is_alive()
