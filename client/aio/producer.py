"""The producer for asyncio."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock.proto.errors import DeliveryFailed
from penstock.runtime.security.credentials import Credentials, Tls

from ..cluster import check_timeout
from ..message import DeliverAt, Delivery, SendReceipt
from ..produce.config import ProducerConfig
from ..producer import CLOSE_TIMEOUT_S, Producer
from .outcomes import Outcomes
from .turns import Turns, in_thread

log = logging.getLogger(__name__)

T = TypeVar("T")


class AsyncProducer:
    """:class:`~penstock.client.Producer`, awaited. Nothing here blocks the event loop.

    Cancelling a send takes back nothing: the message may be sent all the same. ``on_delivery`` is called in threads
    of the client, as there, not by the event loop.
    """

    def __init__(
        self,
        nameservers: str | Sequence[str],
        *,
        group: str = "DEFAULT_PRODUCER",
        config: ProducerConfig | None = None,
        on_delivery: Callable[[Delivery], None] | None = None,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
        **settings: Any,
    ) -> None:
        self._sync = Producer(
            nameservers,
            group=group,
            config=config,
            on_delivery=on_delivery,
            tls=tls,
            credentials=credentials,
            **settings,
        )
        self._turns = Turns()
        self._outcomes: Outcomes | None = None

    @property
    def producer(self) -> Producer:
        """The producer underneath."""
        return self._sync

    @property
    def pending(self) -> int:
        """Messages that are accepted and not yet acknowledged or given up."""
        return self._sync.pending

    async def send(
        self,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: Sequence[str] | str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        *,
        deliver_at: DeliverAt | None = None,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Send one message and wait for its receipt; sends of many tasks share batches."""
        return await self.send_async(
            topic, body, tag, keys, properties, sharding_key, deliver_at=deliver_at, timeout_s=timeout_s
        )

    def send_async(
        self,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: Sequence[str] | str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        *,
        deliver_at: DeliverAt | None = None,
        timeout_s: float | None = None,
    ) -> asyncio.Future[SendReceipt]:
        """Start to send one message; the future of the running loop ends as :meth:`send` would.

        Returns at once. A message that has to wait, for its topic's route or for room in the buffer, waits in a
        thread; the order of the calls is kept. Await some of the futures now and then: above 10,000 waiting messages
        it raises ``BufferFull``.
        """
        start = functools.partial(self._sync.send_async, deliver_at=deliver_at)
        send = self._timed(start, (topic, body, tag, keys, properties, sharding_key), timeout_s)
        if not self._must_wait(topic, body):
            return self._outcomes_here().follow(send())
        return asyncio.ensure_future(self._outcome(self._turns.line_up(topic, send)))

    def send_oneway(
        self,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: Sequence[str] | str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Send one message once; nobody learns its outcome. Returns at once, as :meth:`send_async`."""
        send = self._timed(self._sync.send_oneway, (topic, body, tag, keys, properties, sharding_key), timeout_s)
        if self._must_wait(topic, body):
            self._turns.line_up(topic, send)
        else:
            send()

    send_batch = in_thread(Producer.send_batch)

    async def produce(
        self,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: Sequence[str] | str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Buffer one message; acknowledged by :meth:`flush`. Waits only while the buffer is full."""
        arguments = (topic, body, tag, keys, properties, sharding_key)
        produce = functools.partial(self._sync.produce, *arguments, timeout_s=timeout_s)
        if self._must_wait(topic, body):
            await self._turns.line_up(topic, produce)
        else:
            produce()

    produce_many = in_thread(Producer.produce_many)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything so far is acknowledged or given up. Raises DeliveryFailed."""
        await self._turns.settled()
        await asyncio.to_thread(self._sync.flush, timeout_s)

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Flush, then stop. May be called again. Raises DeliveryFailed."""
        await self._turns.settled()
        await asyncio.to_thread(self._sync.close, timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except DeliveryFailed as failed:
            if error is None:
                raise
            log.warning("closed with undelivered messages %s", failed)

    def _must_wait(self, topic: str, body: bytes) -> bool:
        return self._turns.is_waiting(topic) or self._sync.would_block(topic, len(body))

    def _timed(self, send: Callable[..., T], arguments: tuple[Any, ...], timeout_s: float | None) -> Callable[[], T]:
        """``send`` as a call whose time began now, whenever its turn comes."""
        check_timeout(timeout_s)
        given_s = self._sync.config.send_timeout_s if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + given_s
        return lambda: send(*arguments, timeout_s=max(deadline_s - time.monotonic(), 0.0))

    async def _outcome(self, taken: asyncio.Task[Future[SendReceipt]]) -> SendReceipt:
        # Shielded: who stops waiting for the receipt takes back nothing, and those behind it keep their turn.
        return await self._outcomes_here().follow(await asyncio.shield(taken))

    def _outcomes_here(self) -> Outcomes:
        """Those of the running loop, which may be another one than before."""
        loop = asyncio.get_running_loop()
        outcomes = self._outcomes
        if outcomes is None or outcomes.loop is not loop:
            outcomes = self._outcomes = Outcomes(loop)
        return outcomes
