"""What the Spark benchmark makes of its times, with a clock that tests move."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.bench.spark import measuring
from penstock.bench.spark.measuring import Case, Peer, measure

Work = Callable[[], None]


@pytest.fixture
def passes() -> list[float]:
    """How long the next piece of work takes, and those behind it."""
    return []


@pytest.fixture
def work(passes: list[float], monkeypatch: pytest.MonkeyPatch) -> Work:
    now = [0.0]
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: now[0])

    def work() -> None:
        now[0] += passes.pop(0)

    return work


def test_a_case_and_its_peer_run_in_turn_and_warm_ups_count_for_nothing(passes: list[float], work: Work) -> None:
    passes += [99, 98, 2, 10, 4, 20, 2, 10]
    case = Case("scan", 1024, 1000, 10_000, work, target=125)
    result = measure(case, repeats=3, warm_ups=1, say=lambda _: None, peer=Peer(1000, work))
    assert (result["figure"], result["peer"], result["times"]) == (100, 500, [10, 20, 10])
    assert (result["target"], result["reached"]) == (125, True)
    assert not passes


@pytest.mark.parametrize(("target", "reached"), [(100, True), (80, False), (None, None)])
def test_a_time_has_to_stay_below_its_target_and_a_quarter(
    passes: list[float], work: Work, target: float | None, reached: bool | None
) -> None:
    passes += [1, 1, 1]
    case = Case("empty", 100, 1, 0, work, target, value=lambda _: 110.0, unit="ms")
    result = measure(case, repeats=3, warm_ups=0, say=lambda _: None)
    assert (result["figure"], result["peer"], result["reached"]) == (110, None, reached)
