"""A slave that its operator makes master: by its configuration, where no master is elected."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.broker.broker import FEATURES, make_core
from penstock.broker.core.tables.topics import TOPIC, Topic
from penstock.broker.group.making import RoleMaker
from penstock.broker.group.roles import MasterRole
from penstock.replication import ReplicationConfig
from penstock.runtime.clock import SystemClock
from tests.support.broker.stores import bodies
from tests.support.replication.replica_nodes import Node

ALONE = ReplicationConfig(sync=False)


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_it_goes_on_behind_the_last_whole_batch_that_it_had(tmp_path: Path, role: str) -> None:
    """It was stopped with a part of a batch at its log's end, whose rest died with its master."""

    async def scenario() -> None:
        former = Node(tmp_path, 1, ALONE)
        former.lead(2)
        former.put_topic(Topic("orders", 1, 1))
        whole = former.append("orders", [b"whole"])
        former.append("orders", [bytes(1000)] * 8, sequence=1)
        slave = Node(tmp_path, 2, ALONE)
        slave.opened.epochs.replace(former.opened.epochs.history)
        slave.store.append_bytes(0, former.store.read_bytes(0, whole + 5000))
        slave.store.set_confirm(whole)
        slave.catch_up()
        slave.close()
        former.close()
        promoted = Node(tmp_path, 2, ALONE, brokerId=0, brokerRole=role, haMasterAddress="")
        config, opened, clock = promoted.broker_config, promoted.opened, SystemClock()
        core = make_core(
            config, clock, opened.store, opened.tables, lambda events: RoleMaker(config, opened, events, clock).make()
        )
        core.features.make(FEATURES, core)
        assert isinstance(core.role, MasterRole)
        core.events.on_role()
        assert core.events.journal is not None
        end = core.events.journal.put(TOPIC, Topic("later", 1, 1).to_json())
        assert whole < end < whole + 5000
        assert core.role.primary.confirm_offset == (end if role == "ASYNC_MASTER" else whole)
        await core.dispatcher.drain()
        assert bodies(opened.store, "orders") == [b"whole"]
        promoted.close()

    asyncio.run(scenario())
