"""Configuration snapshots cut off at every step of their replacement: the old version or the new one, whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.core.tables.groups import Group
from penstock.broker.core.tables.producers import Receipt
from penstock.broker.core.tables.snapshots import Snapshots
from penstock.broker.core.tables.tables import Tables
from penstock.broker.core.tables.topics import Topic
from penstock.runtime import whole_files
from tests.support.crash.simulated_disk import PowerCut


class _CutOs:
    """The module ``os`` until the step ``cut_at``; there the power fails and what is not synced is torn."""

    def __init__(self, cut_at: int, torn_to: float) -> None:
        self.steps = 0
        self.unsynced: set[Path] = set()
        self._cut_at = cut_at
        self._torn_to = torn_to

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def step(self) -> None:
        if self.steps == self._cut_at:
            for path in self.unsynced:
                os.truncate(path, int(path.stat().st_size * self._torn_to))
            raise PowerCut
        self.steps += 1

    def fsync(self, descriptor: int) -> None:
        self.step()
        os.fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self.unsynced.discard(path)


def _filled(version: int) -> Tables:
    tables = Tables()
    for number in range(version):
        tables.topics.put(10, f"topic{number}", Topic(f"topic{number}", 8, 4, 6, {}, {}))
        tables.groups.put(20, f"group{number}", Group(f"group{number}", False, 5))
        tables.producers.remember(number, 2, "orders", 3, Receipt(9, 100, 200, 1_700_000_000_000, [0], [7]))
    tables.offsets.put(30, "billing", "orders", {0: 100 * version})
    return tables


def _loaded(directory: Path) -> list[int]:
    """The version that each table has."""
    tables = Tables()
    Snapshots(directory, tables).load(0, 1000, log_has_all=False)
    committed = tables.offsets.get("billing", "orders", 0) or 0
    return [len(tables.topics), len(tables.groups), committed // 100, len(tables.producers.rows())]


@pytest.mark.parametrize("torn_to", [0.0, 0.5, 1.0])
def test_a_cut_at_any_step_of_a_replacement_leaves_the_old_file_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn_to: float
) -> None:
    real_open, real_replace = Path.open, Path.replace
    steps = 0
    while True:
        directory = tmp_path / str(steps)
        Snapshots(directory, _filled(2)).write_all(500)
        Snapshots(directory, _filled(3)).write_all(600)
        fake = _CutOs(steps, torn_to)

        def cut_open(path: Path, mode: str = "r", *rest: Any, fake: _CutOs = fake, **how: Any) -> Any:
            if mode != "r":
                fake.step()
                fake.unsynced.add(path)
            return real_open(path, mode, *rest, **how)

        def cut_replace(path: Path, target: Path, fake: _CutOs = fake) -> Path:
            fake.step()
            if path in fake.unsynced:
                fake.unsynced.discard(path)
                fake.unsynced.add(Path(target))
            return real_replace(path, target)

        with monkeypatch.context() as patched:
            patched.setattr(whole_files, "os", fake)
            patched.setattr(Path, "open", cut_open)
            patched.setattr(Path, "replace", cut_replace)
            try:
                Snapshots(directory, _filled(4)).write_all(700)
                ended = True
            except PowerCut:
                ended = False
        assert set(_loaded(directory)) <= {3, 4}, f"cut at step {steps}"
        if ended:
            assert _loaded(directory) == [4, 4, 4, 4]
            assert steps >= 16, "too few steps were seen: the replacement is made in another way now"
            return
        steps += 1
