"""Whether the job verify proves queues and index in both directions, and takes what RocketMQ leaves for sound."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.formats.index.index_file import INDEX_ENTRY, INDEX_ENTRY_BYTES
from penstock.pipeline.jobs.rebuild import job as rebuild
from penstock.pipeline.jobs.verify import job as verify
from penstock.pipeline.stores.parts import PART_ENTRY
from penstock.proto.errors import ConfigError
from penstock.proto.names import STATE_TOPIC
from tests.support import golden
from tests.support.broker.lives import PER_FILE, Made, lit, of_two_lives
from tests.support.broker.stores import patch, tree
from tests.unit.pipeline.stores.test_lives import parts

NAME = "multi-queue"
READ = ("commitlog", "consumequeue", "consumequeue_ext", "index", "checkpoint", "abort", "epochFileCheckpoint")
FIRST_ENTRY = 40 + 4 * 100 + INDEX_ENTRY_BYTES
"""Of an index file with 100 slots."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return golden.unpack(NAME, tmp_path / NAME, only=READ)


def problems(spark: Any, store: Path) -> list[str]:
    report = verify.run(spark, verify.Config(store=(str(store),)))
    assert report.ok == (not report.problems)
    return [problem["problem"] for problem in report.problems]


def change(store: Path, edit: Callable[[Any], None], number: int = 0) -> str:
    """Edit the entries of an index file of the store; its name."""
    path = sorted((store / "index").iterdir())[number]
    content = bytearray(path.read_bytes())
    count = int.from_bytes(content[36:40], "big") - 1
    edit(np.frombuffer(content, INDEX_ENTRY, count, FIRST_ENTRY))
    path.write_bytes(content)
    return path.name


def test_what_rocketmq_wrote_passes(spark: Any, tmp_path: Path) -> None:
    stores = ("normal", "crashed", "direct", "direct-ext", "direct-trimmed", "ha/controller/broker-1")
    roots = tuple(str(golden.unpack(name, tmp_path / Path(name).name, only=READ)) for name in stores)
    report = verify.run(spark, verify.Config(store=roots))
    assert report.ok, report.problems
    assert report.figures["records"] == sum(len(golden.expected(name)["messages"]) for name in stores)
    # The keys of two records that were cut off are still there, and hide one of the record that came instead.
    assert report.figures["keys_of_records_cut_off"] == 3


def test_a_store_without_its_index_fails_unless_the_index_is_left_out(spark: Any, store: Path) -> None:
    shutil.rmtree(store / "index")
    (problem,) = problems(spark, store)
    assert problem.startswith("no index file names any of the log's 1280 keys")
    assert "--no-index" in problem
    assert verify.run(spark, verify.Config(store=(str(store),), index=False)).ok


def test_an_index_file_that_is_missing_fails_but_for_the_oldest_ones(spark: Any, store: Path) -> None:
    oldest, *_, newest = sorted((store / "index").iterdir())
    oldest.unlink()
    report = verify.run(spark, verify.Config(store=(str(store),)))
    assert report.ok, report.problems  # as retention leaves it, or an index that was switched on later
    missing = report.figures["keys"] - report.figures["index_entries"]
    assert report.figures["keys_before_the_index"] in (missing, missing - 1)  # one of two keys of a record
    newest.unlink()
    assert "which no index entry has" in problems(spark, store)[0]
    (store / "abort").touch()  # open, or crashed: dispatch has not come there yet
    report = verify.run(spark, verify.Config(store=(str(store),)))
    assert report.ok, report.problems
    assert report.figures["keys_not_indexed_yet"] > 0


def test_a_wrong_hash_and_a_wrong_position_are_named_with_what_they_should_be(spark: Any, store: Path) -> None:
    was: dict[str, int] = {}

    def edit(entries: Any) -> None:
        was["hash"], was["hash at"] = int(entries["key_hash"][7]), int(entries["physical_offset"][7])
        was["moved"], was["moved from"] = int(entries["key_hash"][9]), int(entries["physical_offset"][9])
        entries["key_hash"][7] ^= 1
        entries["physical_offset"][9] += 1

    change(store, edit)
    assert set(problems(spark, store)) == {
        "2 entries from 10 on do not name the one before them in their slot, so keys are not found: rebuild the index",
        f"entry 8 names {was['hash at']}, where no record with a key of the hash {was['hash'] ^ 1} begins",
        f"the record at {was['hash at']} has a key of the hash {was['hash']}, which no index entry has",
        f"entry 10 names {was['moved from'] + 1}, where no record with a key of the hash {was['moved']} begins",
        f"the record at {was['moved from']} has a key of the hash {was['moved']}, which no index entry has",
    }


def test_an_index_whose_hashes_are_all_wrong_fails_and_all_are_counted(spark: Any, store: Path) -> None:
    for number in range(len(list((store / "index").iterdir()))):
        change(store, lambda entries: entries.__setitem__("key_hash", entries["key_hash"] ^ 1), number)
    report = verify.run(spark, verify.Config(store=(str(store),)))
    keys = [problem for problem in report.problems if "keys are not found" not in problem["problem"]]
    chains = len(report.problems) - len(keys)
    assert 1 <= chains <= len(list((store / "index").iterdir()))
    assert report.problem_count == 2 * 1280 - 2 + chains  # the index may begin within the keys of its first record
    assert len(keys) == 2 * (verify.EXAMPLES_MAX + 1)


def test_wrong_hashes_behind_a_change_of_master_are_not_explained_by_it(spark: Any, tmp_path: Path) -> None:
    root = golden.unpack("ha/controller/broker-2", tmp_path / "store", only=READ)
    (path,) = (root / "index").iterdir()
    content = bytearray(path.read_bytes())
    count = int.from_bytes(content[36:40], "big") - 1
    entries = np.frombuffer(content, INDEX_ENTRY, count, 40 + 4 * 50 + INDEX_ENTRY_BYTES)
    behind = entries["physical_offset"] >= 12_712
    entries["key_hash"][behind] ^= 1
    path.write_bytes(content)
    assert sum(" key of the hash " in problem for problem in problems(spark, root)) == 2 * int(behind.sum())


def test_a_key_that_stands_there_twice_is_no_difference(spark: Any, store: Path) -> None:
    number = len(list((store / "index").iterdir())) - 1
    path = sorted((store / "index").iterdir())[number]
    content = bytearray(path.read_bytes())
    count = int.from_bytes(content[36:40], "big")
    at = FIRST_ENTRY + INDEX_ENTRY_BYTES * (count - 2)  # the last entry
    content[at + INDEX_ENTRY_BYTES : at + 2 * INDEX_ENTRY_BYTES] = content[at : at + INDEX_ENTRY_BYTES]
    content[at + 2 * INDEX_ENTRY_BYTES - 4 : at + 2 * INDEX_ENTRY_BYTES] = (count - 1).to_bytes(4, "big")
    slot = 40 + 4 * (int.from_bytes(content[at : at + 4], "big") % 100)
    content[slot : slot + 4] = count.to_bytes(4, "big")
    content[36:40] = (count + 1).to_bytes(4, "big")
    path.write_bytes(content)
    report = verify.run(spark, verify.Config(store=(str(store),)))
    assert report.ok, report.problems
    assert report.figures["index_entries"] == report.figures["keys"] + 1


def test_a_copy_is_compared_with_one_store_only(spark: Any, store: Path) -> None:
    with pytest.raises(ConfigError, match=r"verify: replica is '.*', a copy of one store, and store names 2"):
        verify.run(spark, verify.Config(store=(str(store), str(store)), replica=str(store)))
    with pytest.raises(ConfigError, match=f"would both be broker '{NAME}'"):
        verify.run(spark, verify.Config(store=(str(store), str(store))))


def test_derived_files_that_cannot_be_read_are_problems_beside_what_else_is_wrong(spark: Any, store: Path) -> None:
    first = golden.expected(NAME)["messages"][0]["physicalOffset"]
    log = store / "commitlog" / f"{0:020d}"
    content = bytearray(log.read_bytes())
    content[first + 88] ^= 1
    log.write_bytes(content)
    oldest = sorted((store / "index").iterdir())[0]
    oldest.write_bytes(oldest.read_bytes()[:30])
    strange = store / "consumequeue" / "ManyQueues" / "99999999999" / f"{0:020d}"
    strange.parent.mkdir()
    strange.write_bytes(bytes(20))
    found = problems(spark, store)
    assert "the body does not match its checksum" in found
    assert f"{oldest}: 30 bytes are no index file: rebuild the index" in found
    assert any("99999999999: queues have numbers up to" in problem for problem in found)


def test_a_store_whose_oldest_log_files_are_gone_passes(spark: Any, store: Path) -> None:
    (store / "commitlog" / f"{0:020d}").unlink()
    report = verify.run(spark, verify.Config(store=(str(store),)))
    assert report.ok, report.problems
    kept = sum(message["physicalOffset"] >= 65_536 for message in golden.expected(NAME)["messages"])
    assert report.figures["records"] == report.figures["queue_entries"] == kept


def test_wrong_tags_codes_and_entries_behind_the_end_are_named(spark: Any, store: Path) -> None:
    messages = golden.expected(NAME)["messages"]
    queues = sorted({message["queueId"] for message in messages})
    for queue in queues:
        path = store / "consumequeue" / "ManyQueues" / str(queue) / f"{0:020d}"
        content = bytearray(path.read_bytes())
        content[19] ^= 1  # the tags code of the first entry
        path.write_bytes(content)
    last = messages[-1]
    path = store / "commitlog" / f"{last['physicalOffset'] // 65_536 * 65_536:020d}"
    content = bytearray(path.read_bytes())
    content[last["physicalOffset"] % 65_536 :] = bytes(len(content) - last["physicalOffset"] % 65_536)
    path.write_bytes(content)
    report = verify.run(spark, verify.Config(store=(str(store),), index=False))
    wrong = [problem for problem in report.problems if "has the tags code" in problem["problem"]]
    assert [(problem["queue"], problem["queue_offset"]) for problem in wrong] == [(queue, 0) for queue in queues]
    (behind,) = (problem for problem in report.problems if "behind the log's end" in problem["problem"])
    assert (behind["queue"], behind["queue_offset"]) == (last["queueId"], last["queueOffset"])


def test_the_records_that_a_replica_has_otherwise_are_named_and_its_lag_is_told(
    spark: Any, store: Path, tmp_path: Path
) -> None:
    replica = golden.unpack(NAME, tmp_path / "replica", only=("commitlog",))
    messages = golden.expected(NAME)["messages"]
    wrong = [messages[number] for number in (5, 6, 200)]
    for message in wrong:
        path = replica / "commitlog" / f"{message['physicalOffset'] // 65_536 * 65_536:020d}"
        content = bytearray(path.read_bytes())
        content[message["physicalOffset"] % 65_536 + 89] ^= 1
        path.write_bytes(content)
    *_, newest = sorted((replica / "commitlog").iterdir())
    newest.unlink()
    report = verify.run(spark, verify.Config(store=(str(store),), replica=str(replica), index=False))
    places = [(p["offset"], p["topic"], p["queue"], p["queue_offset"]) for p in report.problems]
    assert places == [(m["physicalOffset"], m["topic"], m["queueId"], m["queueOffset"]) for m in wrong]
    assert report.figures["differing_records"] == report.problem_count == 3
    assert report.figures["replica_end"] + report.figures["replica_lag_bytes"] == report.figures["log_end"]


def test_rebuild_refuses_topics_that_the_log_does_not_have(spark: Any, store: Path, tmp_path: Path) -> None:
    into = tmp_path / "made"
    with pytest.raises(ConfigError, match=r"the topic 'ManyQueue' \(did you mean 'ManyQueues'\?\): nothing was made"):
        rebuild.run(spark, rebuild.Config(store=str(store), into=str(into), topics=("ManyQueue",)))
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    report = rebuild.run(spark, rebuild.Config(store=str(store), into=str(into), topics=("ManyQueues", "Other")))
    assert [problem["topic"] for problem in report.problems] == ["Other"]
    assert report.figures["entries"] == 640


def test_rebuild_makes_light_queues_and_queues_of_inner_batches(spark: Any, tmp_path: Path) -> None:
    root = golden.unpack("direct", tmp_path / "store", only=(*READ, "batchconsumequeue"))
    into = tmp_path / "made"
    report = rebuild.run(spark, rebuild.Config(store=str(root), into=str(into), index=False))
    assert (report.ok, report.figures["inner_batches"]) == (True, 14)
    for queue in [*(root / "consumequeue").glob("%LMQ%*/0"), *(root / "batchconsumequeue").glob("*/*")]:
        made, theirs = (
            b"".join(path.read_bytes() for path in sorted(folder.iterdir())).rstrip(b"\0")
            for folder in (into / queue.relative_to(root), queue)
        )
        assert made == theirs
    only = rebuild.Config(store=str(root), into=str(tmp_path / "one"), topics=("%LMQ%one", "LmqParent"))
    assert rebuild.run(spark, only).ok
    assert {path.name for path in (tmp_path / "one" / "consumequeue").iterdir()} == {"%LMQ%one", "LmqParent"}
    only = rebuild.Config(store=str(root), into=str(tmp_path / "two"), topics=("LmqParent",))
    assert rebuild.run(spark, only).ok
    assert {path.name for path in (tmp_path / "two" / "consumequeue").iterdir()} == {"LmqParent"}


def test_a_topic_that_was_made_anew_passes_and_its_queues_are_made(spark: Any, tmp_path: Path) -> None:
    roots = {name: tmp_path / name for name in ("whole", "gone", "torn")}
    of_two_lives(roots["whole"])
    for name in ("gone", "torn"):
        shutil.copytree(roots["whole"], roots[name])
        first, *_ = sorted((roots[name] / "consumequeue" / STATE_TOPIC / "0").iterdir())
        if name == "gone":
            shutil.rmtree(first.parent.parent)
        else:
            first.write_bytes(first.read_bytes()[:100] + bytes(20) + first.read_bytes()[120:])
    report = verify.run(spark, verify.Config(store=tuple(map(str, roots.values()))))
    found = {(problem["broker"], problem["topic"]) for problem in report.problems}
    assert found == {("gone", STATE_TOPIC), ("torn", STATE_TOPIC)}
    for name, root in roots.items():
        into = tmp_path / f"made-{name}"
        report = rebuild.run(spark, rebuild.Config(store=str(root), into=str(into), entries_per_file=PER_FILE))
        assert report.ok, report.problems
        assert tree(into / "consumequeue") == tree(roots["whole"] / "consumequeue")


def test_light_queues_of_a_broker_s_store_are_rebuilt(spark: Any, tmp_path: Path) -> None:
    root, into = tmp_path / "store", tmp_path / "made"
    lit(root)
    report = rebuild.run(spark, rebuild.Config(store=str(root), into=str(into), entries_per_file=PER_FILE))
    assert report.ok, report.problems
    assert tree(into / "consumequeue") == tree(root / "consumequeue")
    assert verify.run(spark, verify.Config(store=(str(root),))).ok


def test_a_jump_within_a_life_fails(spark: Any, tmp_path: Path) -> None:
    store, deleted = of_two_lives(tmp_path / "store")
    rows = [row for row in parts(store) if row["topic"] == "t" and row["queueId"] == 0]
    entries = np.concatenate([np.frombuffer(row["entries"], PART_ENTRY) for row in rows])
    former, last = (entries[entries["physical_offset"] < deleted], entries[entries["physical_offset"] > deleted])
    for entry, offset in ((former[30], 31), (last[7], 9)):
        patch(tmp_path / "store", int(entry["physical_offset"]) + 20, offset.to_bytes(8, "big"))
    report = verify.run(spark, verify.Config(store=(str(tmp_path / "store"),)))
    told = {problem["problem"] for problem in report.problems}
    assert {
        f"50 records have the queue offsets 0 to 49, in front of the topic's deletion at {deleted}: some are missing, "
        "or there twice",
        "queue offset 8 follows 6 in the log",
        f"the queue entry names {last[7]['physical_offset']}, where no record of this queue lies",
    } <= told
    assert {problem["topic"] for problem in report.problems} == {"t"}
    report = rebuild.run(
        spark, rebuild.Config(store=str(tmp_path / "store"), into=str(tmp_path / "made"), entries_per_file=PER_FILE)
    )
    told = {problem["problem"] for problem in report.problems}
    assert told == {"1 offsets between 0 and 19 are not in the log", "1 offsets from 0 to 19 are in the log twice"}


def test_a_queue_that_still_has_the_deleted_life_of_its_topic_fails(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "store"
    made = Made(root)
    made.put("t", 15)
    made.close()
    before = shutil.copytree(root / "consumequeue" / "t", tmp_path / "before")
    made = Made(root)
    deleted = made.delete("t")
    made.close()
    assert verify.run(spark, verify.Config(store=(str(root),))).ok
    with pytest.raises(ConfigError, match=f"behind the deletion of the topic 't' at {deleted}: nothing was made"):
        rebuild.run(spark, rebuild.Config(store=str(root), into=str(tmp_path / "made"), topics=("t",)))
    shutil.copytree(before, root / "consumequeue" / "t")
    report = verify.run(spark, verify.Config(store=(str(root),)))
    assert (report.problem_count, report.problems[0]["problem"]) == (
        15,
        "the queue entry names 0, where no record of this queue lies",
    )


def test_a_deletion_that_a_killed_broker_had_not_dispatched_is_no_difference(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "store"
    made = Made(root)
    made.put("t", 15)
    made.put("other", 3)
    made.dispatch()
    made.delete("t")
    made.put("t", 2)
    made.abandon()
    report = verify.run(spark, verify.Config(store=(str(root),), up_to="end"))
    assert report.ok, report.problems
    assert report.figures["not_dispatched_yet"] == 3
