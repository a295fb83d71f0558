"""Ports with TLS: who is let in, what the others are told, and certificates that are replaced under way."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.proto.errors import BrokerUnavailable, from_rpc_error
from penstock.runtime.channel import new_server, open_async_channel, open_channel
from penstock.runtime.listening import listen
from penstock.runtime.security import certificates
from penstock.runtime.security.certificates import CertificateFiles, ServerTls
from penstock.runtime.security.credentials import PLAIN, Security, Tls
from tests.support.cluster.certificates import LONG_AGO, Authority, Pair, put
from tests.support.loops import in_own_loop

METHOD = "/penstock.test.Echo/Echo"


@contextlib.asynccontextmanager
async def port(tls: ServerTls | None) -> AsyncIterator[int]:
    """A port that says everything back."""

    async def echo(request: bytes, context: Any) -> bytes:
        return request

    server = new_server()
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("penstock.test.Echo", handlers),))
    found = listen(server, "127.0.0.1", 0, "listenPort", tls)
    await server.start()
    try:
        yield found
    finally:
        await server.stop(None)


async def said(to: int, tls: Tls | None, host: str = "127.0.0.1") -> str:
    """What a call over a connection of its own brings: ``ok``, or the error's words."""
    async with open_async_channel(f"{host}:{to}", Security(tls=tls)) as channel:
        try:
            assert await channel.unary_unary(METHOD)(b"word", timeout=10) == b"word"
        except grpc.RpcError as error:
            problem = from_rpc_error(error, "broker")
            assert isinstance(problem, BrokerUnavailable)
            return problem.message
    return "ok"


def server_tls(pair: Pair, client_ca: Path | None = None) -> ServerTls:
    return ServerTls(cert_file=pair.cert, key_file=pair.key, client_ca_file=client_ca)


@in_own_loop
async def test_who_trusts_the_authority_is_served(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with port(server_tls(authority.issue("broker"))) as number:
        assert await said(number, authority.tls()) == "ok"
        assert await said(number, authority.tls(), "localhost") == "ok"


@in_own_loop
async def test_a_plain_client_is_told_that_the_port_may_demand_tls(tmp_path: Path) -> None:
    async with port(server_tls(Authority(tmp_path).issue("broker"))) as number:
        assert "it may demand TLS" in await said(number, None)


@in_own_loop
async def test_a_client_with_tls_is_told_that_the_port_has_none(tmp_path: Path) -> None:
    async with port(None) as number:
        assert "the port has no TLS" in await said(number, Authority(tmp_path).tls())


@in_own_loop
async def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    async with port(server_tls(Authority(tmp_path / "a").issue("broker"))) as number:
        message = await said(number, Authority(tmp_path / "b").tls())
    assert "the server's certificate is not accepted" in message
    assert "unable to get local issuer" in message


@in_own_loop
async def test_an_expired_certificate_is_refused_and_its_owner_warned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("broker", ends=LONG_AGO)
    async with port(server_tls(pair)) as number:
        message = await said(number, authority.tls())
    assert "certificate has expired" in message
    (warning,) = [record.getMessage() for record in caplog.records if "is not valid now" in record.getMessage()]
    assert f"path={pair.cert}" in warning


@pytest.mark.parametrize(("again_s", "count"), [(certificates.WARN_AGAIN_S, 1), (0.0, 3)])
def test_a_certificate_that_ends_soon_is_a_warning_when_it_is_read_and_every_day(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, again_s: float, count: int
) -> None:
    monkeypatch.setattr(certificates, "WARN_AGAIN_S", again_s)
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=13)
    pair = Authority(tmp_path).issue("broker", ends=soon)
    used = CertificateFiles(None, *pair)
    assert used.current() is used.current()
    told = [record.getMessage() for record in caplog.records if "less than two weeks" in record.getMessage()]
    assert len(told) == count
    assert f"path={pair.cert}" in told[0]


@in_own_loop
async def test_a_certificate_for_another_host_is_refused_unless_its_name_is_expected(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with port(server_tls(authority.issue("broker", "broker.example"))) as number:
        assert "certificate is for another host name" in await said(number, authority.tls())
        assert "certificate is for another host name" in await said(number, authority.tls(server_name="x.example"))
        assert await said(number, authority.tls(server_name="broker.example")) == "ok"


@in_own_loop
async def test_a_server_that_demands_certificates_lets_in_nobody_without_one(tmp_path: Path) -> None:
    ours, others = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    async with port(server_tls(ours.issue("broker"), ours.file)) as number:
        assert await said(number, ours.tls(ours.issue("client", "client"))) == "ok"
        assert "or a client's certificate" in await said(number, ours.tls())
        assert "or a client's certificate" in await said(number, ours.tls(others.issue("client", "client")))
        expired = ours.issue("expired", "client", ends=LONG_AGO)
        assert "or a client's certificate" in await said(number, ours.tls(expired))


@in_own_loop
async def test_tls_before_1_2_is_refused(tmp_path: Path) -> None:
    async with port(server_tls(Authority(tmp_path).issue("broker"))) as number:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        assert _handshake(number, context) in ("TLSv1.2", "TLSv1.3")
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            context.minimum_version = ssl.TLSVersion.TLSv1
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(OSError, match=r"EOF|alert|reset"):
            _handshake(number, context)


def _handshake(number: int, context: ssl.SSLContext) -> str | None:
    with socket.create_connection(("127.0.0.1", number), 5) as plain, context.wrap_socket(plain) as secured:
        return secured.version()


@in_own_loop
async def test_the_next_connection_sees_a_replaced_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with port(server_tls(authority.issue("broker", ends=LONG_AGO))) as number:
        assert "expired" in await said(number, authority.tls())
        authority.issue("broker")
        assert await said(number, authority.tls()) == "ok"
        authority.issue("broker", "broker.example")
        assert "another host name" in await said(number, authority.tls())


@in_own_loop
async def test_a_connection_outlives_the_replacement_of_its_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with (
        port(server_tls(authority.issue("broker"))) as number,
        open_async_channel(f"127.0.0.1:{number}", Security(tls=authority.tls())) as channel,
    ):
        assert await channel.unary_unary(METHOD)(b"a", timeout=10) == b"a"
        authority.issue("broker", ends=LONG_AGO)
        assert "expired" in await said(number, authority.tls())
        assert await channel.unary_unary(METHOD)(b"b", timeout=10) == b"b"


@in_own_loop
async def test_half_a_replacement_changes_nothing_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path)
    pair, other = authority.issue("broker"), authority.issue("other")
    async with port(server_tls(pair)) as number:
        os.replace(other.cert, pair.cert)
        with caplog.at_level(logging.WARNING):
            assert await said(number, authority.tls()) == "ok"
        assert "certificates not taken over" in caplog.text
        assert "is not the key of the certificate" in caplog.text
        os.replace(other.key, pair.key)
        pair.cert.unlink()
        assert await said(number, authority.tls()) == "ok"


@in_own_loop
async def test_an_authority_that_was_replaced_lets_in_nobody_of_the_former_one(tmp_path: Path) -> None:
    ours, next_one = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    tls = ours.tls(ours.issue("client", "client"))
    clients_from = put(tmp_path / "clients.pem", ours.file.read_bytes())
    async with port(server_tls(ours.issue("broker"), clients_from)) as number:
        assert await said(number, tls) == "ok"
        put(clients_from, next_one.file.read_bytes())
        assert "a client's certificate" in await said(number, tls)


@in_own_loop
async def test_a_client_reads_its_certificate_anew_for_the_next_connection(tmp_path: Path) -> None:
    ours = Authority(tmp_path)
    tls = ours.tls(ours.issue("client", "client", ends=LONG_AGO))
    async with port(server_tls(ours.issue("broker"), ours.file)) as number:
        assert "a client's certificate" in await said(number, tls)
        ours.issue("client", "client")
        assert await said(number, tls) == "ok"


@in_own_loop
async def test_threads_have_the_same_channels(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def call(number: int, security: Security) -> Any:
        with open_channel(f"127.0.0.1:{number}", security) as channel:
            try:
                return channel.unary_unary(METHOD)(b"word", timeout=10)
            except grpc.RpcError as error:
                return from_rpc_error(error, "broker").message

    async with port(server_tls(authority.issue("broker"))) as number:
        assert await asyncio.to_thread(call, number, Security(tls=authority.tls())) == b"word"
        assert "it may demand TLS" in await asyncio.to_thread(call, number, PLAIN)
