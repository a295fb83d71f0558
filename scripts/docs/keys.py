"""The pages of configuration files: every key that a configuration's dataclasses name."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.broker.config import BrokerConfig
from penstock.broker.unsupported_keys import RELIED_ON as BROKER_RELIED
from penstock.broker.unsupported_keys import UNSUPPORTED_KEYS as BROKER_UNUSED
from penstock.gateway.config import GatewayConfig
from penstock.nameserver.config import RELIED_ON as NAMESERVER_RELIED
from penstock.nameserver.config import UNSUPPORTED_KEYS as NAMESERVER_UNUSED
from penstock.nameserver.config import NameserverConfig
from penstock.runtime.conf import Relied

from .markdown import NOTE, code, plain, size, table

BY_MACHINE = {"brokerName": "the host's name", "inSyncReplicas": "1, or 2 with SYNC_MASTER"}
"""Defaults that a start works out."""


def broker_page() -> str:
    return _page("broker.conf", BrokerConfig, BROKER_UNUSED, BROKER_RELIED)


def nameserver_page() -> str:
    return _page("namesrv.conf", NameserverConfig, NAMESERVER_UNUSED, NAMESERVER_RELIED)


def gateway_page() -> str:
    return _page("gateway.conf", GatewayConfig, (), {})


def _page(name: str, config: type, unused: Collection[str], relied_on: Mapping[str, Relied]) -> str:
    parts = [
        f"{NOTE}\n# {name}\n\nThe last column says what RocketMQ 5.3 does otherwise; empty: the same. "
        "[Configuration](../operate/configuration.md) says how keys work together.\n"
    ]
    for title, fields in _sections(config):
        rows = [
            (
                code(field.metadata["key"]),
                _default(field),
                _range(field) or _kind(kind),
                field.metadata["doc"],
                field.metadata["differs"],
            )
            for field, kind in fields
        ]
        parts.append(f"{title}\n\n" + table(("Key", "Default", "Values", "Meaning", "RocketMQ"), rows))
    if not unused:
        return "\n".join(parts)
    relied = [(code(name), code(each.same), each.why) for name, each in sorted(relied_on.items()) if each.why]
    parts.append(
        "## Keys that end the start\n\nRocketMQ's users rely on what these do, and they do nothing here. A start with "
        "another value than the harmless one is refused, unless `--ignore-unsupported KEY[,KEY]` or the key "
        "`ignoreUnsupported` names it.\n\n" + table(("Key", "Harmless", "Why, and what to do"), relied)
    )
    parts.append(
        "## Keys without effect\n\nRocketMQ has them and Penstock has no use for them: each is a warning by name.\n\n"
        + ", ".join(code(each) for each in sorted(unused, key=str.lower))
        + "\n"
    )
    return "\n".join(parts)


def _sections(config: type) -> Iterator[tuple[str, list[tuple[dataclasses.Field[Any], Any]]]]:
    """Each dataclass that reads keys: a heading and what it is for, its keyed fields and their types."""
    hints = typing.get_type_hints(config)
    own = [(field, hints[field.name]) for field in dataclasses.fields(config) if "key" in field.metadata]
    if own:
        name = re.sub("(Config|Settings)$", "", config.__name__)
        yield f"## {name}\n\n{plain(inspect.cleandoc(config.__doc__ or '').partition(chr(10))[0])}", own
    for field in dataclasses.fields(config):
        if "key" not in field.metadata and dataclasses.is_dataclass(hints[field.name]):
            yield from _sections(hints[field.name])


def _default(field: dataclasses.Field[Any]) -> str:
    name = field.metadata["key"]
    if name in BY_MACHINE:
        return BY_MACHINE[name]
    make = field.default_factory
    value = make() if callable(make) else field.default
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, int):
        return size(value)
    if isinstance(value, enum.Enum):
        return code(value.name)
    if isinstance(value, Path):
        return code(str(value).replace(str(Path.home()), "~"))
    return code(";".join(value) if isinstance(value, tuple) else str(value))


def _range(field: dataclasses.Field[Any]) -> str:
    if field.metadata["within"] is None:
        return ""
    low, high = (str(each) if each and each % (1 << 20) else size(each or 0) for each in field.metadata["within"])
    allowed = f"from {low}" if field.metadata["within"][1] is None else f"{low} to {high}"
    return f"{allowed} {field.metadata['unit']}".strip()


def _kind(kind: Any) -> str:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kind = next(choice for choice in typing.get_args(kind) if choice is not type(None))
    if typing.get_origin(kind) is tuple:
        return "texts, with ;"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return ", ".join(kind.__members__)
    return {bool: "true, false", int: "whole number", str: "text", Path: "path"}.get(kind, str(kind))
