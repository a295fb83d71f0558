"""Directories that RocketMQ 5.3.3 wrote open, and answer as RocketMQ does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.broker.store import Store, StoreConfig
from penstock.formats.record.layout import decode_record
from penstock.proto.errors import Corrupt, WrongStore
from tests.support import golden
from tests.support.broker.stores import HOST, batch, dispatch_all, read, store_config, tree

DIRECTORIES = (
    "commitlog",
    "consumequeue",
    "batchconsumequeue",
    "consumequeue_ext",
    "index",
    "checkpoint",
    "abort",
    "timerlog",
)
PRE_BLANK_BUG = {("LateStart", 0)}
"""RocketMQ finds a minimum among the blank entries of this queue; Penstock its first message."""


def golden_config(name: str, root: Path, **changes: Any) -> StoreConfig:
    """What opens the set."""
    settings = golden.settings(name)
    return store_config(
        root,
        segment_bytes=int(settings["mappedFileSizeCommitLog"]),
        consume_queue_bytes=int(settings["mappedFileSizeConsumeQueue"]),
        index_slots=int(settings["maxHashSlotNum"]),
        index_entries=int(settings["maxIndexNum"]),
        store_host=HOST,
        **changes,
    )


def _simple_queues(found: Any) -> list[Any]:
    return [queue for queue in found["queues"] if queue["type"] == "SimpleCQ"]


def _check_queues(store: Store, queues: list[Any]) -> None:
    for queue in queues:
        topic, queue_id = queue["topic"], queue["queueId"]
        entries = [entry for entry in queue["entries"] if entry[2] != 0x7FFFFFFF]
        if (topic, queue_id) not in PRE_BLANK_BUG:
            assert store.reader.queue_range(topic, queue_id) == (queue["minOffset"], queue["maxOffset"])
        assert store.reader.queue_range(topic, queue_id)[1] == queue["maxOffset"]
        records = read(store, topic, queue_id)
        assert [record.physical_offset for record in records] == [entry[1] for entry in entries], (topic, queue_id)


@pytest.mark.parametrize("name", golden.SETS)
def test_queues_times_and_keys_answer_as_in_rocketmq(name: str, tmp_path: Path) -> None:
    golden.unpack(name, tmp_path, only=DIRECTORIES)
    expected = golden.expected(name)
    store = Store.open(golden_config(name, tmp_path))
    for _ in range(2):
        assert (store.min_offset, store.end_offset) == (
            expected["commitLog"]["minOffset"],
            expected["commitLog"]["maxOffset"],
        )
        _check_queues(store, _simple_queues(expected))
        for queue in _simple_queues(expected):
            for timestamp_ms, lower, upper in queue["offsetByTime"]:
                asked = queue["topic"], queue["queueId"], timestamp_ms
                assert (store.lookup.search_offset(*asked), store.lookup.search_offset(*asked, upper=True)) == (
                    lower,
                    upper,
                )
        for topic, key, physical_offsets in expected["queryMessage"]:
            found = store.lookup.query(topic, key, 32, 0, 1 << 62)
            assert sorted(decode_record(raw).physical_offset for raw in found) == sorted(set(physical_offsets))
        store.close()
        store = Store.open(golden_config(name, tmp_path))
        assert store.recovery.clean
    store.close()


def test_records_and_tags_are_those_of_the_set(tmp_path: Path) -> None:
    golden.unpack("normal", tmp_path, only=DIRECTORIES)
    store = Store.open(golden_config("normal", tmp_path))
    for message, raw in golden.records("normal"):
        assert store.lookup.view(message["physicalOffset"]) == raw
    tagged = [entry for queue in _simple_queues(golden.expected("normal")) for entry in queue["entries"]]
    assert {entry[3] for entry in tagged} > {0}
    store.close()


@pytest.mark.parametrize("name", ["normal", "crashed", "multi-queue", "ha/classic/master", "ha/controller/broker-2"])
def test_queues_built_from_the_log_have_rocketmqs_bytes(name: str, tmp_path: Path) -> None:
    golden.unpack(name, tmp_path / "theirs", only=DIRECTORIES)
    golden.unpack(name, tmp_path / "ours", only=("commitlog",))
    Store.open(golden_config(name, tmp_path / "ours")).close()
    assert tree(tmp_path / "ours/consumequeue") == tree(tmp_path / "theirs/consumequeue")


def test_what_went_on_in_ours_is_one_log_with_what_was_there(tmp_path: Path) -> None:
    golden.unpack("multi-queue", tmp_path, only=DIRECTORIES)
    store = Store.open(golden_config("multi-queue", tmp_path))
    low, high = store.reader.queue_range("ManyQueues", 3)
    result = store.append("ManyQueues", batch("ManyQueues", [b"new"], 3), queues=200)
    assert result.queue_offsets == [high]
    dispatch_all(store)
    store.abandon()
    store = Store.open(golden_config("multi-queue", tmp_path))
    assert store.reader.queue_range("ManyQueues", 3) == (low, high + 1)
    assert read(store, "ManyQueues", 3)[-1].body == b"new"
    store.close()


REFUSED = {
    "bad-body-near-end": Corrupt,
    "bad-body-early": Corrupt,
    "blank-record-lost": Corrupt,
    "short-log-file": WrongStore,
}


@pytest.mark.parametrize("variant", golden.variants(), ids=lambda variant: variant["name"])
def test_damaged_copies_of_the_crashed_store(variant: Any, tmp_path: Path) -> None:
    """Where RocketMQ loses entries that are in the log, or cuts sound records, Penstock has or keeps them."""
    golden.unpack("crashed", tmp_path)
    golden.damage(tmp_path, variant["patch"])
    refusal = REFUSED.get(variant["name"])
    if refusal is not None:
        before = tree(tmp_path / "commitlog")
        with pytest.raises(refusal):
            Store.open(golden_config("crashed", tmp_path))
        assert tree(tmp_path / "commitlog") == before
        return
    store = Store.open(golden_config("crashed", tmp_path))
    end = variant["commitLog"]["maxOffset"]
    # A blank ends the last file that is left: RocketMQ would write over it, Penstock goes on in the next file.
    assert store.end_offset == (458752 if variant["name"] == "last-log-file-missing" else end)
    whole = golden.expected("crashed")
    for queue in whole["queues"]:
        entries = [entry for entry in queue["entries"] if entry[1] + entry[2] <= store.end_offset]
        records = read(store, queue["topic"], queue["queueId"])
        assert [record.physical_offset for record in records] == [entry[1] for entry in entries]
    store.close()
