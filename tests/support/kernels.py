"""``python -m tests.support.kernels``: have all kernels in the cache before the workers begin.

On a cold cache each worker, and each process that it starts, would compile all of them, at the same time; and each
worker would rewrite the assertions of all tests, which is done meanwhile, unless all of them are written.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
REWRITTEN = f"{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"

OTHERS = (
    "penstock.broker.broker",
    "penstock.formats.record.kernels.columns penstock.gateway.v2.port penstock.inspection "
    "penstock.pipeline.columns.column_kernels penstock.pipeline.columns.part_kernels",
)


def main() -> int:
    """First those that the others are built of, then the others in two processes; 0 if all could be compiled."""
    from penstock.formats.intrinsics.warmup import compile_kernels

    print("preparing kernels (the first time on a machine compiles them)", flush=True)
    collecting = None if are_rewritten() else _collect()
    compile_kernels()
    if collecting is not None:
        collecting.wait()
    processes = [subprocess.Popen([sys.executable, "-c", f"import {', '.join(modules.split())}"]) for modules in OTHERS]
    return max(process.wait() for process in processes)


def are_rewritten() -> bool:
    """True if all test files are, as this pytest does it: what it has written names the source by its hash."""
    for source in chain(TESTS.rglob("test_*.py"), TESTS.rglob("conftest.py")):
        written = source.parent / "__pycache__" / f"{source.stem}.{REWRITTEN}"
        if not written.exists():
            return False
        with written.open("rb") as file:
            if file.read(16)[8:] != importlib.util.source_hash(source.read_bytes()):
                return False
    return True


def _collect() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "--collect-only", "-q"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTEST_ADDOPTS": ""},  # so it compiles no kernels
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    sys.exit(main())
