"""The store source's reader, called as Spark calls it, but without Spark: what RocketMQ's golden stores hold."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats.hashing import string_hash
from penstock.formats.record.kernels import ROW, scan
from penstock.formats.record.layout import Host, PhysicalOffset, Record, encode_record
from penstock.formats.record.properties import encode_properties
from penstock.pipeline.columns.columns import ColumnWriter
from penstock.pipeline.columns.schema import STORE_COLUMNS
from penstock.pipeline.spark.arrow_types import arrow_schema
from penstock.pipeline.stores.directory import list_store
from penstock.pipeline.stores.model import Store
from penstock.pipeline.stores.options import StoreOptions, parse_options
from penstock.pipeline.stores.scan.planning import plan_splits
from tests.support import golden
from tests.support.store_rows import rows_of


def read(store: Store, options: StoreOptions, columns: dict[str, str] = STORE_COLUMNS) -> list[dict[str, Any]]:
    return rows_of(plan_splits(store, options), options, columns)


def options(root: Path, **changes: str) -> StoreOptions:
    return parse_options({"storePath": str(root), **changes})


@pytest.mark.parametrize("name", golden.SETS)
def test_every_record_of_a_golden_store_becomes_the_row_that_rocketmq_reads(name: str, tmp_path: Path) -> None:
    root = golden.unpack(name, tmp_path / "store", only=("commitlog", "checkpoint", "abort", "epochFileCheckpoint"))
    rows = read(list_store(str(root)), options(root))
    wanted = golden.expected(name)["messages"]
    assert [row["physicalOffset"] for row in rows] == [message["physicalOffset"] for message in wanted]
    for row, message in zip(rows, wanted, strict=True):
        assert_row(row, message)


words = st.text(st.characters(exclude_characters=" \x00\x01\x02", exclude_categories=["Cs"]), max_size=6)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["a", "orders"]), words, st.lists(words, max_size=3)), min_size=1))
def test_key_hashes_are_what_rocketmq_puts_into_its_index(messages: list[tuple[str, str, list[str]]]) -> None:
    records = b""
    for topic, unique, keys in messages:
        properties = {"UNIQ_KEY": unique, "TAGS": "t", "KEYS": " ".join(keys)}
        place = PhysicalOffset(len(records))
        record = Record(topic=topic, body=b"x", properties=encode_properties(properties), physical_offset=place)
        records += encode_record(record)
    buffer = np.frombuffer(records, np.uint8)
    rows = np.empty(len(messages), ROW)
    assert scan(buffer, 0, len(buffer), 0, True, rows)[0] == len(messages)
    writer = ColumnWriter(arrow_schema({"keyHashes": "array<int>"}), broker_name="b")
    (batch,) = writer.batches(buffer, rows)
    batch.validate(full=True)
    wanted = [
        [abs(string_hash(f"{topic}#{key}")) for key in (unique, *keys) if key] for topic, unique, keys in messages
    ]
    assert batch.column(0).to_pylist() == wanted


def assert_row(row: dict[str, Any], message: dict[str, Any]) -> None:
    for column, key in {
        "topic": "topic",
        "queueId": "queueId",
        "queueOffset": "queueOffset",
        "size": "totalSize",
        "messageId": "msgId",
        "flag": "flag",
        "sysFlag": "sysFlag",
        "reconsumeTimes": "reconsumeTimes",
        "bodyCrc": "bodyCRC",
        "preparedTransactionOffset": "preparedTransactionOffset",
    }.items():
        assert row[column] == message[key], (column, message)
    for column in ("bornHost", "storeHost"):
        assert Host.parse(row[column]) == Host.parse(message[column])
    assert dict(row["properties"]) == message["properties"]
    assert row["tags"] == message["properties"].get("TAGS")
    keys = message["properties"].get("KEYS")
    assert row["keys"] == (None if keys is None else keys.split())
    for column in ("bornTimestamp", "storeTimestamp"):
        assert row[column] == as_time(message[column])
    if message["bodyLength"] is not None:
        assert len(row["body"]) == message["bodyLength"]
        assert hashlib.sha256(row["body"]).hexdigest() == message.get("bodySha256", message["storedBodySha256"])


def as_time(time_ms: int) -> datetime | None:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    except OverflowError:
        return None
