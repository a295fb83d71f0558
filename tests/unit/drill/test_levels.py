"""When a shard could have acknowledged, by looks at its brokers."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.drill.lab.levels import LATE_NS, able_stretches
from penstock.drill.lab.watching import Sample
from penstock.judge.conditions import Window

Look = tuple[str, int, int]
"""Role, end of the log, process."""
MS = 1_000_000


def looks(*rounds: Sequence[Look], every_ns: int = 10) -> list[Sample]:
    """Looks at the brokers of one shard, one ns after the other; a master confirms its whole log."""
    return [
        Sample(
            *(at * every_ns + number, f"broker-a-{number}", "broker-a", role, 1, end),
            confirm_offset=end if role == "MASTER" else 0,
            pid=pid,
        )
        for at, found in enumerate(rounds)
        for number, (role, end, pid) in enumerate(found)
    ]


def able(samples: Sequence[Sample], *windows: Window, needed: int = 2) -> list[tuple[int, int]]:
    names = ["nameserver-0", "nameserver-1"]
    found = able_stretches(samples, windows, needed, names, start_ns=0, end_ns=10 * LATE_NS)
    return [(each.start_ns, each.end_ns) for each in found]


def test_a_shard_is_able_while_enough_brokers_have_what_is_confirmed_and_the_nameservers_live() -> None:
    samples = looks(
        [("MASTER", 100, 1), ("SLAVE", 100, 2), ("", 0, 0)],
        [("MASTER", 200, 1), ("SLAVE", 150, 2), ("", 0, 0)],
        [("MASTER", 300, 1), ("SLAVE", 199, 2), ("", 0, 0)],  # behind the 200 that were confirmed before
        [("MASTER", 300, 1), ("SLAVE", 300, 2), ("", 0, 0)],
        [("", 0, 0), ("SLAVE", 300, 2), ("SLAVE", 300, 3)],
        [("MASTER", 300, 1), ("SLAVE", 300, 2), ("", 0, 0)],  # a nameserver is away
    )
    assert able(samples, Window("SIGKILL", "nameserver-1", 50, 60)) == [(2, 10), (32, 40)]
    assert able(samples, needed=3) == []


def test_a_broker_that_answers_late_is_as_ready_as_it_was() -> None:
    answered, late = [("MASTER", 100, 1), ("SLAVE", 100, 2)], [("MASTER", 100, 1), ("", 0, 2)]
    samples = looks(answered, late, answered, late, late, answered, every_ns=LATE_NS // 4)
    assert able(samples) == [(1, samples[-2].at_ns)]


def test_a_broker_that_was_killed_or_frozen_or_is_silent_for_long_is_not_ready() -> None:
    whole = [("MASTER", 100, 1), ("SLAVE", 100, 2)]
    for silent in (("", 0, 0), ("", 0, 3)):  # dead or frozen; a process that was started since
        samples = looks(whole, whole, [whole[0], silent], whole, whole, every_ns=LATE_NS // 4)
        step = LATE_NS // 4
        assert able(samples) == [(1, step), (3 * step + 1, 4 * step)]
    stuck = looks(whole, whole, *[[whole[0], ("", 0, 2)]] * 6, every_ns=LATE_NS // 4)
    assert able(stuck) == [(1, LATE_NS)], "the last look within a second of its answer"


def test_a_shard_without_a_master_is_able_all_the_same() -> None:
    without = [("", 0, 0), ("SLAVE", 100, 2), ("SLAVE", 100, 3)]
    samples = looks([("MASTER", 100, 1), ("SLAVE", 100, 2), ("SLAVE", 100, 3)], *[without] * 40, every_ns=100 * MS)
    assert able(samples) == [(2, 40 * 100 * MS)], "whoever has everything could have been elected"
