"""A long request is looked through in turns."""

from __future__ import annotations

import asyncio

import pytest

from penstock.proto.errors import MessageTooLarge
from penstock.proto.wire.broker_pb2 import CommitOffsetsRequest
from penstock.proto.wire.common_pb2 import TopicOffsets
from penstock.runtime.channel import FIELDS_MAX, Requests
from tests.support.hostile.values import crowded

BYTES_MAX = 64 << 20


def test_others_have_their_turns_while_many_fields_are_counted() -> None:
    async def run() -> None:
        requests, turns = Requests(BYTES_MAX), 0
        (content,) = crowded(CommitOffsetsRequest.DESCRIPTOR, 4 * FIELDS_MAX, depth=1)

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(requests.decoded(CommitOffsetsRequest, content))
        others = asyncio.create_task(other())
        with pytest.raises(MessageTooLarge, match=f"more than {FIELDS_MAX} fields"):
            await counting
        others.cancel()
        assert turns > 1

    asyncio.run(run())


def test_a_commit_of_all_queues_of_a_topic_is_taken() -> None:
    queues = range(1 << 16)
    request = CommitOffsetsRequest(offsets=[TopicOffsets(topic="t", queue_ids=queues, offsets=[1 << 40] * len(queues))])
    assert asyncio.run(Requests(BYTES_MAX).decoded(CommitOffsetsRequest, request.SerializeToString())) == request
