"""The asyncio twins: the same names and promises, awaited. One implementation underneath, in threads."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .admin import AsyncAdmin as AsyncAdmin
    from .consumers import AsyncPullConsumer as AsyncPullConsumer
    from .consumers import AsyncPushConsumer as AsyncPushConsumer
    from .producer import AsyncProducer as AsyncProducer

_MODULES = {
    "AsyncAdmin": "admin",
    "AsyncProducer": "producer",
    "AsyncPullConsumer": "consumers",
    "AsyncPushConsumer": "consumers",
}

__all__ = ["AsyncAdmin", "AsyncProducer", "AsyncPullConsumer", "AsyncPushConsumer"]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
