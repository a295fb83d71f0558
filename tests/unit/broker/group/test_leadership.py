"""When a broker begins as master, and when a member that may have lost something is believed to have everything."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from penstock.broker.config import ReplicationSettings
from penstock.broker.group.elected_role import ElectedRole
from penstock.broker.group.epoch_file import EpochFile
from penstock.broker.group.held_membership import Membership, MembershipFile
from penstock.broker.group.leadership import Leadership
from penstock.broker.group.roles import MasterRole, SlaveRole
from penstock.proto.errors import KeyNotFound
from penstock.proto.register import Register, new_register
from penstock.proto.wire import common_pb2
from penstock.proto.wire.nameserver_pb2 import ShardMember, ShardView
from penstock.replication.config import ReplicationConfig
from penstock.replication.epochs import Epoch, EpochHistory
from penstock.replication.master.primary import Primary
from penstock.replication.master.sync_state_set import SetRules
from penstock.replication.slave.replica import Replica
from penstock.runtime.clock import SystemClock
from tests.support.replication.memory_log import MemoryLog
from tests.support.replication.replicating import identity, new_master, port_of, serving
from tests.support.waiting import eventually

CONFIG = ReplicationConfig(sync=True, heartbeat_interval_ms=20, reconnect_min_ms=5, reconnect_max_ms=20)
FIRST = EpochHistory([Epoch(1, 0)])
COORDINATOR = "one"


@dataclass
class Registers:
    """A register that a test writes."""

    register: Register
    changes: list[frozenset[int]] = field(default_factory=list)

    async def read(self) -> tuple[Register, str]:
        return self.register, COORDINATOR

    async def change_set(self, known: Register, members: frozenset[int]) -> tuple[Register, str]:
        self.changes.append(members)
        self.register = known.with_set(1, known.epoch, known.version, members)
        return self.register, COORDINATOR

    async def close(self) -> None:
        return


class Store(MemoryLog):
    """A log that can begin an epoch."""

    @property
    def appended_offset(self) -> int:
        return self.end_offset

    def cut_unfinished(self) -> int:
        return self.end_offset

    def end_doubt(self) -> None:
        """Nothing is remembered."""


def leader(folder: Path, store: Store, register: Register, *, master_address: str = "", lost: bool = False) -> Any:
    """The leadership of broker 1, a slave with ``store``."""
    epochs = EpochFile.open(folder, is_new=True)
    epochs.replace(FIRST)
    membership = MembershipFile(folder)
    membership.hold(COORDINATOR, 1)

    def make_slave() -> SlaveRole:
        replica = Replica(
            identity(1),
            store,
            config=CONFIG,
            epochs=epochs,
            on_appended=lambda: None,
            on_confirm=lambda offset: None,
            pending_commits=list,
        )
        role = SlaveRole(identity(1), replica, epochs)
        if master_address:
            port = port_of(master_address)
            master = ShardMember(broker_id=0, address=master_address, role=common_pb2.MASTER, data_port=port)
            role.on_shard(ShardView(members=[master]))
        return role

    def make_master(on_answer: Any, members: frozenset[int], needed: int, source: int) -> MasterRole:
        primary = Primary(
            identity(1),
            store,
            CONFIG,
            epoch=epochs.history.latest,
            epochs=epochs.history,
            initial_confirm=0,
            on_confirm=lambda offset: None,
            on_commits=lambda commits: None,
            on_answer=on_answer,
            members=members,
            needed=needed,
            source=source,
        )
        return MasterRole(1, primary, history=epochs.history, waits_for_replicas=True, slave_read=False)

    clock = SystemClock()
    role = ElectedRole(identity(1), make_slave(), waits=True, clock=clock)
    role.leadership = Leadership(
        1,
        role,
        Registers(register),  # type: ignore[arg-type]
        membership,
        epochs,
        store,
        SetRules(2, 1),
        make_master=make_master,
        make_slave=make_slave,
        clock=clock,
        settings=ReplicationSettings(),
        may_have_lost=lost,
    )
    return role.leadership


def register_of(epoch: int, master: int, *members: int) -> Register:
    first = new_register("cluster", "broker-a", master, epoch - 1)
    return replace(first, sync_state_set=frozenset(members), version=epoch)


@contextlib.asynccontextmanager
async def running(leadership: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(leadership.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_slave_whose_coordinator_was_wiped_says_so_and_not_only_that_nobody_is_master(tmp_path: Path) -> None:
    async def scenario() -> None:
        leadership = leader(tmp_path, Store(), register_of(2, 0, 0, 1))

        async def read() -> Any:
            raise KeyNotFound("broker group broker-a has no register")

        leadership.registers.read = read
        async with running(leadership):
            await eventually(lambda: leadership.trouble, what="the warning")
            following = leadership.role.following
            assert not following.is_following
            assert "governed by coordinator store one" in following.not_because
            assert "or delete the file in every store of the group" in following.not_because

    asyncio.run(scenario())


def test_doubt_lasts_until_the_log_reaches_where_the_new_masters_epoch_began(tmp_path: Path) -> None:
    """The master's confirm offset is 950, as it heard it once; up to 1000 the one before it may have acknowledged."""

    async def scenario() -> None:
        log, copy = MemoryLog(), Store()
        log.write(bytes(1000))
        log.flush()
        copy.write(bytes(960))
        copy.flush()
        copy.hold_flushes = True
        epochs = EpochHistory([Epoch(1, 0), Epoch(2, 1000)])
        master = new_master(
            log,
            replace(CONFIG, flush_acknowledged=True),
            epoch=2,
            epochs=epochs,
            initial_confirm=950,
            members=frozenset((0, 1)),
            needed=2,
        )
        async with serving(master):
            leadership = leader(tmp_path, copy, register_of(2, 0, 0, 1), master_address=master.address, lost=True)
            async with running(leadership):
                replica = leadership.role.inner.replica
                await eventually(lambda: replica.connected and copy.end_offset == 1000, what="the rest, not synced")
                leadership._look_level(0.0)
                assert leadership.candidacy().is_doubtful
                copy.on_flushed = replica.on_flushed
                copy.flush()
                await eventually(lambda: not leadership.candidacy().is_doubtful, what="everything is there")

    asyncio.run(scenario())


class SlowToEnd:
    """A role's task that takes a while to end, as one does that is cutting its log."""

    def __init__(self) -> None:
        self.is_stopping, self.may_stop = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.is_stopping.set()
            await self.may_stop.wait()


def role_tasks() -> int:
    return sum(task.get_name() == "role" for task in asyncio.all_tasks())


@pytest.mark.parametrize(
    ("answer", "epochs"),
    [
        pytest.param(register_of(2, 1, 0, 1), [1, 2], id="the same"),
        pytest.param(replace(register_of(2, 1, 0, 1), version=3), [1, 2], id="a later version"),
        pytest.param(register_of(3, 1, 0, 1), [1, 3], id="elected again"),
        pytest.param(register_of(3, 0, 0, 1), [1], id="another one elected"),
    ],
)
def test_an_elected_broker_begins_once_whatever_is_read_while_its_former_role_ends(
    tmp_path: Path, answer: Register, epochs: list[int]
) -> None:
    async def scenario() -> None:
        store = Store()
        store.write(bytes(100))
        leadership = leader(tmp_path, store, register_of(2, 1, 0, 1))
        slow = SlowToEnd()
        leadership.role.inner.run = slow.run
        async with running(leadership):
            await slow.is_stopping.wait()
            leadership.registers.register = answer
            leadership._on_answer(answer, COORDINATOR, leadership.clock.monotonic_s())
            slow.may_stop.set()
            is_master = len(epochs) > 1
            await eventually(
                lambda: leadership._running is not None and leadership.role.is_master is is_master, what="its role"
            )
            assert leadership._elected is None
            assert [entry.epoch for entry in leadership.epochs.history.entries] == epochs
            assert role_tasks() == 1

    asyncio.run(scenario())


def test_a_master_steps_down_once_though_a_hand_over_and_an_election_come_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        leadership = leader(tmp_path, Store(), register_of(2, 1, 0, 1))
        async with running(leadership):
            await eventually(lambda: leadership.role.is_master, what="the begin of epoch 2")
            await leadership._stop_inner()
            slow = SlowToEnd()
            leadership._running = asyncio.create_task(slow.run(), name="slow")
            handing_over = asyncio.create_task(leadership._step_down())
            await slow.is_stopping.wait()
            elected = register_of(3, 0, 0, 1)
            leadership.registers.register = elected
            leadership._on_answer(elected, COORDINATOR, leadership.clock.monotonic_s())
            await eventually(lambda: not leadership.role.is_master, what="the loop's step down")
            inner = leadership.role.inner
            slow.may_stop.set()
            await handing_over
            assert leadership.role.inner is inner
            assert role_tasks() == 1

    asyncio.run(scenario())


def test_a_master_whose_hand_over_is_given_up_while_it_steps_down_is_a_slave(tmp_path: Path) -> None:
    """Else nobody would be master: it would take nothing, and its slaves would hear it."""

    async def scenario() -> None:
        leadership = leader(tmp_path, Store(), register_of(2, 1, 0, 1))

        async def ready(*_: object) -> Register:
            leadership.role.is_handing_over = True
            await leadership._stop_inner()
            leadership._running = asyncio.create_task(slow.run(), name="slow")
            return register

        async with running(leadership):
            await eventually(lambda: leadership.role.is_master, what="the begin of epoch 2")
            register, slow = leadership.register, SlowToEnd()
            leadership._ready_to_hand_over = ready
            with mock.patch("penstock.broker.group.leadership.check_successor"):
                handing_over = asyncio.create_task(leadership.hand_over(0))
                await slow.is_stopping.wait()
                handing_over.cancel()
                await asyncio.sleep(0)
                slow.may_stop.set()
                await asyncio.wait((handing_over,))
            assert not leadership.role.is_master
            assert leadership.candidacy().is_acting is False
            await eventually(lambda: role_tasks() == 1, what="the slave's role")

    asyncio.run(scenario())


def test_a_master_that_begins_takes_the_one_that_it_replaced_out_of_the_set_at_once(tmp_path: Path) -> None:
    """Before a slave has come: what is acknowledged next need not wait for one that is dead."""

    async def scenario() -> None:
        elected = replace(register_of(1, 0, 0, 1, 2), version=3).elected(1)
        leadership = leader(tmp_path, Store(), elected)
        async with running(leadership):
            await eventually(lambda: leadership.registers.changes, what="a change of the set")
            assert leadership.registers.changes == [{1, 2}]
            assert leadership.role.is_master

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("elections", "lost", "confirm"),
    [
        pytest.param((1,), False, 500, id="from the former master"),
        pytest.param((0, 1), False, 0, id="the former master never began"),
        pytest.param((1,), True, 0, id="elected in doubt"),
    ],
)
def test_a_master_that_begins_shows_what_the_former_master_shipped(
    tmp_path: Path, elections: tuple[int, ...], lost: bool, confirm: int
) -> None:
    """The log is of epoch 1, in which broker 0 was master; it is gone, and the set needs it."""

    async def scenario() -> None:
        store = Store()
        store.write(bytes(500))
        register = replace(register_of(1, 0, 0, 1), version=2)
        for candidate in elections:
            register = register.elected(candidate)
        leadership = leader(tmp_path, store, register, lost=lost)
        leadership._keeper.rules = SetRules(2, 2)
        async with running(leadership):
            await eventually(lambda: leadership.role.is_master, what="the begin of the epoch")
            assert leadership.role.inner.primary.confirm_offset == confirm
            assert leadership.sync_state_set == [0, 1]

    asyncio.run(scenario())


def test_a_slave_knows_what_was_committed_while_it_is_in_the_set_and_has_had_everything(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, copy = MemoryLog(), Store()
        log.write(bytes(1000))
        log.flush()
        master = new_master(log, CONFIG, initial_confirm=1000, members=frozenset((0, 1)), needed=2)
        async with serving(master):
            leadership = leader(tmp_path, copy, register_of(1, 0, 0, 1), master_address=master.address)
            async with running(leadership):
                assert not leadership.is_current
                await eventually(lambda: leadership.is_current, what="everything is there")
                leadership.register = register_of(2, 0, 0)
                assert not leadership.is_current, "out of the set it may fall behind"
                leadership.register = register_of(3, 0, 0, 1)
                assert leadership.is_current
                confirmed, copy.confirm_offset = copy.confirm_offset, leadership.epochs.history.latest_start - 1
                assert not leadership.is_current, "its tables follow what is confirmed, which may be older"
                copy.confirm_offset = confirmed
        assert leadership.is_current, "its master is gone, and it has what that acknowledged"

    asyncio.run(scenario())


@pytest.mark.parametrize(("confirmed", "is_current"), [(400, False), (500, True)])
def test_a_master_that_began_without_a_predecessor_waits_for_what_its_group_had(
    tmp_path: Path, confirmed: int, is_current: bool
) -> None:
    """Its checkpoint says 400: what consumers committed behind that it has not looked at."""

    async def scenario() -> None:
        store = Store()
        store.write(bytes(500))
        store.confirm_offset = confirmed
        leadership = leader(tmp_path, store, register_of(2, 1, 0, 1))
        async with running(leadership):
            await eventually(lambda: leadership.role.is_acting, what="the begin of epoch 2")
            assert leadership.is_current is is_current

    asyncio.run(scenario())


def test_a_membership_that_could_not_be_noted_is_told_and_noted_later_also_by_a_master(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker died between making the register and noting who governs it."""

    async def scenario() -> None:
        leadership = leader(tmp_path, Store(), register_of(2, 1, 0, 1))
        membership = leadership.membership
        membership.held, hold = Membership(), membership.hold
        failures = [OSError(28, "No space left on device"), ValueError("a defect")]

        def full_at_first(coordinator: str, broker_id: int) -> None:
            if failures:
                raise failures.pop(0)
            hold(coordinator, broker_id)

        membership.hold = full_at_first
        async with running(leadership):
            await eventually(lambda: membership.is_known, what="the membership of an acting master")
            assert leadership.role.is_master
        assert MembershipFile(tmp_path).held.coordinator == COORDINATOR

    asyncio.run(scenario())
    assert "No space left on device" in caplog.text
    assert "reading the register failed" in caplog.text


def test_a_boot_that_cannot_be_noted_is_told_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    failures = [OSError(28, "No space left on device")] * 2

    def note_boot() -> None:
        if failures:
            raise failures.pop()

    async def scenario() -> None:
        log, copy = MemoryLog(), Store()
        master = new_master(log, CONFIG, epoch=1, members=frozenset((0, 1)), needed=2)
        async with serving(master):
            leadership = leader(tmp_path, copy, register_of(1, 0, 0, 1), master_address=master.address)
            leadership.membership.note_boot = note_boot
            async with running(leadership):
                await eventually(lambda: not failures, what="the second failure")
                await eventually(lambda: leadership._own.is_level, what="it follows")
                assert leadership._hears_master()

    asyncio.run(scenario())
    assert "No space left on device" in caplog.text
