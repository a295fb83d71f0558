"""A network of namespaces on this machine: every node and client has an address of its own, and links can be cut.

One namespace is the router; each other one is joined to it by a pair of virtual devices. What goes from A to B passes
the router, which loses it silently while a policy rule says so, in that direction only. So nothing but iproute2 is
needed: no packet filter, and no kernel module for delays. The program that makes the network reaches every node, and
its own packets are never lost: it is the observer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from .schedule import DrillFailed

_RULE_PRIORITY = "100"
_PREFIX = "10.213"
"""Each network takes one /24 of it; each link a /30: 62 links and the observer's."""
LINKS_MAX = 62


def why_not() -> str:
    """Why no network of namespaces can be made here; empty when one can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is not installed (iproute2)"
    name = f"penstock-probe-{os.getpid()}"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "add", "a0", "type", "veth", "peer", "name", "a1")
        _run("ip", "-n", name, "rule", "add", "from", "192.0.2.1", "to", "192.0.2.2", "blackhole")
    except DrillFailed as error:
        return str(error)
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    return ""


class Network:
    """Namespaces for ``names``, each with one address. Closing takes everything away."""

    def __init__(self, names: Sequence[str]) -> None:
        if len(names) > LINKS_MAX:
            raise DrillFailed(f"{len(names)} nodes and clients: at most {LINKS_MAX} fit into one network")
        self._tag = f"pd{os.getpid()}"
        self._numbers = {name: index + 1 for index, name in enumerate(names)}
        self._base = ""
        self._rules: set[tuple[str, str]] = set()

    @property
    def router(self) -> str:
        """The namespace that all packets pass."""
        return f"{self._tag}-router"

    def namespace(self, name: str) -> str:
        return f"{self._tag}-{self._numbers[name]}"

    def address(self, name: str) -> str:
        return f"{self._base}.{4 * self._numbers[name] + 2}"

    def wrap(self, name: str) -> list[str]:
        """Words before a command that make it run there; the process stays the same."""
        return ["ip", "netns", "exec", self.namespace(name)]

    def make(self) -> None:
        """Make namespaces, devices and routes. Raises DrillFailed: a step failed; what had been made is gone again."""
        try:
            self._base = _free_base()
            _run("ip", "netns", "add", self.router)
            self._inside(self.router, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0")
            _ip(self.router, "link", "set", "lo", "up")
            observer = f"{self._tag}o"
            _run("ip", "link", "add", observer, "type", "veth", "peer", "name", "observer", "netns", self.router)
            _run("ip", "addr", "add", f"{self._base}.2/30", "dev", observer)
            _run("ip", "link", "set", observer, "up")
            _ip(self.router, "addr", "add", f"{self._base}.1/30", "dev", "observer")
            _ip(self.router, "link", "set", "observer", "up")
            _run("ip", "route", "add", f"{self._base}.0/24", "via", f"{self._base}.1")
            for name in self._numbers:
                self._join(name)
        except DrillFailed:
            self.close()
            raise

    def _join(self, name: str) -> None:
        number, inside = self._numbers[name], self.namespace(name)
        gateway, device = f"{self._base}.{4 * number + 1}", f"n{number}"
        _run("ip", "netns", "add", inside)
        _ip(self.router, "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", inside)
        _ip(self.router, "addr", "add", f"{gateway}/30", "dev", device)
        _ip(self.router, "link", "set", device, "up")
        _ip(inside, "link", "set", "lo", "up")
        _ip(inside, "addr", "add", f"{self.address(name)}/30", "dev", "eth0")
        _ip(inside, "link", "set", "eth0", "up")
        _ip(inside, "route", "add", "default", "via", gateway)

    def lose(self, source: str, target: str) -> None:
        """Lose every packet from ``source`` to ``target`` from now on."""
        if (source, target) not in self._rules:
            self._rule("add", source, target)
            self._rules.add((source, target))

    def cut(self, name: str, others: Iterable[str], *, inwards: bool = True, outwards: bool = True) -> None:
        """Lose what ``name`` gets from ``others``, what it sends to them, or both."""
        for other in others:
            if outwards:
                self.lose(name, other)
            if inwards:
                self.lose(other, name)

    def slow(self, name: str, kbit: int) -> None:
        """Let packets to ``name`` arrive at ``kbit``/s; the queue before it holds a second, and drops the rest."""
        device = f"n{self._numbers[name]}"
        shape = ["rate", f"{kbit}kbit", "burst", "16kb", "latency", "1000ms"]
        self._inside(self.router, "tc", "qdisc", "add", "dev", device, "root", "tbf", *shape)

    def heal(self) -> None:
        """Let everything pass again."""
        while self._rules:
            source, target = self._rules.pop()
            self._rule("del", source, target)
        for number in self._numbers.values():
            remove = ["tc", "qdisc", "del", "dev", f"n{number}", "root"]
            subprocess.run(["ip", "netns", "exec", self.router, *remove], check=False, capture_output=True)

    def close(self) -> None:
        """Take everything away, in whatever state it is; devices and routes go with their namespaces."""
        for name in self.left():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        # A namespace whose last process still ends keeps its devices for a moment: take ours away by name.
        subprocess.run(["ip", "link", "del", f"{self._tag}o"], check=False, capture_output=True)
        self._rules.clear()

    def left(self) -> list[str]:
        """Namespaces of this network that exist."""
        ours = {self.router, *(self.namespace(name) for name in self._numbers)}
        return sorted(path.name for path in Path("/run/netns").glob(f"{self._tag}-*") if path.name in ours)

    def _rule(self, action: str, source: str, target: str) -> None:
        ends = ["from", self.address(source), "to", self.address(target)]
        _ip(self.router, "rule", action, "pref", _RULE_PRIORITY, *ends, "blackhole")

    def _inside(self, namespace: str, *command: str) -> None:
        _run("ip", "netns", "exec", namespace, *command)


def _free_base() -> str:
    """The first ``10.213.N`` that no route of this machine knows."""
    routes = _run("ip", "-4", "route", "show", "table", "all")
    for number in range(256):
        base = f"{_PREFIX}.{number}"
        if f"{base}." not in routes:
            return base
    raise DrillFailed(f"every network of {_PREFIX}.0.0/16 is in use on this machine")


def _ip(namespace: str, *arguments: str) -> None:
    _run("ip", "-n", namespace, *arguments)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    except subprocess.CalledProcessError as error:
        raise DrillFailed(f"`{' '.join(command)}` failed: {error.stderr.strip()}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DrillFailed(f"`{' '.join(command)}` failed: {error}") from error
    return done.stdout
