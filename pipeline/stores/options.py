"""The options of ``format("penstock_store")``, checked before anything is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.proto.errors import ConfigError

from ..options import (
    TABLE_PROPERTIES,
    TEXT,
    TIME,
    Given,
    Option,
    Options,
    camel_case,
    choice,
    in_sql,
    setting,
    size,
    whole,
)

SOURCE = "penstock_store"
VIEWS = ("messages", "queues", "index", "segments", "parts", "queue_parts")
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
_ROOT = "the store's root, which holds commitlog/; several with commas, patterns and URIs too"
_POSITION = whole(0, expected="a log position from 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """What to read, of which stores. Times in ms, ranges half-open, None where nothing limits."""

    roots: tuple[str, ...]
    broker_names: tuple[str, ...] = setting(
        "names of these directories' brokers, in their order; else those of the folders", (), name="brokerName"
    )
    view: str = setting("what a row is", "messages", kind=choice(*VIEWS))
    topics: tuple[str, ...] = setting("only these topics", ())
    queue_ids: tuple[int, ...] = setting("only these queue numbers", (), kind=whole(0, expected="a number from 0"))
    start_timestamp_ms: int | None = setting("stored at that time or later", None, name="startTimestamp", kind=TIME)
    end_timestamp_ms: int | None = setting("stored before that time", None, name="endTimestamp", kind=TIME)
    start_physical_offset: int | None = setting("from this position of the log on", None, kind=_POSITION)
    end_physical_offset: int | None = setting("before this position of the log", None, kind=_POSITION)
    # An unnoticed flipped bit costs more than the checksum.
    verify: str = setting(
        "checksums; none of them; or full, also against neighbours and queue entries",
        "crc",
        kind=choice("crc", "none", "full"),
    )
    on_corrupt: str = setting(
        "at damage: fail, skip it, or emit a row that says why", "fail", kind=choice("fail", "skip", "emit")
    )
    split_bytes: int = setting("of the log in one task", SPLIT_BYTES, kind=size(4096, 1 << 40))
    up_to: str = setting(
        "of a store in use: what its last checkpoint calls confirmed, or all that is there",
        "confirm",
        kind=choice("confirm", "end"),
    )
    batch_rows: int = setting("rows handed to Spark at once", BATCH_ROWS, kind=whole(1, 1_000_000))
    properties: str = setting("a map, raw as one text, or none", "map", kind=choice("map", "raw", "none"))
    decompress: bool = setting("false: bodies as they are stored", True)
    use_consume_queue: bool = setting("false: scan the log, also where queues could tell positions", True)
    part_offsets: int = setting(
        "of the views parts and queue_parts: offsets that one row sums up", PART_OFFSETS, kind=whole(1, 1 << 40)
    )


OPTIONS: Final = Options(
    SOURCE,
    StoreOptions,
    (
        Option("storePath", _ROOT, TEXT, (), several=True),
        Option("path", f"what load(…) is given: {_ROOT}", TEXT, (), several=True),
        Option("paths", "what load([…]) is given, written by Spark", TEXT),
    ),
    TABLE_PROPERTIES,
    spelt=camel_case,
)


def parse_options(given: Mapping[str, str]) -> StoreOptions:
    """The options of a read.

    Raises:
        ConfigError: an unknown option, a value that is not one of the option's, or two options that exclude each other.
    """
    values = OPTIONS.read(given)
    options = StoreOptions(roots=_roots(values), **values.fields())
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


def _roots(values: Given) -> tuple[str, ...]:
    chosen = values.at_most_one("storePath", "path", "paths")
    if chosen is None:
        raise ConfigError(f"{SOURCE}: storePath is missing: name {_ROOT}. {in_sql(SOURCE, 'storePath …')}")
    roots: tuple[str, ...] = _paths(values["paths"]) if chosen == "paths" else values[chosen]
    return tuple(_as_local(root) for root in roots)


def _as_local(root: str) -> str:
    """``file:/path``, as Spark writes a table's LOCATION, as the path."""
    return root.removeprefix("file:") if root.startswith("file:/") and not root.startswith("file://") else root


def _paths(text: str) -> tuple[str, ...]:
    """What Spark makes of ``load([…])``."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(path, str) and path for path in found):
        raise ConfigError(f"{SOURCE}: paths is {text!r}: it is Spark's own, for load([…]): use storePath")
    return tuple(found)
