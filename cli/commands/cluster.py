"""``penstock cluster``: a local cluster in the background."""

from __future__ import annotations

import functools
import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..options import asking, dir_option, json_option, key_values, namesrv_option
from ..output import Answer, ProgressLine, note, print_json, print_table
from ..signals import deferred_interrupts
from ..statuses import OFFSETS, cluster_document, registered_document

if TYPE_CHECKING:
    from penstock.client import Admin
    from penstock.deploy import LocalCluster, Node, Plan, UpReport

T = TypeVar("T")

MODE_NAMES = ("async", "flush", "sync", "durable")
BASE_PORT_HELP = (
    "Nameservers from here, etcd 9 above, brokers from 1035 above, their metrics from 1235 above, one port each; a "
    "second cluster beside this one: 2000 more, as 11876. [9876] 0: free ones"
)
ANY_DIR_HELP = "A local cluster's directory; without it, what the nameservers know of any cluster."


@click.group()
def cluster() -> None:
    """A local cluster in the background, under one directory."""


def _opened(
    directory: str, progress: Callable[[str], None] = note, pause: Callable[[float], None] = time.sleep
) -> LocalCluster:
    from penstock.bench.health import open_cluster

    return open_cluster(directory, progress, pause)


@cluster.command()
@dir_option
@click.option("--shards", type=int, help="Broker groups, each with its own log. [2]")
@click.option("--replicas", type=int, help="Brokers per group, the master included. [2]")
@click.option("--nameservers", type=int, help="[1]")
@click.option("--base-port", type=int, help=BASE_PORT_HELP)
@click.option("--gateway", is_flag=True, help="And a gateway for RocketMQ 5's clients, 1795 below the base port: 8081.")
@click.option(
    "--mode",
    type=click.Choice(MODE_NAMES),
    help="When a send is acknowledged: in memory, synced, in memory of every replica, synced on every replica. [async]",
)
@click.option(
    "--coordinator",
    type=click.Choice(["none", "file", "etcd"]),
    help="Who elects masters: nobody (id 0 is master); the first nameserver; every nameserver, with an etcd that is "
    "started too (Debian package etcd-server). [file]",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    callback=key_values,
    metavar="KEY=VALUE",
    help="Into broker.conf, or namesrv.conf, or both.",
)
@json_option
def up(directory: str, answer: Answer, **options: Any) -> None:
    """Start the cluster in DIR, or what is missing of it; repeating it is harmless.

    Settings of an existing directory are kept; a new one gets 64 MiB log files, so that trying it stays small.
    """
    from penstock.bench.health import await_replicas, refusals

    from .kernels import warm_up

    began = time.monotonic()
    progress = ProgressLine(every_s=2.0)
    report: UpReport | None = None
    try:
        if not _opened(directory).is_complete:
            warm_up(progress)
        with deferred_interrupts() as check:

            def pause(seconds: float) -> None:
                check()
                time.sleep(seconds)

            made = _opened(directory, progress.show, pause)
            report = made.up(**options, check=_require_good_settings)
            late = await_replicas(made, pause=pause)
            refused = refusals(made) if late else {}
    except KeyboardInterrupt:
        progress.clear()
        runs = f"the cluster runs: `penstock cluster down --dir {directory}` ends it"
        note(f"interrupted: {'what this command had started was ended again' if report is None else runs}")
        raise
    finally:
        progress.clear()
    catches_up = "is not in sync with its master yet: it catches up, see `penstock cluster status`"
    notes = [*report.notes, *(f"{name} {catches_up}" for name in late if name not in refused)]
    document = {
        "directory": str(made.directory),
        "namesrv": made.plan.nameserver_addresses,
        "started": list(report.started),
        "already_running": list(report.already_running),
        "thawed": list(report.thawed),
        "notes": notes,
        "not_following": refused,
        "seconds": round(time.monotonic() - began, 3),
    }

    def people() -> None:
        for line in notes:
            note(line)
        done = {"started": report.started, "thawed": report.thawed, "already running": report.already_running}
        print("; ".join(f"{what}: {', '.join(names)}" for what, names in done.items() if names))
        print(f"nameservers {document['namesrv']}   ({document['seconds']:.1f} s)")
        print_table(["node", "address", "store"], [[s.node.name, s.node.address, s.store_path] for s in made.states()])
        if document["namesrv"] != "127.0.0.1:9876":
            print(f"next: export PENSTOCK_NAMESRV='{document['namesrv']}'   (programs: the clients' first argument)")

    answer(document, people)
    _require_followers(refused)


def _require_followers(refused: dict[str, str]) -> None:
    """End with an error that names the slaves without which a master's messages have no copy."""
    from penstock.deploy import DeployError

    if refused:
        told = "; ".join(f"{name} does not follow its master: {reason}" for name, reason in refused.items())
        raise DeployError(f"the cluster runs, but {told}")


def _require_good_settings(plan: Plan) -> None:
    """Refuse what a node would refuse, before it stands in the cluster's plan and the node starts no more."""
    from penstock.deploy import DeployUsage
    from penstock.deploy.files import FOR_OWNER, write_whole
    from penstock.proto.errors import ConfigError

    with tempfile.TemporaryDirectory() as folder:
        for node in plan.nodes:
            if not node.is_coordinator:
                path = Path(folder) / node.config_name
                write_whole(path, plan.config_text(node, Path(folder)), FOR_OWNER)
                try:
                    _loaded(node, path)
                except ConfigError as error:
                    told = re.sub(rf"^{re.escape(str(path))}:(\d+: )?", "", error.message)
                    raise DeployUsage(f"--set: {told.strip()}") from error
    if plan.settings.get("authenticationEnabled", "").lower() == "true" and not os.environ.get(
        "PENSTOCK_CREDENTIALS_FILE"
    ):
        raise DeployUsage(
            "--set authenticationEnabled=true: set PENSTOCK_CREDENTIALS_FILE to the file of a user, with which this "
            "and other commands look at the cluster"
        )
    if plan.settings.get("tls.server.mode") == "enforcing" and not os.environ.get("PENSTOCK_TLS_CA_FILE"):
        raise DeployUsage(
            "--set tls.server.mode=enforcing: set PENSTOCK_TLS_CA_FILE to the authority's certificate, with which "
            "this and other commands look at the cluster"
        )


def _loaded(node: Node, path: Path) -> object:
    """The configuration of a node in its file. Raises ConfigError."""
    from penstock.broker.config import load_broker_config
    from penstock.gateway.config import load_gateway_config
    from penstock.nameserver.config import load_nameserver_config

    if node.is_broker:
        return load_broker_config(path, strict=True)
    return load_gateway_config(path) if node.is_gateway else load_nameserver_config(path)


@cluster.command()
@click.argument("broker_name")
@asking
def forget(admin: Admin, answer: Answer, broker_name: str) -> None:
    """Have the nameservers tell no more of a broker group that is gone for good.

    They remember one of which no member lives, so that nobody takes what is left of its topics for all of it.
    """
    admin.forget_shard(broker_name)
    answer({"broker_name": broker_name, "forgotten": True}, f"{broker_name} forgotten")


def _on_cluster(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--dir`` and ``--json``, of a command that is called with the cluster and an ``Answer``."""

    @dir_option
    @json_option
    @functools.wraps(function)
    def command(*, directory: str, **options: Any) -> Any:
        return function(_opened(directory), **options)

    return command


def _on_any_cluster(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--dir`` or ``--namesrv``, and ``--json``, of a command that is called with what was given and an ``Answer``."""

    @click.option("--dir", "directory", metavar="DIR", type=click.Path(file_okay=False), help=ANY_DIR_HELP)
    @namesrv_option
    @json_option
    @functools.wraps(function)
    def command(*, directory: str | None, namesrv: str, **options: Any) -> Any:
        made = None if directory is None else _opened(directory)
        return function(made, namesrv, **options)

    return command


@cluster.command()
@_on_any_cluster
def status(made: LocalCluster | None, namesrv: str, answer: Answer) -> None:
    """Roles, epochs, offsets, lag and process ids: of a local cluster, or of what nameservers know."""
    document = registered_document(namesrv) if made is None else cluster_document(made)
    answer(document, lambda: _print_status(document))


def _print_status(document: dict[str, Any]) -> None:
    others = [*document["coordinators"], *document["nameservers"], *document["gateways"]]
    for node in [*others, *document["brokers"]]:
        node["pid"] = str(node["pid"] or "-")  # a name more than a number
    print_table(["node", "state", "address", "pid"], [[n["name"], n["state"], n["address"], n["pid"]] for n in others])
    for broker in document["brokers"]:
        broker["in_sync"] = ",".join(map(str, broker["sync_state_set"] or ())) or None
        if broker["not_following_because"]:
            broker["state"] += ", not following"
    columns = ["name", "state", "role", "epoch", "in_sync", "address", "pid", *OFFSETS]
    print_table(columns, [[broker[column] for column in columns] for broker in document["brokers"]])
    for broker in document["brokers"]:
        if broker["silent_because"]:
            note(f"{broker['name']} runs and tells nothing of itself: {broker['silent_because']}")
        if broker["not_following_because"]:
            note(f"{broker['name']} does not follow its master: {broker['not_following_because']}")
        elif broker["coordination_trouble"]:
            note(f"{broker['name']} cannot read its group's register, no election: {broker['coordination_trouble']}")
        if broker["gave_up"]:
            note(f"{broker['name']} gave up a part of its log: {broker['gave_up']}")
    for name in document.get("absent", ()):
        note(f"of broker group {name} no member lives")


@cluster.command()
@_on_cluster
def down(made: LocalCluster, answer: Answer) -> None:
    """End every node in order: gateway, slaves, masters, nameservers, etcd. Data stay."""
    ended, seconds = _timed(made.down)
    told = f"ended: {', '.join(ended)} ({seconds:.1f} s)" if ended else "nothing was running"
    answer({"ended": ended, "seconds": seconds}, told)


def _timed(action: Callable[..., T], *arguments: Any) -> tuple[T, float]:
    """What the action answers, and its seconds."""
    began = time.monotonic()
    return action(*arguments), round(time.monotonic() - began, 3)


@cluster.command()
@click.argument("node", required=False)
@click.option("-n", "--lines", default=20, show_default=True, type=click.IntRange(1, 100_000))
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on.")
@_on_cluster
def logs(made: LocalCluster, answer: Answer, node: str | None, lines: int, follow: bool) -> None:
    """The last lines of NODE's log, or of every node's."""
    plan = made.plan
    nodes = [plan.node(node)] if node else list(plan.nodes)
    paths = {n.name: made.state(n).log_path for n in nodes}
    if answer.as_json:
        shown = [{"name": n, "path": str(path), "lines": made.log_lines(n, lines)} for n, path in paths.items()]
        print_json({"logs": shown})
        return
    positions = {name: path.stat().st_size if path.exists() else 0 for name, path in paths.items()}
    prefix = len(nodes) > 1
    for n in nodes:
        for line in made.log_lines(n.name, lines):
            print(f"{n.name}: {line}" if prefix else line)
    while follow:
        time.sleep(0.2)
        for name, path in paths.items():
            positions[name] = print_new(name if prefix else "", path, positions[name])


@cluster.command()
@click.argument("shard")
@click.option("--to", "to_id", required=True, type=click.IntRange(0), help="The slave's broker id.")
@_on_any_cluster
def switch(made: LocalCluster | None, namesrv: str, answer: Answer, shard: str, to_id: int) -> None:
    """Make the slave --to the master of SHARD, as planned: no message is refused for good."""
    from penstock.bench.health import switch_master
    from penstock.deploy import DeployUsage

    brokers = (registered_document(namesrv) if made is None else cluster_document(made))["brokers"]
    addresses = {broker["broker_id"]: broker["address"] for broker in brokers if broker["broker_name"] == shard}
    if not addresses:
        shards = sorted({broker["broker_name"] for broker in brokers})
        raise DeployUsage(f"no shard {shard!r} in this cluster: {', '.join(shards)}")
    if to_id not in addresses:
        raise DeployUsage(f"{shard} has no broker {to_id}: {', '.join(map(str, addresses))}")
    switched, seconds = _timed(switch_master, list(addresses.values()), shard, to_id)
    document = {
        "shard": shard,
        "former": switched.former_broker_id,
        "master": to_id,
        "epoch": switched.epoch,
        "seconds": seconds,
    }
    answer(document, f"{shard}: broker {to_id} is master in epoch {switched.epoch} ({seconds:.2f} s)")


def print_new(name: str, path: Path, position: int) -> int:
    """Print the whole lines behind ``position``; the position behind them."""
    try:
        with open(path, "rb") as source:
            if source.seek(0, 2) < position:
                position = 0  # the node began a new file
            source.seek(position)
            fresh = source.read()
    except OSError:
        return position
    whole = fresh[: fresh.rfind(b"\n") + 1]
    for line in whole.decode(errors="replace").splitlines():
        print(f"{name}: {line}" if name else line, flush=True)
    return position + len(whole)


def _fault(action: str, text: str, done: str) -> None:
    """Add the command ``cluster ACTION NODE``."""

    @cluster.command(name=action, help=text)
    @click.argument("node")
    @_on_cluster
    def command(made: LocalCluster, answer: Answer, node: str) -> None:
        _, seconds = _timed(getattr(made, action), node)
        answer({"node": node, "action": action, "seconds": seconds}, f"{node} {done} ({seconds:.2f} s)")


_fault("kill", "SIGKILL: NODE ends as in a crash.", "was killed")
_fault("stop", "SIGTERM: NODE ends in order; a master hands over first.", "has ended")
_fault("freeze", "SIGSTOP: NODE keeps its connections and answers nothing.", "is frozen")
_fault("thaw", "SIGCONT: NODE goes on.", "goes on")
_fault("restart", "End NODE if it runs, start it, and wait until it serves.", "serves again")
