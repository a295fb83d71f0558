"""Blocks of header fields: HPACK, as clients send them, and the few fields that a server of gRPC answers with.

Source: RFC 7541. The static table and the Huffman code are those of the library ``hpack``. Its decoder takes 90 us for
the fields of one call, most of which have been seen before: this one, 12 us.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final

from hpack.table import HeaderTable

from .huffman import decoded

Field = tuple[str, str]
"""Name and value."""

TABLE_BYTES: Final = 4096
"""A client may have so much of its fields remembered."""
FIELDS_BYTES_MAX: Final = 64 * 1024
"""Of one block's fields, decoded: a short block may name a long field again and again."""
_ENTRY_BYTES: Final = 32
_NUMBER_BITS_MAX: Final = 28

_STATIC: Final[tuple[tuple[Field, int], ...]] = tuple(
    ((name.decode(), value.decode()), len(name) + len(value) + _ENTRY_BYTES) for name, value in HeaderTable.STATIC_TABLE
)
_STATIC_LENGTH: Final = len(_STATIC)

_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+", re.ASCII)
_PSEUDO: Final = frozenset({":method", ":scheme", ":path", ":authority"})
_LENGTH: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_HOP: Final = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})
_GRPC: Final = re.compile(r"application/grpc *([+;].*)?", re.ASCII | re.IGNORECASE)
_known: set[str] = set()  # names that may stand in a request, of those that were looked at
_KNOWN_MAX, _KNOWN_LENGTH_MAX = 1000, 64


class HeadersError(Exception):
    """A block that cannot be decoded: nothing that follows on its connection can be, either."""


class HeaderDecoder:
    """Decodes the blocks of one connection, in their order: each may refer to fields of those before."""

    def __init__(self) -> None:
        self._entries: deque[tuple[Field, int]] = deque()  # with their sizes, the newest first
        self._bytes = 0  # of all of them
        self._bytes_max = TABLE_BYTES
        self.block_bytes = 0
        """Of the newest block's fields: their names, their values and 32 more for each."""

    def decode(self, block: bytes) -> list[Field]:
        """The fields. Raises HeadersError."""
        try:
            return self._decoded(block)
        except IndexError as error:
            raise HeadersError(f"a block of header fields that ends too early, or is none: {error}") from None

    def _decoded(self, block: bytes) -> list[Field]:
        fields: list[Field] = []
        length, at, total, entries = len(block), 0, 0, self._entries
        while at < length:
            first = block[at]
            if first >= 0x80:
                if first < 0xFF:
                    index, at = first & 0x7F, at + 1
                else:
                    index, at = _number(block, at, 7)
                field, size = entries[index - _STATIC_LENGTH - 1] if index > _STATIC_LENGTH else self._entry(index)
            elif first >= 0x40:
                field, size, at = self._literal(block, at, 6)
                self._remember(field, size)
            elif first >= 0x20:
                if fields:
                    raise HeadersError("a size of the table behind a field")
                bytes_max, at = _number(block, at, 5)
                if bytes_max > TABLE_BYTES:
                    raise HeadersError(f"a table of {bytes_max} bytes: at most {TABLE_BYTES} are agreed")
                self._bytes_max = bytes_max
                self._shrink()
                continue
            else:
                field, size, at = self._literal(block, at, 4)
            total += size
            if total > FIELDS_BYTES_MAX:
                raise HeadersError(f"header fields of more than {FIELDS_BYTES_MAX} bytes")
            fields.append(field)
        self.block_bytes = total
        return fields

    def _entry(self, index: int) -> tuple[Field, int]:
        if index > _STATIC_LENGTH:
            return self._entries[index - _STATIC_LENGTH - 1]
        if not index:
            raise HeadersError("field 0 of the table")
        return _STATIC[index - 1]

    def _literal(self, block: bytes, at: int, bits: int) -> tuple[Field, int, int]:
        """A field that is spelled out, its size, and where the next one begins."""
        index, at = _number(block, at, bits) if block[at] & 0x3F else (0, at + 1)
        if index:
            name = self._entry(index)[0][0]
            name_bytes = len(name)
        else:
            text, at = _text(block, at)
            name, name_bytes = text.decode("latin-1"), len(text)
        text, at = _text(block, at)
        if b"\n" in text or b"\r" in text or b"\0" in text:  # what is in the table was looked at when it came
            raise HeadersError(f"a value of {name[:64]!r} with a line break or NUL")
        return (name, text.decode("utf-8", "replace")), name_bytes + len(text) + _ENTRY_BYTES, at

    def _remember(self, field: Field, size: int) -> None:
        self._entries.appendleft((field, size))
        self._bytes += size
        if self._bytes > self._bytes_max:
            self._shrink()

    def _shrink(self) -> None:
        while self._bytes > self._bytes_max:
            self._bytes -= self._entries.pop()[1]


def _number(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """RFC 7541 §5.1: the number, and where what follows begins."""
    most = (1 << bits) - 1
    found = block[at] & most
    at += 1
    if found < most:
        return found, at
    shift = 0
    while True:
        part = block[at]
        at += 1
        found += (part & 0x7F) << shift
        if part < 0x80:
            return found, at
        shift += 7
        if shift > _NUMBER_BITS_MAX:
            raise HeadersError("a number without end in a block of header fields")


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    length = block[at]
    is_huffman = length >= 0x80
    if length < 0x7F:  # the usual case
        at += 1
    else:
        length, at = _number(block, at, 7)
    end = at + length
    if end > len(block):
        raise HeadersError("a block of header fields that ends within a field")
    text = block[at:end]
    if is_huffman:
        plain = decoded(text)
        if plain is None:
            raise HeadersError("a text that is not in Huffman's code, as it says")
        text = plain
    return text, end


def encoded(*fields: tuple[bytes, bytes]) -> bytes:
    """A block of these fields that no client need remember."""
    parts: list[bytes] = []
    for name, value in fields:
        parts += (b"\0", _length(name), name, _length(value), value)
    return b"".join(parts)


def _length(text: bytes) -> bytes:
    """RFC 7541 §5.1 with 7 bits, of a text without Huffman's code."""
    rest = len(text) - 0x7F
    if rest < 0:
        return bytes((len(text),))
    parts = [0x7F]
    while rest >= 0x80:
        parts.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*parts, rest))


def metadata_of(fields: list[Field]) -> dict[str, str] | None:
    """The fields by name; None: RFC 9113 §8.2 forbids one, or §8.3 misses one."""
    found: dict[str, str] = {}
    is_regular = False
    for name, value in fields:
        if name in _known:
            is_regular = True
        elif name[:1] != ":":
            if not _is_name(name):
                return None
            is_regular = True
        elif is_regular or name in found or name not in _PSEUDO:
            return None
        found[name] = value
    if not (found.get(":method") and found.get(":scheme") and found.get(":path")):
        return None
    is_fine = found.get("te", "trailers") == "trailers" and _LENGTH.fullmatch(found.get("content-length", "0"))
    return found if is_fine else None


def are_trailers(fields: list[Field]) -> bool:
    """True if these may follow a request."""
    return all(name in _known or _is_name(name) for name, _ in fields)


def _is_name(name: str) -> bool:
    is_fine = _NAME.fullmatch(name) is not None and name not in _HOP
    if is_fine and len(_known) < _KNOWN_MAX and len(name) <= _KNOWN_LENGTH_MAX:
        _known.add(name)
    return is_fine


def is_grpc(content_type: str) -> bool:
    """True of a call of gRPC's, of whatever kind its messages are; gRPC-Web is another protocol."""
    return _GRPC.fullmatch(content_type) is not None
