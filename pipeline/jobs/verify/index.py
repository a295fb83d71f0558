"""Proves the index of stores against the keys of their logs, in both directions, for :mod:`.job`, which says how."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.formats.index.index_file import INDEX_ENTRY
from penstock.formats.record.layout import SysFlag
from penstock.proto.errors import StorageError

from ...columns.schema import as_struct, columns
from ...spark.arrow_types import arrow_schema
from ...stores.derived import DerivedSplit, batch_of, plan_index
from ...stores.directory import epochs_of
from ...stores.model import Store
from ..framework.frames import EXAMPLES_MAX, Frames, count_hidden
from ..framework.reading import one_task_each
from ..framework.report import Report

if TYPE_CHECKING:
    from penstock.inspection.index.files import IndexFile

_KEYS = "brokerName string, physicalOffset bigint, sysFlag int, keyHashes array<int>, corrupt string"
_ENTRIES = columns("brokerName string, physicalOffset bigint, keyHash int, file string, entry int, problem string")
_SCHEMA = arrow_schema(_ENTRIES)
KEY_UNIT_BYTES = 64 << 20
"""Of the log: some hundred thousand keys, which are compared as a whole."""
UNITS_MAX = 1000
"""Stretches that are compared key by key: all of the first 64 GiB that differ."""
EPOCHS_MAX = 100
_HARMLESS = {"before": "keys_before_the_index", "late": "keys_not_indexed_yet", "cut": "keys_of_records_cut_off"}


def prove_index(report: Report, frames: Frames) -> None:
    """Whether the index has exactly the hashes of the log's keys, over the positions that both have."""
    in_index = []
    for row in _key_sums(frames, _index_entries(frames, frames.stores.values()), "problem", "file"):
        if row["problem"] is None:
            in_index.append(row)
        else:
            report.problem(row["problem"], broker=row["brokerName"], path=f"index/{row['file']}")
    in_log = _key_sums(frames, _keys(frames.log("messages", _KEYS, onCorrupt="emit", decompress="false")))
    report.figures["keys"] = sum(row["keys"] for row in in_log)
    report.figures["index_entries"] = sum(row["keys"] for row in in_index)
    for broker, store in frames.stores.items():
        index, log = ({row["unit"]: row for row in rows if row["brokerName"] == broker} for rows in (in_index, in_log))
        if log and not index:
            keys = sum(row["keys"] for row in log.values())
            text = (
                f"no index file names any of the log's {keys} keys: make the index with the job rebuild, or, where it "
                "is off on purpose, leave it out with index=false (--no-index)"
            )
            report.problem(text, broker=broker, path=f"{store.root}/index")
            continue
        differing = [unit for unit in log.keys() | index.keys() if _key_sum(log.get(unit)) != _key_sum(index.get(unit))]
        if differing:
            begin, end = min(row["first"] for row in index.values()), max(row["last"] for row in index.values())
            _name_keys(report, frames, store, sorted(differing), (begin, end))


def _index_entries(frames: Frames, stores: Iterable[Store]) -> Any:
    items = [(split, store) for store in stores for split in plan_index(store)]
    return one_task_each(frames.spark, items, lambda item: prove_index_file(*item), as_struct(_ENTRIES))


def prove_index_file(split: DerivedSplit, store: Store) -> Iterator[pa.RecordBatch]:
    """The entries of an index file for positions that the log has, and a row for each problem of it."""
    from ...stores.index import open_index  # its kernels take a moment, which the driver can save

    name = split.index_path.rsplit("/", 1)[-1]
    problems: list[str] = []
    try:
        with open_index(split) as index:
            for first, entries in _follow(index, problems, is_open=store.is_open):
                physical = entries["physical_offset"]
                behind = np.flatnonzero(physical >= split.end)
                if len(behind) and not store.is_open and len(epoch_starts(store)) < 2:
                    problems.append(
                        f"{len(behind)} entries from {first + behind[0]} on name positions from {physical[behind[0]]} "
                        f"on, at or behind the log's end {split.end}: records are lost, or the index is another log's"
                    )
                kept = np.flatnonzero((physical >= split.start) & (physical < split.end))
                values = {
                    "brokerName": split.broker_name,
                    "physicalOffset": physical[kept],
                    "keyHash": entries["key_hash"][kept],
                    "file": name,
                    "entry": first + kept,
                    "problem": None,
                }
                yield batch_of(values, len(kept), _SCHEMA)
    except StorageError as error:
        problems.append(str(error))
    for text in problems:
        values = {"brokerName": split.broker_name, "file": name, "problem": text}
        yield pa.RecordBatch.from_pylist([values], _SCHEMA)


def _follow(index: IndexFile, problems: list[str], *, is_open: bool) -> Iterator[tuple[int, Any]]:
    """The file's entries; behind the last of them, ``problems`` has those of slots and chains.

    A file that its broker writes meanwhile may have newer entries in its slots than its header said.
    """
    from penstock.formats.index.index_kernels import check_chains

    newest = np.zeros(index.slots, np.int32)
    slots = index.slot_table()
    wrong, first_wrong = 0, 0
    for first, data in index.blocks():
        entries = data.view(INDEX_ENTRY)
        unlinked = np.empty(len(entries), np.uint8)
        count = check_chains(data, first, len(entries), newest, unlinked)
        if count:
            wrong, first_wrong = wrong + count, first_wrong or first + int(np.argmax(unlinked))
        yield first, entries
    if wrong:
        problems.append(
            f"{wrong} entries from {first_wrong} on do not name the one before them in their slot, so keys are not "
            "found: rebuild the index"
        )
    differing = slots != newest
    if is_open:
        differing &= slots <= index.entries
    if differing.any():
        slot = int(np.flatnonzero(differing)[0])
        problems.append(
            f"{np.count_nonzero(differing)} slots do not name their newest entry, so keys are not found: slot {slot} "
            f"names {slots[slot]}, its newest entry is {newest[slot]}: rebuild the index"
        )


def _key_sums(frames: Frames, keys: Any, *more: str) -> list[Any]:
    """Per 64 MiB of each log, how many (position, hash of a key) there are, and a digest of them.

    ``more``: the columns of problems and of their files; these rows are left as they are.
    """
    from pyspark.sql import functions as f

    unit = f.floor(f.col("physicalOffset") / KEY_UNIT_BYTES).alias("unit")
    columns = [f.when(f.col("problem").isNotNull(), f.col(name)).alias(name) for name in more]
    condition = _in_logs(frames) | f.col("problem").isNotNull() if more else _in_logs(frames)
    summed = keys.where(condition).groupBy("brokerName", unit, *columns)
    return list(
        summed.agg(
            f.count("*").alias("keys"),
            f.bit_xor(f.xxhash64("physicalOffset", "keyHash")).alias("digest"),
            f.min("physicalOffset").alias("first"),
            f.max("physicalOffset").alias("last"),
        ).collect()
    )


def _key_sum(row: Any) -> tuple[int, int]:
    return (0, 0) if row is None else (row["keys"], row["digest"])


def _in_logs(frames: Frames) -> Any:
    """The condition for positions that the listed log of their store has: an index may say more of both sides."""
    from pyspark.sql import functions as f

    condition = f.lit(False)
    for store in frames.stores.values():
        if store.files:
            within = f.col("physicalOffset").between(store.files[0].start, store.end - 1)
            condition |= (f.col("brokerName") == store.broker_name) & within
    return condition


def _keys(log: Any) -> Any:
    """A row for each key that an index has: of all sound records but those that roll transactions back."""
    from pyspark.sql import functions as f

    kind = f.col("sysFlag").bitwiseAND(f.lit(SysFlag.TRANSACTION_MASK))
    indexed = log.where("corrupt is null").where(kind != SysFlag.TRANSACTION_ROLLBACK)
    return indexed.select("brokerName", "physicalOffset", f.explode("keyHashes").alias("keyHash"))


def _name_keys(report: Report, frames: Frames, store: Store, units: list[int], span: tuple[int, int]) -> None:
    """Key by key, in the stretches of a log whose sums differ. ``span``: the first and last position in its index.

    What lies before is left out, as keys of that first record are: an index may be younger than its log, and its oldest
    files are deleted by their own times. A crash may leave a key twice, which is no difference.
    """
    from pyspark.sql import functions as f

    def chosen(frame: Any) -> Any:
        return frame.where(_in_logs(frames)).where(
            f.floor(f.col("physicalOffset") / KEY_UNIT_BYTES).isin(units[:UNITS_MAX])
        )

    limits = {
        "startPhysicalOffset": max(units[0] * KEY_UNIT_BYTES, store.files[0].start),
        "endPhysicalOffset": min((units[:UNITS_MAX][-1] + 1) * KEY_UNIT_BYTES, store.end),
    }
    log = frames.one(store.broker_name, "messages", _KEYS, onCorrupt="emit", decompress="false", **limits)
    entry = f.struct("file", "entry").alias("at")
    entries = _index_entries(frames, [store]).where("problem is null")
    entries = entries.select("brokerName", "physicalOffset", "keyHash", entry)
    no_entry = f.lit(None).cast("struct<file:string,entry:int>").alias("at")
    both = chosen(_keys(log)).select("physicalOffset", "keyHash", f.lit(1).alias("records"), no_entry)
    both = both.union(chosen(entries).select("physicalOffset", "keyHash", f.lit(0), "at"))
    sums = both.groupBy("physicalOffset", "keyHash").agg(f.sum("records").alias("records"), f.min("at").alias("at"))
    sums = sums.persist()
    try:
        differing = sums.where("records = 0 or at is null")
        missing = f.col("at").isNull()
        kinds = f.when(_cut_off(sums, store), "cut").when(~missing, "wrong")
        kinds = kinds.when(f.col("physicalOffset") <= span[0], "before")
        if store.is_open:
            kinds = kinds.when(f.col("physicalOffset") >= span[1], "late")
        found = differing.withColumn("kind", kinds.otherwise("missing"))
        counts = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
        for kind, name in _HARMLESS.items():
            if kind in counts:
                report.figures[name] = report.figures.get(name, 0) + counts[kind]
        for kind in ("missing", "wrong"):
            rows = found.where(f.col("kind") == kind).orderBy("physicalOffset", "keyHash").limit(EXAMPLES_MAX).collect()
            for row in rows:
                _name_key(report, store.broker_name, row)
            count_hidden(report, store.broker_name, counts.get(kind, 0) - len(rows))
    finally:
        sums.unpersist()
    if len(units) > UNITS_MAX:
        text = f"{len(units) - UNITS_MAX} more stretches of 64 MiB in which log and index differ"
        report.problem(text, broker=store.broker_name)


def _cut_off(sums: Any, store: Store) -> Any:
    """The condition for keys on which log and index disagree because records were cut off at a change of master.

    Their entries stay, and RocketMQ indexes nothing below the last of them: from the beginning of the new master's log
    up to the first key on which both agree. Without one there, nothing is explained.
    """
    from pyspark.sql import functions as f

    condition = f.lit(False)
    starts = epoch_starts(store)[1:]
    if not starts:
        return condition
    number = f.lit(0)
    for start in starts:
        number += (f.col("physicalOffset") >= start).cast("int")
    agreed = f.min(f.when(f.expr("records > 0 and at is not null"), f.col("physicalOffset")))
    for row in sums.groupBy(number.alias("epoch")).agg(agreed.alias("agreed")).collect():
        if row["epoch"] > 0 and row["agreed"] is not None:
            within = (f.col("physicalOffset") >= starts[row["epoch"] - 1]) & (f.col("physicalOffset") < row["agreed"])
            condition |= within
    return condition


def epoch_starts(store: Store) -> list[int]:
    """Where the newest masters' parts of a log begin, in stores that note it."""
    return [epoch.start for epoch in epochs_of(store) or ()][-EPOCHS_MAX:]


def _name_key(report: Report, broker: str, row: Any) -> None:
    position, key_hash, at = row["physicalOffset"], row["keyHash"], row["at"]
    if at is None:
        text = f"the record at {position} has a key of the hash {key_hash}, which no index entry has"
        report.problem(text, broker=broker, offset=position)
        return
    text = f"entry {at['entry']} names {position}, where no record with a key of the hash {key_hash} begins"
    report.problem(text, broker=broker, path=f"index/{at['file']}")
