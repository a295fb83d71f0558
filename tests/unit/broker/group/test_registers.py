"""A broker asks for its group's register over TLS: with a certificate that is replaced meanwhile, and from afar."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.group.registers import Registers
from penstock.nameserver.config import NameserverConfig, load_nameserver_config
from penstock.nameserver.server import serving
from penstock.proto.errors import CoordinatorUnavailable, KeyNotFound
from penstock.proto.register import Register, new_register
from penstock.proto.wire import coordination_pb2
from penstock.proto.wire.common_pb2 import BrokerIdentity
from penstock.proto.wire.coordination_pb2_grpc import CoordinationServicer, add_CoordinationServicer_to_server
from penstock.runtime.channel import new_server, reporting
from penstock.runtime.security.credentials import Security
from tests.support.cluster.certificates import LONG_AGO, Authority, Pair, put
from tests.support.cluster.distance import FAR_HOST, far_away
from tests.support.loops import in_own_loop


def elector(tmp_path: Path, server: Pair, authority: Authority) -> NameserverConfig:
    """A nameserver that elects, behind TLS on both sides."""
    settings = {
        "listenPort": 0,
        "bindAddress": "127.0.0.1",
        "kvConfigPath": tmp_path / "kv.json",
        "enableControllerInNamesrv": "true",
        "controllerStorePath": tmp_path / "controller.json",
        "tls.server.mode": "enforcing",
        "tls.server.certPath": server.cert,
        "tls.server.keyPath": server.key,
        "tls.server.trustCertPath": authority.file,
        "tls.server.need.client.auth": "require",
    }
    path = put(tmp_path / "namesrv.conf", "".join(f"{key} = {value}\n" for key, value in settings.items()))
    return load_nameserver_config(path)


@in_own_loop
async def test_an_expired_certificate_that_was_replaced_is_used_without_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    server, broker = authority.issue("server"), authority.issue("broker", ends=LONG_AGO)
    async with serving(elector(tmp_path, server, authority)) as address:
        identity = BrokerIdentity(cluster="main", broker_name="broker-a", broker_id=1)
        registers = Registers([address], identity, Security(tls=authority.tls(broker)))
        try:
            # Side by side: none may be cancelled by what another does to the channel that they share.
            answers = await asyncio.gather(*(registers.read() for _ in range(8)), return_exceptions=True)
            assert [type(answer) for answer in answers] == [CoordinatorUnavailable] * 8
            authority.issue("broker")
            with pytest.raises(KeyNotFound):
                await registers.read()
        finally:
            await registers.close()


async def read_at_last(registers: Registers) -> None:
    """Read until somebody answers."""
    while True:
        with contextlib.suppress(CoordinatorUnavailable):
            await registers.read()


@in_own_loop
async def test_a_nameserver_far_away_is_tried_with_more_patience_each_time(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    server, broker = authority.issue("server", "127.0.0.1", FAR_HOST), authority.issue("broker")
    async with serving(elector(tmp_path, server, authority)) as address:
        port = int(address.rpartition(":")[2])
        identity = BrokerIdentity(cluster="main", broker_name="broker-a", broker_id=1)
        with far_away([port], 0.1) as asked:
            registers = Registers([f"{FAR_HOST}:{port}"], identity, Security(tls=authority.tls(broker)))
            try:
                with pytest.raises(KeyNotFound):
                    await read_at_last(registers)
                assert asked[port] > 1, "the first attempts are short, for the sake of elections"
            finally:
                await registers.close()


class Nameserver(CoordinationServicer):
    """Notes each change; then answers, or says that its etcd cannot be reached."""

    def __init__(self, *, has_etcd: bool) -> None:
        self.changes = 0
        self._has_etcd = has_etcd

    @reporting
    async def ChangeSyncStateSet(self, request: Any, context: Any) -> coordination_pb2.Register:
        self.changes += 1
        if not self._has_etcd:
            raise CoordinatorUnavailable("etcd does not answer: 127.0.0.1:2379: failed to connect to all addresses")
        return KNOWN.with_set(0, 1, 1, request.sync_state_set).to_wire("x")


KNOWN = new_register("main", "broker-a", 0, 0)


async def changed(*addresses: str) -> Register:
    registers = Registers(addresses, BrokerIdentity(cluster="main", broker_name="broker-a", broker_id=0))
    try:
        return (await registers.change_set(KNOWN, (0, 1)))[0]
    finally:
        await registers.close()


@contextlib.asynccontextmanager
async def answering(*nameservers: Nameserver) -> AsyncIterator[list[str]]:
    """The addresses under which they answer."""
    servers = [new_server() for _ in nameservers]
    addresses = []
    for nameserver, server in zip(nameservers, servers, strict=True):
        add_CoordinationServicer_to_server(nameserver, server)  # type: ignore[no-untyped-call]  # generated code
        addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
        await server.start()
    try:
        yield addresses
    finally:
        for server in servers:
            await server.stop(0)


@in_own_loop
async def test_a_change_goes_to_the_next_nameserver_only_when_this_one_was_not_reached() -> None:
    """Whatever words its answer has: it may have made the change."""
    first, second = Nameserver(has_etcd=False), Nameserver(has_etcd=True)
    async with answering(first, second) as addresses:
        with pytest.raises(CoordinatorUnavailable, match="failed to connect to all addresses"):
            await changed(*addresses)
        assert (first.changes, second.changes) == (1, 0)
        assert (await changed("127.0.0.1:1", addresses[1])).sync_state_set == {0, 1}
        assert second.changes == 1
