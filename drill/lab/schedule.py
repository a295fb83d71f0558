"""When a drill breaks what, drawn from its seed: the same seed gives the same plan. No clocks, no processes."""

from __future__ import annotations

import random
from dataclasses import dataclass

CRASHES_MAX = 20
RECORD_BYTES = 256  # of a message's record in the log, beside the body


class DrillFailed(Exception):
    """The drill itself could not be done, as where no such fault can be made; nothing is said about the cluster."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The phases of a drill, in seconds."""

    steady_s: float = 10.0
    fault_s: float = 20.0
    after_s: float = 10.0

    def __post_init__(self) -> None:
        for name, value, least in (("steady", self.steady_s, 1.0), ("fault", self.fault_s, 1.0)):
            if not least <= value <= 3600:
                raise ValueError(f"--{name} {value:g}: must be {least:g}..3600 seconds")


@dataclass(frozen=True, slots=True)
class Shape:
    """What a drill's cluster and load consist of."""

    shards: int = 2
    replicas: int = 3
    nameservers: int = 2
    mode: str = "durable"
    coordinator: str = "file"
    producers: int = 2
    consumers: int = 2
    queues: int = 4
    size: int = 1024
    rate: float = 500.0
    keys: int = 16

    @property
    def shard_bytes_per_s(self) -> float:
        """What one shard's log grows by, about."""
        return self.rate / self.shards * (self.size + RECORD_BYTES)

    def __post_init__(self) -> None:
        for name, value, most in (("producers", self.producers, 16), ("consumers", self.consumers, 16)):
            if not 1 <= value <= most:
                raise ValueError(f"--{name} {value}: must be 1..{most}")
        if not 10 <= self.rate <= 100_000:
            raise ValueError(f"--rate {self.rate:g}: must be 10..100000 messages a second")


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """One drill's draws. Numbers name nodes only by their place; which node is master is seen when the time comes."""

    drill: str
    seed: int
    shard: int
    slave: int  # 0 .. slaves - 1, by broker id
    nameserver: int
    consumer: int
    late_s: float  # on top of the steady phase, so that faults do not always meet the same moment of a flush
    outwards: bool  # one-way partition: the victim's packets are lost, else those to it
    crash_delays_s: tuple[float, ...]  # crash loop: how long each new process lives
    link_kbit: int  # less than the load of a shard
    sync_delay_ms: int
    catch_up_s: float  # how long a slave has been catching up when its master is killed


def plan_fault(drill: str, seed: int, shape: Shape) -> FaultPlan:
    drawn = random.Random(f"{drill}:{seed}")  # noqa: S311  has to be repeatable
    return FaultPlan(
        drill=drill,
        seed=seed,
        shard=drawn.randrange(shape.shards),
        slave=drawn.randrange(max(shape.replicas - 1, 1)),
        nameserver=drawn.randrange(shape.nameservers),
        consumer=drawn.randrange(shape.consumers),
        late_s=drawn.uniform(0.0, 1.0),
        outwards=drawn.random() < 0.5,
        crash_delays_s=tuple(drawn.uniform(0.05, 3.0) for _ in range(CRASHES_MAX)),
        link_kbit=max(int(drawn.uniform(0.3, 0.8) * shape.rate / shape.shards * shape.size * 8 / 1000), 64),
        sync_delay_ms=drawn.choice((100, 200, 400)),
        catch_up_s=drawn.uniform(0.3, 0.8),
    )
