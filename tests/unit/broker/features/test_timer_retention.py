"""Messages that wait and the log's retention: kept, stored anew, or told when the disk takes them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from penstock.broker.features.later import timers as timers_module
from penstock.broker.features.later.timer_table import Run, TimerTable
from penstock.proto import names
from penstock.proto.errors import DiskFull
from tests.support.broker.kit import in_loop
from tests.support.broker.timing import Node


@in_loop
async def test_retention_keeps_the_log_from_the_first_message_that_waits(node: Node) -> None:
    assert node.first_waiting() is None
    node.later([b"a"], [10])
    position = node.store.picker.locate(names.TIMER_TOPIC, 0, np.arange(1)).positions[0]
    await node.turn()
    assert node.first_waiting() == position
    node.later([b"b"], [100])
    await node.turn(20)
    await node.turn(60)  # the run is recorded as delivered
    assert node.first_waiting() > position  # type: ignore[operator]
    await node.turn(60)
    await node.turn(60)
    assert node.first_waiting() is None
    assert node.delivered() == [b"a", b"b"]


@pytest.mark.parametrize("failing_at", [None, 0, 1])
def test_what_waits_in_old_files_is_rolled_to_the_end_of_the_log(
    node: Node, monkeypatch: pytest.MonkeyPatch, failing_at: int | None
) -> None:
    monkeypatch.setattr(timers_module, "RUN_COUNT", 4)

    @in_loop
    async def run() -> None:
        nonlocal node
        bodies = [b"%d" % number for number in range(10)]
        for number, body in enumerate(bodies):
            node.later([body], [1000 + 100 * (number % 3)], queue_id=number % 2)
        node.later([b"soon"], [5])
        await node.turn(10)
        node.flush()
        end = node.store.end_offset
        node.later([b"new"], [2000])
        await node.turn()
        node.fail_appends(99 if failing_at is None else failing_at, names.TIMER_TOPIC)
        node.timers.make_way(end)
        if failing_at is None:
            await node.turn()
        else:
            with pytest.raises(DiskFull):
                await node.turn()
            node = node.reopened(unclean=True)
            await node.turn()
            node.timers.make_way(end)
            await node.turn()
        assert (node.timers.first_waiting() or end) < end, "not synced yet"
        await node.turn()
        assert node.first_waiting() >= end  # type: ignore[operator]
        assert node.timers.waiting == 11
        removal = node.store.removal
        assert removal.first_from(names.TIMER_TOPIC, 0, end) == 11
        assert removal.files()[-1].end > end
        again = node.reopened(unclean=True)
        await again.turn(2500)
        expected = [[body for number, body in enumerate(bodies) if number % 2 == queue] for queue in range(2)]
        assert again.delivered(queue_id=1) == sorted(expected[1], key=lambda body: int(body) % 3)
        assert again.delivered() == [b"soon", *sorted(expected[0], key=lambda body: int(body) % 3), b"new"]
        again.close()

    run()


@in_loop
async def test_what_the_disk_takes_before_its_time_is_told_and_counted(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.later([b"a", b"b"], [100, 200])
    await node.turn()
    position = node.store.end_offset
    node.later([b"c"], [300])
    await node.turn()
    with caplog.at_level("ERROR"):
        node.timers.on_taken(0, position)
        node.timers.on_taken(0, position)
    assert caplog.text.count("are deleted before their time count=2 offsets=0..1") == 1
    assert (node.timers.dropped, node.timers.waiting) == (2, 1)


def test_the_table_survives_snapshots_and_repetitions() -> None:
    table, again = TimerTable(), TimerTable()
    run = Run(3, ((9, 4), (5, 6)), 7, 8, 2)
    table.apply(100, "TIMER_RUN", run.to_json())
    table.apply(50, "TIMER_RUN", Run(2).to_json())
    assert (table.last, table.position) == (run, 100)
    again.load(json.loads("{" + "".join(table.pieces()) + "}"), 0)
    assert again.last == run
    assert list(again.repeated(200)) == [("TIMER_RUN", run.to_json())]
    assert list(table.repeated(100)) == []
