"""The page of Spark's options and columns."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping

from penstock.pipeline.columns import schema
from penstock.pipeline.jobs.lag import columns as lag_columns
from penstock.pipeline.options import REQUIRED, Option
from penstock.pipeline.stores import derived
from penstock.pipeline.stores import options as store_options
from penstock.pipeline.stores.scan import segments
from penstock.pipeline.topics import options as topic_options
from penstock.pipeline.topics.write import encoding

from .markdown import NOTE, code, plain, size, table

VIEWS = {
    "queues": derived.QUEUE_COLUMNS,
    "index": derived.INDEX_COLUMNS,
    "segments": segments.SEGMENT_COLUMNS,
    "queue_parts": derived.QUEUE_PART_COLUMNS,
    "parts": derived.PART_COLUMNS,
}
MEANINGS = {
    "topic": "",
    "brokerName": "the store's broker",
    "queueId": "",
    "queueOffset": "place in the queue",
    "physicalOffset": "position in the log; in `parts` of the first message in the stretch",
    "size": "bytes of the record",
    "tagsCode": "hash of the tag",
    "file": "the index file's name",
    "entry": "number of the entry, from 1",
    "keyHash": "hash of topic and key",
    "storeTimestamp": "to the second",
    "previousEntry": "the entry before in its chain, 0: none",
    "path": "the log file",
    "startPhysicalOffset": "where it begins",
    "endPhysicalOffset": "where what can be read ends",
    "fileBytes": "size of the file",
    "records": "records that can be read",
    "recordBytes": "bytes of these",
    "damages": "damaged stretches",
    "damagedBytes": "bytes of these",
    "firstStoreTimestamp": "of its first record",
    "lastStoreTimestamp": "of its last record",
    "state": "what its end is",
    "part": "the first queue offset that belongs to the part",
    "messages": "",
    "firstOffset": "of these messages",
    "lastOffset": "of these messages",
    "bytes": "of their records",
    "digest": "of offsets, positions, sizes and tags, to compare parts by",
    "offsets": "a digest of the queue offsets alone",
    "hasEntries": "true if consume queues name these messages",
    "entries": "packed queue entries",
    "innerBatches": "how many are inner batches",
    "batches": "packed units of these",
    "isLight": "true of a light queue (`%LMQ%`)",
}
"""Of the views' columns; the tables of other columns stand in the docstrings of their modules."""


def page() -> str:
    read = [option for option in topic_options.SOURCE.all if option not in topic_options.SECURITY]
    write = [option for option in topic_options.SINK.all if option not in topic_options.SECURITY]
    return "\n".join(
        [
            f"{NOTE}\n# Spark: options and columns\n\n[Topics](../guide/spark-topics.md), "
            "[stores](../guide/spark-stores.md) and [jobs](../guide/spark-jobs.md) are told in guides. Options "
            "are compared without case. Sizes may end in `k`, `m` or `g`.\n",
            "## Options\n",
            '### Reading topics\n\n`spark.read.format("penstock")` and `spark.readStream`.\n',
            _options(read),
            '### Writing topics\n\n`df.write.format("penstock")` and `writeStream`.\n',
            _options(write),
            "### TLS and users\n\nFor both; files on the driver and on every executor.\n",
            _options(topic_options.SECURITY),
            '### Reading stores\n\n`spark.read.format("penstock_store")`.\n',
            _options(store_options.OPTIONS.all),
            "## Columns\n",
            "### Messages\n\nOf topics, and of stores in the view `messages`.\n",
            _docstring_table(schema, (*schema.STORE_COLUMNS, *schema.CORRUPT_COLUMN)),
            "Stores have two more where a schema asks for them: `tagsCode` (bigint), the hash of the tag, and "
            "`keyHashes` (array of int), those of the message's id and keys.\n",
            "### Written to a topic\n",
            _docstring_table(encoding, encoding.SINK_COLUMNS),
            *(f"### View `{view}`\n\n{_columns(columns)}" for view, columns in VIEWS.items()),
            "### Lag\n\nOf the rows that the job `lag` writes.\n",
            _docstring_table(lag_columns, lag_columns.LAG_COLUMNS),
        ]
    )


def _options(options: Iterable[Option]) -> str:
    rows = [(code(each.name), _default(each), _values(each), each.meaning) for each in options]
    return table(("Option", "Default", "Values", "Meaning"), rows)


def _default(option: Option) -> str:
    if option.is_required:
        return "must be given"
    if option.default in (None, "", (), REQUIRED):
        return ""
    if isinstance(option.default, bool):
        return code(str(option.default).lower())
    return size(option.default) if "Bytes" in option.name else code(str(option.default))


def _values(option: Option) -> str:
    return ", ".join(option.kind.words) or option.kind.expected


def _columns(columns: Mapping[str, str]) -> str:
    missing = [name for name in columns if name not in MEANINGS]
    if missing:
        raise ValueError(f"columns {', '.join(missing)}: MEANINGS does not say what they are")
    return table(("Column", "Type", "Meaning"), [(code(name), of, MEANINGS[name]) for name, of in columns.items()])


def _docstring_table(module: types.ModuleType, columns: Iterable[str]) -> str:
    """The table in the module's docstring, which must have all of ``columns``."""
    lines = [line for line in (module.__doc__ or "").splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    told = {name.strip() for row in rows for name in row[0].split(",")}
    if missing := [name for name in columns if name not in told]:
        raise ValueError(f"{module.__name__}: the table of its docstring lacks {', '.join(missing)}")
    heads = [cell.strip() for cell in lines[0].strip("|").split("|")]
    return table(
        heads, [(", ".join(code(name.strip()) for name in row[0].split(",")), row[1], plain(row[2])) for row in rows]
    )
