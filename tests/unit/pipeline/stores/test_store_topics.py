"""Topics that a store may or may not have: what the store source refuses, and what it only warns of."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from penstock.pipeline.stores.directory import list_store
from penstock.pipeline.stores.options import parse_options
from penstock.pipeline.stores.scan.picking import plan_picks
from penstock.pipeline.stores.scan.planning import plan_splits
from penstock.pipeline.stores.topic_names import require_topics
from penstock.proto.errors import ConfigError
from tests.support import golden
from tests.support.broker.running_broker import running
from tests.support.store_rows import rows_of

PARTS = ("commitlog", "consumequeue")


def require(*roots: Path, topics: str, **options: str) -> None:
    given = parse_options({"storePath": ",".join(map(str, roots)), "topics": topics, **options})
    require_topics([list_store(str(root), root.parent.name) for root in roots], given)


def test_a_topic_that_no_closed_store_has_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    normal = golden.unpack("normal", tmp_path / "a" / "store", only=PARTS)
    other = golden.unpack("multi-queue", tmp_path / "b" / "store", only=PARTS)
    with pytest.raises(ConfigError, match=r"no topic 'GoldOrdr' in .*a/store, .*b/store \(did you mean 'GoldOrder'"):
        require(normal, other, topics="GoldOrder,GoldOrdr")
    require(normal, other, topics="GoldOrder,ManyQueues")
    with pytest.raises(ConfigError, match=r"no topic 'Manyqueue' in .*'ManyQueues'"):
        require(normal, other, topics="Manyqueue")
    with pytest.raises(ConfigError, match="no topic 'ManyQueues' in "):
        require(normal, topics="ManyQueues")


def test_a_topic_that_may_be_there_is_not_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = golden.unpack("multi-queue", tmp_path / "a" / "store", only=PARTS)
    require(root, topics="%DLQ%nobody,%RETRY%nobody,RMQ_SYS_TRACE_TOPIC")  # there when needed
    require(root, topics="absent", useConsumeQueue="false")
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {"empty": {}}}))
    require(root, topics="empty")
    assert not caplog.records
    (root / "config" / "topics.json").unlink()
    (root / "abort").touch()  # its broker runs, and nothing tells which topics it has
    shutil.rmtree(root / "consumequeue")
    require(root, topics="absent")
    assert "no queue of the topic was found topic=absent" in caplog.text


def test_a_misspelt_topic_of_an_open_store_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    root = golden.unpack("multi-queue", tmp_path / "a" / "store", only=PARTS)
    (root / "abort").touch()
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {"empty": {}}}))
    with pytest.raises(ConfigError, match=r"no topic 'ManyQueue' in .*'ManyQueues'.* set useConsumeQueue to false"):
        require(root, topics="ManyQueue")
    with pytest.raises(ConfigError, match=r"no topic 'emty' in .*'empty'"):
        require(root, topics="emty")
    require(root, topics="empty,ManyQueues")
    require(root, topics="ManyQueue", useConsumeQueue="false")


def test_a_deleted_topic_with_records_in_the_log_is_not_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = golden.unpack("normal", tmp_path / "a" / "store", only=PARTS)
    shutil.rmtree(root / "consumequeue" / "GoldOrder")
    require(root, topics="GoldOrder")
    assert "no queue of the topic was found topic=GoldOrder" in caplog.text
    shutil.rmtree(root / "consumequeue")  # and where there are no queues at all
    require(root, topics="GoldOrder")
    with pytest.raises(ConfigError, match="no topic 'GoldOrdr'"):
        require(root, topics="GoldOrdr")  # this log is small enough to be looked through
    monkeypatch.setattr("penstock.pipeline.stores.topic_names.SCAN_BYTES_MAX", 1000)
    require(root, topics="GoldOrdr")


async def _fill(directory: Path) -> None:
    """A store with four log files, a large topic, and a small one whose queue has several files."""
    async with running(directory, mappedFileSizeConsumeQueue=1000) as (_, caller):
        await caller.create_topic("many", queues=1)
        await caller.create_topic("few", queues=1)
        await caller.create_topic("empty", queues=1)
        for number in range(150):
            await caller.append([b"x" * 2000] * 10, topic="many")
            await caller.append([b"%d" % number], topic="few")


def test_a_closed_store_of_ours_is_read_by_its_queues_alone_until_one_lacks_an_entry(tmp_path: Path) -> None:
    asyncio.run(_fill(tmp_path))
    root = tmp_path / "store"
    listed = list_store(str(root))
    assert not listed.is_open
    assert len(listed.files) >= 3
    for chosen in ({}, {"startPhysicalOffset": str(listed.files[1].start + 5000)}, {"endPhysicalOffset": "1500000"}):
        given = parse_options({"storePath": str(root), "topics": "few", **chosen})
        picked = plan_picks(listed, given)
        assert picked is not None
        assert all(split.picks is not None for split in picked)
        assert rows_of(picked, given) == rows_of(plan_splits(listed, given), given)
    require(root, topics="many,few,empty")
    with pytest.raises(ConfigError, match=r"no topic 'fev' in .*'few'"):
        require(root, topics="fev")
    last = max(path for path in (root / "consumequeue" / "few" / "0").iterdir() if any(path.read_bytes()))
    last.unlink()  # the queue seems to end before, and other queues reach the end of the log
    given = parse_options({"storePath": str(root), "topics": "few"})
    picked = plan_picks(listed, given)
    assert picked is not None
    assert 0 < sum(split.picks is None for split in picked) < len(listed.files)
    assert len(rows_of(picked, given)) == 150
