"""Queries that would find less than there is, or nothing: wrong queue directories, and options that match nothing."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark")

from penstock.pipeline.columns.schema import CORRUPT_COLUMN, STORE_COLUMNS
from penstock.pipeline.options import parse_time_ms
from penstock.pipeline.stores.directory import list_store
from penstock.pipeline.stores.files import expand_roots
from penstock.pipeline.stores.options import parse_options
from penstock.pipeline.stores.scan.picking import plan_picks
from penstock.pipeline.stores.scan.planning import Split, plan_splits
from penstock.pipeline.stores.source import StoreReader
from penstock.pipeline.stores.topic_names import require_topics
from penstock.proto.errors import ConfigError, Corrupt
from tests.support import golden
from tests.support.store_rows import rows_of

PARTS = ("commitlog", "consumequeue")


def rows(splits: Iterable[Split], root: Path, **options: str) -> list[dict[str, Any]]:
    columns = STORE_COLUMNS | (CORRUPT_COLUMN if options.get("onCorrupt") == "emit" else {})
    return rows_of(splits, parse_options({"storePath": str(root), **options}), columns)


def scanned(root: Path, **options: str) -> list[dict[str, Any]]:
    return rows(plan_splits(list_store(str(root)), parse_options({"storePath": str(root), **options})), root, **options)


def planned(root: Path, **options: str) -> list[Any]:
    given = parse_options({"storePath": str(root), **options})
    return [partition.split for partition in StoreReader(given, [list_store(str(root))], None).partitions()]


def swap(first: Path, second: Path) -> None:
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


@pytest.mark.parametrize("policy", ["fail", "skip", "emit"])
def test_queues_whose_directories_were_swapped_cost_no_rows(tmp_path: Path, policy: str) -> None:
    root = golden.unpack("normal", tmp_path / "store", only=PARTS)
    options = {"topics": "GoldOrder", "onCorrupt": policy}
    wanted = scanned(root, **options)
    assert len(wanted) == 40
    assert any(split.picks is not None for split in planned(root, **options))
    swap(root / "consumequeue" / "GoldOrder", root / "consumequeue" / "GoldAuto")
    assert rows(planned(root, **options), root, **options) == wanted
    shutil.rmtree(root / "consumequeue" / "GoldAuto")  # which had the entries of these
    assert rows(planned(root, **options), root, **options) == wanted


def test_queues_of_one_topic_with_swapped_numbers_cost_no_rows(tmp_path: Path) -> None:
    root = golden.unpack("normal", tmp_path / "store", only=PARTS)
    options = {"topics": "GoldOrder"}
    queues = sorted({row["queueId"] for row in scanned(root, **options)})
    options["queueIds"] = str(queues[0])
    wanted = scanned(root, **options)
    swap(root / "consumequeue" / "GoldOrder" / str(queues[0]), root / "consumequeue" / "GoldOrder" / str(queues[1]))
    assert rows(planned(root, **options), root, **options) == wanted


def test_a_topic_whose_queues_stand_under_another_name_is_not_taken_for_absent(tmp_path: Path) -> None:
    root = golden.unpack("normal", tmp_path / "store", only=PARTS)
    wanted = scanned(root, topics="GoldOrder")
    (root / "consumequeue" / "GoldOrder").rename(root / "consumequeue" / "GoldOther")
    require_topics([list_store(str(root))], parse_options({"storePath": str(root), "topics": "GoldOrder"}))
    assert rows(planned(root, topics="GoldOrder"), root, topics="GoldOrder") == wanted


def test_a_picked_record_of_another_topic_is_damage(tmp_path: Path) -> None:
    root = golden.unpack("normal", tmp_path / "store", only=PARTS)
    options = {"topics": "GoldOrder"}
    splits = plan_picks(list_store(str(root)), parse_options({"storePath": str(root), **options}))
    assert splits is not None
    wanted = scanned(root, **options)
    other = scanned(root, topics="GoldAuto")[0]
    place = next(split for split in splits if split.picks and split.file and _holds(split, other["physicalOffset"]))
    assert place.file is not None
    assert place.picks is not None
    positions, sizes = (list(column) for column in place.picks)
    positions.append(other["physicalOffset"] - place.file.start)
    sizes.append(other["size"])
    order = np.argsort(positions)
    picks = np.array(positions, np.int64)[order], np.array(sizes, np.int64)[order]
    wrong = [Split(place.root, place.broker_name, place.file, 0, place.file.end, picks=picks)]
    told = f"{other['physicalOffset']}: a queue entry names it, and it is of another topic or queue"
    with pytest.raises(Corrupt, match=told):
        rows(wrong, root, **options)
    sound = [row for row in wanted if _holds(place, row["physicalOffset"])]
    assert rows(wrong, root, **options, onCorrupt="skip") == sound
    emitted = [row for row in rows(wrong, root, **options, onCorrupt="emit") if row["corrupt"]]
    assert [row["physicalOffset"] for row in emitted] == [other["physicalOffset"]]


def _holds(split: Split, physical: int) -> bool:
    file = split.file
    return file is not None and file.start <= physical < file.start + file.end


def test_full_verification_of_a_time_range_stands_a_clock_that_was_set_back(tmp_path: Path) -> None:
    root = golden.unpack("ha/classic/master", tmp_path / "store", only=PARTS)
    messages = golden.expected("ha/classic/master")["messages"]
    victim = [message for message in messages if message["queueId"] == 1][1]
    start = min(message["storeTimestamp"] for message in messages)
    path = max(path for path in (root / "commitlog").iterdir() if int(path.name) <= victim["physicalOffset"])
    at = victim["physicalOffset"] - int(path.name) + 56
    content = bytearray(path.read_bytes())
    content[at : at + 8] = (start - 50).to_bytes(8, "big")
    path.write_bytes(content)
    found = scanned(root, verify="full", startTimestamp=str(start))
    assert [row["physicalOffset"] for row in found] == [m["physicalOffset"] for m in messages if m is not victim]


def test_log_positions_that_no_closed_store_has_are_refused(tmp_path: Path) -> None:
    root = golden.unpack("multi-queue", tmp_path / "store", only=PARTS)
    store = list_store(str(root))
    last = max(row["physicalOffset"] for row in scanned(root))
    assert planned(root, startPhysicalOffset=str(last))
    with pytest.raises(ConfigError, match=rf"startPhysicalOffset is {store.end}, .* bytes 0 to {store.end} in {root}"):
        planned(root, startPhysicalOffset=str(store.end))
    with pytest.raises(ConfigError, match="endPhysicalOffset is 0, and no log has anything there"):
        planned(root, endPhysicalOffset="0")
    (root / "abort").touch()
    assert planned(root, startPhysicalOffset=str(store.end)) == []
    for name in ("startPhysicalOffset", "endPhysicalOffset"):
        with pytest.raises(ConfigError, match=f"{name} is '-1': expected a log position from 0"):
            parse_options({"storePath": "a", name: "-1"})


def test_numbers_of_queues_that_no_chosen_topic_has_are_refused(tmp_path: Path) -> None:
    root = golden.unpack("normal", tmp_path / "store", only=PARTS)
    assert planned(root, topics="GoldOrder", queueIds="0")
    with pytest.raises(ConfigError, match=r"no queue 77 of GoldOrder in .*store: there are 0 to \d+; set useConsume"):
        planned(root, topics="GoldOrder", queueIds="0,77")
    with pytest.raises(ConfigError, match="no queue 7777 of any topic in"):
        planned(root, queueIds="7777", view="queues")
    assert planned(root, topics="GoldOrder", queueIds="77", useConsumeQueue="false")
    assert planned(root, topics="%RETRY%nobody", queueIds="77") is not None
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {"GoldOrder": {"readQueueNums": 80}}}))
    planned(root, topics="GoldOrder", queueIds="77")
    (root / "config" / "topics.json").unlink()
    shutil.rmtree(root / "consumequeue" / "GoldOrder")  # its records are still there
    assert planned(root, topics="GoldOrder", queueIds="0")
    (root / "abort").touch()
    planned(root, queueIds="7777")
    with pytest.raises(ConfigError, match="queueIds is '0,-1': expected a number from 0"):
        parse_options({"storePath": "a", "queueIds": "0,-1"})


@pytest.mark.parametrize("digits", ["20300101", "1893456000"])
def test_a_date_or_seconds_are_not_taken_for_milliseconds(digits: str) -> None:
    for name in ("startTimestamp", "endTimestamp"):
        told = f"{name} is '{digits}': expected a time as 2030-01-31, .*not of eight or ten digits"
        with pytest.raises(ConfigError, match=told):
            parse_options({"storePath": "a", name: digits})


def test_a_time_that_may_be_several_is_told_with_the_right_form() -> None:
    with pytest.raises(ValueError, match="20300101 may be a date or milliseconds since 1970: write 2030-01-01"):
        parse_time_ms("20300101")
    with pytest.raises(ValueError, match="1893456000 may be seconds or milliseconds since 1970: write 1893456000000"):
        parse_time_ms("1893456000")
    assert parse_time_ms("2030-01-01") == parse_time_ms("1893456000000") == 1_893_456_000_000


@pytest.mark.parametrize("name", ["storePath", "path", "topics", "queueIds", "brokerName"])
@pytest.mark.parametrize("value", ["", " , "])
def test_a_list_that_names_nothing_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is empty: name"):
        parse_options({"storePath": "a", name: value} if name != "path" else {"path": value})


def test_sparks_own_paths_are_refused_where_they_are_no_list() -> None:
    for value in ("x", '"x"', "[]", "[1]", '{"a": 1}'):
        with pytest.raises(ConfigError, match=re.escape(f"paths is {value!r}: it is Spark's own, for load([…])")):
            parse_options({"paths": value})
    assert parse_options({"paths": '["a", "b,c"]'}).roots == ("a", "b,c")


def test_patterns_in_uris_match_directories_as_those_in_paths_do(tmp_path: Path) -> None:
    for name in ("a/store", "b c/store", ".hidden/store", "d/other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").touch()
    uri = f"file://{tmp_path}"
    assert expand_roots((f"{uri}/*/store",)) == [f"{uri}/a/store", f"{uri}/b%20c/store"]
    assert expand_roots((f"{uri}/[a-c]*/s*",)) == [f"{uri}/a/store", f"{uri}/b%20c/store"]
    assert expand_roots((f"{uri}/*",)) == [f"{uri}/{name}" for name in ("a", "b%20c", "d")]
    assert expand_roots((f"{uri}/absent", "s3://bucket/x?region=eu")) == [f"{uri}/absent", "s3://bucket/x?region=eu"]
    with pytest.raises(ConfigError, match=r"/x\*: matches no directory"):
        expand_roots((f"{uri}/x*",))
    with pytest.raises(ConfigError, match="pattern in the place of a host or bucket: list the stores"):
        expand_roots(("s3://buck*/x",))


def test_a_time_that_a_store_has_not_reached_or_known_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = golden.unpack("normal", tmp_path / "store", only=PARTS)
    assert planned(root, endTimestamp="2000-01-01") == []
    (told,) = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(rf"no log file has messages of the wanted time: {root} has messages since 2026-\S+ \S+", told)
    caplog.clear()
    assert planned(root, endTimestamp="2100-01-01")
    assert not caplog.records
