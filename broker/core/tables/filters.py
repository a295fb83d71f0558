"""What a consumer wants of a topic: by tag, or by a condition about properties."""

from __future__ import annotations

import functools

from penstock.formats.hashing import string_hash
from penstock.formats.sql92 import EXPRESSION_LENGTH_MAX
from penstock.proto.errors import InvalidArgument
from penstock.proto.wire.broker_pb2 import Filter

from ...store.filter.conditions import Condition


def wanted_by(wanted: Filter, takes_sql: bool) -> tuple[frozenset[int] | None, Condition | None]:
    """(tag hashes, None), (None, condition), or (None, None) if every message is wanted.

    Raises InvalidArgument: the filter makes no sense, or is an SQL92 one and ``takes_sql`` is false.
    """
    if len(wanted.expression) > EXPRESSION_LENGTH_MAX:
        raise InvalidArgument(f"filter of {len(wanted.expression)} characters: at most {EXPRESSION_LENGTH_MAX}")
    if wanted.kind != Filter.SQL92:
        return _tags(wanted.kind, wanted.expression), None
    if not takes_sql:
        raise InvalidArgument("SQL92 filters are off at this broker: enablePropertyFilter = false in its broker.conf")
    return None, _condition(wanted.expression)


@functools.lru_cache(maxsize=1024)
def _tags(kind: int, expression: str) -> frozenset[int] | None:
    """Hashes of the wanted tags, None for all messages. Equal hashes of other tags are the client's to sort out."""
    if kind == Filter.ALL:
        return None
    if kind != Filter.TAG:
        raise InvalidArgument(f"filter kind {kind}: ALL 0, TAG 1 or SQL92 2 are allowed")
    tags = [tag.strip() for tag in expression.split("||")]
    if expression.strip() in ("", "*"):
        return None
    if not all(tags):
        raise InvalidArgument(f"tag expression {expression[:100]!r}: an empty tag between ||")
    return frozenset(string_hash(tag) for tag in tags)


@functools.lru_cache(maxsize=1024)
def _condition(expression: str) -> Condition:
    return Condition(expression)
