"""``penstock cluster``: a local cluster in the background."""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..options import dir_option, json_option, key_values, namesrv_option
from ..output import ProgressLine, note, print_json, print_table

if TYPE_CHECKING:
    from penstock.deploy import LocalCluster, NodeState, Plan
    from penstock.proto.wire.broker_pb2 import BrokerStatus

MODE_NAMES = ("async", "flush", "sync", "durable")
BASE_PORT_HELP = (
    "Nameservers from here, etcd 9 above, brokers from 1035 above, their metrics from 1235 above, one port each. "
    "A second cluster beside this one needs a base at least 10 away, and not about 200, 1035 or 1235. [9876] 0: free "
    "ones"
)
OFFSETS = ("min_offset", "max_offset", "flushed_offset", "confirm_offset", "lag_bytes")


@click.group()
def cluster() -> None:
    """A local cluster in the background, under one directory."""


def _opened(directory: str, progress: ProgressLine | None = None) -> LocalCluster:
    from penstock.bench.health import open_cluster

    return open_cluster(directory, progress.show if progress else note)


@cluster.command()
@dir_option
@click.option("--shards", type=int, help="Broker groups, each with its own log. [2]")
@click.option("--replicas", type=int, help="Brokers per group, the master included. [2]")
@click.option("--nameservers", type=int, help="[1]")
@click.option("--base-port", type=int, help=BASE_PORT_HELP)
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
@click.option("--set", "settings", multiple=True, callback=key_values, metavar="KEY=VALUE", help="Into broker.conf.")
@json_option
def up(directory: str, as_json: bool, **options: Any) -> None:
    """Start the cluster in DIR, or what is missing of it; repeating it is harmless.

    Settings of an existing directory are kept; a new one gets 64 MiB log files, so that trying it stays small.
    """
    from penstock.bench.health import await_replicas, refusals

    from .kernels import warm_up

    began = time.monotonic()
    progress = ProgressLine(every_s=2.0)
    try:
        made = _opened(directory, progress)
        if not made.is_complete:
            warm_up(progress)
        report = made.up(**options, check=_require_good_settings)
        late = await_replicas(made)
        refused = refusals(made) if late else {}
    finally:
        progress.clear()
    notes = [*report.notes, *(_late(name) for name in late if name not in refused)]
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
    if as_json:
        print_json(document)
        _require_followers(refused)
        return
    for line in notes:
        note(line)
    done = {"started": report.started, "thawed": report.thawed, "already running": report.already_running}
    print("; ".join(f"{what}: {', '.join(names)}" for what, names in done.items() if names))
    print(f"nameservers {document['namesrv']}   ({document['seconds']:.1f} s)")
    print_table(["node", "address", "store"], [[s.node.name, s.node.address, s.store_path] for s in made.states()])
    if document["namesrv"] != "127.0.0.1:9876":
        print(f"next: export PENSTOCK_NAMESRV='{document['namesrv']}'")
    _require_followers(refused)


def _require_followers(refused: dict[str, str]) -> None:
    """End with an error that names the slaves without which a master's messages have no copy."""
    from penstock.deploy import DeployError

    if refused:
        told = "; ".join(f"{name} does not follow its master: {reason}" for name, reason in refused.items())
        raise DeployError(f"the cluster runs, but {told}")


def _require_good_settings(plan: Plan) -> None:
    """Refuse what brokers would refuse, before it stands in the cluster's plan and no broker starts any more."""
    from penstock.broker.config import load_broker_config
    from penstock.deploy import DeployUsage
    from penstock.proto.errors import ConfigError

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "broker.conf"
        for node in plan.nodes:
            if node.is_broker:
                path.write_text(plan.config_text(node, Path(folder)))
                try:
                    load_broker_config(path, strict=True)
                except ConfigError as error:
                    told = re.sub(rf"^{re.escape(str(path))}:(\d+: )?", "", error.message)
                    raise DeployUsage(f"--set: {told.strip()}") from error


def _late(name: str) -> str:
    """A note: a slave follows and has not everything yet."""
    return f"{name} is not in sync with its master yet: it catches up, see `penstock cluster status`"


@cluster.command()
@click.argument("broker_name")
@namesrv_option
@json_option
def forget(broker_name: str, namesrv: str, as_json: bool) -> None:
    """Have the nameservers tell no more of a broker group that is gone for good.

    They remember one of which no member lives, so that nobody takes what is left of its topics for all of it.
    """
    from penstock.client import Admin

    with Admin(namesrv) as admin:
        admin.forget_shard(broker_name)
    if as_json:
        print_json({"broker_name": broker_name, "forgotten": True})
    else:
        print(f"{broker_name} forgotten")


@cluster.command()
@dir_option
@json_option
def status(directory: str, as_json: bool) -> None:
    """Roles, epochs, offsets, lag and process ids."""
    document = cluster_document(_opened(directory))
    if as_json:
        print_json(document)
        return
    others = [*document["coordinators"], *document["nameservers"]]
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
        if broker["not_following_because"]:
            note(f"{broker['name']} does not follow its master: {broker['not_following_because']}")
        if broker["gave_up"]:
            note(f"{broker['name']} gave up a part of its log: {broker['gave_up']}")


def cluster_document(made: LocalCluster) -> dict[str, Any]:
    """What ``cluster status --json`` prints. What a node does not answer is ``null``."""
    from penstock.bench.health import broker_statuses

    states = made.states()
    brokers = [state for state in states if state.node.is_broker]
    running = [state for state in brokers if state.state == "running"]
    answers = broker_statuses([state.node.address for state in running])
    told = {state.node.name: answer for state, answer in zip(running, answers, strict=True)}
    return {
        "directory": str(made.directory),
        "namesrv": made.plan.nameserver_addresses,
        "mode": made.plan.mode,
        "coordinators": [_node_document(state) for state in states if state.node.is_coordinator],
        "nameservers": [_node_document(state) for state in states if state.node.is_nameserver],
        "brokers": [_broker_document(state, told.get(state.node.name)) for state in brokers],
    }


def _node_document(state: NodeState) -> dict[str, Any]:
    return {
        "name": state.node.name,
        "address": state.node.address,
        "pid": state.pid,
        "alive": state.is_alive,
        "state": state.state,
        "config_path": str(state.config_path),
        "log_path": str(state.log_path),
    }


def _broker_document(state: NodeState, answer: BrokerStatus | None) -> dict[str, Any]:
    from penstock.proto.wire.common_pb2 import Role

    offsets: dict[str, Any] = dict.fromkeys(OFFSETS)
    if answer is not None:
        offsets = {name: getattr(answer, name) for name in OFFSETS}
    is_slave = answer is not None and answer.role == Role.SLAVE
    if answer is not None and is_slave and not answer.is_following:
        offsets["lag_bytes"] = None  # how far the master is by now, it does not know
    return {
        **_node_document(state),
        "broker_name": state.node.broker_name,
        "broker_id": state.node.broker_id,
        "role": Role.Name(answer.role) if answer is not None else None,
        "epoch": answer.epoch if answer is not None else None,
        "sync_state_set": list(answer.sync_state_set) if answer is not None else None,
        "is_acting": answer.is_acting if answer is not None else None,
        **offsets,
        "following": answer.is_following if answer is not None and is_slave else None,
        "not_following_because": (answer.not_following_because if answer is not None else "") or None,
        "gave_up": (answer.gave_up if answer is not None else "") or None,
        "flush_mode": answer.flush_mode if answer is not None else None,
        "broker_role": answer.broker_role if answer is not None else None,
        "metrics_port": state.node.metrics_port,
        "store_path": str(state.store_path),
    }


@cluster.command()
@dir_option
@json_option
def down(directory: str, as_json: bool) -> None:
    """End every node in order: slaves, masters, nameservers, etcd. Data stay."""
    began = time.monotonic()
    ended = _opened(directory).down()
    seconds = round(time.monotonic() - began, 3)
    if as_json:
        print_json({"ended": ended, "seconds": seconds})
    else:
        print(f"ended: {', '.join(ended)} ({seconds:.1f} s)" if ended else "nothing was running")


@cluster.command()
@click.argument("node", required=False)
@dir_option
@click.option("-n", "--lines", default=20, show_default=True, type=click.IntRange(1, 100_000))
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on.")
@json_option
def logs(node: str | None, directory: str, lines: int, follow: bool, as_json: bool) -> None:
    """The last lines of NODE's log, or of every node's."""
    made = _opened(directory)
    plan = made.plan
    nodes = [plan.node(node)] if node else list(plan.nodes)
    if as_json:
        shown = [
            {"name": n.name, "path": str(made.state(n).log_path), "lines": made.log_lines(n.name, lines)} for n in nodes
        ]
        print_json({"logs": shown})
        return
    paths = {n.name: made.state(n).log_path for n in nodes}
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
@dir_option
@json_option
def switch(shard: str, to_id: int, directory: str, as_json: bool) -> None:
    """Make the slave --to the master of SHARD, as planned: no message is refused for good."""
    from penstock.bench.health import switch_master
    from penstock.deploy import DeployUsage

    made = _opened(directory)
    nodes = [node for node in made.plan.nodes if node.broker_name == shard]
    if not nodes:
        shards = sorted({node.broker_name for node in made.plan.nodes if node.broker_name})
        raise DeployUsage(f"no shard {shard!r} in this cluster: {', '.join(shards)}")
    if to_id not in [node.broker_id for node in nodes]:
        raise DeployUsage(f"{shard} has no broker {to_id}: {', '.join(str(node.broker_id) for node in nodes)}")
    began = time.monotonic()
    switched = switch_master([node.address for node in nodes], shard, to_id)
    seconds = round(time.monotonic() - began, 3)
    document = {
        "shard": shard,
        "former": switched.former_broker_id,
        "master": to_id,
        "epoch": switched.epoch,
        "seconds": seconds,
    }
    if as_json:
        print_json(document)
    else:
        print(f"{shard}: broker {to_id} is master in epoch {switched.epoch} ({seconds:.2f} s)")


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
    @dir_option
    @json_option
    def command(node: str, directory: str, as_json: bool) -> None:
        began = time.monotonic()
        getattr(_opened(directory), action)(node)
        seconds = round(time.monotonic() - began, 3)
        if as_json:
            print_json({"node": node, "action": action, "seconds": seconds})
        else:
            print(f"{node} {done} ({seconds:.2f} s)")


_fault("kill", "SIGKILL: NODE ends as in a crash.", "was killed")
_fault("freeze", "SIGSTOP: NODE keeps its connections and answers nothing.", "is frozen")
_fault("thaw", "SIGCONT: NODE goes on.", "goes on")
_fault("restart", "End NODE if it runs, start it, and wait until it serves.", "serves again")
