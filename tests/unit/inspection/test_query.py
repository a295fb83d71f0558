"""Queries answer as RocketMQ's own classes do, and say when the files did not suffice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.inspection import StoreQuery, list_store, message_document
from penstock.proto.errors import MessageNotFound, TopicNotFound
from tests.support import golden
from tests.support.golden import damage
from tests.unit.inspection.trees import unpack, untouched

TIME_MAX = (1 << 63) - 1


@contextmanager
def asking(root: Path) -> Iterator[StoreQuery]:
    with untouched(root):
        query = StoreQuery(list_store(root))
        try:
            yield query
        finally:
            query.close()


def having(name: str, topic: str, key: str, begin: int, end: int) -> list[int]:
    """Physical offsets, newest first, of the messages that really have the key and were stored in that time."""
    found = []
    for message in golden.expected(name)["messages"]:
        properties = message["properties"]
        keys = [properties.get("UNIQ_KEY"), *properties.get("KEYS", "").split(" ")]
        right = message["topic"] == topic and key in keys and begin <= message["storeTimestamp"] <= end
        if right and message["sysFlag"] & 12 != 12:
            found.append(message["physicalOffset"])
    return found[::-1]


@pytest.mark.parametrize("name", golden.SETS)
def test_keys_are_found_as_rocketmq_finds_them(name: str, tmp_path: Path) -> None:
    start = golden.expected(name)["commitLog"]["minOffset"]
    with asking(unpack(name, tmp_path)) as query:
        for topic, key, count, begin, end, theirs, *_ in golden.expected(name)["indexQueries"]:
            answer = query.by_key(topic, key, begin_ms=begin, end_ms=end, max_count=count)
            mine = [stored.record.physical_offset for stored in answer.messages]
            assert mine == having(name, topic, key, begin, end)[:count], (topic, key, begin, end)
            if begin == 0 and end == TIME_MAX and (theirs or name != "ha/controller/broker-1"):
                # They also list records deleted from the log, and one record once per colliding key.
                assert mine == [at for at in dict.fromkeys(theirs) if at >= start]
            assert answer.source.startswith("index")


@pytest.mark.parametrize("name", golden.SETS)
def test_times_are_found_as_rocketmq_finds_them(name: str, tmp_path: Path) -> None:
    with asking(unpack(name, tmp_path)) as query:
        for queue in golden.expected(name)["queues"]:
            for time_ms, lower, upper in queue["offsetByTime"]:
                (answer,) = query.by_time(queue["topic"], time_ms, queue["queueId"])
                assert answer.offset == lower
                if queue["type"] != "BatchCQ":  # where they answer 0, or the last batch, between two batches
                    assert answer.upper_offset == upper
                if answer.message is not None and queue["type"] != "BatchCQ":
                    assert answer.message.record.store_timestamp_ms >= time_ms


@pytest.mark.parametrize("name", golden.SETS)
def test_every_message_is_found_at_its_offset(name: str, tmp_path: Path) -> None:
    with asking(unpack(name, tmp_path)) as query:
        for message in golden.expected(name)["messages"]:
            if message["sysFlag"] & 12 in (4, 12):
                continue  # prepared and rolled-back records are in no queue
            answer = query.by_offset(message["topic"], message["queueId"], message["queueOffset"])
            assert answer.source == "queue"
            assert_same(message_document(answer.message), message)


def assert_same(document: dict[str, Any], message: dict[str, Any]) -> None:
    assert document["physical_offset"] == message["physicalOffset"]
    assert document["size"] == message["totalSize"]
    assert document["properties"] == message["properties"]
    assert document["message_id"] == message["msgId"]
    assert document["offset_message_id"] == message["offsetMsgId"]
    assert document["body_crc"] == message["bodyCRC"]
    assert ("body" in document) != ("body_base64" in document)


def test_messages_of_a_light_queue_are_found(tmp_path: Path) -> None:
    with asking(unpack("direct", tmp_path)) as query:
        answer = query.by_offset("%LMQ%two", 0, 2)
        assert (answer.message.record.topic, answer.message.record.physical_offset) == ("LmqParent", 112493)


def test_more_than_64_messages_of_a_key_are_found(tmp_path: Path) -> None:
    with asking(unpack("multi-queue", tmp_path)) as query:
        scan = query.by_key("ManyQueues", "many-0", max_count=1000, scan=True)
        through_index = query.by_key("ManyQueues", "many-0", max_count=1000)
        assert through_index.messages == scan.messages
        assert scan.source == "scan of the whole log (as asked)"


@pytest.mark.parametrize(
    ("steps", "source"),
    [
        ([{"file": "index", "delete": True}], "scan of the whole log (there are no index files)"),
        ([{"file": "index/20261121010237695", "delete": True}], "index, and scan of the log behind 111404"),
        ([{"file": "index/20261121010236880", "delete": True}], "and scan of the log before 89931"),
        ([{"file": "index/20261121010237092", "offset": 240, "zero": 2400}], "20261121010237092 is damaged)"),
    ],
    ids=["no index", "newest file lost", "oldest file lost", "file damaged"],
)
def test_what_the_index_does_not_cover_is_read_from_the_log(
    steps: list[dict[str, Any]], source: str, tmp_path: Path
) -> None:
    root = unpack("direct", tmp_path)
    damage(root, steps)
    with asking(root) as query:
        for topic, key in (("LmqParent", "lmq-key"), ("Hosts", "host-key"), ("Keys", "k4")):
            answer = query.by_key(topic, key)
            found = [stored.record.physical_offset for stored in answer.messages]
            assert found == having("direct", topic, key, 0, TIME_MAX)
        sources = {query.by_key(topic, key).source for topic, key in (("LmqParent", "lmq-key"), ("Hosts", "host-key"))}
        assert any(source in each for each in sources)


def test_offsets_and_times_are_found_without_queues(tmp_path: Path) -> None:
    root = unpack("normal", tmp_path)
    damage(root, [{"file": "consumequeue", "delete": True}])
    queues = {(q["topic"], q["queueId"]): q for q in golden.expected("normal")["queues"]}
    with asking(root) as query:
        offset = query.by_offset("GoldTopic", 2, 7)
        assert offset.source.startswith("scan of the log")
        assert offset.message.record.queue_offset == 7
        for time_ms, lower, upper in queues["GoldTopic", 1]["offsetByTime"]:
            (answer,) = query.by_time("GoldTopic", time_ms, 1)
            assert (answer.offset, answer.upper_offset) == (lower, upper)
            assert answer.source.startswith("scan of the whole log")
        assert len(query.by_time("GoldTopic", 0)) == 4


def test_a_wrong_queue_entry_is_not_believed(tmp_path: Path) -> None:
    root = unpack("direct", tmp_path)
    queue = "consumequeue/Keys/0/00000000000000000000"
    entry = (root / queue).read_bytes()[80:100]
    damage(root, [{"file": queue, "offset": 60, "hex": entry.hex()}])
    with asking(root) as query:
        answer = query.by_offset("Keys", 0, 3)
        assert answer.message.record.queue_offset == 3
        assert answer.source.startswith("scan")


def test_what_is_not_there_is_an_error_by_name(tmp_path: Path) -> None:
    with asking(unpack("direct", tmp_path)) as query:
        assert query.by_key("Keys", "no such key").messages == []
        with pytest.raises(MessageNotFound, match="no message of Keys 0 at offset 99999"):
            query.by_offset("Keys", 0, 99999)
        with pytest.raises(TopicNotFound, match="no queue of topic 'Nothing'"):
            query.by_time("Nothing", 0)
