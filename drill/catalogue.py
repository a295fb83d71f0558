"""The drills: what each breaks, what it needs, what it is allowed to cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .lab import faults
from .lab.disks import why_no_slow_disk, why_no_small_disk
from .lab.lab import Lab
from .lab.network import why_not as why_no_network
from .lab.schedule import Shape

RECOVERY_LIMIT_MS = 10_000
"""A shard takes messages again within this time, whatever died."""


COPIES = 2
"""``inSyncReplicas`` by default, in the modes that wait for replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """One drill."""

    name: str
    what: str
    fault: Callable[[Lab], None]
    takes_master: bool = False  # the shard is written again only when it has a new master
    takes_copy: bool = False  # one of the shard's copies is away
    breaks_delivery: bool = True  # what was not committed may be delivered again
    target_ms: int | None = None  # what a shard should be without acknowledgements at most
    limit_ms: int | None = RECOVERY_LIMIT_MS  # what violates the invariant; None: the shard is meant to wait
    no_limit_why: str = ""
    network: bool = False
    small_disk: bool = False
    slow_disk: bool = False
    throttled: bool = False  # slaves catch up slowly
    slaves: int = 0
    nameservers: int = 1
    elections: bool = False  # means nothing where the master is fixed
    expected_errors: tuple[str, ...] = ()

    def why_no_limit(self, shape: Shape, *, elects: bool) -> str:
        """Why no time is set for the shard's return; empty when one is."""
        if self.takes_master and not elects:
            return "this cluster's masters are fixed: the shard waits for its master"
        if (self.takes_copy or self.takes_master) and shape.mode in ("sync", "durable") and shape.replicas <= COPIES:
            return f"{shape.replicas - 1} of {shape.replicas} copies are left, and {COPIES} are needed"
        return self.no_limit_why

    def why_skipped(self, shape: Shape, *, elects: bool, own_cluster: bool = True) -> str:
        """Why it cannot be done here; empty when it can."""
        if (self.network or self.small_disk or self.throttled) and not own_cluster:
            return "needs a cluster that the drill starts: use a --dir without one"
        if self.network and (why := why_no_network()):
            return why
        if self.small_disk and (why := why_no_small_disk()):
            return why
        if self.slow_disk and (why := why_no_slow_disk()):
            return why
        if shape.replicas < self.slaves + 1:
            return f"needs --replicas {self.slaves + 1} or more"
        if shape.nameservers < self.nameservers:
            return f"needs --nameservers {self.nameservers} or more"
        if self.elections and not elects:
            return "needs elections, and this cluster's masters are fixed"
        return ""


_ALL = (
    Drill(
        name="master-kill",
        what="SIGKILL to a master",
        fault=faults.master_kill,
        takes_master=True,
        target_ms=3000,
    ),
    Drill(
        name="slave-kill",
        what="SIGKILL to a slave",
        fault=faults.slave_kill,
        takes_copy=True,
        breaks_delivery=False,
        slaves=1,
        target_ms=3000,
    ),
    Drill(
        name="master-freeze",
        what="SIGSTOP to a master, SIGCONT later",
        fault=faults.master_freeze,
        takes_master=True,
        target_ms=3000,
    ),
    Drill(
        name="nameserver-kill",
        what="SIGKILL to one of several nameservers",
        fault=faults.nameserver_kill,
        breaks_delivery=False,
        nameservers=2,
        target_ms=500,
    ),
    Drill(
        name="nameserver-all",
        what="SIGKILL to every nameserver",
        fault=faults.nameserver_all,
        breaks_delivery=False,
        target_ms=500,
    ),
    Drill(
        name="coordinator-kill",
        what="SIGKILL to the coordinator store",
        fault=faults.coordinator_kill,
        breaks_delivery=False,
        elections=True,
        target_ms=500,
    ),
    Drill(
        name="planned-switch",
        what="the master changes by order, five times",
        fault=faults.planned_switch,
        elections=True,
        slaves=1,
        target_ms=500,
    ),
    Drill(
        name="rolling-restart",
        what="SIGTERM and start of every node, one by one",
        fault=faults.rolling_restart,
        takes_master=True,
        target_ms=3000,
    ),
    Drill(
        name="kill-both",
        what="SIGKILL to all copies of a shard",
        fault=faults.kill_both,
        limit_ms=None,
        no_limit_why="no copy of the shard is there",
    ),
    Drill(
        name="partition-master",
        what="a master is cut off from everybody",
        fault=faults.partition_master,
        takes_master=True,
        network=True,
        target_ms=3000,
    ),
    Drill(
        name="one-way-partition",
        what="a master's packets are lost in one direction",
        fault=faults.one_way_partition,
        takes_master=True,
        network=True,
        target_ms=3000,
    ),
    Drill(
        name="slow-link",
        what="a slave's link takes 30 to 80 % of the load",
        fault=faults.slow_link,
        network=True,
        slaves=1,
        limit_ms=None,
        no_limit_why="what waits for a slow slave may wait",
    ),
    Drill(
        name="disk-full",
        what="a master's disk is full (tmpfs), then has room again",
        fault=faults.disk_full,
        small_disk=True,
        limit_ms=None,
        no_limit_why="a full disk takes nothing",
        expected_errors=("[Dd]isk", "space", "ENOSPC"),
    ),
    Drill(
        name="slow-disk",
        what="a master's syncs take 0.1 to 0.4 s longer (strace)",
        fault=faults.slow_disk,
        slow_disk=True,
        limit_ms=RECOVERY_LIMIT_MS,
    ),
    Drill(
        name="consumer-kill",
        what="SIGKILL to a consumer",
        fault=faults.consumer_kill,
        target_ms=500,
    ),
    Drill(
        name="crash-loop",
        what="SIGKILL to a master, again and again while it recovers",
        fault=faults.crash_loop,
        takes_master=True,
        target_ms=3000,
    ),
    Drill(
        name="catch-up-kill",
        what="a new master is killed while a slave catches up that missed what was acknowledged",
        fault=faults.catch_up_kill,
        throttled=True,
        slaves=2,
        elections=True,
        limit_ms=None,
        no_limit_why="only brokers that are killed have what was acknowledged",
    ),
)

DRILLS: dict[str, Drill] = {drill.name: drill for drill in _ALL}
"""By name, in the order in which ``all`` does them."""
