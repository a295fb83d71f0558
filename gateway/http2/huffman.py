"""The Huffman code of HPACK, in a kernel. Source: RFC 7541, appendix B, as the library ``hpack`` has it in a table."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE
from numba import int64

from penstock.formats.intrinsics.kernel import BYTES, OUT_BYTES, kernel

_STEPS: Final = np.array(HUFFMAN_TABLE, np.uint8).reshape(-1)
"""By state and half a byte: the next state, what it means, and a symbol."""
_SHORTEST: Final = 5
"""Bits of a symbol."""


@kernel(int64, BYTES, OUT_BYTES)
def _decode(coded: Any, out: Any) -> Any:
    """Write what was coded; how many bytes that are, or -1: it is no such code."""
    state, count, meaning = np.int64(0), np.int64(0), np.int64(HUFFMAN_COMPLETE)
    for byte in coded:
        for shift in (4, 0):
            at = (state * 16 + (np.int64(byte) >> shift & 15)) * 3
            state, meaning = np.int64(_STEPS[at]), np.int64(_STEPS[at + 1])
            if meaning & HUFFMAN_FAIL:
                return np.int64(-1)
            if meaning & HUFFMAN_EMIT_SYMBOL:
                out[count] = _STEPS[at + 2]
                count += 1
    return count if meaning & HUFFMAN_COMPLETE else np.int64(-1)


def decoded(coded: bytes) -> bytes | None:
    """What was coded; None: it is no such code."""
    out = np.empty(len(coded) * 8 // _SHORTEST + 1, np.uint8)
    count = _decode(np.frombuffer(coded, np.uint8), out)
    return out[:count].tobytes() if count >= 0 else None
