"""Every input that a fuzzer kept, and every one that ever failed, against its target."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.fuzz.corpora import load
from tests.fuzz.targets import TARGETS


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs_are_taken_or_refused_as_promised(name: str) -> None:
    inputs = [*TARGETS[name].seeds, *load(name)]
    assert inputs
    for data in inputs:
        try:
            TARGETS[name].check(data)
        except Exception as error:
            error.add_note(f"input: {data.hex()}")
            raise
