"""The asyncio twins: the same names and promises, awaited. One implementation underneath, in threads."""

from __future__ import annotations

from .admin import AsyncAdmin
from .consumers import AsyncPullConsumer, AsyncPushConsumer, AsyncSimpleConsumer
from .producer import AsyncProducer
from .transactions import AsyncTransaction, AsyncTransactionProducer

__all__ = [
    "AsyncAdmin",
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncPushConsumer",
    "AsyncSimpleConsumer",
    "AsyncTransaction",
    "AsyncTransactionProducer",
]
