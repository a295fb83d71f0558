"""``python -m tests.fuzz MINUTES [TARGET…]``: every target in turn, in a process of its own; what it found is kept.

A corpus is a file of lines in hexadecimal, the shortest inputs that together reach what was reached. Exit code 1, and
the input that did it, where a target failed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from .corpora import load, save
from .targets import TARGETS

KEPT_BYTES_MAX = 1024
MEMORY = Path("/dev/shm")
"""Where the files of a million configurations need no disk."""


def main(arguments: list[str]) -> int:
    """The exit code."""
    names = arguments[1:] or list(TARGETS)
    seconds = max(int(float(arguments[0]) * 60 / len(names)), 1)
    failed = 0
    for name in names:
        with tempfile.TemporaryDirectory(prefix="penstock-fuzz-", dir=MEMORY if MEMORY.is_dir() else None) as scratch:
            failed += _fuzz(name, seconds, Path(scratch))
    return 1 if failed else 0


def _fuzz(name: str, seconds: int, scratch: Path) -> bool:
    """True if something was found."""
    found, merged = scratch / "found", scratch / "merged"
    found.mkdir()
    merged.mkdir()
    for number, data in enumerate([*TARGETS[name].seeds, *load(name)]):
        (found / f"seed-{number}").write_bytes(data)
    options = [f"-max_total_time={seconds}", "-timeout=60", "-rss_limit_mb=4096", "-print_final_stats=1"]
    ran = _run(name, scratch, [*options, f"-artifact_prefix={scratch}/", str(found)])
    if "number_of_executed_units" not in ran.stderr and not list(scratch.glob("*-*")):
        raise SystemExit(f"{name}: the fuzzer did not run: {ran.stderr[-2000:]}")
    told = {key: re.search(rf"stat::{key}:\s+(\d+)", ran.stderr) for key in ("number_of_executed_units", "peak_rss_mb")}
    counts = ", ".join(f"{key.replace('_', ' ')} {match[1]}" for key, match in told.items() if match)
    reached = re.findall(r"cov: (\d+)", ran.stderr)
    print(f"{name}: {seconds} s, {counts}, branches {reached[-1] if reached else 0}", flush=True)
    for path in sorted(scratch.glob("*-*")):
        if path.is_file():
            reason = "\n".join(ran.stderr.splitlines()[-30:])
            print(f"{name} FAILED with {path.read_bytes().hex()}\n{reason}", flush=True)
            return True
    ran = _run(name, scratch, ["-merge=1", str(merged), str(found)])
    kept = [path.read_bytes() for path in merged.iterdir()]
    if not kept:
        raise SystemExit(f"{name}: what was found could not be merged: {ran.stderr[-2000:]}")
    save(name, [data for data in kept if len(data) <= KEPT_BYTES_MAX])
    return False


def _run(name: str, scratch: Path, options: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz.one", name, *options]
    environment = {**os.environ, "TMPDIR": str(scratch)}  # libFuzzer ends a process without its exit handlers
    return subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
