"""Messages that gRPC itself has compressed: gzip's, as clients send them where they are told to compress calls."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

from .frames import Status

GZIP: Final = "gzip"
"""What ``grpc-encoding`` says of such a call."""
_PLAIN: Final = "identity"
_GZIP_WBITS: Final = 31
_PART_BYTES: Final = 16 * 1024
PIECE_BYTES: Final = 64 * 1024


class PackingError(Exception):
    """A message that is not unpacked, with the status for its call."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


class Packed(bytes):
    """A message as gzip has packed it."""

    def pieces(self, bytes_max: int) -> Iterator[bytes]:
        """What it unpacks to, at most 64 KiB at a time.

        Raises:
            PackingError: it is no gzip, ends too early, is followed by more, or becomes longer than ``bytes_max``.
        """
        unpacking = zlib.decompressobj(wbits=_GZIP_WBITS)
        size = 0
        for at in range(0, len(self), _PART_BYTES):  # by parts: what is left over is copied with each piece
            part = self[at : at + _PART_BYTES]
            while part and not unpacking.eof:
                try:
                    piece = unpacking.decompress(part, PIECE_BYTES)
                except zlib.error as error:
                    raise PackingError(Status.INTERNAL, f"a compressed message that is no gzip: {error}") from None
                part = unpacking.unconsumed_tail
                size += len(piece)
                if size > bytes_max:
                    raise PackingError(
                        Status.RESOURCE_EXHAUSTED, f"a message that unpacks to more than {bytes_max} bytes"
                    )
                yield piece
            if unpacking.unused_data or (part and unpacking.eof):
                raise PackingError(Status.INTERNAL, "a compressed message with bytes behind its gzip")
        if not unpacking.eof:
            raise PackingError(Status.INTERNAL, "a compressed message that ends too early")


def check_packing(flag: int, encoding: str | None) -> None:
    """Make sure that a message with this flag, of a call with this ``grpc-encoding``, is one of gzip.

    Raises:
        PackingError: it is another's, or nobody's.
    """
    if flag != 1 or encoding in (None, _PLAIN):
        raise PackingError(Status.INTERNAL, f"a message with the flag {flag} in a call whose grpc-encoding is none")
    if encoding != GZIP:
        raise PackingError(Status.UNIMPLEMENTED, f"messages compressed by {encoding[:32]!r} are not taken: use {GZIP}")
