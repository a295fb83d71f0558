"""Servers of other systems: processes on free ports and fresh data, for the length of a turn."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from penstock.deploy import Node, accepts_connections
from penstock.deploy.ports import HOST, planned
from penstock.proto.errors import PenstockError

from ..rig import Rig
from . import rooms

QUEUES = 8
TOPIC, CLUSTER = "bench", "DefaultCluster"
START_S = 300.0
END_S = 60.0
LOAD_S = 300.0
"""What a load takes besides its time: connecting, warming up, filling."""
KAFKA_MEMORY = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""As Kafka's own start script has it."""
ROCKETMQ_MEMORY = ("-Xms2g", "-Xmx2g", "-XX:+UseG1GC")
"""RocketMQ's own script takes 8 GiB, which machines for tests do not have."""
NAMES_MEMORY = ("-Xms512m", "-Xmx512m")
LOAD_MEMORY = ("-Xms512m", "-Xmx1g")
_EXPORTS = ("--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED", "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED")
_PAUSE_S = 0.1
_ANY_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"


@contextlib.contextmanager
def kafka(rig: Rig, replicas: int = 1) -> Iterator[str]:
    """A Kafka of so many brokers, the first also controller, for the ``with`` block; the address of that one."""
    room = rooms.kafka()
    _, (controller, *ports) = planned(0, 1, 1 + replicas)
    java = [room.java, *KAFKA_MEMORY, "-cp", room.jars]
    with rig.folder() as folder, contextlib.ExitStack() as brokers:
        for node, port in enumerate(ports, 1):
            settings = folder / f"server-{node}.properties"
            first = node == 1
            settings.write_text(
                f"process.roles=broker{',controller' if first else ''}\nnode.id={node}\n"
                "controller.listener.names=CONTROLLER\n"
                f"controller.quorum.voters=1@{HOST}:{controller}\n"
                f"listeners=PLAINTEXT://{HOST}:{port}{f',CONTROLLER://{HOST}:{controller}' if first else ''}\n"
                f"advertised.listeners=PLAINTEXT://{HOST}:{port}\nlog.dirs={folder / f'data-{node}'}\n"
                f"num.partitions={QUEUES}\noffsets.topic.replication.factor=1\ngroup.initial.rebalance.delay.ms=0\n"
            )
            format_data = [*java, "kafka.tools.StorageTool", "format", "-t", _ANY_CLUSTER, "-c", str(settings)]
            done = subprocess.run(format_data, capture_output=True, text=True, timeout=START_S, check=False)
            if done.returncode:
                raise PenstockError(f"Kafka's data directory cannot be formatted: {done.stderr[-400:]}")
            brokers.enter_context(running(f"kafka-{node}", [*java, "kafka.Kafka", str(settings)], folder, port))
        yield f"{HOST}:{ports[0]}"


@contextlib.contextmanager
def rocketmq(rig: Rig, *, flush: bool = False) -> Iterator[str]:
    """RocketMQ's nameserver and a broker for the ``with`` block; the nameserver's address. ``flush``: SYNC_FLUSH."""
    room = rooms.rocketmq()
    (names,), (fast, _, port, replication) = planned(0, 1, 4)  # fast: a second port, two below the first
    assert fast == port - 2
    with _nameserver(rig, room, names, port, replication, flush=flush) as folder:
        broker = _rocketmq(room, folder, ROCKETMQ_MEMORY, "broker.BrokerStartup", "-c", "broker.conf")
        with running("broker", broker, folder, port):
            yield f"{HOST}:{names}"


@contextlib.contextmanager
def proxy(rig: Rig) -> Iterator[tuple[str, psutil.Process]]:
    """RocketMQ's nameserver, and its proxy and a broker in one process, for the ``with`` block.

    Gives the proxy's address and process.

    That is what RocketMQ's quick start begins with (``mqbroker --enable-proxy``). There is the topic ``bench``.
    """
    room = rooms.proxy()
    (names,), (fast, grpc, port, replication, remoting) = planned(0, 1, 5)
    assert fast == port - 2
    with _nameserver(rig, room, names, port, replication, flush=False) as folder:
        settings = {
            "rocketMQClusterName": CLUSTER,
            "namesrvAddr": f"{HOST}:{names}",
            "proxyMode": "LOCAL",
            "brokerConfigPath": str(folder / "broker.conf"),
            "grpcServerPort": grpc,
            "remotingListenPort": remoting,
            "localServeAddr": HOST,
        }
        (folder / "proxy.json").write_text(json.dumps(settings))
        served = _rocketmq(room, folder, ROCKETMQ_MEMORY, "proxy.ProxyStartup", "-pc", "proxy.json")
        with running("proxy", served, folder, grpc) as process:
            made = _rocketmq(room, folder, NAMES_MEMORY, "tools.command.MQAdminStartup", "updateTopic", *_topic(port))
            done = subprocess.run(made, cwd=folder, capture_output=True, text=True, timeout=START_S, check=False)
            if done.returncode or "success" not in done.stdout:
                raise PenstockError(f"RocketMQ makes no topic: {(done.stderr or done.stdout).strip()[-400:]}")
            yield f"{HOST}:{grpc}", psutil.Process(process.pid)


def _topic(broker_port: int) -> list[str]:
    queues = ["-r", str(QUEUES), "-w", str(QUEUES)]
    return ["-b", f"{HOST}:{broker_port}", "-t", TOPIC, *queues, "-a", "+message.type=NORMAL"]


@contextlib.contextmanager
def _nameserver(rig: Rig, room: rooms.Room, names: int, port: int, replication: int, *, flush: bool) -> Iterator[Path]:
    """A folder with a broker's configuration, and a nameserver that runs in it, for the ``with`` block."""
    with rig.folder() as folder:
        (folder / "names.conf").write_text(f"listenPort={names}\nrocketmqHome={folder}\n")
        (folder / "broker.conf").write_text(
            f"brokerClusterName={CLUSTER}\nbrokerName=rocketmq-a\nbrokerId=0\nbrokerIP1={HOST}\n"
            f"listenPort={port}\nhaListenPort={replication}\nnamesrvAddr={HOST}:{names}\nrocketmqHome={folder}\n"
            f"storePathRootDir={folder / 'store'}\nstorePathCommitLog={folder / 'store' / 'commitlog'}\n"
            f"defaultTopicQueueNums={QUEUES}\nflushDiskType={'SYNC' if flush else 'ASYNC'}_FLUSH\n"
        )
        nameserver = _rocketmq(room, folder, NAMES_MEMORY, "namesrv.NamesrvStartup", "-c", "names.conf")
        with running("names", nameserver, folder, names):
            yield folder


def _rocketmq(room: rooms.Room, folder: Path, memory: Sequence[str], started: str, *words: str) -> list[str]:
    """What starts a program of RocketMQ's; it runs in ``folder``, and so finds its files there."""
    home = [f"-Duser.home={folder}", "-cp", room.jars, f"org.apache.rocketmq.{started}"]
    return [room.java, *memory, *_EXPORTS, *home, *words]


@contextlib.contextmanager
def running(
    name: str, command: list[str], folder: Path, port: int, pause: Callable[[float], None] = time.sleep
) -> Iterator[subprocess.Popen[bytes]]:
    """A server's process for the ``with`` block, which begins when ``port`` takes connections.

    Raises:
        PenstockError: it ended, or took longer than 300 s.
    """
    log = folder / f"{name}.log"
    with open(log, "ab") as output:
        environment = os.environ | {"ROCKETMQ_HOME": str(folder)}
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        ends_at = time.monotonic() + START_S
        while not accepts_connections(Node(name, port)):
            if process.poll() is not None:
                raise PenstockError(f"{name} has ended with {process.returncode}: {_end_of(log)}")
            if time.monotonic() > ends_at:
                raise PenstockError(f"{name} does not serve at port {port} after {START_S:.0f} s: {_end_of(log)}")
            pause(_PAUSE_S)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def told_by(command: Sequence[str], seconds: float) -> dict[str, Any]:
    """The JSON document in the last line of what a load of ``seconds`` prints.

    Raises:
        PenstockError: it printed none.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + LOAD_S, check=False)
    except subprocess.TimeoutExpired:
        raise PenstockError(f"no figure: `{' '.join(command[-6:])}` did not end in time") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise PenstockError(f"no figure of `{' '.join(command[-6:])}`: {(done.stderr or done.stdout).strip()[-600:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-600:] or "it said nothing"
