"""The drills: what each breaks, what it needs, what it is allowed to cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .lab import faults
from .lab.disks import why_no_slow_disk, why_no_small_disk
from .lab.lab import Lab, Need
from .lab.nemesis import nemesis
from .lab.network import why_not as why_no_network
from .lab.schedule import Shape

RECOVERY_LIMIT_MS = 10_000
"""A shard takes messages again within this time, whatever died."""
COPIES = 2
"""``inSyncReplicas`` by default, in the modes that wait for replicas."""
WHY_NOT: Mapping[Need, Callable[[], str]] = {
    "network": why_no_network,
    "small disk": why_no_small_disk,
    "slow disk": why_no_slow_disk,
    "slow catch-up": lambda: "",
    "throttle": lambda: "",
}
"""By what drills need: why this machine does not have it; empty when it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """One drill, named and described as the function that breaks something."""

    fault: Callable[[Lab], None]
    takes_master: bool = False  # the shard is written again only when it has a new master
    takes_copy: bool = False  # one of the shard's copies is away
    breaks_delivery: bool = True  # what was not committed may be delivered again
    target_ms: int | None = None  # what a shard should be without acknowledgements at most
    no_limit_why: str = ""  # why the shard is meant to wait, where it is
    need: Need | None = None
    slaves: int = 0
    nameservers: int = 1
    elections: bool = False  # means nothing where the master is fixed
    expected_errors: tuple[str, ...] = ()
    is_random: bool = False  # judged by what each shard could have done at the time

    @property
    def name(self) -> str:
        return self.fault.__name__.replace("_", "-")

    @property
    def what(self) -> str:
        return (self.fault.__doc__ or "").partition("\n")[0].rstrip(".")

    def why_no_limit(self, shape: Shape, *, elects: bool) -> str:
        """Why no time is set for the shard's return; empty when one is."""
        if self.takes_master and not elects:
            return "this cluster's masters are fixed: the shard waits for its master"
        if (self.takes_copy or self.takes_master) and shape.mode in ("sync", "durable") and shape.replicas <= COPIES:
            return f"{shape.replicas - 1} of {shape.replicas} copies are left, and {COPIES} are needed"
        return self.no_limit_why

    def why_skipped(self, shape: Shape, *, elects: bool, own_cluster: bool = True) -> str:
        """Why it cannot be done here; empty when it can."""
        if self.need not in (None, "slow disk") and not own_cluster:
            return "needs a cluster that the drill starts: use a --dir without one"
        if self.need is not None and (why := WHY_NOT[self.need]()):
            return why
        if shape.replicas < self.slaves + 1:
            return f"needs --replicas {self.slaves + 1} or more"
        if shape.nameservers < self.nameservers:
            return f"needs --nameservers {self.nameservers} or more"
        if self.elections and not elects:
            return "needs elections, and this cluster's masters are fixed"
        return ""


_ALL = (
    Drill(fault=faults.master_kill, takes_master=True, target_ms=3000),
    Drill(fault=faults.slave_kill, takes_copy=True, breaks_delivery=False, slaves=1, target_ms=3000),
    Drill(fault=faults.master_freeze, takes_master=True, target_ms=3000),
    Drill(fault=faults.nameserver_kill, breaks_delivery=False, nameservers=2, target_ms=500),
    Drill(fault=faults.nameserver_all, breaks_delivery=False, target_ms=500),
    Drill(fault=faults.coordinator_kill, breaks_delivery=False, elections=True, target_ms=500),
    Drill(fault=faults.planned_switch, elections=True, slaves=1, target_ms=500),
    Drill(fault=faults.rolling_restart, takes_master=True, target_ms=3000),
    Drill(fault=faults.kill_both, no_limit_why="no copy of the shard is there"),
    Drill(fault=faults.partition_master, takes_master=True, need="network", target_ms=3000),
    Drill(fault=faults.one_way_partition, takes_master=True, need="network", target_ms=3000),
    Drill(fault=faults.slow_link, need="network", slaves=1, no_limit_why="what waits for a slow slave may wait"),
    Drill(
        fault=faults.disk_full,
        need="small disk",
        no_limit_why="a full disk takes nothing",
        expected_errors=("[Dd]isk", "space", "ENOSPC"),
    ),
    Drill(fault=faults.slow_disk, need="slow disk"),
    Drill(fault=faults.consumer_kill, target_ms=500),
    Drill(fault=faults.crash_loop, takes_master=True, target_ms=3000),
    Drill(
        fault=faults.catch_up_kill,
        need="slow catch-up",
        slaves=2,
        elections=True,
        no_limit_why="only brokers that are killed have what was acknowledged",
    ),
    Drill(
        fault=nemesis,
        need="throttle",
        slaves=1,
        elections=True,
        is_random=True,
    ),
)

DRILLS: dict[str, Drill] = {drill.name: drill for drill in _ALL}
"""By name, in the order in which ``all`` does them."""
