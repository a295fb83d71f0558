"""A writer that opens while masters or whole groups are missing: they are waited for, and named when they stay so."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.pipeline.topics.write.refused import REFUSALS
from penstock.pipeline.topics.write.writers import WriterCalls
from penstock.proto.errors import BrokerUnavailable, ConfigError, RouteNotFound
from penstock.proto.wire.pipeline_pb2 import WriterState


class Shards:
    """One broker group, whose master appears when it has been looked for ``looks`` times."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.methods: list[str] = []
        self.directory = self

    def masters(self) -> tuple[list[str], list[str]]:
        self.looks -= 1
        if self.looks >= 0:
            raise RouteNotFound("no living master")
        return ["broker-a"], []

    def at_master(self, broker: str, method: str, request: Any, timeout_s: float, **_: Any) -> WriterState:
        self.methods.append(method)
        return WriterState(coordinator=broker if method == "OpenWriter" else "")


def test_an_election_is_waited_for() -> None:
    shards: Any = Shards(3)
    assert WriterCalls(shards, "writer", "run", timeout_s=60).open({}).coordinator == "broker-a"
    assert shards.methods == ["QueryWriter", "OpenWriter"]


def test_without_any_master_the_wait_ends_by_name() -> None:
    shards: Any = Shards(1 << 60)
    with pytest.raises(RouteNotFound, match="no living master"):
        WriterCalls(shards, "writer", "run", timeout_s=0.01).open({})


class OneDown:
    """Broker groups a and b, of which ``down`` is down; each knows of writers what ``states`` says."""

    def __init__(self, down: str, states: dict[str, WriterState], *, returns: bool = False) -> None:
        self.down = down
        self.states = states
        self.returns = returns
        self.directory = self

    def masters(self) -> tuple[list[str], list[str]]:
        return sorted({"a", "b"} - {self.down}), [self.down]

    def at_master(self, broker: str, method: str, request: Any, timeout_s: float, **_: Any) -> WriterState:
        if broker == self.down and not self.returns:
            raise BrokerUnavailable(f"broker group {broker} has no living master")
        if method == "OpenWriter":
            self.states[broker] = WriterState(exists=True, coordinator=request.coordinator, run=request.run)
        return self.states.get(broker, WriterState())


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_writer_that_began_at_one_group_gets_no_second_one_that_decides(first: str) -> None:
    """It began while the other was down; now its own is down, and the other has never heard of it."""
    other = "ab".replace(first, "")
    groups: Any = OneDown(other, {first: WriterState(exists=True, coordinator=first, run="one")})
    assert WriterCalls(groups, "writer", "one", timeout_s=0).open({}).coordinator == first
    groups.down = first
    with pytest.raises(BrokerUnavailable, match=rf"writer writer: .* and {first} may: .*cluster forget {first}"):
        WriterCalls(groups, "writer", "two", timeout_s=0).open({})
    assert groups.states.keys() == {first}, "a second group decides"
    groups.returns = True
    assert WriterCalls(groups, "writer", "two", timeout_s=0).open({}).coordinator == first


def test_a_writer_that_the_living_know_goes_on_while_a_group_is_down() -> None:
    groups: Any = OneDown("b", {"a": WriterState(exists=True, coordinator="a", run="one")})
    assert WriterCalls(groups, "writer", "two", timeout_s=0).open({}).coordinator == "a"


def test_brokers_that_do_not_agree_on_who_decides_are_no_fault_of_a_row() -> None:
    class Another(OneDown):
        def at_master(self, broker: str, method: str, request: Any, timeout_s: float, **_: Any) -> WriterState:
            return WriterState(coordinator="b") if method == "OpenWriter" else WriterState()

    groups: Any = Another("b", {})
    groups.masters = lambda: (["a"], [])
    with pytest.raises(
        ConfigError, match="writer writer: broker group a says that b decides, another one says a"
    ) as told:
        WriterCalls(groups, "writer", "run", timeout_s=0).open({})
    assert not isinstance(told.value, REFUSALS)
