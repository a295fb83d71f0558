"""Both checksum kernels against zlib."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from penstock.formats.intrinsics import crc
from tests.support.record.guarded import GuardedMemory


def by_tables(array: np.ndarray, start: int, end: int) -> int:
    """What every processor does."""
    return int(crc._crc32_by_tables_at(array.ctypes.data, start, end))


KERNELS = [crc.crc32, by_tables]
SOURCE = random.Random(1).randbytes(1 << 16)


@pytest.mark.parametrize("kernel", KERNELS)
def test_checksums_of_all_short_lengths_are_zlibs(kernel: object) -> None:
    memory = GuardedMemory(1024)
    for length in range(301):
        data = SOURCE[length : 2 * length]
        for array in (memory.before_the_wall(data), memory.behind_the_wall(data)):
            assert kernel(array, 0, length) == zlib.crc32(data), length  # type: ignore[operator]


@pytest.mark.parametrize("kernel", KERNELS)
def test_checksums_of_long_pieces_at_any_alignment_are_zlibs(kernel: object) -> None:
    array = np.frombuffer(SOURCE, np.uint8)
    choose = random.Random(2)
    for _ in range(200):
        start = choose.randrange(len(SOURCE))
        end = choose.randrange(start, len(SOURCE) + 1)
        assert kernel(array, start, end) == zlib.crc32(SOURCE[start:end]), (start, end)  # type: ignore[operator]


def test_zeros_and_ones_are_no_special_case() -> None:
    for byte in (0, 255):
        for length in (1, 15, 16, 17, 63, 64, 65, 127, 128, 4096):
            data = bytes([byte]) * length
            assert crc.crc32(np.frombuffer(data, np.uint8), 0, length) == zlib.crc32(data)


@pytest.mark.parametrize("index", [-1, 10])
def test_the_walls_around_the_tests_memory_kill_who_touches_them(index: int) -> None:
    code = (
        "from tests.support.record.guarded import GuardedMemory\n"
        "from penstock.formats.record.kernels import crc32\n"
        "memory = GuardedMemory(10)\n"
        f"array = memory.{'behind' if index < 0 else 'before'}_the_wall(bytes(10))\n"
        f"crc32(array, {index}, {index + 1})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], timeout=60)
    assert done.returncode == -signal.SIGSEGV


def test_folding_is_chosen_where_the_processor_multiplies_without_carries() -> None:
    chosen = crc.crc32_at is not crc._crc32_by_tables_at
    assert chosen == crc.has_carryless_multiply()
