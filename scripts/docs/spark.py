"""The page of Spark's options and columns."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Iterable, Mapping

from penstock.pipeline import schema
from penstock.pipeline.lag import columns as lag_columns
from penstock.pipeline.stores import derived, segments
from penstock.pipeline.stores import options as store_options
from penstock.pipeline.topics import encoding
from penstock.pipeline.topics import options as topic_options

from .markdown import NOTE, code, line_comments, plain, size, table

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
    """``docs/reference/spark.md``."""
    topics = line_comments(inspect.getsource(topic_options))
    allowed = _allowed(topic_options)
    read = [name for name in topic_options.SOURCE if name not in topic_options.SECURITY]
    write = [name for name in topic_options.SINK if name not in topic_options.SECURITY]
    return "\n".join(
        [
            f"{NOTE}\n# Spark: options and columns\n\n[Topics](../guide/spark-topics.md), "
            "[stores](../guide/spark-stores.md) and [jobs](../guide/spark-jobs.md) are told in guides. Options "
            "are compared without case. Sizes may end in `k`, `m` or `g`.\n",
            "## Options\n",
            '### Reading topics\n\n`spark.read.format("penstock")` and `spark.readStream`.\n',
            _options(read, topics, allowed),
            '### Writing topics\n\n`df.write.format("penstock")` and `writeStream`.\n',
            _options(write, topics, allowed),
            "### TLS and users\n\nFor both; files on the driver and on every executor.\n",
            _options(topic_options.SECURITY, topics, {}),
            '### Reading stores\n\n`spark.read.format("penstock_store")`.\n',
            _options(store_options._NAMES, line_comments(inspect.getsource(store_options)), _allowed(store_options)),
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


def _options(names: Iterable[str], comments: Mapping[str, str], allowed: Mapping[str, tuple[str, str]]) -> str:
    rows = []
    for name in names:
        if name not in comments:
            raise ValueError(f"option {name} has no comment behind its name that says what it means")
        default, values = allowed.get(name, ("", ""))
        rows.append((code(name), default, values, comments[name]))
    return table(("Option", "Default", "Values", "Meaning"), rows)


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


def _allowed(module: types.ModuleType) -> dict[str, tuple[str, str]]:
    """Default and allowed values of the options that a module reads, from its calls of what checks them."""
    found = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        arguments = [
            argument for argument in node.args if not (isinstance(argument, ast.Name) and argument.id == "values")
        ]
        if called not in _READERS or not arguments or not isinstance(arguments[0], ast.Constant):
            continue
        name = arguments[0].value
        values = [eval(compile(ast.Expression(each), "", "eval"), vars(module)) for each in arguments[1:]]  # noqa: S307
        found[name] = _READERS[called](name, values)
    return found


def _number(name: str, values: list[object]) -> tuple[str, str]:
    default, low, high = values
    show = size if "Bytes" in name else str
    shown = [show(each) if isinstance(each, int) else "" for each in (default, low, high)]
    most = "" if isinstance(high, int) and high >= 1 << 40 else shown[2]
    return shown[0], f"{low} to {most}" if most else f"at least {low}"


def _choice(name: str, values: list[object]) -> tuple[str, str]:
    allowed = values[-1]
    assert isinstance(allowed, tuple)
    default = values[0] if len(values) > 1 else allowed[0]
    return code(str(default)), ", ".join(map(str, allowed))


_READERS = {
    "integer": _number,
    "number": _number,
    "flag": lambda name, values: (code(str(values[0]).lower()), "true, false"),
    "choice": _choice,
    "_one_of": _choice,
    "_given": lambda name, values: (size(values[-1]), "number"),
}
"""Functions of the options' modules that read one: from its name and further arguments to default and values."""
