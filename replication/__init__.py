"""Replication of one log from a master to its slaves: byte ranges over one stream per slave."""

from .config import ReplicationConfig
from .epochs import EpochHistory, EpochsInMemory
from .interfaces import EpochStore, ReplicaLog, SlaveLog
from .master.primary import Primary
from .master.progress import ReplicaProgress
from .master.slaves import Slaves
from .slave.replica import Replica

__all__ = [
    "EpochHistory",
    "EpochStore",
    "EpochsInMemory",
    "Primary",
    "Replica",
    "ReplicaLog",
    "ReplicaProgress",
    "ReplicationConfig",
    "SlaveLog",
    "Slaves",
]
