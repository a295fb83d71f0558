"""A nameserver that is far away, or busy when a client connects."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.client import Admin
from tests.support.cluster.nameserver import nameserver
from tests.support.forwarder import Forwarder
from tests.support.loops import in_own_loop

FAR_S = 0.4


@in_own_loop
async def test_the_first_call_waits_for_a_connection_that_takes_its_time(tmp_path: Path) -> None:
    def topics(address: str) -> list[str]:
        with Admin(address) as admin:
            return admin.list_topics()

    async with nameserver(tmp_path) as near, Forwarder(near, delay_s=FAR_S) as far:
        assert await asyncio.to_thread(topics, far.address) == []
