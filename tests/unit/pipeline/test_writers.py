"""A writer that opens while no master is known: an election is waited for, and told when it does not end."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.pipeline.topics.writers import WriterCalls
from penstock.proto.errors import RouteNotFound
from penstock.proto.wire.common_pb2 import MASTER
from penstock.proto.wire.nameserver_pb2 import ShardMember, ShardView
from penstock.proto.wire.pipeline_pb2 import WriterState


class Shards:
    """One broker group, whose master appears when it has been looked for ``looks`` times."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.methods: list[str] = []

    def shards(self) -> dict[str, ShardView]:
        self.looks -= 1
        members = [ShardMember(address="127.0.0.1:1", role=MASTER)] if self.looks < 0 else []
        return {"broker-a": ShardView(broker_name="broker-a", members=members)}

    def staging(self, broker: str, method: str, request: Any, timeout_s: float) -> WriterState:
        self.methods.append(method)
        return WriterState(coordinator=broker if method == "OpenWriter" else "")


def test_an_election_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.topics.writers._LOOK_S", 0)
    shards: Any = Shards(3)
    assert WriterCalls(shards, "writer", "run", timeout_s=60).open({}).coordinator == "broker-a"
    assert shards.methods == ["QueryWriter", "OpenWriter"]


def test_without_any_master_the_wait_ends_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.topics.writers._LOOK_S", 0)
    shards: Any = Shards(1 << 60)
    with pytest.raises(RouteNotFound, match=r"no living master for 0\.01 s"):
        WriterCalls(shards, "writer", "run", timeout_s=0.01).open({})
