"""The seams of a broker: a feature that is made up here is added to the list, and nothing else is changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.broker import broker as broker_module
from penstock.broker.core.core import Core
from penstock.broker.core.feature import Feature, Hold
from penstock.broker.core.intake import Intake
from penstock.broker.core.journal import Journal, Target
from penstock.broker.core.metrics import Families
from penstock.broker.core.tables.table import NamedTable, StateRecord
from penstock.broker.core.tables.topics import Topic
from penstock.broker.core.wire import Service
from penstock.proto.errors import LimitReached, NotMaster, PenstockError
from tests.support.broker.kit import FEATURES, Kit, in_loop
from tests.support.broker.running_broker import running
from tests.support.broker.stores import bodies


def test_the_core_stays_as_small_as_it_is() -> None:
    """Behaviour belongs to its members, and to features. Whoever adds an eleventh field finds one that can go."""
    assert len(fields(Core)) == 10


class NoteTable(NamedTable[int]):
    """Name -> log position from which the note needs the log."""

    file_name = "notes.json"
    kinds = frozenset({"NOTE"})

    def apply(self, position: int, kind: str, document: Mapping[str, Any]) -> None:
        self.put(position, str(document["name"]), int(document["needs"]))

    def repeated(self, position: int) -> Iterator[StateRecord]:
        for name in list(self):
            yield "NOTE", {"name": name, "needs": self.get(name)}

    def load(self, document: Mapping[str, Any], log_end: int) -> None:
        for name, needs in document["notes"].items():
            self.put_loaded(name, int(needs))

    def pieces(self) -> Iterator[str]:
        yield '\t"notes":'
        yield json.dumps({name: self.get(name) for name in self})


class Notes(Feature):
    """A method of the wire puts a note into the log; the note is a row, a metric and a hold."""

    tables = (NoteTable,)

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._table = core.tables[NoteTable]
        self.seen: list[str] = []

    def services(self) -> Iterable[Service]:
        yield Service("test.Notes", {"Put": grpc.unary_unary_rpc_method_handler(self._put)})

    def holds(self) -> Iterable[Hold]:
        return [Hold(f"note {name}", self._table.get(name) or 0) for name in self._table]

    def describe(self, families: Families) -> None:
        families.gauge("test_notes", "Notes", len(self._table))

    def start(self) -> None:
        self.seen.append("start")

    def on_role(self, journal: Journal | None) -> None:
        self.seen.append("slave" if journal is None else "master")

    async def run(self) -> None:
        self.seen.append("run")
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self.seen.append("stop")

    async def _put(self, request: bytes, context: Any) -> bytes:
        journal = self.core.writable()
        await self.core.acknowledgements.safe(journal.put("NOTE", json.loads(request)), "note")
        return b"noted"


def test_a_feature_is_a_class_and_a_line_in_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "FEATURES", (*broker_module.FEATURES, Notes))

    def metric(broker: broker_module.Broker) -> float:
        families = Families({})
        broker.features.describe(families)
        return next(family.samples[0].value for family in families.made if family.name == "test_notes")

    async def check() -> None:
        async with running(tmp_path) as (broker, caller):
            call = caller.channel.unary_unary("/test.Notes/Put")
            assert await call(b'{"name": "a", "needs": 17}', timeout=10, wait_for_ready=True) == b"noted"
            notes = broker.features[Notes]
            assert notes.seen == ["master", "start", "run"]
            assert Hold("note a", 17) in broker.features.holds()
            assert metric(broker) == 1
        assert notes.seen[-1] == "stop"
        assert json.loads((tmp_path / "store/config/notes.json").read_text())["notes"] == {"a": 17}
        async with running(tmp_path) as (broker, _):
            assert metric(broker) == 1, "from the snapshot"
        (tmp_path / "store/config/notes.json").unlink()
        async with running(tmp_path) as (broker, _):
            assert metric(broker) == 1, "from the log"

    asyncio.run(check())


@pytest.mark.parametrize("error", [LimitReached("full"), IndexError("index 1 is out of bounds")])
@in_loop
async def test_turns_go_on_after_one_that_failed(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    feature, turns = Notes(Kit(features=[*FEATURES, Notes]).core), 0
    is_again = asyncio.Event()

    async def turn() -> None:
        nonlocal turns
        turns += 1
        if turns == 1:
            raise error
        is_again.set()

    running = asyncio.create_task(feature.take_turns(turn, 0.0, 0.0, "notes not looked after"))
    await asyncio.wait([running, again := asyncio.create_task(is_again.wait())], return_when=asyncio.FIRST_COMPLETED)
    assert is_again.is_set(), running
    running.cancel()
    await asyncio.gather(running, again, return_exceptions=True)
    (told,) = caplog.records
    assert f"notes not looked after error={type(error).__name__}: {error}" in told.getMessage()
    assert (told.exc_info is None) == isinstance(error, PenstockError)


class Aside(Feature, Intake):
    """Appends that ask for number 2 are stored under another topic."""

    def intakes(self) -> Mapping[int, Intake]:
        return {2: self}

    def target(self, topic: Topic) -> Target:
        return Target(f"aside-{topic.name}", 1)


@in_loop
async def test_what_an_append_asks_for_decides_where_it_is_stored() -> None:
    kit = Kit(features=(*FEATURES, Aside))
    topic = kit.add_topic()
    assert [kit.core.features.intakes[number].target(topic).topic for number in (0, 1, 2)] == [
        "orders",
        "rmq_sys_wheel_timer",
        "aside-orders",
    ]


@in_loop
async def test_nothing_goes_into_the_log_by_a_mastership_that_is_over() -> None:
    kit = Kit()
    kit.add_topic()
    before = kit.events.journal
    assert before is not None
    kit.change_role(master=False)
    kit.change_role(master=True)
    end = kit.store.end_offset
    with pytest.raises(NotMaster, match="ceased to be master"):
        before.put("TOPIC", Topic("late", 1, 1).to_json())
    with pytest.raises(NotMaster):
        before.append(Target("orders", 4), b"")
    assert kit.store.end_offset == end
    await kit.append([b"now"])
    kit.dispatch()
    assert bodies(kit.store, "orders") == [b"now"]
