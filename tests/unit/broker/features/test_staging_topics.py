"""Staged data of several topics, however the table came to know it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.broker.core.tables.producers import IDLE_MS_MAX
from penstock.broker.core.tables.snapshots import Snapshots
from penstock.broker.features.exactly_once.exactly_once import ExactlyOnce
from penstock.broker.features.exactly_once.staging_table import StagingTable
from penstock.proto.errors import NotMaster, TopicNotFound
from tests.support.broker.kit import Kit, in_loop
from tests.support.clock import ManualClock
from tests.unit.broker.features.test_staging import opened


def as_it_is(parts: Kit, directory: Path) -> Kit:
    return parts


def from_the_log(parts: Kit, directory: Path) -> Kit:
    return Kit.restarted(parts)


def from_a_snapshot(parts: Kit, directory: Path) -> Kit:
    Snapshots(directory, parts.tables).write_all(parts.store.end_offset)
    again = Kit(store=parts.store)
    Snapshots(directory, again.tables).load(0, parts.store.end_offset, log_has_all=True)
    return again


def from_a_snapshot_with_one_topic_per_key(parts: Kit, directory: Path) -> Kit:
    """As versions before chunks had a topic of their own wrote it."""
    Snapshots(directory, parts.tables).write_all(parts.store.end_offset)
    path = directory / parts.tables[StagingTable].file_name
    document = json.loads(path.read_text())
    for row in document["staged"]:
        row["topic"] = document["staged"][0]["topic"]
    path.write_text(json.dumps(document))
    again = Kit(store=parts.store)
    Snapshots(directory, again.tables).load(0, parts.store.end_offset, log_has_all=True)
    return again


def from_repeated_records(parts: Kit, directory: Path) -> Kit:
    end = parts.store.end_offset
    parts.repeat(end)
    parts.dispatch()
    again = Kit(store=parts.store)
    for result in parts.store.replay(end):
        for position, record in result.state_records:
            again.tables.apply_record(position, record)
    return again


@pytest.mark.parametrize("lanes", [(0, 0), (0, 1)])
@pytest.mark.parametrize(
    "published_by",
    [as_it_is, from_the_log, from_a_snapshot, from_a_snapshot_with_one_topic_per_key, from_repeated_records],
)
@in_loop
async def test_one_attempt_writes_several_topics(
    published_by: Callable[[Kit, Path], Kit], lanes: tuple[int, int], tmp_path: Path
) -> None:
    parts = await opened()
    parts.add_topic("bills", queues=2)
    for chunk, (topic, lane, sequence) in enumerate(
        [("orders", lanes[0], 0), ("bills", lanes[1], 0), ("orders", lanes[0], 1), ("bills", lanes[1], 1)]
    ):
        body = b"%s %d" % (topic.encode(), sequence)
        await parts.stage([body], topic=topic, chunk=chunk, mark=(7, lane, sequence))
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, {"k": {"broker-a": 4}})
    again = published_by(parts, tmp_path)
    assert await again[ExactlyOnce].staging.publish("w", 0, {"k": 4}) == (4, False)
    assert again.bodies("orders") == [b"orders 0", b"orders 1"]
    assert again.bodies("bills", 2) == [b"bills 0", b"bills 1"]
    assert await Kit.restarted(again)[ExactlyOnce].staging.publish("w", 0, {"k": 4}) == (0, True)


@in_loop
async def test_a_publication_of_several_topics_that_was_cut_short_goes_on_in_each() -> None:
    parts = await opened()
    for chunk, topic in enumerate(("orders", "bills")):
        parts.add_topic(topic)
        await parts.stage([topic.encode()], topic=topic, chunk=chunk)
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, {"k": {"broker-a": 2}})
    parts.delete_topic("bills")
    with pytest.raises(TopicNotFound, match="topic bills was deleted"):
        await parts[ExactlyOnce].staging.publish("w", 0, {"k": 2})
    parts.dispatch()
    parts.add_topic("bills")
    assert await parts[ExactlyOnce].staging.publish("w", 0, {"k": 2}) == (1, False)
    assert (parts.bodies("orders"), parts.bodies("bills")) == ([b"orders"], [b"bills"])


@in_loop
async def test_decided_messages_of_queues_that_were_removed_come_in_those_that_are_left() -> None:
    parts = await opened()
    await parts.append([b"before"], queue_id=3)
    await parts.stage([b"a", b"b"], queue_id=1)
    await parts.stage([b"c"], queue_id=3, chunk=1, mark=(7, 0, 1))
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, {"k": {"broker-a": 2}})
    parts.add_topic(queues=2)
    assert await parts[ExactlyOnce].staging.publish("w", 0, {"k": 2}) == (3, False)
    assert parts.bodies(queues=2) == [b"a", b"b", b"c"]
    assert parts.bodies() == [b"a", b"b", b"c", b"before"]


@pytest.mark.parametrize("flushed", [False, True])
@in_loop
async def test_what_retention_has_taken_out_of_a_queue_meanwhile_is_not_published_again(
    flushed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The duplicate table has forgotten it; the log has it as long as it has what was staged."""
    manual = ManualClock(1_700_000_000_000)
    parts = await opened(clock=manual)
    staging = parts[ExactlyOnce].staging
    await parts.append([b"before"] * 3)
    await parts.stage([b"a", b"b"])
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, {"k": {"broker-a": 1}})

    async def cut_short(*_: object, **__: object) -> None:
        raise NotMaster("cut short")

    with monkeypatch.context() as broken:
        broken.setattr(staging, "_record_gone", cut_short)
        with pytest.raises(NotMaster, match="cut short"):
            await staging.publish("w", 0, {"k": 1})
    parts.dispatch()
    if flushed:
        parts.store.checkpoint()
    manual.advance(IDLE_MS_MAX / 1000 + 10)
    parts.tables.producers.expire(manual.wall_ms())
    parts.store.removal.raise_min_offset("orders", 0, 5)
    assert await staging.publish("w", 0, {"k": 1}) == (0, False)
    parts.dispatch()
    assert parts.store.reader.queue_range("orders", 0) == (5, 5)
