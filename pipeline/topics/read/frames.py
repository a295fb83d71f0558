"""A topic as a DataFrame of what is wanted of it: arguments in place of conditions, which Spark cannot hand on.

PySpark 4.3 hands a source neither the columns that a query selects nor, in a way that can be used, its conditions: what
one query pushes stays in force for the next one on the same DataFrame. Whoever says before what is wanted has the
brokers and readers leave out the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from penstock.proto.errors import ConfigError
from penstock.runtime.nearest import hint

from ...columns.schema import MESSAGE_COLUMNS, with_properties

Time = datetime | str | int


def topic(
    spark: Any,
    name_server: str,
    topics: str | Sequence[str],
    *,
    columns: str | Iterable[str] | None = None,
    since: Time | None = None,
    until: Time | None = None,
    queues: Mapping[str, Iterable[int]] | None = None,
    tags: str | Iterable[str] | None = None,
    condition: str | None = None,
    stream: bool = False,
    **options: Any,
) -> Any:
    """A DataFrame of the messages of ``topics``, of which only what is named here is read.

    ``columns``: of a message, all by default. ``since`` and ``until``: when they were stored, as a ``datetime`` (of
    UTC, if it names no zone), an ISO text or milliseconds since 1970; ``until`` is not included, and not for streams.
    ``queues``: queue ids by broker name. ``tags``: one of these. ``condition``: SQL92 over properties, which brokers
    evaluate. ``options``: others of ``format("penstock")``.
    Raises ConfigError: a column that is not known, text that names no time or broker, or an empty list.
    """
    names = [topics] if isinstance(topics, str) else list(topics)
    given = {"nameServer": name_server, **{name: _text(value) for name, value in options.items()}}
    if queues is None:
        given["subscribe"] = ",".join(names)
    else:
        chosen = {broker: [int(queue_id) for queue_id in ids] for broker, ids in queues.items()}
        given["assign"] = json.dumps(dict.fromkeys(names, chosen))
    for option, time in (("startingTimestamp", since), ("endingTimestamp", until)):
        if time is not None:
            given[option] = time.isoformat() if isinstance(time, datetime) else str(time)
    if tags is not None:
        wanted = [tags] if isinstance(tags, str) else list(tags)
        if not any(wanted):
            raise ConfigError("tags: none is named, which would read all: name one, or leave tags out")
        given["subExpression"] = " || ".join(wanted)
    if condition is not None:
        given["filterSql"] = condition
    reader = (spark.readStream if stream else spark.read).format("penstock").options(**given)
    if columns is not None:
        reader = reader.schema(_schema(columns, str(given.get("properties", "map")).lower()))
    return reader.load()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _schema(wanted: str | Iterable[str], properties: str) -> str:
    """The columns in Spark's words."""
    known = with_properties(MESSAGE_COLUMNS, properties)
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    for name in names:
        if name not in known:
            raise ConfigError(f"columns: no column {name!r}{hint(name, known)}; there are {', '.join(known)}")
    if not names:
        raise ConfigError("columns: none is named: name one, as queueId, for a count")
    return ", ".join(f"{name} {known[name]}" for name in names)
