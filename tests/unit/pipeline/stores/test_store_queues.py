"""What the store source does with consume queues: reading by their entries, and proving records against them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.formats.record.layout import PhysicalOffset, QueueOffset, Record, encode_record
from penstock.pipeline.columns.schema import CORRUPT_COLUMN, STORE_COLUMNS
from penstock.pipeline.stores.directory import list_store
from penstock.pipeline.stores.files import open_file_system
from penstock.pipeline.stores.model import LogFile
from penstock.pipeline.stores.options import parse_options
from penstock.pipeline.stores.scan.accounting import Account
from penstock.pipeline.stores.scan.picking import plan_picks
from penstock.pipeline.stores.scan.planning import Split, plan_splits
from penstock.pipeline.stores.scan.proving import require_queues
from penstock.proto.errors import ConfigError, Corrupt
from tests.support import golden
from tests.support.store_rows import rows_of


def rows(splits: list[Split], root: Path, **options: str) -> list[dict[str, Any]]:
    columns = STORE_COLUMNS | (CORRUPT_COLUMN if options.get("onCorrupt") == "emit" else {})
    return rows_of(splits, parse_options({"storePath": str(root), **options}), columns)


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
    assert splits is not None
    assert rows(splits, root, topics=topic) == wanted
    if not wanted:
        assert {split.file for split in splits} == {list_store(str(root)).files[6]}  # where not all have entries
        return
    assert any(split.picks is not None for split in splits)
    assert len(splits) > 1 or split_bytes == "1m" or sum(row["size"] for row in wanted) < 4096
    middle = wanted[len(wanted) // 2]["physicalOffset"]
    upper = picks(root, topics=topic, startPhysicalOffset=str(middle))
    assert upper is not None
    assert rows(upper, root, topics=topic) == wanted[len(wanted) // 2 :]


def test_queues_are_read_by_where_they_account_for_a_log_of_which_they_name_little(tmp_path: Path) -> None:
    root = golden.unpack("normal", tmp_path / "store", only=("commitlog", "consumequeue"))
    assert picks(root, topics="GoldOrder") is not None
    assert picks(root, topics="GoldOrder", useConsumeQueue="false") is None
    assert picks(root, topics="GoldOrder", verify="full") is None  # which proves the queues
    assert picks(root) is None
    assert picks(root, topics="GoldTopic,GoldMixed,GoldOrder") is None  # more than a fifth
    (root / "abort").touch()  # open: its queues may be behind, but these are not
    assert picks(root, topics="GoldOrder") is not None
    before = picks(root, topics="GoldOrder") or []
    _zero_entry(root, "GoldOrder", -1)
    behind = picks(root, topics="GoldOrder") or []
    assert sum(split.picks is None for split in behind) > sum(split.picks is None for split in before)


def _zero_entry(root: Path, topic: str, number: int) -> None:
    """Take the first (0) or last (-1) entry of one of the topic's queues away."""
    files = sorted((root / "consumequeue" / topic).glob("*/*"))
    path = next(path for path in files if any(path.read_bytes()))
    content = bytearray(path.read_bytes())
    used = [at for at in range(0, len(content), 20) if 0 < int.from_bytes(content[at + 8 : at + 12], "big") < 2**31 - 1]
    content[used[number] : used[number] + 20] = bytes(20)
    path.write_bytes(content)


def _drop_queue(root: Path, topic: str) -> None:
    used = [path.parent for path in (root / "consumequeue" / topic).glob("*/*") if any(path.read_bytes())]
    shutil.rmtree(used[0])


FAULTS: dict[str, Callable[[Path, str], None]] = {
    "last entry": lambda root, topic: _zero_entry(root, topic, -1),
    "first entry": lambda root, topic: _zero_entry(root, topic, 0),
    "queue": _drop_queue,
    "topic": lambda root, topic: shutil.rmtree(root / "consumequeue" / topic),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("topic", ["%DLQ%GoldRetryGroup", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "GoldOrder", "GoldDelay"])
def test_a_query_by_topic_finds_records_that_a_closed_stores_queues_lack(
    tmp_path: Path, topic: str, fault: str
) -> None:
    root = golden.unpack("normal", tmp_path / "store", only=("commitlog", "consumequeue"))
    wanted = scanned(root, topics=topic)
    FAULTS[fault](root, topic)
    splits = picks(root, topics=topic)
    assert splits is not None
    assert rows(splits, root, topics=topic) == wanted
    assert any(split.picks is None for split in splits)  # the files that miss an entry are scanned


@pytest.mark.parametrize("fault", FAULTS)
def test_full_verification_names_a_record_that_its_queue_lacks(tmp_path: Path, fault: str) -> None:
    root = golden.unpack("normal", tmp_path / "store", only=("commitlog", "consumequeue"))
    topic = "%DLQ%GoldRetryGroup"
    FAULTS[fault](root, topic)
    assert picks(root, topics=topic, verify="full") is None
    with pytest.raises(Corrupt, match=f"{topic}, queue 0 has no entry at"):
        scanned(root, topics=topic, verify="full")


def test_full_verification_misses_the_first_file_of_a_queue(tmp_path: Path) -> None:
    record = Record(topic="T", queue_id=0, queue_offset=QueueOffset(0), body=b"x", physical_offset=PhysicalOffset(0))
    log = tmp_path / "commitlog" / f"{0:020d}"
    queue = tmp_path / "consumequeue" / "T" / "0"
    log.parent.mkdir()
    queue.mkdir(parents=True)
    log.write_bytes(encode_record(record).ljust(4096, b"\0"))
    (queue / f"{400:020d}").write_bytes(bytes(400))
    with pytest.raises(Corrupt, match="T, queue 0 has no entry at 0"):
        scanned(tmp_path, verify="full")


def test_an_entry_that_occurs_twice_does_not_stand_for_one_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(400))
    file = LogFile(str(path), 1000, 400, 400, False)
    system = open_file_system(str(tmp_path))[0]

    def covered(*queues: list[int]) -> bool:
        account = Account([file])
        for positions in queues:
            account.add(np.array(positions, np.int64), np.full(len(positions), 100, np.int64))
        return account.covered(system) == [file]

    assert covered([1000, 1200], [1100, 1300], [1400, 1500])  # the last ones are of the next file
    assert not covered([1000, 1200], [1100])
    assert not covered([1000, 1200], [1300])
    assert not covered([1000, 1200], [1200, 1300])
    assert not covered([1000, 1100, 1200, 1100, 1300])


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


@pytest.mark.parametrize("name", ["normal", "multi-queue", "direct", "direct-trimmed", "ha/classic/master"])
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
