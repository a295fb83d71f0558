"""What a machine tells of itself: memory, processor, and the price of a fresh page."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from penstock.bench import machine


def test_the_page_cache_is_filled_by_a_file_without_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = machine._LEFT_BYTES + 40 * 1024 * 1024
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(free=free))
    machine.fill_page_cache(tmp_path)
    found = (tmp_path / "page-cache").stat()
    assert found.st_size == free - machine._LEFT_BYTES
    assert found.st_blocks * 512 < found.st_size


def test_a_machine_without_free_memory_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(free=1000))
    machine.fill_page_cache(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_fresh_page_has_a_price() -> None:
    assert machine.fresh_page_us() > 0


def test_memory_besides_mapped_files_is_read_from_the_system() -> None:
    assert machine.own_memory_mib(os.getpid()) > 1
    assert machine.own_memory_mib(2**22) == 0.0
    assert machine.machine()["processors"]


def test_processors_of_one_name_are_told_apart(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    first = "vendor_id\t: Maker\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: Maker 9\n"
    info.write_text(f"{first}\n{first.replace('26', '27')}\n")
    assert machine.processor(info) == "Maker 9 (family 26, model 2)"
    info.write_text("model name\t: Maker 9\n")
    assert machine.processor(info) == "Maker 9"
    assert machine.processor(tmp_path / "absent")
