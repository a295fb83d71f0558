"""What exactly-once writers may ask for at most, and what another writer's data stays safe from."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.core.wire import TURN
from penstock.broker.features.exactly_once.exactly_once import ExactlyOnce
from penstock.broker.features.exactly_once.staging_table import STAGED_GONE, WRITER, StagingTable, gone_body
from penstock.broker.features.exactly_once.writers import CHUNK_MAX, SHARDS_MAX
from penstock.proto.errors import FlowControl, Forbidden, InvalidArgument, LimitReached, StagedDataGone
from penstock.proto.wire import pipeline_pb2
from tests.support.broker.kit import Kit, in_loop
from tests.support.loops import Turns
from tests.unit.broker.features.test_staging import KEYS, opened

ABSURD = 2**31 - 1


@in_loop
async def test_a_publication_of_absurdly_many_chunks_is_refused_at_once() -> None:
    parts = await opened()
    await parts.stage()
    with pytest.raises(StagedDataGone, match=f"1 of {ABSURD} chunks"):
        await parts[ExactlyOnce].staging.publish("w", 0, {"k": ABSURD})


@pytest.mark.parametrize("count", [ABSURD, CHUNK_MAX + 1, 0, -1])
@in_loop
async def test_a_decision_of_absurdly_many_chunks_is_refused(count: int) -> None:
    parts = await opened()
    await parts.stage()
    with pytest.raises(InvalidArgument, match="chunks per broker group"):
        await parts[ExactlyOnce].writers.decide("w", "r1", 0, {"k": {"broker-a": count}})
    assert (await parts[ExactlyOnce].writers.decide("w", "r1", 0, KEYS)).keys == KEYS


@in_loop
async def test_an_absurd_decision_that_is_in_the_log_already_ends_no_master() -> None:
    parts = await opened()
    await parts.stage(keep_ms=1000)
    writer = parts.tables[StagingTable].writers["w"].to_json()
    parts.journal.put(WRITER, writer | {"decided": 0, "finished": False, "keys": {"k": {"broker-a": ABSURD}}})
    again = Kit.restarted(parts)
    await again[ExactlyOnce].staging.settle_expired(again.clock.wall_ms() + 2000)
    assert again.tables[StagingTable].staged, "kept, and tried again later"


@in_loop
async def test_a_staged_chunk_may_not_use_the_brokers_own_producer_ids() -> None:
    parts = await opened()
    with pytest.raises(Forbidden, match="0074696d65727300 is kept"):
        await parts.stage(mark=(0x0074696D65727300, 0, 1 << 62))
    assert not parts.tables[StagingTable].staged


@in_loop
async def test_an_attempt_keeps_the_coordinator_that_it_began_with() -> None:
    parts = await opened()
    await parts.stage(chunk=0)
    with pytest.raises(InvalidArgument, match="staged here for coordinator broker-a, not broker-x"):
        await parts.stage(chunk=1, mark=(7, 0, 1), coordinator="broker-x")
    assert [len(staged.chunks) for staged in parts.tables[StagingTable].staged.values()] == [1]


@in_loop
async def test_a_drop_by_anybody_leaves_what_is_decided() -> None:
    parts = await opened()
    await parts.stage()
    await parts.stage(key="other", mark=(7, 0, 1))
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, KEYS)
    await parts[ExactlyOnce].staging.drop("w", 0, ["k", "other", "unknown"])
    assert [each.key for each in parts.tables[StagingTable].staged] == ["k"]
    assert await parts[ExactlyOnce].staging.publish("w", 0, {"k": 1}) == (1, False)
    assert parts.bodies() == [b"one"]


@in_loop
async def test_what_is_dropped_undecided_can_be_decided_no_more() -> None:
    parts = await opened()
    await parts.stage()
    await parts[ExactlyOnce].staging.drop("w", 0, ["k"])
    with pytest.raises(StagedDataGone, match="given up"):
        await parts[ExactlyOnce].writers.decide("w", "r1", 0, KEYS)


@in_loop
async def test_a_decision_that_fits_no_record_is_refused_by_name_and_the_writer_goes_on() -> None:
    parts = await opened()
    writers = parts[ExactlyOnce].writers
    keys = {f"key-{number:04}": {"broker-a": 1} for number in range(3000)}
    with pytest.raises(LimitReached, match="with 3000 keys of batch 0"):
        await writers.decide("w", "r1", 0, keys)
    assert (await writers.decide("w", "r1", 0, KEYS)).decided == 0


@in_loop
async def test_keys_that_others_give_up_cannot_fill_the_writers_record() -> None:
    parts = await opened()
    writers = parts[ExactlyOnce].writers
    await writers.give_up("w", 5, [f"key-{number:04}" for number in range(2000)])
    with pytest.raises(LimitReached, match="2000 keys of batches after -1 are given up"):
        await writers.give_up("w", 5, [f"more-{number:04}" for number in range(1000)])
    with pytest.raises(InvalidArgument, match="key"):
        await writers.give_up("w", 5, ["x" * 201])
    await writers.decide("w", "r1", 5, {})
    assert parts.tables[StagingTable].writers["w"].expired == {}


def many_keys(count: int, attempt: int = 0) -> dict[str, dict[str, int]]:
    """Keys as tasks have them."""
    return {f"task-{number}-{attempt}": {"broker-a": 1} for number in range(count)}


@in_loop
async def test_very_many_keys_leave_others_their_turn() -> None:
    parts = Kit(maxMessageSize=1 << 20)
    feature, count = parts[ExactlyOnce], 10 * TURN
    await feature.writers.open_writer("w", "r1")
    wire = [pipeline_pb2.StagedKey(key=key, chunks=shards) for key, shards in many_keys(count).items()]
    decision = pipeline_pb2.DecideRequest(writer="w", run="r1", batch=0, keys=wire)
    for call, least in (
        (feature._decide(decision), 40),  # read, looked at, made a record of, told
        (feature._query_writer(pipeline_pb2.WriterName(writer="w")), 10),
        (feature._expire(pipeline_pb2.StagedKeys(writer="w", batch=0, keys=many_keys(count))), 20),
        (feature._finish(pipeline_pb2.FinishRequest(writer="w", batch=0)), 0),
        (feature._expire(pipeline_pb2.StagedKeys(writer="w", batch=1, keys=many_keys(count))), 20),
    ):
        turns = Turns()
        await turns.of(call)
        assert turns.count >= least
    held = parts.tables[StagingTable].writers["w"]
    assert (held.decided, held.finished, len(held.expired)) == (0, True, count)
    again = Kit.restarted(parts)
    assert again.tables[StagingTable].writers["w"] == held, "the log says the same"


@in_loop
async def test_of_two_decisions_at_once_one_counts() -> None:
    parts = Kit(maxMessageSize=1 << 20)
    writers = parts[ExactlyOnce].writers
    await writers.open_writer("w", "r1")
    first, second = many_keys(2 * TURN), many_keys(2 * TURN, 1)
    one, other = await asyncio.gather(
        *(writers.decide("w", "r1", 0, keys) for keys in (first, second)), return_exceptions=True
    )
    assert one.keys == first  # type: ignore[union-attr]
    assert isinstance(other, FlowControl)
    assert (await writers.decide("w", "r1", 0, second)).keys == first


@in_loop
async def test_a_key_at_absurdly_many_broker_groups_is_refused() -> None:
    parts = await opened()
    many = pipeline_pb2.StagedKey(key="k", chunks={f"b{number}": 1 for number in range(SHARDS_MAX + 1)})
    with pytest.raises(InvalidArgument, match="1001 broker groups of key 'k'"):
        await parts[ExactlyOnce]._decide(pipeline_pb2.DecideRequest(writer="w", run="r1", batch=0, keys=[many]))


@in_loop
async def test_a_publication_cut_short_behind_its_first_word_is_brought_to_its_end() -> None:
    parts = await opened()
    await parts.stage()
    await parts[ExactlyOnce].writers.decide("w", "r1", 0, KEYS)
    staging = parts[ExactlyOnce].staging
    parts.journal.put(STAGED_GONE, gone_body("w", 0, [], published_ms=1))
    assert parts.tables[StagingTable].staged
    assert await staging.publish("w", 0, {"k": 1}) == (0, True)
    assert not parts.tables[StagingTable].staged
