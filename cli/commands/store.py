"""``penstock store``: data directories of Penstock and RocketMQ, without a broker. Nothing in them is written."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..options import Timestamp, json_option
from ..output import Answer, ProgressLine, note, print_fields, print_table

if TYPE_CHECKING:
    from penstock.inspection import StoreDirectory
    from penstock.inspection.messages import StoredRecord
    from penstock.inspection.query import TimeAnswer

SHOWN_MAX = 100
"""Problems, notes and topics on a terminal; JSON has all."""

T = TypeVar("T")
Told = tuple[dict[str, Any], Callable[[], object]]


@click.group()
def store() -> None:
    """Look into data directories, also beside a running broker; they are only read."""


def _prepared(what: str, action: Callable[[], T]) -> T:
    """Do something that loads kernels: the first time on a machine, they are compiled."""
    line = ProgressLine(every_s=0.5)
    line.show(f"{what}: preparing kernels (the first use on a machine compiles them)")
    try:
        return action()
    finally:
        line.clear()


def _on_store(function: Callable[..., Any]) -> Callable[..., Any]:
    """``DIR``, ``--commitlog`` and ``--json``, of a command that is called with the store and an ``Answer``."""

    @click.argument("directory", metavar="DIR", required=False, type=click.Path())
    @click.option("--dir", "dir_option", metavar="DIR", type=click.Path(), help="The same as DIR.")
    @click.option("--commitlog", metavar="DIR[,DIR…]", help="Where the log is, if not in DIR/commitlog.")
    @json_option
    @functools.wraps(function)
    def command(*, directory: str | None, dir_option: str | None, commitlog: str | None, **options: Any) -> Any:
        if bool(directory) == bool(dir_option):
            raise click.UsageError("give the data directory, once")
        root = Path(directory or dir_option or "")
        logs = [Path(part) for part in commitlog.split(",") if part] if commitlog else []

        def listed() -> StoreDirectory:
            from penstock.inspection import list_store

            return list_store(root, logs)

        return function(_prepared(str(root), listed), **options)

    return command


def _run(what: str, action: Callable[[Callable[[int, int], None]], T], *, counts_bytes: bool = True) -> T:
    bar = ProgressLine(every_s=2.0, counts=True, counts_bytes=counts_bytes)
    try:
        return action(functools.partial(bar.show, what))
    finally:
        bar.clear()


@store.command()
@_on_store
def inspect(found: StoreDirectory, answer: Answer) -> None:
    """Files, ranges, topics, queues, keys, checkpoint and health of DIR in one screen."""
    from penstock.inspection import summarize

    document = _run("reading queues", lambda show: summarize(found, show), counts_bytes=False)
    answer(document, lambda: _print_summary(document))


def _print_summary(document: dict[str, Any]) -> None:
    log = document["log"]
    times = f"{_time(log['first_store_timestamp_ms'])} to {_time(log['last_store_timestamp_ms'])}"
    checkpoint = document["checkpoint"] or {}
    print_fields(
        {
            "store": document["path"] + (" (open, or not closed cleanly)" if document["aborted"] else ""),
            "log": f"{log['files']:,} files of {log['file_bytes']:,} bytes, {log['start']:,} to {log['end']:,}",
            "stored": times,
            "queues": f"{document['queues']:,} in {len(document['topics']):,} topics",
            "keys": f"{document['keys']:,} in {len(document['index']):,} index files",
            "checkpoint": ", ".join(
                f"{name} {_time(value) if name.endswith('timestamp') else value}" for name, value in checkpoint.items()
            ),
            "epochs": ", ".join(f"{each['epoch']} from {each['start']:,}" for each in document["epochs"]),
        }
    )
    topics = sorted(document["topics"], key=lambda topic: -topic["messages"])
    rows = [[t["topic"], t["queues"], t["messages"], _ranges(t["ranges"])] for t in topics[:SHOWN_MAX]]
    print_table(["topic", "queues", "messages", "offsets of its queues"], rows)
    if len(topics) > SHOWN_MAX:
        note(f"and {len(topics) - SHOWN_MAX:,} topics with fewer messages (--json has all)")
    if document["index"]:
        index_rows = [
            [i["file"], i["entries"], i["slots"], i["begin_offset"], i["end_offset"], _time(i["begin_timestamp"])]
            for i in document["index"][-10:]
        ]
        print_table(["index file", "keys", "slots", "from", "to", "begins"], index_rows)
    _print_findings(document)


def _ranges(ranges: list[list[int]]) -> str:
    shown = ", ".join(f"{queue_id}: {start}-{end}" for queue_id, start, end in ranges[:4])
    return shown + (f", … {len(ranges) - 4} more" if len(ranges) > 4 else "")


def _time(milliseconds: int | None) -> str:
    if not milliseconds or milliseconds < 0:
        return "-"
    try:
        return datetime.fromtimestamp(milliseconds / 1000).isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)


def _print_findings(document: dict[str, Any]) -> None:
    for kind in ("notes", "problems"):
        for finding in document[kind][:SHOWN_MAX]:
            place = finding["path"] + (f" at {finding['offset']}" if finding["offset"] is not None else "")
            print(f"{kind[:-1]}: {place}: {finding['problem']}")
        if len(document[kind]) > SHOWN_MAX:
            print(f"and {len(document[kind]) - SHOWN_MAX:,} more {kind} (--json has all)")
    count = len(document["problems"]) + document.get("problems_left_out", 0)
    print("ok" if document["ok"] else f"NOT OK: {count:,} problems")


@store.command()
@_on_store
def verify(found: StoreDirectory, answer: Answer) -> int:
    """Check every record of DIR, and that queues, index and checkpoint say the same; 1 when they do not."""
    from penstock.inspection import verify as check

    document = _run("verifying", lambda show: check(found, show)).as_document()
    answer(document, lambda: _print_verification(document))
    return 0 if document["ok"] else 1


def _print_verification(document: dict[str, Any]) -> None:
    rate = f"{document['bytes_per_s'] / 1e6:,.0f} MB/s"
    print_fields(
        {
            "log": f"{document['log_start']:,} to {document['log_end']:,} in {document['log_files']:,} files",
            "records": f"{document['records']:,} in {document['queues']:,} queues",
            "keys": f"{document['keys']:,}, index entries {document['index_entries']:,}",
            "time": f"{document['seconds']:.2f} s, {rate}",
        }
    )
    _print_findings(document)


@store.command()
@_on_store
@click.option("--into", required=True, metavar="NEW", type=click.Path(), help="A directory that does not exist yet.")
def rebuild(found: StoreDirectory, answer: Answer, into: str) -> None:
    """Make a new store of the valid records of DIR: the log copied, queues and index built afresh."""
    from penstock.inspection import rebuild as make

    report = asdict(_run("rebuilding", lambda show: make(found, Path(into), show), counts_bytes=False))

    def people() -> None:
        print_fields({name: value for name, value in report.items() if name != "replaced"})
        for each in report["replaced"][:SHOWN_MAX]:
            note(f"replaced {each['start']} to {each['end']}: {each['reason']}")

    answer(report, people)


@store.command()
@click.argument("file", metavar="FILE", type=click.Path())
@click.option("--dir", "root", metavar="DIR", type=click.Path(), help="FILE is relative to this.")
@click.option("--at", type=click.IntRange(min=0), metavar="OFFSET", help="The item that holds this byte of the file.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Items. [1 with --at]")
@click.option("--kind", help="What the file is, where neither its folder nor its content tell.")
@json_option
def dump(file: str, root: str | None, at: int | None, count: int | None, kind: str | None, answer: Answer) -> None:
    """Annotated bytes of a log, queue, index or checkpoint FILE: position, field, bytes, value.

    FILE is one of a store, such as DIR/commitlog/00000000000000000000 or DIR/consumequeue/TOPIC/0/00000000000000000000.
    """
    path = Path(root, file) if root else Path(file)
    if path.is_dir():
        example = next((each for each in sorted(path.rglob("*")) if each.is_file() and each.name.isdigit()), "")
        raise click.UsageError(f"{path} is a directory: give one of its files" + (f", as {example}" if example else ""))

    def read() -> tuple[Any, list[Any]]:
        from penstock.inspection.dump import KINDS
        from penstock.inspection.dump import dump as annotate

        if kind is not None and kind not in KINDS:
            raise click.UsageError(f"no kind {kind!r}: {', '.join(KINDS)}")
        made = annotate(path, at=at, count=count, kind=kind)
        return made, list(made.items)

    made, items = _prepared(str(path), read)

    def people() -> None:
        from penstock.inspection.annotations import lines

        for item in items:
            print("\n".join(lines(item)))
        if not items:
            note("nothing is written there")

    answer({"path": str(path), "kind": made.kind, "items": [item.as_document() for item in items]}, people)


@store.command()
@_on_store
@click.option("--topic", required=True, metavar="T")
@click.option("--key", metavar="K", help="A key or unique key.")
@click.option("--time", "time_ms", type=Timestamp(), help="The first messages stored then or later, one per queue.")
@click.option("--queue", "queue_id", type=int, metavar="Q")
@click.option("--offset", type=int, metavar="N", help="With --queue: the message there.")
@click.option("--begin", "begin_ms", type=Timestamp(), default=0, help="With --key: stored then or later.")
@click.option("--end", "end_ms", type=Timestamp(), default=(1 << 63) - 1, help="With --key: stored then or before.")
@click.option("--max", "max_count", default=64, show_default=True, type=click.IntRange(1, 1_000_000))
@click.option("--scan", is_flag=True, help="With --key: read the whole log, whatever the index says.")
def query(
    found: StoreDirectory,
    answer: Answer,
    topic: str,
    key: str | None,
    time_ms: int | None,
    queue_id: int | None,
    offset: int | None,
    **options: Any,
) -> None:
    """Messages by --key, by --time, or at --queue and --offset; says when the files did not suffice."""
    from penstock.inspection import StoreQuery

    def ask(show: Callable[[int, int], None]) -> Told:
        with contextlib.closing(StoreQuery(found, show)) as asked:
            if key is not None and time_ms is None and offset is None:
                by_key = asked.by_key(topic, key, **options)
                return _messages(by_key.messages[::-1], by_key.source)
            if offset is not None and queue_id is not None and key is None and time_ms is None:
                single = asked.by_offset(topic, queue_id, offset)
                return _messages([single.message], single.source)
            if time_ms is not None and key is None and offset is None:
                return _times(asked.by_time(topic, time_ms, queue_id))
            raise click.UsageError("give --key, or --time, or --queue and --offset")

    answer(*_run("scanning the log", ask))


def _messages(messages: list[StoredRecord], source: str) -> Told:
    """These as a document and for people, oldest first."""
    from penstock.inspection import message_document

    documents = [message_document(message) for message in messages]

    def people() -> None:
        for document in documents:
            print_fields(document)
            print()
        note(f"{len(documents)} messages, found through: {source}")

    return {"messages": documents, "source": source}, people


def _times(answers: list[TimeAnswer]) -> Told:
    from penstock.inspection import message_document

    rows = [
        {**each._asdict(), "message": None if each.message is None else message_document(each.message)}
        for each in answers
    ]
    table = []
    for row in rows:
        found = row["message"] or {}
        numbers = [row["queue_id"], row["offset"], row["upper_offset"]]
        table.append([*numbers, _time(found.get("store_timestamp_ms")), found.get("message_id"), row["source"]])
    columns = ["queue", "offset", "last before", "stored", "message", "found through"]
    return {"queues": rows}, lambda: print_table(columns, table)
