"""What the data directories hold of a run: its messages, how long they took, and reads where the history has none.

A stored record is the acknowledged send that has its place and checksum. One of another place is known by the number
that load generators write into bodies (:data:`HEADER`), if its stream is one of the history's, or by the checksum of a
send; else nobody of this run sent it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.record.layout import CRC_MASK, SysFlag
from penstock.judge.history import EVENT, NO_KEY, Op, Outcome
from penstock.judge.pieces import NOBODY, SEQUENCE_BITS, Column
from penstock.proto.errors import ConfigError

from ...stores.directory import list_store, require_names
from ...stores.options import StoreOptions
from ...stores.topic_names import require_topics
from ..framework.reading import has_no_entry, read_stores

PLACE = ["brokerName", "queueId", "queueOffset", "bodyCrc"]
HEADER = np.dtype([("run", "<u4"), ("stream", "<u4"), ("sequence", "<u8")])
"""How bodies of load tests and drills begin."""
PERCENTILE_ACCURACY = 10_000
_REPLICA = re.compile(r"-\d+$")
_RECORD = (
    "topic string, brokerName string, queueId int, queueOffset bigint, physicalOffset bigint, bodyCrc bigint, "
    "sysFlag int, body binary, bornTimestamp timestamp, storeTimestamp timestamp"
)


class Stored(NamedTuple):
    """Of the acknowledged messages that lie in stores: their topics, and ms from their birth until they were stored."""

    topics: list[str]
    taken_ms: list[float]  # by share, and the largest; empty if there is none


def shards_of(roots: tuple[str, ...], names: tuple[str, ...], topic: str | None, shards: Sequence[str]) -> list[str]:
    """The shard of each store: its broker's name, without the number of a replica where only that is one.

    Raises ConfigError: a name is no shard's, two stores are of one, or no store has the topic.
    Raises WrongStore, Corrupt: see :func:`list_store`.
    """
    found = require_names("audit", roots, names)
    stores = [list_store(root, name, up_to="end") for root, name in zip(found, names or [""] * len(found), strict=True)]
    chosen: dict[str, str] = {}
    for store in stores:
        shard = store.broker_name if store.broker_name in shards else _REPLICA.sub("", store.broker_name)
        if shard not in shards:
            raise ConfigError(
                f"audit: {store.root} is of broker {store.broker_name!r}, the history knows {', '.join(shards)}: "
                "set broker_name to one of these for each store, in the same order"
            )
        if shard in chosen:
            raise ConfigError(
                f"audit: {chosen[shard]} and {store.root} are both of {shard}: name one store of each shard"
            )
        chosen[shard] = store.root
    if topic is not None:
        try:
            require_topics(stores, StoreOptions(roots=tuple(found), topics=(topic,)))
        except ConfigError as error:
            raise ConfigError(
                f"audit: topic is {topic!r}, which is in none of {', '.join(found)}: name the topic of the run"
            ) from error
    return list(chosen)


class Stores:
    """Data directories, one of each shard, whose names ``shards_of`` gives."""

    def __init__(self, spark: Any, roots: tuple[str, ...], names: Sequence[str], topic: str | None) -> None:
        self._spark = spark
        self._roots = roots
        self._names = tuple(names)
        self._topic = topic

    def records(self, topic: str | None = None) -> Any:
        """What lies on the disks, of a topic if one is named; the checksum is that of the body as it was sent."""
        from pyspark.sql import functions as f

        frame = read_stores(
            self._spark,
            self._roots,
            _RECORD,
            brokerName=self._names,
            topics=topic or self._topic,
            onCorrupt="skip",
            upTo="end",
            useConsumeQueue="false",  # the log itself, whatever has become of the queues
        )
        is_compressed = f.col("sysFlag").bitwiseAND(f.lit(int(SysFlag.COMPRESSED))) != 0
        crc = f.when(is_compressed, f.crc32("body").bitwiseAND(f.lit(CRC_MASK))).otherwise(f.col("bodyCrc"))
        return frame.withColumn("bodyCrc", crc)

    def measured(self, acknowledged: Any, shares: Sequence[float]) -> Stored:
        """Topics and times of the messages in ``acknowledged``, a frame of :data:`PLACE`."""
        from pyspark.sql import functions as f

        taken = f.unix_millis("storeTimestamp") - f.unix_millis("bornTimestamp")
        found = (
            self.records()
            .join(acknowledged.select(*PLACE), PLACE, "left_semi")
            .agg(
                f.sort_array(f.collect_set("topic")).alias("topics"),
                f.percentile_approx(taken, list(shares), PERCENTILE_ACCURACY).alias("taken"),
                f.max(taken).alias("largest"),
            )
            .first()
        )
        return Stored(found["topics"], [] if found["taken"] is None else [*found["taken"], found["largest"]])

    def reads(self, acknowledged: Any, sends: Any, topic: str) -> Any:
        """What lies on the disks of the topic, with the message that each record is, for :func:`as_reads`.

        ``acknowledged`` and ``sends`` have stream and sequence beside :data:`PLACE`.
        """
        from pyspark.sql import functions as f

        same = sends.groupBy("bodyCrc").agg(f.min(f.struct("stream", "sequence")).alias("same"))
        records = self.records(topic).where(~has_no_entry(f.col("sysFlag")))
        records = records.withColumn("head", f.substring("body", 1, HEADER.itemsize))
        found = records.join(acknowledged, PLACE, "left").join(same, "bodyCrc", "left")
        return found.select(
            *PLACE, "physicalOffset", "head", "stream", "sequence", "same.stream", "same.sequence"
        ).toDF(*PLACE, "physicalOffset", "head", "stream", "sequence", "sameStream", "sameSequence")


def as_reads(batch: pa.RecordBatch, shards: Sequence[str], streams: Collection[int]) -> Column:
    """Rows of :data:`EVENT` with op READ, as somebody who read the queues would have written them."""
    rows = np.zeros(batch.num_rows, EVENT)
    rows["op"], rows["outcome"], rows["key"] = Op.READ, Outcome.OK, NO_KEY
    rows["shard"] = pc.index_in(batch.column("brokerName"), pa.array(shards, pa.string())).to_numpy(False)
    rows["queue"], rows["offset"] = batch.column("queueId").to_numpy(), batch.column("queueOffset").to_numpy()
    rows["crc"] = batch.column("bodyCrc").to_numpy() & CRC_MASK
    # Nobody read: the log's order stands for that of time, which says which of two copies came first.
    for name in ("position", "start_ns", "end_ns"):
        rows[name] = batch.column("physicalOffset").to_numpy()
    heads = [head or b"" for head in batch.column("head").to_pylist()]
    told = np.frombuffer(b"".join(head.ljust(HEADER.itemsize, b"\0") for head in heads), HEADER)
    is_told = np.fromiter((len(head) == HEADER.itemsize for head in heads), np.bool_, len(heads))
    is_told &= np.isin(told["stream"], list(streams)) & (told["sequence"] < 1 << SEQUENCE_BITS)
    same_stream, same_sequence = _numbers(batch, "sameStream"), _numbers(batch, "sameSequence")
    stream, sequence = _numbers(batch, "stream"), _numbers(batch, "sequence")
    by_place, by_crc = stream >= 0, same_stream >= 0
    rows["stream"] = np.select([by_place, is_told, by_crc], [stream, told["stream"], same_stream], NOBODY)
    # What nobody sent are different messages, not copies of one.
    nobodys = (rows["position"] * len(shards) + rows["shard"]) % (1 << SEQUENCE_BITS)
    numbered = told["sequence"].astype(np.int64)
    rows["sequence"] = np.select([by_place, is_told, by_crc], [sequence, numbered, same_sequence], nobodys)
    return rows


def _numbers(batch: pa.RecordBatch, name: str) -> Column:
    """A column of numbers, with -1 for null."""
    column: Column = pc.fill_null(batch.column(name), -1).to_numpy()
    return column
