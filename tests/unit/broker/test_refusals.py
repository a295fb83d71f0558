"""Appends that a broker refuses for its disk's sake: full, or too slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.produce.stalls import PAUSE_S, AppendStalls
from penstock.proto.errors import DiskFull, FlowControl
from tests.support.broker.retaining import KEEPS, node
from tests.support.broker.stores import batch, bodies
from tests.support.clock import ManualClock
from tests.support.loops import in_own_loop


@in_own_loop
async def test_a_full_disk_refuses_messages_until_there_is_space_and_takes_commits(tmp_path: Path) -> None:
    async with node(tmp_path) as it:
        it.put_topic(KEEPS)
        it.fill(2)
        it.disk.percent = 91
        it.retention.watch()
        with pytest.raises(DiskFull, match="91 % full"):
            it.store.append("keeps", batch("keeps", [b"x"]), queues=1)
        it.commit("billing", {"keeps": {0: 3}})
        assert it.tables.offsets.get("billing", "keeps", 0) == 3
        assert bodies(it.store, "keeps")
        assert it.metrics()["penstock_disk_full", ""] == 1
        it.disk.percent = 86
        it.retention.watch()
        with pytest.raises(DiskFull):
            it.store.append("keeps", batch("keeps", [b"x"]), queues=1)
        it.disk.percent = 85
        it.retention.watch()
        it.store.append("keeps", batch("keeps", [b"x"]), queues=1)
        assert it.metrics()["penstock_disk_full", ""] == 0


@in_own_loop
async def test_a_stalled_append_refuses_what_piled_up_behind_it() -> None:
    clock = ManualClock()
    stalls = AppendStalls(1.0, clock)
    stalls.on_append(0.9)
    stalls.check()
    stalls.on_append(1.1)
    with pytest.raises(FlowControl, match="osPageCacheBusyTimeOutMills=1000"):
        stalls.check()
    clock.advance(PAUSE_S)
    stalls.check()
    assert (stalls.stalls, stalls.refused) == (1, 1)
