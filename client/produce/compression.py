"""Compression of bodies, as RocketMQ's clients do it: one body at a time, the algorithm in the record's flag."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from penstock.formats.record.layout import SysFlag

ZLIB_LEVEL = 5  # RocketMQ's default


def _zlib(body: bytes) -> bytes:
    return zlib.compress(body, ZLIB_LEVEL)


def _lz4(body: bytes) -> bytes:
    import lz4.frame

    compressed: bytes = lz4.frame.compress(body)
    return compressed


def _zstd(body: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(body)


_COMPRESSORS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "zlib": (SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB, _zlib),
    "lz4": (SysFlag.COMPRESSED | SysFlag.COMPRESSION_LZ4, _lz4),
    "zstd": (SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZSTD, _zstd),
}


def compressor(algorithm: str) -> tuple[int, Callable[[bytes], bytes]]:
    """The flag bits and the function of an algorithm, for callers that compress every body of a batch."""
    return _COMPRESSORS[algorithm]


def compress(body: bytes, algorithm: str) -> tuple[int, bytes]:
    """The flag bits and the compressed body; ``(0, body)`` where compression gains nothing."""
    flag, compressor = _COMPRESSORS[algorithm]
    compressed = compressor(body)
    return (flag, compressed) if len(compressed) < len(body) else (0, body)
