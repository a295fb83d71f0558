"""What every feature of one broker stands on."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.proto.errors import NotCurrent, NotEnoughReplicas, OutcomeUnknown
from penstock.runtime.clock import DueClock

from ..config import BrokerConfig
from ..store.store import Store
from .acknowledge import Acknowledgements
from .dispatch import Dispatcher
from .events import LogEvents
from .feature import Features
from .journal import Journal
from .metrics import Counters
from .role import Role
from .tables.tables import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """Data only: behaviour is in the members. Besides them there is one rule, who may write."""

    config: BrokerConfig
    clock: DueClock
    store: Store
    tables: Tables
    role: Role
    acknowledgements: Acknowledgements
    dispatcher: Dispatcher
    counters: Counters
    events: LogEvents
    features: Features

    def __post_init__(self) -> None:
        self.events.attach(self)

    def writable(self) -> Journal:
        """The journal of a master that can acknowledge. Raises NotMaster, NotEnoughReplicas: nothing was changed."""
        self.role.check_master()
        return self.acknowledging()

    def acknowledging(self) -> Journal:
        """The same for whoever has seen that this is the master. Raises NotEnoughReplicas: nothing was changed."""
        journal = self.events.journal
        assert journal is not None, "a master without a journal"
        if not self.role.can_acknowledge():
            raise NotEnoughReplicas("fewer in-sync replicas than inSyncReplicas demands; nothing was changed")
        return journal

    @property
    def shown_epoch(self) -> int:
        """The epoch of what this broker can show of its log: nothing later is in any of its queues."""
        return self.role.history.shown_below(self.store.dispatched_offset)

    def end_of_epoch(self, epoch: int) -> int | None:
        """Up to where the log has what it had in ``epoch``; None where all of it may be there, or nobody knows (0).

        Behind that it has what later masters wrote: a consumer may have read something else there, which a failover has
        cut off.
        """
        return self.role.history.end_of_epoch(epoch) if 0 < epoch < self.shown_epoch else None

    def cut_of(self, epoch: int, topic: str, queue_id: int) -> int | None:
        """Where a queue's messages of an earlier epoch end, as :meth:`end_of_epoch` has it for the log."""
        log_end = self.end_of_epoch(epoch)
        return None if log_end is None else self.store.removal.first_from(topic, queue_id, log_end)

    async def shown(self) -> None:
        """Return when all that a master's tables say is acknowledged: nobody is shown what may vanish with this master.

        A master without the replicas that inSyncReplicas demands shows what it knows, since nothing would be confirmed
        while they are away, and groups would be without offsets as long. What vanishes then are changes whose callers
        were told that they are not safe.

        Raises NotCurrent: disk or replicas did not confirm it in time.
        """
        journal = self.events.journal
        is_alone = self.role.is_acting and not self.role.can_acknowledge()
        if journal is not None and not is_alone and self.store.confirm_offset < journal.state_end:
            try:
                await self.acknowledgements.safe(journal.state_end, "the newest change")
            except OutcomeUnknown as error:
                raise NotCurrent(f"topics, groups and offsets cannot be shown: {error.message}") from error
