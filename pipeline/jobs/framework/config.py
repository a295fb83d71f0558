"""Configurations of jobs: one frozen dataclass each, whose fields are also the options of the command line."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from penstock.proto.errors import ConfigError
from penstock.runtime.nearest import hint

T = TypeVar("T")
_REQUIRED: Any = dataclasses.MISSING


def setting(help_text: str, default: Any = _REQUIRED) -> Any:
    """A field of a configuration: what it means, and its default; required without one."""
    return dataclasses.field(default=default, metadata={"help": help_text})


def kind_of(config: type[Any], name: str) -> tuple[type[Any], bool]:
    """The type of a field's values, and whether it holds several."""
    annotation = typing.get_type_hints(config)[name]
    if typing.get_origin(annotation) is tuple:
        return typing.get_args(annotation)[0], True
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        (annotation,) = (arg for arg in typing.get_args(annotation) if arg is not type(None))
    return annotation, False


def make_config(kind: type[T], values: Mapping[str, Any], job: str) -> T:
    """The configuration with these values, whose names may be spelt ``like_this``, ``like-this`` or ``likeThis``.

    Raises:
        ConfigError: an unknown or missing name, a value of the wrong type, or nothing where something is to be named.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    for key, value in values.items():
        name = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", key).replace("-", "_").lower()
        if name not in fields:
            raise ConfigError(f"{job}: no option {key!r}{hint(name, fields)}; there are {', '.join(fields)}")
        given[name] = _converted(kind, name, value, job)
        is_required = fields[name].default is dataclasses.MISSING
        if given[name] in ((), "") and (is_required or (given[name] == () and isinstance(value, str))):
            remedy = "" if is_required else ", or leave it out"
            raise ConfigError(f"{job}: {name} is empty: name {fields[name].metadata['help']}{remedy}")
    for name, field in fields.items():
        if name not in given and field.default is dataclasses.MISSING:
            raise ConfigError(f"{job}: {name} is missing: {field.metadata['help']}")
    return kind(**given)


def _converted(kind: type[Any], name: str, value: Any, job: str) -> Any:
    of, several = kind_of(kind, name)
    if several:
        items = (item.strip() for item in value.split(",")) if isinstance(value, str) else value
        return tuple(_one(of, name, item, job) for item in items if item != "")
    return None if value is None else _one(of, name, value, job)


def _one(of: type[Any], name: str, value: Any, job: str) -> Any:
    try:
        if of is bool and isinstance(value, str):
            return {"true": True, "false": False}[value.lower()]
        return of(value)
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{job}: {name} is {value!r}: expected {of.__name__}") from None
