"""A broker asks for its group's register over TLS: with a certificate that is replaced meanwhile, and from afar."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from penstock.broker.group.registers import Registers
from penstock.nameserver.config import NameserverConfig, load_nameserver_config
from penstock.nameserver.server import serving
from penstock.proto.errors import CoordinatorUnavailable, KeyNotFound
from penstock.proto.wire.common_pb2 import BrokerIdentity
from penstock.runtime.security.credentials import Security
from tests.support.cluster.certificates import Authority, Pair, put
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
    server, broker = authority.issue("server"), authority.issue("broker", expired=True)
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
