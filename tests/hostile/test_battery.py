"""The battery: attacks on real processes, with a watchdog in each and another client at work.

In ``make test`` each is small: what is judged is that no answer is an internal error, that nobody dies, and that the
other client's sends go on. ``make test-hostile`` (``HOSTILE=long``) makes them large, and judges on a quiet machine:
no stall of a loop above 100 ms, the same master in the same epoch, and at the end no more memory than after the
same attacks the first time.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator

import pytest

from penstock.runtime.memory import SELDOM_S
from tests.support.hostile import attacks, crowds, data_port, gateways, records
from tests.support.hostile.attacks import LONG, SHORT, Attack
from tests.support.hostile.methods import methods
from tests.support.hostile.target import Target, target

IS_LONG = os.environ.get("HOSTILE") == "long"
SCALE = LONG if IS_LONG else SHORT
STALL_MS_MAX = 100.0
MEMORY_GROWTH_MAX = 0.1
SETTLE_S = 20.0
GIVEN_BACK_S = 2 * SELDOM_S

ATTACKS: list[Attack] = [
    attacks.noise,
    attacks.every_method,
    attacks.crowded_requests,
    records.changed_headers,
    records.forged_records,
    crowds.connections,
    data_port.data_frames,
    data_port.data_connections,
    data_port.forged_slaves,
    crowds.idle_consumers,
    crowds.endless_streams,
    crowds.slow_readers,
    crowds.stuck_readers,
    crowds.bombs,
    crowds.names,
    gateways.silent_telemetry,
    gateways.stuck_telemetry,
    gateways.unread_receives,
]


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target(tmp_path_factory.mktemp("victim"), is_elected=IS_LONG) as found:
        if IS_LONG:
            # What a process keeps of such floods is there from here on: blocks of its allocators that a few objects
            # hold. The next flood may add nothing to that.
            for attack in ATTACKS:
                asyncio.run(attack(found, SCALE))
            found.check("the warm-up")
            time.sleep(SETTLE_S)
            found.note_memory()
        yield found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.__name__ for attack in ATTACKS])
def test_an_attack_disturbs_nobody_else(victim: Target, attack: Attack) -> None:
    started = time.monotonic()
    findings = asyncio.run(attack(victim, SCALE))
    told = f"{attack.__name__} in {time.monotonic() - started:.1f} s"
    stalls = victim.check(told)
    print(f"\n{told}\n" + "\n".join(f"  {name}: {stall}" for name, found in stalls.items() for stall in found[:5]))
    print(f"  memory: {victim.memory()}")
    assert findings == []
    if IS_LONG:
        assert victim.has_kept_its_master(), f"{told}: another master"
        assert [f"{name}: {s}" for name, found in stalls.items() for s in found if s.own_ms > STALL_MS_MAX] == []


def test_every_method_that_is_served_is_attacked(victim: Target) -> None:
    """Those of gRPC's descriptors are by themselves; a framed one must be named in the battery."""
    assert victim.served_methods() == sorted(method.path for method in methods())


if IS_LONG:

    @pytest.mark.timeout(900)
    def test_afterwards_there_is_no_more_memory_in_use(victim: Target) -> None:
        def grown() -> dict[str, str]:
            after = victim.memory()
            more = {name: count for name, count in after.items() if count > before[name] * (1 + MEMORY_GROWTH_MAX)}
            return {name: f"{before[name] >> 20} -> {count >> 20} MiB" for name, count in more.items()}

        before = victim.memory_before
        deadline = time.monotonic() + GIVEN_BACK_S
        while grown() and time.monotonic() < deadline:
            time.sleep(1)
        print(f"\n{ {name: f'{before[name] >> 20} -> {count >> 20} MiB' for name, count in victim.memory().items()} }")
        assert grown() == {}
