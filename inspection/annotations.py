"""Bytes of a store's files as named fields: what stands where, and what it means."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from penstock.formats.record.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, Host, SysFlag
from penstock.formats.record.properties import decode_properties

BODY_SHOWN = 64
_NUMBERS = {"i1": ">b", "i2": ">h", "i4": ">i", "i8": ">q"}


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

    def take(self, name: str, size: int) -> bytes:
        data = self._data[self.position : self.position + size]
        if len(data) < size:
            raise ValueError(f"{name}: {size} bytes are needed, {len(data)} are left")
        self.position += size
        return data

    def add(self, name: str, data: bytes, value: Any) -> None:
        self.fields.append(Field(name, self._file_at + self.position - len(data), data, value))

    def number(self, name: str, kind: str) -> int:
        layout = struct.Struct(_NUMBERS[kind])
        data = self.take(name, layout.size)
        value: int = layout.unpack(data)[0]
        self.add(name, data, value)
        return value

    def numbers(self, *names: tuple[str, str]) -> None:
        for name, kind in names:
            self.number(name, kind)


def text_of_time(milliseconds: int) -> str:
    """A time as people read it; empty if the number is no time."""
    try:
        found = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return found.isoformat(timespec="milliseconds") if milliseconds > 0 else ""


def magic_name(magic: int) -> str:
    """What a magic number stands for."""
    return {MAGIC_V1: "V1", MAGIC_V2: "V2", MAGIC_BLANK: "blank"}.get(magic, "of no known version")


def record_item(data: bytes, at: int) -> Item:
    """The record or blank at the beginning of ``data``; of damaged bytes as many fields as can be made out."""
    cursor = _Cursor(data, at)
    try:
        size = cursor.number("TOTALSIZE", "i4")
        magic = cursor.take("MAGICCODE", 4)
        kind = int.from_bytes(magic, "big", signed=True)
        cursor.add("MAGICCODE", magic, f"{kind & 0xFFFFFFFF:#010x} ({magic_name(kind)})")
        if kind == MAGIC_BLANK:
            return Item("blank that ends the file", at, size, cursor.fields)
        if kind not in (MAGIC_V1, MAGIC_V2):
            return Item("no record", at, len(data), cursor.fields)
        _record_fields(cursor, kind)
    except ValueError as error:
        return Item(f"damaged record ({error})", at, len(data), cursor.fields)
    what = "record" if cursor.position == size else f"damaged record (its parts take {cursor.position} bytes)"
    return Item(what, at, size, cursor.fields)


def _record_fields(cursor: _Cursor, magic: int) -> None:
    cursor.numbers(
        ("BODYCRC", "i4"), ("QUEUEID", "i4"), ("FLAG", "i4"), ("QUEUEOFFSET", "i8"), ("PHYSICALOFFSET", "i8")
    )
    flags = cursor.take("SYSFLAG", 4)
    sys_flag = int.from_bytes(flags, "big")
    cursor.add("SYSFLAG", flags, f"{sys_flag} ({', '.join(flag_names(sys_flag)) or 'none'})")
    _time(cursor, "BORNTIMESTAMP")
    _host(cursor, "BORNHOST", bool(sys_flag & SysFlag.BORN_HOST_V6))
    _time(cursor, "STORETIMESTAMP")
    _host(cursor, "STOREHOST", bool(sys_flag & SysFlag.STORE_HOST_V6))
    cursor.numbers(("RECONSUMETIMES", "i4"), ("PREPAREDTRANSACTIONOFFSET", "i8"))
    body_size = cursor.number("BODYLENGTH", "i4")
    body = cursor.take("BODY", max(0, body_size))
    shown = body[:BODY_SHOWN]
    more = f" … ({len(body)} bytes)" if len(body) > BODY_SHOWN else ""
    cursor.fields.append(
        Field("BODY", cursor.fields[-1].at + 4, shown, shown.decode("utf-8", "backslashreplace") + more)
    )
    topic = cursor.take("TOPIC", max(0, cursor.number("TOPICLENGTH", "i1" if magic == MAGIC_V1 else "i2")))
    cursor.add("TOPIC", topic, topic.decode("utf-8", "backslashreplace"))
    properties = cursor.take("PROPERTIES", max(0, cursor.number("PROPERTIESLENGTH", "i2")))
    cursor.add("PROPERTIES", properties, decode_properties(properties))


def flag_names(sys_flag: int) -> list[str]:
    """The set bits of a record's SYSFLAG by name."""
    transaction = {4: "PREPARED", 8: "COMMIT", 12: "ROLLBACK"}.get(sys_flag & SysFlag.TRANSACTION_MASK)
    compression = {1: "LZ4", 2: "ZSTD", 3: "ZLIB"}.get((sys_flag & SysFlag.COMPRESSION_MASK) >> 8)
    names = ("COMPRESSED", "MULTI_TAGS", "BORN_HOST_V6", "STORE_HOST_V6", "NEED_UNWRAP", "INNER_BATCH")
    found = [name for name in names if sys_flag & int(getattr(SysFlag, name))]
    found += [name for name in (transaction, compression) if name]
    return found + ([f"unknown {sys_flag & ~SysFlag.KNOWN:#x}"] if sys_flag & ~SysFlag.KNOWN else [])


def _time(cursor: _Cursor, name: str) -> None:
    data = cursor.take(name, 8)
    value = int.from_bytes(data, "big", signed=True)
    cursor.add(name, data, f"{value} ({text_of_time(value)})" if text_of_time(value) else value)


def _host(cursor: _Cursor, name: str, is_v6: bool) -> None:
    data = cursor.take(name, 20 if is_v6 else 8)
    cursor.add(name, data, str(Host.decode(data)))


def fixed_item(what: str, data: bytes, at: int, layout: tuple[tuple[str, str], ...]) -> Item:
    """An entry of fixed layout: (name, i2 | i4 | i8) each; names that end in ``Timestamp`` are shown as times."""
    cursor = _Cursor(data, at)
    try:
        for name, kind in layout:
            if kind == "time":
                _time(cursor, name)
            else:
                cursor.number(name, kind)
    except ValueError:
        return Item(f"{what}, cut off by the file's end", at, len(data), cursor.fields)
    return Item(what, at, cursor.position, cursor.fields)


def extension_item(data: bytes, at: int) -> Item:
    """A unit of a consume queue extension, or the blank that ends its file."""
    cursor = _Cursor(data, at)
    try:
        size = cursor.number("size", "i2")
        if size <= 0:
            return Item("end of the file's units" if size < 0 else "nothing written", at, 0, cursor.fields)
        cursor.number("tagsCode", "i8")
        _time(cursor, "msgStoreTime")
        bits = cursor.take("filterBitMap", max(0, cursor.number("bitMapSize", "i2")))
        cursor.add("filterBitMap", bits, bits.hex())
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
