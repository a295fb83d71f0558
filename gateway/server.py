"""The gateway's process: start, serve, stop."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.client.cluster import local_host, parse_addresses
from penstock.formats.intrinsics.warmup import compile_kernels
from penstock.proto.errors import ConfigError, PenstockError
from penstock.runtime.channel import new_server
from penstock.runtime.conf import log_effective
from penstock.runtime.listening import listen
from penstock.runtime.memory import give_back_unused, keep_large_buffers
from penstock.runtime.process import log_to_stderr, raise_open_files
from penstock.runtime.security.certificates import ServerTls

from . import front
from .config import GatewayConfig, load_gateway_config

if TYPE_CHECKING:
    from .v2.routes import Routes  # loads the kernels

log = logging.getLogger(__name__)

STOP_GRACE_S = 0.3
KEEPALIVE_TIME_MS: Final = 10_000
"""A connection that is silent for so long is asked whether it lives: clients send a heartbeat as often. Every second,
as brokers ask, it would cost the gateway of a thousand idle clients a twelfth of a core."""
KEEPALIVE_TIMEOUT_MS: Final = 20_000
"""A connection whose client answers no ping for so long is over: gRPC's own default. Clients are other people's
programs, and pause for their collector of garbage, or for a loop at work; behind the port for both, answers wait for
this process's loop, too."""


class Addresses(NamedTuple):
    """Where a gateway listens: ``host:port``; ``tls``: empty without TLS beside plain; one port may take both."""

    address: str
    tls: str = ""


@contextlib.asynccontextmanager
async def serving(config: GatewayConfig) -> AsyncIterator[Addresses]:
    """A running gateway for the length of the ``with`` block.

    Raises:
        ConfigError: a port cannot be opened, or a file is wrong.
    """
    from .v2.port import opened  # loads the kernels

    access = config.security.access()
    host = config.host or _reachable(config)
    shown = f"[{config.bind_address}]" if ":" in config.bind_address else config.bind_address
    second = config.second_tls()
    async with (
        access.following() if access is not None else contextlib.nullcontext(),
        opened(config.nameservers, config.security.outgoing(), access) as port,
        contextlib.AsyncExitStack() as stack,
    ):

        async def served(
            address: str,
            number: int,
            name: str,
            tls: ServerTls | None,
        ) -> Routes:
            server = new_server(keepalive_time_ms=KEEPALIVE_TIME_MS, keepalive_timeout_ms=KEEPALIVE_TIMEOUT_MS)
            routes = port.serve_at(server, host)
            routes.port = listen(server, address, number, name, tls)
            await server.start()
            stack.push_async_callback(server.stop, STOP_GRACE_S)
            return routes

        if config.is_one_port:
            both = [await served(front.INSIDE, 0, "listenPort", tls) for tls in (None, second)]
            plain, over_tls = both
            outside = front.Front(plain.port, over_tls.port, port.hosts)
            stack.push_async_callback(outside.close)
            number = await outside.listen(config.bind_address, config.listen_port, "listenPort")
            for each in both:
                each.port = number
        else:
            transport = config.security.transport.server_tls()
            both = [await served(config.bind_address, config.listen_port, "listenPort", transport)]
            if second is not None:
                both.append(await served(config.bind_address, config.tls_port, "tlsListenPort", second))
        yield Addresses(*(f"{shown}:{each.port}" for each in both))


def _reachable(config: GatewayConfig) -> str:
    if not ipaddress.ip_address(config.bind_address).is_unspecified:
        return config.bind_address
    return str(ipaddress.ip_address(local_host(parse_addresses(config.nameservers)[0]).ip))


async def serve_until_signalled(config: GatewayConfig) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serving(config) as where:
        log.info("gateway ready address=%s tls=%s", where.address, where.tls or "none")
        await stop.wait()
        log.info("gateway stopping address=%s", where.address)
    log.info("gateway stopped address=%s", where.address)


def run(config_path: str | Path | None, ignore_unsupported: Collection[str] = ()) -> int:
    """Run a gateway in the foreground; returns the exit code: 0 stopped, 1 failed, 2 bad configuration."""
    log_to_stderr()
    raise_open_files()
    keep_large_buffers()
    try:
        config = GatewayConfig() if config_path is None else load_gateway_config(config_path, ignore_unsupported)
        log_effective(config, config_path or "defaults")
        compile_kernels(lambda *_: None, [])
        give_back_unused()
        asyncio.run(serve_until_signalled(config))
    except ConfigError as error:
        log.error("gateway not started error=%s", error)
        return 2
    except PenstockError as error:
        log.error("gateway failed error=%s", error)
        return 1
    return 0
