"""Arguments of transactions that make no sense: refused by name, before a half is stored that nobody decides."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest

from penstock.client import InvalidArgument, TopicNotFound, TransactionProducer, TransactionState
from penstock.client.aio import AsyncTransactionProducer
from penstock.proto import names
from tests.support.client.running_cluster import RunningCluster


def test_nothing_is_stored_where_execute_is_no_function() -> None:
    with RunningCluster(topics={"orders": 1}) as cluster:
        with (
            TransactionProducer(cluster.namesrv, group="payments") as producer,
            pytest.raises(InvalidArgument, match="execute=None: must be a function"),
        ):
            producer.send_in_transaction("orders", b"x", execute=None)  # type: ignore[arg-type]

        async def run() -> None:
            async with AsyncTransactionProducer(cluster.namesrv, group="payments") as producer:
                with pytest.raises(InvalidArgument, match="must be a function of a message"):
                    await producer.send_in_transaction("orders", b"x", execute=TransactionState.COMMIT)  # type: ignore[arg-type]

        asyncio.run(run())
        with pytest.raises(TopicNotFound):  # it is made with the first half
            cluster.brokers["broker-a"].records(names.HALF_TOPIC)


@pytest.mark.parametrize(
    "given",
    [{"transaction_id": 5}, *({"check_after_s": each} for each in (-1, math.nan, math.inf, "5"))],
)
def test_no_transaction_is_begun_with_it(given: dict[str, Any]) -> None:
    (name,) = given
    with (
        TransactionProducer("127.0.0.1:1", group="payments") as producer,
        pytest.raises(InvalidArgument, match=f"{name}=.*: must be"),
    ):
        producer.transaction(**given)


def test_a_length_of_time_may_be_numpys() -> None:
    with TransactionProducer("127.0.0.1:1", group="payments") as producer:
        numbers: list[Any] = [np.int64(5), np.float32(5)]
        for each in numbers:
            with producer.transaction(check_after_s=each):
                pass
