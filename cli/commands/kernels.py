"""Compiling the kernels before processes start: once, with progress, instead of in each of them at the same time."""

from __future__ import annotations

import subprocess
import sys

from penstock.proto.errors import PenstockError

from ..output import ProgressLine


def warm_up(progress: ProgressLine) -> None:
    """Return when every kernel is in the cache: half a second, at the first start on a machine up to a minute.

    In a process of its own: this one needs none of the compiler's hundred megabytes.
    """
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


def main() -> None:
    """Compile, and print a line before each step."""
    from penstock.formats.intrinsics.warmup import compile_kernels

    def show(name: str, done: int, steps: int) -> None:
        if name:
            print(
                f"preparing kernels: {name} ({done + 1} of {steps}; the first start on a machine compiles)", flush=True
            )

    def client() -> object:
        import penstock.formats.record.kernels.columns

        return penstock.formats.record.kernels.columns

    def broker() -> object:
        import penstock.broker.broker

        return penstock.broker.broker

    def gateway() -> object:
        import penstock.gateway.v2.port

        return penstock.gateway.v2.port

    compile_kernels(show, [("client", client), ("broker", broker), ("gateway", gateway)])


if __name__ == "__main__":
    main()
