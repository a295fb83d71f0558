"""Requests as they come from outside: how much one may hold is bounded before it is decoded.

A message of a few megabytes can hold millions of others, empty ones, and decoding it takes seconds and gigabytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from functools import lru_cache
from typing import Final, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from .errors import InvalidArgument, MessageTooLarge

M = TypeVar("M", bound=Message)

FIELDS_AT_ONCE_MAX: Final = 1 << 14
"""Of a request that is decoded while everything else waits, those of messages inside it included."""
FIELD_BYTES_MIN: Final = 2
"""Of any but a number in a packed list, and such are decoded by the million."""
STEP: Final = 1 << 10

_VARINT, _FIXED_64, _LENGTH, _FIXED_32 = 0, 1, 2, 5  # https://protobuf.dev/programming-guides/encoding


def decoded(kind: type[M], content: bytes | memoryview, bytes_max: int, fields_max: int = FIELDS_AT_ONCE_MAX) -> M:
    """The message in ``content``. gRPC's own way to decode logs an error, with a trace, for whatever a stranger sends.

    Raises:
        InvalidArgument: not such a message.
        MessageTooLarge: longer than ``bytes_max``, or of more fields than ``fields_max``.
    """
    for _ in counting(kind, content, bytes_max, fields_max):
        pass
    return parsed(kind, content)


def parsed(kind: type[M], content: bytes | memoryview) -> M:
    """The message in ``content``, whose fields have been counted, but for what is unknown. Raises InvalidArgument."""
    try:
        made = kind.FromString(content)  # type: ignore[arg-type]  # views do as well
    except DecodeError as error:
        raise InvalidArgument(f"{len(content)} bytes that are no {kind.DESCRIPTOR.full_name}: {error}") from None
    made.DiscardUnknownFields()  # a part that is kept, or comes again in answers, would take them along
    return made


def counting(
    kind: type[Message], content: bytes | memoryview, bytes_max: int, fields_max: int
) -> Generator[None, None, None]:
    """Go through the fields of ``content``, with a pause after each thousand. Raises MessageTooLarge."""
    if len(content) > bytes_max:
        raise MessageTooLarge(f"request of {len(content)} bytes: at most {bytes_max} are allowed, ask for less")
    if len(content) <= FIELD_BYTES_MIN * fields_max:
        return
    for count in _counts(kind.DESCRIPTOR, bytes(content)):  # type: ignore[arg-type]  # upb's is one too
        if count > fields_max:
            raise MessageTooLarge(f"request of {len(content)} bytes: more than {fields_max} fields, ask for less")
        yield


def _counts(kind: Descriptor, content: bytes) -> Generator[int, None, None]:
    """How many fields there are so far, now and then; to where ``content`` is no message of ``kind`` any more."""
    count, told = 0, 0
    spans = [(0, len(content), kind)]
    while spans:
        at, end, kind = spans.pop()
        inner = _inner(kind)
        with contextlib.suppress(IndexError):
            while at < end:
                count += 1
                if count - told == STEP:
                    told = count
                    yield count
                tag, at = _varint(content, at)
                form = tag & 7
                if form == _LENGTH:
                    size, at = _varint(content, at)
                    if size and tag >> 3 in inner:
                        # Into it, and then on: what is kept grows with the depth, not with the number of messages.
                        spans.append((at + size, end, kind))
                        end, kind = min(at + size, end), inner[tag >> 3]
                        inner = _inner(kind)
                    else:
                        at += size
                elif form == _VARINT:
                    _, at = _varint(content, at)
                elif form == _FIXED_64:
                    at += 8
                elif form == _FIXED_32:
                    at += 4
    yield count


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """The number at ``at``, and where the next begins. Raises IndexError: it does not end, or not within ten bytes."""
    value = content[at]
    if value < 128:
        return value, at + 1
    value, shift = value & 127, 7
    while (byte := content[at := at + 1]) > 127:
        value |= (byte & 127) << shift
        shift += 7
        if shift > 63:
            raise IndexError("a number of more than ten bytes")
    return value | byte << shift, at + 1


@lru_cache
def _inner(kind: Descriptor) -> dict[int, Descriptor]:
    """By number, the fields of ``kind`` that are messages."""
    return {field.number: field.message_type for field in kind.fields if field.message_type is not None}
