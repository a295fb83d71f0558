"""The task that elects: groups are looked at side by side, by registers that are of now and brokers that live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.nameserver.election.coordination import Coordination
from penstock.nameserver.election.elections import SETTLE_S
from penstock.nameserver.key_values import KeyValues
from penstock.nameserver.routes import RouteTable
from penstock.nameserver.service import NameserverService
from penstock.proto.errors import InvalidArgument, WrongCluster
from penstock.proto.register import Register, new_register
from penstock.proto.wire.common_pb2 import BrokerIdentity
from penstock.proto.wire.coordination_pb2 import RegisterCreation, RegisterQuery
from penstock.proto.wire.nameserver_pb2 import BrokerReport
from penstock.runtime.clock import SystemClock
from tests.support.broker.registrations import registration
from tests.support.clock import ManualClock
from tests.support.waiting import eventually


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
        return self.registers.get(broker_name)

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


def test_nobody_is_elected_by_a_register_that_is_older_than_a_log(caplog: pytest.LogCaptureFixture) -> None:
    """It was restored from an old copy: who had everything then, may lack what was acknowledged since."""

    async def scenario() -> None:
        old = new_register("c", "broker-a", 0, 1).with_set(0, 2, 1, (0, 1))
        store = Store(old, slow=frozenset())
        coordination = Coordination(store, SystemClock(), unclean_allowed=False)
        task = asyncio.create_task(coordination.run())
        while "is of epoch 2, and a broker's log of a later one" not in caplog.text:
            for broker_id, log_epoch in ((1, 2), (2, 3)):
                identity = BrokerIdentity(cluster="c", broker_name="broker-a", broker_id=broker_id)
                coordination.on_report(identity, BrokerReport.Candidacy(log_epoch=log_epoch), 100)
            await asyncio.sleep(0.01)
        assert store.registers["broker-a"] == old
        store.registers["broker-a"] = old.elected(1).elected(1)
        while not store.elected.is_set():
            coordination.on_report(identity, BrokerReport.Candidacy(log_epoch=3), 100)
            identity = BrokerIdentity(cluster="c", broker_name="broker-a", broker_id=1)
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())


def test_a_register_that_cannot_be_changed_keeps_no_other_group_from_its_election(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its epoch is the last that there is."""

    async def scenario() -> None:
        last = new_register("c", "strangers", 0, (1 << 63) - 2)
        store = Store(new_register("c", "broker-a", 0, 1).with_set(0, 2, 1, (0, 1)), last, slow=frozenset())
        coordination = Coordination(store, SystemClock(), unclean_allowed=False)
        task = asyncio.create_task(coordination.run())
        while not ("election failed broker_name=strangers" in caplog.text and store.elected.is_set()):
            for broker_name, broker_id in (("broker-a", 1), ("strangers", 0)):
                identity = BrokerIdentity(cluster="c", broker_name=broker_name, broker_id=broker_id)
                coordination.on_report(identity, BrokerReport.Candidacy(), 100)
            assert not task.done()
            await asyncio.sleep(0.01)
        with pytest.raises(InvalidArgument, match=f"epoch {(1 << 62) + 1}: 0..{1 << 62} are allowed"):
            await coordination.CreateRegister(RegisterCreation(identity=identity, epoch=(1 << 62) + 1), None)
        assert store.registers["strangers"] == last
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())


def test_whoever_has_just_made_its_groups_register_has_the_time_to_begin() -> None:
    """One that was there before this nameserver looked may have been without its master for long."""

    async def scenario() -> None:
        clock = ManualClock()
        earlier = new_register("c", "earlier", 0, 1)
        store = Store(earlier, slow=frozenset())
        coordination = Coordination(store, clock, unclean_allowed=False)
        identities = [BrokerIdentity(cluster="c", broker_name=name, broker_id=0) for name in ("new", "earlier")]
        task = asyncio.create_task(coordination.run())
        await coordination.CreateRegister(RegisterCreation(identity=identities[0], epoch=1), None)
        made = store.registers["new"]
        while store.registers["earlier"] == earlier:
            for identity in identities:
                coordination.on_report(identity, BrokerReport.Candidacy(epoch=1, log_epoch=1), 0)
            await asyncio.sleep(0.01)
            clock.advance(SETTLE_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert store.registers["new"] == made

    asyncio.run(scenario())


class Stuck:
    """A call whose client takes nothing any more."""

    def peer(self) -> str:
        return "far"

    async def write(self, message: object) -> None:
        await asyncio.Event().wait()


async def reports(broker: BrokerReport.Registration, ended: asyncio.Event) -> AsyncIterator[BrokerReport]:
    yield BrokerReport(registration=broker)
    await ended.wait()


@pytest.mark.parametrize("addresses", [("h:1", "h:1"), ("h:1", "h:2")])
def test_a_broker_is_gone_when_its_newest_session_ends_and_not_before(
    tmp_path: Path, addresses: tuple[str, str]
) -> None:
    """One of its earlier life may hang where its host is gone; the broker may have another address since."""

    async def scenario() -> None:
        coordination = Coordination(Store(slow=frozenset(["broker-a"])), SystemClock(), unclean_allowed=False)
        key_values = KeyValues.open(tmp_path / "kv.json")
        service = NameserverService(RouteTable(), key_values, SystemClock(), coordination)
        lives, tasks = [asyncio.Event(), asyncio.Event()], []
        for address, ended in zip(addresses, lives, strict=True):
            broker = registration("broker-a", 1, instance="same", address=address)
            broker.candidacy.log_epoch = 1
            tasks.append(asyncio.create_task(service.BrokerSession(reports(broker, ended), Stuck())))
            await eventually(lambda: len(service._sessions) == len(tasks), what="a session")
            await asyncio.sleep(0)
        assert 1 in coordination._reports["broker-a"]
        ended_first = 1 if addresses[0] == addresses[1] else 0
        lives[ended_first].set()
        await asyncio.wait([tasks[ended_first]])
        assert ("broker-a" in coordination._reports) == (ended_first == 0)
        assert not tasks[1 - ended_first].done()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scenario())


def test_a_broker_that_nobody_can_elect_is_refused_where_masters_are_elected(tmp_path: Path) -> None:
    """Its group's master would take it into the set, and count on it."""

    async def scenario() -> None:
        store = Store(new_register("c", "broker-a", 0, 1), slow=frozenset())
        coordination = Coordination(store, SystemClock(), unclean_allowed=False)
        key_values = KeyValues.open(tmp_path / "kv.json")
        service = NameserverService(RouteTable(), key_values, SystemClock(), coordination)
        member = BrokerIdentity(cluster="c", broker_name="broker-a", broker_id=0, address="h:0")
        await coordination.ReadRegister(RegisterQuery(identity=member), None)
        with pytest.raises(WrongCluster, match="broker 1 takes no part: set enableControllerMode = true"):
            await service.BrokerSession(reports(registration("broker-a", 1), asyncio.Event()), Stuck())
        assert not service._table.cluster().shards
        ended = asyncio.Event()
        ended.set()
        await service.BrokerSession(reports(registration("broker-b", 1), ended), Stuck())

    asyncio.run(scenario())
