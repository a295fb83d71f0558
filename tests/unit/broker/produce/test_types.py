"""Topics of one message type at the broker: appended and staged batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.broker.core.tables.topics import Topic
from penstock.proto.errors import MessageTypeConflict
from tests.support.broker.kit import Kit, in_loop


@in_loop
async def test_appended_and_staged_batches_are_checked_and_nothing_is_stored() -> None:
    parts = Kit()
    parts.put_topic(Topic("fifo", 4, 4, attributes={"message.type": "FIFO"}))
    end = parts.store.end_offset
    for take in (parts.append, parts.stage):
        with pytest.raises(MessageTypeConflict, match="topic fifo: it takes FIFO messages") as refused:
            await take([b"1", b"2"], topic="fifo")
        assert refused.value.details == {}
    assert parts.store.end_offset == end


@in_loop
async def test_a_batch_that_is_stored_already_is_answered_after_the_type_has_changed() -> None:
    parts = Kit()
    topic = parts.add_topic()
    first = await parts.append([b"1"], producer=(0xAB, 1, 0, 1))
    parts.put_topic(replace(topic, attributes={"message.type": "DELAY"}))
    again = await parts.append([b"1"], producer=(0xAB, 1, 0, 1))
    assert (again.duplicate, again.physical_offset) == (True, first.physical_offset)
    with pytest.raises(MessageTypeConflict):
        await parts.append([b"2"], producer=(0xAB, 1, 0, 2))


@pytest.mark.parametrize("value", ["MIXED", "UNSPECIFIED", "PRIORITY", ""])
@in_loop
async def test_types_that_say_nothing_take_everything(value: str) -> None:
    parts = Kit()
    parts.put_topic(Topic("orders", 4, 4, attributes={"message.type": value}))
    await parts.append([b"1"])
