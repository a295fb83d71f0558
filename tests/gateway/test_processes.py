from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from penstock.client import Admin
from penstock.deploy.plan import new_plan
from penstock.gateway.config import load_gateway_config
from penstock.gateway.v2.wire import definition_pb2 as v2
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.proto.errors import ConfigError
from tests.support.broker.running_broker import broker_process
from tests.support.client.running_cluster import RunningCluster
from tests.support.cluster.cluster import free_ports
from tests.support.gateway import Client, message
from tests.support.waiting import wait_until

ASKED = wire.QueryRouteRequest(topic=v2.Resource(name="missing"))


def test_a_gateway_in_a_brokers_process_answers_reaches_it_without_a_socket_and_ends_with_it(tmp_path: Path) -> None:
    port, data_port = free_ports(2)
    ports = {"gatewayPort": port, "dataPort": data_port}
    with (
        RunningCluster() as cluster,
        broker_process(tmp_path, brokerName="broker-z", namesrvAddr=cluster.namesrv, **ports) as broker,
    ):
        broker.wait_ready()
        wait_until(lambda: "gateway ready" in broker.log(), 60, "the gateway")
        with Admin(cluster.namesrv) as admin, Client(f"127.0.0.1:{port}") as client:
            assert client.code("QueryRoute", ASKED) == "TOPIC_NOT_FOUND"
            admin.create_topic("topic", 2, brokers=["broker-z"])
            assert client.send(message("topic")).status.code == v2.Code.OK
        sockets = psutil.Process(broker.process.pid).net_connections("tcp")
        assert [each.status for each in sockets if data_port in (each.laddr.port, *each.raddr[1:])] == ["LISTEN"]
        assert broker.end(signal.SIGTERM) == 0


def test_a_gateway_of_its_own_ends_when_it_is_told(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = tmp_path / "gateway.conf"
    with RunningCluster() as cluster:
        config.write_text(f"namesrvAddr={cluster.namesrv}\nlistenPort={port}\nbindAddress=127.0.0.1\n")
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen([sys.executable, "-m", "penstock.gateway", "-c", str(config)], stderr=log)
        try:
            wait_until(lambda: "gateway ready" in (tmp_path / "log").read_text(), 60, "the gateway")
            with Client(f"127.0.0.1:{port}") as client:
                assert client.code("QueryRoute", ASKED) == "TOPIC_NOT_FOUND"
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()


def test_a_bad_configuration_is_refused_by_its_key(tmp_path: Path) -> None:
    config = tmp_path / "gateway.conf"
    config.write_text("listenPort=70000\n")
    done = subprocess.run(
        [sys.executable, "-m", "penstock.gateway", "-c", str(config)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 2
    assert re.search("listenPort", done.stderr)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("namesrvAddr = 10.0.0.1", "namesrvAddr: nameserver address '10.0.0.1': must be host:port"),
        ("namesrvAddr =", "namesrvAddr: nameservers '': name at least one"),
        ("gatewayIP1 = two words", "gatewayIP1 must be a host or an address that clients can reach, not 'two words'"),
        ("gatewayIP1 = http://here:8081", "gatewayIP1 must be a host or an address that clients can reach"),
        ("gatewayIP1 = 0.0.0.0", "gatewayIP1 must be a host or an address that clients can reach"),
        ("gatewayIP1 = [::]", "gatewayIP1 must be a host or an address that clients can reach"),
        ("gatewayIP1 = ::%eth0", "gatewayIP1 must be a host or an address that clients can reach"),
        ("ignoreUnsupported = nonsense", "ignoreUnsupported: 'nonsense' cannot be ignored"),
    ],
)
def test_a_value_that_no_client_could_use_is_refused_with_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    config = tmp_path / "gateway.conf"
    config.write_text(f"# a gateway\n{line}\n")
    with pytest.raises(ConfigError, match=f"^{re.escape(f'{config}:2: {said}')}"):
        load_gateway_config(config)


@pytest.mark.parametrize(
    "host", ["10.0.0.7", "::1", "[2001:db8::1]", "fe80::1%eth0", "[fe80::1%eth0]", "broker-1.example.org", "my_host"]
)
def test_a_gateways_own_host_is_a_name_or_an_address(tmp_path: Path, host: str) -> None:
    config = tmp_path / "gateway.conf"
    config.write_text(f"gatewayIP1 = {host}\n")
    assert load_gateway_config(config).host == host


def test_a_plan_with_a_gateway_gives_it_rocketmqs_port_and_the_clusters_users() -> None:
    plan = new_plan(settings={"authenticationEnabled": "true"}, gateway=True)
    node = plan.node("gateway-0")
    assert (node.port, node.config_name, node.ports) == (8081, "gateway.conf", {8081: "its services"})
    text = plan.config_text(node, Path("/x"))
    assert "namesrvAddr=127.0.0.1:9876\n" in text
    assert "authenticationEnabled=true\n" in text
    assert plan.with_gateway() is plan
