"""Replies at one broker: stored like messages, pushed to whoever they name, and found again by whoever missed them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest

from penstock.broker.core import data_calls, dispatch
from penstock.broker.core.tables.topics import Topic
from penstock.broker.features.replies import pushing
from penstock.broker.features.replies.replies import Replies
from penstock.formats.attributes.message_types import MESSAGE_TYPE
from penstock.formats.destination import Reply
from penstock.formats.record.producer_mark import producer_mark
from penstock.formats.record.properties import encode_properties
from penstock.formats.record.reading import RecordBatch
from penstock.proto import frames
from penstock.proto.data_frames import Method
from penstock.proto.errors import (
    BrokerUnavailable,
    Forbidden,
    InvalidArgument,
    LimitReached,
    NotMaster,
    PenstockError,
    TopicNotFound,
)
from penstock.proto.wire.broker_pb2 import AppendHeader, AppendReceipt
from penstock.proto.wire.replies_pb2 import ListenEvent, ListenRequest
from penstock.runtime.data.port import DataPort
from tests.support.broker.kit import Kit, in_loop
from tests.support.broker.requests import BORN
from tests.support.broker.stores import bodies
from tests.support.clock import ManualClock
from tests.support.data import connected
from tests.support.record.encoding import encode_messages
from tests.support.waiting import eventually

TOPIC = "main_REPLY_TOPIC"
SEQUENCES = itertools.count(1)


def told(client: str, **changes: str) -> dict[str, str]:
    found = {"MSG_TYPE": "reply", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": client} | changes
    return {name: value for name, value in found.items() if value}


def reply_batch(
    replies: Sequence[tuple[str, bytes]], *, sequence: int = 0, topic: str = "orders", queue_id: int = 0, **changes: str
) -> bytes:
    """A framed append of replies: (client id, body) each."""
    destination, sequence = Reply(topic, "main"), sequence or next(SEQUENCES)
    mark = producer_mark(99, 0, 0, sequence, len(replies))
    strings = [encode_properties(told(client, **changes)) for client, _ in replies]
    said, queues = [body for _, body in replies], np.full(len(replies), queue_id, np.int32)
    records = encode_messages(TOPIC, said, strings, queues, born_host=BORN, mark=mark)
    header = {"producer_id": 99, "sequence": sequence, "count": len(replies)}
    return frames.pack(AppendHeader(topic=topic, **header, **destination.flags), records)


class Node(Kit):
    """A broker with a topic for requests."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.manual = ManualClock(1_700_000_000_000)
        super().__init__(*arguments, clock=self.manual, **settings)

    @property
    def pusher(self) -> pushing.Pusher:
        return self[Replies].pusher

    async def reply(self, *replies: tuple[str, bytes], **settings: Any) -> AppendReceipt:
        receipt = await self.append_bytes(reply_batch(replies, **settings))
        self.settle()
        return receipt

    def settle(self) -> None:
        if not self.role.holds:
            self.confirm()
            self.dispatch()


class Client:
    """One that listens, and in the place of its connection; ``has_room`` is cleared to leave what comes unread."""

    def __init__(self, node: Node, client_id: str, position: int = 0) -> None:
        self.heard: list[bytes] = []
        self.events = 0
        self.error: PenstockError | None = None
        self.metadata: dict[str, str] = {}
        self.on_room: list[Callable[[], None]] = []
        self.has_room = True
        self.silent_s = 0.0
        self._number = 0
        self._conversation = node[Replies].data_methods()[Method.LISTEN](cast(Any, self))
        self.listen(client_id, position)

    def listen(self, client_id: str, position: int = 0) -> None:
        self.ask(ListenRequest(client_id=client_id, position=position).SerializeToString())

    def ask(self, content: bytes) -> None:
        self._number += 1
        self.error = None
        self._conversation.take(self._number, memoryview(content))

    def answer(self, number: int, method: Method, content: bytes) -> None:
        event, records = frames.unpack(content, ListenEvent)
        assert (number, method, event.push_time_ms > 0) == (self._number, Method.LISTEN, len(records) > 0)
        self.events += 1
        self.heard += RecordBatch(bytes(records)).bodies() if records else []

    def refuse(self, number: int, method: Method, error: PenstockError) -> None:
        assert method == Method.LISTEN
        if number == self._number:
            self.error = error

    def reads(self) -> None:
        self.has_room = True
        for each in self.on_room:
            each()

    def ended(self) -> PenstockError | None:
        """Its connection goes; what it was told before."""
        self._conversation.left()
        return self.error


def opened(**settings: Any) -> Node:
    node = Node(**settings)
    node.add_topic()
    return node


@in_loop
async def test_a_reply_that_its_append_acknowledges_is_pushed_by_it_and_once() -> None:
    node = opened()
    mine = Client(node, "mine")
    await node.reply(("nobody", b"zero"))
    before = node.store.dispatched_offset
    for body in (b"one", b"two"):
        await node.append_bytes(reply_batch([("mine", body)]))
    await node.append_bytes(reply_batch([("nobody", b"three")]))
    assert mine.heard == [b"one", b"two"]
    assert node.store.dispatched_offset == before
    node.pusher.on_arrived({TOPIC: {0}})  # of nothing that is new: what is out stays out
    await node.pusher.turn()
    node.settle()
    await node.pusher.turn()
    await node.reply(("mine", b"four"))
    await node.reply(("mine", b"five"), ("mine", b"six"))
    await eventually(lambda: mine.heard == [b"one", b"two", b"four", b"five", b"six"])
    assert (node.pusher.pushed, node.pusher.unheard) == (5, 2)


@in_loop
async def test_a_reply_behind_some_that_wait_is_pushed_behind_them() -> None:
    node = opened()
    mine = Client(node, "mine")
    await node.append_bytes(reply_batch([("mine", b"one"), ("mine", b"two")]))
    await node.append_bytes(reply_batch([("mine", b"three")]))
    assert mine.heard == []
    node.settle()
    await eventually(lambda: mine.heard == [b"one", b"two", b"three"])
    mine.has_room = False
    await node.append_bytes(reply_batch([("mine", b"four")]))
    node.settle()
    await node.append_bytes(reply_batch([("mine", b"five")]))
    node.settle()
    assert mine.heard == [b"one", b"two", b"three"]
    mine.reads()
    await node.pusher.turn()
    assert mine.heard == [b"one", b"two", b"three", b"four", b"five"]


@in_loop
async def test_a_reply_is_stored_and_goes_to_the_client_that_it_names_alone() -> None:
    node = opened()
    mine, other = Client(node, "mine"), Client(node, "other")
    await node.reply(("mine", b"one"), ("nobody", b"two"), ("other", b"three"), ("mine", b"four"))
    await eventually(lambda: mine.heard == [b"one", b"four"] and other.heard == [b"three"])
    assert bodies(node.store, TOPIC, 0) == [b"one", b"two", b"three", b"four"]
    assert [mine.ended(), other.ended()] == [None, None]
    metrics = node.metrics()
    assert metrics["penstock_replies_pushed_total", ""] == 3
    assert metrics["penstock_replies_unheard_total", ""] == 1
    assert metrics["penstock_reply_listeners", ""] == 0


@in_loop
async def test_the_bytes_are_those_of_the_protocols_page() -> None:
    """Golden: a client in another language sends and takes just these."""
    node, port = opened(), DataPort()
    port.methods.update(node[Replies].data_methods())
    await port.open("127.0.0.1", 0, "dataPort")
    await port.start()
    async with connected("127.0.0.1", port.number) as connection:
        connection.writer.write(bytes.fromhex("00000003 0000000a 0005 0000  0a0163"))
        wanted = bytes.fromhex("00000004 0000000a 0005 0001  00000000")
        assert await connection.reader.readexactly(len(wanted)) == wanted
        await node.reply(("c", b"one"))
        number, _, content = await connection.receive()
        _, records = frames.unpack(content, ListenEvent)
        assert (number, RecordBatch(bytes(records)).bodies()) == (10, [b"one"])
        await node[Replies].stop()
        with pytest.raises(BrokerUnavailable, match="shutting down"):
            await connection.answer()
    port.close()
    await eventually(lambda: not port.connections, what="the connection's end")


@in_loop
async def test_nothing_is_pushed_before_it_is_confirmed() -> None:
    node = opened()
    client = Client(node, "mine")
    node.role.holds = True
    await node.reply(("mine", b"one"))
    node.dispatch()
    await asyncio.sleep(0)
    assert client.heard == []
    node.role.holds = False
    node.settle()
    await eventually(lambda: client.heard == [b"one"])
    client.ended()


@in_loop
async def test_a_reply_that_is_sent_again_is_stored_and_pushed_once() -> None:
    node = opened()
    client = Client(node, "mine")
    first = await node.reply(("mine", b"one"), sequence=10_000)
    again = await node.reply(("mine", b"one"), sequence=10_000)
    assert (again.duplicate, again.physical_offset) == (True, first.physical_offset)
    await node.reply(("mine", b"two"), sequence=10_001)
    await eventually(lambda: client.heard == [b"one", b"two"])
    client.ended()


@in_loop
async def test_whoever_listens_anew_gets_what_lies_behind_its_oldest_request() -> None:
    node = opened()
    pushing_task = asyncio.create_task(node.pusher.run())
    receipts = [await node.reply(("mine", b"%d" % number), ("other", b"x")) for number in range(4)]
    client = Client(node, "mine", receipts[2].physical_offset)
    await eventually(lambda: client.heard == [b"2", b"3"])
    await node.reply(("mine", b"4"))
    client.listen("mine", receipts[1].physical_offset)
    await eventually(lambda: client.heard[-4:] == [b"1", b"2", b"3", b"4"])
    client.ended()
    pushing_task.cancel()
    await asyncio.gather(pushing_task, return_exceptions=True)


@in_loop
async def test_a_client_that_reads_slowly_gets_the_rest_from_the_topic() -> None:
    node = opened()
    pushing_task = asyncio.create_task(node.pusher.run())
    client, other = Client(node, "mine"), Client(node, "other")
    client.has_room = False
    expected = [b"%04d" % number for number in range(60)]
    for body in expected:
        await node.reply(("mine", body), ("other", body))
    await eventually(lambda: other.heard == expected)
    assert node.pusher.postponed > 0
    assert client.heard == []
    client.reads()
    await eventually(lambda: sorted(set(client.heard)) == expected)
    client.ended()
    other.ended()
    pushing_task.cancel()
    await asyncio.gather(pushing_task, return_exceptions=True)


@in_loop
async def test_the_next_master_pushes_what_the_last_one_has_stored() -> None:
    node = opened()
    first = Client(node, "mine")
    receipt = await node.reply(("mine", b"one"))
    await eventually(lambda: first.heard == [b"one"])
    node.change_role(master=False)
    assert isinstance(first.ended(), BrokerUnavailable)
    refused = Client(node, "mine")
    assert isinstance(refused.ended(), NotMaster)
    again = Node.restarted(node)
    pushing_task = asyncio.create_task(again.pusher.run())  # type: ignore[attr-defined]
    second = Client(again, "mine", receipt.physical_offset)  # type: ignore[arg-type]
    await again.reply(("mine", b"two"))  # type: ignore[attr-defined]
    await eventually(lambda: second.heard == [b"one", b"two"])
    second.ended()
    pushing_task.cancel()
    await asyncio.gather(pushing_task, return_exceptions=True)


@in_loop
async def test_the_next_master_pushes_what_is_confirmed_only_after_somebody_listens() -> None:
    node = opened(holds=True)
    node.role.holds = False
    node.settle()
    node.role.holds = True
    receipt = await node.reply(("mine", b"one"))
    again = Node.restarted(node, holds=True)
    client = Client(again, "mine", receipt.physical_offset)  # type: ignore[arg-type]
    assert client.heard == []
    again.role.holds = False
    again.settle()  # type: ignore[attr-defined]
    await eventually(lambda: client.heard == [b"one"])
    client.ended()


@in_loop
async def test_who_listens_while_its_reply_cannot_be_read_yet_gets_it_with_nobody_else_waiting() -> None:
    for others in ([], ["other"]):  # who listen when the reply comes, and not any more
        node = opened()
        listening = [Client(node, name) for name in others]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dispatch, "SLICE_BYTES", 1000)
            for _ in range(3):
                await node.append([bytes(900)])
            await node.append_bytes(reply_batch([("mine", b"one")]))
            for each in listening:
                each.ended()
            client = Client(node, "mine")
            assert client.heard == []
            node.settle()
        await eventually(lambda client=client: client.heard == [b"one"])  # type: ignore[misc]
        client.ended()


@in_loop
async def test_what_is_no_reply_is_refused_and_nothing_is_stored() -> None:
    node = opened()
    end = node.store.end_offset
    for changes, error in (
        ({"MSG_TYPE": ""}, "record 1 of the batch: its property MSG_TYPE must be reply"),
        ({"MSG_TYPE": "rep1y"}, "its property MSG_TYPE must be reply"),
        ({"CORRELATION_ID": ""}, r"needs a CORRELATION_ID of 1\.\.255 bytes"),
        ({"CORRELATION_ID": "x" * 256}, "needs a CORRELATION_ID"),
        ({"CORRELATION_ID": "x" * 30_000}, "needs a CORRELATION_ID"),
        ({"REPLY_TO_CLIENT": ""}, r"needs a REPLY_TO_CLIENT of 1\.\.255 bytes"),
        ({"REPLY_TO_CLIENT": "x" * 256}, "needs a REPLY_TO_CLIENT"),
    ):
        good, bad = told("mine"), told("mine", **changes)
        strings = [encode_properties(good), encode_properties(bad)]
        mark = producer_mark(99, 0, 0, next(SEQUENCES), 2)
        records = encode_messages(TOPIC, [b"a", b"b"], strings, born_host=BORN, mark=mark)
        header = {"producer_id": 99, "sequence": next(SEQUENCES) - 1, "count": 2}
        with pytest.raises(InvalidArgument, match=error) as refused:
            await node.append_bytes(frames.pack(AppendHeader(topic="orders", later=4, **header), records))
        assert refused.value.details["index"] == 1
    with pytest.raises(Forbidden, match="bad queue"):
        await node.append_bytes(reply_batch([("mine", b"one")], queue_id=1))
    with pytest.raises(TopicNotFound):
        await node.append_bytes(reply_batch([("mine", b"one")], topic="unknown"))
    node.settle()
    assert bodies(node.store, TOPIC, 0) == []
    assert node.store.end_offset - end < 1000, "no more than the topic's own record"
    with pytest.raises(Forbidden, match="may not be written"):
        await node.append(topic=TOPIC)


@in_loop
async def test_listening_has_its_rules_and_bounds() -> None:
    node = opened(maxConsumerSessions=1)
    for client_id, position, error in (
        ("", 0, "client id ''"),
        ("x" * 201, 0, "1..200 printable ASCII"),
        ("mine", -1, "may not be negative"),
    ):
        assert error in str(Client(node, client_id, position).ended())
    first = Client(node, "mine")
    assert isinstance(Client(node, "other").ended(), LimitReached)
    second = Client(node, "mine")
    assert "listens by another request now" in str(first.error)
    assert first.ended() is not None
    assert len(node[Replies].listeners) == 1, "the first one's end is not the second one's"
    second.listen("other")
    assert "mine listens over this connection" in str(second.error)
    second.ask(b"\xff")
    assert "that are no penstock.v1.ListenRequest" in str(second.error)
    third = Client(node, "mine")
    await node[Replies].stop()
    assert "shutting down" in str(third.ended())
    assert isinstance(Client(node, "mine").ended(), BrokerUnavailable)


@in_loop
async def test_a_client_that_is_silent_is_not_listened_for() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_calls, "WATCH_INTERVAL_S", 0.001)
        node = opened()
        client, other = Client(node, "mine"), Client(node, "other")
        client.silent_s, other.silent_s = 3.0, 2.9
        await eventually(lambda: client.error is not None)
        assert "nothing was heard for 3.0 s" in str(client.ended())
        assert len(node[Replies].listeners) == 1
        other.ended()


@in_loop
async def test_replies_that_come_together_and_are_large_are_all_pushed() -> None:
    node = opened()
    pushing_task = asyncio.create_task(node.pusher.run())
    client = Client(node, "mine")
    expected = [bytes([65 + number]) * 40_000 for number in range(pushing.AT_ONCE_COUNT)]
    node.role.holds = True
    for body in expected:
        await node.reply(("mine", body))
    node.role.holds = False
    node.settle()
    assert sum(map(len, expected)) > pushing.SLICE_BYTES
    await eventually(lambda: client.heard == expected)
    client.ended()
    pushing_task.cancel()
    await asyncio.gather(pushing_task, return_exceptions=True)


@in_loop
async def test_others_have_their_turn_between_the_clients_that_are_behind() -> None:
    node = opened()
    first = await node.reply(*((f"client-{number}", b"x") for number in range(50)))
    clients = [Client(node, f"client-{number}", first.physical_offset) for number in range(50)]
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(others())
    await node.pusher.turn()
    assert turns >= len(clients)
    counting.cancel()
    await asyncio.gather(counting, return_exceptions=True)
    await eventually(lambda: all(client.heard == [b"x"] for client in clients))
    for client in clients:
        client.ended()


@in_loop
async def test_a_topic_that_demands_keys_takes_replies_without() -> None:
    node = opened()
    node.put_topic(Topic("fifo", 4, 4, 6, {MESSAGE_TYPE: "FIFO"}))
    node.dispatch()
    await node.reply(("mine", b"one"), topic="fifo")
    assert bodies(node.store, TOPIC, 0) == [b"one"]
