"""What the audit takes from a history's folder and from data directories, without Spark."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pyarrow as pa
import pytest

from penstock.bench.load import ledger
from penstock.bench.spark.generate import TOPIC, generate
from penstock.judge.conditions import Conditions
from penstock.judge.history import Op
from penstock.judge.judging import judge_groups, settle, was_read
from penstock.judge.pieces import NOBODY
from penstock.judge.tally import Tally
from penstock.pipeline.jobs import audit
from penstock.pipeline.jobs.audit.history import cut, groups, list_history, load_conditions
from penstock.pipeline.jobs.audit.stored import HEADER, as_reads, shards_of
from penstock.pipeline.jobs.framework.reading import write_new
from penstock.proto.errors import ConfigError, Corrupt
from tests.support.cluster import histories
from tests.support.cluster.histories import SHARDS, STREAM

CONDITIONS = replace(histories.CONDITIONS, windows=[])


def test_a_folder_above_drills_is_no_history_and_names_them(tmp_path: Path) -> None:
    for name in ("one", "two"):
        histories.write(tmp_path / "drills" / name, histories.clean(40))
    with pytest.raises(ConfigError, match=r"drills: holds no file \*.history; name one of .*/one, .*/two$"):
        list_history(tmp_path / "drills")
    with pytest.raises(ConfigError, match=r"holds no file"):
        audit.check(audit.Config(history=str(tmp_path / "drills")))
    (tmp_path / "drills" / "two").rename(tmp_path / "drills" / "one" / "older")
    files = list_history(tmp_path / "drills" / "one")
    assert {Path(file.path).parent.name for file in files} == {"one"}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ([], r"\[\] is no object"),
        ({"mode": "durble"}, r'mode is "durble": expected one of async, flush, sync, durable'),
        ({"mode": ["durable"]}, r'mode is \["durable"\]'),
        ({"windows": None}, "windows is null: expected a list"),
        ({"windows": [3]}, r"windows\[0\] is 3: expected an object"),
        ({"windows": [{}]}, r"windows\[0\] has no start_ns"),
        ({"windows": [{"start_ns": 1, "end_ns": "2"}]}, r'windows\[0\].end_ns is "2": expected a whole number'),
        ({"windows": [{"start_ns": 2, "end_ns": 1}]}, r"windows\[0\] ends at 1, before its start_ns 2"),
        ({"windows": [{"start_ns": 1, "end_ns": 2, "what": 3}]}, r"windows\[0\].what is 3: expected a text"),
        ({"duplicates_allowed": "x"}, 'duplicates_allowed is "x": expected a whole number of 0 or more'),
        ({"duplicates_allowed": True}, "duplicates_allowed is true"),
        ({"commit_interval_ms": -1}, "commit_interval_ms is -1"),
        ({"comand": "x"}, "comand"),
    ],
)
def test_conditions_that_are_none_are_named(tmp_path: Path, document: Any, text: str) -> None:
    (tmp_path / "conditions.json").write_text(json.dumps(document))
    with pytest.raises(Corrupt, match=f"conditions.json: .*{text}"):
        load_conditions(tmp_path)


def test_conditions_that_are_sound_are_taken(tmp_path: Path) -> None:
    assert load_conditions(tmp_path) == Conditions(mode="durable")
    (tmp_path / "conditions.json").write_text(json.dumps({"mode": "async", "seed": 5}))
    assert load_conditions(tmp_path) == Conditions(mode="async", seed=5)


def test_an_output_that_exists_is_told_before_spark_starts(tmp_path: Path) -> None:
    history = str(histories.write(tmp_path / "h", histories.clean(40)))
    with pytest.raises(ConfigError, match=r"audit: output is .*h', which exists"):
        audit.check(audit.Config(history=history, output=history))
    audit.check(audit.Config(history=history, output=str(tmp_path / "new")))


def test_connect_knows_the_word_that_refuses_an_output_that_exists(tmp_path: Path) -> None:
    from pyspark.sql.connect.plan import Range, WriteOperation

    frame = MagicMock()
    write_new(frame, str(tmp_path / "new"))
    ((mode,), _) = frame.write.mode.call_args
    operation = WriteOperation(Range(0, 1, 1))
    operation.source, operation.mode = "parquet", mode
    command = operation.command(MagicMock()).write_operation
    assert command.mode == command.SaveMode.SAVE_MODE_ERROR_IF_EXISTS


def made_store(folder: Path) -> str:
    generate(folder, records=20, body_bytes=50, queues=2, segment_bytes=65536)
    return str(folder)


def test_a_store_is_one_of_the_historys_shards(tmp_path: Path) -> None:
    replica = made_store(tmp_path / "broker-a-0" / "store")
    plain = made_store(tmp_path / "broker-b" / "store")
    foreign = made_store(tmp_path / "elsewhere" / "store")
    assert shards_of((replica, plain), (), None, SHARDS) == ["broker-a", "broker-b"]
    assert shards_of((foreign,), ("broker-b",), None, SHARDS) == ["broker-b"]
    assert shards_of((replica,), (), None, ("broker-a-0", "broker-a")) == ["broker-a-0"]
    with pytest.raises(ConfigError, match=r"elsewhere/store is of broker 'elsewhere', the history knows broker-a, bro"):
        shards_of((replica, foreign), (), None, SHARDS)
    with pytest.raises(ConfigError, match=r"is of broker 'broker-x', the history knows broker-a"):
        shards_of((replica,), ("broker-x",), None, SHARDS)
    with pytest.raises(ConfigError, match=r"broker-a-0/store and .*elsewhere/store are both of broker-a"):
        shards_of((replica, foreign), ("broker-a-0", "broker-a"), None, SHARDS)
    with pytest.raises(ConfigError, match=r"audit: broker_name lists 1 names"):
        shards_of((replica, plain), ("broker-a",), None, SHARDS)


def test_a_topic_that_no_store_has_is_refused(tmp_path: Path) -> None:
    store = made_store(tmp_path / "broker-a-0" / "store")
    assert shards_of((store,), (), TOPIC, SHARDS) == ["broker-a"]
    with pytest.raises(ConfigError, match=r"audit: topic is 'Typo', which is in none of .*broker-a-0/store"):
        shards_of((store,), (), "Typo", SHARDS)
    history = str(histories.write(tmp_path / "h", histories.clean(40)))
    with pytest.raises(ConfigError, match=r"audit: topic is 'Typo'"):
        audit.check(audit.Config(history=history, store=(store,), topic="Typo"))


Record = tuple[str, int, int, int, int, bytes | None, int | None, int | None, int | None, int | None]


def joined(records: list[Record]) -> pa.RecordBatch:
    names = ("brokerName", "queueId", "queueOffset", "bodyCrc", "physicalOffset", "head", "stream", "sequence")
    kinds = (pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.int64(), pa.binary(), *[pa.int64()] * 4)
    columns = [pa.array(column, kind) for column, kind in zip(zip(*records, strict=True), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=[*names, "sameStream", "sameSequence"])


def head(stream: int, sequence: int) -> bytes:
    return np.array([(9, stream, sequence)], HEADER).tobytes()


def test_a_stored_record_is_found_by_place_number_or_checksum() -> None:
    large = (1 << 40) - 1
    records: list[Record] = [
        ("broker-b", 3, 17, 5, 1000, head(STREAM, 8), STREAM, 4, 2, 2),
        ("broker-a", 0, 0, 6, 2000, head(STREAM, large), None, None, 2, 2),
        ("broker-a", 0, 1, 7, 3000, head(99, 8), None, None, STREAM, 5),
        ("broker-a", 0, 2, 8, 4000, b"short", None, None, None, None),
        ("broker-a", 0, 3, 9, 5000, None, None, None, None, None),
    ]
    rows = as_reads(joined(records), SHARDS, [STREAM])
    assert rows["shard"].tolist() == [1, 0, 0, 0, 0]
    assert rows["stream"].tolist() == [STREAM, STREAM, STREAM, NOBODY, NOBODY]
    assert rows["sequence"].tolist() == [4, large, 5, 8000, 10_000]
    assert rows["offset"].tolist() == [17, 0, 1, 2, 3]
    assert set(rows["op"].tolist()) == {Op.READ}


def test_bodies_begin_as_the_load_generators_write_them() -> None:
    body = ledger.numbered_rows(64, 9, STREAM, 12, 1, 0)[0].tobytes()
    assert np.frombuffer(body[: HEADER.itemsize], HEADER)[0].tolist() == (9, STREAM, 12)


def judged(parts: dict[str, Any]) -> Tally:
    batches = [cut(events, 1, number, 0) for number, events in enumerate(parts.values())]
    tally = judge_groups(groups(batches), SHARDS, CONDITIONS)
    settle(tally, CONDITIONS)
    return tally


def test_stored_records_stand_for_reads_that_a_history_has_not() -> None:
    parts = {name: events for name, events in histories.clean(400).items() if name != "read"}
    assert judged(parts).wrong["I1"] == 400
    records: list[Record] = [
        (SHARDS[row["shard"]], row["queue"], row["offset"], row["crc"], at * 200, b"x", STREAM, at, None, None)
        for at, row in enumerate(parts["sent"])
    ]
    chooser = random.Random(3)
    chooser.shuffle(records)
    whole = judged({**parts, "stored": as_reads(joined(records), SHARDS, [STREAM])})
    assert was_read(whole)
    assert not +whole.wrong
    end = [sum(record[:2] == ("broker-a", queue) for record in records) for queue in range(2)]
    again: Record = ("broker-a", 0, end[0], 0, 99_999, b"x", None, None, STREAM, 0)
    nobody: Record = ("broker-a", 1, end[1], 1, 99_999, b"x", None, None, None, None)
    lost = records.index(next(record for record in records if record[7] == 201))
    damaged = [*records[:lost], *records[lost + 1 :], again, nobody]
    found = judged({**parts, "stored": as_reads(joined(damaged), SHARDS, [STREAM])})
    assert {name: found.wrong[name] for name in ("I1", "I2", "I5", "I7")} == {"I1": 1, "I2": 1, "I5": 1, "I7": 1}
    assert found.examples["I1"][0].startswith(f"message {STREAM}.201 at ")
