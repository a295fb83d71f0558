"""What the C allocator has freed goes back to the system."""

from __future__ import annotations

import subprocess
import sys
from unittest.mock import MagicMock

import pytest

from penstock.runtime import memory

FLOOD = """
import psutil, time
from concurrent.futures import ThreadPoolExecutor
from penstock.runtime import memory

def own_mib():
    found = psutil.Process().memory_info()
    return found.rss - found.shared >> 20

def blocks(count):
    return [bytes(4000) for _ in range(count)]

def await_less(mib):
    while own_mib() > mib:
        time.sleep(0.01)

memory.LOOK_S = memory.SELDOM_S = 0.01
memory.keep_large_buffers()
memory.give_back_unused()
for _ in range(2):
    held = blocks(20_000)
    circle = []
    circle += [circle, b"x" * (30 << 20)]
    before = own_mib()
    del circle  # only the collector finds it
    held = held[::20]  # at both ends of what is freed something is in use
    await_less(before - 90)
with ThreadPoolExecutor(1) as threads:
    held = threads.submit(blocks, 12_000).result()
    before = own_mib()
    held = held[:1]
    await_less(before - 40)
"""


def test_a_server_gives_back_what_a_flood_left() -> None:
    subprocess.run([sys.executable, "-c", FLOOD], check=True, timeout=60)


@pytest.mark.parametrize("most", [1 << 62, memory.OLD_KEPT_BYTES])
def test_an_older_allocator_keeps_blocks_as_large_as_it_can(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    kept: dict[int, int] = {}

    def mallopt(parameter: int, value: int) -> int:
        if parameter == -3 and value > most:
            return 0
        kept[parameter] = value
        return 1

    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: MagicMock(mallopt=mallopt))
    memory.keep_large_buffers()
    assert kept == {-3: min(memory.KEPT_BYTES, most), -1: memory.KEPT_BYTES, -8: 1}
