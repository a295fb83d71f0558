"""Starting, watching and ending the processes of a cluster on this machine; knows nothing of what they do."""

from .directory import NodeState
from .errors import DeployError, DeployUsage
from .local_cluster import LocalCluster, StopReport, UpReport, accepts_connections
from .plan import MODES, Node, Place, Plan

__all__ = [
    "MODES",
    "DeployError",
    "DeployUsage",
    "LocalCluster",
    "Node",
    "NodeState",
    "Place",
    "Plan",
    "StopReport",
    "UpReport",
    "accepts_connections",
]
