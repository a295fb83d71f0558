"""Filling the page cache and the price of a fresh page."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from penstock.bench import memory


def test_the_page_cache_is_filled_by_a_file_without_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = memory._LEFT_BYTES + 40 * 1024 * 1024
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(free=free))
    memory.fill_page_cache(tmp_path)
    found = (tmp_path / "page-cache").stat()
    assert found.st_size == free - memory._LEFT_BYTES
    assert found.st_blocks * 512 < found.st_size


def test_a_machine_without_free_memory_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(free=1000))
    memory.fill_page_cache(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_fresh_page_has_a_price() -> None:
    assert memory.fresh_page_us() > 0
