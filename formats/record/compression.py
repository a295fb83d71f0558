"""Bodies as SYSFLAG says they are compressed, one at a time, with a limit on what they may grow to.

| Type bits | Form |
|---|---|
| 0 | zlib, or GZIP: clients that know only the COMPRESSED bit |
| 1 | LZ4 frame |
| 2 | Zstandard frame |
| 3 | zlib |
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable

from penstock.proto.errors import Corrupt, MessageTooLarge

from .layout import SysFlag

EXPANDED_BYTES_MAX = 16 * 1024 * 1024
"""Default limit of a decompressed body: four times the largest body that a broker takes by default."""
_ZSTD_STEP_BYTES = 256
_ZLIB_LEVEL = 5  # RocketMQ's default
_EITHER_WBITS = 32 + zlib.MAX_WBITS  # zlib or GZIP, as the first bytes say


class Packed(bytes):
    """A body that its sender has compressed already, as zlib or GZIP: stored as it is, under the COMPRESSED bit."""


def compressor(algorithm: str) -> tuple[int, Callable[[bytes], bytes]]:
    """The flag bits and the function of ``zlib``, ``lz4`` or ``zstd``, for callers that compress every body."""
    return _WRITERS[algorithm]


def compress(body: bytes, algorithm: str) -> tuple[int, bytes]:
    """The flag bits and the compressed body; ``(0, body)`` where compression gains nothing."""
    flag, write = _WRITERS[algorithm]
    compressed = write(body)
    return (flag, compressed) if len(compressed) < len(body) else (0, body)


def decompress(body: bytes, sys_flag: int, bytes_max: int = EXPANDED_BYTES_MAX) -> bytes:
    """The body as it was sent; ``body`` itself if it is not compressed.

    An enemy's body costs no more memory than ``bytes_max`` and 8 MiB.

    Raises:
        MessageTooLarge: it expands to more than ``bytes_max``.
        Corrupt: the bytes are not of the form that ``sys_flag`` names, or end too early.
    """
    if not sys_flag & SysFlag.COMPRESSED:
        return body
    reader = _READERS.get(sys_flag & SysFlag.COMPRESSION_MASK)
    if reader is None:
        raise Corrupt(f"body: unknown compression type {(sys_flag & SysFlag.COMPRESSION_MASK) >> 8}")
    expanded = reader(body, bytes_max)
    if len(expanded) > bytes_max:
        raise MessageTooLarge(f"body of {len(body)} bytes expands to more than {bytes_max}, the limit for bodies")
    return expanded


def _read_zlib(body: bytes, bytes_max: int) -> bytes:
    reader = zlib.decompressobj(_EITHER_WBITS)
    try:
        expanded = reader.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise Corrupt(f"body is neither zlib nor GZIP data: {error}") from error
    if not reader.eof and len(expanded) <= bytes_max:
        raise Corrupt(f"body of {len(body)} bytes: the zlib data ends too early")
    return expanded


def _read_lz4(body: bytes, bytes_max: int) -> bytes:
    import lz4.frame

    reader = lz4.frame.LZ4FrameDecompressor()
    try:
        expanded: bytes = reader.decompress(body, max_length=bytes_max + 1)
    except RuntimeError as error:
        raise Corrupt(f"body is not an LZ4 frame: {error}") from error
    if not reader.eof and len(expanded) <= bytes_max:
        raise Corrupt(f"body of {len(body)} bytes: the LZ4 frame ends too early")
    return expanded


def _read_zstd(body: bytes, bytes_max: int) -> bytes:
    import zstandard

    # One object per call, since they are not for several threads. Small steps: a block of 4 bytes can stand for
    # 128 KiB, so a step expands to 8 MiB at most, whatever size the frame's header claims.
    reader = zstandard.ZstdDecompressor().decompressobj()
    chunks: list[bytes] = []
    size = 0
    try:
        for start in range(0, len(body), _ZSTD_STEP_BYTES):
            chunk = reader.decompress(body[start : start + _ZSTD_STEP_BYTES])
            chunks.append(chunk)
            size += len(chunk)
            if size > bytes_max or reader.eof:
                break
    except zstandard.ZstdError as error:
        raise Corrupt(f"body is not a Zstandard frame: {error}") from error
    if not reader.eof and size <= bytes_max:
        raise Corrupt(f"body of {len(body)} bytes: the Zstandard frame ends too early")
    return b"".join(chunks)


def _write_zlib(body: bytes) -> bytes:
    return zlib.compress(body, _ZLIB_LEVEL)


def _write_lz4(body: bytes) -> bytes:
    import lz4.frame

    compressed: bytes = lz4.frame.compress(body)
    return compressed


def _write_zstd(body: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(body)


_READERS: dict[int, Callable[[bytes, int], bytes]] = {
    0: _read_zlib,
    SysFlag.COMPRESSION_LZ4: _read_lz4,
    SysFlag.COMPRESSION_ZSTD: _read_zstd,
    SysFlag.COMPRESSION_ZLIB: _read_zlib,
}
_WRITERS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "zlib": (SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB, _write_zlib),
    "lz4": (SysFlag.COMPRESSED | SysFlag.COMPRESSION_LZ4, _write_lz4),
    "zstd": (SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZSTD, _write_zstd),
}


def body_fields(body: bytes) -> dict[str, str]:
    """A body in a JSON object: as text where it is UTF-8, else as ``body_base64``."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
