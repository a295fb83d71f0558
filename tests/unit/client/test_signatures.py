"""What help and editors say of methods that pass their arguments on."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

from penstock.client import Producer
from penstock.client.aio import AsyncProducer


@pytest.mark.parametrize(
    ("method", "answer"),
    [(Producer.send_async, "Future[SendReceipt]"), (AsyncProducer.send_async, "asyncio.Future[SendReceipt]")],
)
def test_a_method_has_the_parameters_of_another_and_its_own_answer(method: Callable[..., object], answer: str) -> None:
    said = inspect.signature(method)
    assert said.return_annotation == answer
    assert said.parameters == inspect.signature(Producer.send).parameters
