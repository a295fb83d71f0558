"""The register of the broker's group, asked of whichever nameserver has it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import grpc

from penstock.proto.errors import (
    BrokerUnavailable,
    CoordinatorUnavailable,
    OutcomeUnknown,
    PenstockError,
    from_rpc_error,
)
from penstock.proto.register import Register, register_of_wire
from penstock.proto.wire import common_pb2, coordination_pb2
from penstock.proto.wire.coordination_pb2_grpc import CoordinationStub
from penstock.runtime.channel import CONNECT_TIMEOUT_MS, HASTY_CONNECT_TIMEOUT_MS, has_connected, open_async_channel
from penstock.runtime.security.credentials import PLAIN, Security

TIMEOUT_S = 0.5

Answer = tuple[Register, str]
"""The register, and the id of the coordinator store that it is from."""


class Registers:
    """Calls to the nameservers of one broker; event loop only. The one that answered last is asked first.

    Every method raises:
        CoordinatorUnavailable: no nameserver has an answer; a change may have been made all the same.
        KeyNotFound: the group has no register.
        NotMaster, StaleRegister, InvalidArgument, WrongCluster: the change is refused; nothing was changed.
    """

    def __init__(
        self, addresses: Sequence[str], identity: common_pb2.BrokerIdentity, security: Security = PLAIN
    ) -> None:
        self._identity = identity
        self._security = security
        self._addresses = list(addresses)
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._patience_ms: dict[str, int] = {}  # how long the next attempt to connect to an address may take

    async def read(self) -> Answer:
        """The register as it is at some moment during the call."""
        query = coordination_pb2.RegisterQuery(identity=self._identity)
        return await self._asked(lambda stub: stub.ReadRegister(query, timeout=TIMEOUT_S), repeat=True)

    async def create(self, epoch: int) -> Answer:
        """Make it for a group that has none; ``epoch`` is the newest that the log knows."""
        creation = coordination_pb2.RegisterCreation(identity=self._identity, epoch=epoch)
        return await self._asked(lambda stub: stub.CreateRegister(creation, timeout=TIMEOUT_S), repeat=True)

    async def change_set(self, known: Register, members: Iterable[int]) -> Answer:
        """As the master of ``known``, replace its sync-state set."""
        change = coordination_pb2.SyncStateSetChange(
            identity=self._identity, epoch=known.epoch, version=known.version, sync_state_set=sorted(members)
        )
        return await self._asked(lambda stub: stub.ChangeSyncStateSet(change, timeout=TIMEOUT_S), repeat=False)

    async def hand_over(self, known: Register, to_id: int) -> Answer:
        """As the former master of ``known``, which acts no more, make ``to_id`` master."""
        change = coordination_pb2.MasterHandOver(
            identity=self._identity, epoch=known.epoch, version=known.version, to_broker_id=to_id
        )
        return await self._asked(lambda stub: stub.HandOver(change, timeout=TIMEOUT_S), repeat=False)

    async def close(self) -> None:
        """Close the connections."""
        for channel in list(self._channels.values()):
            await channel.close(None)
        self._channels.clear()

    async def _asked(self, call: Callable[[Any], Awaitable[coordination_pb2.Register]], *, repeat: bool) -> Answer:
        """One nameserver's answer. A change is not sent again after a nameserver that may have made it."""
        said = "no nameserver is configured"
        for address in list(self._addresses):
            channel = self._channels.get(address)
            if channel is None:
                patience_ms = self._patience_ms.setdefault(address, HASTY_CONNECT_TIMEOUT_MS)
                channel = open_async_channel(address, self._security, connect_timeout_ms=patience_ms)
                self._channels[address] = channel
            is_reached = repeat or await has_connected(channel, TIMEOUT_S)
            try:
                if not is_reached:
                    raise BrokerUnavailable(f"{address}: no connection")
                async with asyncio.timeout(2 * TIMEOUT_S):
                    message = await call(CoordinationStub(channel))  # type: ignore[no-untyped-call]
                answer = register_of_wire(message), message.coordinator
                if answer[0].broker_name != self._identity.broker_name:
                    raise ValueError(f"it is {answer[0].broker_name}'s")
                return answer
            except grpc.RpcError as error:
                problem: PenstockError = from_rpc_error(error, address)
                if not isinstance(problem, (CoordinatorUnavailable, BrokerUnavailable, OutcomeUnknown)):
                    raise problem from None
            except BrokerUnavailable as error:
                problem = error
            except TimeoutError:
                problem = CoordinatorUnavailable(f"{address}: no answer within {2 * TIMEOUT_S} s")
            except ValueError as error:
                problem = CoordinatorUnavailable(f"{address}: answered what is no register: {error}")
            said = problem.message
            is_patient = self._patience_ms[address] >= CONNECT_TIMEOUT_MS
            has_failed = channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE
            if has_failed and (self._security.tls is not None or not is_patient):
                # The next call opens another, with the certificates as they are then, and more patience: the peer may
                # be far away. Not closed, since that would cancel the calls of others that wait on it.
                self._channels.pop(address, None)
                self._patience_ms[address] = min(2 * self._patience_ms[address], CONNECT_TIMEOUT_MS)
            self._addresses.append(self._addresses.pop(0))
            if is_reached and not repeat and not problem.details.get("none"):
                break
        raise CoordinatorUnavailable(f"the register of {self._identity.broker_name} cannot be had: {said}")
