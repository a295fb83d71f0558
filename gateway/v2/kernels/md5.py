"""Inside kernels: the MD5 of bytes, in capital hexadecimal digits, as clients compare bodies with it.

Source: RFC 1321.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numba import int64, types, uint32, void

from penstock.formats.intrinsics.kernel import OUT_BYTES, kernel
from penstock.formats.intrinsics.memory import address_of, copy_bytes, load_u8, store_i8

from .texts import HEX

HEX_BYTES: Final = 32
_BLOCK: Final = 64
ROOM_BYTES: Final = 2 * _BLOCK
_LENGTH_BYTES: Final = 8
_WORDS = types.Array(uint32, 1, "C")
_SINES = np.array([int(abs(math.sin(step + 1)) * (1 << 32)) for step in range(64)], np.uint32)
_TURNS = np.array(
    [[7, 12, 17, 22] * 4, [5, 9, 14, 20] * 4, [4, 11, 16, 23] * 4, [6, 10, 15, 21] * 4], np.uint32
).ravel()
_START = np.array([0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476], np.uint32)


@kernel((uint32,) * 4, uint32, uint32, uint32, uint32, uint32, int64, _WORDS, int64)
def _turned(a, b, c, d, mixed, word, words, step):
    """One step: what the four numbers become, where the round has ``mixed`` three of them."""
    added = np.uint32(a + mixed + _SINES[step] + words[word])
    turn = _TURNS[step]
    return d, np.uint32(b + np.uint32(added << turn | added >> np.uint32(np.uint32(32) - turn))), b, c


@kernel(void, int64, int64, _WORDS, _WORDS)
def _take_block(address, at, words, state):
    """Mix 64 bytes into ``state``; ``words``: room for 16."""
    for i in range(16):
        low = load_u8(address, at) | load_u8(address, at + 1) << 8
        words[i] = np.uint32(low | load_u8(address, at + 2) << 16 | load_u8(address, at + 3) << 24)
        at += 4
    a, b, c, d = state[0], state[1], state[2], state[3]
    for step in range(16):
        a, b, c, d = _turned(a, b, c, d, b & c | ~b & d, step, words, step)
    for step in range(16, 32):
        a, b, c, d = _turned(a, b, c, d, d & b | ~d & c, 5 * step + 1 & 15, words, step)
    for step in range(32, 48):
        a, b, c, d = _turned(a, b, c, d, b ^ c ^ d, 3 * step + 5 & 15, words, step)
    for step in range(48, 64):
        a, b, c, d = _turned(a, b, c, d, c ^ (b | ~d), 7 * step & 15, words, step)
    state[0] = np.uint32(state[0] + a)
    state[1] = np.uint32(state[1] + b)
    state[2] = np.uint32(state[2] + c)
    state[3] = np.uint32(state[3] + d)


@kernel(void, int64, int64, int64, int64, int64, OUT_BYTES)
def put_md5(address, start, end, out, out_at, last):
    """Write the digest of ``[start, end)`` at ``address`` in hexadecimal digits; ``last``: room of ``ROOM_BYTES``."""
    words, state = np.empty(16, np.uint32), _START.copy()
    last[:] = 0
    at = start
    while end - at >= _BLOCK:
        _take_block(address, at, words, state)
        at += _BLOCK
    rest, last_address = end - at, address_of(last)
    copy_bytes(last_address, 0, address, at, rest)
    store_i8(last_address, rest, 0x80)
    size = _BLOCK if rest + 1 + _LENGTH_BYTES <= _BLOCK else 2 * _BLOCK
    bits = (end - start) * 8
    for i in range(_LENGTH_BYTES):
        store_i8(last_address, size - _LENGTH_BYTES + i, bits >> 8 * i & 255)
    _take_block(last_address, 0, words, state)
    if size > _BLOCK:
        _take_block(last_address, _BLOCK, words, state)
    for i in range(16):
        byte = np.int64(state[i // 4]) >> 8 * (i % 4) & 255
        store_i8(out, out_at + 2 * i, HEX[byte >> 4])
        store_i8(out, out_at + 2 * i + 1, HEX[byte & 15])
