"""The nameserver's process: start, serve, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from penstock.proto.errors import ConfigError, PenstockError
from penstock.proto.wire import coordination_pb2, nameserver_pb2
from penstock.runtime.channel import add_service, new_server
from penstock.runtime.clock import Clock, SystemClock
from penstock.runtime.conf import log_effective
from penstock.runtime.listening import listen
from penstock.runtime.memory import give_back_unused, keep_large_buffers
from penstock.runtime.process import log_to_stderr, raise_open_files
from penstock.runtime.security.access import Doorkeeper

from .config import CoordinatorType, NameserverConfig, load_nameserver_config
from .election.coordination import Coordination, NoCoordination
from .election.coordinator import CoordinatorFile, CoordinatorStore
from .election.etcd import EtcdStore
from .key_values import KeyValues
from .routes import TOPICS_PER_BROKER_MAX, RouteTable
from .service import NameserverService

log = logging.getLogger(__name__)

STOP_GRACE_S = 0.3
REPORT_FIELDS_MAX = 8 * TOPICS_PER_BROKER_MAX
"""Of one request: a broker's registration names all of its topics."""


@contextlib.asynccontextmanager
async def serving(config: NameserverConfig, *, clock: Clock | None = None) -> AsyncIterator[str]:
    """A running nameserver for the length of the ``with`` block; gives its ``host:port``.

    Raises:
        ConfigError: the port cannot be opened, or nothing could be written at ``kvConfigPath``.
        Corrupt, StorageError: the key-value file, or the coordinator's, is damaged or cannot be read.
    """
    clock = clock or SystemClock()
    key_values = KeyValues.open(config.kv_config_path)
    store = _coordinator_store(config)
    coordination = None
    if store is not None:
        coordination = Coordination(store, clock, unclean_allowed=config.elects_unclean)
    service = NameserverService(RouteTable(), key_values, clock, coordination)
    access = config.security.access()
    server = new_server([] if access is None else [Doorkeeper(access)])
    add_service(server, nameserver_pb2.DESCRIPTOR.services_by_name["Nameserver"], service, REPORT_FIELDS_MAX)
    coordinator = coordination or NoCoordination()
    add_service(server, coordination_pb2.DESCRIPTOR.services_by_name["Coordination"], coordinator)
    tls = config.security.transport.server_tls()
    port = listen(server, config.bind_address, config.listen_port, "listenPort", tls)
    host = f"[{config.bind_address}]" if ":" in config.bind_address else config.bind_address
    await server.start()
    try:
        async with access.following() if access is not None else contextlib.nullcontext(), asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(service.sweep_forever())]
            if coordination is not None:
                running.append(tasks.create_task(coordination.run()))
            yield f"{host}:{port}"
            for task in running:
                task.cancel()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None  # the block's own error, or a task's
    finally:
        service.close()
        await server.stop(STOP_GRACE_S)
        if store is not None:
            await store.close()


def _coordinator_store(config: NameserverConfig) -> CoordinatorStore | None:
    if not config.has_coordinator:
        return None
    if config.coordinator_type is CoordinatorType.ETCD:
        return EtcdStore(config.etcd_endpoints)
    return CoordinatorFile.open(config.coordinator_path)


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


def run(config_path: str | Path | None, ignore_unsupported: Collection[str] = ()) -> int:
    """Run a nameserver in the foreground; returns the exit code: 0 stopped, 1 failed, 2 bad configuration."""
    log_to_stderr()
    raise_open_files()
    keep_large_buffers()
    give_back_unused()
    try:
        config = NameserverConfig() if config_path is None else load_nameserver_config(config_path, ignore_unsupported)
        log_effective(config, config_path or "defaults")
        asyncio.run(serve_until_signalled(config))
    except ConfigError as error:
        log.error("nameserver not started error=%s", error)
        return 2
    except PenstockError as error:
        log.error("nameserver failed error=%s", error)
        return 1
    return 0
