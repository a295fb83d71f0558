"""Who a local cluster waits for, as its brokers tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.bench import health
from penstock.deploy import LocalCluster, Node, NodeState
from penstock.proto.wire.broker_pb2 import BrokerStatus
from penstock.proto.wire.common_pb2 import MASTER, SLAVE


class Two(LocalCluster):
    """A master and one slave that run."""

    def states(self) -> list[NodeState]:
        nodes = [Node(f"broker-a-{number}", 20_000 + number, "broker-a", number) for number in (0, 1)]
        return [NodeState(node, "running", 1, Path(), Path(), Path(), Path()) for node in nodes]


@pytest.mark.parametrize(("is_learner", "is_shown", "late"), [(False, True, 1), (True, True, 0), (True, False, 2)])
def test_a_learner_is_only_waited_for_until_it_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_learner: bool, is_shown: bool, late: int
) -> None:
    master = BrokerStatus(role=MASTER, is_acting=True, is_elected=True, sync_state_set=[0])
    slave = BrokerStatus(role=SLAVE, is_learner=is_learner)
    monkeypatch.setattr(health, "broker_statuses", lambda addresses: [master, slave])
    monkeypatch.setattr(health, "_shown_masters", lambda cluster: {"broker-a"} if is_shown else set())
    assert len(health.await_replicas(Two(tmp_path), timeout_s=0.0)) == late


def test_a_switch_is_tried_again_while_the_register_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [health.StaleRegister("the register has just changed"), health.InvalidArgument("nobody is level yet")]
    status = BrokerStatus(role=MASTER, is_acting=True)
    monkeypatch.setattr(health, "broker_statuses", lambda addresses: [status for _ in addresses])

    def transfer(address: str, to_id: int, timeout_s: float) -> health.TransferMasterReply:
        if errors:
            raise errors.pop(0)
        return health.TransferMasterReply(epoch=7)

    monkeypatch.setattr(health, "_transfer", transfer)
    assert health.switch_master(["a:1"], "broker-a", 1).epoch == 7
    errors.append(health.InvalidArgument("broker 1 is not in sync"))
    with pytest.raises(health.InvalidArgument, match="not in sync"):
        health.switch_master(["a:1"], "broker-a", 1)
