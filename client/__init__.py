"""Clients of a Penstock cluster: producers, consumers, administration.

Names are loaded when first used, so that importing this package stays cheap: kernels and compilers are not
touched before the first producer or consumer is made.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.proto.errors import BrokerUnavailable as BrokerUnavailable
    from penstock.proto.errors import BufferFull as BufferFull
    from penstock.proto.errors import ClientClosed as ClientClosed
    from penstock.proto.errors import CommitRefused as CommitRefused
    from penstock.proto.errors import ConfigError as ConfigError
    from penstock.proto.errors import CorruptBatch as CorruptBatch
    from penstock.proto.errors import DamagedRecord as DamagedRecord
    from penstock.proto.errors import DeliveryFailed as DeliveryFailed
    from penstock.proto.errors import Forbidden as Forbidden
    from penstock.proto.errors import GroupNotFound as GroupNotFound
    from penstock.proto.errors import InvalidArgument as InvalidArgument
    from penstock.proto.errors import InvalidName as InvalidName
    from penstock.proto.errors import MessageNotFound as MessageNotFound
    from penstock.proto.errors import MessageTooLarge as MessageTooLarge
    from penstock.proto.errors import NameserverUnavailable as NameserverUnavailable
    from penstock.proto.errors import NotEnoughReplicas as NotEnoughReplicas
    from penstock.proto.errors import OffsetOutOfRange as OffsetOutOfRange
    from penstock.proto.errors import OutcomeUnknown as OutcomeUnknown
    from penstock.proto.errors import PenstockError as PenstockError
    from penstock.proto.errors import Refused as Refused
    from penstock.proto.errors import Retryable as Retryable
    from penstock.proto.errors import RouteNotFound as RouteNotFound
    from penstock.proto.errors import TopicExists as TopicExists
    from penstock.proto.errors import TopicNotFound as TopicNotFound
    from penstock.proto.errors import Unauthorized as Unauthorized
    from penstock.runtime.security.credentials import Credentials as Credentials
    from penstock.runtime.security.credentials import Tls as Tls

    from .admin import Admin as Admin
    from .cluster.subscription import Sql as Sql
    from .consume.consumer_config import ConsumerConfig as ConsumerConfig
    from .consume.message_batch import MessageBatch as MessageBatch
    from .message import Delivery as Delivery
    from .message import FailedDelivery as FailedDelivery
    from .message import Message as Message
    from .message import MessageQueue as MessageQueue
    from .message import MessageView as MessageView
    from .message import SendReceipt as SendReceipt
    from .message import SendStatus as SendStatus
    from .produce.config import ProducerConfig as ProducerConfig
    from .producer import Producer as Producer
    from .pull_consumer import PullConsumer as PullConsumer
    from .push_consumer import ConsumeResult as ConsumeResult
    from .push_consumer import PushConsumer as PushConsumer

_ERRORS = (
    "BrokerUnavailable",
    "BufferFull",
    "ClientClosed",
    "CommitRefused",
    "ConfigError",
    "CorruptBatch",
    "DamagedRecord",
    "DeliveryFailed",
    "Forbidden",
    "GroupNotFound",
    "InvalidArgument",
    "InvalidName",
    "MessageNotFound",
    "MessageTooLarge",
    "NameserverUnavailable",
    "NotEnoughReplicas",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "PenstockError",
    "Refused",
    "Retryable",
    "RouteNotFound",
    "TopicExists",
    "TopicNotFound",
    "Unauthorized",
)
"""What users catch."""

_MODULES = {
    "Admin": ".admin",
    "ConsumeResult": ".push_consumer",
    "ConsumerConfig": ".consume.consumer_config",
    "Credentials": "penstock.runtime.security.credentials",
    "Delivery": ".message",
    "FailedDelivery": ".message",
    "Message": ".message",
    "MessageBatch": ".consume.message_batch",
    "MessageQueue": ".message",
    "MessageView": ".message",
    "Producer": ".producer",
    "ProducerConfig": ".produce.config",
    "PullConsumer": ".pull_consumer",
    "PushConsumer": ".push_consumer",
    "SendReceipt": ".message",
    "SendStatus": ".message",
    "Sql": ".cluster.subscription",
    "Tls": "penstock.runtime.security.credentials",
    **dict.fromkeys(_ERRORS, "penstock.proto.errors"),
}

__all__ = [
    "Admin",
    "BrokerUnavailable",
    "BufferFull",
    "ClientClosed",
    "CommitRefused",
    "ConfigError",
    "ConsumeResult",
    "ConsumerConfig",
    "CorruptBatch",
    "Credentials",
    "DamagedRecord",
    "Delivery",
    "DeliveryFailed",
    "FailedDelivery",
    "Forbidden",
    "GroupNotFound",
    "InvalidArgument",
    "InvalidName",
    "Message",
    "MessageBatch",
    "MessageNotFound",
    "MessageQueue",
    "MessageTooLarge",
    "MessageView",
    "NameserverUnavailable",
    "NotEnoughReplicas",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "PenstockError",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PushConsumer",
    "Refused",
    "Retryable",
    "RouteNotFound",
    "SendReceipt",
    "SendStatus",
    "Sql",
    "Tls",
    "TopicExists",
    "TopicNotFound",
    "Unauthorized",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
