"""What each drill breaks, and how it is healed. A fault is a function of the lab; it returns when it is healed."""

from __future__ import annotations

import time

from .actions import kill_consumer, kill_during_catch_up, kill_for_a_while, restart
from .disks import SlowSyncs
from .lab import Lab
from .schedule import DrillFailed

SWITCHES = 5
SHORT_S = 0.5


def master_kill(lab: Lab) -> None:
    """SIGKILL to a master."""
    kill_for_a_while(lab, "SIGKILL", lab.master())


def slave_kill(lab: Lab) -> None:
    """SIGKILL to a slave."""
    kill_for_a_while(lab, "SIGKILL", lab.slave())


def nameserver_kill(lab: Lab) -> None:
    """SIGKILL to one of several nameservers."""
    kill_for_a_while(lab, "SIGKILL", lab.nameserver_names[lab.plan.nameserver])


def nameserver_all(lab: Lab) -> None:
    """SIGKILL to every nameserver; they come back empty."""
    kill_for_a_while(lab, "SIGKILL", *lab.nameserver_names)


def kill_both(lab: Lab) -> None:
    """SIGKILL to all copies of a shard within a second."""
    kill_for_a_while(lab, "SIGKILL", *lab.names_of(lab.victim_shard))


def master_freeze(lab: Lab) -> None:
    """SIGSTOP to a master, SIGCONT after the window."""
    name = lab.master()
    with lab.broken("SIGSTOP", name, lambda: lab.cluster.thaw(name)):
        lab.cluster.freeze(name)
        lab.wait(lab.timing.fault_s, f"{name} frozen")


def consumer_kill(lab: Lab) -> None:
    """SIGKILL to a consumer between processing and commit; another one joins after the window."""
    kill_consumer(lab, lab.plan.consumer, lab.timing.fault_s)


def crash_loop(lab: Lab) -> None:
    """SIGKILL to a master again and again while it starts and recovers."""
    name = lab.master()
    with lab.broken("SIGKILL, repeated", name, lambda: restart(lab, name)):
        lab.cluster.kill(name)
        deadline = time.monotonic() + lab.timing.fault_s
        crashes = 1
        for delay_s in lab.plan.crash_delays_s:
            if time.monotonic() + delay_s > deadline:
                break
            lab.cluster.start(name, wait=False)
            lab.wait(delay_s, f"{name} killed {crashes} times")
            if not lab.state(name).is_alive:
                raise DrillFailed(f"{name} ended by itself: {' '.join(lab.cluster.log_lines(name, 3))}")
            lab.cluster.kill(name)
            crashes += 1
        lab.notes.append(f"{name} was killed {crashes} times")
        lab.wait(max(deadline - time.monotonic(), 0.0))


def catch_up_kill(lab: Lab) -> None:
    """SIGKILL to a new master while a slave catches up with it that had missed what was acknowledged.

    The new master does not know what its predecessor had acknowledged: all were killed, and its checkpoint is an older
    one, as a power cut leaves it. Whoever lacks something must not be master after it.
    """
    kill_during_catch_up(lab, lab.victim_shard, lab.plan.slave, lab.timing.fault_s / 2, lab.plan.catch_up_s)


def rolling_restart(lab: Lab) -> None:
    """SIGTERM and a new start of every node, one after the other: slaves, masters, nameservers."""
    masters = [lab.master(shard) for shard in lab.shards]
    slaves = [name for shard in lab.shards for name in lab.names_of(shard) if name not in masters]
    for name in [*slaves, *masters, *lab.nameserver_names]:
        lab.phase = f"restarting {name}"
        with lab.broken("restart", name, lambda name=name: restart(lab, name)):  # type: ignore[misc]
            lab.stop_node(name)
        lab.note_start(name)
        late = lab.await_level()
        if late:
            raise DrillFailed(f"after the restart of {name}: {late[0]}")
        lab.wait(SHORT_S)


def planned_switch(lab: Lab) -> None:
    """Change a shard's master several times, as an operator does."""
    pause_s = lab.timing.fault_s / SWITCHES
    for _ in range(SWITCHES):
        target = lab.slave()
        with lab.broken("switch", f"{lab.master()} to {target}", lambda: None):
            lab.phase = f"switching to {target}"
            lab.switch(lab.victim_shard, target)
        lab.wait(pause_s)
        late = lab.await_level()
        if late:
            raise DrillFailed(f"after the switch to {target}: {late[0]}")


def coordinator_kill(lab: Lab) -> None:
    """SIGKILL to the coordinator store, or to the nameserver that holds it."""
    kill_for_a_while(lab, "SIGKILL", *lab.coordinator_names)


def partition_master(lab: Lab) -> None:
    """A master hears nobody, and nobody hears it: other brokers, nameservers, clients."""
    assert lab.network is not None
    name = lab.master()
    with lab.broken("partition", name, lab.network.heal):
        lab.network.cut(name, lab.peers(name))
        lab.wait(lab.timing.fault_s, f"{name} cut off")


def one_way_partition(lab: Lab) -> None:
    """Packets of a master are lost on their way out, or on their way in; the other direction works."""
    assert lab.network is not None
    name = lab.master()
    outwards = lab.plan.outwards
    with lab.broken("lost on the way " + ("out" if outwards else "in"), name, lab.network.heal):
        lab.network.cut(name, lab.peers(name), outwards=outwards, inwards=not outwards)
        lab.wait(lab.timing.fault_s, f"{name} cut off one way")


def slow_link(lab: Lab) -> None:
    """What a slave receives arrives at 30 to 80 % of what its shard is sent."""
    assert lab.network is not None
    name = lab.slave()
    with lab.broken(f"{lab.plan.link_kbit} kbit/s", name, lab.network.heal):
        lab.network.slow(name, lab.plan.link_kbit)
        lab.wait(lab.timing.fault_s, f"{name} behind a slow link")


def disk_full(lab: Lab) -> None:
    """The last byte of a master's disk is taken, and given back after the window."""
    name = lab.master()
    disk = lab.disk_of(name)
    with lab.broken("disk full", name, disk.empty):
        size = disk.fill()
        lab.notes.append(f"{size / 1e6:.0f} MB filled the rest of {name}'s disk (tmpfs)")
        lab.wait(lab.timing.fault_s, f"{name}'s disk is full")


def slow_disk(lab: Lab) -> None:
    """Every sync of a master takes 0.1 to 0.4 s longer."""
    name = lab.master()
    pid = lab.state(name).pid
    if pid is None:
        raise DrillFailed(f"{name} does not run")
    slow = SlowSyncs(pid, lab.plan.sync_delay_ms)
    with lab.broken(f"syncs {lab.plan.sync_delay_ms} ms slower", name, slow.stop):
        slow.start()
        lab.wait(lab.timing.fault_s, f"{name}'s syncs are slow")
