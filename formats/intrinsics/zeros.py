"""Kernels that look for what is not zero."""

# Kernels are typed by their Numba signatures.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

from __future__ import annotations

from numba import njit, types

from .freshness import drop_stale_kernels
from .memory import address_of, load_i64, load_u8

drop_stale_kernels(__file__)

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)


@njit([types.int64(_BYTES, types.int64, types.int64)], nogil=True, cache=True)
def first_nonzero(buffer, start, end):
    """Position of the first byte in ``buffer[start:end]`` that is not zero, ``end`` without one."""
    address = address_of(buffer)
    position = start
    while position + 8 <= end and load_i64(address, position) == 0:
        position += 8
    while position < end and load_u8(address, position) == 0:
        position += 1
    return position
