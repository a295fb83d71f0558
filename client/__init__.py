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
    from .administer.admin_results import BrokerInfo as BrokerInfo
    from .administer.admin_results import ClusterInfo as ClusterInfo
    from .administer.admin_results import GroupInfo as GroupInfo
    from .administer.admin_results import GroupLag as GroupLag
    from .administer.admin_results import GroupMember as GroupMember
    from .administer.admin_results import NameserverInfo as NameserverInfo
    from .administer.admin_results import QueueLag as QueueLag
    from .administer.admin_results import QueuePosition as QueuePosition
    from .administer.admin_results import QueueStats as QueueStats
    from .administer.admin_results import ReplicaInfo as ReplicaInfo
    from .administer.admin_results import TopicInfo as TopicInfo
    from .administer.admin_results import TopicShard as TopicShard
    from .administer.admin_results import TopicStats as TopicStats
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

_ERRORS = "penstock.proto.errors"
_MODULES = {
    ".admin": ("Admin",),
    ".administer.admin_results": (
        "BrokerInfo",
        "ClusterInfo",
        "GroupInfo",
        "GroupLag",
        "GroupMember",
        "NameserverInfo",
        "QueueLag",
        "QueuePosition",
        "QueueStats",
        "ReplicaInfo",
        "TopicInfo",
        "TopicShard",
        "TopicStats",
    ),
    ".cluster": ("Sql",),
    ".consume.consumer_config": ("ConsumerConfig",),
    ".consume.message_batch": ("MessageBatch",),
    ".message": (
        "Delivery",
        "FailedDelivery",
        "Message",
        "MessageQueue",
        "MessageView",
        "SendReceipt",
        "SendStatus",
    ),
    ".produce.config": ("ProducerConfig",),
    ".producer": ("Producer",),
    ".pull_consumer": ("PullConsumer",),
    ".push_consumer": ("ConsumeResult", "PushConsumer"),
    "penstock.runtime.security.credentials": ("Credentials", "Tls"),
}
"""What each module has; everything else is an error that users catch."""
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Admin",
    "BrokerInfo",
    "BrokerUnavailable",
    "BufferFull",
    "ClientClosed",
    "ClusterInfo",
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
    "GroupInfo",
    "GroupLag",
    "GroupMember",
    "GroupNotFound",
    "InvalidArgument",
    "InvalidName",
    "Message",
    "MessageBatch",
    "MessageNotFound",
    "MessageQueue",
    "MessageTooLarge",
    "MessageView",
    "NameserverInfo",
    "NameserverUnavailable",
    "NotEnoughReplicas",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "PenstockError",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PushConsumer",
    "QueueLag",
    "QueuePosition",
    "QueueStats",
    "Refused",
    "ReplicaInfo",
    "Retryable",
    "RouteNotFound",
    "SendReceipt",
    "SendStatus",
    "Sql",
    "Tls",
    "TopicExists",
    "TopicInfo",
    "TopicNotFound",
    "TopicShard",
    "TopicStats",
    "Unauthorized",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF.get(name, _ERRORS), __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
