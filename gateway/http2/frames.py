"""Frames of HTTP/2, and what gRPC puts into them.

| Offset | Size | Type | Meaning of a frame's head |
|---|---|---|---|
| 0 | 3 | u24 | bytes behind the head |
| 3 | 1 | u8 | :class:`Type` |
| 4 | 1 | u8 | flags |
| 5 | 4 | u32 | the stream, which is a call; 0: the connection |

In a stream's DATA a message is a byte, 0 where it is not compressed, its length as u32, and its bytes.

Sources: RFC 9113; https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

import re
import struct
from enum import IntEnum
from typing import Final
from urllib.parse import quote

from .headers import encoded

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD: Final = struct.Struct(">BHBBL")
MESSAGE_HEAD: Final = struct.Struct(">BL")
STREAM: Final = 0x7FFF_FFFF
WINDOW_MAX: Final = 0x7FFF_FFFF
WINDOW: Final = 65_535
"""Before settings say something else."""
FRAME_BYTES_MAX: Final = 16_384
"""What both sides may send, before settings say something else; ours say nothing else."""
FRAME_BYTES_LIMIT: Final = (1 << 24) - 1

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20


class Type(IntEnum):
    """Of a frame. Others are left aside."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Setting(IntEnum):
    """What a SETTINGS frame sets. Others are left aside."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Code(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Status(IntEnum):
    """How a call ends, for gRPC."""

    OK = 0
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


class BrokenProtocol(Exception):
    """What a client sent that ends its connection, as text, and as HTTP/2's code."""

    def __init__(self, text: str, code: Code = Code.PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return HEAD.pack(len(content) >> 16, len(content) & 0xFFFF, kind, flags, stream) + content


def settings(values: dict[Setting, int]) -> bytes:
    return frame(Type.SETTINGS, 0, 0, b"".join(struct.pack(">HL", *each) for each in values.items()))


def window_update(stream: int, count: int) -> bytes:
    return frame(Type.WINDOW_UPDATE, 0, stream, count.to_bytes(4, "big"))


def rst_stream(stream: int, code: Code) -> bytes:
    return frame(Type.RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def goaway(last: int, code: Code, text: str = "") -> bytes:
    """A frame that ends a connection; streams after ``last`` were not looked at."""
    return frame(Type.GOAWAY, 0, 0, struct.pack(">LL", last, code) + text.encode()[:256])


_STATUS_200: Final = b"\x88"
BEGIN: Final = _STATUS_200 + encoded(
    (b"content-type", b"application/grpc"), (b"grpc-accept-encoding", b"identity,gzip")
)
"""The block of header fields that an answer begins with."""
TEXT_MAX: Final = 300
"""Of the text of a status: clients take no more than 8 KiB of trailers, in which a character may take 12 bytes."""
_PRINTED: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
TRAILERS_OK: Final = encoded((b"grpc-status", b"0"))


def trailers(status: Status, text: str) -> bytes:
    """The block of header fields that an answer ends with."""
    if status is Status.OK:
        return TRAILERS_OK
    return encoded((b"grpc-status", b"%d" % status), (b"grpc-message", quote(text[:TEXT_MAX], safe=_PRINTED).encode()))


def http_error(status: int) -> bytes:
    """The block of header fields that refuses what is no call of gRPC."""
    return encoded((b":status", b"%d" % status))


_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])", re.ASCII)
_UNIT_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def seconds(timeout: str) -> float:
    """What ``grpc-timeout`` says. Raises ValueError: no length of time."""
    found = _TIMEOUT.fullmatch(timeout)
    if found is None:
        raise ValueError(f"grpc-timeout {timeout[:32]!r}: up to 8 digits and one of H, M, S, m, u, n")
    return int(found[1]) * _UNIT_S[found[2]]


def unpadded(content: bytes) -> bytes:
    """What a frame with PADDED holds. Raises BrokenProtocol."""
    if not content or content[0] >= len(content):
        raise BrokenProtocol("a frame with more padding than bytes")
    return content[1 : len(content) - content[0]]
