"""``verify`` finds sound stores sound, names every damage, and writes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.inspection import Verification, list_store, verify
from tests.support import golden
from tests.support.golden import damage, variants
from tests.unit.inspection.trees import unpack, untouched

NOTES = {
    "direct": ["the queue begins late: 7 entries of filling"],
    "direct-crc": ["the queue begins late: 7 entries of filling"],
    "ha/classic/slave": ["begins late: 18 entries", "begins late: 19 entries"],
    "ha/controller/broker-1": ["2 entries are of records that were cut off", "1 keys of the records 12712 to 12712"],
}
"""Peculiarities of the golden sets."""


def check(root: Path) -> Verification:
    with untouched(root):
        return verify(list_store(root))


@pytest.mark.parametrize("name", golden.SETS)
def test_what_rocketmq_wrote_is_sound(name: str, tmp_path: Path) -> None:
    found = check(unpack(name, tmp_path))
    expected = golden.expected(name)
    assert [str(problem) for problem in found.findings.problems] == []
    assert found.records == len(expected["messages"])
    assert (found.log_start, found.log_end) == (expected["commitLog"]["minOffset"], expected["commitLog"]["maxOffset"])
    assert found.index_entries == sum(len(file["entries"]) for file in expected["rawIndex"])
    notes = [str(note) for note in found.findings.notes]
    assert len(notes) == len(NOTES.get(name, []))
    assert all(text in note for text, note in zip(NOTES.get(name, []), notes, strict=True))


LOG, LAST_LOG = "commitlog/00000000000000000000", "commitlog/00000000000000458752"
VARIANTS: dict[str, tuple[list[tuple[str, int | None, str]], list[tuple[str, int | None, str]]]] = {
    "torn-last-record": (
        [],
        [
            (LAST_LOG, 23180, "torn tail behind the checkpoint: no record: its lengths do not add up"),
            ("consumequeue", None, "1 entries of 1 queues point behind the log's end 481932"),
            ("index", None, "2 entries are of records that were cut off"),
        ],
    ),
    "five-records-lost": (
        [],
        [
            ("consumequeue", None, "5 entries of 5 queues point behind the log's end 479374"),
            ("index", None, "10 entries are of records that were cut off"),
        ],
    ),
    "bad-body-near-end": ([(LAST_LOG, 18257, "the body of 135 bytes does not match its checksum")], []),
    "bad-body-early": ([(LOG, 624, "the body of 100 bytes does not match its checksum")], []),
    "no-checkpoint": ([("checkpoint", None, "missing")], []),
    "no-queues": ([("consumequeue", None, "no queues: 472 entries of 6 queues should be there")], []),
    "no-queues-no-checkpoint": (
        [("checkpoint", None, "missing"), ("consumequeue", None, "no queues: 472 entries of 6 queues")],
        [],
    ),
    "clean-flag": ([], []),
    "garbage-behind-end": ([], [(LAST_LOG, 23912, "magic 0x5a5a5a5a is of no known version")]),
    "blank-record-lost": (
        [("commitlog/00000000000000393216", 64626, "no blank record ends the file, but the log goes on")],
        [],
    ),
    "short-log-file": ([("commitlog/00000000000000065536", None, "65535 bytes where the other log files have")], []),
    "empty-last-log-file": ([], [("commitlog/00000000000000589824", None, "an empty file behind the log")]),
}
QUEUE_TAILS = [
    ("CrashTopic/0", 1700, "entries 85 to 94"),
    ("CrashTopic/1", 1700, "entries 85 to 94"),
    ("CrashTopic/2", 1720, "entries 86 to 95"),
    ("CrashTopic/3", 1720, "entries 86 to 95"),
    ("CrashOther/0", 720, "entries 36 to 45"),
    ("CrashOther/1", 680, "entries 34 to 43"),
]
for _name in ("queue-tails-lost", "clean-flag-queue-tails-lost"):
    VARIANTS[_name] = ([(f"consumequeue/{q}/{0:020d}", at, text) for q, at, text in QUEUE_TAILS], [])


def matches(root: Path, findings: list[Any], wanted: list[tuple[str, int | None, str]]) -> bool:
    """Whether each of ``wanted`` is there, and nothing else."""
    left = [(str(Path(f.path).relative_to(root)), f.offset, f.problem) for f in findings]
    for path, offset, text in wanted:
        hit = next((one for one in left if one[:2] == (path, offset) and text in one[2]), None)
        if hit is None:
            return False
        left.remove(hit)
    return not left


@pytest.mark.parametrize("variant", variants(), ids=lambda variant: variant["name"])
def test_every_damage_of_a_crashed_store_is_named(variant: dict[str, Any], tmp_path: Path) -> None:
    root = unpack("crashed", tmp_path)
    damage(root, variant["patch"])
    found = check(root)
    if variant["name"] == "last-log-file-missing":
        texts = [finding.problem for finding in found.findings.problems]
        assert sum("behind the log's end 458752" in text for text in texts) == 6 + 1  # the queues and the index
        assert any(text.startswith("logics_msg_timestamp") for text in texts)
        return
    problems, notes = VARIANTS[variant["name"]]
    assert found.findings.ok == (not problems)
    assert matches(tmp_path, found.findings.problems, problems), found.findings.problems
    assert matches(tmp_path, found.findings.notes, notes), found.findings.notes


QUEUE = "consumequeue/Keys/0/00000000000000000000"
INDEX = "index/20261121010236880"
DAMAGES: list[tuple[str, str, list[dict[str, Any]], str, int | None, str]] = [
    ("queue position", "direct", [{"file": QUEUE, "offset": 67, "hex": "01"}], QUEUE, 60, "entry 3 points to "),
    ("queue size", "direct", [{"file": QUEUE, "offset": 71, "hex": "7f"}], QUEUE, 60, "entry 3 points to "),
    ("tags code", "direct", [{"file": QUEUE, "offset": 79, "hex": "55"}], QUEUE, 60, "entry 3 has tags code"),
    (
        "a hole in a queue",
        "direct",
        [{"file": QUEUE, "offset": 40, "zero": 40}],
        QUEUE,
        40,
        "entries 2 to 3 are missing",
    ),
    (
        "delivery time",
        "direct",
        [{"file": "consumequeue/SCHEDULE_TOPIC_XXXX/3/00000000000000000000", "offset": 19, "hex": "ff"}],
        "consumequeue/SCHEDULE_TOPIC_XXXX/3/00000000000000000000",
        0,
        "entry 0 has tags code",
    ),
    (
        "an entry too many",
        "direct",
        [{"file": "consumequeue/Fil/0/00000000000000000000", "offset": 320, "hex": f"{0:016x}0000007f{0:016x}"}],
        "consumequeue/Fil/0/00000000000000000000",
        320,
        "no record of this queue is there",
    ),
    (
        "index hash",
        "direct",
        [{"file": INDEX, "offset": 263, "hex": "00"}],
        INDEX,
        260,
        "points to 0: the record has no",
    ),
    (
        "index link",
        "direct",
        [{"file": INDEX, "offset": 379, "hex": "07"}],
        INDEX,
        360,
        "does not link to the one before",
    ),
    ("index time", "direct", [{"file": INDEX, "offset": 575, "hex": "70"}], INDEX, 560, "the entry's time is not that"),
    ("index slot", "direct", [{"file": INDEX, "offset": 40, "zero": 4}], INDEX, 40, "slot 0 leads to entry 0"),
    (
        "index header",
        "direct",
        [{"file": INDEX, "offset": 35, "hex": "07"}],
        INDEX,
        32,
        "the header counts 7 used slots",
    ),
    ("an index file lost", "direct", [{"file": INDEX, "delete": True}], "index", None, "119 keys of the records"),
    ("no index", "direct", [{"file": "index", "delete": True}], "index", None, "no index files: 244 keys"),
    ("checkpoint size", "direct", [{"file": "checkpoint", "truncate": 4000}], "checkpoint", None, "4000 bytes"),
    (
        "checkpoint",
        "direct",
        [{"file": "checkpoint", "offset": 8, "hex": "80"}],
        "checkpoint",
        8,
        "logics_msg_timestamp",
    ),
    (
        "a whole record's checksum",
        "direct-crc",
        [{"file": "commitlog/00000000000000000000", "offset": 19, "hex": "55"}],
        "commitlog/00000000000000000000",
        0,
        "in its property __CRC32#",
    ),
    (
        "an extension unit",
        "direct-ext",
        [{"file": "consumequeue_ext/Batch/0/00000000000000000000", "offset": 9, "hex": "77"}],
        "consumequeue/Batch/0/00000000000000000000",
        0,
        "entry 0 has tags code -9223372036854775808",
    ),
    (
        "a batch unit",
        "direct",
        [{"file": "batchconsumequeue/InnerBatch/0/00000000000000000000", "offset": 46 + 37, "hex": "09"}],
        "batchconsumequeue/InnerBatch/0",
        46,
        "its record demands",
    ),
    (
        "own position",
        "direct",
        [{"file": "commitlog/00000000000000016384", "offset": 35, "hex": "01"}],
        "commitlog/00000000000000016384",
        0,
        "the record says that it lies at",
    ),
    (
        "queue offset",
        "multi-queue",
        [{"file": "commitlog/00000000000000131072", "offset": 27, "hex": "63"}],
        "commitlog/00000000000000131072",
        0,
        "queue offset 99 follows",
    ),
    (
        "a size",
        "direct",
        [{"file": "commitlog/00000000000000000000", "offset": 2, "hex": "7fff"}],
        "commitlog/00000000000000000000",
        0,
        "bytes are left in the file",
    ),
    (
        "a log file in the middle",
        "direct",
        [{"file": "commitlog/00000000000000032768", "delete": True}],
        "commitlog",
        32768,
        "log files are missing between 00000000000000016384 and 00000000000000049152",
    ),
    (
        "a newer version",
        "direct",
        [{"file": "commitlog/00000000000000016384", "offset": 4, "hex": "daa320af"}],
        "commitlog/00000000000000016384",
        0,
        "magic 0xdaa320af is of no known version",
    ),
    (
        "an epoch file",
        "ha/controller/broker-2",
        [{"file": "epochFileCheckpoint", "offset": 2, "hex": "37"}],
        "epochFileCheckpoint",
        None,
        "not an epoch file: crc",
    ),
    (
        "a topic configuration",
        "normal",
        [{"file": "config/topics.json", "offset": 0, "hex": "2b"}],
        "config/topics.json",
        0,
        "not JSON",
    ),
]


@pytest.mark.parametrize(
    ("name", "steps", "path", "offset", "text"), [case[1:] for case in DAMAGES], ids=[case[0] for case in DAMAGES]
)
def test_one_damaged_place_is_named(
    name: str, steps: list[dict[str, Any]], path: str, offset: int | None, text: str, tmp_path: Path
) -> None:
    root = unpack(name, tmp_path)
    damage(root, steps)
    problems = check(root).findings.problems
    hits = [p for p in problems if p.path == str(root / path) and p.offset == offset and text in p.problem]
    assert hits, [str(problem) for problem in problems]


def test_records_after_a_hole_in_the_middle_are_still_checked(tmp_path: Path) -> None:
    root = unpack("direct", tmp_path)
    damage(root, [{"file": LOG, "offset": 376, "zero": 574}])  # exactly the third and fourth record
    found = check(root)
    first = found.findings.problems[0]
    assert (first.path, first.offset) == (str(root / LOG), 376)
    assert "zeros where a record should be; 574 bytes up to the next sound record" in first.problem
    assert found.records == len(golden.expected("direct")["messages"]) - 2


def test_a_deleted_topic_is_no_damage(tmp_path: Path) -> None:
    root = unpack("normal", tmp_path)
    damage(root, [{"file": "consumequeue/GoldPop", "delete": True}])
    assert not check(root).findings.ok
    topics = root / "config" / "topics.json"
    topics.write_text(topics.read_text().replace('"GoldPop"', '"GoldGone"'))
    found = check(root)
    assert found.findings.ok
    assert any("it was deleted" in note.problem for note in found.findings.notes)


def test_several_log_directories_are_one_log(tmp_path: Path) -> None:
    root = unpack("direct", tmp_path / "store")
    other = tmp_path / "other"
    other.mkdir()
    (root / "commitlog" / "00000000000000016384").rename(other / "00000000000000016384")
    assert not check(root).findings.ok
    assert verify(list_store(root, [root / "commitlog", other])).findings.ok


def test_progress_reaches_its_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    verify(list_store(unpack("direct", tmp_path)), lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
