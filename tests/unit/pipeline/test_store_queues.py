"""What the store source does with consume queues: reading by their entries, and proving records against them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.pipeline.arrow_types import arrow_schema
from penstock.pipeline.schema import CORRUPT_COLUMN, STORE_COLUMNS
from penstock.pipeline.stores.directory import list_store
from penstock.pipeline.stores.messages import read_split
from penstock.pipeline.stores.options import parse_options
from penstock.pipeline.stores.picking import plan_picks
from penstock.pipeline.stores.planning import Split, plan_splits
from penstock.pipeline.stores.proving import require_queues
from penstock.proto.errors import ConfigError, Corrupt
from tests.support import golden


def rows(splits: list[Split], root: Path, **options: str) -> list[dict[str, Any]]:
    columns = STORE_COLUMNS | (CORRUPT_COLUMN if options.get("onCorrupt") == "emit" else {})
    given, schema = parse_options({"storePath": str(root), **options}), arrow_schema(columns)
    batches = [batch for split in splits for batch in read_split(split, given, schema)]
    return pa.Table.from_batches(batches, schema).to_pylist()


def picks(root: Path, **options: str) -> list[Split] | None:
    return plan_picks(list_store(str(root)), parse_options({"storePath": str(root), **options}))


def scanned(root: Path, **options: str) -> list[dict[str, Any]]:
    given = parse_options({"storePath": str(root), **options})
    return rows(list(plan_splits(list_store(str(root)), given)), root, **options)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("split_bytes", ["4096", "1m"])
@pytest.mark.parametrize("topic", ["GoldOrder", "GoldPop", "GoldDelay,GoldAuto", "GoldIpv6", "%RETRY%GoldRetryGroup"])
def test_picked_records_are_those_that_a_scan_finds(tmp_path: Path, topic: str, split_bytes: str) -> None:
    root = golden.unpack("normal", tmp_path / "store", only=("commitlog", "consumequeue"))
    wanted = scanned(root, topics=topic)
    splits = picks(root, topics=topic, splitBytes=split_bytes)
    if not wanted:
        assert splits is None  # no queue says that there is nothing: the scan does
        return
    assert splits is not None
    assert rows(splits, root, topics=topic) == wanted
    assert len(splits) > 1 or split_bytes == "1m" or sum(row["size"] for row in wanted) < 4096
    middle = wanted[len(wanted) // 2]["physicalOffset"]
    upper = picks(root, topics=topic, startPhysicalOffset=str(middle))
    assert upper is not None
    assert rows(upper, root, topics=topic) == wanted[len(wanted) // 2 :]


def test_a_queue_that_cannot_be_trusted_or_names_much_of_the_log_is_not_read_by(tmp_path: Path) -> None:
    root = golden.unpack("normal", tmp_path / "store", only=("commitlog", "consumequeue"))
    assert picks(root, topics="GoldOrder") is not None
    assert picks(root, topics="GoldOrder", useConsumeQueue="false") is None
    assert picks(root, topics="GoldOrder,Absent") is None
    assert picks(root) is None
    assert picks(root, topics="GoldTopic,GoldMixed,GoldOrder") is None  # more than a fifth
    (root / "abort").touch()  # open, and RocketMQ's: its queues may be behind
    assert picks(root, topics="GoldOrder") is None
    (root / "abort").unlink()
    path = next(path for path in (root / "consumequeue" / "GoldOrder").glob(f"*/{0:020d}") if any(path.read_bytes()))
    content = bytearray(path.read_bytes())
    content[20:40] = bytes(20)  # a hole
    path.write_bytes(content)
    assert picks(root, topics="GoldOrder") is None


def test_damage_of_a_picked_record_is_treated_as_the_options_say(tmp_path: Path) -> None:
    root = golden.unpack("normal", tmp_path / "store", only=("commitlog", "consumequeue"))
    wanted = scanned(root, topics="GoldOrder")
    bodies, heads = wanted[3], wanted[7]
    for victim, at in ((bodies, 90), (heads, 5)):  # of the body, of the magic
        path = max(path for path in (root / "commitlog").iterdir() if int(path.name) <= victim["physicalOffset"])
        flip(path, victim["physicalOffset"] - int(path.name) + at)
    splits = picks(root, topics="GoldOrder")
    assert splits is not None
    with pytest.raises(Corrupt, match="does not match its checksum"):
        rows(splits, root, topics="GoldOrder")
    left = [row for row in wanted if row not in (bodies, heads)]
    assert rows(splits, root, topics="GoldOrder", onCorrupt="skip") == left
    told = {row["physicalOffset"]: row["corrupt"] for row in rows(splits, root, topics="GoldOrder", onCorrupt="emit")}
    assert told[heads["physicalOffset"]] == "a queue entry names it, and there is no such record"


@pytest.mark.parametrize("name", ["normal", "multi-queue", "direct"])
def test_golden_stores_stand_full_verification(tmp_path: Path, name: str) -> None:
    root = golden.unpack(name, tmp_path / "store", only=("commitlog", "consumequeue"))
    assert scanned(root, verify="full") == scanned(root)


def test_full_verification_names_wrong_and_missing_entries_and_jumps(tmp_path: Path) -> None:
    root = golden.unpack("multi-queue", tmp_path / "store", only=("commitlog", "consumequeue"))
    queues = root / "consumequeue" / "ManyQueues"
    flip(queues / "5" / f"{0:020d}", 27)  # the position that the second entry names
    missing = queues / "6" / f"{0:020d}"
    missing.write_bytes(bytes(60) + missing.read_bytes()[60:])
    told = [row["corrupt"] for row in scanned(root, verify="full", onCorrupt="emit") if row["corrupt"]]
    assert sum("entry 1 of ManyQueues, queue 5 names" in text for text in told) == 1
    assert sum("ManyQueues, queue 6 has no entry at" in text for text in told) == 3
    assert len(told) == 4
    assert len(scanned(root, verify="full", onCorrupt="skip")) == 640 - 4
    with pytest.raises(Corrupt, match="ManyQueues, queue"):
        scanned(root, verify="full")
    assert len(scanned(root, verify="crc")) == 640


def test_full_verification_finds_a_queue_offset_that_does_not_follow(tmp_path: Path) -> None:
    root = golden.unpack("multi-queue", tmp_path / "store", only=("commitlog", "consumequeue"))
    victim = [m for m in golden.expected("multi-queue")["messages"] if m["queueId"] == 3][1]
    path = max(path for path in (root / "commitlog").iterdir() if int(path.name) <= victim["physicalOffset"])
    at = victim["physicalOffset"] - int(path.name) + 20
    content = bytearray(path.read_bytes())
    content[at : at + 8] = (victim["queueOffset"] + 7_000).to_bytes(8, "big")
    path.write_bytes(content)
    told = [row["corrupt"] for row in scanned(root, verify="full", onCorrupt="emit") if row["corrupt"]]
    assert told[0] == f"queue offset {victim['queueOffset'] + 7000} of ManyQueues, queue 3 follows 0 in the log"


def test_full_verification_without_queues_is_refused(tmp_path: Path) -> None:
    root = golden.unpack("multi-queue", tmp_path / "store", only=("commitlog",))
    with pytest.raises(ConfigError, match=r"verify=full compares .* no consumequeue/"):
        require_queues(str(root))
