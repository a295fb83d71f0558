"""The kernels over record bytes, in one place for their users; importing this loads Numba (0.2 s and more).

All are compiled for exactly one signature each, release the interpreter lock, and come from Numba's cache after
the first start (:mod:`.warmup`). Buffers are one-dimensional contiguous ``uint8`` arrays; inputs may be read-only.
"""

from __future__ import annotations

from ...intrinsics.crc import crc32, crc32_at, has_carryless_multiply
from ...intrinsics.text import string_hash_at, string_hash_utf8, tags_code_at
from ..rows import ROW, PlaceStatus, ScanStatus
from .encoding import encode_batch, encoded_bytes
from .placing import check_batch, place_batch
from .scanning import count_records, gather, measure_at, scan

__all__ = [
    "ROW",
    "PlaceStatus",
    "ScanStatus",
    "check_batch",
    "count_records",
    "crc32",
    "crc32_at",
    "encode_batch",
    "encoded_bytes",
    "gather",
    "has_carryless_multiply",
    "measure_at",
    "place_batch",
    "scan",
    "string_hash_at",
    "string_hash_utf8",
    "tags_code_at",
]
