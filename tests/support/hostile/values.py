"""Requests at and beyond their limits: each field of a message in turn is given what nobody expects there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from penstock.proto import names

DEPTH_MAX = 3
"""Of messages within messages."""

PLAUSIBLE: dict[str, Any] = {
    "topic": "prey",
    "group": "prey-group",
    "client_id": "stranger",
    "broker_name": "broker-z",
    "cluster": "main",
    "address": "127.0.0.1:9",
    "writer": "stranger",
    "run": "first",
    "key": "k",
    "name": "prey",
    "coordinator": "broker-z",
    "namespace": "prey",
    "read_queues": 4,
    "write_queues": 4,
    "perm": 6,
    "count": 1,
    "epoch": 7,
    "version": 7,
    "to_broker_id": 63,
    "broker_id": 63,
    "keep_ms": 60_000,
    "max_count": 10,
    "role": 2,
}
"""By the field's name, if it is of that type: what gets as far into the method as a stranger's request does, and breaks
nobody else's data."""


def integers(bits: int, *, signed: bool) -> list[int]:
    if not signed:
        return [0, 1, (1 << (bits - 1)) - 1, (1 << bits) - 1]
    top = 1 << (bits - 1)
    return [-top, -1, 0, top - 1] + ([1 << 31, 1 << 40] if bits == 64 else [65_537])


def texts(length: int) -> list[str]:
    """``length``: of the longest."""
    return [
        "",
        "../../etc/passwd",
        "\x00",
        "\x1b]0;x\x07\u202e",
        "ü" * 64,
        "x" * 128,
        names.STATE_TOPIC,
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "%RETRY%prey-group",
        "%LMQ%never-made",
        "x" * length,
        "(" * length,
        "a || " * (length // 5),
        "a = 1 OR " * (length // 9) + "a = 1",
    ]


_NUMBERS: dict[int, list[Any]] = {
    FieldDescriptor.TYPE_INT32: integers(32, signed=True),
    FieldDescriptor.TYPE_SINT32: integers(32, signed=True),
    FieldDescriptor.TYPE_INT64: integers(64, signed=True),
    FieldDescriptor.TYPE_SINT64: integers(64, signed=True),
    FieldDescriptor.TYPE_UINT32: integers(32, signed=False),
    FieldDescriptor.TYPE_FIXED32: integers(32, signed=False),
    FieldDescriptor.TYPE_UINT64: integers(64, signed=False),
    FieldDescriptor.TYPE_FIXED64: integers(64, signed=False),
    FieldDescriptor.TYPE_ENUM: [-1, 0, 1, 99, 2**31 - 1],
    FieldDescriptor.TYPE_BOOL: [False, True],
    FieldDescriptor.TYPE_FLOAT: [-1.0, 0.0, float("inf"), float("nan")],
}


def plausible(of: Descriptor, depth: int = 0) -> Message:
    """A message whose fields have values that a client might send, of a oneof the first alternative."""
    made = GetMessageClass(of)()
    for field in of.fields:
        other_of_its_oneof = field.containing_oneof is not None and field.containing_oneof.fields[0] is not field
        if not other_of_its_oneof:
            _fill(made, field, depth)
    return made


def requests(of: Descriptor, length: int) -> Iterator[tuple[str, Message]]:
    """``(what is odd about it, the message)``: a plausible one, an empty one, and for each field each odd value.

    ``length``: of the longest text in characters, and of the longest list.
    """
    yield "plausible", plausible(of)
    yield "empty", GetMessageClass(of)()
    yield from _odd(of, length, "", 0)


def _odd(of: Descriptor, length: int, path: str, depth: int) -> Iterator[tuple[str, Message]]:
    for field in of.fields:
        place = f"{path}{field.name}"
        for told, values in _odd_values(field, length, depth):
            made = plausible(of, depth)
            made.ClearField(field.name)
            _set(made, field, values)
            yield f"{place}={told}", made
        if field.message_type is not None and depth < DEPTH_MAX and not field.message_type.GetOptions().map_entry:
            for told, inner in _odd(field.message_type, length, f"{place}.", depth + 1):
                made = plausible(of, depth)
                made.ClearField(field.name)
                _set(made, field, [inner])
                yield told, made


def _odd_values(field: FieldDescriptor, length: int, depth: int) -> Iterator[tuple[str, list[Any]]]:
    """Odd contents of a field, as lists: of one value where it is not repeated."""
    if field.message_type is None:
        for value in _scalars(field, length):
            yield _shown(value), [value]
    if field.is_repeated:
        yield "none", []
        yield f"{length} different", list(_many(field, length, depth))
        if field.message_type is None or not field.message_type.GetOptions().map_entry:
            yield f"{length} alike", list(_many(field, 1, depth)) * length


def _scalars(field: FieldDescriptor, length: int) -> Iterable[Any]:
    if field.type == FieldDescriptor.TYPE_STRING:
        return texts(length)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return [b"", bytes(length), b"\xff" * 100]
    return _NUMBERS[field.type]


def _many(field: FieldDescriptor, count: int, depth: int) -> Iterator[Any]:
    """``count`` elements of a repeated field, no two alike as far as its type goes."""
    inner = field.message_type
    for number in range(count):
        if inner is None:
            yield f"prey-{number}" if field.type == FieldDescriptor.TYPE_STRING else number % (1 << 31)
        elif inner.GetOptions().map_entry:
            yield _entry(inner, number)
        else:
            made = plausible(inner, depth + 1)
            for each in inner.fields:
                if each.type == FieldDescriptor.TYPE_STRING and not each.is_repeated:
                    setattr(made, each.name, f"prey-{number}")
                    break
            yield made


def _entry(inner: Descriptor, number: int) -> tuple[Any, Any]:
    value = inner.fields_by_name["value"]
    if value.message_type is not None:
        return f"prey-{number}", plausible(value.message_type, DEPTH_MAX)
    return f"prey-{number}", "*" if value.type == FieldDescriptor.TYPE_STRING else number


def _fill(made: Message, field: FieldDescriptor, depth: int) -> None:
    if field.message_type is not None:
        if depth < DEPTH_MAX:
            is_map = field.message_type.GetOptions().map_entry
            _set(made, field, [_entry(field.message_type, 0) if is_map else plausible(field.message_type, depth + 1)])
    elif isinstance(PLAUSIBLE.get(field.name), _python_type(field)):
        _set(made, field, [PLAUSIBLE[field.name]])
    elif field.is_repeated:
        _set(made, field, list(_many(field, 1, depth)))


def _python_type(field: FieldDescriptor) -> type:
    """Of values of the field that :data:`PLAUSIBLE` has: another protocol's field of that name may be of another."""
    return str if field.type == FieldDescriptor.TYPE_STRING else int


def _set(made: Message, field: FieldDescriptor, values: list[Any]) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"].message_type
        for name, value in values:
            if inner is not None:
                getattr(made, field.name)[name].CopyFrom(value)
            else:
                getattr(made, field.name)[name] = value
    elif field.is_repeated:
        getattr(made, field.name).extend(values)
    elif field.message_type is not None:
        getattr(made, field.name).CopyFrom(values[0])
    else:
        setattr(made, field.name, values[0])


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) < 30 else f"{shown[:12]}…({len(shown)})"


def crowded(kind: Descriptor, size: int, depth: int = 2) -> Iterator[bytes]:
    """For each list of messages in ``kind``, down to ``depth``: one of so many empty ones that they fill ``size``."""
    for field in kind.fields:
        if field.message_type is None:
            continue
        if field.is_repeated:
            yield _field(field.number, b"") * (size // 2)
        if depth > 1:
            for content in crowded(field.message_type, size - 10, depth - 1):
                yield _field(field.number, content)


def _field(number: int, content: bytes) -> bytes:
    return b"".join((_varint(number << 3 | 2), _varint(len(content)), content))


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes((*found, number))
