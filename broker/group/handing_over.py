"""Giving a master's role away as planned: to whom, and when that one has everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from penstock.proto.errors import BrokerUnavailable, InvalidArgument, NotMaster, StaleRegister
from penstock.proto.register import Register
from penstock.proto.wire.broker_pb2 import BrokerStatus
from penstock.replication.master.primary import Primary
from penstock.runtime.clock import Clock

from ..store.store import Store
from .registers import Registers

HAND_OVER_S = 1.0
"""So long the chosen slave may take to get the rest of the log, while sends wait."""
ANSWERS_S = 0.25
"""So long senders may take to read the answers to what is safe; a stuck one holds up nothing for longer."""
_LOOK_S = 0.002


def successor(members: Collection[int], replicas: Collection[BrokerStatus.Replica]) -> int | None:
    """The slave that can take over soonest; None: none can."""
    able = [each for each in replicas if each.in_sync and each.broker_id in members]
    best = min(able, key=lambda each: (each.lag_bytes, each.broker_id), default=None)
    return None if best is None else best.broker_id


def check_successor(
    to_id: int, own_id: int, members: Collection[int], replicas: Collection[BrokerStatus.Replica]
) -> None:
    """Refuse to hand over to one that may lack something. Raises InvalidArgument: says who could take over."""
    in_sync = [each.broker_id for each in replicas if each.in_sync]
    if to_id == own_id:
        raise InvalidArgument(f"broker {to_id} is the master already")
    if to_id not in members or to_id not in in_sync:
        raise InvalidArgument(
            f"broker {to_id} is not in sync: the sync-state set is {sorted(members)}, of its slaves {in_sync} are "
            "connected and level; nothing was changed"
        )


async def await_level(primary: Primary, store: Store, to_id: int, clock: Clock) -> None:
    """Wait until the slave has the whole log, which grows no more, and everything is acknowledged that can be.

    Raises BrokerUnavailable: it does not get there in time.
    """
    end = store.appended_offset
    deadline = clock.monotonic_s() + HAND_OVER_S
    while True:
        slave = next((each for each in primary.replicas() if each.broker_id == to_id), None)
        has = slave.written if slave is not None and slave.connected else -1
        if has >= end == store.appended_offset and primary.confirm_offset >= end:
            return
        end = store.appended_offset
        if clock.monotonic_s() > deadline:
            raise BrokerUnavailable(
                f"broker {to_id} has the log up to {has} of {end} after {HAND_OVER_S:g} s: not switched"
            )
        await asyncio.sleep(_LOOK_S)


async def await_answers(is_answered: Callable[[], bool], clock: Clock) -> None:
    """Wait until the senders of what is acknowledged have their answers, which a slave could not give any more."""
    deadline = clock.monotonic_s() + ANSWERS_S
    while True:
        if is_answered() or clock.monotonic_s() > deadline:
            return
        await asyncio.sleep(_LOOK_S)


async def write_hand_over(
    registers: Registers, known: Register, to_id: int, clock: Clock
) -> tuple[Register, str, float]:
    """Write that ``to_id`` is master in place of this broker, which acts no more: register, coordinator, when asked.

    The register may have another version than is known here, by a change of the set whose answer was lost: nobody
    else can have changed it while the epoch is the same, so it is read again, and tried again.

    Raises:
        NotMaster: another master was elected meanwhile.
        CoordinatorUnavailable: nobody knows whether it was done.
    """
    deadline = clock.monotonic_s() + HAND_OVER_S
    while True:
        asked_at = clock.monotonic_s()
        try:
            return *await registers.hand_over(known, to_id), asked_at
        except StaleRegister:
            if asked_at > deadline:
                raise
            fresh, _ = await registers.read()
            if fresh.epoch != known.epoch:
                raise NotMaster("another master was elected meanwhile") from None
            known = fresh
