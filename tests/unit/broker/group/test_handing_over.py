"""What a planned switch waits for."""

from __future__ import annotations

import asyncio

from penstock.broker.group.handing_over import ANSWERS_S, await_answers
from penstock.runtime.clock import SystemClock


def test_a_role_is_handed_over_when_every_sender_has_its_answer() -> None:
    async def check() -> None:
        answered = asyncio.Event()
        waiting = asyncio.create_task(await_answers(answered.is_set, SystemClock()))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        answered.set()
        await asyncio.wait_for(waiting, 60)

    asyncio.run(check())


def test_a_sender_that_reads_no_answers_holds_it_up_for_a_moment_only() -> None:
    class Clock(SystemClock):
        asked = 0

        def monotonic_s(self) -> float:
            self.asked += 1
            return ANSWERS_S * self.asked / 3

    clock = Clock()
    asyncio.run(await_answers(lambda: False, clock))
    assert clock.asked == 5
