"""Replication of one log from a master to its slaves: byte ranges over one stream per slave."""

from .config import ReplicationConfig
from .epochs import Epoch, EpochHistory
from .frames import METHOD, SERVICE
from .interfaces import ReplicaLog
from .primary import Primary
from .progress import ReplicaProgress
from .replica import Replica

__all__ = [
    "METHOD",
    "SERVICE",
    "Epoch",
    "EpochHistory",
    "Primary",
    "Replica",
    "ReplicaLog",
    "ReplicaProgress",
    "ReplicationConfig",
]
