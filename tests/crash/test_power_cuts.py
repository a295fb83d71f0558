"""Power cuts on real file systems; see :mod:`tests.support.crash.power_cuts`. ``make test-crash`` runs them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.crash.loop_mount import LoopMount, why_not

CUTS = int(os.environ.get("POWER_CUTS", "0"))
SEED = int(os.environ.get("CRASH_SEED", "0")) or random.randrange(1 << 30)


@pytest.mark.timeout(3600)
@pytest.mark.skipif(CUTS == 0, reason="mounts file systems: `make test-crash` runs it")
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_nothing_acknowledged_is_lost_in_power_cuts(kind: str, tmp_path: Path) -> None:
    reason = why_not(kind, tmp_path)
    if reason:
        pytest.skip(reason)
    directory = tmp_path / "mounted"
    command = [sys.executable, "-m", "tests.support.crash.power_cuts", kind, str(directory), str(CUTS), str(SEED)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False)
    finally:
        LoopMount(kind, directory).close()
    print(done.stdout)
    assert done.returncode == 0, f"seed {SEED}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
