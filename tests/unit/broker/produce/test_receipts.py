"""Receipts of batches whose records the broker makes longer, each by as much as it needs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.client import Message, Producer, SendReceipt
from penstock.formats.record.layout import decode_record, parse_offset_message_id
from penstock.proto.wire import broker_pb2
from tests.support.broker.running_broker import running
from tests.support.cluster.nameserver import nameserver

LIGHTS = ("", "%LMQ%a", "", "%LMQ%a,%LMQ%b", "%LMQ%b")


def _send(address: str, messages: list[Message]) -> list[SendReceipt]:
    with Producer(address) as producer:
        return producer.send_batch(messages)


@pytest.mark.parametrize(
    "settings",
    [{"enableLmq": True, "enableMultiDispatch": True}, {"enabledAppendPropCRC": True}, {}],
    ids=["light queues", "record checksums", "as sent"],
)
def test_the_offset_id_of_each_message_of_a_batch_finds_that_message(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    messages = [
        Message("orders", b"%d" % n, properties={"INNER_MULTI_DISPATCH": lights} if lights else {})
        for n, lights in enumerate(LIGHTS * 4)
    ]

    async def check() -> None:
        async with nameserver(tmp_path) as address, running(tmp_path, namesrvAddr=address, **settings) as (_, caller):
            await caller.create_topic()
            receipts = await asyncio.to_thread(_send, address, messages)
            for message, receipt in zip(messages, receipts, strict=True):
                position = parse_offset_message_id(receipt.offset_message_id)[1]
                found = await caller.call("ViewMessage", broker_pb2.ViewMessageRequest(physical_offset=position))
                record = decode_record(found.records[0])
                assert (record.body, record.queue_id) == (message.body, receipt.queue_id)
                assert record.queue_offset == receipt.queue_offset

    asyncio.run(check())
