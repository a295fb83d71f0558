"""The broker's process: configuration, kernels, then everything else until a signal.

Importing this module is cheap. What needs kernels is imported after they were compiled, with somebody told how
far that is: the first start on a machine takes seconds for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import time
from collections.abc import AsyncIterator, Collection, Coroutine
from pathlib import Path
from typing import Any

from penstock.formats.intrinsics.warmup import compile_kernels
from penstock.proto.errors import ConfigError, StoreLocked, WrongCluster, WrongStore
from penstock.runtime.conf import log_effective
from penstock.runtime.memory import give_back_unused
from penstock.runtime.process import ending_signals, run_server

from .config import BrokerConfig, load_broker_config

log = logging.getLogger(__name__)

HAND_OVER_LIMIT_S = 2.5
"""A stop waits no longer for the next master."""
PATIENCE_S = 1.0
"""Loading cached kernels takes less; whoever waits longer is told why."""


def run(config_path: str | Path | None, ignore_unsupported: Collection[str] = ()) -> int:
    """Run a broker in the foreground; the exit code.

    0: stopped by a signal; 1: failed, e.g. a failed sync; 2: not started because of the configuration, the
    port, a store that is locked or another's, or a name that another broker has.
    """
    started = time.monotonic()

    def prepared() -> Coroutine[Any, Any, None]:
        config = BrokerConfig() if config_path is None else load_broker_config(config_path, ignore_unsupported)
        log_effective(config, config_path or "defaults")
        load_kernels()
        give_back_unused()
        return serve_until_signalled(config, started)

    return run_server("broker", prepared, (ConfigError, StoreLocked, WrongCluster, WrongStore))


def load_kernels() -> None:
    """Have all kernels ready: from the cache, or compiled."""
    started = time.monotonic()

    def tell(step: str, done: int, steps: int) -> None:
        elapsed_s = time.monotonic() - started
        if step and elapsed_s > PATIENCE_S:
            log.info(
                "preparing kernels step=%d of=%d name=%s (the first start on a machine compiles)", done + 1, steps, step
            )
        elif not step:
            log.info("kernels ready seconds=%.2f", elapsed_s)

    compile_kernels(tell, [("broker", "penstock.broker.broker")])


async def serve_until_signalled(config: BrokerConfig, started: float) -> None:
    """Serve until a signal; ``started``: monotonic time from which the ready line counts.

    SIGTERM and SIGINT: an elected master hands over first. SIGUSR1: not, since the whole group is being stopped. A
    signal before the broker is ready ends the process at once: the store is made for that.
    """
    from .broker import serving

    async with serving(config) as broker:
        _settle_memory()
        stop, at_once = ending_signals(), asyncio.Event()

        def end_at_once() -> None:
            at_once.set()
            stop.set()

        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, end_at_once)
        # One that the nameservers refuse, because another of its name and id lives, is never ready.
        if await _comes_before(broker.registered(), stop):
            log.info(
                "broker ready name=%s id=%d role=%s address=%s seconds=%.2f",
                config.identity.broker_name,
                config.identity.broker_id,
                config.replication.role.name,
                broker.address,
                time.monotonic() - started,
            )
        async with _gateway(config):
            await stop.wait()
        log.info("broker stopping address=%s", broker.address)
        stopping = time.monotonic()
        if not at_once.is_set():
            await _comes_before(broker.hand_over(), at_once, HAND_OVER_LIMIT_S)
    log.info("broker stopped address=%s seconds=%.2f", broker.address, time.monotonic() - stopping)


@contextlib.asynccontextmanager
async def _gateway(config: BrokerConfig) -> AsyncIterator[None]:
    """A gateway on the broker's loop for the length of the block, if ``gatewayPort`` asks for one."""
    identity = config.identity
    if identity.gateway_port < 0:
        yield
        return
    from penstock.gateway.config import GatewayConfig, GatewaySecurity, GatewayTls
    from penstock.gateway.server import serving

    own = GatewayConfig(
        nameservers=";".join(config.nameservers.addresses),
        listen_port=identity.gateway_port,
        bind_address=identity.bind_address,
        host=identity.advertised_ip,
        security=GatewaySecurity(
            transport=GatewayTls.beside(config.security.transport), authentication=config.security.authentication
        ),
    )
    async with serving(own, "gatewayPort") as address:
        log.info("gateway ready address=%s", address)
        yield


def _settle_memory() -> None:
    """Take what the start made out of the garbage collector's sight: its full passes would stop the loop."""
    gc.collect()
    gc.freeze()


async def _comes_before(work: Coroutine[Any, Any, None], event: asyncio.Event, timeout_s: float | None = None) -> bool:
    """True if ``work`` was done before ``event`` and in time; else it is cancelled. Its error comes out."""
    working = asyncio.create_task(work)
    other = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((working, other), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return working.done() and working.result() is None
    finally:
        for task in (working, other):
            task.cancel()
        await asyncio.gather(working, other, return_exceptions=True)
