"""The options of ``format("penstock_store")``, checked before anything is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from penstock.proto.errors import ConfigError

from ..schema import nearest

SOURCE = "penstock_store"
VIEWS = ("messages", "queues", "index", "segments", "parts", "queue_parts")
# What stands behind a name here stands in the reference of options.
_NAMES = (
    "storePath",  # data directories, with commas: patterns and URIs too; so is what load() is given
    "path",  # what load(…) is given
    "paths",  # what load([…]) is given
    "brokerName",  # names of the brokers of these directories, in their order
    "view",  # what a row is
    "topics",  # only these, with commas
    "queueIds",  # only these queue numbers
    "startTimestamp",  # stored at that time or later: ISO 8601, or ms
    "endTimestamp",  # stored before it
    "startPhysicalOffset",  # from this position of the log on
    "endPhysicalOffset",  # before it
    "verify",  # checksums; none; full: also against neighbours and queue entries
    "onCorrupt",  # at damage: fail, skip, or emit a row that says why
    "splitBytes",  # of the log in one task; k, m, g behind the number
    "upTo",  # of a store in use: what its last checkpoint calls confirmed, or all that is there
    "batchRows",  # rows handed to Spark at once
    "properties",  # map, raw (one text), or none
    "decompress",  # false: bodies as they are stored
    "useConsumeQueue",  # false: scan, also where queues could tell positions
    "partOffsets",  # of the views parts and queue_parts: offsets that one row sums up
)
SPLIT_BYTES = 128 << 20
"""A quarter of a second of work, beside which the start of a task is small."""
BATCH_ROWS = 10_000
PART_OFFSETS = 300_000
"""As many entries as a file of a consume queue has by default."""
_RANGES = ("startTimestamp", "endTimestamp", "startPhysicalOffset", "endPhysicalOffset")
_READ_BY = {
    **dict.fromkeys(("topics", "queueIds"), ("messages", "parts", "queues", "queue_parts")),
    **dict.fromkeys((*_RANGES, "onCorrupt"), ("messages", "parts")),
    "verify": ("messages", "parts", "segments"),
}
"""The views that options are for which change what is read; those for speed are passed over elsewhere."""
_TIME = "a time as 2030-01-31, 2030-01-31T12:30:00+01:00, or milliseconds since 1970, but not of eight digits"
_SIZES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """What to read, of which stores. Times in ms, ranges half-open, None where nothing limits."""

    roots: tuple[str, ...]
    broker_names: tuple[str, ...] = ()  # none: from the folders
    view: str = "messages"
    topics: tuple[str, ...] = ()  # none: all
    queue_ids: tuple[int, ...] = ()
    start_timestamp_ms: int | None = None
    end_timestamp_ms: int | None = None
    start_physical_offset: int | None = None
    end_physical_offset: int | None = None
    verify: str = "crc"  # an unnoticed flipped bit costs more than the checksum
    on_corrupt: str = "fail"
    split_bytes: int = SPLIT_BYTES
    up_to: str = "confirm"
    batch_rows: int = BATCH_ROWS
    properties: str = "map"
    decompress: bool = True
    use_consume_queue: bool = True
    part_offsets: int = PART_OFFSETS


def parse_options(given: Mapping[str, str]) -> StoreOptions:
    """The options, whose names Spark may have lower-cased.

    Raises:
        ConfigError: an unknown option, or a value that is not one of the option's.
    """
    by_case = {name.lower(): name for name in _NAMES}
    values: dict[str, str] = {}
    for key, value in given.items():
        name = by_case.get(key.lower())
        if name is None:
            raise ConfigError(f"{SOURCE}: no option {key!r}{nearest(key, _NAMES)}; there are {', '.join(_NAMES)}")
        values[name] = value
    options = StoreOptions(
        roots=_roots(values),
        broker_names=_list(values, "brokerName"),
        view=_one_of(values, "view", VIEWS),
        topics=_list(values, "topics"),
        queue_ids=tuple(
            _parsed(values, "queueIds", name, _whole, "a number from 0") for name in _list(values, "queueIds")
        ),
        start_timestamp_ms=_optional(values, "startTimestamp", parse_time_ms, _TIME),
        end_timestamp_ms=_optional(values, "endTimestamp", parse_time_ms, _TIME),
        start_physical_offset=_optional(values, "startPhysicalOffset", _whole, "a log position from 0"),
        end_physical_offset=_optional(values, "endPhysicalOffset", _whole, "a log position from 0"),
        verify=_one_of(values, "verify", ("crc", "none", "full")),
        on_corrupt=_one_of(values, "onCorrupt", ("fail", "skip", "emit")),
        split_bytes=_given(values, "splitBytes", parse_bytes, "a size", SPLIT_BYTES),
        up_to=_one_of(values, "upTo", ("confirm", "end")),
        batch_rows=_given(values, "batchRows", int, "a number", BATCH_ROWS),
        properties=_one_of(values, "properties", ("map", "raw", "none")),
        decompress=_one_of(values, "decompress", ("true", "false")) == "true",
        use_consume_queue=_one_of(values, "useConsumeQueue", ("true", "false")) == "true",
        part_offsets=_given(values, "partOffsets", int, "a number", PART_OFFSETS),
    )
    limits = (("split_bytes", 4096, 1 << 40), ("batch_rows", 1, 1_000_000), ("part_offsets", 1, 1 << 40))
    for name, low, high in limits:
        value = getattr(options, name)
        if not low <= value <= high:
            raise ConfigError(f"{SOURCE}: {_camel(name)} is {value}: {low} to {high} are allowed")
    for name, views in _READ_BY.items():
        if name in values and options.view not in views:
            raise ConfigError(f"{SOURCE}: {name} does nothing in the view {options.view}: it is for {', '.join(views)}")
    if options.view == "segments" and options.verify == "full":
        raise ConfigError(f"{SOURCE}: verify is 'full': the view segments looks at no queues, crc and none are allowed")
    for start, end in (("start_timestamp_ms", "end_timestamp_ms"), ("start_physical_offset", "end_physical_offset")):
        first, last = getattr(options, start), getattr(options, end)
        if first is not None and last is not None and first >= last:
            raise ConfigError(f"{SOURCE}: the range {first} to {last} is empty: the end is not included")
    return options


def parse_time_ms(text: str) -> int:
    """Milliseconds since 1970 of a number of them or of an ISO 8601 time, UTC where it names no zone.

    Raises:
        ValueError: neither, or eight digits, which may be both.
    """
    if text.lstrip("-").isdecimal():
        if len(text) == 8 and text.isdecimal():
            raise ValueError(
                f"{text} may be a date or milliseconds since 1970: write {text[:4]}-{text[4:6]}-{text[6:]}"
            )
        return int(text)
    time = datetime.fromisoformat(text)
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_bytes(text: str) -> int:
    """A number of bytes, also as ``64k``, ``16m``, ``1g``.

    Raises:
        ValueError: neither.
    """
    plain = text.strip().lower().removesuffix("b").removesuffix("i")
    factor = _SIZES.get(plain[-1:], 1)
    return int(plain[:-1] if factor > 1 else plain) * factor


def _roots(values: Mapping[str, str]) -> tuple[str, ...]:
    given = [name for name in ("storePath", "path", "paths") if name in values]
    if not given:
        raise ConfigError(f"{SOURCE}: storePath is missing: name the store's root, which holds commitlog/")
    if len(given) > 1:
        raise ConfigError(f"{SOURCE}: {given[0]} and {given[1]} are both given: name the stores once")
    if given == ["paths"]:
        return _paths(values["paths"])
    return _list(values, given[0])


def _paths(text: str) -> tuple[str, ...]:
    """What Spark makes of ``load([…])``."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(path, str) and path for path in found):
        raise ConfigError(f"{SOURCE}: paths is {text!r}: it is Spark's own, for load([…]): use storePath")
    return tuple(found)


def _list(values: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The names in an option; none where it is not given."""
    found = tuple(part.strip() for part in values.get(name, "").split(",") if part.strip())
    if name in values and not found:
        remedy = (
            "name the store's root, which holds commitlog/" if name.endswith("ath") else "name one, or leave it out"
        )
        raise ConfigError(f"{SOURCE}: {name} is empty: {remedy}")
    return found


def _whole(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number


def _one_of(values: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """The value of an option, of which the first allowed one is the default."""
    value = values.get(name, allowed[0]).lower()
    if value not in allowed:
        raise ConfigError(f"{SOURCE}: {name} is {values[name]!r}: {', '.join(allowed)} are allowed")
    return value


def _optional(values: Mapping[str, str], name: str, parse: Callable[[str], int], what: str) -> int | None:
    return None if name not in values else _parsed(values, name, values[name], parse, what)


def _given(values: Mapping[str, str], name: str, parse: Callable[[str], int], what: str, default: int) -> int:
    return default if name not in values else int(_parsed(values, name, values[name], parse, what))


def _parsed(values: Mapping[str, str], name: str, text: str, parse: Callable[[str], Any], what: str) -> Any:
    try:
        return parse(text)
    except ValueError:
        raise ConfigError(f"{SOURCE}: {name} is {values[name]!r}: expected {what}") from None


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
