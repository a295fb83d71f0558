"""What a store of the crash model has to remember: that it may lack bytes which others count on."""

from __future__ import annotations

import dataclasses
import logging

from penstock.broker.store import FlushMode, Store, StoreConfig
from tests.support.crash.simulated_disk import SimulatedDisk

log = logging.getLogger(__name__)


class Doubt:
    """Told of cuts, failures and starts, it says whether the store has to be in doubt, and whether it may be."""

    def __init__(self) -> None:
        self.has_booted = False  # since the owner last knew that the store has everything
        self.may_be = False  # a sync has failed, or the end of a doubt
        self._must_be = False

    def config(self, config: StoreConfig) -> StoreConfig:
        """The configuration for the next start, as the broker of a member makes it."""
        is_doubtful = self.has_booted and config.flush_mode is FlushMode.ASYNC_FLUSH
        return dataclasses.replace(config, is_unclean_doubtful=is_doubtful)

    def check(self, store: Store, config: StoreConfig, disk: SimulatedDisk) -> None:
        """Compare a store that was just opened with ``config``."""
        self._must_be = self._must_be or (config.is_unclean_doubtful and not store.recovery.clean)
        self.may_be = self.may_be or disk.fail_nth > 0
        assert "log cut" not in store.doubt, f"nothing that was synced is damaged in this model: {store.doubt}"
        assert store.doubt or not self._must_be, "what was not synced may be missing, and the store has forgotten it"
        assert self._must_be or self.may_be or not store.doubt, f"without a reason: {store.doubt}"

    def end(self, store: Store) -> None:
        """The owner has compared the log with others'."""
        self.has_booted = self._must_be = False
        self.may_be = True  # a power cut on the way brings it back
        try:
            store.end_doubt()
        except OSError as error:
            log.warning("doubt not taken back error=%s", error)
            return
        assert not store.doubt
        self.may_be = False
