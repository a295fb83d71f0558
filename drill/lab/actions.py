"""What several faults do: kill and start again, in windows that heal by themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from ..load import EACH, PLACES
from .lab import Lab

ELECTION_S = 3.0
"""Another master would have been elected by then, and have begun."""


def restart(lab: Lab, *names: str) -> None:
    """Start what does not run, and return when all of it serves."""
    for name in names:
        if not lab.state(name).is_alive:
            lab.cluster.start(name, wait=False)
    lab.await_serving(names)


def kill_for_a_while(
    lab: Lab, what: str, *names: str, for_s: float | None = None, gaps_s: Sequence[float] = ()
) -> None:
    """SIGKILL to each, ``gaps_s`` apart (at once without), and a start of all after ``for_s`` (the drill's time)."""
    with lab.broken(what, ", ".join(names), lambda: restart(lab, *names)):
        for number, name in enumerate(names):
            lab.cluster.kill(name)
            lab.wait(gaps_s[number] if gaps_s else 0.0, f"{name} killed")
        lab.wait(lab.timing.fault_s if for_s is None else for_s, f"{', '.join(names)} killed")
        lab.phase = f"starting {', '.join(names)}"


def kill_consumer(lab: Lab, number: int, for_s: float) -> None:
    """SIGKILL to a consumer, to an orderly and to a simple one; others join in their place."""
    orderly = simple = number % EACH
    name = f"consumer-{number}"

    def join() -> None:
        lab.start_worker("consume", number, again=True).await_ready()
        lab.start_worker("work", orderly, again=True).await_ready()
        lab.start_worker("pop", simple, again=True).await_ready()

    with lab.broken("SIGKILL", name, join):
        lab.workers[name].kill()
        lab.workers[f"{PLACES['work']}-{orderly}"].kill()
        lab.workers[f"{PLACES['pop']}-{simple}"].kill()
        lab.wait(for_s, f"{name} killed")


def kill_during_catch_up(lab: Lab, shard: str, slave: int, away_s: float, catch_up_s: float) -> None:
    """Kill a new master while a slave catches up with it that had missed what was acknowledged for ``away_s``.

    All are killed before, and the new master's checkpoints are those from before that.
    """
    names = lab.names_of(shard)
    first, late = lab.master(shard), lab.slave(shard, slave)
    second = next(name for name in names if name not in (first, late))
    late_id = lab.cluster.plan.node(late).broker_id
    killed = [name for name in names if name != late]
    with lab.broken("SIGKILL during catch-up", ", ".join(names), lambda: restart(lab, *names)):
        old = checkpoints(lab, killed)
        lab.cluster.kill(late)
        lab.phase = f"{late} killed"
        lab.await_status(first, f"a set without {late}", lambda status: late_id not in status.sync_state_set)
        lab.wait(away_s, f"{late} misses messages")
        for name in killed:
            lab.cluster.kill(name)
        put_back(old)
        lab.phase = f"starting {second} and {late}"
        for name in (second, late):
            lab.cluster.start(name, wait=False)
        status = lab.await_status(
            second,
            f"{late} follows it",
            lambda status: any(each.broker_id == late_id for each in status.replicas),
        )
        lag = next(each.lag_bytes for each in status.replicas if each.broker_id == late_id)
        lab.wait(catch_up_s, f"{late} catches up")
        lab.cluster.kill(second)
        lab.notes.append(f"{second} was killed {catch_up_s:.2f} s after {late} had come {lag:,} bytes behind")
        lab.wait(ELECTION_S, f"{second} killed")
        lab.phase = "starting all"


def checkpoints(lab: Lab, names: Sequence[str]) -> dict[Path, bytes]:
    """What the stores say now of how far they are; in the order in which they can be put back to be believed."""
    return _files(lab, names, ("checkpoint", "penstockCheckpoint"))


def unsynced(lab: Lab, names: Sequence[str]) -> dict[Path, bytes]:
    """All small files of the stores that a power cut may put back: checkpoints, snapshots of tables."""
    return _files(lab, names, ("config/*.json*",)) | checkpoints(lab, names)


def put_back(files: dict[Path, bytes]) -> None:
    for path, content in files.items():
        path.write_bytes(content)


def _files(lab: Lab, names: Sequence[str], patterns: Sequence[str]) -> dict[Path, bytes]:
    stores = [store for name in names if (store := lab.state(name).store_path) is not None]
    found: dict[Path, bytes] = {}
    for path in (path for store in stores for pattern in patterns for path in store.glob(pattern)):
        with contextlib.suppress(FileNotFoundError):  # it is just being replaced: the one before it is there
            found[path] = path.read_bytes()
    return found
