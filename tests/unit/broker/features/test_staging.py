from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.broker.core.tables.snapshots import Snapshots
from penstock.broker.features.archive.watermarks import Watermarks
from penstock.broker.features.exactly_once.exactly_once import ExactlyOnce
from penstock.broker.features.exactly_once.staging_table import REMEMBERED_MS, StagedId, StagingTable, Writer
from penstock.formats.record.producer_mark import producer_mark
from penstock.proto import frames, names
from penstock.proto.data_frames import Kind, Method
from penstock.proto.errors import (
    CorruptBatch,
    DiskFull,
    Forbidden,
    InvalidArgument,
    MessageTooLarge,
    NotEnoughReplicas,
    NotMaster,
    OutcomeUnknown,
    PenstockError,
    StagedDataGone,
    StaleProducer,
    TopicNotFound,
    from_bytes,
)
from penstock.proto.wire import pipeline_pb2
from tests.support.broker.kit import SYNC, Kit, in_loop
from tests.support.broker.requests import BORN, chunk, wanting
from tests.support.broker.running_broker import running
from tests.support.data import connected
from tests.support.record.encoding import encode_messages
from tests.support.waiting import eventually

KEYS = {"k": {"broker-a": 1}}


async def opened(run: str = "r1", **settings: object) -> Kit:
    parts = Kit(**settings)  # type: ignore[arg-type]
    parts.add_topic()
    await parts[ExactlyOnce].writers.open_writer("w", run)
    return parts


@in_loop
async def test_staged_messages_are_invisible_until_their_batch_is_decided_and_published() -> None:
    parts = await opened()
    await parts.stage([b"a", b"b"], queue_id=1)
    assert parts.bodies() == []
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, KEYS)
    assert parts.bodies() == []
    assert await parts[ExactlyOnce].staging.publish("w", 0, {"k": 1}) == (2, False)
    assert parts.bodies() == [b"a", b"b"]
    assert parts.tables[StagingTable].staged == {}
    reply, records = await parts.fetched(wanting((0, 0), topic=names.STAGE_TOPIC))
    assert not records
    assert reply.results[0].status == reply.QUEUE_NOT_FOUND


@in_loop
async def test_published_messages_are_counted_and_remembered_like_any_others() -> None:
    parts = await opened()
    await parts.stage([b"a", b"b"], digest=11)
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, KEYS)
    await parts[ExactlyOnce].staging.publish("w", 0, {"k": 1})
    metrics = parts.metrics()
    assert metrics["rocketmq_messages_in_total", "orders"] == 2
    assert metrics["rocketmq_throughput_in_total", "orders"] > 2
    told = [row for row in parts.tables.producers.rows() if row[1] == "orders"]
    assert told[0][4][0][6] == 11, "the digest of the mark"
    assert [row for row in Kit.restarted(parts).tables.producers.rows() if row[1] == "orders"] == told


@in_loop
async def test_publishing_again_publishes_nothing_also_after_a_restart() -> None:
    parts = await opened()
    await parts.stage()
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, KEYS)
    await parts[ExactlyOnce].staging.publish("w", 0, {"k": 1})
    assert await parts[ExactlyOnce].staging.publish("w", 0, {"k": 1}) == (0, True)
    again = Kit.restarted(parts)
    assert await again[ExactlyOnce].staging.publish("w", 0, {"k": 1}) == (0, True)
    assert again.bodies() == [b"one"]


@in_loop
async def test_a_publication_that_was_cut_short_goes_on_behind_its_last_chunk() -> None:
    parts = await opened()
    for number in range(3):
        await parts.stage([b"%d" % number], chunk=number, mark=(7, 0, number))
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, {"k": {"broker-a": 3}})
    parts.fail_appends(2, "orders")
    with pytest.raises(DiskFull):
        await parts[ExactlyOnce].staging.publish("w", 0, {"k": 3})
    del parts.store.append
    again = Kit.restarted(parts)
    assert again.bodies() == [b"0", b"1"]
    assert await again[ExactlyOnce].staging.publish("w", 0, {"k": 3}) == (1, False)
    assert again.bodies() == [b"0", b"1", b"2"]


@in_loop
async def test_a_publication_ends_with_the_mastership_in_which_it_began() -> None:
    """What it has published may be cut off by then: the next attempt looks at all of it."""
    parts = await opened(holds=True)
    staging = parts[ExactlyOnce].staging
    await parts.stage([b"0"], mark=(7, 0, 0))
    parts.confirm()
    parts.dispatch()
    await parts.stage([b"1"], chunk=1, mark=(7, 0, 1))
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, {"k": {"broker-a": 2}})
    publishing = asyncio.create_task(staging.publish("w", 0, {"k": 2}))
    await eventually(lambda: parts.core.dispatcher._waiting, what="it waits for its second chunk")
    parts.change_role(master=False)
    parts.change_role(master=True)
    parts.confirm()
    parts.dispatch()
    with pytest.raises(NotMaster):
        await publishing
    assert parts.tables[StagingTable].published_batch("w") == -1
    assert await staging.publish("w", 0, {"k": 2}) == (1, False)
    parts.confirm()
    assert parts.bodies() == [b"0", b"1"]


@in_loop
async def test_the_first_decision_stands_whoever_asks_again() -> None:
    parts = await opened()
    await parts.stage(key="k")
    await parts.stage(key="other")
    first = await parts[ExactlyOnce].writers.decide("w", "r1", 0, KEYS, "3;ab")
    second = await parts[ExactlyOnce].writers.decide("w", "r1", 0, {"other": {"broker-a": 1}}, "4;cd")
    assert (first.content, second.content) == ("3;ab", "3;ab")
    assert Writer.from_json(second.to_json()) == second
    assert Writer.from_json({k: v for k, v in second.to_json().items() if k != "content"}).content == ""
    assert first.keys == second.keys == KEYS
    await parts[ExactlyOnce].writers.open_writer("w", "r2")
    third = await parts[ExactlyOnce].writers.decide("w", "r2", 0, {})
    assert third.keys == KEYS
    assert Kit.restarted(parts).tables[StagingTable].writers["w"].keys == KEYS


@in_loop
async def test_a_new_run_fences_the_ones_before() -> None:
    parts = await opened()
    newer = await parts[ExactlyOnce].writers.open_writer("w", "r2")
    assert newer.epoch == 2
    with pytest.raises(StaleProducer, match="run r1 is fenced: run r2"):
        await parts[ExactlyOnce].writers.decide("w", "r1", 0, {})
    with pytest.raises(StaleProducer):
        await parts[ExactlyOnce].writers.open_writer("w", "r1")
    assert (await parts[ExactlyOnce].writers.open_writer("w", "r2")).epoch == 2


@in_loop
async def test_a_run_of_which_a_failover_has_cut_off_the_record_is_told_so() -> None:
    parts = await opened()
    with pytest.raises(StaleProducer, match=r"run r2 does not have it here, run r1 does .* cut off"):
        await parts[ExactlyOnce].writers.decide("w", "r2", 0, {})
    assert (await parts[ExactlyOnce].writers.open_writer("w", "r2")).epoch == 2


@in_loop
async def test_a_batch_is_decided_only_when_the_one_before_is_finished() -> None:
    parts = await opened()
    await parts.stage()
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, KEYS)
    with pytest.raises(InvalidArgument, match="batch 0 is decided but not published everywhere"):
        await parts[ExactlyOnce].writers.decide("w", "r1", 1, {})
    await parts[ExactlyOnce].staging.publish("w", 0, {"k": 1})
    assert (await parts[ExactlyOnce].writers.finish("w", 0)).finished
    assert (await parts[ExactlyOnce].writers.decide("w", "r1", 1, {})).decided == 1
    with pytest.raises(InvalidArgument, match="batch 7 is not decided"):
        await parts[ExactlyOnce].writers.finish("w", 7)


@in_loop
async def test_what_was_given_up_can_not_be_decided() -> None:
    parts = await opened()
    await parts.stage()
    assert await parts[ExactlyOnce].writers.give_up("w", 0, ["k"]) == {}
    with pytest.raises(StagedDataGone, match="staged as k was given up"):
        await parts[ExactlyOnce].writers.decide("w", "r1", 0, KEYS)
    again = Kit.restarted(parts)
    with pytest.raises(StagedDataGone):
        await again[ExactlyOnce].writers.decide("w", "r1", 0, KEYS)
    assert (await again[ExactlyOnce].writers.decide("w", "r1", 0, {"fresh": {"broker-a": 1}})).decided == 0


@in_loop
async def test_an_abort_never_undoes_a_decision() -> None:
    parts = await opened()
    await parts.stage()
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, KEYS)
    assert await parts[ExactlyOnce].writers.give_up("w", 0, ["k", "lost"]) == KEYS
    assert await parts[ExactlyOnce].staging.publish("w", 0, {"k": 1}) == (1, False)


@in_loop
async def test_old_data_is_dropped_when_nobody_decided_and_published_when_somebody_did() -> None:
    parts = await opened()
    await parts.stage([b"lost"], key="lost", mark=(7, 3, 0))
    await parts.stage([b"kept"])
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, KEYS)
    expires_ms = max(staged.expires_ms for staged in parts.tables[StagingTable].staged.values())
    await parts[ExactlyOnce].staging.settle_expired(expires_ms - 60_000)
    assert len(parts.tables[StagingTable].staged) == 2
    await parts[ExactlyOnce].staging.settle_expired(expires_ms)
    assert parts.tables[StagingTable].staged == {}
    assert parts.bodies() == [b"kept"]
    assert (parts[ExactlyOnce].staging.records_published, parts[ExactlyOnce].staging.records_dropped) == (1, 1)


@in_loop
async def test_a_shard_asks_the_coordinator_and_keeps_the_data_while_it_does_not_answer() -> None:
    coordinator, shard = await opened(), Kit(brokerName="broker-b")
    shard.add_topic()
    await shard.stage(key="k")
    await shard.stage(key="lost", mark=(7, 1, 0))
    await coordinator[ExactlyOnce].writers.decide("w", "r1", 0, {"k": {"broker-b": 1}})
    expires_ms = max(staged.expires_ms for staged in shard.tables[StagingTable].staged.values())
    await shard[ExactlyOnce].staging.settle_expired(expires_ms)  # no such coordinator is known yet
    assert len(shard.tables[StagingTable].staged) == 2
    shard.know_coordinators({"broker-a": coordinator})
    shard[ExactlyOnce].staging._not_before.clear()
    await shard[ExactlyOnce].staging.settle_expired(expires_ms)
    assert shard.bodies() == [b"one"]
    assert shard.tables[StagingTable].staged == {}


@in_loop
async def test_decided_data_that_is_not_here_is_named_and_nothing_is_published() -> None:
    parts = await opened()
    await parts.stage()
    with pytest.raises(StagedDataGone, match="1 of 2 chunks staged as k are at broker broker-a"):
        await parts[ExactlyOnce].staging.publish("w", 0, {"k": 2})
    with pytest.raises(StagedDataGone, match="0 of 1 chunks staged as missing"):
        await parts[ExactlyOnce].staging.publish("w", 0, {"k": 1, "missing": 1})
    assert parts.bodies() == []


@in_loop
async def test_a_deleted_topic_keeps_its_decided_messages_until_it_is_there_again() -> None:
    parts = await opened()
    await parts.stage()
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, KEYS)
    parts.delete_topic("orders")
    with pytest.raises(TopicNotFound, match="create it again"):
        await parts[ExactlyOnce].staging.publish("w", 0, {"k": 1})
    parts.dispatch()
    parts.add_topic()
    assert await parts[ExactlyOnce].staging.publish("w", 0, {"k": 1}) == (1, False)


@in_loop
async def test_a_chunk_that_is_sent_again_is_kept_once() -> None:
    parts = await opened()
    assert not (await parts.stage()).duplicate
    end = parts.store.end_offset
    assert (await parts.stage()).duplicate
    assert parts.store.end_offset == end


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"topic": "missing"}, TopicNotFound),
        ({"topic": names.STAGE_TOPIC}, Forbidden),
        ({"writer": ""}, InvalidArgument),
        ({"writer": "w" * 201}, InvalidArgument),
        ({"key": "a\nb"}, InvalidArgument),
        ({"coordinator": ""}, InvalidArgument),
        ({"batch": -1}, InvalidArgument),
        ({"chunk": -1}, InvalidArgument),
        ({"chunk": 1 << 24}, InvalidArgument),
        ({"keep_ms": 1}, InvalidArgument),
        ({"count": 0}, InvalidArgument),
        ({"count": 2}, CorruptBatch),
        ({"queue_id": 4}, CorruptBatch),
        ({"bodies": [b"x" * 60_000, b"x" * 60_000]}, MessageTooLarge),
    ],
)
@in_loop
async def test_what_could_not_be_published_later_is_refused_now(
    settings: dict[str, object], error: type[PenstockError]
) -> None:
    parts = await opened()
    end = parts.store.end_offset
    with pytest.raises(error):
        await parts.stage(**settings)  # type: ignore[arg-type]
    assert parts.store.end_offset == end


@in_loop
async def test_a_damaged_chunk_is_refused() -> None:
    parts = await opened()
    records = bytearray(encode_messages("orders", [b"body"], born_host=BORN, mark=producer_mark(1, 0, 0, 0, 1)))
    records[90] ^= 1
    header = pipeline_pb2.StageHeader(writer="w", key="k", topic="orders", count=1, coordinator="broker-a")
    with pytest.raises(CorruptBatch):
        parts[ExactlyOnce].staging.place(memoryview(frames.pack(header, records)))


@in_loop
async def test_nothing_happens_at_a_slave_or_without_enough_replicas() -> None:
    slave = Kit(master=False)
    for call in (
        slave[ExactlyOnce].writers.open_writer("w", "r"),
        slave[ExactlyOnce].writers.query_writer("w"),
        slave[ExactlyOnce].writers.give_up("w", 0, ["k"]),
        slave[ExactlyOnce].staging.publish("w", 0, {}),
        slave[ExactlyOnce].staging.drop("w", 0, []),
        slave.stage(),
    ):
        with pytest.raises(NotMaster):
            await call
    parts = await opened()
    parts.role.enough = False
    with pytest.raises(NotEnoughReplicas):
        await parts.stage()
    with pytest.raises(NotEnoughReplicas):
        await parts[ExactlyOnce].writers.decide("w", "r1", 0, {})


@in_loop
async def test_nobody_is_told_of_a_decision_that_is_not_acknowledged() -> None:
    parts = await opened(**SYNC)
    parts.flushes = False
    with pytest.raises(OutcomeUnknown):
        await parts[ExactlyOnce].writers.decide("w", "r1", 0, {})
    with pytest.raises(OutcomeUnknown):
        await parts[ExactlyOnce].writers.query_writer("w")
    parts.flush()
    answer = await parts[ExactlyOnce].writers.query_writer("w")
    assert answer is not None
    assert answer.decided == 0


@in_loop
async def test_a_chunk_that_another_mastership_may_have_cut_off_is_not_answered_as_safe() -> None:
    parts = await opened(**SYNC)
    staging = parts[ExactlyOnce].staging
    kept = staging.place(memoryview(chunk()))
    parts.role.epoch += 1
    with pytest.raises(OutcomeUnknown, match="chunk 0 of k"):
        await staging.acknowledge(kept)


def test_chunks_come_over_the_data_port_and_are_answered_in_their_order(tmp_path: Path) -> None:
    """Golden: a client in another language sends and takes just these."""

    async def check() -> None:
        async with running(tmp_path, flushDiskType="SYNC_FLUSH") as (broker, caller):
            await caller.create_topic()
            async with connected("127.0.0.1", broker.data.number) as connection:
                for number, request in ((13, chunk()), (14, chunk(topic="missing")), (15, chunk())):
                    connection.send(number, Method.STAGE, request)
                kept = bytes.fromhex("00000000 0000000d 000b 0001")
                assert (await connection.reader.readexactly(len(kept))).hex() == kept.hex()
                number, kind, content = await connection.receive()
                assert (number, kind) == (14, Kind.ERROR)
                assert isinstance(from_bytes(content), TopicNotFound)
                again = bytes.fromhex("00000002 0000000f 000b 0001  0801")
                assert (await connection.reader.readexactly(len(again))).hex() == again.hex()

    asyncio.run(check())


@in_loop
async def test_records_repeated_for_retention_hold_everything() -> None:
    parts = await opened()
    for number in range(2):
        await parts.stage(batch=number, mark=(7, 0, number))
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, KEYS)
    await parts[ExactlyOnce].staging.publish("w", 0, {"k": 1})
    parts.journal.put("ARCHIVED", {"name": "lake", "offset": 17, "updatedMs": 3})
    before = parts.store.end_offset
    parts.repeat(before)
    parts.dispatch()
    fresh = Kit(store=parts.store)
    for result in parts.store.replay(before):
        for position, record in result.state_records:
            fresh.tables.apply_record(position, record)
    held, known = parts.tables[StagingTable], fresh.tables[StagingTable]
    assert known.writers == held.writers
    assert known.published_batch("w") == 0
    assert known.staged.keys() == held.staged.keys() == {StagedId("w", 1, "k")}
    assert [mark.offset for mark in fresh.tables[Watermarks].values()] == [17]


@in_loop
async def test_a_snapshot_is_read_back_as_it_was(tmp_path: Path) -> None:
    parts = await opened()
    await parts.stage()
    await parts.stage(batch=1, mark=(7, 0, 1))
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, KEYS)
    await parts[ExactlyOnce].staging.publish("w", 0, {"k": 1})
    parts.journal.put("ARCHIVED", {"name": "lake", "offset": 17, "updatedMs": 3})
    Snapshots(tmp_path, parts.tables).write_all(parts.store.end_offset)
    tables = parts.tables.fresh()
    loaded = Snapshots(tmp_path, tables).load(0, parts.store.end_offset, log_has_all=True)
    assert loaded.replay_from == parts.store.end_offset
    assert tables[StagingTable].writers == parts.tables[StagingTable].writers
    assert tables[StagingTable].staged.keys() == parts.tables[StagingTable].staged.keys()
    assert tables[StagingTable].published_batch("w") == 0
    assert tables[Watermarks].values() == parts.tables[Watermarks].values()


@in_loop
async def test_idle_writers_are_forgotten_after_a_month_but_not_unfinished_ones() -> None:
    parts = await opened()
    await parts.stage()
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, KEYS)
    later = parts.tables[StagingTable].writers["w"].touched_ms + REMEMBERED_MS + 1
    parts.tables.expire(later)
    assert "w" in parts.tables[StagingTable].writers
    await parts[ExactlyOnce].staging.publish("w", 0, {"k": 1})
    await parts[ExactlyOnce].writers.finish("w", 0)
    later = parts.tables[StagingTable].writers["w"].touched_ms + REMEMBERED_MS + 1
    parts.tables.expire(later)
    assert not parts.tables[StagingTable].writers
    assert not parts.tables[StagingTable].published
