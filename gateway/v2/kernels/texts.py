"""Inside kernels: texts that are made of numbers and bytes; each answers where the next byte goes."""

from __future__ import annotations

import numpy as np
from numba import int64

from penstock.formats.intrinsics.kernel import kernel
from penstock.formats.intrinsics.memory import load_i32, load_u8, store_i8
from penstock.formats.intrinsics.text import put_digits

_DOT, _COLON = 0x2E, 0x3A
HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)
IPV4_BYTES = 8
"""Of a host in a record: address and port."""


@kernel(int64, int64, int64, int64, int64, int64)
def put_hex(out, at, address, start, end):
    """Write the bytes ``[start, end)`` in capital hexadecimal digits."""
    for i in range(start, end):
        byte = load_u8(address, i)
        store_i8(out, at, HEX[byte >> 4])
        store_i8(out, at + 1, HEX[byte & 15])
        at += 2
    return at


@kernel(int64, int64)
def base64_bytes(size):
    """How long so many bytes are in base64 without padding."""
    return (4 * size + 2) // 3


@kernel(int64, int64, int64, int64, int64, int64)
def put_base64(out, at, address, start, end):
    """Write the bytes ``[start, end)`` in URL-safe base64 without padding."""
    while start < end:
        left = end - start
        bits = load_u8(address, start) << 16
        if left > 1:
            bits |= load_u8(address, start + 1) << 8
        if left > 2:
            bits |= load_u8(address, start + 2)
        for i in range(min(left, 3) + 1):
            store_i8(out, at, BASE64[bits >> (18 - 6 * i) & 63])
            at += 1
        start += 3
    return at


@kernel(int64, int64, int64, int64, int64)
def put_ipv4(out, at, address, start):
    """Write the host of ``IPV4_BYTES`` at ``start`` as ``1.2.3.4:5``."""
    for i in range(4):
        at = put_digits(out, at, load_u8(address, start + i))
        store_i8(out, at, _DOT if i < 3 else _COLON)
        at += 1
    return put_digits(out, at, load_i32(address, start + 4))
