"""Decisions as transcripts: what a rule was told, ``----``, and what it decided.

``pytest tests/transcripts --rewrite`` writes what the rules decide now; the difference is for a review.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from . import elections, rebalance, recovery

DECIDERS: dict[str, Callable[[list[str]], list[str]]] = {
    "elections": elections.decided,
    "rebalance": rebalance.decided,
    "recovery": recovery.decided,
}


@pytest.mark.parametrize("name", sorted(DECIDERS))
def test_the_rules_decide_as_written(name: str, request: pytest.FixtureRequest) -> None:
    path = Path(__file__).with_name(f"{name}.txt")
    written = path.read_text()
    decided = "\n\n".join(_replayed(block, DECIDERS[name]) for block in written.strip().split("\n\n")) + "\n"
    if request.config.getoption("--rewrite"):
        path.write_text(decided)
    else:
        assert decided.splitlines() == written.splitlines()


def _replayed(block: str, decide: Callable[[list[str]], list[str]]) -> str:
    """The block with the decisions of today; comments stay."""
    told = block.partition("\n----")[0].splitlines()
    if all(line.startswith("#") for line in told):
        return block
    return "\n".join([*told, "----", *decide([line for line in told if not line.startswith("#")])])
