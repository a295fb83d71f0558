"""Replication of one log from a master to its slaves: byte ranges over one stream per slave."""

from .config import ReplicationConfig
from .epochs import Epoch, EpochHistory, EpochsInMemory
from .frames import METHOD, SERVICE
from .interfaces import EpochStore, ReplicaLog, SlaveLog
from .primary import Primary
from .progress import ReplicaProgress
from .replica import Replica

__all__ = [
    "METHOD",
    "SERVICE",
    "Epoch",
    "EpochHistory",
    "EpochStore",
    "EpochsInMemory",
    "Primary",
    "Replica",
    "ReplicaLog",
    "ReplicaProgress",
    "ReplicationConfig",
    "SlaveLog",
]
