"""Cases of RocketMQ 5's protocol: our gateway beside RocketMQ's proxy, each in its broker's process, with one load."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from penstock.deploy.ports import HOST, planned
from penstock.proto.errors import PenstockError

from ..load.load import ensure_topic
from ..machine import cpu_s, own_memory_mib
from ..rig import Rig
from ..runner import RATIO, Case, Figures
from . import rooms, servers
from .pairs import Side, pairs

SIZE = 1024
FILLED_PER_S = 80_000
"""Messages for each second of a load that receives, and of its warm-up: more than are received."""
RECEIVING = frozenset({"receives", "push"})
THEIRS = "RocketMQ"
CLIENTS = 1000
IDLE_S = 30.0
"""Each client does everything once in that time."""
_SETTLE_S = 5.0

Server = Callable[[Rig], contextlib.AbstractContextManager[tuple[str, psutil.Process]]]
"""Its address, and its process, for a ``with`` block."""
Load = Callable[[Rig, str, str], float]
"""Messages per second of the load of that kind on the server at that address."""


def with_java(rig: Rig, address: str, kind: str) -> float:
    """By ``V2Load.java``: the protocol itself, or RocketMQ's Java client."""
    count = int(FILLED_PER_S * 2 * rig.seconds) if kind in RECEIVING else 0
    return float(servers.told_by(_java(rig, address, kind, count), 2 * rig.seconds)["rate"])


def _java(rig: Rig, address: str, kind: str, count: int) -> list[str]:
    room = rooms.clients()
    program = [room.java, *servers.LOAD_MEMORY, f"-Duser.home={rooms.ROOM}", "-cp", room.jars]
    program.append(str(Path(__file__).with_name("V2Load.java")))
    return [*program, address, kind, str(SIZE), str(rig.seconds), str(count)]


def with_python(rig: Rig, address: str, kind: str) -> float:
    """By ``sdk_load.py``: RocketMQ's Python client."""
    program = [rooms.clients().python, str(Path(__file__).with_name("sdk_load.py"))]
    return float(servers.told_by([*program, address, kind, str(SIZE), str(rig.seconds)], 2 * rig.seconds)["rate"])


def _loads(server: Server, load: Load, kinds: Sequence[str], prefix: str = "") -> Side:
    """One load after the other; those that receive come first, while their topic is empty."""

    def side(rig: Rig) -> Figures:
        found: Figures = {}
        with server(rig) as (address, _):
            for kind in kinds:
                rig.progress(f"{prefix or 'gateway '}: {kind}")
                found[f"{prefix}{kind}"] = load(rig, address, kind)
        return found

    return side


@contextlib.contextmanager
def _broker(rig: Rig) -> Iterator[tuple[str, psutil.Process]]:
    """The address of a gateway in a broker's process, and that, with the topic; for the ``with`` block."""
    (port,), _ = planned(0, 1, 0)
    with rig.cluster(gatewayPort=str(port)) as bench:
        ensure_topic(bench.plan("produce", queues=servers.QUEUES))
        yield f"{HOST}:{port}", bench.brokers()[0]


@contextlib.contextmanager
def _gateway(rig: Rig) -> Iterator[tuple[str, psutil.Process]]:
    """A gateway's address and its process, which is its own, with the topic; for the ``with`` block."""
    with rig.cluster(gateway=True) as bench:
        ensure_topic(bench.plan("produce", queues=servers.QUEUES))
        (state,) = (each for each in bench.cluster.states() if each.node.is_gateway)
        yield state.node.address, psutil.Process(state.pid)


def _idle(rig: Rig, address: str, server: psutil.Process, prefix: str) -> Figures:
    """What clients that do nothing cost a server: the memory that it grows by, and a core's part more than before."""
    rig.progress(f"{prefix or 'gateway '}: idle clients")
    memory, before = own_memory_mib(server.pid), _busy(server, IDLE_S / 2)
    words = _java(rig, address, "idle", CLIENTS)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as clients:
        assert clients.stdin is not None
        assert clients.stdout is not None
        try:
            if clients.stdout.readline() != b"ready\n":
                raise PenstockError(f"no figure: the {CLIENTS} idle clients have ended")
            time.sleep(_SETTLE_S)
            busy = _busy(server, max(rig.seconds, IDLE_S)) - before
            memory = own_memory_mib(server.pid) - memory
        finally:
            clients.stdin.close()
            clients.kill()
    return {f"{prefix}memory": memory, f"{prefix}CPU": busy}


def _busy(server: psutil.Process, seconds: float) -> float:
    """The part of a core that the server uses, in percent, for so long."""
    began, busy = time.monotonic(), cpu_s(server)
    time.sleep(seconds)
    return (cpu_s(server) - busy) / (time.monotonic() - began) * 100


def _our_idle(rig: Rig) -> Figures:
    with _gateway(rig) as (address, gateway):
        found = _idle(rig, address, gateway, "")
    return {f"200 MiB{RATIO}memory": 200 / found["memory"], f"5 % of a core{RATIO}CPU": 5 / found["CPU"], **found}


def _their_idle(rig: Rig) -> Figures:
    with servers.proxy(rig) as (address, process):
        time.sleep(_SETTLE_S)
        return _idle(rig, address, process, f"{THEIRS} ")


def _room() -> rooms.Room:
    """RocketMQ's proxy, with the versions of its clients."""
    server, client = rooms.proxy(), rooms.clients()
    return rooms.Room(server.java, server.jars, client.python, {**server.versions, **client.versions})


def _case(name: str, title: str, load: Load, goals: Mapping[str, float]) -> Case:
    kinds = tuple(goals)
    ratios = [(kind, f"{THEIRS} {kind}") for kind in kinds]
    return Case(
        name,
        f"{title}, beside RocketMQ's proxy",
        pairs(_loads(_broker, load, kinds), _loads(servers.proxy, load, kinds, f"{THEIRS} "), ratios, _room),
        floors={f"{ours}{RATIO}{theirs}": goals[ours] for ours, theirs in ratios},
        is_heavy=True,
    )


def cases() -> Iterator[Case]:
    yield _case(
        "rocketmq-v2",
        "RocketMQ 5's protocol, 1 KiB: 32 received and acknowledged at once, sends of 32 and of one",
        with_java,
        {"receives": 1.5, "batches": 1.5, "singles": 1.5},
    )
    yield _case(
        "rocketmq-v2-java",
        "RocketMQ 5's Java client, 1 KiB: a push consumer, and asynchronous sends",
        with_java,
        {"push": 1.2, "async": 1.2},
    )
    yield _case(
        "rocketmq-v2-python",
        "RocketMQ 5's Python client, 1 KiB: asynchronous sends, and sends that wait",
        with_python,
        {"async": 1.0, "sync": 1.0},
    )
    yield Case(
        "rocketmq-v2-idle",
        f"{CLIENTS} idle clients of RocketMQ 5's protocol at one gateway, beside RocketMQ's proxy",
        pairs(_our_idle, _their_idle, [(f"{THEIRS} {cost}", cost) for cost in ("memory", "CPU")], _room),
        unit="MiB",
        units={"CPU": "% of a core", f"{THEIRS} CPU": "% of a core"},
        floors={f"200 MiB{RATIO}memory": 1.0, f"5 % of a core{RATIO}CPU": 1.0, f"{THEIRS} CPU{RATIO}CPU": 1.0},
        is_heavy=True,
    )
