"""What figures were measured on: the processor, what it is worth just now, and the memory under the page cache.

On some virtual machines memory is not there yet. A host that lends it page by page and takes freed pages back makes
the first touch of each page cost 5-11 µs, twenty times the copy of the record bytes that fill it; a log of 300 MB/s
touches 75,000 new pages a second. A machine that has run for a while has its page cache full of memory that is there.
So the cost of a fresh page is measured with every case, and ``--warm-memory`` fills the page cache first.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

_PAGE = 4096
_SAMPLE_BYTES = 64 << 20
_LEFT_BYTES = 1 << 30
_CHUNK_BYTES = 16 << 20


def fresh_page_us() -> float:
    """What the first touch of a page costs now, in µs."""
    with mmap.mmap(-1, _SAMPLE_BYTES) as fresh:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            fresh.madvise(mmap.MADV_NOHUGEPAGE)
        began = time.perf_counter()
        for position in range(0, _SAMPLE_BYTES, _PAGE):
            fresh[position] = 1
        return round((time.perf_counter() - began) / (_SAMPLE_BYTES // _PAGE) * 1e6, 2)


def fill_page_cache(folder: Path) -> None:
    """Fill free memory with the pages of a sparse file in ``folder``; they stay until the kernel needs them."""
    size = psutil.virtual_memory().free - _LEFT_BYTES
    if size <= 0:
        return
    path = folder / "page-cache"
    with open(path, "w+b", buffering=0) as sparse:
        sparse.truncate(size)
        buffer = bytearray(_CHUNK_BYTES)
        while sparse.readinto(buffer):
            pass


def cpu_s(*processes: psutil.Process) -> float:
    """Seconds of the processors that these processes have had."""
    times = [process.cpu_times() for process in processes]
    return float(sum(each.user + each.system for each in times))


def own_memory_mib(pid: int) -> float:
    """Resident memory of a process besides mapped files, in MiB."""
    total = 0
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as source:
        for line in source:
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1])
    return total / 1024


def python_step_ns() -> float:
    """What one turn of an empty loop of the interpreter costs, in ns: the best of five."""
    turns = 200_000
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(turns):
            pass
        best = min(best, time.perf_counter() - began)
    return round(best / turns * 1e9, 1)


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, with its family and model where the system tells them: one name may be of many makes."""
    told: dict[str, str] = {}
    with contextlib.suppress(OSError):
        first = cpuinfo.read_text().partition("\n\n")[0]
        told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    name = told.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in told and "model" in told:
        return f"{name} (family {told['cpu family']}, model {told['model']})"
    return name


def commit(folder: Path = Path(__file__).parent) -> str:
    """The commit of this source, with a ``+`` if files differ from it; empty where git knows of none."""
    try:
        told = [
            subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
            for words in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        ]
    except (OSError, subprocess.CalledProcessError):
        return ""
    return told[0] + ("+" if told[1] else "")


def machine() -> dict[str, Any]:
    return {
        "processor": processor(),
        "processors": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "python_step_ns": python_step_ns(),
        "fresh_page_us": fresh_page_us(),
        "load_before": round(os.getloadavg()[0], 2),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
