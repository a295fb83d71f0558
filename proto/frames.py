"""Framed messages: a protobuf header in front of raw bytes, so that records are never copied into protobuf.

| Offset | Size | Field |
|---|---|---|
| 0 | 4 | header length h, u32 big-endian |
| 4 | h | header, protobuf |
| 4 + h | rest | body: raw bytes, its length is the rest of the message |

Used by a data port's APPEND, FETCH, RECEIVE, REPLICATE and STAGE.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TypeVar

from google.protobuf.message import Message

from .errors import InvalidArgument
from .requests import FIELDS_AT_ONCE_MAX, decoded

PREFIX = struct.Struct(">I")
assert PREFIX.size == 4

M = TypeVar("M", bound=Message)

_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype = ctypes.py_object
_new_bytes.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]
_address_of = ctypes.pythonapi.PyBytes_AsString
_address_of.restype = ctypes.c_void_p
_address_of.argtypes = [ctypes.py_object]


def pack(header: Message, *bodies: bytes | bytearray | memoryview) -> bytes:
    """One framed message of ``header`` and the bodies laid end to end (each copied once)."""
    encoded = header.SerializeToString()
    return b"".join((PREFIX.pack(len(encoded)), encoded, *bodies))


def allocate(header: Message, body_bytes: int) -> tuple[bytes, int]:
    """A framed message whose body is still to be written, and the address of that body.

    The body is uninitialised memory: the caller fills all ``body_bytes`` of it through the address before
    anybody else sees the object. Joining would copy every record once more.
    """
    encoded = header.SerializeToString()
    start = PREFIX.size + len(encoded)
    message: bytes = _new_bytes(None, start + body_bytes)
    address = _address_of(message)
    ctypes.memmove(address, PREFIX.pack(len(encoded)) + encoded, start)
    return message, address + start


def new_bytes(size: int) -> tuple[bytes, memoryview]:
    """``size`` bytes of uninitialised memory, and a view to fill them by before anybody else sees them."""
    made: bytes = _new_bytes(None, size)
    if not size:
        return made, memoryview(bytearray())
    return made, memoryview((ctypes.c_char * size).from_address(_address_of(made))).cast("B")


HEADER_BYTES_MAX = 4 << 20
"""A longer header is refused unread: reading it alone would take long."""
ANSWER_FIELDS_MAX = HEADER_BYTES_MAX
"""No limit: who answers has been chosen, and may tell of many queues."""


def unpack(
    message: bytes | memoryview, header_type: type[M], fields_max: int = FIELDS_AT_ONCE_MAX
) -> tuple[M, memoryview]:
    """The header and a view of the body of ``message``.

    ``fields_max``: of the header. What was asked for may have :data:`ANSWER_FIELDS_MAX`.

    Raises:
        InvalidArgument: the bytes are not a framed message of that header.
        MessageTooLarge: its header is too long, or has too many fields.
    """
    if len(message) < PREFIX.size:
        raise InvalidArgument(f"frame of {len(message)} bytes: shorter than its length prefix")
    (length,) = PREFIX.unpack_from(message)
    end = PREFIX.size + length
    if end > len(message):
        raise InvalidArgument(f"frame of {len(message)} bytes: header length {length} does not fit")
    header = decoded(header_type, bytes(message[PREFIX.size : end]), HEADER_BYTES_MAX, fields_max)
    return header, memoryview(message)[end:]
