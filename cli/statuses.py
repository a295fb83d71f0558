"""What ``penstock cluster status --json`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.deploy import LocalCluster, NodeState
    from penstock.proto.wire.broker_pb2 import BrokerStatus

FAR_TIMEOUT_S = 5.0
"""Brokers of any cluster may be far away."""
OFFSETS = ("min_offset", "max_offset", "flushed_offset", "confirm_offset", "lag_bytes")


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
        "gateways": [_node_document(state) for state in states if state.node.is_gateway],
    }


def registered_document(namesrv: str) -> dict[str, Any]:
    """The same of all that is registered; ``absent`` names the broker groups of which no member lives."""
    from penstock.bench.health import broker_statuses
    from penstock.client import Admin

    with Admin(namesrv) as admin:
        info = admin.cluster()
    answers = broker_statuses([broker.address for broker in info.brokers], FAR_TIMEOUT_S)
    nameservers = [
        {"name": each.address, "address": each.address, "pid": None, "state": "running" if each.alive else "silent"}
        for each in info.nameservers
    ]
    brokers = [
        {
            "name": broker.name,
            "address": broker.address,
            "pid": broker.pid or None,
            "state": "silent" if answer is None else "running",
            "broker_name": broker.broker_name,
            "broker_id": broker.broker_id,
            **_told(broker.address, answer, is_asked=True),
        }
        for broker, answer in zip(info.brokers, answers, strict=True)
    ]
    return {
        "namesrv": namesrv,
        "coordinators": [],
        "nameservers": nameservers,
        "brokers": brokers,
        "gateways": [],
        "absent": info.absent,
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
    return {
        **_node_document(state),
        "broker_name": state.node.broker_name,
        "broker_id": state.node.broker_id,
        **_told(state.node.address, answer, is_asked=state.state == "running"),
        "metrics_port": state.node.metrics_port,
        "store_path": str(state.store_path),
    }


def _told(address: str, answer: BrokerStatus | None, *, is_asked: bool) -> dict[str, Any]:
    """What the broker at ``address`` says of itself."""
    from penstock.bench.health import silent_because
    from penstock.proto.wire.common_pb2 import Role

    offsets: dict[str, Any] = dict.fromkeys(OFFSETS)
    if answer is not None:
        offsets = {name: getattr(answer, name) for name in OFFSETS}
    is_slave = answer is not None and answer.role == Role.SLAVE
    if answer is not None and is_slave and not answer.is_following:
        offsets["lag_bytes"] = None  # how far the master is by now, it does not know
    return {
        "role": Role.Name(answer.role) if answer is not None else None,
        "epoch": answer.epoch if answer is not None else None,
        "sync_state_set": list(answer.sync_state_set) if answer is not None else None,
        "is_acting": answer.is_acting if answer is not None else None,
        **offsets,
        "silent_because": (silent_because(address) if answer is None and is_asked else "") or None,
        "following": answer.is_following if answer is not None and is_slave else None,
        "not_following_because": (answer.not_following_because if answer is not None else "") or None,
        "coordination_trouble": (answer.coordination_trouble if answer is not None else "") or None,
        "gave_up": (answer.gave_up if answer is not None else "") or None,
        "flush_mode": answer.flush_mode if answer is not None else None,
        "broker_role": answer.broker_role if answer is not None else None,
    }
