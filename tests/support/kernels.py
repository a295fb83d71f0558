"""``python -m tests.support.kernels``: have all kernels in the cache before the workers begin.

On a cold cache each worker, and each process that it starts, would compile all of them, at the same time; and each
worker would rewrite the assertions of all tests, which is done meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys

OTHERS = (
    "penstock.broker.store.store",
    "penstock.formats.record.kernels.columns penstock.inspection penstock.pipeline.columns.column_kernels "
    "penstock.pipeline.columns.part_kernels",
)


def main() -> int:
    """First those that the others are built of, then the others in two processes; 0 if all could be compiled."""
    from penstock.formats.intrinsics.warmup import compile_kernels

    print("preparing kernels (the first time on a machine compiles them)", flush=True)
    collecting = subprocess.Popen(
        [sys.executable, "-m", "pytest", "--collect-only", "-q"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTEST_ADDOPTS": ""},  # so it compiles no kernels
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    compile_kernels()
    collecting.wait()
    processes = [subprocess.Popen([sys.executable, "-c", f"import {', '.join(modules.split())}"]) for modules in OTHERS]
    return max(process.wait() for process in processes)


if __name__ == "__main__":
    sys.exit(main())
