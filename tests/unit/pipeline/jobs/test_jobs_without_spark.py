"""What the jobs decide and write without Spark: configurations, reports, lakes, histories."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from penstock.bench.spark.generate import TOPIC, generate
from penstock.judge.history import EVENT
from penstock.pages.plots import Plot
from penstock.pipeline.jobs import query, replay, stats
from penstock.pipeline.jobs.archive import job as archive
from penstock.pipeline.jobs.audit.history import list_history, read_rows
from penstock.pipeline.jobs.framework.reading import require_stores
from penstock.pipeline.jobs.framework.report import Report, Table, render
from penstock.pipeline.jobs.verify import job as verify
from penstock.pipeline.jobs.verify.index import epoch_starts
from penstock.pipeline.jobs.verify.replica import differing_blocks
from penstock.pipeline.lake.entries import Entry, LakeFile, watermark
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.options import made
from penstock.pipeline.spark.own_errors import own_error
from penstock.pipeline.stores.directory import list_store, list_stores
from penstock.proto.errors import ConfigError, Corrupt, WrongStore
from tests.support import golden
from tests.support.cluster import histories
from tests.unit.pipeline.stores.test_store_splits import rows


def test_a_configuration_takes_names_in_any_spelling_and_refuses_the_rest() -> None:
    config = made(stats.Config, {"store": "a,b", "onCorrupt": "skip", "system-topics": "true"}, "stats")
    assert (config.store, config.on_corrupt, config.system_topics) == (("a", "b"), "skip", True)
    with pytest.raises(ConfigError, match=r"stats: no option 'stroe' .did you mean 'store'"):
        made(stats.Config, {"stroe": "a"}, "stats")
    with pytest.raises(ConfigError, match="stats: store is missing"):
        made(stats.Config, {}, "stats")
    with pytest.raises(ConfigError, match="stats: top is 'many': expected a whole number"):
        made(stats.Config, {"store": "a", "top": "many"}, "stats")


def test_a_report_is_one_page_or_one_document(tmp_path: Path) -> None:
    report = Report("stats", {"store": ("<b>",)}, figures={"messages": 12_345})
    report.tables.append(Table("Topics", ["topic", "messages"], [["<script>", 5]]))
    report.plots.append(Plot("Rate", "lines", [0, 1, 2], {"sent": [1.0, None, 3.0]}, "/s", [(0.5, 1.5, "kill")]))
    report.plots.append(Plot("Days", "bars", ["a", "b"], {"bytes": [1.0, 2.0]}))
    report.problem("broken", path="x")
    report.finish().write(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "failed: 1 problem</span>" in page
    assert "12,345" in page
    assert "<script>" not in page
    assert page.count("<svg") == 2
    assert "&lt;script&gt;" in page
    report.write(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["problems"] == [{"problem": "broken", "path": "x"}]


def test_a_page_says_how_the_job_ended() -> None:
    report = Report("job", {})
    for verdict in ("passed", "failed: 1 problem", "failed: 2 problems"):
        assert f"{verdict}</span>" in render(report)
        report.problem("wrong")


def entry(segment: int, end: int) -> Entry:
    return Entry(
        broker="b",
        segment=segment,
        startPhysicalOffset=segment,
        endPhysicalOffset=end,
        fileBytes=100,
        sealed=True,
        rows=1,
        recordBytes=90,
        damages=0,
        firstStoreTimestamp=1,
        lastStoreTimestamp=2,
        crc32=3,
        queues=(("T", 0, 1, 5, 5),),
        files=(LakeFile(f"dt=2026-03-01/{segment}-{end}.parquet", 10, 7),),
        archivedAt=4,
    )


def test_entries_come_back_as_they_were_committed_and_leftovers_are_not_seen(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    with pytest.raises(ConfigError, match="no lake: it has no Delta table messages"):
        lake.require()
    assert lake.entries() == []
    for one in (entry(100, 200), entry(0, 90), entry(0, 100)):
        assert lake.commit([one], {}) == [one]
    (tmp_path / "messages" / "dt=2026-03-01").mkdir()
    (tmp_path / "messages" / "dt=2026-03-01" / "left.parquet").write_text("half a")
    for same in (lake, Lake(lake.root)):
        assert same.entries() == [entry(0, 100), entry(100, 200)]


def test_the_watermark_is_the_end_of_what_is_archived_without_a_gap() -> None:
    found = [entry(100, 200), entry(200, 300), entry(400, 500)]
    assert watermark(found, "b", 100) == 300
    assert watermark(found, "b", 150) == 300
    assert watermark(found, "b", 0) == 0
    assert watermark(found, "other", 7) == 7


def test_rows_of_a_history_are_read_in_parts_and_a_torn_one_is_left_out(tmp_path: Path) -> None:
    parts = histories.clean()
    files = {Path(file.path).stem: file for file in list_history(histories.write(tmp_path / "h", parts))}
    sent = files["sent"]
    assert (sent.rows, sent.shards) == (400, histories.SHARDS)
    halves = [read_rows(sent.path, sent.start, first, 200, 1) for first in (0, 200)]
    for name in EVENT.names or ():
        values = np.concatenate([half.column(name).to_numpy() for half in halves])
        assert (values == parts["sent"][name]).all()
    (tmp_path / "h" / "other.history").write_bytes(b"something else")
    with pytest.raises(Corrupt, match=r"other.history: no history of a drill"):
        list_history(tmp_path / "h")


def test_replicas_are_compared_byte_by_byte(tmp_path: Path) -> None:
    left = list_store(str(golden.unpack("multi-queue", tmp_path / "left", only=("commitlog",))))
    root = golden.unpack("multi-queue", tmp_path / "right", only=("commitlog",))
    path = root / "commitlog" / f"{65536:020d}"
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)
    right = list_store(str(root))
    assert list(differing_blocks(left, right, 0, left.end)) == [0]
    assert list(differing_blocks(left, left, 0, left.end)) == []


def test_generated_stores_are_stores(tmp_path: Path) -> None:
    size = generate(tmp_path / "s", records=500, body_bytes=100, queues=7, segment_bytes=65536)
    store = list_store(str(tmp_path / "s"))
    assert (store.end, store.tail, len(store.files)) == (size, "clean", 3)
    found = rows(tmp_path / "s")
    assert [(row["topic"], row["queueId"], row["queueOffset"]) for row in found] == [
        (TOPIC, number % 7, number // 7) for number in range(500)
    ]
    assert len({row["messageId"] for row in found}) == 500
    assert found[321]["keys"] == ["order-321"]


def test_errors_of_workers_come_out_of_sparks_wrapping() -> None:
    text = """[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):
  File "x", line 1, in y
penstock.proto.errors.WrongStore: /x holds no store SQLSTATE: 38000"""
    error = own_error(RuntimeError(text))
    assert isinstance(error, WrongStore)
    assert str(error) == "/x holds no store"
    assert own_error(RuntimeError("something else")) is None


def test_a_job_names_a_missing_store_before_spark_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent: no such directory"):
        require_stores((str(tmp_path / "absent"),))
    with pytest.raises(WrongStore, match="holds no store"):
        require_stores(str(tmp_path))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"start": "yesterday"}, r"start is 'yesterday': expected a time as 2026-03-01"),
        ({"end": "2026-13-01"}, r"end is '2026-13-01': expected a time"),
        ({"start": "2026-03-01", "end": "2026-03-01T00:00:00Z"}, "nothing lies between them, end is not included"),
    ],
)
def test_times_that_are_none_are_told_before_spark_starts(values: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=f"query: {text}" if len(values) == 1 else text):
        query.check(query.Config(lake="absent", **values))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"replay: {text}" if len(values) == 1 else text):
        replay.check(replay.Config(lake="absent", namesrv="absent:1", to_topic="t", **values))  # type: ignore[arg-type]
    good = {"start": "2026-03-01T12:30:00+01:00", "end": "1900000000000"}
    query.check(query.Config(lake="absent", **good))  # type: ignore[arg-type]


def test_other_wrong_options_are_told_before_spark_starts(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    both = str(tmp_path / "a"), str(tmp_path / "b")
    for store in (both, (str(tmp_path / "?"),)):
        with pytest.raises(ConfigError, match=r"archive: broker_name lists 1 names \(x\) for 2 stores"):
            archive.check(archive.Config(store=store, lake="absent", broker_name=("x",)))
        with pytest.raises(ConfigError, match=r"verify: broker_name lists 3 names \(x, y, z\) for 2 stores"):
            verify.check(verify.Config(store=store, broker_name=("x", "y", "z")))
        with pytest.raises(ConfigError, match="verify: replica is 'r', a copy of one store, and store names 2"):
            verify.check(verify.Config(store=store, replica="r"))
    with pytest.raises(ConfigError, match=r"query: output is .*a', which exists: name a directory that does not"):
        query.check(query.Config(lake="absent", output=both[0]))
    query.check(query.Config(lake="absent", output=str(tmp_path / "new")))
    query.check(query.Config(lake="absent", output="unheard-of://only/spark/knows"))


def test_two_stores_of_one_name_are_told_by_their_listing(tmp_path: Path) -> None:
    one, two = (str(golden.unpack("ha/classic/slave", tmp_path / name / "store", only=("commitlog",))) for name in "ab")
    assert [store.broker_name for store in list_stores("job", (one, two), (), "confirm")] == ["a", "b"]
    with pytest.raises(ConfigError, match=r"job: .*a/store and .*b/store would both be broker 'x': set broker_name"):
        list_stores("job", (one, two), ("x", "x"), "confirm")


def test_where_masters_changed_is_read_from_the_store(tmp_path: Path) -> None:
    for name, starts in (("ha/controller/broker-1", [0, 12_712, 26_618]), ("ha/classic/slave", [])):
        root = golden.unpack(name, tmp_path / name, only=("commitlog", "epochFileCheckpoint"))
        assert epoch_starts(list_store(str(root))) == starts
