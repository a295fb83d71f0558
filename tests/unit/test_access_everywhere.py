"""Every method of every server is behind the door: found by reflection, so that a new one cannot be forgotten."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from penstock.nameserver.config import load_nameserver_config
from penstock.nameserver.server import serving as serving_nameserver
from penstock.proto.data_frames import Method
from penstock.proto.errors import Forbidden, InvalidArgument, PenstockError, Unauthorized, from_rpc_error
from penstock.proto.wire import broker_pb2, coordination_pb2, data_pb2, nameserver_pb2, pipeline_pb2
from penstock.runtime.channel import open_async_channel
from penstock.runtime.security.access import INNER_METHODS
from penstock.runtime.security.credentials import PLAIN, Credentials, Security
from penstock.runtime.security.signatures import signed
from tests.support.broker.requests import batch
from tests.support.broker.running_broker import running
from tests.support.client.refusals import with_the_servers_word
from tests.support.cluster.certificates import put
from tests.support.data import connected
from tests.support.loops import in_own_loop

BROKERS = [
    *data_pb2.DESCRIPTOR.services_by_name.values(),
    *broker_pb2.DESCRIPTOR.services_by_name.values(),
    *pipeline_pb2.DESCRIPTOR.services_by_name.values(),
]
NAMESERVERS = [
    *nameserver_pb2.DESCRIPTOR.services_by_name.values(),
    *coordination_pb2.DESCRIPTOR.services_by_name.values(),
]
USER = Credentials("loader", "s-1")


def methods(services: list[object]) -> list[str]:
    return [f"/{service.full_name}/{method.name}" for service in services for method in service.methods]  # type: ignore[attr-defined]


def secured(directory: Path) -> dict[str, object]:
    """Settings of a server that knows one user."""
    return {
        "authenticationEnabled": "true",
        "authConfigPath": put(directory / "users", f"{USER.access_key} = {USER.secret_key}\n"),
        "innerClientAuthenticationCredentials": '{"accessKey":"cluster","secretKey":"s-0"}',
    }


async def refusal(address: str, method: str, security: Security) -> PenstockError:
    """The error of a call without a request that would mean anything."""
    async with open_async_channel(address, security) as channel:

        async def call() -> None:
            async for _ in channel.stream_stream(method)(iter([b""]), timeout=20):
                break

        try:
            await with_the_servers_word(call)
        except grpc.RpcError as error:
            return from_rpc_error(error, address)
    raise AssertionError(f"{method} was carried out")


async def assert_closed(address: str, names: list[str]) -> None:
    for method in names:
        assert type(await refusal(address, method, PLAIN)) is Unauthorized, method
        wrong = Security(credentials=Credentials("loader", "s-2"))
        assert type(await refusal(address, method, wrong)) is Unauthorized, method
        if method.startswith(INNER_METHODS):
            assert type(await refusal(address, method, Security(credentials=USER))) is Forbidden, method


@in_own_loop
async def test_a_broker_carries_out_nothing_for_strangers(tmp_path: Path) -> None:
    names = methods(BROKERS)
    assert len(names) > 25
    async with running(tmp_path, **secured(tmp_path)) as (broker, _):
        await assert_closed(broker.address, names)
        for signature in ((), signed(Credentials("loader", "s-2"), int(time.time()))):
            with pytest.raises(Unauthorized):
                async with connected("127.0.0.1", broker.data.number, dict(signature)):
                    raise AssertionError("the data port is open")
        async with connected("127.0.0.1", broker.data.number, dict(signed(USER, int(time.time())))) as connection:
            await connection.ask(Method.PING)
            for _ in range(2):
                with pytest.raises(Forbidden, match="only brokers and nameservers may"):
                    await connection.ask(Method.REPLICATE, b"")
        async with connected("127.0.0.1", broker.data.number, greets=False) as connection:
            with pytest.raises(InvalidArgument, match="begins with a hello"):
                await connection.ask(Method.APPEND, batch())


@contextlib.asynccontextmanager
async def nameserver(directory: Path) -> AsyncIterator[str]:
    settings = {
        "listenPort": 0,
        "bindAddress": "127.0.0.1",
        "kvConfigPath": directory / "kv.json",
        **secured(directory),
    }
    settings |= {"enableControllerInNamesrv": "true", "controllerStorePath": directory / "controller.json"}
    path = put(directory / "namesrv.conf", "".join(f"{key} = {value}\n" for key, value in settings.items()))
    async with serving_nameserver(load_nameserver_config(path)) as address:
        yield address


@in_own_loop
async def test_a_nameserver_carries_out_nothing_for_strangers(tmp_path: Path) -> None:
    names = methods(NAMESERVERS)
    assert len(names) > 10
    async with nameserver(tmp_path) as address:
        port = address.rpartition(":")[2]
        assert port
        await assert_closed(f"127.0.0.1:{port}", names)


def test_the_methods_of_the_cluster_are_those_that_only_brokers_call() -> None:
    names = methods(NAMESERVERS) + methods(BROKERS)
    names += [f"/penstock.v1.BrokerData/{method.name}" for method in Method]
    inner = sorted(name.removeprefix("/penstock.v1.") for name in names if name.startswith(INNER_METHODS))
    assert inner == [
        "BrokerData/REPLICATE",
        "Coordination/ChangeSyncStateSet",
        "Coordination/CreateRegister",
        "Coordination/HandOver",
        "Coordination/ReadRegister",
        "Nameserver/BrokerSession",
    ]
