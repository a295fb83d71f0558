"""The other systems, each fetched once from its registry into a folder that is kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from penstock.proto.errors import PenstockError

ROOM = Path(os.environ.get("PEERS_ROOM", ".peers")).absolute()
INSTALL_S = 600.0

KAFKA, ROCKETMQ, CONFLUENT = "4.1.0", "5.3.3", "2.16.1"
JAVA_CLIENT, PYTHON_CLIENT = "5.2.0", "5.1.2"
ARTIFACTS: Mapping[str, Sequence[str]] = {
    "kafka": [f"org.apache.kafka:kafka_2.13:{KAFKA}"],
    "rocketmq": [
        f"org.apache.rocketmq:rocketmq-{part}:{ROCKETMQ}" for part in ("namesrv", "broker", "client", "tools")
    ],
    "proxy": [f"org.apache.rocketmq:rocketmq-{part}:{ROCKETMQ}" for part in ("proxy", "namesrv", "tools")],
    "clients": [f"org.apache.rocketmq:rocketmq-client-java:{JAVA_CLIENT}"],
}
"""What Maven brings, with all that it depends on."""


class PeerMissing(PenstockError):
    """Another system cannot be run here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Room:
    """A system that is here. ``jars``: its class path; ``python``: of its Python client, or ours where it has none."""

    java: str
    jars: str
    python: str
    versions: Mapping[str, str]


@cache
def kafka() -> Room:
    """Kafka, and librdkafka's Python client in an environment of its own.

    Raises:
        PeerMissing: Java or Maven is not here, or a registry does not give what is asked for.
    """
    jars, python = _jars("kafka"), _python_with("confluent_kafka", f"confluent-kafka=={CONFLUENT}", ROOM / "confluent")
    versions = {"Kafka": KAFKA, "confluent-kafka": CONFLUENT, "Java": _java_version()}
    return Room(_tool("java"), jars, python, versions)


@cache
def rocketmq(what: str = "rocketmq") -> Room:
    """RocketMQ: nameserver, broker and its classic client, or another of :data:`ARTIFACTS`; raises as :func:`kafka`."""
    versions = {"RocketMQ": ROCKETMQ, "Java": _java_version()}
    _tool("javac")  # the load is a source file, which Java compiles
    return Room(_tool("java"), _jars(what), sys.executable, versions)


def proxy() -> Room:
    """RocketMQ 5's proxy, with all that it runs in front of."""
    return rocketmq("proxy")


@cache
def clients() -> Room:
    """RocketMQ 5's own clients: Java's jar, and Python's in an environment of its own; raises as :func:`kafka`."""
    python = rocketmq_python(ROOM / "rocketmq-python")
    versions = {"rocketmq-client-java": JAVA_CLIENT, "rocketmq-python-client": PYTHON_CLIENT}
    return Room(_tool("java"), _jars("clients"), python, versions)


def rocketmq_python(home: Path) -> str:
    """The interpreter of an environment in that folder that has RocketMQ 5's Python client; raises as :func:`kafka`."""
    return _python_with("rocketmq", f"rocketmq-python-client=={PYTHON_CLIENT}", home)


def _python_with(module: str, package: str, home: Path) -> str:
    """The interpreter of an environment in that folder that has the package; raises as :func:`kafka`."""
    python = home / "bin" / "python"
    if not python.exists():
        install([sys.executable, "-m", "venv", str(home)])
    if not list(home.glob(f"lib/*/site-packages/{module}")):
        install([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package])
    return str(python)


def _jars(name: str) -> str:
    folder, maven = ROOM / name, _tool("mvn")
    if not folder.exists():
        pom, fetched = ROOM / f"{name}.xml", ROOM / f"{name}-fetched"
        ROOM.mkdir(parents=True, exist_ok=True)
        pom.write_text(_pom(name))
        shutil.rmtree(fetched, ignore_errors=True)
        copying = ["dependency:copy-dependencies", f"-DoutputDirectory={fetched}", "-DincludeScope=runtime"]
        install([maven, "-q", "-B", "-f", str(pom), *copying])
        fetched.rename(folder)
    return f"{folder}/*"


def _pom(name: str) -> str:
    needed = ""
    for artifact in ARTIFACTS[name]:
        group, named, version = artifact.split(":")
        needed += f"<dependency><groupId>{group}</groupId><artifactId>{named}</artifactId>"
        needed += f"<version>{version}</version></dependency>"
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>penstock.bench</groupId><artifactId>{name}</artifactId><version>1</version>"
        f"<dependencies>{needed}</dependencies></project>\n"
    )


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise PeerMissing(
            f"{name} is not here: to run beside Kafka and RocketMQ, install a JDK of 17 or later and Maven"
        )
    return found


@cache
def _java_version() -> str:
    told = subprocess.run([_tool("java"), "-version"], capture_output=True, text=True, check=True).stderr
    return told.split('"')[1]


def install(command: Sequence[str], folder: Path = Path(), limit_s: float = INSTALL_S) -> None:
    """Run a step of an installation, in that folder.

    Raises:
        PeerMissing: it failed, or its registry did not answer in time.
    """
    told = " ".join(command[:4])
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise PeerMissing(f"`{told}` did not end within {limit_s:g} s: the registry does not answer") from None
    if done.returncode:
        raise PeerMissing(f"`{told}` failed: {(done.stderr.strip() or done.stdout.strip())[-400:]}")
