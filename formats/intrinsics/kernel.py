"""How kernels are declared: one decorator, and the types of what they take.

Arrays are one-dimensional and contiguous unless their name says otherwise. Those that are only read may be read-only;
``OUT_`` ones are written to.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import from_dtype, int32, int64, njit, types, uint8

from .freshness import drop_stale_kernels

BYTES = types.Array(uint8, 1, "C", readonly=True)
LONGS = types.Array(int64, 1, "C", readonly=True)
INTS = types.Array(int32, 1, "C", readonly=True)
OUT_BYTES = types.Array(uint8, 1, "C")
OUT_LONGS = types.Array(int64, 1, "C")
OUT_INTS = types.Array(int32, 1, "C")

_looked_after: set[Path] = set()


def rows_of(dtype: Any) -> Any:
    """The type of an array, written to, of such rows."""
    row: Any = from_dtype(dtype)
    return types.Array(row, 1, "C")


def kernel(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile the function for one signature when it is declared; it runs without the interpreter lock.

    ``result``: a type, or a tuple of types.
    Compiled code comes from Numba's cache, unless any source that it may contain has changed since
    (:mod:`.freshness`).
    """

    def compiled(function: Callable[..., Any]) -> Any:
        source = Path(function.__code__.co_filename)
        if source.parent not in _looked_after:
            drop_stale_kernels(str(source))
            _looked_after.add(source.parent)
        answered = types.BaseTuple.from_types(result) if isinstance(result, tuple) else result
        return njit([answered(*arguments)], nogil=True, cache=True)(function)

    return compiled
