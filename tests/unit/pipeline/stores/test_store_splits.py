"""Splits, damage and filters of the store reader, without Spark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from penstock.formats.record.layout import BLANK_BYTES, MAGIC_BLANK, PhysicalOffset, Record, encode_record
from penstock.pipeline.columns.columns import ColumnWriter
from penstock.pipeline.columns.schema import CORRUPT_COLUMN, STORE_COLUMNS
from penstock.pipeline.spark.arrow_types import arrow_schema
from penstock.pipeline.stores.directory import list_store
from penstock.pipeline.stores.files import FileReader, open_file_system
from penstock.pipeline.stores.model import Damage
from penstock.pipeline.stores.options import StoreOptions, parse_options
from penstock.pipeline.stores.scan.planning import plan_splits
from penstock.pipeline.stores.scan.scanning import FileScan
from penstock.proto.errors import ConfigError, Corrupt, StorageError, WrongStore
from tests.support import golden
from tests.support.store_rows import rows_of

SEGMENT_BYTES = 8192


def write_log(root: Path, records: list[Record], *, end_with_blank: bool = False) -> list[int]:
    """One log file with these records at their places; where each begins."""
    (root / "commitlog").mkdir(parents=True)
    content, starts = b"", []
    for record in records:
        starts.append(len(content))
        fields = {name: getattr(record, name) for name in ("topic", "body", "properties", "queue_id", "sys_flag")}
        content += encode_record(Record(**fields, physical_offset=PhysicalOffset(len(content)), store_timestamp_ms=1))
    if end_with_blank:
        left = SEGMENT_BYTES - len(content)
        assert left >= BLANK_BYTES
        content += left.to_bytes(4, "big") + (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
    (root / "commitlog" / f"{0:020d}").write_bytes(content.ljust(SEGMENT_BYTES, b"\0"))
    return starts


def positions(root: Path, **options: str) -> list[int]:
    return [row["physicalOffset"] for row in rows(root, **options)]


def rows(root: Path, **options: str) -> list[dict[str, Any]]:
    chosen = parse_options({"storePath": str(root), **options})
    columns = STORE_COLUMNS | CORRUPT_COLUMN if chosen.on_corrupt == "emit" else STORE_COLUMNS
    return read(root, chosen, columns)


def read(root: Path, options: StoreOptions, columns: dict[str, str]) -> list[dict[str, Any]]:
    return rows_of(plan_splits(list_store(str(root), up_to=options.up_to), options), options, columns)


def test_a_file_cut_at_any_byte_gives_each_record_once(tmp_path: Path) -> None:
    root = golden.unpack("direct", tmp_path / "store", only=("commitlog",))
    file = list_store(str(root)).files[1]
    wanted = [m["physicalOffset"] for m in golden.expected("direct")["messages"]]
    wanted = [at for at in wanted if file.start <= at < file.start + file.size]
    file_system, _ = open_file_system(str(root))
    with FileReader(file_system, file.path) as reader:
        scan = FileScan(reader, file.start, file.size, check_crc=True, needs_blank=True)
        for cut in [*range(0, file.size, 97), *range(1000), *range(file.size - 300, file.size + 1)]:
            found: list[int] = []
            for begin, end in ((0, cut), (cut, file.size)):
                for piece in scan.read(begin, end):
                    assert not isinstance(piece, Damage), piece
                    found += piece[1]["physical_offset"].tolist()
            assert found == wanted, cut


def test_damage_is_told_once_wherever_the_file_is_cut(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    root = golden.unpack("direct", tmp_path / "store", only=("commitlog",))
    file = list_store(str(root)).files[0]
    content = bytearray(Path(file.path).read_bytes())
    starts = [m["physicalOffset"] for m in golden.expected("direct")["messages"] if m["physicalOffset"] < file.size]
    victims = chance.sample(range(1, len(starts) - 1), 3)
    for victim in victims:
        content[starts[victim] + 4] ^= 0xFF  # the magic
    Path(file.path).write_bytes(content)
    file_system, _ = open_file_system(str(root))
    with FileReader(file_system, file.path) as reader:
        scan = FileScan(reader, file.start, file.size, check_crc=True, needs_blank=True)
        for cut in [chance.randrange(file.size) for _ in range(100)] + [starts[victims[0]], starts[victims[0] + 1]]:
            records: list[int] = []
            damages: list[int] = []
            for begin, end in ((0, cut), (cut, file.size)):
                for piece in scan.read(begin, end):
                    if isinstance(piece, Damage):
                        damages.append(piece.start)
                    else:
                        records += piece[1]["physical_offset"].tolist()
            assert records == [at for number, at in enumerate(starts) if number not in victims], (seed, cut)
            first = [victim for victim in sorted(victims) if victim - 1 not in victims]
            assert damages == [starts[victim] for victim in first], (seed, cut)


def test_a_body_that_holds_records_of_another_log_is_one_message(tmp_path: Path) -> None:
    inner = encode_record(Record(topic="Inner", body=b"x" * 40, physical_offset=PhysicalOffset(999_999)))
    starts = write_log(tmp_path, [Record(topic="Outer", body=inner * 20), Record(topic="Outer", body=b"y")])
    for split_bytes in (4096, 5000):
        assert positions(tmp_path, splitBytes=str(split_bytes)) == starts


def test_a_body_that_forges_a_record_of_this_log_is_refused_by_name(tmp_path: Path) -> None:
    place = 4000
    forged = encode_record(Record(topic="Forged", body=b"z", physical_offset=PhysicalOffset(place)))
    body = (b"." * (place - 88) + forged).ljust(5000, b".")
    starts = write_log(tmp_path, [Record(topic="Outer", body=body), Record(topic="Outer", body=b"y")])
    assert positions(tmp_path) == starts
    scan_all = parse_options({"storePath": str(tmp_path)})
    store = list_store(str(tmp_path))
    file_system, _ = open_file_system(str(tmp_path))
    with FileReader(file_system, store.files[0].path) as reader:
        scan = FileScan(reader, 0, store.files[0].end, check_crc=True)
        with pytest.raises(StorageError, match=f"looks like a record of this log at {place}: .* splitBytes"):
            list(scan.read(0, 3000))
    assert scan_all.split_bytes > 8192


def test_topics_queues_times_and_positions_select_rows(tmp_path: Path) -> None:
    root = golden.unpack("direct", tmp_path / "store", only=("commitlog",))
    messages = golden.expected("direct")["messages"]
    middle = messages[90]["storeTimestamp"]
    found = positions(root, topics="Tags,Keys", startTimestamp=str(middle))
    assert found == [
        m["physicalOffset"] for m in messages if m["topic"] in ("Tags", "Keys") and m["storeTimestamp"] >= middle
    ]
    place = messages[50]["physicalOffset"]
    assert positions(root, startPhysicalOffset=str(place), endPhysicalOffset=str(place + 1)) == [place]
    assert positions(root, queueIds="2000000") == [m["physicalOffset"] for m in messages if m["queueId"] == 2_000_000]


def test_an_open_store_is_read_to_its_end_and_a_torn_tail_left_out(tmp_path: Path) -> None:
    root = golden.unpack("crashed", tmp_path / "store", only=("commitlog", "checkpoint", "abort"))
    messages = golden.expected("crashed")["messages"]
    last = messages[-1]
    path = root / "commitlog" / f"{last['physicalOffset'] // 65536 * 65536:020d}"
    content = bytearray(path.read_bytes())
    content[last["physicalOffset"] % 65536 + last["totalSize"] - 200] ^= 1
    path.write_bytes(content)
    store = list_store(str(root))
    assert store.is_open
    assert store.tail == "torn: the body does not match its checksum"
    assert positions(root) == [m["physicalOffset"] for m in messages[:-1]]


def test_a_missing_log_file_is_damage(tmp_path: Path) -> None:
    root = golden.unpack("direct", tmp_path / "store", only=("commitlog",))
    (root / "commitlog" / f"{16384:020d}").unlink()
    with pytest.raises(Corrupt, match="at 16384: no log file for the bytes 16384 to 32768"):
        positions(root)
    (gap,) = [row for row in rows(root, onCorrupt="emit") if row["corrupt"]]
    assert (gap["physicalOffset"], gap["size"]) == (16384, 16384)


def test_an_unreadable_body_fails_or_is_null(tmp_path: Path) -> None:
    starts = write_log(tmp_path, [Record(topic="T", body=b"no zlib data", sys_flag=1), Record(topic="T", body=b"ok")])
    with pytest.raises(Corrupt, match=f"at {starts[0]}: body is neither zlib nor GZIP data"):
        positions(tmp_path)
    found = rows(tmp_path, onCorrupt="emit")
    assert [(row["body"], row["corrupt"] is None) for row in found] == [(None, False), (b"ok", True)]
    assert [row["body"] for row in rows(tmp_path, decompress="false")] == [b"no zlib data", b"ok"]


def test_text_that_is_not_utf8_is_replaced(tmp_path: Path) -> None:
    write_log(tmp_path, [Record(topic="T", body=b"", properties=b"TAGS\x01\xff\xfe\x02a\x01b\x02a\x01c\x02")])
    (row,) = rows(tmp_path)
    assert row["tags"] == "\ufffd\ufffd"
    assert row["properties"] == [("TAGS", "\ufffd\ufffd"), ("a", "c")]
    (row,) = read(tmp_path, parse_options({"path": str(tmp_path)}), {"properties": "string"})
    assert row["properties"] == "TAGS\x01\ufffd\ufffd\x02a\x01b\x02a\x01c\x02"


def test_bad_stores_and_options_are_refused_by_name(tmp_path: Path) -> None:
    for given, text in {
        "": "storePath is missing",
        "storePath=a,path=b": "options storePath and path: give only one of",
        "storePath=a,verfy=crc": "no option 'verfy' .did you mean 'verify'",
        "storePath=a,verify=maybe": "verify is 'maybe': expected one of crc, none",
        "storePath=a,splitBytes=1": "splitBytes is '1': expected a whole number of 4,096",
        "storePath=a,startTimestamp=soon": "startTimestamp is 'soon': expected a time",
        "storePath=a,startTimestamp=5,endTimestamp=5": "the range 5 to 5 is empty",
        "storePath=a,view=queues,endTimestamp=5": "endTimestamp does nothing in the view queues: .* messages, parts",
        "storePath=a,view=segments,topics=T": "topics does nothing in the view segments: it is for messages, parts, q",
        "storePath=a,view=index,topics=T": "topics does nothing in the view index",
        "storePath=a,view=segments,queueIds=1": "queueIds does nothing in the view segments",
        "storePath=a,view=index,queueIds=1": "queueIds does nothing in the view index",
        "storePath=a,view=queues,verify=none": "verify does nothing in the view queues: .* messages, parts, segments",
        "storePath=a,view=index,verify=none": "verify does nothing in the view index",
        "storePath=a,view=queue_parts,verify=crc": "verify does nothing in the view queue_parts",
        "storePath=a,view=queues,onCorrupt=skip": "onCorrupt does nothing in the view queues: .* messages, parts",
        "storePath=a,view=index,onCorrupt=emit": "onCorrupt does nothing in the view index",
        "storePath=a,view=segments,onCorrupt=skip": "onCorrupt does nothing in the view segments",
        "storePath=a,view=segments,verify=full": "verify is 'full': the view segments looks at no queues",
    }.items():
        options = dict(pair.split("=") for pair in given.split(",") if pair)
        with pytest.raises(ConfigError, match=text):
            parse_options(options)
    with pytest.raises(ConfigError, match="no such directory"):
        list_store(str(tmp_path / "absent"))
    with pytest.raises(WrongStore, match="holds no store"):
        list_store(str(tmp_path))
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(WrongStore, match="holds no log file"):
        list_store(str(tmp_path))
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(b"something else entirely".ljust(4096, b"!"))
    with pytest.raises(Corrupt, match="no record in it"):
        list_store(str(tmp_path))


def test_a_batch_ends_before_it_grows_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path, [Record(topic="T", body=b"x" * 900) for _ in range(5)])
    monkeypatch.setattr("penstock.pipeline.columns.columns.BATCH_BYTES", 2100)
    store = list_store(str(tmp_path))
    file_system, _ = open_file_system(str(tmp_path))
    with FileReader(file_system, store.files[0].path) as reader:
        ((window, found),) = list(FileScan(reader, 0, store.files[0].end, check_crc=False).read(0, 8192))  # type: ignore[misc]
        writer = ColumnWriter(arrow_schema({"body": "binary"}), broker_name="b")
        assert [batch.num_rows for batch in writer.batches(window, found)] == [2, 2, 1]
