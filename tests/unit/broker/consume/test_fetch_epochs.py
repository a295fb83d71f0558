"""What a consumer is told that has read what a failover has cut off since."""

from __future__ import annotations

import asyncio

from penstock.broker.consume.consume import Consume
from penstock.broker.features.archive.archive import Archive
from penstock.formats.epochs import Epoch
from penstock.proto.wire.broker_pb2 import CommitOffsetsRequest, FetchHeader, FetchReply
from penstock.proto.wire.common_pb2 import TopicOffsets
from penstock.proto.wire.pipeline_pb2 import TopicPositionsRequest
from penstock.replication import EpochHistory
from tests.support.broker.kit import Kit, in_loop
from tests.support.broker.requests import wanting
from tests.support.broker.stores import bodies_of
from tests.support.waiting import eventually


async def before_the_failover() -> Kit:
    """Queue 0 has two messages, of epoch 1."""
    kit = Kit()
    kit.add_topic()
    await kit.append([b"0", b"1"])
    kit.dispatch()
    return kit


async def after_a_failover() -> Kit:
    """Behind them are two of epoch 2."""
    kit = await before_the_failover()
    begin(kit)
    await kit.append([b"new 2", b"new 3"])
    kit.dispatch()
    return kit


def begin(kit: Kit) -> None:
    """A mastership, at the log's end."""
    before = kit.role.history
    kit.role.history = EpochHistory([*before.entries, Epoch(before.latest + 1, kit.store.end_offset)])


def of_epoch(header: FetchHeader, epoch: int) -> FetchHeader:
    for part in header.topics:
        part.epoch = epoch
    return header


async def told(kit: Kit, offset: int, epoch: int) -> tuple[FetchReply.Status.ValueType, int, list[bytes]]:
    reply, data = await kit.fetched(of_epoch(wanting((0, offset)), epoch))
    assert reply.epoch == 2
    (result,) = reply.results
    return result.status, result.next_offset, bodies_of(data)


@in_loop
async def test_who_has_read_beyond_the_end_of_an_earlier_epoch_goes_back_to_it() -> None:
    kit = await after_a_failover()
    assert await told(kit, 3, epoch=1) == (FetchReply.TRUNCATED, 2, [])
    assert await told(kit, 9, epoch=1) == (FetchReply.TRUNCATED, 2, [])


@in_loop
async def test_who_has_read_what_is_there_still_or_of_this_epoch_goes_on() -> None:
    kit = await after_a_failover()
    assert await told(kit, 2, epoch=1) == (FetchReply.FOUND, 4, [b"new 2", b"new 3"])
    assert await told(kit, 1, epoch=1) == (FetchReply.FOUND, 4, [b"1", b"new 2", b"new 3"])
    assert await told(kit, 3, epoch=2) == (FetchReply.FOUND, 4, [b"new 3"])
    assert await told(kit, 3, epoch=0) == (FetchReply.FOUND, 4, [b"new 3"]), "nobody knows"


@in_loop
async def test_before_the_end_of_the_epoch_is_dispatched_nothing_is_said_of_it() -> None:
    kit = Kit(holds=True)
    kit.add_topic()
    kit.confirm()
    kit.dispatch()
    await kit.append([b"0"])
    begin(kit)
    await kit.append([b"new"])
    reply, _ = await kit.fetched(of_epoch(wanting((0, 1)), 1))
    assert (list(reply.results), reply.epoch) == ([], 1)
    kit.confirm()
    kit.dispatch()
    assert (await told(kit, 1, epoch=1))[0] == FetchReply.FOUND


@in_loop
async def test_a_fetch_that_waits_while_another_becomes_master_is_told_too() -> None:
    kit = await before_the_failover()
    kit.role.is_master = False  # a slave, which waits for what it does not have
    waiting = asyncio.create_task(kit.fetched(of_epoch(wanting((0, 3), max_wait_ms=60_000), 1)))
    await eventually(lambda: len(kit[Consume].fetch.waiters))
    kit.role.is_master = True
    begin(kit)
    await kit.append([b"new 2", b"new 3"])
    kit.dispatch()
    reply, _ = await waiting
    assert [(each.status, each.next_offset) for each in reply.results] == [(FetchReply.TRUNCATED, 2)]


@in_loop
async def test_what_was_read_of_the_cut_off_end_is_not_committed() -> None:
    kit = await after_a_failover()
    groups = kit[Consume].sessions._groups
    groups.join(99, "billing", "a", {})
    groups.claim(99, "orders", [0])

    async def refused(offset: int, epoch: int) -> int:
        offsets = [TopicOffsets(topic="orders", queue_ids=[0], offsets=[offset])]
        request = CommitOffsetsRequest(group="billing", session_id=99, offsets=offsets, epoch=epoch)
        return len((await kit[Consume].offsets.commit(request)).refused)

    assert await refused(3, epoch=1)
    assert not await refused(2, epoch=1)
    assert not await refused(3, epoch=2)


@in_loop
async def test_a_slave_hands_the_next_master_no_commit_of_what_was_cut_off() -> None:
    kit = await before_the_failover()
    kit.change_role(master=False)
    pending = kit[Consume].pending
    pending.put("billing", "orders", 0, 3, epoch=1)  # read at the master, which had one more
    pending.put("audit", "orders", 0, 2, epoch=1)
    assert [each.group for each in pending.offered()] == ["audit", "billing"]
    kit.role.history = EpochHistory([Epoch(1, 0), Epoch(2, kit.store.end_offset + 1)])
    assert pending.offered() == [], "the end of epoch 1 is not here yet"
    kit.role.history = EpochHistory([Epoch(1, 0), Epoch(2, kit.store.end_offset)])
    assert pending.committed("billing", "orders", 0) == -1
    assert [each.group for each in pending.offered()] == ["audit"]


@in_loop
async def test_positions_tell_where_the_messages_of_an_earlier_epoch_end() -> None:
    kit = await after_a_failover()

    async def cut(epoch: int) -> list[int | None]:
        reply = await kit[Archive]._query_topic(TopicPositionsRequest(topic="orders", epoch=epoch))
        assert reply.epoch == 2
        return [each.cut_offset if each.HasField("cut_offset") else None for each in reply.queues]

    assert await cut(1) == [2, 0, 0, 0]
    assert await cut(2) == await cut(0) == [None] * 4
