"""Whether a member of an elected group has everything that it is counted on for, as far as it can know."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from penstock.proto.register import NOBODY, Register

from .held_membership import MembershipFile

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Completeness:
    """What one broker knows of that; event loop only.

    ``_may_have_lost``: the store is in doubt: what it had not synced, or even what it had, may be gone.
    ``_end_doubt()`` has the store remember that this is over.
    """

    _broker_id: int
    _membership: MembershipFile
    _may_have_lost: bool
    _end_doubt: Callable[[], None]
    is_level: bool = False
    """True if it has had everything acknowledged, in this life."""

    def is_member(self, register: Register | None) -> bool:
        """True if the group counts on this broker."""
        return register is not None and self._broker_id in register.sync_state_set

    def is_doubtful(self, register: Register | None) -> bool:
        """True if the store may lack something that this member is counted on for."""
        if self.is_level or not self.is_member(register):
            return False
        return not self._membership.is_known or self._may_have_lost

    def source_of(self, register: Register, log_epoch: int) -> int:
        """The former master, if it surely has all that this one begins with in ``register``'s epoch; else ``NOBODY``.

        As :meth:`Register.source_of`; nobody in doubt: then every member was, and the longest log was elected.
        """
        return NOBODY if self.is_doubtful(register) else register.source_of(log_epoch)

    def on_level(self) -> None:
        """The log has everything acknowledged."""
        if not self.is_level:
            self.is_level = True
            self.end_doubt()

    def end_doubt(self) -> None:
        """The log has everything, or nobody has more."""
        if self._may_have_lost:
            self._may_have_lost = False
            try:
                self._end_doubt()
            except OSError as error:
                log.warning("doubt not taken back, the next start has it again error=%s", error)
