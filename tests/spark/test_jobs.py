"""The jobs over stores, lakes and histories, in the shared session."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.inspection import list_store as inspect_store
from penstock.inspection import rebuild as rebuild_on_one_machine
from penstock.judge.history import Op
from penstock.judge.invariants.promises import LATER
from penstock.pipeline.jobs import audit, query, stats
from penstock.pipeline.jobs.archive import job as archive
from penstock.pipeline.jobs.rebuild import job as rebuild
from penstock.pipeline.jobs.verify import job as verify
from penstock.pipeline.lake.lake import Lake
from penstock.proto.errors import ConfigError
from tests.support import golden
from tests.support.cluster import histories

NAME = "multi-queue"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(golden.unpack(NAME, tmp_path_factory.mktemp("golden") / NAME))


@pytest.fixture(autouse=True)
def _rows_of_the_driver_start_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a list of them Spark makes a frame by a daemon of its own, and workers of that."""

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a Python worker is wanted for rows that the driver has")

    monkeypatch.setattr("pyspark.SparkContext.parallelize", refuse)


def test_a_store_is_archived_once_and_searched(spark: Any, store: str, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    messages = golden.expected(NAME)["messages"]
    sealed = archive.run(spark, archive.Config(store=(store,), lake=lake))
    assert sealed.figures["watermarks"] == {NAME: 131_072}
    everything = archive.run(spark, archive.Config(store=(store,), lake=lake, tail=True))
    assert (everything.figures["segments"], everything.figures["skipped_segments"]) == (1, 2)
    assert sealed.figures["rows"] + everything.figures["rows"] == len(messages)
    assert everything.figures["watermarks"] == {NAME: golden.expected(NAME)["commitLog"]["maxOffset"]}
    key = messages[100]["properties"]["KEYS"]
    wanted = [m["msgId"] for m in messages if m["properties"].get("KEYS") == key]
    report = query.run(spark, query.Config(lake=lake, key=key))
    (table,) = report.tables
    assert sorted(row[table.columns.index("messageId")] for row in table.rows) == sorted(wanted)
    with pytest.raises(ConfigError, match=r"no message of the topic 'ManyQueue' .did you mean 'ManyQueues'"):
        query.run(spark, query.Config(lake=lake, topic="ManyQueue"))


def test_the_check_of_an_archive_finds_a_changed_store(spark: Any, store: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    archive.run(spark, archive.Config(store=(store,), lake=str(lake)))
    path = max(lake.glob("messages/_delta_log/*.json"))
    entry, text = Lake(str(lake)).entries()[0], path.read_text()
    for said, other in (
        (f'"crc32":{entry.crc32}', f'"crc32":{entry.crc32 ^ 1}'),
        (f'"rows":{entry.rows}', f'"rows":{entry.rows + 1}'),
    ):
        assert said in text
        text = text.replace(said, other, 1)
    path.write_text(text)
    report = archive.run(spark, archive.Config(store=(store,), lake=str(lake), check=True))
    assert [problem["problem"].split()[0:3] for problem in report.problems] == [
        ["the", "log", "file"],
        ["the", "lake", "holds"],
    ]


def test_a_sound_store_passes_and_a_wrong_queue_entry_is_named(spark: Any, store: str, tmp_path: Path) -> None:
    report = verify.run(spark, verify.Config(store=(store,), replica=store))
    assert report.ok, report.problems
    assert report.figures["records"] == report.figures["queue_entries"] == 640
    assert report.figures["differing_blocks"] == 0
    damaged = golden.unpack(NAME, tmp_path / NAME)
    path = damaged / "consumequeue" / "ManyQueues" / "5" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[27] ^= 1  # the position of the second entry
    path.write_bytes(content)
    log = damaged / "commitlog" / f"{0:020d}"
    log.write_bytes(log.read_bytes()[:-1] + b"\x01")
    report = verify.run(spark, verify.Config(store=(str(damaged),), replica=store))
    assert [(p.get("queue"), p.get("queue_offset"), p.get("offset")) for p in report.problems] == [
        (5, 1, None),
        (None, None, 65_535),
    ]


def test_damage_and_impossible_numbers_are_named_and_end_no_job(spark: Any, store: str, tmp_path: Path) -> None:
    damaged = golden.unpack(NAME, tmp_path / NAME)
    messages = golden.expected(NAME)["messages"]
    log = damaged / "commitlog" / f"{0:020d}"
    content = bytearray(log.read_bytes())
    first = messages[0]["physicalOffset"]
    second = next(message["physicalOffset"] for message in messages[1:] if message["queueId"] == 5)
    content[first + 88] ^= 1  # a body, which does not match its checksum any more
    content[second + 20] ^= 0x80  # the sign of a queue offset, which no checksum covers
    log.write_bytes(content)
    report = verify.run(spark, verify.Config(store=(str(damaged),)))
    assert not report.ok
    problems = [(p["problem"], p.get("queue"), p.get("queue_offset"), p.get("offset")) for p in report.problems]
    assert ("the body does not match its checksum", None, None, first) in problems
    assert (f"the record at {second} has no queue entry", 5, -(1 << 63), None) in problems
    assert (f"the queue entry names {second}, where no record of this queue lies", 5, 0, None) in problems
    shape = {"entries_per_file": 40, "index_slots": 100, "index_entries": 500, "on_corrupt": "skip"}
    (damaged / "consumequeue" / "ManyQueues" / "6" / f"{0:020d}").unlink()  # what is there counts for nothing
    report = rebuild.run(spark, rebuild.Config(store=str(damaged), into=str(tmp_path / "made"), **shape))
    offset = -(1 << 63)
    assert any(p["problem"].endswith(f"can hold the offsets {offset} to {offset}") for p in report.problems)
    assert (tmp_path / "made" / "consumequeue" / "ManyQueues" / "6").is_dir()
    assert {file.name for file in (tmp_path / "made").rglob("ManyQueues/5/*")} == {f"{0:020d}"}


def test_holes_duplicates_and_unsound_topics_are_named_in_the_store_that_has_them(
    spark: Any, store: str, tmp_path: Path
) -> None:
    damaged = golden.unpack(NAME, tmp_path / "damaged")
    messages = golden.expected(NAME)["messages"]
    _, moved, third, *_ = (message["physicalOffset"] for message in messages if message["queueId"] == 5)
    renamed = next(message["physicalOffset"] for message in messages if message["queueId"] == 6)
    change(damaged, moved + 20, (2).to_bytes(8, "big"))  # offset 1 is gone, 2 is there twice
    with open(damaged / "commitlog" / f"{renamed // 65_536 * 65_536:020d}", "rb") as file:
        name_at = file.read().index(b"ManyQueues", renamed % 65_536)
    change(damaged, renamed // 65_536 * 65_536 + name_at, b"\xff")  # a topic that is no text
    report = verify.run(spark, verify.Config(store=(store, str(damaged)), index=False))  # it knows the former topic
    assert {problem["broker"] for problem in report.problems} == {"damaged"}
    assert {(problem["problem"], problem.get("queue"), problem.get("queue_offset")) for problem in report.problems} == {
        ("the topic '\N{REPLACEMENT CHARACTER}anyQueues' is no name", None, None),
        (f"the queue entry names {moved}, where no record of this queue lies", 5, 1),
        (f"the queue entry names {third} (261 bytes), the record lies at {moved} (261 bytes)", 5, 2),
        ("queue offset 2 follows 0 in the log", 5, None),
        ("queue offset 2 follows 2 in the log", 5, None),
        (f"the queue entry names {renamed}, where no record of this queue lies", 6, 0),
    }
    shape = {"entries_per_file": 40, "index_slots": 100, "index_entries": 500}
    report = rebuild.run(spark, rebuild.Config(store=str(damaged), into=str(tmp_path / "made"), **shape))
    assert {(problem["problem"], problem.get("queue")) for problem in report.problems} == {
        ("1 offsets between 0 and 2 are not in the log", 5),
        ("1 offsets from 0 to 2 are in the log twice", 5),
        ("no queue file may be called so as to hold the offsets 0 to 0", 6),
    }


def change(store: Path, position: int, content: bytes) -> None:
    """Overwrite bytes of a log whose files have 64 KiB."""
    start = position // 65_536 * 65_536
    with open(store / "commitlog" / f"{start:020d}", "r+b") as file:
        file.seek(position - start)
        file.write(content)


def test_rebuilt_queues_are_those_that_one_machine_makes(spark: Any, store: str, tmp_path: Path) -> None:
    shape = {"entries_per_file": 40, "index_slots": 100, "index_entries": 500}  # as in the golden store
    report = rebuild.run(spark, rebuild.Config(store=store, into=str(tmp_path / "spark"), **shape))
    assert report.ok
    rebuild_on_one_machine(inspect_store(Path(store)), tmp_path / "single")

    def entries(root: Path) -> dict[Path, bytes]:
        queues = root / "consumequeue"
        files = (path for path in queues.rglob("*") if path.is_file())
        return {path.relative_to(queues): path.read_bytes().rstrip(b"\0") for path in files}

    def index(root: Path) -> list[bytes]:
        return [path.read_bytes() for path in sorted((root / "index").iterdir())]

    assert entries(tmp_path / "spark") == entries(tmp_path / "single")
    assert index(tmp_path / "spark") == index(tmp_path / "single")
    with pytest.raises(ConfigError, match="exists: name a directory that does not"):
        rebuild.run(spark, rebuild.Config(store=store, into=str(tmp_path / "spark")))


def test_statistics_count_what_is_there(spark: Any, store: str, tmp_path: Path) -> None:
    report = stats.run(spark, stats.Config(store=(store,)))
    messages = golden.expected(NAME)["messages"]
    assert report.figures["messages"] == len(messages)
    assert report.figures["bytes"] == sum(message["totalSize"] for message in messages)
    (tags,) = (table for table in report.tables if table.title == "Most frequent tags")
    assert {row[1]: row[2] for row in tags.rows} == Counter(m["properties"]["TAGS"] for m in messages)
    report.write(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "http" not in page
    nothing = stats.run(spark, stats.Config(store=(store,), start="2100-01-01"))
    assert (nothing.ok, nothing.figures["messages"]) == (False, 0)
    assert nothing.problems == [{"problem": "no message was found", "stores": store, "start": "2100-01-01"}]


def broken(parts: dict[str, Any]) -> dict[str, Any]:
    """A history in which each of the invariants is broken once."""
    parts = {name: events.copy() for name, events in parts.items()}
    sent, read, received = parts["sent"], parts["read"], parts["received"]
    parts["read"] = read[read["sequence"] != 50]  # I1, and a gap: I5
    parts["read"]["sequence"][10] = 9_999  # I2, I3, and the message that was there is lost: I1
    received["end_ns"][[200, 207]] = received["end_ns"][[207, 200]]  # I4
    parts["again"] = received[300:304].copy()  # one more than allowed: I7
    parts["again"]["end_ns"] += 3 * histories.MS
    parts["looks"]["offset"][15] = 0  # I5
    sent["epoch"][397] = 1  # I9
    for name, (op, stream) in {"I15": (Op.GIVE_BACK, 7), "I17": (Op.DECIDE, 7 << 20), "I18": (Op.LATER, LATER)}.items():
        parts[name] = histories.rows(1)  # and never seen again
        parts[name]["op"], parts[name]["stream"], parts[name]["end_ns"] = op, stream, 1000 * histories.MS
    parts["orderly"] = histories.rows(2)  # at once: I16
    parts["orderly"]["op"], parts["orderly"]["shard"], parts["orderly"]["queue"] = Op.WORK, 0, 1
    parts["orderly"]["offset"], parts["orderly"]["start_ns"], parts["orderly"]["end_ns"] = [0, 1], [0, 4], [5, 9]
    held = parts["held"] = received.copy()
    held["op"], held["offset"] = Op.HOLD, held["end_ns"] + 10_000 * histories.MS
    parts["done"] = held[1:2].copy()
    parts["done"]["op"] = Op.ACKNOWLEDGE
    parts["pops"] = held[:2].copy()
    parts["pops"]["start_ns"] += np.array([0, 9_000]) * histories.MS  # it was acknowledged: I20
    parts["pops"]["end_ns"] += np.array([1, 10_000]) * histories.MS  # and one came before its time: I19
    return parts


def test_an_audit_judges_a_history(spark: Any, tmp_path: Path) -> None:
    good = histories.write(tmp_path / "good", histories.clean())
    report = audit.run(spark, audit.Config(history=str(good), output=str(tmp_path / "messages")))
    assert report.ok, report.problems
    assert spark.read.parquet(str(tmp_path / "messages")).count() == 400
    bad = histories.write(tmp_path / "bad", broken(histories.clean()))
    report = audit.run(spark, audit.Config(history=str(bad)))
    once = dict.fromkeys(["I2", "I3", "I4", "I7", "I9", "I15", "I16", "I17", "I18", "I19", "I20"], 1)
    found = {"I1": 2, "I5": 2, **once}
    assert {check.name: check.violations for check in report.checks} == found
    (orderly,) = (problem for problem in report.problems if problem["invariant"] == "I16")
    assert (
        orderly["problem"] == "orderly was at broker-a queue 1 offset 1 while orderly was at broker-a queue 1 offset 0"
    )


def test_an_audit_refuses_what_is_no_history(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        audit.run(spark, audit.Config(history=str(tmp_path / "absent")))
    with pytest.raises(ConfigError, match="holds no file"):
        audit.run(spark, audit.Config(history=str(tmp_path)))
