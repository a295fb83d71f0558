"""Messages of producers come in."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.proto.data_frames import Method
from penstock.runtime.data.port import Converse

from ..core.core import Core
from ..core.data_calls import PlacingCalls
from ..core.feature import Feature
from ..core.metrics import Families
from .send import Send


class Produce(Feature):
    """Appends, one stream per client."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.send = Send(core)
        self.streams = PlacingCalls(Method.APPEND, self.send)

    def data_methods(self) -> Mapping[int, Converse]:
        return {Method.APPEND: self.streams}

    def describe(self, families: Families) -> None:
        counters, producers = self.core.counters, self.core.tables.producers
        families.counters("rocketmq_messages_in", "Messages stored", ("topic",), counters.by_topic("messages_in"))
        families.counters("rocketmq_throughput_in", "Bytes stored", ("topic",), counters.by_topic("bytes_in"))
        families.histogram("penstock_append_seconds", "From an append's arrival to its answer", counters.append_seconds)
        families.counter("penstock_append_duplicates", "Batches answered from the table", producers.duplicates)
        families.counter("penstock_producer_lanes_evicted", "Lanes forgotten for others", producers.evicted)
        families.gauge("penstock_producer_lanes", "Lanes in the duplicate table", len(producers))

    async def stop(self) -> None:
        await self.streams.close()
        self.streams.close_links()  # of the features that answer over them this one stops last
