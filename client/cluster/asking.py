"""Requests made of what users hand in: a value that the wire has no room for is refused by name."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from penstock.proto.errors import InvalidArgument

from .. import arguments

M = TypeVar("M", bound=Message)

_ALLOWED: Final = {
    FieldDescriptor.CPPTYPE_INT32: "a whole number of 32 bits",
    FieldDescriptor.CPPTYPE_INT64: "a whole number of 64 bits",
    FieldDescriptor.CPPTYPE_STRING: "text",
}


def asked(kind: type[M], **fields: Any) -> M:
    """The wire's message with these fields; those that are None are left out.

    Raises:
        InvalidArgument: a value of another type than its field's, or out of its range.
    """
    fields = {name: value for name, value in fields.items() if value is not None}
    known = kind.DESCRIPTOR.fields_by_name
    for name, value in fields.items():
        if known[name].cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            arguments.flag(name, value, InvalidArgument)
    try:
        return kind(**fields)
    except (TypeError, ValueError, AttributeError):
        for name, value in fields.items():
            _try(kind, name, value)
        raise


def _try(kind: type[Message], name: str, value: Any) -> None:
    try:
        kind(**{name: value})
    except (TypeError, ValueError, AttributeError) as error:
        field = kind.DESCRIPTOR.fields_by_name[name]
        told = _ALLOWED.get(field.cpp_type)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            told = "a mapping of texts to texts"
        raise InvalidArgument(f"{name}={value!r:.80}: must be {told or 'of another type'}") from error
