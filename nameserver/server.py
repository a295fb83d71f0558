"""The nameserver's process: start, serve, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from penstock.proto.channel import keep_large_buffers, new_server
from penstock.proto.clock import Clock, SystemClock
from penstock.proto.conf import log_effective
from penstock.proto.errors import ConfigError, PenstockError
from penstock.proto.listening import listen
from penstock.proto.process import log_to_stderr, raise_open_files
from penstock.proto.wire.nameserver_pb2_grpc import add_NameserverServicer_to_server

from .config import NameserverConfig, load_nameserver_config
from .key_values import KeyValues
from .routes import RouteTable
from .service import NameserverService

log = logging.getLogger(__name__)

STOP_GRACE_S = 0.3


@contextlib.asynccontextmanager
async def serving(config: NameserverConfig, *, clock: Clock | None = None) -> AsyncIterator[str]:
    """A running nameserver for the length of the ``with`` block; gives its ``host:port``.

    Raises:
        ConfigError: the port cannot be opened, or nothing could be written at ``kvConfigPath``.
        Corrupt, StorageError: the key-value file is damaged or cannot be read.
    """
    service = NameserverService(RouteTable(), KeyValues.open(config.kv_config_path), clock or SystemClock())
    server = new_server()
    add_NameserverServicer_to_server(service, server)  # type: ignore[no-untyped-call]  # generated code
    port = listen(server, config.bind_address, config.listen_port, "listenPort")
    host = f"[{config.bind_address}]" if ":" in config.bind_address else config.bind_address
    await server.start()
    try:
        async with asyncio.TaskGroup() as tasks:
            sweeper = tasks.create_task(service.sweep_forever())
            yield f"{host}:{port}"
            sweeper.cancel()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None  # the block's own error, or the sweeper's
    finally:
        service.close()
        await server.stop(STOP_GRACE_S)


async def serve_until_signalled(config: NameserverConfig) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serving(config) as address:
        log.info("nameserver ready address=%s", address)
        await stop.wait()
        log.info("nameserver stopping address=%s", address)
    log.info("nameserver stopped address=%s", address)


def run(config_path: str | Path | None) -> int:
    """Run a nameserver in the foreground; returns the exit code: 0 stopped, 1 failed, 2 bad configuration."""
    log_to_stderr()
    raise_open_files()
    keep_large_buffers()
    try:
        config = NameserverConfig() if config_path is None else load_nameserver_config(config_path)
        log_effective(config, config_path or "defaults")
        asyncio.run(serve_until_signalled(config))
    except ConfigError as error:
        log.error("nameserver not started error=%s", error)
        return 2
    except PenstockError as error:
        log.error("nameserver failed error=%s", error)
        return 1
    return 0
