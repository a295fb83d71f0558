"""A broker asks for its group's register over TLS, with a certificate that is replaced while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.broker.group.registers import Registers
from penstock.nameserver.config import load_nameserver_config
from penstock.nameserver.server import serving
from penstock.proto.errors import CoordinatorUnavailable, KeyNotFound
from penstock.proto.wire.common_pb2 import BrokerIdentity
from penstock.runtime.security.credentials import Security
from tests.support.cluster.certificates import Authority, put
from tests.support.loops import in_own_loop


@in_own_loop
async def test_an_expired_certificate_that_was_replaced_is_used_without_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    server, broker = authority.issue("server"), authority.issue("broker", expired=True)
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
    async with serving(load_nameserver_config(path)) as address:
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
