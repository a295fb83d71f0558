"""Who waits until the disk has the log waits no longer than that can be."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from penstock.broker.store import Store
from penstock.proto.errors import StoreClosed
from tests.support.broker.stores import batch, store_config
from tests.support.waiting import PATIENCE_S, wait_until


def waiting(store: Store) -> Future[None]:
    """What becomes of a thread that waits for a sync, which is held up."""
    found: Future[None] = Future()

    def run() -> None:
        try:
            store.flush()
        except Exception as error:
            found.set_exception(error)
        else:
            found.set_result(None)

    threading.Thread(target=run, daemon=True).start()
    wait_until(lambda: store._flusher._asked == store.end_offset, what="the request")
    return found


def filled(root: Path) -> tuple[Store, int]:
    """A store, and where its last record begins."""
    store = Store.open(store_config(root))
    store.append("t", batch("t", [b"stays"]), queues=1)
    last = store.append("t", batch("t", [b"goes"]), queues=1).start
    return store, last


def cut(store: Store, end: int) -> None:
    store._log.cut(end)
    store._flusher.on_cut(end)


def stop(store: Store, _: int) -> None:
    store._flusher._is_stopping = True  # as stop() does, which then waits for the sync
    with store._flusher._condition:
        store._flusher._condition.notify_all()


@pytest.mark.parametrize(("ends", "error"), [(cut, None), (stop, StoreClosed)])
def test_it_ends_with_a_cut_or_the_stores_end(
    ends: Callable[[Store, int], None], error: type[Exception] | None, tmp_path: Path
) -> None:
    store, last = filled(tmp_path)
    with store._flusher.held():
        told = waiting(store)
        assert not told.done()
        ends(store, last)
        if error is not None:
            with pytest.raises(error):
                told.result(PATIENCE_S)
    if error is None:
        told.result(PATIENCE_S)
        assert store.flushed_offset == store.end_offset == last
    store.abandon()
