"""Kernels are looked at once, and again where something that they depend on has changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.commands import kernels
from penstock.cli.output import ProgressLine
from penstock.proto.errors import PenstockError


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What each child does that is started from now on; there are none yet."""
    found: list[str] = []
    real = subprocess.Popen

    def start(_: list[str], **options: Any) -> subprocess.Popen[str]:
        found.append("compile")
        return real([sys.executable, "-c", os.environ.get("CHILD", "print('preparing')")], **options)

    (tmp_path / "formats").mkdir()
    (tmp_path / "formats" / "crc.py").write_text("one = 1")
    monkeypatch.setattr("penstock.cli.commands.kernels.subprocess.Popen", start)
    monkeypatch.setattr(kernels, "_COMPONENTS", (tmp_path / "formats",))
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "cli" / "kernels.py"))
    return found


def test_nothing_is_compiled_where_nothing_has_changed(started: list[str]) -> None:
    for _ in range(3):
        kernels.warm_up(ProgressLine())
    assert len(started) == 1


def test_another_source_or_setting_is_seen(started: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.warm_up(ProgressLine())
    (tmp_path / "formats" / "crc.py").write_text("one = 1.5")
    kernels.warm_up(ProgressLine())
    (tmp_path / "formats" / "new.py").touch()
    kernels.warm_up(ProgressLine())
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    kernels.warm_up(ProgressLine())
    assert len(started) == 4
    kernels.warm_up(ProgressLine())
    assert len(started) == 4


def test_what_failed_is_tried_again(started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHILD", "raise SystemExit('no room')")
    for _ in range(2):
        with pytest.raises(PenstockError, match="no room"):
            kernels.warm_up(ProgressLine())
    assert len(started) == 2


def test_where_nothing_may_be_written_each_start_looks(
    started: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "file" / "kernels.py"))
    for _ in range(2):
        kernels.warm_up(ProgressLine())
    assert len(started) == 2
