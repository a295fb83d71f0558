"""Asking another shard what it has decided: brokers talk to each other only here and in replication."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
import grpc.aio

from penstock.proto.errors import BrokerUnavailable, from_rpc_error
from penstock.proto.wire import common_pb2, nameserver_pb2, pipeline_pb2
from penstock.proto.wire.nameserver_pb2_grpc import NameserverStub
from penstock.proto.wire.pipeline_pb2_grpc import StagingStub
from penstock.runtime.channel import open_async_channel
from penstock.runtime.security.credentials import Security

from .staging_table import Keys

TIMEOUT_S: Final = 3.0

_nameserver: Callable[[grpc.aio.Channel], Any] = NameserverStub
_staging: Callable[[grpc.aio.Channel], Any] = StagingStub


class Coordinators:
    """Finds the master of a broker group and asks it; channels live as long as the call, which is rare."""

    def __init__(self, nameservers: Sequence[str], security: Security) -> None:
        self._nameservers = list(nameservers)
        self._security = security

    async def ask(self, coordinator: str, writer: str, batch: int, keys: list[str]) -> Keys:
        """What ``coordinator`` has decided. Raises BrokerUnavailable: nobody can be asked now; or what it answers."""
        address = await self._master_of(coordinator)
        async with open_async_channel(address, self._security) as channel:
            request = pipeline_pb2.StagedKeys(writer=writer, batch=batch, keys=keys)
            try:
                reply: pipeline_pb2.ExpireReply = await _staging(channel).Expire(request, timeout=TIMEOUT_S)
            except grpc.RpcError as error:
                raise from_rpc_error(error, f"broker {address}") from error
        return {each.key: dict(each.chunks) for each in reply.decided}

    async def _master_of(self, broker_name: str) -> str:
        failure = "no nameserver is configured"
        for nameserver in self._nameservers:
            async with open_async_channel(nameserver, self._security) as channel:
                try:
                    view: nameserver_pb2.ClusterView = await _nameserver(channel).QueryCluster(
                        common_pb2.Empty(), timeout=TIMEOUT_S
                    )
                except grpc.RpcError as error:
                    failure = from_rpc_error(error, f"nameserver {nameserver}").message
                    continue
            for shard in view.shards:
                for member in shard.members:
                    if shard.broker_name == broker_name and member.role == common_pb2.MASTER:
                        return member.address
            failure = f"nameserver {nameserver} knows no living master of it"
        raise BrokerUnavailable(f"broker group {broker_name}: {failure}")
