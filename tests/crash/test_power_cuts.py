"""Power cuts on real file systems; see :mod:`tests.support.crash.power_cuts`. ``make test-crash`` runs them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.crash.loop_mount import why_not

CUTS = int(os.environ.get("POWER_CUTS", "0"))
SEED = int(os.environ.get("CRASH_SEED", "0")) or random.randrange(1 << 30)


pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(CUTS == 0, reason="mounts file systems: `make test-crash` runs it"),
    pytest.mark.parametrize("kind", ["ext4", "xfs"]),
]


def campaign(kind: str, directory: Path, cuts: int) -> list[str]:
    """The command, in a mount namespace of its own: one that others make would keep what was cut from going away."""
    if reason := why_not(kind, directory):
        pytest.skip(reason)
    command = ["unshare", "--mount", sys.executable, "-m", "tests.support.crash.power_cuts"]
    return [*command, kind, str(directory / "mounted"), str(cuts), str(SEED)]


def test_nothing_acknowledged_is_lost_in_power_cuts(kind: str, tmp_path: Path) -> None:
    command = campaign(kind, tmp_path, CUTS)
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False)
    print(done.stdout)
    assert done.returncode == 0, f"seed {SEED}: {done.stdout[-4000:]}{done.stderr[-4000:]}"


def test_mount_namespaces_that_others_make_meanwhile_do_not_keep_what_was_cut(kind: str, tmp_path: Path) -> None:
    others: list[subprocess.Popen[bytes]] = []
    with subprocess.Popen(campaign(kind, tmp_path, 5)) as running:
        while running.poll() is None:
            others.append(subprocess.Popen(["unshare", "--mount", "sleep", "60"]))
            time.sleep(0.1)
    for other in others:
        other.kill()
        other.wait()
    assert running.returncode == 0
