"""Copying bytes of a master's log into a mapped file, so that a death in the middle leaves no gap."""

from __future__ import annotations

from ..disk import Bytes

_PIECE_BYTES = 1 << 16  # copied at once: far below where the C library begins to copy several pages in turn
_HEAD_BYTES = 256  # glibc's memcpy may store up to this many leading bytes last
_STEP_BYTES = 64  # less than a record


def copy_ascending(target: Bytes, at: int, data: Bytes) -> None:
    """Copy so that a process killed in the middle leaves a beginning of ``data``, and nothing behind a gap.

    The C library's copy stores its first bytes last, and large copies in several places at once. So the head of each
    piece is copied beforehand, in steps, and the pieces are small: else a killed slave's log would have sound records
    behind bytes that were never written, which is what damage looks like.
    """
    for first in range(0, len(data), _PIECE_BYTES):
        piece = data[first : first + _PIECE_BYTES]
        for step in range(0, min(_HEAD_BYTES, len(piece)), _STEP_BYTES):
            part = piece[step : min(step + _STEP_BYTES, _HEAD_BYTES)]
            target[at + first + step : at + first + step + len(part)] = part
        target[at + first : at + first + len(piece)] = piece
