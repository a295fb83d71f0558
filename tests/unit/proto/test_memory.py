"""What the C allocator has freed goes back to the system."""

from __future__ import annotations

import subprocess
import sys

FLOOD = """
import psutil, time
from penstock.runtime import memory

def own_mib():
    found = psutil.Process().memory_info()
    return found.rss - found.shared >> 20

memory.LOOK_S = memory.SELDOM_S = 0.01
memory.keep_large_buffers()
memory.give_back_unused()
for _ in range(2):
    blocks = [bytes(4000) for _ in range(20_000)]
    circle = []
    circle += [circle, b"x" * (30 << 20)]
    held = own_mib()
    del circle  # only the collector finds it
    blocks = blocks[::20]  # at both ends of what is freed something is in use
    while own_mib() > held - 90:
        time.sleep(0.01)
"""


def test_a_server_gives_back_what_a_flood_left() -> None:
    subprocess.run([sys.executable, "-c", FLOOD], check=True, timeout=60)
