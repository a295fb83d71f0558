"""The task that elects: groups are looked at side by side."""

from __future__ import annotations

import asyncio

from penstock.nameserver.election.coordination import Coordination
from penstock.proto.register import Register, new_register
from penstock.proto.wire.common_pb2 import BrokerIdentity
from penstock.proto.wire.nameserver_pb2 import BrokerReport
from penstock.runtime.clock import SystemClock


class Store:
    """Registers in memory; reads of ``slow`` groups never end."""

    def __init__(self, *registers: Register, slow: frozenset[str]) -> None:
        self.registers = {each.broker_name: each for each in registers}
        self._slow = slow
        self.elected = asyncio.Event()

    async def id(self) -> str:
        return "id"

    async def read(self, broker_name: str) -> Register | None:
        if broker_name in self._slow:
            await asyncio.Event().wait()
        return self.registers[broker_name]

    async def replace(self, before: Register | None, after: Register) -> bool:
        self.registers[after.broker_name] = after
        self.elected.set()
        return True

    async def close(self) -> None:
        return


def test_a_group_whose_register_cannot_be_read_delays_no_other_groups_election() -> None:
    async def scenario() -> None:
        slow = [f"broker-{name}" for name in "abc"]
        registers = [new_register("c", name, 0, 0).with_set(0, 1, 1, (0, 1)) for name in [*slow, "broker-z"]]
        store = Store(*registers, slow=frozenset(slow))
        coordination = Coordination(store, SystemClock(), unclean_allowed=False)
        task = asyncio.create_task(coordination.run())
        while not store.elected.is_set():
            for register in registers:
                identity = BrokerIdentity(cluster="c", broker_name=register.broker_name, broker_id=1)
                coordination.on_report(identity, BrokerReport.Candidacy(log_epoch=1, priority=1), 100)
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert store.registers["broker-z"].master_id == 1

    asyncio.run(scenario())
