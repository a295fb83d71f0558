"""What a task has sent to one lane so far, in eight bytes: brokers compare them when a batch comes again."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np

from penstock.formats.record.kernels import crc32

from .routing import Piece

_PARTS = struct.Struct(">Q5I")


def running(before: int, piece: Piece) -> int:
    """The digest of everything up to ``before`` and of the piece behind it: its queues, properties and bodies. Never 0.

    As chunks are cut in the same way whenever a batch comes again, the last digest of a lane tells whether any of its
    chunks is another than it was. Checksums are enough: nobody makes rows so that they meet.
    """
    sums = (
        _sum(piece.queue_ids),
        _sum(piece.bodies.data),
        _sum(piece.bodies.ends),
        _sum(piece.properties.data),
        _sum(piece.properties.ends),
    )
    digest = hashlib.blake2b(_PARTS.pack(before, *sums), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


def _sum(values: np.ndarray[Any, Any]) -> int:
    data = values.view(np.uint8)
    return int(crc32(data, 0, len(data)))
