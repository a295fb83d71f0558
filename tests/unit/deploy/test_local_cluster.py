"""A local cluster's directory, ports and processes, with stand-ins for the real nodes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from penstock.deploy import (
    DeployError,
    DeployUsage,
    LocalCluster,
    Place,
    Plan,
    accepts_connections,
    ports,
    processes,
)
from penstock.deploy.plan import Node, new_plan
from tests.support.waiting import wait_until

FAKE = Path(__file__).with_name("fake_node.py")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    monkeypatch.setattr(processes, "python_command", lambda _, *arguments: [sys.executable, str(FAKE), *arguments])
    made = LocalCluster(tmp_path / "cluster")
    yield made
    if (made.directory / "cluster.json").exists():
        for state in made.states():
            if state.pid is not None:
                os.kill(state.pid, signal.SIGKILL)
        wait_until(lambda: not any(state.is_alive for state in made.states()), what="the end of all nodes")


def states(cluster: LocalCluster) -> dict[str, str]:
    return {state.node.name: state.state for state in cluster.states()}


def test_up_lays_out_the_directory_and_starts_every_node(cluster: LocalCluster) -> None:
    report = cluster.up(base_port=0)
    names = ("nameserver-0", "broker-a-0", "broker-a-1", "broker-b-0", "broker-b-1")
    assert report.started == names
    assert states(cluster) == dict.fromkeys(names, "running")
    master = (cluster.directory / "broker-a-0" / "broker.conf").read_text()
    slave = (cluster.directory / "broker-a-1" / "broker.conf").read_text()
    assert "mappedFileSizeCommitLog=67108864\n" in master
    assert "brokerRole=ASYNC_MASTER\n" in master
    assert "brokerName=broker-a\nbrokerId=1\n" in slave
    assert "brokerRole=ASYNC_MASTER\n" in slave, "as which it acts when it is elected"
    assert "enableControllerMode=true\n" in slave
    assert "enableControllerInNamesrv=true\n" in (cluster.directory / "nameserver-0" / "namesrv.conf").read_text()
    assert f"namesrvAddr={cluster.plan.nameserver_addresses}\n" in slave
    assert all(accepts_connections(node) for node in cluster.plan.nodes)


def test_up_again_changes_nothing(cluster: LocalCluster) -> None:
    cluster.up(shards=1, replicas=1, base_port=0)
    pids = [state.pid for state in cluster.states()]
    report = cluster.up()
    assert report.started == ()
    assert report.already_running == ("nameserver-0", "broker-a-0")
    assert [state.pid for state in cluster.states()] == pids


def test_up_on_a_half_dead_directory_starts_what_is_missing_and_says_so(cluster: LocalCluster) -> None:
    cluster.up(shards=1, replicas=2, base_port=0)
    cluster.kill("broker-a-0")
    cluster.freeze("broker-a-1")
    assert states(cluster)["broker-a-1"] == "frozen"
    (cluster.directory / "broker-a-0" / "broker.conf").unlink()
    report = cluster.up()
    assert report.started == ("broker-a-0",)
    assert report.thawed == ("broker-a-1",)
    assert "broker-a-0 was not running any more" in report.notes[0]
    assert set(states(cluster).values()) == {"running"}


def test_down_ends_slaves_then_masters_then_nameservers(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.up(shards=1, replicas=2, base_port=0)
    assert cluster.down() == ["broker-a-1", "broker-a-0", "nameserver-0"]
    assert set(states(cluster).values()) == {"dead"}
    assert "ended" in (cluster.directory / "broker-a-0" / "broker-a-0.log").read_text()
    assert cluster.down() == []
    assert cluster.up().notes == (), "what was ended on purpose is not told as lost"


def test_down_kills_what_does_not_end(cluster: LocalCluster) -> None:
    cluster.up(shards=1, replicas=1, base_port=0, settings={"stubborn": "yes"})
    cluster.down(timeout_s=1.5)
    assert set(states(cluster).values()) == {"dead"}


def test_a_frozen_node_is_ended_by_down(cluster: LocalCluster) -> None:
    cluster.up(shards=1, replicas=1, base_port=0)
    cluster.freeze("broker-a-0")
    assert cluster.down() == ["broker-a-0", "nameserver-0"]
    assert "ended" in cluster.log_lines("broker-a-0", 1)


def test_thaw_and_restart_bring_a_node_back(cluster: LocalCluster) -> None:
    cluster.up(shards=1, replicas=1, base_port=0)
    cluster.freeze("broker-a-0")
    cluster.thaw("broker-a-0")
    wait_until(lambda: states(cluster)["broker-a-0"] == "running", what="the thawed node")
    before = cluster.state(cluster.plan.node("broker-a-0")).pid
    cluster.restart("broker-a-0")
    after = cluster.state(cluster.plan.node("broker-a-0")).pid
    assert after is not None
    assert after != before


def test_a_recycled_pid_is_never_taken_for_a_node(cluster: LocalCluster) -> None:
    cluster.up(shards=1, replicas=1, base_port=0)
    cluster.kill("broker-a-0")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        try:
            document = {"pid": stranger.pid, "started": processes.start_of(stranger.pid)}
            (cluster.directory / "broker-a-0" / "broker-a-0.pid").write_text(json.dumps(document))
            with pytest.raises(DeployError, match="does not run"):
                cluster.kill("broker-a-0")
            assert cluster.down() == ["nameserver-0"]
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_clock_that_is_set_makes_no_node_a_stranger(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.up(shards=1, replicas=1, base_port=0)
    booted = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted + 86)  # it follows the clock: NTP, a VM resumed
    cluster.freeze("broker-a-0")
    cluster.thaw("broker-a-0")
    assert cluster.down() == ["broker-a-0", "nameserver-0"]


def test_a_taken_port_is_named_with_what_to_do_and_nothing_is_started(cluster: LocalCluster) -> None:
    names, brokers = ports.planned(0, 1, 1)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", brokers[0]))
        other.listen()
        with pytest.raises(DeployUsage, match=rf"port {brokers[0]}, which broker-a-0 needs.*--base-port"):
            cluster.up(shards=1, replicas=1, base_port=names[0])
    assert not (cluster.directory / "nameserver-0").exists()


def test_the_node_of_another_cluster_that_has_the_port_is_named(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.up(shards=1, replicas=1, base_port=0)
    broker = cluster.plan.node("broker-a-0")
    other = LocalCluster(tmp_path / "other")
    with pytest.raises(DeployUsage) as raised:
        other.up(shards=1, replicas=1, base_port=broker.port)  # its nameserver there
    assert f"is taken by broker-a-0 of the cluster in {cluster.directory}, pid " in str(raised.value)
    assert f"This cluster needs {broker.port}, {broker.port + 1035}, {broker.port + 1235}" in str(raised.value)


def test_more_brokers_than_ports_between_brokers_and_metrics_are_refused() -> None:
    with pytest.raises(DeployUsage, match=r"208 brokers.*at most 200"):
        ports.planned(20_000, 1, 26 * 8)


def test_free_ports_that_another_program_found_are_its_own_while_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    found = "from penstock.deploy import ports; print(ports.planned(0, 1, 1)[0][0], flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", found], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        (ours,), _ = ports.planned(0, 1, 1)
        tried = iter([theirs, theirs + 9, ours, theirs])
        monkeypatch.setattr(ports.random.SystemRandom, "randint", lambda *_: next(tried))
        monkeypatch.setattr(ports, "_ATTEMPTS", 3)
        with pytest.raises(DeployUsage, match="no block of free ports"):
            ports.planned(0, 1, 1)
        other.communicate("\n")
    assert ports.planned(0, 1, 1)[0] == [theirs], "free again when that program has ended"


def test_nodes_are_told_which_file_their_log_is(cluster: LocalCluster) -> None:
    cluster.up(shards=1, replicas=1, base_port=0)
    pid = cluster.state(cluster.plan.node("broker-a-0")).pid
    assert psutil.Process(pid).environ()["PENSTOCK_LOG_FILE"].endswith("/broker-a-0/broker-a-0.log")


def test_a_node_that_ends_at_its_start_is_reported_with_its_reason(cluster: LocalCluster) -> None:
    with pytest.raises(DeployUsage, match="broker-a-0 ended at its start: the store is locked"):
        cluster.up(shards=1, replicas=1, base_port=0, settings={"fail": "yes"})


def test_a_node_that_does_not_serve_in_time_is_named(cluster: LocalCluster, tmp_path: Path) -> None:
    slow = LocalCluster(tmp_path / "cluster", probe=lambda node: node.is_nameserver)
    with pytest.raises(DeployError, match="broker-a-0 runs and does not serve"):
        slow.up(shards=1, replicas=1, base_port=0, timeout_s=1.0)


def test_a_directory_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(DeployUsage, match=r"is not empty \(thesis.tex\)"):
        LocalCluster(tmp_path).up()


def test_another_shape_on_the_same_directory_is_refused(cluster: LocalCluster) -> None:
    cluster.up(shards=1, replicas=1, base_port=0)
    for shards in (3, 0):
        with pytest.raises(DeployUsage, match=f"holds a cluster with --shards 1, not {shards}"):
            cluster.up(shards=shards)
    cluster.up(base_port=0)  # any port: what it has


def test_a_damaged_plan_is_reported(cluster: LocalCluster) -> None:
    cluster.directory.mkdir()
    (cluster.directory / "cluster.json").write_text('{"version": 1, "nodes": [')
    with pytest.raises(DeployUsage, match=r"cluster\.json cannot be read"):
        cluster.up()
    (cluster.directory / "cluster.json").unlink()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shards": 0}, "--shards 0"),
        ({"mode": "sync", "replicas": 1}, "every send would be refused"),
        ({"mode": "fast"}, "--mode fast"),
        ({"coordinator": "etcd", "replicas": 1}, "nobody to elect"),
        ({"settings": {"listenPort": "1"}}, "chooses that key for each node"),
        ({"settings": {"brokerRole": "SLAVE"}}, "slaves come of --replicas"),
        ({"settings": {"a b": "1"}}, "key=value"),
        ({"base_port": 70_000}, "--base-port 70000"),
    ],
)
def test_bad_options_are_refused_before_anything_is_started(
    tmp_path: Path, options: dict[str, object], reason: str
) -> None:
    with pytest.raises(DeployUsage, match=reason):
        LocalCluster(tmp_path).up(**options)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_without_etcd_it_is_said_what_to_install_and_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeployUsage, match=r"no program 'etcd'.*apt-get install etcd-server"):
        LocalCluster(tmp_path / "cluster").up(coordinator="etcd", base_port=0)
    assert [path.name for path in (tmp_path / "cluster").iterdir()] == [".lock"]


def test_every_nameserver_is_told_of_the_one_etcd() -> None:
    plan = new_plan(
        shards=1, replicas=2, nameservers=2, mode="async", coordinator="etcd", base_port=20_000, settings={}
    )
    etcd, *others = plan.nodes
    assert (etcd.name, etcd.port, list(etcd.ports)) == ("coordinator-0", 20_009, [20_009, 20_209])
    assert "listen-client-urls: http://127.0.0.1:20009\n" in plan.config_text(etcd, Path("/x"))
    assert 'data-dir: "/x/etcd"\n' in plan.config_text(etcd, Path("/x"))
    for node in (node for node in others if node.is_nameserver):
        text = plan.config_text(node, Path("/x"))
        assert "enableControllerInNamesrv=true\ncontrollerType=ETCD\netcdEndpoints=127.0.0.1:20009\n" in text


def test_a_second_command_at_the_same_time_is_told_to_wait(cluster: LocalCluster) -> None:
    cluster.up(shards=1, replicas=1, base_port=0)
    with cluster.locked(), pytest.raises(DeployError, match="another command"):
        LocalCluster(cluster.directory).down()


@pytest.mark.parametrize(("mode", "flush", "role"), [("flush", "SYNC", "ASYNC"), ("durable", "SYNC", "SYNC")])
def test_modes_choose_flush_and_role(cluster: LocalCluster, mode: str, flush: str, role: str) -> None:
    cluster.up(shards=1, replicas=2, mode=mode, base_port=0)
    text = (cluster.directory / "broker-a-0" / "broker.conf").read_text()
    assert f"flushDiskType={flush}_FLUSH\nbrokerRole={role}_MASTER\n" in text


def test_an_interrupted_start_leaves_nothing_behind_that_it_started(cluster: LocalCluster) -> None:
    cluster.up(shards=1, replicas=1, base_port=0)
    cluster.kill("broker-a-0")
    looks: list[float] = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        raise KeyboardInterrupt

    again = LocalCluster(cluster.directory, lambda node: False, pause=pause)
    with pytest.raises(KeyboardInterrupt):
        again.up()
    assert looks
    assert states(cluster) == {"nameserver-0": "running", "broker-a-0": "dead"}


def test_what_a_start_tells_of_a_node_was_written_since(cluster: LocalCluster) -> None:
    cluster.up(shards=1, replicas=1, base_port=0)
    cluster.down()
    (cluster.directory / "broker-a-0" / "broker-a-0.log").write_text("ERROR x error=of another day\n")
    told: list[str] = []
    LocalCluster(cluster.directory, lambda node: not node.is_broker or bool(told), told.append).up()
    assert told[0].startswith("waiting for broker-a-0 ")
    assert "another day" not in told[0]
    cluster.kill("broker-a-0")

    def killing(node: Node) -> bool:
        if node.is_broker:
            cluster.kill(node.name)
        return not node.is_broker

    with pytest.raises(DeployError, match="broker-a-0 ended at its start: ") as raised:
        LocalCluster(cluster.directory, killing).up()
    assert "another day" not in str(raised.value)


def test_nodes_whose_pid_files_are_missing_are_known_again(cluster: LocalCluster) -> None:
    cluster.up(shards=1, replicas=1, base_port=0)
    pids = [state.pid for state in cluster.states()]
    (cluster.directory / "nameserver-0" / "nameserver-0.pid").unlink()
    (cluster.directory / "broker-a-0" / "broker-a-0.pid").write_text("torn")
    assert cluster.up().already_running == ("nameserver-0", "broker-a-0")
    assert [state.pid for state in cluster.states()] == pids
    (cluster.directory / "broker-a-0" / "broker-a-0.pid").unlink()
    assert cluster.down() == ["broker-a-0", "nameserver-0"]


def test_a_plan_that_the_caller_refuses_is_not_kept(cluster: LocalCluster) -> None:
    cluster.up(shards=1, replicas=1, base_port=0)
    before = cluster.plan

    def refuse(_: Plan) -> None:
        raise DeployUsage("no")

    with pytest.raises(DeployUsage, match="no"):
        cluster.up(settings={"maxMessageSize": "5"}, check=refuse)
    assert cluster.plan == before


def test_a_node_that_is_stopped_tells_how_it_ended_and_can_be_started_again(cluster: LocalCluster) -> None:
    cluster.up(shards=1, replicas=1, base_port=0)
    report = cluster.stop("broker-a-0", timeout_s=5.0)
    assert (report.name, report.exit_code, report.killed) == ("broker-a-0", 0, False)
    assert states(cluster) == {"nameserver-0": "running", "broker-a-0": "dead"}
    with pytest.raises(DeployError, match="broker-a-0 does not run: nothing to stop"):
        cluster.stop("broker-a-0")
    cluster.start("broker-a-0")
    assert states(cluster)["broker-a-0"] == "running"


def test_a_killed_node_has_left_its_port_when_kill_returns(cluster: LocalCluster) -> None:
    cluster.up(shards=1, replicas=1, base_port=0)
    for _ in range(5):
        cluster.kill("broker-a-0")
        cluster.start("broker-a-0")
    assert states(cluster)["broker-a-0"] == "running"


def test_a_node_may_lie_elsewhere_and_be_started_through_another_command(cluster: LocalCluster, tmp_path: Path) -> None:
    wrapped = LocalCluster(cluster.directory, wrap=lambda node: ["env", f"NODE={node.name}"])
    store = str(tmp_path / "disk")
    wrapped.up(shards=1, replicas=1, base_port=0, places={"broker-a-0": Place(host="127.0.0.1", store=store)})
    again = LocalCluster(cluster.directory)
    (state,) = [state for state in again.states() if state.node.name == "broker-a-0"]
    assert state.store_path == Path(store)
    assert f"storePathRootDir={store}\n" in state.config_path.read_text()
    assert state.pid is not None
    assert psutil.Process(state.pid).environ()["NODE"] == "broker-a-0"


def test_files_that_cannot_be_written_are_named_and_nothing_runs_that_no_file_tells_of(cluster: LocalCluster) -> None:
    cluster.up(base_port=0, shards=1, replicas=1)
    cluster.down()
    for name, path in (
        ("cluster.json", cluster.directory / "cluster.json"),
        ("broker-a-0.pid", cluster.directory / "broker-a-0" / "broker-a-0.pid"),
    ):
        draft = path.with_name(f"{name}.new")
        draft.mkdir()
        with pytest.raises(DeployError, match=f"{path}: cannot be written: Is a directory"):
            cluster.up()
        draft.rmdir()
    words = str(cluster.config_path(cluster.plan.node("broker-a-0")))
    assert not [each.pid for each in psutil.process_iter(["cmdline"]) if words in (each.info["cmdline"] or [])]


def test_a_lost_node_that_cannot_be_written_down_keeps_no_other_from_ending(cluster: LocalCluster) -> None:
    cluster.up(base_port=0, shards=1, replicas=1)
    path = cluster.pid_path(cluster.plan.node("broker-a-0"))
    path.unlink()
    draft = path.with_name(f"{path.name}.new")
    draft.mkdir()
    assert "nameserver-0" in cluster.down()
    draft.rmdir()
    assert cluster.down() == ["broker-a-0"]
