"""Messages of Protobuf, by the runtime of Google's package and the descriptors that ``protoc`` writes.

| Protobuf | Spark |
|---|---|
| bool, float, double, string, bytes | boolean, float, double, string, binary |
| int32, sint32, sfixed32; int64, sint64, sfixed64 | int; bigint |
| uint32, fixed32; uint64, fixed64 | bigint; decimal(20,0) |
| enum | string; a number that the enum does not name, as its digits |
| message, repeated, map | struct, array, map |
| google.protobuf.Timestamp | timestamp, to the microsecond |

A field that tells whether it is there (``optional``, one of a ``oneof``, a message, all of proto2) is null where it is
not; others have their default. Messages that hold themselves are refused: columns have no such type.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pyspark.sql import types as t

from penstock.proto.errors import ConfigError

_TIMESTAMP = "google.protobuf.Timestamp"
_SIMPLE: dict[int, t.DataType] = {
    FieldDescriptor.CPPTYPE_BOOL: t.BooleanType(),
    FieldDescriptor.CPPTYPE_INT32: t.IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: t.LongType(),
    FieldDescriptor.CPPTYPE_UINT32: t.LongType(),
    FieldDescriptor.CPPTYPE_UINT64: t.DecimalType(20, 0),
    FieldDescriptor.CPPTYPE_FLOAT: t.FloatType(),
    FieldDescriptor.CPPTYPE_DOUBLE: t.DoubleType(),
    FieldDescriptor.CPPTYPE_ENUM: t.StringType(),
    FieldDescriptor.CPPTYPE_STRING: t.StringType(),
}


class Protobuf:
    """Bodies that are one kind of message."""

    def __init__(self, definition: bytes, message: str) -> None:
        """Of a serialised ``FileDescriptorSet`` and a message's full name, as ``shop.Order``.

        Raises ConfigError: the bytes are no such set, lack an import, have no such message, or it holds itself.
        """
        pool = descriptor_pool.DescriptorPool()
        try:
            for file in descriptor_pb2.FileDescriptorSet.FromString(definition).file:
                pool.Add(file)
            descriptor = pool.FindMessageTypeByName(message)
        except KeyError as error:
            raise ConfigError(
                f"schema of protobuf: it has no message {message!r}: name it as package.Message"
            ) from error
        except Exception as error:  # the library raises TypeError and its own errors for sets that are none
            raise ConfigError(
                f"schema of protobuf: {error}: make it with protoc --include_imports --descriptor_set_out=FILE"
            ) from error
        self._of = message_factory.GetMessageClass(descriptor)
        self._descriptor = descriptor
        self.type = _struct(descriptor, ())

    def read(self, body: bytes) -> dict[str, Any]:
        """The message's fields; what newer schemas have added is passed over."""
        return _read(self._of.FromString(body))

    def write(self, row: dict[str, Any]) -> bytes:
        """The message; a null leaves its field out."""
        made = self._of()
        _write(made, row)
        return made.SerializeToString(deterministic=True)


def _struct(descriptor: Descriptor, above: tuple[str, ...]) -> t.StructType:
    if descriptor.full_name in above:
        raise ConfigError(f"schema of protobuf: {descriptor.full_name} holds itself: columns cannot")
    if not descriptor.fields:
        raise ConfigError(f"schema of protobuf: {descriptor.full_name} has no fields: columns need one")
    inside = (*above, descriptor.full_name)
    made = t.StructType()
    for field in descriptor.fields:
        made.add(field.name, _type(field, inside), nullable=not field.is_repeated and field.has_presence)
    return made


def _type(field: FieldDescriptor, above: tuple[str, ...]) -> t.DataType:
    if _is_map(field):
        key, value = (_of_entry(field, name) for name in ("key", "value"))
        return t.MapType(_one(key, above), _one(value, above), False)
    one = _one(field, above)
    return t.ArrayType(one, False) if field.is_repeated else one


def _one(field: FieldDescriptor, above: tuple[str, ...]) -> t.DataType:
    if field.message_type is not None:
        return t.TimestampType() if field.message_type.full_name == _TIMESTAMP else _struct(field.message_type, above)
    return t.BinaryType() if field.type == FieldDescriptor.TYPE_BYTES else _SIMPLE[field.cpp_type]


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated and field.message_type is not None and field.message_type.GetOptions().map_entry)


def _of_entry(field: FieldDescriptor, name: str) -> FieldDescriptor:
    """``key`` or ``value`` of a map's entries."""
    assert field.message_type is not None
    return field.message_type.fields_by_name[name]


def _read(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            of = _of_entry(field, "value")
            found[field.name] = {key: _from(of, value[key]) for key in value}
        elif field.is_repeated:
            found[field.name] = [_from(field, each) for each in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _from(field, value)
    return found


def _from(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return value.ToMicroseconds() if field.message_type.full_name == _TIMESTAMP else _read(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return named.name if named is not None else str(value)
    return value


def _write(message: Any, row: dict[str, Any]) -> None:
    for field in message.DESCRIPTOR.fields:
        value = row[field.name]
        if value is None:
            continue
        target = getattr(message, field.name)
        if _is_map(field):
            of_key, of = (_of_entry(field, name) for name in ("key", "value"))
            for name, each in value.items():
                key = _to(of_key, name)
                if of.message_type is None:
                    target[key] = _to(of, each)
                else:
                    _fill(of, target[key], each)
        elif field.is_repeated:
            for each in value:
                if field.message_type is None:
                    target.append(_to(field, each))
                else:
                    _fill(field, target.add(), each)
        elif field.message_type is not None:
            target.SetInParent()
            _fill(field, target, value)
        else:
            setattr(message, field.name, _to(field, value))


def _fill(field: FieldDescriptor, message: Any, value: Any) -> None:
    if isinstance(value, datetime) and message.DESCRIPTOR.full_name == _TIMESTAMP:
        message.FromDatetime(value)
    else:
        _write(message, value)


def _to(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None:
        named = field.enum_type.values_by_name.get(value)
        return named.number if named is not None else int(value)
    return int(value) if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else value
