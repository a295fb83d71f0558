"""The protocol's port: everything that answers, over one connection to the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from penstock.client.aio import AsyncProducer
from penstock.client.cluster import Calls
from penstock.gateway.http2.method import Method
from penstock.runtime.security.access import Access
from penstock.runtime.security.credentials import Security

from .brokers import Brokers
from .clients import Clients
from .consume.finishing import Finishing
from .consume.offsets import Offsets
from .consume.receiving import Receiving
from .consume.renewal import Renewal
from .groups import Groups
from .messages import BODY_BYTES_MAX
from .produce.sending import Sending
from .produce.together import Together
from .produce.transactions import Transactions
from .routes import Routes
from .service import Service
from .telemetry import Telemetry

log = logging.getLogger(__name__)

THREADS: Final = 32
SWEEP_S: Final = 5.0


class Port:
    """What answers at all listening ports of a gateway. Event loop only; made by :func:`opened`."""

    def __init__(
        self,
        calls: Calls,
        threads: ThreadPoolExecutor,
        producer: AsyncProducer,
        access: Access | None,
    ) -> None:
        self.clients = Clients()
        self.brokers = Brokers(calls, threads)
        self.groups = Groups(self.brokers)
        self.transactions = Transactions(self.brokers, self.clients, producer)
        self.sending = Sending(self.brokers, producer, self.transactions, self.clients)
        self.together = Together(self.brokers, producer, self.sending, self.clients)
        self.renewal = Renewal(self.brokers, self.clients.is_living)
        self.finishing = Finishing(self.brokers, self.renewal)
        self.receiving = Receiving(self.brokers, self.clients, self.finishing, self.renewal)
        self.offsets = Offsets(self.brokers)
        self.telemetry = Telemetry(self.clients, self.groups, self.transactions.on_producer, self.renewal.gone)
        self._service = Service(access)

    def methods(self, host: str, port: int) -> dict[str, Method]:
        """What answers at a server, by path; its routes name this address."""
        routes = Routes(self.brokers, self.groups, host, port)
        unary: dict[str, Any] = {
            "QueryRoute": routes.query,
            "QueryAssignment": routes.assign,
            "Heartbeat": self.telemetry.heartbeat,
            "NotifyClientTermination": self.telemetry.terminated,
            "SendMessage": self.sending.send,
            "RecallMessage": self.sending.recall,
            "EndTransaction": self.transactions.end,
            "AckMessage": self.finishing.acknowledge,
            "ChangeInvisibleDuration": self.finishing.change,
            "ForwardMessageToDeadLetterQueue": self.finishing.forward,
            "GetOffset": self.offsets.get,
            "UpdateOffset": self.offsets.update,
            "QueryOffset": self.offsets.query,
        }
        streaming: dict[str, Any] = {"ReceiveMessage": self.receiving.receive, "PullMessage": self.offsets.pull}
        plain: dict[str, Any] = {"AckMessage": self.finishing.acknowledge_plain}
        taking: dict[str, Any] = {"SendMessage": self.together.take}
        return self._service.methods(unary, plain, taking, streaming, self.telemetry)

    async def sweep_forever(self) -> None:
        """Forget clients that are silent, and what was kept for them."""
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                self.clients.sweep()
                await self.transactions.sweep()
            except Exception:
                log.exception("sweep of silent clients failed, and goes on")


@contextlib.asynccontextmanager
async def opened(nameservers: str, security: Security, access: Access | None) -> AsyncIterator[Port]:
    """A port to the cluster of these nameservers for the length of the block.

    ``security``: of the connections to the cluster. ``access``: the users whose calls are taken; None: everybody's.
    """
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-gateway")
    loop = asyncio.get_running_loop()
    calls = Calls.to(nameservers, tls=security.tls, credentials=security.credentials)
    calls.connections.data.work_in(loop)
    make = partial(
        AsyncProducer,
        nameservers,
        group="PENSTOCK_GATEWAY",
        tls=security.tls,
        credentials=security.credentials,
        auto_create_topics=False,
        body_bytes_max=BODY_BYTES_MAX,
    )
    producer = await loop.run_in_executor(threads, make)
    producer.work_in_loop()
    port = Port(calls, threads, producer, access)
    running = [
        asyncio.create_task(work) for work in (port.sweep_forever(), port.renewal.run(), port.transactions.run())
    ]
    try:
        yield port
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await port.transactions.close()
        await producer.close(1.0)
        await loop.run_in_executor(threads, calls.close)
        threads.shutdown(wait=False, cancel_futures=True)
