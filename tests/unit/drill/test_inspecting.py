"""What is measured of processes."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.drill.lab.inspecting import footprint


def test_files_of_a_store_do_not_count_among_those_of_its_process(tmp_path: Path) -> None:
    """They become more with what it holds, which is nothing that comes back."""
    store = tmp_path / "store"
    store.mkdir()
    before = footprint(os.getpid(), store)
    with open(store / "segment", "wb"), open(tmp_path / "log", "wb"):
        after = footprint(os.getpid(), store)
        everything = footprint(os.getpid())
    assert before is not None
    assert after is not None
    assert everything is not None
    assert after["files"] == before["files"] + 1
    assert everything["files"] == after["files"] + 1


def test_a_process_that_is_gone_has_no_footprint(tmp_path: Path) -> None:
    assert footprint(2**22 - 1, tmp_path) is None
