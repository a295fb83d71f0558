"""The sample configurations load without a complaint."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.broker import __main__ as broker
from penstock.broker.config import load_broker_config
from penstock.nameserver import __main__ as nameserver
from penstock.nameserver.config import load_nameserver_config
from penstock.proto.errors import ConfigError

SAMPLES = Path(__file__).parents[3] / "deploy" / "samples"


@pytest.mark.parametrize("name", ["broker-master.conf", "broker-slave.conf"])
def test_a_sample_broker_configuration_loads_without_warnings(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = load_broker_config(SAMPLES / name)
    assert config.identity.broker_name == "broker-a"
    assert not caplog.records


def test_the_sample_nameserver_configuration_loads() -> None:
    assert load_nameserver_config(SAMPLES / "namesrv.conf").listen_port == 9876


CLUSTER = "brokerClusterName=DefaultCluster;deleteWhen=04;fileReservedTime=48;flushDiskType=ASYNC_FLUSH"
"""Lines of RocketMQ's files, in one; lists with ; of their own have a comma here."""
MASTER, SYNC, SLAVE = (f"{CLUSTER};brokerRole={role}" for role in ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"))
PEERS = "n0-127.0.0.1:9878,n1-127.0.0.1:9868,n2-127.0.0.1:9858"
CONTROLLER = f"controllerDLegerGroup=group1;controllerDLegerPeers={PEERS};controllerDLegerSelfId=n0"
ONE_CONTROLLER = CONTROLLER.replace(PEERS, "n0-127.0.0.1:9878")
ELECTED = (
    "brokerClusterName=DefaultCluster;brokerName=broker-a;brokerId=-1;brokerRole=SLAVE;deleteWhen=04;fileReservedTime=48;"
    "enableControllerMode=true;controllerAddr=127.0.0.1:9878;namesrvAddr=127.0.0.1:9876;allAckInSyncStateSet=true;"
    "listenPort=30911;storePathRootDir=/tmp/rmqstore/node00;storePathCommitLog=/tmp/rmqstore/node00/commitlog"
)
NUMBERED = ELECTED.replace("brokerId=-1", "brokerId=1")
RAFT = (
    "brokerClusterName=RaftCluster;brokerName=RaftNode00;listenPort=30911;namesrvAddr=127.0.0.1:9876;"
    "storePathRootDir=/tmp/rmqstore/node00;storePathCommitLog=/tmp/rmqstore/node00/commitlog;enableDLegerCommitLog=true;"
    "dLegerGroup=RaftNode00;dLegerPeers=n0-127.0.0.1:40911,n1-127.0.0.1:40912,n2-127.0.0.1:40913;dLegerSelfId=n0;"
    "sendMessageThreadPoolNums=16"
)
CONTAINED = (
    "brokerClusterName=DefaultCluster;brokerName=broker-a;flushDiskType=ASYNC_FLUSH;storePathRootDir=/root/broker-a/store;"
    "storePathCommitLog=/root/broker-a/store/commitlog;listenPort=10911;haListenPort=10912;totalReplicas=2;"
    "inSyncReplicas=2;minInSyncReplicas=1;enableAutoInSyncReplicas=true;slaveReadEnable=true;"
    "brokerHeartbeatInterval=1000;brokerNotActiveTimeoutMillis=5000;sendHeartbeatTimeoutMillis=1000;"
    "enableSlaveActingMaster=true"
)
CONTAINER = (
    "listenPort=10811;namesrvAddr=172.22.144.49:9876;fetchNamesrvAddrByAddressServer=false;"
    "brokerConfigPaths=/root/2container-2m-2s/broker-a-in-container1.conf:/root/2container-2m-2s/broker-b.conf"
)


def written(tmp_path: Path, lines: str) -> Path:
    path = tmp_path / "theirs.conf"
    path.write_text(lines.replace(";", "\n").replace(",", ";"))
    return path


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        pytest.param(f"{MASTER};brokerName=broker-a;brokerId=0", "", id="broker.conf, 2m-2s-async, 2m-noslave"),
        pytest.param(f"{MASTER};brokerName=broker-trace;brokerId=0", "", id="2m-noslave/broker-trace"),
        pytest.param(f"{SYNC};brokerName=broker-b;brokerId=0", "", id="2m-2s-sync"),
        pytest.param(
            f"{SLAVE};brokerName=broker-a;brokerId=1",
            "namesrvAddr or haMasterAddress must be given with brokerRole=SLAVE",  # there it comes on the command line
            id="2m-2s-async, 2m-2s-sync: a slave",
        ),
        pytest.param(f"{SLAVE};brokerName=broker-a;brokerId=1;namesrvAddr=n:9876", "", id="a slave that is told where"),
        pytest.param(
            ELECTED,
            r"brokerId must be 0\.\.2147483647 \(each broker has its own in its group\), not '-1'",
            id="quick-start",
        ),
        pytest.param(
            NUMBERED,
            "brokerRole must be ASYNC_MASTER or SYNC_MASTER with enableControllerMode",
            id="quick-start with a number",
        ),
        pytest.param(
            ELECTED.replace("brokerId=-1", "brokerId=1").replace("=SLAVE", "=SYNC_MASTER"),
            "",
            id="quick-start, corrected",
        ),
        pytest.param(RAFT, "enableDLegerCommitLog = 'true': there is no DLedger.*set enableCon", id="dledger"),
        pytest.param(
            f"{CONTAINED};brokerId=0;brokerRole=SYNC_MASTER",
            "enableSlaveActingMaster = 'true': a slave never acts for its master",
            id="2container-2m-2s: a master",
        ),
        pytest.param(
            f"{CONTAINED};brokerId=1;brokerRole=SLAVE",
            "enableSlaveActingMaster = 'true': a slave never acts for its master",
            id="2container-2m-2s: a slave",
        ),
        pytest.param(CONTAINER, "brokerConfigPaths = .* start one with each file that is named there", id="container"),
    ],
)
def test_a_broker_s_file_of_rocketmq_starts_or_says_why_not(tmp_path: Path, lines: str, reason: str) -> None:
    if reason:
        with pytest.raises(ConfigError, match=reason):
            load_broker_config(written(tmp_path, lines))
    else:
        load_broker_config(written(tmp_path, lines))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        pytest.param(f"enableControllerInNamesrv=true;{ONE_CONTROLLER}", "", id="quick-start"),
        pytest.param(
            f"<!--;  a licence;-->;listenPort=9876;enableControllerInNamesrv=true;{CONTROLLER}",
            "controllerDLegerPeers = .*: nameservers form no Raft group.*controllerType = ETCD",
            id="cluster-3n-namesrv-plugin",
        ),
        pytest.param(CONTROLLER, "controllerDLegerPeers = .*: nameservers form no Raft", id="cluster-3n-independent"),
        pytest.param(
            ONE_CONTROLLER,
            "controllerDLegerGroup: a controller's file.*enableControllerInNamesrv = true",
            id="controller-standalone",
        ),
        pytest.param("supportActingMaster=true", "supportActingMaster = 'true': a slave never acts", id="container"),
    ],
)
def test_a_nameserver_s_file_of_rocketmq_starts_or_says_why_not(tmp_path: Path, lines: str, reason: str) -> None:
    path = written(tmp_path, lines)
    if reason:
        with pytest.raises(ConfigError, match=reason):
            load_nameserver_config(path)
    else:
        assert load_nameserver_config(path).has_coordinator


def test_both_processes_take_the_names_of_keys_to_ignore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "supportActingMaster=true")
    assert nameserver.main(["-c", str(path)]) == 2
    assert broker.main(["-c", str(written(tmp_path, "aclEnable=true;brokerPermission=4"))]) == 2
    taken: list[object] = []
    monkeypatch.setattr(broker, "run", lambda *given: taken.append(given))
    monkeypatch.setattr(nameserver, "run", lambda *given: taken.append(given))
    for process in (broker, nameserver):
        process.main(["-c", "FILE", "--ignore-unsupported", "aclEnable, brokerPermission"])
    assert taken == [("FILE", ["aclEnable", "brokerPermission"])] * 2
    path = written(tmp_path, ONE_CONTROLLER)
    assert not load_nameserver_config(path, ["controllerDLegerGroup"]).has_coordinator
    assert load_broker_config(written(tmp_path, "aclEnable=true"), ["aclEnable"]) == load_broker_config(
        written(tmp_path, "aclEnable=false")
    )
