"""RocketMQ 5's own clients, each installed from its registry into a folder that is kept, and the programs over them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

from penstock.bench.peers.rooms import PeerMissing, install, rocketmq_python

ROOM = Path(os.environ.get("CLIENTS_ROOM", ".clients")).absolute()
PROGRAMS = Path(__file__).parent / "programs"
INSTALL_S = 900.0
"""For a step of an installation: the Rust client's first build takes two minutes where nothing else runs."""
FETCH_S = 180.0
"""For one that only fetches, which takes seconds: a registry that does not answer is not waited for."""

NODE_CLIENT = "rocketmq-client-nodejs@1.0.8"

Command = list[str]
Commands = Callable[[str], Command]
"""The words that run a program of that name, ``scenarios`` or ``endless``, but for its arguments."""


class Missing(Exception):
    """The language cannot be tried here; the text tells why."""


def _run(command: Command, folder: Path = ROOM, limit_s: float = INSTALL_S) -> None:
    """Run a step of an installation.

    Raises:
        Missing: it failed, or its registry did not answer in time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        install(command, folder, limit_s)
    except PeerMissing as missing:
        raise Missing(missing.message) from None


def _tool(name: str, place: str = "") -> str:
    found = shutil.which(name) or shutil.which(place)
    if found is None:
        raise Missing(f"{name} is not here")
    return found


def _python() -> Commands:
    try:
        python = rocketmq_python(ROOM / "python")
    except PeerMissing as missing:
        raise Missing(missing.message) from None
    return lambda program: [python, str(PROGRAMS / f"{program}.py")]


def _node() -> Commands:
    node, npm, home = _tool("node"), _tool("npm"), ROOM / "node"
    if not (home / "node_modules" / "rocketmq-client-nodejs").exists():
        _run([npm, "install", "--silent", "--prefix", str(home), NODE_CLIENT], limit_s=FETCH_S)

    def command(program: str) -> Command:
        shutil.copy(PROGRAMS / f"{program}.js", home)  # beside its modules
        return [node, str(home / f"{program}.js")]

    return command


def _java() -> Commands:
    java, maven, home = _tool("java"), _tool("mvn"), ROOM / "java"
    if not list((home / "lib").glob("rocketmq-client-java-*.jar")):
        copying = ["dependency:copy-dependencies", f"-DoutputDirectory={home / 'lib'}", "-DincludeScope=runtime"]
        _run([maven, "-q", "-B", "-f", str(PROGRAMS / "java" / "pom.xml"), *copying], limit_s=FETCH_S)
    logs = [f"-Drocketmq.log.root={home / 'logs'}", "-Drocketmq.log.level=warn"]
    return lambda program: [
        java,
        *logs,
        "-cp",
        f"{home}/lib/*",
        str(PROGRAMS / "java" / f"{program.capitalize()}.java"),
    ]


def _go() -> Commands:
    go, home = _tool("go", "/usr/local/go/bin/go"), ROOM / "go"
    for program in ("scenarios", "endless"):
        built = home / program
        source = PROGRAMS / "go" / program
        if not built.exists() or any(each.stat().st_mtime > built.stat().st_mtime for each in source.iterdir()):
            _run([go, "build", "-o", str(built), f"./{program}"], PROGRAMS / "go")
    return lambda program: [str(home / program)]


def _rust() -> Commands:
    cargo, home = _tool("cargo", str(Path.home() / ".cargo" / "bin" / "cargo")), ROOM / "rust"
    _run([cargo, "build", "--quiet", "--locked", "--target-dir", str(home)], PROGRAMS / "rust")
    return lambda program: [str(home / "debug" / program)]


LANGUAGES = {"python": _python, "node": _node, "java": _java, "go": _go, "rust": _rust}


@cache
def commands(language: str) -> Commands | Missing:
    """How programs of the language are run, once its client is there; or why it cannot be had, asked once a run."""
    try:
        return LANGUAGES[language]()
    except Missing as missing:
        return missing


def environment(authority: Path) -> dict[str, str]:
    """Of a program: those clients that look whom they speak to trust the authority's file."""
    logs = str(ROOM / "logs")
    variables = ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE")
    trusting = dict.fromkeys(variables, str(authority))
    return os.environ | trusting | {"rocketmq.client.logRoot": logs, "rocketmq.client.logLevel": "warn"}
