"""Cutting the log's end off beside the thread that syncs it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.broker.store import Store
from tests.support.broker.stores import batch, dispatch_all, store_config

LONG_S = 0.1
"""Long enough for the cut to do what it must not do before the sync is told of."""


def test_what_a_sync_in_front_of_a_cut_notes_is_noted_in_front_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a start after a crash would miss synced bytes that the cut has taken."""
    store = Store.open(store_config(tmp_path))
    end = store.append("t", batch("t", [b"stays"]), queues=1).end
    store.append("t", batch("t", [b"goes"]), queues=1)
    dispatch_all(store)
    checkpoint, noted, cut_noted = store._parts.checkpoint, [], threading.Event()
    write_hint = checkpoint.write_hint

    def note(flushed: int, confirmed: int) -> None:
        if threading.current_thread() is store._flusher:
            cut_noted.wait(LONG_S)
        noted.append(flushed)
        write_hint(flushed, confirmed)
        if threading.current_thread() is not store._flusher:
            cut_noted.set()

    monkeypatch.setattr(checkpoint, "write_hint", note)
    whole = store.end_offset
    store.truncate_to(end)
    store.close()
    assert noted[:2] == [whole, end]
    assert set(noted[2:]) <= {end}
