"""Light queues, extensions and batch consume queues of directories that RocketMQ 5.3.3 wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.broker.store import ReadStatus, Store
from penstock.formats.hashing import string_hash
from penstock.proto.errors import Forbidden
from tests.support import golden
from tests.support.broker.stores import batch, dispatch_all, read, tree
from tests.unit.store.recovery.test_golden_stores import DIRECTORIES, golden_config

LIGHT = ("%LMQ%one", "%LMQ%two")


@pytest.mark.parametrize("name", ["direct", "direct-crc", "direct-ext", "direct-trimmed"])
def test_light_queues_built_from_the_log_have_rocketmqs_entries(name: str, tmp_path: Path) -> None:
    golden.unpack(name, tmp_path, only=("commitlog",))
    store = Store.open(golden_config(name, tmp_path, lmq_enable=True, multi_dispatch=True))
    expected = {q["topic"]: q for q in golden.expected(name)["queues"] if q["topic"] in LIGHT}
    assert set(expected) == set(LIGHT)
    for topic, queue in expected.items():
        assert store.reader.queue_range(topic, 0) == (queue["minOffset"], queue["maxOffset"])
        assert [record.physical_offset for record in read(store, topic)] == [entry[1] for entry in queue["entries"]]
        for timestamp_ms, lower, upper in queue["offsetByTime"]:
            asked = topic, 0, timestamp_ms
            assert (store.lookup.search_offset(*asked), store.lookup.search_offset(*asked, upper=True)) == (
                lower,
                upper,
            )
    store.close()
    if name == "direct":
        golden.unpack(name, tmp_path / "theirs", only=("consumequeue",))
        for topic in LIGHT:
            assert tree(tmp_path / "consumequeue" / topic) == tree(tmp_path / "theirs/consumequeue" / topic)


def test_light_queues_of_a_rocketmq_store_go_on(tmp_path: Path) -> None:
    golden.unpack("direct", tmp_path, only=DIRECTORIES)
    store = Store.open(golden_config("direct", tmp_path, lmq_enable=True, multi_dispatch=True))
    lit = b"INNER_MULTI_DISPATCH\x01%LMQ%two,%LMQ%one\x02"
    store.append("LmqParent", batch("LmqParent", [b"new"], properties=[lit]), queues=2)
    dispatch_all(store)
    assert (store.reader.queue_range("%LMQ%one", 0), store.reader.queue_range("%LMQ%two", 0)) == ((0, 7), (0, 5))
    assert b"INNER_MULTI_QUEUE_OFFSET\x014,6\x02" in read(store, "%LMQ%two")[-1].properties
    store.abandon()
    store = Store.open(golden_config("direct", tmp_path, lmq_enable=True, multi_dispatch=True))
    assert store.reader.queue_range("%LMQ%one", 0) == (0, 7)
    store.close()


@pytest.mark.parametrize("with_units", [True, False])
def test_tags_are_told_apart_through_extensions(with_units: bool, tmp_path: Path) -> None:
    golden.unpack("direct-ext", tmp_path, only=DIRECTORIES)
    if not with_units:
        shutil.rmtree(tmp_path / "consumequeue_ext")
    store = Store.open(golden_config("direct-ext", tmp_path))
    queues = [q for q in golden.expected("direct-ext")["queues"] if q["type"] == "SimpleCQ"]
    extended = 0
    for queue in queues:
        topic, queue_id = queue["topic"], queue["queueId"]
        tagged: dict[int, list[int]] = {}
        for _, physical, _, code, *unit in queue["entries"]:
            extended += bool(unit)
            tagged.setdefault(unit[0]["tagsCode"] if unit else code, []).append(physical)
        if topic == "SCHEDULE_TOPIC_XXXX":
            continue  # delivery times, which nobody asks for
        for code, positions in tagged.items():
            assert [r.physical_offset for r in read(store, topic, queue_id, tags=[code])] == positions
    assert extended > 100
    nothing = store.reader.read("Keys", 0, 0, 1 << 20, tags=[string_hash("no such tag")])
    assert (nothing.status, nothing.count) == (ReadStatus.NO_MATCHED_MESSAGE, 0)
    store.close()


def test_files_of_extensions_stay_until_no_entry_refers_to_them(tmp_path: Path) -> None:
    golden.unpack("direct-ext", tmp_path, only=DIRECTORIES)
    before = tree(tmp_path / "consumequeue_ext")
    store = Store.open(golden_config("direct-ext", tmp_path))
    list(store.removal.align())
    assert tree(tmp_path / "consumequeue_ext") == before
    directory = tmp_path / "consumequeue_ext/Keys/0"
    assert len(list(directory.iterdir())) == 3
    queue = next(q for q in golden.expected("direct-ext")["queues"] if (q["topic"], q["queueId"]) == ("Keys", 0))
    second = next(entry for entry in queue["entries"] if entry[3] + (1 << 63) >= 256)
    store.removal.raise_min_offset("Keys", 0, second[0] - 1)
    list(store.removal.align())
    assert len(list(directory.iterdir())) == 3
    store.removal.raise_min_offset("Keys", 0, second[0])
    list(store.removal.align())
    assert [int(path.name) for path in sorted(directory.iterdir())] == [256, 512]
    store.removal.raise_min_offset("Keys", 0, queue["maxOffset"])
    list(store.removal.align())
    assert [int(path.name) for path in sorted(directory.iterdir())] == [512]
    store.drop_topic("Keys")
    assert not directory.parent.exists()
    store.close()


@pytest.mark.parametrize("with_folder", [True, False])
def test_topics_with_batch_queues_are_refused_by_name_and_stay_as_they_are(with_folder: bool, tmp_path: Path) -> None:
    golden.unpack("direct", tmp_path, only=DIRECTORIES)
    if not with_folder:
        shutil.rmtree(tmp_path / "batchconsumequeue")
        shutil.rmtree(tmp_path / "consumequeue")
    before = tree(tmp_path / "batchconsumequeue")
    for _ in range(2):
        store = Store.open(golden_config("direct", tmp_path))
        calls = (
            lambda store=store: store.reader.read("InnerBatch", 0, 0, 1 << 20),
            lambda store=store: store.lookup.search_offset("InnerBatch", 1, 0),
            lambda store=store: store.append("InnerBatch", batch("InnerBatch", [b"x"]), queues=2),
            lambda store=store: store.reader.check_readable("InnerBatch"),
        )
        for call in calls:
            with pytest.raises(Forbidden, match=r"InnerBatch .*BatchCQ"):
                call()
        store.reader.check_readable("Keys")
        assert not (tmp_path / "consumequeue/InnerBatch").exists()
        assert tree(tmp_path / "batchconsumequeue") == before
        store.close()
    store = Store.open(golden_config("direct", tmp_path))
    store.drop_topic("InnerBatch")
    store.append("InnerBatch", batch("InnerBatch", [b"x"]), queues=2)
    dispatch_all(store)
    assert [record.body for record in read(store, "InnerBatch")] == [b"x"]
    store.close()
    assert not (tmp_path / "batchconsumequeue/InnerBatch").exists()
