"""Clients of a Penstock cluster: producers, consumers, administration.

Names are loaded when first used, so that importing this package stays cheap: kernels and compilers are not
touched before the first producer or consumer is made.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .admin import Admin as Admin
    from .config import ProducerConfig as ProducerConfig
    from .message import FailedDelivery as FailedDelivery
    from .message import Message as Message
    from .message import MessageQueue as MessageQueue
    from .message import MessageView as MessageView
    from .message import SendReceipt as SendReceipt
    from .message import SendStatus as SendStatus
    from .producer import Producer as Producer
    from .pull_consumer import PullConsumer as PullConsumer
    from .push_consumer import ConsumeResult as ConsumeResult
    from .push_consumer import PushConsumer as PushConsumer
    from .subscription import Sql as Sql

_MODULES = {
    "Admin": "admin",
    "ConsumeResult": "push_consumer",
    "FailedDelivery": "message",
    "Message": "message",
    "MessageQueue": "message",
    "MessageView": "message",
    "Producer": "producer",
    "ProducerConfig": "config",
    "PullConsumer": "pull_consumer",
    "PushConsumer": "push_consumer",
    "SendReceipt": "message",
    "SendStatus": "message",
    "Sql": "subscription",
}

__all__ = [
    "Admin",
    "ConsumeResult",
    "FailedDelivery",
    "Message",
    "MessageQueue",
    "MessageView",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PushConsumer",
    "SendReceipt",
    "SendStatus",
    "Sql",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
