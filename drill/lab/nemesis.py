"""Random sequences of faults, each drawn from the seed before anything is done, so that a seed repeats its steps.

Which broker is master is seen when the time comes, and how processes interleave is never the same twice.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .actions import kill_consumer, kill_during_catch_up, kill_for_a_while, put_back, restart, unsynced
from .lab import Lab
from .schedule import DrillFailed, Shape

CALM_S = (0.2, 3.0)
"""The pause between two steps; after every other one, the replicas are level before it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step's draws. Members are named by their place in the shard."""

    kind: str
    shard: int
    members: tuple[int, ...]  # those that are hit, one after the other; a storm hits some of them again
    gaps_s: tuple[float, ...]  # behind each of them
    lasts_s: float
    nameservers: int  # how many of them, where they are what is hit
    scope: str  # of a power cut: a broker, its shard, everything
    consumer: int
    is_calm: bool  # the replicas are level before the next step
    pause_s: float

    def __str__(self) -> str:
        hit = ", ".join(f"{member} then {gap:.2f} s" for member, gap in zip(self.members, self.gaps_s, strict=True))
        what = {"nameservers": f"{self.nameservers} of them", "power cut": self.scope, "consumer": f"{self.consumer}"}
        told = what.get(self.kind, f"members {hit}" if self.kind in ("kill", "freeze", "storm") else self.members[0])
        return f"{self.kind}, shard {self.shard}, {told}, for {self.lasts_s:.1f} s"


def steps(seed: int, shape: Shape) -> Iterator[Step]:
    """The steps of ``seed``, without end."""
    drawn = random.Random(f"nemesis:{seed}")  # noqa: S311  has to be repeatable
    while True:
        kind = drawn.choice([kind for kind in KINDS if shape.replicas > 2 or kind != "kill during catch-up"])
        members = drawn.sample(range(shape.replicas), drawn.randint(1, shape.replicas))
        if kind == "storm":
            members = drawn.choices(range(shape.replicas), k=drawn.randint(5, 12))
        yield Step(
            kind=kind,
            shard=drawn.randrange(shape.shards),
            members=tuple(members),
            gaps_s=tuple(drawn.choice((0.0, drawn.uniform(0.05, 3.0 if kind != "storm" else 1.0))) for _ in members),
            lasts_s=drawn.uniform(0.3, 6.0),
            nameservers=drawn.randint(1, shape.nameservers),
            scope=drawn.choice(("broker", "shard", "everything")),
            consumer=drawn.randrange(shape.consumers),
            is_calm=drawn.random() < 0.5,
            pause_s=drawn.uniform(*CALM_S),
        )


def nemesis(lab: Lab) -> None:
    """Random sequences of all of it, drawn from the seed: kills, freezes, storms, switches, power cuts, both shards"""
    end = time.monotonic() + lab.timing.fault_s
    for number, step in enumerate(steps(lab.plan.seed, lab.shape), 1):
        lab.tell(f"step {number} of seed {lab.plan.seed}: {step}")
        KINDS[step.kind](lab, step)
        if step.is_calm and (late := lab.await_level()):
            lab.tell(f"ended after step {number}: {late[0]}")  # it is judged all the same, and not as settled
            return
        if time.monotonic() >= end:
            return
        lab.wait(step.pause_s, "between two steps")


def _names(lab: Lab, step: Step) -> list[str]:
    names = lab.names_of(lab.shards[step.shard])
    return [names[member] for member in step.members]


def _kill(lab: Lab, step: Step) -> None:
    kill_for_a_while(lab, "SIGKILL", *_names(lab, step), for_s=step.lasts_s, gaps_s=step.gaps_s)


def _freeze(lab: Lab, step: Step) -> None:
    names = _names(lab, step)
    with contextlib.ExitStack() as frozen:
        for name, gap_s in zip(names, step.gaps_s, strict=True):
            frozen.enter_context(lab.broken("SIGSTOP", name, lambda name=name: lab.cluster.thaw(name)))  # type: ignore[misc]
            lab.cluster.freeze(name)
            lab.wait(gap_s, f"{name} frozen")
        lab.wait(step.lasts_s)
    lab.await_serving(names)


def _storm(lab: Lab, step: Step) -> None:
    """Kill, start, freeze and thaw, quickly: each time what the member's state lets happen."""
    names = sorted(set(_names(lab, step)))

    def heal() -> None:
        for name in names:
            if lab.state(name).state == "frozen":
                lab.cluster.thaw(name)
        restart(lab, *names)

    with lab.broken("storm", ", ".join(names), heal):
        for number, (name, gap_s) in enumerate(zip(_names(lab, step), step.gaps_s, strict=True)):
            state = lab.state(name)
            if not state.is_alive:
                lab.cluster.start(name, wait=False)
            elif state.state == "frozen":
                lab.cluster.thaw(name)
            else:
                (lab.cluster.freeze if number % 3 == 0 else lab.cluster.kill)(name)
            lab.wait(gap_s, "storm")


def _catch_up(lab: Lab, step: Step) -> None:
    lab.await_level()  # of a set of one nobody else could be elected
    kill_during_catch_up(lab, lab.shards[step.shard], step.members[0], step.lasts_s, step.pause_s / 4)


def _switch(lab: Lab, step: Step) -> None:
    shard = lab.shards[step.shard]
    target = lab.slave(shard, step.members[0])
    with lab.broken("switch", f"{shard} to {target}", lambda: None):
        try:
            lab.switch(shard, target)
        except DrillFailed as error:  # a slave that is not in sync now, or a master that goes
            lab.tell(f"not switched: {error}")


def _nameservers(lab: Lab, step: Step) -> None:
    kill_for_a_while(lab, "SIGKILL", *lab.nameserver_names[: step.nameservers], for_s=step.lasts_s)


def _everything(lab: Lab, step: Step) -> None:
    names = [*lab.nameserver_names, *(name for shard in lab.shards for name in lab.names_of(shard))]
    kill_for_a_while(lab, "SIGKILL", *names, for_s=step.lasts_s)


def _term(lab: Lab, step: Step) -> None:
    name = lab.master(lab.shards[step.shard])
    with lab.broken("restart", name, lambda: restart(lab, name)):
        lab.stop_node(name)
    lab.note_start(name)


def _power_cut(lab: Lab, step: Step) -> None:
    """SIGKILL, and the small files that nobody syncs are those of a while ago: checkpoints, tables' snapshots."""
    names = lab.names_of(lab.shards[step.shard])
    if step.scope == "broker":
        names = [names[step.members[0]]]
    elif step.scope == "everything":
        names = [*lab.nameserver_names, *(name for shard in lab.shards for name in lab.names_of(shard))]
    old = unsynced(lab, names)
    lab.wait(step.lasts_s, "some small files grow old")
    with lab.broken("power cut", ", ".join(names), lambda: restart(lab, *names)):
        for name in names:
            lab.cluster.kill(name)
        put_back(old)
        lab.wait(step.pause_s, "power cut")


KINDS: dict[str, Callable[[Lab, Step], None]] = {
    "kill": _kill,
    "freeze": _freeze,
    "storm": _storm,
    "kill during catch-up": _catch_up,
    "switch": _switch,
    "nameservers": _nameservers,
    "everything at once": _everything,
    "restart of a master": _term,
    "power cut": _power_cut,
    "consumer": lambda lab, step: kill_consumer(lab, step.consumer, step.lasts_s),
}
"""What a step may be, and what does it."""
