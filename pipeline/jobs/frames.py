"""The stores that are verified, as Spark's frames."""

from __future__ import annotations

from typing import Any, Protocol

from ..stores.model import Store
from .reading import read_stores
from .report import Report

EXAMPLES_MAX = 100
"""Of each kind of difference, and store."""


class StoresConfig(Protocol):
    """What of a job's configuration this module needs."""

    @property
    def store(self) -> tuple[str, ...]: ...
    @property
    def broker_name(self) -> tuple[str, ...]: ...
    @property
    def up_to(self) -> str: ...


class Frames:
    """The stores, summed up by part of a queue, and message by message for what differs.

    Each is listed when it is asked for. On an open store that grows meanwhile, queues that are listed before their log
    name nothing that the log does not hold.
    """

    def __init__(self, spark: Any, config: StoresConfig, stores: list[Store]) -> None:
        self._spark = spark
        self._config = config
        self.stores = {store.broker_name: store for store in stores}

    def all(self, view: str, schema: str = "", **more: object) -> Any:
        """A view of all stores."""
        config = self._config
        return read_stores(
            self._spark, config.store, schema, view=view, brokerName=config.broker_name, upTo=config.up_to, **more
        )

    def one(self, broker: str, view: str, schema: str = "", **more: object) -> Any:
        """A view of one store. What its queues say counts for nothing."""
        more |= {"brokerName": broker, "upTo": self._config.up_to, "useConsumeQueue": "false"}
        return read_stores(self._spark, (self.stores[broker].root,), schema, view=view, **more)


def count_hidden(report: Report, broker: str, count: int) -> None:
    if count > 0:
        report.problem(f"{count} more of this kind", count=count, broker=broker)
