"""Requests as they come from outside: how much one may hold is bounded before it is decoded."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Final, Generic, TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from .errors import InvalidArgument, MessageTooLarge

M = TypeVar("M", bound=Message)

FIELDS_MAX: Final = 1 << 16
"""Of one request, those of messages inside it included: decoding so many takes some hundredths of a second."""
FIELD_BYTES_MIN: Final = 2
"""Of any but a number in a packed list, and such are decoded by the million."""

_VARINT, _FIXED_64, _LENGTH, _FIXED_32 = 0, 1, 2, 5  # https://protobuf.dev/programming-guides/encoding


def decoded(kind: type[M], content: bytes | memoryview, bytes_max: int, fields_max: int = FIELDS_MAX) -> M:
    """The message in ``content``. gRPC's own way to decode logs an error, with a trace, for whatever a stranger sends.

    Raises:
        InvalidArgument: it is none. MessageTooLarge: longer than ``bytes_max``, or more than ``fields_max`` fields, so
            it is not decoded: a message of a few megabytes can hold millions, and takes seconds and gigabytes.
    """
    if len(content) > bytes_max:
        raise MessageTooLarge(f"request of {len(content)} bytes: at most {bytes_max} are allowed, ask for less")
    if len(content) > FIELD_BYTES_MIN * fields_max and not _has_at_most(
        fields_max, cast(Descriptor, kind.DESCRIPTOR), bytes(content)
    ):
        raise MessageTooLarge(f"request of {len(content)} bytes: more than {fields_max} fields, ask for less")
    try:
        return kind.FromString(content)  # type: ignore[arg-type]  # views do as well
    except DecodeError as error:
        raise InvalidArgument(f"{len(content)} bytes that are no {kind.DESCRIPTOR.full_name}: {error}") from None


class Decoded(Generic[M]):
    """The messages of a stream, decoded one by one; raises as :func:`decoded`."""

    def __init__(
        self, kind: type[M], contents: AsyncIterator[bytes], bytes_max: int, fields_max: int = FIELDS_MAX
    ) -> None:
        self._kind = kind
        self._contents = contents
        self._bytes_max = bytes_max
        self._fields_max = fields_max

    def __aiter__(self) -> Decoded[M]:
        return self

    async def __anext__(self) -> M:
        return decoded(self._kind, await anext(self._contents), self._bytes_max, self._fields_max)


def _has_at_most(most: int, kind: Descriptor, content: bytes) -> bool:
    """False if ``content`` has more fields than ``most``, up to where it is no message of ``kind`` any more."""
    left = most
    spans = [(0, len(content), kind)]
    while spans:
        at, end, kind = spans.pop()
        inner = _inner(kind)
        with contextlib.suppress(IndexError):
            while at < end:
                left -= 1
                if left < 0:
                    return False
                tag, at = _varint(content, at)
                form = tag & 7
                if form == _LENGTH:
                    size, at = _varint(content, at)
                    if size and tag >> 3 in inner:
                        spans.append((at, min(at + size, end), inner[tag >> 3]))
                    at += size
                elif form == _VARINT:
                    _, at = _varint(content, at)
                elif form == _FIXED_64:
                    at += 8
                elif form == _FIXED_32:
                    at += 4
    return True


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
