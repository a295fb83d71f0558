"""Inside kernels: whether a record's properties begin with a producer mark."""

# Kernels are typed by their Numba signatures.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

from __future__ import annotations

from numba import njit, types

from ...intrinsics.memory import load_i32, load_u8
from ..producer_mark import MARK_PREFIX

MARK_BYTES = len(MARK_PREFIX)
"""Properties that are not longer than this hold no mark."""

_HEAD = int.from_bytes(MARK_PREFIX[:4], "big", signed=True)
_4, _5, _6 = MARK_PREFIX[4:]


@njit([types.boolean(types.int64, types.int64)], nogil=True, cache=True)
def is_mark(address, at):
    """True if :data:`~.producer_mark.MARK_PREFIX` stands at ``at`` behind ``address``; reads MARK_BYTES bytes."""
    if load_i32(address, at) != _HEAD:
        return False
    return load_u8(address, at + 4) == _4 and load_u8(address, at + 5) == _5 and load_u8(address, at + 6) == _6
