"""Records that are to become others, where the log loses a file while the disk is waited for."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from penstock.broker.core import reposting
from penstock.broker.core.reposting import Reposter
from tests.support.broker.kit import Kit, in_loop


def test_a_log_file_that_is_taken_out_meanwhile_takes_no_records_of_others_along(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reposting, "RECENT_BYTES", 0)
    begun, may_go_on = asyncio.Event(), asyncio.Event()

    async def in_thread(call: Any, *arguments: Any) -> Any:
        begun.set()
        await may_go_on.wait()
        return call(*arguments)

    @in_loop
    async def run() -> None:
        kit = Kit(sizes={"segment_bytes": 1 << 16})
        kit.add_topic(queues=1)
        for _ in range(5):
            await kit.append([bytes(1000)] * 50)
        kit.dispatch()
        kit.flush()
        kit.store.checkpoint()
        monkeypatch.setattr(asyncio, "to_thread", in_thread)
        reposter, journal = Reposter(kit.core), kit.journal
        picked = await reposter.locate("orders", 0, np.arange(250))
        assert len(picked.offsets) == 250
        reading = asyncio.create_task(reposter.read(journal, picked))
        await begun.wait()
        first = kit.store._log.files[0]
        assert kit.store.removal.take_out(first.end) == 1
        may_go_on.set()
        records = await reading
        assert records is not None
        assert records.offsets.tolist() == picked.offsets[picked.positions >= first.end].tolist() != []
        assert "record damaged" not in caplog.text

    run()


@in_loop
async def test_what_a_receive_was_given_stays_though_its_log_file_goes() -> None:
    kit = Kit(sizes={"segment_bytes": 1 << 16})
    kit.add_topic(queues=1)
    for number in range(4):
        await kit.append([b"%d" % number * 1000] * 50)
    kit.dispatch()
    kit.flush()
    kit.store.checkpoint()
    picker = kit.store.picker
    read = picker.read(picker.sound(picker.locate("orders", 0, np.arange(60))))
    expected = np.empty(read.bytes, np.uint8)
    picker.read(picker.locate("orders", 0, np.arange(60))).copy_to(expected.ctypes.data)
    assert kit.store.removal.take_out(kit.store._log.files[0].end) == 1
    found = np.empty(read.bytes, np.uint8)
    read.copy_to(found.ctypes.data)
    assert found.tobytes() == expected.tobytes()
    with pytest.raises(AssertionError, match="is not in the log any more"):
        kit.store._log.file_of(0)
