"""Replication of one log from a master to its slaves: byte ranges over one stream per slave."""

from .config import ReplicationConfig
from .epochs import EpochHistory, EpochsInMemory
from .frames import METHOD, SERVICE
from .interfaces import EpochStore, ReplicaLog, SlaveLog
from .master.primary import Primary
from .master.progress import ReplicaProgress
from .slave.replica import Replica

__all__ = [
    "METHOD",
    "SERVICE",
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
