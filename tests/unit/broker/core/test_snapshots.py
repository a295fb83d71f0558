from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from penstock.broker.broker import FEATURES
from penstock.broker.core.tables.groups import Group
from penstock.broker.core.tables.producers import Receipt
from penstock.broker.core.tables.snapshots import (
    LAG_BYTES_MAX,
    LAG_BYTES_MAX_AT_END,
    LOG_POSITION,
    Loaded,
    Snapshots,
)
from penstock.broker.core.tables.tables import Tables
from penstock.broker.core.tables.topics import Topic
from penstock.broker.features.exactly_once.staging_table import (
    REMEMBERED_MS,
    STAGED,
    STAGED_GONE,
    StagedId,
    StagingTable,
    gone_body,
)
from penstock.broker.identity import check_identity, write_identity
from penstock.broker.opening import open_store
from penstock.formats.rocketmq_config import parse_rocketmq_json
from penstock.proto.errors import Corrupt, SyncFailed, WrongStore
from tests.support.broker.running_broker import small_config
from tests.support.broker.stores import batch
from tests.support.golden import GOLDEN

FILES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "producerSequence.json")


def tables_of() -> Tables:
    """Those of every broker, and one of a feature."""
    return Tables([StagingTable])


def filled() -> Tables:
    tables = tables_of()
    tables.topics.put(10, "orders", Topic("orders", 8, 4, 6, {"message.type": "FIFO"}, {"order": True}))
    tables.groups.put(20, "billing", Group("billing", False, 5))
    tables.offsets.put(30, "billing", "orders", {0: 17, 11: 4})
    tables.producers.remember(0xAB, 2, "orders", 3, Receipt(9, 100, 200, 1_700_000_000_000, [0, 5], [7, 8]))
    return tables


def written(directory: Path, position: int = 500) -> None:
    Snapshots(directory, filled()).write_all(position)


def loaded(directory: Path, log_min: int = 0, log_end: int = 1000, **how: bool) -> tuple[Tables, Loaded]:
    tables = tables_of()
    how.setdefault("log_has_all", True)
    return tables, Snapshots(directory, tables).load(log_min, log_end, **how)


def test_tables_come_back_from_their_files_with_the_position_to_replay_from(tmp_path: Path) -> None:
    written(tmp_path)
    tables, found = loaded(tmp_path)
    before = filled()
    assert found == Loaded(replay_from=500, imported=False)
    assert tables.topics.get("orders") == before.topics.get("orders")
    assert tables.groups.get("billing") == before.groups.get("billing")
    assert tables.offsets.row("billing", "orders") == {0: 17, 11: 4}
    assert tables.producers.find_duplicate(0xAB, 2, "orders", 3, 9) is not None
    assert tables.topics.base == tables.offsets.base == 500


def test_files_have_rocketmqs_shape_in_valid_json(tmp_path: Path) -> None:
    written(tmp_path)
    documents = {name: json.loads((tmp_path / name).read_text()) for name in FILES}
    assert documents["topics.json"]["topicConfigTable"]["orders"]["readQueueNums"] == 8
    assert documents["topics.json"]["topicConfigTable"]["orders"]["order"] is True
    assert documents["subscriptionGroup.json"]["subscriptionGroupTable"]["billing"]["consumeTimeoutMinute"] == 15
    assert documents["consumerOffset.json"]["offsetTable"] == {"orders@billing": {"0": 17, "11": 4}}
    assert documents["consumerOffset.json"]["groupTopicMap"] == {"billing": ["orders"]}
    for document in documents.values():
        assert document[LOG_POSITION] == 500
        assert set(document["dataVersion"]) == {"counter", "stateVersion", "timestamp"}


@pytest.mark.parametrize("at_end", [False, True])
def test_a_start_reads_no_more_of_the_log_because_nothing_changed_in_a_table(tmp_path: Path, at_end: bool) -> None:
    tables = filled()
    snapshots = Snapshots(tmp_path, tables)
    snapshots.write_all(500)
    lag = LAG_BYTES_MAX_AT_END if at_end else LAG_BYTES_MAX
    for sequence, position in ((10, 500 + lag - 1), (11, 500 + lag)):
        tables.producers.remember(0xAB, 2, "orders", 3, Receipt(sequence, position, 200, 1_700_000_000_000, [0], [9]))
        if at_end:
            snapshots.write_all(position)
        else:
            asyncio.run(snapshots.write_changed(lambda at=position: at, at_once=True))  # type: ignore[misc]
        _, found = loaded(tmp_path, log_end=1 << 40)
        assert found.replay_from == (position if position == 500 + lag else 500)


def test_a_snapshot_of_what_is_before_a_cut_stays_and_says_where_the_log_ends(tmp_path: Path) -> None:
    tables = filled()
    snapshots = Snapshots(tmp_path, tables)
    for position in (500, 500 + LAG_BYTES_MAX_AT_END, 500 + 2 * LAG_BYTES_MAX_AT_END):
        snapshots.write_all(position)
    snapshots.delete_behind(400)
    for name in FILES:
        for path in (tmp_path / name, tmp_path / f"{name}.bak"):
            assert json.loads(path.read_text())[LOG_POSITION] == 400
    found, how = loaded(tmp_path, log_min=300, log_end=400)
    assert how == Loaded(replay_from=400, imported=False)
    assert found.topics.get("orders") == tables.topics.get("orders")
    snapshots.delete_behind(100)  # where the record of the producer's batch begins
    assert not list(tmp_path.glob("producerSequence*"))


def staged(number: int) -> dict[str, object]:
    return {
        **{"writer": "sink", "batch": 1, "key": "0", "chunk": number, "topic": "orders", "coordinator": "broker-a"},
        **{"expiresMs": 1 << 50, "position": 1000 + number, "count": 5},
    }


def test_tables_may_change_between_two_pieces_of_a_file(tmp_path: Path) -> None:
    async def check() -> None:
        tables = filled()
        for number in range(3):
            tables[StagingTable].apply(40 + number, STAGED, staged(number))
        snapshots = Snapshots(tmp_path, tables)
        writing = asyncio.create_task(snapshots.write_changed(lambda: 500, at_once=True))
        for number in itertools.count(1):
            if writing.done():
                break
            tables.topics.put(500 + number, f"orders{number}", Topic(f"orders{number}", 1, 1, 6))
            tables.groups.put(500 + number, f"billing{number}", Group(f"billing{number}"))
            tables.offsets.put(500 + number, f"billing{number}", "orders", {number: 1})
            tables[StagingTable].apply(500 + number, STAGED, staged(number + 10))
            await asyncio.sleep(0)
        await writing
        assert number > 20

    asyncio.run(check())
    tables, _ = loaded(tmp_path)
    assert tables.offsets.get("billing", "orders", 0) == 17
    assert {0, 1, 2} <= set(tables[StagingTable].staged[StagedId("sink", 1, "0")].chunks)


def test_a_writer_that_is_cancelled_ends_when_its_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the stop, or a cut of the log, would write or delete the same file at the same time."""
    begun, may_go_on = threading.Event(), threading.Event()
    replace = Snapshots._replace

    def slowly(snapshots: Snapshots, name: str, text: str) -> None:
        begun.set()
        assert may_go_on.wait(10)
        replace(snapshots, name, text)

    async def check() -> None:
        snapshots = Snapshots(tmp_path, filled())
        writing = asyncio.create_task(snapshots.write_changed(lambda: 500, at_once=True))
        assert await asyncio.to_thread(begun.wait, 10)
        writing.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert snapshots.writing.locked()
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert not snapshots.writing.locked()
        assert os.listdir(tmp_path) == [FILES[0]], "that file, and nothing half done"
        snapshots.write_all(600)

    monkeypatch.setattr(Snapshots, "_replace", slowly)
    asyncio.run(check())
    assert loaded(tmp_path)[1] == Loaded(replay_from=600, imported=False)


def test_what_goes_while_the_table_is_repeated_does_not_come_back() -> None:
    table = StagingTable()
    for number in range(3):
        table.apply(40 + number, STAGED, staged(number))
    told = table.repeated(500)
    next(told)
    table.apply(600, STAGED_GONE, gone_body("sink", 1, ["0"]))
    assert list(told) == []


def test_what_a_writer_publishes_while_the_table_is_repeated_is_not_told_as_it_was() -> None:
    table = StagingTable()
    for position, writer in ((40, "first"), (50, "gone"), (60, "sink")):
        table.apply(position, STAGED_GONE, gone_body(writer, 1, [], published_ms=1000))
    told = table.repeated(500)
    next(told)
    table.apply(600, STAGED_GONE, gone_body("sink", 2, [], published_ms=REMEMBERED_MS))
    table.expire(REMEMBERED_MS + 2000)
    assert list(told) == []


def test_empty_tables_make_valid_json_too(tmp_path: Path) -> None:
    Snapshots(tmp_path, tables_of()).write_all(0)
    assert loaded(tmp_path)[1] == Loaded(0, False)


def test_an_older_file_stands_in_for_a_damaged_or_missing_one(tmp_path: Path) -> None:
    tables = filled()
    snapshots = Snapshots(tmp_path, tables)
    snapshots.write_all(500)
    tables.offsets.put(600, "billing", "orders", {0: 99})
    snapshots.write_all(700)
    path = tmp_path / "consumerOffset.json"
    for damage in ("{", None):
        path.write_text(damage) if damage else path.unlink()
        again, found = loaded(tmp_path)
        assert again.offsets.get("billing", "orders", 0) == 17
        assert found.replay_from == 500


def test_a_file_without_a_good_copy_needs_a_whole_log(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "topics.json").write_text('{"topicConfigTable": [1]}')
    tables, found = loaded(tmp_path)
    assert (len(tables.topics), found.replay_from) == (0, 0)
    with pytest.raises(Corrupt, match=r"topics\.json"):
        loaded(tmp_path, log_min=100)
    with pytest.raises(Corrupt, match=r"topics\.json"):
        loaded(tmp_path, log_has_all=False)


def test_a_damaged_file_is_named_in_a_short_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(tmp_path)
    (tmp_path / "topics.json").write_bytes(b"\xff" * 1_000_000)
    loaded(tmp_path)
    (line,) = [each for each in caplog.messages if each.startswith("snapshot damaged")]
    assert f"path={tmp_path}/topics.json error='utf-8' codec can't decode byte 0xff in position 0" in line
    assert len(line) < 500
    with pytest.raises(Corrupt) as refused:
        loaded(tmp_path, log_min=1)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 50_000,
        '{"logPosition":1e999,"topicConfigTable":{}}',
        '{"topicConfigTable":{},"dataVersion":[]}',
    ],
)
def test_a_file_that_the_parser_or_a_number_cannot_take_is_damaged_too(tmp_path: Path, text: str) -> None:
    written(tmp_path)
    (tmp_path / "topics.json").write_text(text)
    with pytest.raises(Corrupt, match=r"topics.json: .*kept for inspection"):
        loaded(tmp_path, log_min=1)
    assert loaded(tmp_path)[1].replay_from == 0  # the log has it all
    (tmp_path / "penstockIdentity.json").write_text(text.replace("logPosition", "name"))
    with pytest.raises(WrongStore, match="damaged"):
        check_identity(tmp_path, "c", "b")


def test_a_snapshot_ahead_of_the_log_does_not_hide_what_is_written_next(tmp_path: Path) -> None:
    written(tmp_path, position=5000)
    tables, found = loaded(tmp_path, log_end=150)
    assert (found.replay_from, found.ahead) == (150, True)
    tables.offsets.put(150, "billing", "orders", {0: 3})
    assert tables.offsets.get("billing", "orders", 0) == 3
    assert tables.producers.find_duplicate(0xAB, 2, "orders", 3, 9) is None
    Snapshots(tmp_path, tables).write_anew(200)
    assert loaded(tmp_path, log_end=9000)[1].replay_from == 200, "the log grew over the former position"
    assert not list(tmp_path.glob("*.bak"))


def test_rocketmqs_own_files_are_read_and_marked_for_import(tmp_path: Path) -> None:
    (tmp_path / "consumerOffset.json").write_text(
        '{\n\t"dataVersion":{"counter":0},\n\t"offsetTable":{\n'
        '\t\t"%RETRY%G@G":{0:5\n\t\t},\n\t\t"orders@billing":{0:16,1:24\n\t\t}\n\t}\n}'
    )
    tables, found = loaded(tmp_path)
    assert tables.offsets.row("billing", "orders") == {0: 16, 1: 24}
    assert tables.offsets.get("G", "%RETRY%G", 0) == 5
    assert found == Loaded(replay_from=1000, imported=True)


def test_with_light_queues_offsets_are_in_the_file_that_rocketmq_has_then(tmp_path: Path) -> None:
    """RocketMQ reads and writes no other one with ``enableLmq``: without it every group begins anew."""
    shutil.copy(GOLDEN / "light-offsets" / "lmqConsumerOffset.json", tmp_path)
    (tmp_path / "consumerOffset.json").write_text('{"offsetTable":{"Lmq@plain":{0:5},"Older@plain":{0:5}}}')
    tables = Tables(lmq_enable=True)
    assert Snapshots(tmp_path, tables).load(0, 1000, log_has_all=True) == Loaded(replay_from=1000, imported=True)
    assert tables.offsets.get("plain", "Lmq", 0) == 9
    assert tables.offsets.get("%LMQ%device", "Lmq", 0) == 9, "what stands in the table of the others is older"
    assert tables.offsets.get("plain", "Older", 0) == -1

    tables.offsets.put(1000, "%LMQ%device", "Lmq", {0: 11})
    tables.offsets.put(1000, "%LMQ%device", "Plain", {2: 3})
    Snapshots(tmp_path, tables).write_all(1100)
    document = json.loads((tmp_path / "lmqConsumerOffset.json").read_text())
    assert document["lmqOffsetTable"] == {"Lmq@%LMQ%device": 11}
    assert document["offsetTable"]["Lmq@plain"] == {"0": 9}
    again = Tables(lmq_enable=True).fresh()
    assert Snapshots(tmp_path, again).load(0, 1200, log_has_all=True).replay_from == 1100
    assert again.offsets.get("%LMQ%device", "Plain", 2) == 3, "a queue for which RocketMQ has no place"


def test_offsets_stay_when_light_queues_are_switched_on_together_with_the_take_over(tmp_path: Path) -> None:
    (tmp_path / "consumerOffset.json").write_text('{"offsetTable":{"Plain@gp":{0:5}}}')
    (tmp_path / "topics.json").write_text('{"topicConfigTable":{}}')
    tables = Tables(lmq_enable=True)
    assert Snapshots(tmp_path, tables).load(0, 1000, log_has_all=False).imported
    assert tables.offsets.get("gp", "Plain", 0) == 5


def test_bare_keys_are_quoted_outside_strings_only() -> None:
    assert parse_rocketmq_json('{"a": {0:1, 2 : "3: x {4:5}"}}') == {"a": {"0": 1, "2": "3: x {4:5}"}}
    for text in ("[]", "{", "3"):
        with pytest.raises(ValueError):
            parse_rocketmq_json(text)


def test_a_store_of_another_broker_is_refused_and_ones_own_known(tmp_path: Path) -> None:
    assert not check_identity(tmp_path, "main", "broker-a")
    write_identity(tmp_path, "main", "broker-a")
    assert check_identity(tmp_path, "main", "broker-a")
    for cluster, name in (("main", "broker-b"), ("other", "broker-a")):
        with pytest.raises(WrongStore, match="belongs to main/broker-a"):
            check_identity(tmp_path, cluster, name)
    (tmp_path / "penstockIdentity.json").write_text("{")
    with pytest.raises(WrongStore, match="damaged"):
        check_identity(tmp_path, "main", "broker-a")


def test_the_log_is_synced_before_a_file_knows_it(tmp_path: Path) -> None:
    """A power cut would else leave files that know more, and what comes in that place would be passed over."""
    slow = {"flushIntervalCommitLog": "600000", "flushCommitLogThoroughInterval": "600000"}
    with open_store(small_config(tmp_path, **slow), FEATURES) as opened:
        end = opened.store.append("orders", batch("orders", [b"one"]), queues=1).end
        opened.tables.topics.put(10, "orders", Topic("orders", 1, 1))
        opened.tables.files.write_all(end)
        assert opened.store.flushed_offset == end
        opened.store.close()


@pytest.mark.parametrize("is_last", [False, True])
def test_where_the_log_cannot_be_synced_the_older_files_stay(tmp_path: Path, is_last: bool) -> None:
    written(tmp_path, 500)
    tables = filled()

    def fail() -> None:
        raise SyncFailed("the disk is broken")

    snapshots = Snapshots(tmp_path, tables, fail)
    if is_last:
        snapshots.write_all(900)
    else:
        asyncio.run(snapshots.write_changed(lambda: 900, at_once=True))
    assert loaded(tmp_path)[1].replay_from == 500
