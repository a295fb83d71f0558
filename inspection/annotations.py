"""Bytes of a store's files as named fields: what stands where, and what it means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from penstock.formats.record.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, Host, SysFlag
from penstock.formats.record.properties import decode_properties

BODY_SHOWN = 64


class Field(NamedTuple):
    """One field: its position in the file, its bytes, and its value as JSON and for people."""

    name: str
    at: int
    data: bytes
    value: Any

    def as_document(self) -> dict[str, Any]:
        """As JSON; the bytes in hexadecimal."""
        return {"name": self.name, "at": self.at, "bytes": self.data.hex(), "value": self.value}


class Item(NamedTuple):
    """A record, entry or header: what it is, where it begins, its fields."""

    what: str
    at: int
    size: int
    fields: list[Field]

    def as_document(self) -> dict[str, Any]:
        """As JSON."""
        fields = [field.as_document() for field in self.fields]
        return {"what": self.what, "at": self.at, "size": self.size, "fields": fields}


class _Cursor:
    """Takes one field after the other from ``data``, which begins at position ``at`` of its file."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._file_at = at
        self.position = 0
        self.fields: list[Field] = []

    def take(self, name: str, kind: str, size: int | None = None) -> int:
        """Add the next field, of ``size`` bytes where its kind leaves that open; its number if it is one."""
        size = _SIZES[kind] if size is None else max(0, size)
        data = self._data[self.position : self.position + size]
        if len(data) < size:
            raise ValueError(f"{name}: {size} bytes are needed, {len(data)} are left")
        number = int.from_bytes(data, "big", signed=True)
        value = _VALUES[kind](data) if kind in _VALUES else number
        shown_data = data[:BODY_SHOWN] if kind == "body" else data
        self.fields.append(Field(name, self._file_at + self.position, shown_data, value))
        self.position += size
        return number


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _body(data: bytes) -> str:
    return _text(data[:BODY_SHOWN]) + (f" … ({len(data)} bytes)" if len(data) > BODY_SHOWN else "")


def _time(data: bytes) -> Any:
    """The number, with what people read if it is a time."""
    number = int.from_bytes(data, "big", signed=True)
    try:
        found = datetime.fromtimestamp(number / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return number
    return f"{number} ({found.isoformat(timespec='milliseconds')})" if number > 0 else number


def _magic(data: bytes) -> str:
    number = int.from_bytes(data, "big", signed=True)
    name = {MAGIC_V1: "V1", MAGIC_V2: "V2", MAGIC_BLANK: "blank"}.get(number, "of no known version")
    return f"{number & 0xFFFFFFFF:#010x} ({name})"


def _flags(data: bytes) -> str:
    """The number of a SYSFLAG, and its set bits by name."""
    number = int.from_bytes(data, "big")
    transaction = {4: "PREPARED", 8: "COMMIT", 12: "ROLLBACK"}.get(number & SysFlag.TRANSACTION_MASK)
    compression = {1: "LZ4", 2: "ZSTD", 3: "ZLIB"}.get((number & SysFlag.COMPRESSION_MASK) >> 8)
    names = ("COMPRESSED", "MULTI_TAGS", "BORN_HOST_V6", "STORE_HOST_V6", "NEED_UNWRAP", "INNER_BATCH")
    found = [name for name in names if number & int(getattr(SysFlag, name))]
    found += [name for name in (transaction, compression) if name]
    found += [f"unknown {number & ~SysFlag.KNOWN:#x}"] if number & ~SysFlag.KNOWN else []
    return f"{number} ({', '.join(found) or 'none'})"


_SIZES = {"i1": 1, "i2": 2, "i4": 4, "i8": 8, "time": 8, "magic": 4, "flags": 4}
_VALUES: dict[str, Callable[[bytes], Any]] = {
    "time": _time,
    "magic": _magic,
    "flags": _flags,
    "host": lambda data: str(Host.decode(data)),
    "text": _text,
    "body": _body,
    "properties": decode_properties,
    "bits": bytes.hex,
}
"""What people read of a field, by its kind; the others are numbers."""


def record_item(data: bytes, at: int) -> Item:
    """The record or blank at the beginning of ``data``; of damaged bytes as many fields as can be made out."""
    cursor = _Cursor(data, at)
    try:
        size = cursor.take("TOTALSIZE", "i4")
        magic = cursor.take("MAGICCODE", "magic")
        if magic == MAGIC_BLANK:
            return Item("blank that ends the file", at, size, cursor.fields)
        if magic not in (MAGIC_V1, MAGIC_V2):
            return Item("no record", at, len(data), cursor.fields)
        _take_record(cursor, magic)
    except ValueError as error:
        return Item(f"damaged record ({error})", at, len(data), cursor.fields)
    what = "record" if cursor.position == size else f"damaged record (its parts take {cursor.position} bytes)"
    return Item(what, at, size, cursor.fields)


def _take_record(cursor: _Cursor, magic: int) -> None:
    for name in ("BODYCRC", "QUEUEID", "FLAG"):
        cursor.take(name, "i4")
    for name in ("QUEUEOFFSET", "PHYSICALOFFSET"):
        cursor.take(name, "i8")
    flags = cursor.take("SYSFLAG", "flags")
    for whose, is_v6 in (("BORN", flags & SysFlag.BORN_HOST_V6), ("STORE", flags & SysFlag.STORE_HOST_V6)):
        cursor.take(f"{whose}TIMESTAMP", "time")
        cursor.take(f"{whose}HOST", "host", 20 if is_v6 else 8)
    cursor.take("RECONSUMETIMES", "i4")
    cursor.take("PREPAREDTRANSACTIONOFFSET", "i8")
    cursor.take("BODY", "body", cursor.take("BODYLENGTH", "i4"))
    cursor.take("TOPIC", "text", cursor.take("TOPICLENGTH", "i1" if magic == MAGIC_V1 else "i2"))
    cursor.take("PROPERTIES", "properties", cursor.take("PROPERTIESLENGTH", "i2"))


def fixed_item(what: str, data: bytes, at: int, layout: tuple[tuple[str, str], ...]) -> Item:
    """An entry of fixed layout: (name, i2 | i4 | i8 | time) each."""
    cursor = _Cursor(data, at)
    try:
        for name, kind in layout:
            cursor.take(name, kind)
    except ValueError:
        return Item(f"{what}, cut off by the file's end", at, len(data), cursor.fields)
    return Item(what, at, cursor.position, cursor.fields)


def extension_item(data: bytes, at: int) -> Item:
    """A unit of a consume queue extension, or the blank that ends its file."""
    cursor = _Cursor(data, at)
    try:
        size = cursor.take("size", "i2")
        if size <= 0:
            return Item("end of the file's units" if size < 0 else "nothing written", at, 0, cursor.fields)
        cursor.take("tagsCode", "i8")
        cursor.take("msgStoreTime", "time")
        cursor.take("filterBitMap", "bits", cursor.take("bitMapSize", "i2"))
    except ValueError as error:
        return Item(f"damaged unit ({error})", at, 0, cursor.fields)
    return Item("extension unit", at, size, cursor.fields)


def lines(item: Item, width: int = 24) -> Iterator[str]:
    """The item for people: a title, then position, bytes in hexadecimal, name and value of each field."""
    yield f"{item.what} at {item.at}" + (f", {item.size} bytes" if item.size else "")
    name_width = max((len(field.name) for field in item.fields), default=0)
    for field in item.fields:
        chunks = [field.data[i : i + width] for i in range(0, len(field.data), width)] or [b""]
        yield f"  {field.at:>12}  {field.name:<{name_width}}  {chunks[0].hex():<{2 * width}}  {shown(field.value)}"
        for number, chunk in enumerate(chunks[1:], 1):
            yield f"  {field.at + number * width:>12}  {'':<{name_width}}  {chunk.hex()}"


def shown(value: Any) -> str:
    """A value on one line, control characters escaped."""
    if isinstance(value, dict):
        return ", ".join(f"{shown(name)}={shown(text)}" for name, text in value.items())
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))
