"""The views ``parts`` and ``queue_parts``: sums by part of a queue, against the messages one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.formats.record.layout import SysFlag
from penstock.pipeline.columns.schema import STORE_COLUMNS
from penstock.pipeline.jobs.rebuild.job import write_part
from penstock.pipeline.spark.arrow_types import arrow_schema
from penstock.pipeline.stores.derived import PART_COLUMNS, QUEUE_PART_COLUMNS, list_queue_files, plan_queues
from penstock.pipeline.stores.directory import list_store
from penstock.pipeline.stores.options import parse_options
from penstock.pipeline.stores.parts import PART_ENTRY, read_queue_parts
from penstock.pipeline.stores.scan.planning import plan_splits
from penstock.proto.errors import ConfigError
from penstock.proto.names import SCHEDULE_TOPIC
from tests.support import golden
from tests.support.store_rows import rows_of

SUMS = ("messages", "firstOffset", "lastOffset", "bytes", "digest")


def read(root: Path, columns: dict[str, str], **options: str) -> list[dict[str, Any]]:
    given = parse_options({"storePath": str(root), **options})
    return rows_of(plan_splits(list_store(str(root)), given), given, columns)


def has_entry(message: dict[str, Any]) -> bool:
    kind = message["sysFlag"] & SysFlag.TRANSACTION_MASK
    special = kind in (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK)
    return not special and not message["sysFlag"] & SysFlag.INNER_BATCH


@pytest.mark.parametrize("split_bytes", ["16k", "1g"])
@pytest.mark.parametrize("name", ["normal", "multi-queue"])
def test_a_part_sums_up_its_messages(name: str, split_bytes: str, tmp_path: Path) -> None:
    root = golden.unpack(name, tmp_path / "store", only=("commitlog",))
    wanted: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for message in read(root, STORE_COLUMNS | {"tagsCode": "bigint"}):
        offset = message["queueOffset"]
        place = message["topic"], message["queueId"], offset - offset % 3, has_entry(message)
        wanted.setdefault(place, []).append(message)
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for part in read(root, PART_COLUMNS, view="parts", partOffsets="3", splitBytes=split_bytes):
        place = part["topic"], part["queueId"], part["part"], part["hasEntries"]
        found.setdefault(place, []).append(part)
    assert found.keys() == wanted.keys()
    for place, parts in found.items():
        messages = wanted[place]
        assert sum(part["messages"] for part in parts) == len(messages)
        assert sum(part["bytes"] for part in parts) == sum(message["size"] for message in messages)
        assert min(part["firstOffset"] for part in parts) == min(m["queueOffset"] for m in messages)
        assert max(part["lastOffset"] for part in parts) == max(m["queueOffset"] for m in messages)
        assert parts[0]["physicalOffset"] == messages[0]["physicalOffset"]
        entries = np.frombuffer(b"".join(part["entries"] for part in parts), PART_ENTRY)
        assert [tuple(entry)[:4] for entry in entries.tolist()] == [
            (m["queueOffset"], m["physicalOffset"], m["size"], m["tagsCode"]) for m in messages
        ]


def test_a_log_and_its_queues_have_the_same_digests_and_another_position_another(tmp_path: Path) -> None:
    root = golden.unpack("multi-queue", tmp_path / "store", only=("commitlog", "consumequeue"))

    def digests(parts: list[dict[str, Any]]) -> dict[tuple[Any, ...], tuple[int, ...]]:
        found: dict[tuple[Any, ...], tuple[int, ...]] = {}
        for part in parts:
            place = part["topic"], part["queueId"], part["part"]
            sums = tuple(part[name] for name in SUMS)
            former = found.get(place)
            if former is not None:
                joined = zip((int.__add__, min, max, int.__add__, int.__xor__), former, sums, strict=True)
                sums = tuple(join(one, other) for join, one, other in joined)
            found[place] = sums
        return found

    def in_queues() -> dict[tuple[Any, ...], tuple[int, ...]]:
        store, given = list_store(str(root)), parse_options({"storePath": str(root)})
        schema = arrow_schema(QUEUE_PART_COLUMNS)
        batches = [b for split in plan_queues(store, given) for b in read_queue_parts(split, schema, 40)]
        return digests(pa.Table.from_batches(batches, schema).to_pylist())

    in_log = digests(read(root, PART_COLUMNS, view="parts", partOffsets="40"))
    assert in_queues() == in_log
    path = Path(list_queue_files(str(root))[0].path)
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)
    assert sum(in_log[place] != sums for place, sums in in_queues().items()) == 1


def test_queue_files_made_of_parts_are_those_that_rocketmq_wrote(tmp_path: Path) -> None:
    root = golden.unpack("normal", tmp_path / "store", only=("commitlog", "consumequeue"))
    files = list_queue_files(str(root))
    per_file = files[0].size // 20
    names = ("topic", "queueId", "part", "hasEntries", "entries", "innerBatches", "batches")
    columns = {name: PART_COLUMNS[name] for name in names}
    by_file: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for part in read(root, columns, view="parts", partOffsets=str(per_file)):
        if part["hasEntries"]:
            by_file.setdefault((part["topic"], part["queueId"], part["part"]), []).append(part)
    for parts in by_file.values():
        write_part(str(tmp_path / "made"), pa.Table.from_pylist(parts, arrow_schema(columns)), per_file)
    made = {file.path.split("/consumequeue/")[1]: file for file in list_queue_files(str(tmp_path / "made"))}
    assert any(name.startswith(SCHEDULE_TOPIC) for name in made)  # entries that hold a time in place of the tag
    for file in files:
        name = file.path.split("/consumequeue/")[1]
        written = Path(file.path).read_bytes().rstrip(b"\0")
        if name.startswith("%LMQ%") or not written:
            continue
        assert Path(made[name].path).read_bytes().rstrip(b"\0") == written, name


def test_a_part_has_at_least_one_offset(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="partOffsets is '0': expected a whole number of 1"):
        parse_options({"storePath": str(tmp_path), "partOffsets": "0"})
