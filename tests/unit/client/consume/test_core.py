"""What every consumer has: here, what it says once it cannot go on."""

from __future__ import annotations

import pytest

from penstock.client.pull_consumer import PullConsumer
from penstock.proto.errors import GroupNotFound


def test_a_consumer_that_cannot_go_on_says_so_as_often_as_it_is_asked_and_keeps_nothing_of_it() -> None:
    with PullConsumer("127.0.0.1:1", group="g") as puller:
        puller._core.fail(GroupNotFound("group g is gone"))
        depths = []
        for _ in range(3):
            with pytest.raises(GroupNotFound, match="is gone") as failed:
                puller.poll(0)
            depths.append(len(failed.traceback))
        assert depths == depths[:1] * 3
