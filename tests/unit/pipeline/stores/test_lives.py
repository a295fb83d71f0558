"""Topics that a log deletes and makes anew, light queues and inner batches, as verify and rebuild see them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.inspection.queues.writer import write_batch_queues
from penstock.pipeline.columns.part_kernels import digest_range
from penstock.pipeline.jobs.framework.report import Report
from penstock.pipeline.jobs.rebuild.job import Config, batches_of, check, tell_batches, write_part
from penstock.pipeline.jobs.verify.job import prove_lives
from penstock.pipeline.spark.arrow_types import arrow_schema
from penstock.pipeline.stores.derived import PART_COLUMNS, QUEUE_PART_COLUMNS, list_queue_files, pack_queues
from penstock.pipeline.stores.directory import list_store
from penstock.pipeline.stores.model import Store
from penstock.pipeline.stores.options import parse_options
from penstock.pipeline.stores.parts import PART_ENTRY, prove_queue_files
from penstock.pipeline.stores.scan.planning import plan_splits
from penstock.proto.errors import ConfigError
from penstock.proto.names import STATE_TOPIC
from tests.support import golden
from tests.support.broker.lives import PER_FILE, A, B, Made, lit, of_two_lives
from tests.support.broker.stores import tree
from tests.support.store_rows import rows_of


def parts(store: Store, **options: str) -> list[dict[str, Any]]:
    given = parse_options({"storePath": store.root, "view": "parts", "partOffsets": str(PER_FILE), **options})
    return rows_of(plan_splits(store, given), given, PART_COLUMNS)


def rebuild(store: Store, into: Path, deleted: dict[str, int], per_batch_file: int = 10) -> list[dict[str, Any]]:
    """As the job does."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in parts(store):
        if row["physicalOffset"] >= deleted.get(row["topic"], 0):
            groups.setdefault((row["topic"], row["queueId"], row["part"]), []).append(row)
    columns = arrow_schema(PART_COLUMNS)
    written = [
        row
        for rows in groups.values()
        for row in write_part(str(into), pa.Table.from_pylist(rows, columns), PER_FILE).to_pylist()
    ]
    write_batch_queues(into, batches_of(written), per_batch_file * 46)
    return written


def test_a_part_lies_in_one_life(tmp_path: Path) -> None:
    store, deleted = of_two_lives(tmp_path)
    found = [row for row in parts(store) if row["topic"] == "t" and row["queueId"] == 0]
    before = [row for row in found if row["physicalOffset"] < deleted]
    behind = [row for row in found if row["physicalOffset"] > deleted]
    assert (sum(row["messages"] for row in before), sum(row["messages"] for row in behind)) == (50, 25)
    for row in before:
        assert (np.frombuffer(row["entries"], PART_ENTRY)["physical_offset"] < deleted).all()


def test_the_offsets_of_a_part_have_a_digest_of_their_own(tmp_path: Path) -> None:
    store, _ = of_two_lives(tmp_path)
    for row in parts(store, splitBytes="1g"):
        if row["topic"] == "other":
            assert row["offsets"] == digest_range(row["firstOffset"], row["lastOffset"])


def test_a_rebuild_makes_the_last_life_s_queues_as_the_broker_has_them(tmp_path: Path) -> None:
    store, deleted = of_two_lives(tmp_path / "store")
    rebuild(store, tmp_path / "made", {"t": deleted})
    assert tree(tmp_path / "made" / "consumequeue") == tree(tmp_path / "store" / "consumequeue")


def test_a_rebuild_makes_light_queues_as_the_broker_has_them(tmp_path: Path) -> None:
    store, deleted = lit(tmp_path / "store")
    written = rebuild(store, tmp_path / "made", deleted)
    made, theirs = (tree(tmp_path / name / "consumequeue") for name in ("made", "store"))
    assert {name.split("/")[0] for name in theirs} >= {A, B, "p", "q"}
    assert made == theirs
    assert not any(row["missing"] or row["duplicates"] for row in written)


def test_light_rows_are_there_only_where_they_are_asked_for(tmp_path: Path) -> None:
    store, _ = lit(tmp_path)
    given = parse_options({"storePath": store.root, "view": "parts"})
    columns = {name: kind for name, kind in PART_COLUMNS.items() if name != "isLight"}
    rows = rows_of(plan_splits(store, given), given, columns)
    assert {row["topic"] for row in rows} == {"p", "q", "%RETRY%g", STATE_TOPIC}
    assert {row["topic"] for row in parts(store) if row["isLight"]} == {A, B}


def test_skipped_offsets_of_a_light_queue_are_filled(tmp_path: Path) -> None:
    entries = np.zeros(4, PART_ENTRY)
    entries["queue_offset"], entries["size"] = [20, 23, 23, 24], 100
    entries["physical_offset"] = [100, 300, 200, 400]
    row: dict[str, Any] = dict.fromkeys(PART_COLUMNS) | {"topic": A, "queueId": 0, "part": 20, "hasEntries": True}
    row |= {"entries": entries.tobytes(), "innerBatches": 0, "batches": b""}
    (told,) = write_part(str(tmp_path), pa.Table.from_pylist([row], arrow_schema(PART_COLUMNS)), 10).to_pylist()
    assert (told["entries"], told["missing"], told["duplicates"]) == (3, 2, 1)
    made = (tmp_path / "consumequeue" / A / "0" / f"{400:020d}").read_bytes()
    found = [(int.from_bytes(made[at : at + 8]), int.from_bytes(made[at + 8 : at + 12])) for at in range(0, 200, 20)]
    filler = (0, 2**31 - 1)
    assert found == [(100, 100), filler, filler, (200, 100), (400, 100), *[(0, 0)] * 5]


@pytest.mark.parametrize("name", ["direct", "normal"])
def test_light_queues_and_inner_batches_are_made_as_rocketmq_has_them(name: str, tmp_path: Path) -> None:
    root = golden.unpack(name, tmp_path / "store", only=("commitlog", "consumequeue", "batchconsumequeue"))
    written = rebuild(list_store(str(root)), tmp_path / "made", {})

    def content(folder: Path) -> Iterator[tuple[str, bytes]]:
        """What each queue holds, whatever its files' size."""
        for queue in sorted(folder.glob("*/*")):
            held = b"".join(path.read_bytes() for path in sorted(queue.iterdir())).rstrip(b"\0")
            yield f"{queue.parent.name}/{queue.name}", held

    batches = dict(content(tmp_path / "made" / "batchconsumequeue"))
    assert {name: held for name, held in content(root / "batchconsumequeue") if held} == batches != {}
    for light in (root / "consumequeue").glob("%LMQ%*"):
        theirs = dict(content(root / "consumequeue"))[f"{light.name}/0"]
        assert dict(content(tmp_path / "made" / "consumequeue"))[f"{light.name}/0"] == theirs
    assert all((path.stat().st_size == 460) for path in (tmp_path / "made" / "batchconsumequeue").glob("*/*/*"))
    report = Report("rebuild", {})
    tell_batches(report, written)
    messages = golden.expected(name)["messages"]
    assert (report.ok, report.figures["inner_batches"]) == (True, sum(m["sysFlag"] & 128 > 0 for m in messages))
    written[0] |= {"topic": "T", "innerBatches": written[0]["units"] + 2}
    tell_batches(report, written)
    assert (report.problem_count, report.problems[0]["topic"]) == (2, "T")


def test_units_go_on_in_the_next_file(tmp_path: Path) -> None:
    golden.unpack("direct", tmp_path / "store", only=("commitlog",))
    store = list_store(str(tmp_path / "store"))
    written = rebuild(store, tmp_path / "large", {}, 100)
    rebuild(store, tmp_path / "small", {}, 3)
    (whole,) = (tmp_path / "large" / "batchconsumequeue" / "InnerBatch" / "0").iterdir()
    files = sorted((tmp_path / "small" / "batchconsumequeue" / "InnerBatch" / "0").iterdir())
    assert [path.name for path in files] == [f"{138 * number:020d}" for number in range(len(files))]
    assert len(files) > 2
    content = b"".join(path.read_bytes() for path in files)
    assert content == whole.read_bytes()[: len(content)]
    assert not any(whole.read_bytes()[len(content) :])
    assert sum(row["units"] for row in written) == 14


def test_queues_of_an_open_store_may_still_have_the_life_that_was_deleted(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.put("t", 5)
    store = made.close()
    schema = arrow_schema(QUEUE_PART_COLUMNS | {"problem": "string"})

    def seen(store: Store) -> int:
        splits = pack_queues(store, list_queue_files(store.root))
        given = {"is_open": store.is_open, "deleted": {"t": store.end}}
        return sum(b.num_rows for split in splits for b in prove_queue_files(split, schema, PER_FILE, **given))

    assert (seen(store), seen(dataclasses.replace(store, is_open=True))) == (1, 0)


def life(first: int, last: int, number: int, messages: int | None = None, offsets: int | None = None) -> dict[str, Any]:
    count = last - first + 1 if messages is None else messages
    sums = {"first": first, "last": last, "life": number, "isLast": number == 2, "messages": count}
    digest = digest_range(first, last) if offsets is None else offsets
    return {"brokerName": "b", "topic": "t", "queueId": 0, "offsets": digest} | sums


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([life(7, 9, 0), life(0, 9, 1), life(0, 3, 2)], []),
        ([life(7, 9, 0, 2)], ["2 records have the queue offsets 7 to 9, in front of the topic's deletion at 100"]),
        ([life(0, 2, 1, 3, 5)], ["3 records have the queue offsets 0 to 2, in front of the topic's deletion at 200"]),
        ([life(1, 2, 1)], ["queue offset 1 is the first behind the topic's deletion at 100, where 0 is due"]),
        ([life(4, 5, 2)], ["queue offset 4 is the first behind the topic's deletion at 200, where 0 is due"]),
        ([life(0, 299_999, 1), life(300_000, 300_009, 1)], []),
    ],
)
def test_each_life_is_contiguous_and_begins_at_0_behind_a_deletion(rows: list[dict[str, Any]], told: list[str]) -> None:
    report = Report("verify", {})
    prove_lives(report, rows, {"b": {"t": [100, 200]}})
    assert [problem["problem"].split(": some are")[0] for problem in report.problems] == told


def test_files_of_no_unit_are_refused(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    config = Config(store=str(tmp_path / "store"), into=str(tmp_path / "new"), batches_per_file=0)
    with pytest.raises(ConfigError, match="batches_per_file is 0: 1 to 10000000 are allowed"):
        check(config)
