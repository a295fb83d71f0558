"""What one broker has for pipelines: staged writes, the writers' decisions, and positions in the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import grpc
import grpc.aio

from penstock.formats.record.layout import Host
from penstock.proto.wire.pipeline_pb2_grpc import add_PositionsServicer_to_server, add_StagingServicer_to_server
from penstock.runtime.channel import reporting
from penstock.runtime.security.credentials import Security

from .config import BrokerConfig
from .core.acknowledge import Acknowledgements
from .core.dispatch import Dispatcher
from .core.producers import ProducerTable
from .core.state_log import StateLog
from .features.archive.positions import Positions
from .features.exactly_once.coordinators import Coordinators
from .features.exactly_once.pipeline_api import PositionsService, StagingService
from .features.exactly_once.staging import Staging
from .features.exactly_once.writers import WriterLog, Writers
from .features.later.timers import Timers
from .group.elected_role import ElectedRole
from .group.roles import Role
from .produce.send import Send
from .startup import Opened


@dataclass(frozen=True, slots=True)
class PipelineParts:
    """Made by :meth:`make`."""

    writers: Writers
    producers: ProducerTable
    writer_log: WriterLog
    staging: Staging
    positions: Positions

    @classmethod
    def make(
        cls,
        config: BrokerConfig,
        opened: Opened,
        role: Role | ElectedRole,
        acknowledgements: Acknowledgements,
        state_log: StateLog | None,
        send: Send,
        timers: Timers,
        dispatcher: Dispatcher,
        *,
        security: Security,
        born_host: Host,
        on_appended: Callable[[int], None],
    ) -> PipelineParts:
        """The parts, for the running event loop; ``state_log`` at a master."""
        store, state = opened.store, opened.state
        writer_log = WriterLog(state.staging, state_log, role, acknowledgements, start_end=store.end_offset)
        writers = Writers(writer_log)
        staging = Staging(
            store,
            state,
            opened.producers,
            writers,
            writer_log,
            broker_name=config.identity.broker_name,
            born_host=born_host,
            body_bytes_max=config.store.body_bytes_max,
            timers=timers,
            check_topic=send.writable_topic,
            on_appended=on_appended,
            wait_dispatched=dispatcher.wait_dispatched,
            ask_coordinator=Coordinators(config.nameservers.addresses, security).ask,
        )
        positions = Positions(store, state, role, acknowledgements, state_log, catch_up=dispatcher.catch_up)
        return cls(writers, opened.producers, writer_log, staging, positions)

    def register(self, server: grpc.aio.Server) -> None:
        """Have ``server`` answer for them."""
        service, positions = (
            StagingService(self.writers, self.staging, self.producers),
            PositionsService(self.positions),
        )
        add_StagingServicer_to_server(service, server)  # type: ignore[no-untyped-call]
        add_PositionsServicer_to_server(positions, server)  # type: ignore[no-untyped-call]
        data = {"Stage": grpc.unary_unary_rpc_method_handler(reporting(self.staging.stage))}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("penstock.v1.StagingData", data),))
