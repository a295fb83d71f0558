"""The gateway's process: start, serve, stop."""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator, Collection, Coroutine
from pathlib import Path
from typing import Any

from penstock.client.cluster import local_host, parse_addresses
from penstock.formats.intrinsics.warmup import compile_kernels
from penstock.runtime.conf import log_effective
from penstock.runtime.listening import join_address
from penstock.runtime.memory import give_back_unused
from penstock.runtime.process import run_server, serve_until_signalled
from penstock.runtime.security.settings import TlsServerMode

from .config import GatewayConfig, load_gateway_config
from .http2.server import PROTOCOLS, Server

STOP_GRACE_S = 0.3
TLS_BUFFER_BYTES = 32 << 10
"""Of each connection, however idle: asyncio's own 256 KiB would be 5 GiB of all that may be open."""


@contextlib.asynccontextmanager
async def serving(config: GatewayConfig, key: str = "listenPort") -> AsyncIterator[str]:
    """A running gateway for the length of the ``with`` block, and where it listens: ``host:port``.

    ``key``: the setting that says at which port, for errors.

    Raises:
        ConfigError: a port cannot be opened, or a file is wrong.
    """
    from .v2.port import opened  # loads the kernels

    access = config.security.access()
    host = config.host or _reachable(config)
    async with (
        access.following() if access is not None else contextlib.nullcontext(),
        opened(config.nameservers, config.security.outgoing(), access) as port,
    ):
        server = Server()
        is_plain = not config.security.transport.is_on
        number = server.listen(config.bind_address, config.listen_port, key, _tls(config, host), is_plain)
        server.start(port.methods(host, number))
        try:
            yield join_address(config.bind_address, number)
        finally:
            await server.stop(STOP_GRACE_S)


def _tls(config: GatewayConfig, host: str) -> ssl.SSLContext | None:
    transport = config.security.transport
    tls = transport.server_tls()
    if tls is not None:
        return tls.context(PROTOCOLS)
    if transport.mode is TlsServerMode.disabled:
        return None
    from penstock.runtime.security.self_signed import self_signed_context  # 12 MiB that others need not have

    return self_signed_context(("localhost", host), PROTOCOLS)


def _reachable(config: GatewayConfig) -> str:
    if not ipaddress.ip_address(config.bind_address).is_unspecified:
        return config.bind_address
    return str(ipaddress.ip_address(local_host(parse_addresses(config.nameservers)[0]).ip))


def run(config_path: str | Path | None, ignore_unsupported: Collection[str] = ()) -> int:
    """Run a gateway in the foreground; the exit code as of :func:`run_server`."""

    def prepared() -> Coroutine[Any, Any, None]:
        config = GatewayConfig() if config_path is None else load_gateway_config(config_path, ignore_unsupported)
        log_effective(config, config_path or "defaults")
        SSLProtocol.max_size = TLS_BUFFER_BYTES
        compile_kernels()
        give_back_unused()
        return serve_until_signalled("gateway", serving(config))

    return run_server("gateway", prepared)
