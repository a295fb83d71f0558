"""The nameserver's process: start, serve, stop."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection, Coroutine
from pathlib import Path
from typing import Any

from penstock.proto.wire import coordination_pb2, nameserver_pb2
from penstock.runtime.channel import add_service, new_server
from penstock.runtime.clock import Clock, SystemClock
from penstock.runtime.conf import log_effective
from penstock.runtime.listening import join_address, listen
from penstock.runtime.memory import give_back_unused
from penstock.runtime.process import run_server, serve_until_signalled
from penstock.runtime.security.access import Doorkeeper
from penstock.runtime.turns import tasks_together

from .config import CoordinatorType, NameserverConfig, load_nameserver_config
from .election.coordination import Coordination, NoCoordination
from .election.coordinator import CoordinatorFile, CoordinatorStore
from .election.etcd import EtcdStore
from .key_values import KeyValues
from .routes import TOPICS_PER_BROKER_MAX, RouteTable
from .service import NameserverService

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
    await server.start()
    try:
        async with access.following() if access is not None else contextlib.nullcontext(), tasks_together() as tasks:
            running = [tasks.create_task(service.sweep_forever())]
            if coordination is not None:
                running.append(tasks.create_task(coordination.run()))
            yield join_address(config.bind_address, port)
            for task in running:
                task.cancel()
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


def run(config_path: str | Path | None, ignore_unsupported: Collection[str] = ()) -> int:
    """Run a nameserver in the foreground; the exit code as of :func:`run_server`."""

    def prepared() -> Coroutine[Any, Any, None]:
        config = NameserverConfig() if config_path is None else load_nameserver_config(config_path, ignore_unsupported)
        log_effective(config, config_path or "defaults")
        give_back_unused()
        return serve_until_signalled("nameserver", serving(config))

    return run_server("nameserver", prepared)
