"""``penstock store``: data directories of Penstock and RocketMQ, without a broker. Nothing in them is written."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..options import Timestamp, compose, json_option
from ..output import ProgressLine, note, print_fields, print_json, print_table

if TYPE_CHECKING:
    from penstock.inspection import StoreDirectory
    from penstock.inspection.messages import StoredRecord

SHOWN_MAX = 100
"""Problems, notes and topics on a terminal; JSON has all."""

T = TypeVar("T")

_store_options = compose(
    click.argument("directory", metavar="DIR", required=False, type=click.Path()),
    click.option("--dir", "dir_option", metavar="DIR", type=click.Path(), help="The same as DIR."),
    click.option("--commitlog", metavar="DIR[,DIR…]", help="Where the log is, if not in DIR/commitlog."),
    json_option,
)


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


def _open(directory: str | None, dir_option: str | None, commitlog: str | None) -> StoreDirectory:
    if bool(directory) == bool(dir_option):
        raise click.UsageError("give the data directory, once")
    root = Path(directory or dir_option or "")
    logs = [Path(part) for part in commitlog.split(",") if part] if commitlog else []

    def listed() -> StoreDirectory:
        from penstock.inspection import list_store

        return list_store(root, logs)

    return _prepared(str(root), listed)


def _run(what: str, action: Callable[[Callable[[int, int], None]], T], *, counts_bytes: bool = True) -> T:
    bar = ProgressLine(every_s=2.0, counts=True, counts_bytes=counts_bytes)
    try:
        return action(functools.partial(bar.show, what))
    finally:
        bar.clear()


@store.command()
@_store_options
def inspect(directory: str | None, dir_option: str | None, commitlog: str | None, as_json: bool) -> None:
    """Files, ranges, topics, queues, keys, checkpoint and health of DIR in one screen."""
    found = _open(directory, dir_option, commitlog)
    from penstock.inspection import summarize

    document = _run("reading queues", lambda show: summarize(found, show), counts_bytes=False)
    if as_json:
        print_json(document)
        return
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
@_store_options
def verify(directory: str | None, dir_option: str | None, commitlog: str | None, as_json: bool) -> int:
    """Check every record of DIR, and that queues, index and checkpoint say the same; 1 when they do not."""
    found = _open(directory, dir_option, commitlog)
    from penstock.inspection import verify as check

    document = _run("verifying", lambda show: check(found, show)).as_document()
    if as_json:
        print_json(document)
        return 0 if document["ok"] else 1
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
    return 0 if document["ok"] else 1


@store.command()
@_store_options
@click.option("--into", required=True, metavar="NEW", type=click.Path(), help="A directory that does not exist yet.")
def rebuild(directory: str | None, dir_option: str | None, commitlog: str | None, into: str, as_json: bool) -> None:
    """Make a new store of the valid records of DIR: the log copied, queues and index built afresh."""
    found = _open(directory, dir_option, commitlog)
    from penstock.inspection import rebuild as make

    report = _run("rebuilding", lambda show: make(found, Path(into), show), counts_bytes=False).as_document()
    if as_json:
        print_json(report)
        return
    replaced = report.pop("replaced")
    print_fields(report)
    for each in replaced[:SHOWN_MAX]:
        note(f"replaced {each['start']} to {each['end']}: {each['reason']}")


@store.command()
@click.argument("file", metavar="FILE", type=click.Path())
@click.option("--dir", "root", metavar="DIR", type=click.Path(), help="FILE is relative to this.")
@click.option("--at", type=click.IntRange(min=0), metavar="OFFSET", help="The item that holds this byte of the file.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Items. [1 with --at]")
@click.option("--kind", help="What the file is, where neither its folder nor its content tell.")
@json_option
def dump(file: str, root: str | None, at: int | None, count: int | None, kind: str | None, as_json: bool) -> None:
    """Annotated bytes of a log, queue, index or checkpoint FILE: position, field, bytes, value."""
    path = Path(root, file) if root else Path(file)

    def read() -> tuple[Any, list[Any]]:
        from penstock.inspection.dump import KINDS
        from penstock.inspection.dump import dump as annotate

        if kind is not None and kind not in KINDS:
            raise click.UsageError(f"no kind {kind!r}: {', '.join(KINDS)}")
        made = annotate(path, at=at, count=count, kind=kind)
        return made, list(made.items)

    made, items = _prepared(str(path), read)
    if as_json:
        print_json({"path": str(path), "kind": made.kind, "items": [item.as_document() for item in items]})
        return
    from penstock.inspection.annotations import lines

    for item in items:
        for line in lines(item):
            print(line)
    if not items:
        note("nothing is written there")


@store.command()
@_store_options
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
    directory: str | None,
    dir_option: str | None,
    commitlog: str | None,
    as_json: bool,
    topic: str,
    key: str | None,
    time_ms: int | None,
    queue_id: int | None,
    offset: int | None,
    **options: Any,
) -> None:
    """Messages by --key, by --time, or at --queue and --offset; says when the files did not suffice."""
    by_offset = offset is not None
    if [key is not None, time_ms is not None, by_offset].count(True) != 1 or (by_offset and queue_id is None):
        raise click.UsageError("give --key, or --time, or --queue and --offset")
    found = _open(directory, dir_option, commitlog)
    from penstock.inspection import StoreQuery

    bar = ProgressLine(every_s=2.0, counts=True, counts_bytes=True)
    asked = StoreQuery(found, functools.partial(bar.show, "scanning the log"))
    try:
        if key is not None:
            answer = asked.by_key(topic, key, **options)
            _print_messages(answer.messages[::-1], answer.source, bar, as_json)
        elif offset is not None:
            assert queue_id is not None
            single = asked.by_offset(topic, queue_id, offset)
            _print_messages([single.message], single.source, bar, as_json)
        else:
            assert time_ms is not None
            _print_times(asked.by_time(topic, time_ms, queue_id), bar, as_json)
    finally:
        bar.clear()
        asked.close()


def _print_messages(messages: list[StoredRecord], source: str, bar: ProgressLine, as_json: bool) -> None:
    """Oldest first."""
    from penstock.inspection import message_document

    bar.clear()
    documents = [message_document(message) for message in messages]
    if as_json:
        print_json({"messages": documents, "source": source})
        return
    for document in documents:
        print_fields(document)
        print()
    note(f"{len(documents)} messages, found through: {source}")


def _print_times(answers: list[Any], bar: ProgressLine, as_json: bool) -> None:
    from penstock.inspection import message_document

    bar.clear()
    rows: list[dict[str, Any]] = []
    for answer in answers:
        row = {"queue_id": answer.queue_id, "offset": answer.offset, "upper_offset": answer.upper_offset}
        message = None if answer.message is None else message_document(answer.message)
        rows.append({**row, "source": answer.source, "message": message})
    if as_json:
        print_json({"queues": rows})
        return
    table = []
    for row in rows:
        found = row["message"] or {}
        numbers = [row["queue_id"], row["offset"], row["upper_offset"]]
        table.append([*numbers, _time(found.get("store_timestamp_ms")), found.get("message_id"), row["source"]])
    print_table(["queue", "offset", "last before", "stored", "message", "found through"], table)
