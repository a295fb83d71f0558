"""Compiling the kernels before processes start: once, with progress, instead of in each of them at the same time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

from penstock.proto.errors import PenstockError
from penstock.runtime.whole_files import replace_file

from ..output import ProgressLine

_COMPONENTS: Final = tuple(Path(__file__).parents[2] / name for name in ("formats", "client", "broker", "gateway"))


def warm_up(progress: ProgressLine) -> None:
    """Return when every kernel is in the cache: at once, or where something is new since, after up to a minute.

    In a process of its own: this one needs none of the compiler's hundred megabytes.
    """
    stamp, fresh = Path(__file__).parent / "__pycache__" / "kernels.stamp", _fingerprint()
    with contextlib.suppress(OSError):
        if stamp.read_bytes() == fresh:
            return
    command = [sys.executable, "-m", "penstock.cli.commands.kernels"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        for line in child.stdout:
            progress.show(line.strip())
        problem = child.stderr.read()
    progress.clear()
    if child.returncode:
        raise PenstockError(f"kernels cannot be compiled: {(problem.strip().splitlines() or ['no reason given'])[-1]}")
    with contextlib.suppress(OSError):  # where nothing may be written here, each start looks anew
        replace_file(stamp, fresh)


def _fingerprint() -> bytes:
    """What the compiled kernels depend on: sources, processor, Python, Numba and its settings.

    Of sources, times and sizes: these are what Numba asks for, whatever their content.
    """
    found = hashlib.sha256(f"{sys.version} {version('numba')}".encode())
    found.update(
        repr(sorted((name, value) for name, value in os.environ.items() if name.startswith("NUMBA_"))).encode()
    )
    with contextlib.suppress(OSError):
        processor = Path("/proc/cpuinfo").read_text().splitlines()
        found.update(repr({line for line in processor if line.startswith(("model name", "flags"))}).encode())
    for component in _COMPONENTS:
        for path in sorted(component.rglob("*.py")):
            known = path.stat()
            found.update(f"{path} {known.st_size} {known.st_mtime_ns}\n".encode())
    return found.hexdigest().encode()


def main() -> None:
    """Compile, and print a line before each step."""
    from penstock.formats.intrinsics.warmup import compile_kernels

    def show(name: str, done: int, steps: int) -> None:
        if name:
            print(
                f"preparing kernels: {name} ({done + 1} of {steps}; the first start on a machine compiles)", flush=True
            )

    compile_kernels(
        show,
        [
            ("client", "penstock.formats.record.kernels.columns"),
            ("broker", "penstock.broker.broker"),
            ("gateway", "penstock.gateway.v2.port"),
        ],
    )


if __name__ == "__main__":
    main()
