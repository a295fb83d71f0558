"""A server's requests, decoded so that one that holds much delays no other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from penstock.proto.requests import counting, parsed

from .turns import Turns

M = TypeVar("M", bound=Message)

FIELDS_MAX: Final = 1 << 17
"""Of one request, those of messages inside it included: decoding so many takes some hundredths of a second."""


class Requests:
    """Decodes the requests of one server; event loop only."""

    def __init__(self, bytes_max: int, fields_max: int = FIELDS_MAX) -> None:
        self._bytes_max = bytes_max
        self._fields_max = fields_max
        self._turns = Turns()

    async def decoded(self, kind: type[M], content: bytes) -> M:
        """The message in ``content``; everything else goes on while a long one is looked through.

        Raises:
            InvalidArgument: it is none. MessageTooLarge: it is too long, or has too many fields.
        """
        for _ in counting(kind, content, self._bytes_max, self._fields_max):
            await self._turns.have()
        return parsed(kind, content)

    def each(self, kind: type[M], contents: AsyncIterator[bytes]) -> Decoded[M]:
        """The messages of a stream, decoded one by one; raises as :meth:`decoded`."""
        return Decoded(self, kind, contents)


class Decoded(Generic[M]):
    """See :meth:`Requests.each`."""

    def __init__(self, requests: Requests, kind: type[M], contents: AsyncIterator[bytes]) -> None:
        self._requests = requests
        self._kind = kind
        self._contents = contents

    def __aiter__(self) -> Decoded[M]:
        return self

    async def __anext__(self) -> M:
        return await self._requests.decoded(self._kind, await anext(self._contents))
