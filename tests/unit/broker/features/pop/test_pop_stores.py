"""POP on a store that somebody else has shaped: log files that are to go, topics of other brokers."""

from __future__ import annotations

import pytest

from penstock.broker.core.tables.topics import Topic
from penstock.broker.features.pop import state
from penstock.broker.features.pop.pop import SETTLE_S
from penstock.proto import names
from tests.support.broker.kit import in_loop
from tests.support.broker.popping import RETRY, bodies, opened


@in_loop
async def test_a_retry_topic_that_nobody_may_write_takes_copies_all_the_same() -> None:
    node = opened()
    node.put_topic(Topic(RETRY, 1, 0, names.PERM_READ))
    given = await node.receive(2)
    await node.pass_s(31)
    assert [record.body for record in node.records()] == bodies(given)


def test_all_queues_get_out_of_retentions_way_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "STATED_AT_ONCE", 1)

    @in_loop
    async def run() -> None:
        node = opened()
        for queue_id in range(1, 4):
            node.fill(2, queue_id=queue_id)
        assert len(await node.receive(32, invisible_ms=600_000)) == 16
        node.fill(1)
        end = node.store.end_offset
        node.pop.state.make_way(end)
        for _ in range(6):
            await node.pass_s(SETTLE_S)
        assert min(queue.floor for queue in node.pop.state.queues.values() if len(queue)) > 0

    run()
