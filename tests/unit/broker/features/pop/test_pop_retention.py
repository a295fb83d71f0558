"""POP where log files go: whoever begins with what is left of the log knows what is in flight."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.core.tables.groups import GROUP_DELETED
from penstock.broker.core.tables.offsets import OFFSETS
from penstock.broker.core.tables.table import compact
from penstock.broker.features.pop.pop import SETTLE_S
from penstock.broker.features.pop.table import POP_GROUP, PopTable
from penstock.formats.record.layout import BODY_BYTES_MAX
from penstock.proto.names import DERIVED_TOPIC_LENGTH_MAX, GROUP_LENGTH_MAX
from tests.support.broker.kit import FEATURES, in_loop
from tests.support.broker.popping import GROUP, Pops, bodies
from tests.support.broker.retaining import KEEPS, SEGMENT, follow
from tests.support.broker.retaining import Node as Retaining

SIZES = {"segment_bytes": SEGMENT, "consume_queue_bytes": 400}


class Master(Pops, Retaining):
    """A broker whose log files go as soon as nobody needs them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, fileReservedTime=0, deleteWhen="12")

    async def let_go(self) -> None:
        """A log file more is written, and those that nobody needs go."""
        self.fill_files(2)
        await self.pass_s(SETTLE_S)
        await self.retention.clean()

    def fill_files(self, files: int) -> None:
        Retaining.fill(self, files)  # type: ignore[arg-type]


class Slave(Pops):
    def __init__(self, master: Master, root: Path) -> None:
        self.manual = master.manual
        super().__init__(root, features=FEATURES, master=False, clock=master.manual, sizes=SIZES)
        follow(self, master)


@pytest.mark.parametrize("files", [1, 2])
@in_loop
async def test_a_slave_that_began_behind_files_that_went_gives_out_nothing_twice(tmp_path: Path, files: int) -> None:
    master = Master(tmp_path / "master")
    master.put_topic(KEEPS)
    master.add_topic()
    assert await master.receive() == []
    for _ in range(files):
        await master.let_go()
    Pops.fill(master, 5)
    messages = await master.receive(4, invisible_ms=3_600_000)
    await master.acknowledge(messages[1])
    for _ in range(3):
        await master.let_go()
        slave = Slave(master, tmp_path / f"slave-{master.store.end_offset}")
        assert slave.store.min_offset > 0
        slave.change_role(master=True)
        assert bodies(await slave.receive()) == [b"4"]
        assert await slave.acknowledge(*messages) == []
        slave.close()


@in_loop
async def test_it_knows_what_a_reset_has_voided(tmp_path: Path) -> None:
    master = Master(tmp_path / "master")
    master.put_topic(KEEPS)
    master.add_topic()
    assert await master.receive() == []
    await master.let_go()
    Pops.fill(master, 1, queue_id=1)
    waiting = await master.receive(invisible_ms=3_600_000)
    Pops.fill(master, 3)
    await master.acknowledge(*await master.receive())
    await master.pass_s(SETTLE_S)
    assert master.committed() == 3
    master.commit(GROUP, {"orders": {0: 0}})
    for _ in range(2):
        await master.let_go()
    slave = Slave(master, tmp_path / "slave")
    assert slave.store.min_offset > 0
    slave.change_role(master=True)
    assert bodies(await slave.receive()) == [b"0", b"1", b"2"]
    assert await slave.acknowledge(*waiting) == []


def test_what_is_said_again_fits_its_records_however_many_queues_were_reset() -> None:
    group, count = "g" * GROUP_LENGTH_MAX, 16_384
    table = PopTable()
    table.apply(0, POP_GROUP, {"group": group})
    for number in range(1, count + 1):
        offsets = {f"{number:0{DERIVED_TOPIC_LENGTH_MAX}d}": {"0": number}}
        table.apply(number, OFFSETS, {"group": group, "offsets": offsets})
    other = PopTable()
    for position, (kind, document) in enumerate(table.repeated(1 << 40), 1 << 40):
        body = compact(document)
        assert len(body) <= BODY_BYTES_MAX
        other.apply(position, kind, json.loads(body))
    assert "".join(other.pieces()) == "".join(table.pieces())


def test_what_is_said_again_of_many_groups_is_looked_for_once() -> None:
    """It holds up the event loop."""

    class Counted(dict[Any, Any]):
        passes = 0

        def __iter__(self) -> Iterator[Any]:
            self.passes += 1
            return super().__iter__()

        def items(self) -> Any:
            self.passes += 1
            return super().items()

    table = PopTable()
    for number in range(100):
        table.apply(2 * number, POP_GROUP, {"group": f"g{number}"})
        table.apply(2 * number + 1, OFFSETS, {"group": f"g{number}", "offsets": {"t": {"0": 0}}, "by": "POP"})
    table._offsets, table._cuts = Counted(table._offsets), Counted(table._cuts)
    assert len(list(table.repeated(1 << 40))) == 200
    assert (table._offsets.passes, table._cuts.passes) == (1, 1)


def test_ops_of_a_former_group_count_nowhere_also_where_nobody_heard_of_its_deletion() -> None:
    offsets = {"group": GROUP, "offsets": {"t": {"0": 0}}, "by": "POP"}
    master, slave = PopTable(), PopTable()
    for table, begin in ((master, 0), (slave, 20)):  # the slave's log begins behind the first two
        for position, kind, document in (
            (0, POP_GROUP, {"group": GROUP}),
            (10, OFFSETS, offsets),
            (100, GROUP_DELETED, {"groupName": GROUP}),
            (110, POP_GROUP, {"group": GROUP}),
            (120, OFFSETS, offsets),
        ):
            if position >= begin:
                table.apply(position, kind, document)
    assert 100 <= slave.cut(GROUP, "t", 0) == master.cut(GROUP, "t", 0) < 110
    late = PopTable()  # of a log that begins with what was said again
    for number, (kind, document) in enumerate(master.repeated(130)):
        late.apply(130 + number, kind, dict(document))
    assert late.cut(GROUP, "t", 0) == master.cut(GROUP, "t", 0)
