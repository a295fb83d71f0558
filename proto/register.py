"""The register of a broker group: its master, epoch and sync-state set, as one value that changes as a whole.

Pure. Every change takes the register as it is and gives the next one, with the next version; the coordinator store
replaces the one by the other only while nobody else has. So two changes never mix, and each rule here is checked
against exactly what it replaces. What the rules are for is said in ``docs/internals/failover-protocol.md``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from .errors import InvalidArgument, NotMaster, StaleRegister
from .wire import coordination_pb2

NOBODY = -1
MEMBERS_MAX = 64
_INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """What the coordinator store holds of one broker group."""

    cluster: str
    broker_name: str
    epoch: int
    master_id: int
    sync_state_set: frozenset[int]  # the master included; each member has everything acknowledged
    version: int = 1
    former_id: int = NOBODY  # master of the epoch before
    handed_over: bool = False  # the former master ended its epoch by itself
    unclean_epoch: int = 0  # the newest whose master was elected from outside the set: what only that had is given up
    unclean_allowed: bool = False  # the next one may be; this epoch's master knows it from its begin

    def __post_init__(self) -> None:
        """Raises ``ValueError`` for a register that no sequence of changes makes."""
        if not (1 <= self.epoch <= _INT64_MAX and 1 <= self.version <= _INT64_MAX):
            raise ValueError(f"epoch {self.epoch}, version {self.version}: both begin at 1")
        if self.master_id not in self.sync_state_set:
            raise ValueError(f"master {self.master_id} is not in the sync-state set {sorted(self.sync_state_set)}")
        if len(self.sync_state_set) > MEMBERS_MAX or min(self.sync_state_set) < 0:
            raise ValueError(f"sync-state set {sorted(self.sync_state_set)}: at most {MEMBERS_MAX} ids from 0 on")

    def with_set(self, master_id: int, epoch: int, version: int, members: Iterable[int]) -> Register:
        """This register after the master of ``epoch`` has changed its set.

        Raises:
            NotMaster: another epoch has begun.
            StaleRegister: the register has changed since the master read it.
            InvalidArgument: the master would not be in it.
        """
        self._check_master(master_id, epoch, version)
        chosen = frozenset(members)
        if master_id not in chosen or len(chosen) > MEMBERS_MAX or min(chosen) < 0:
            raise InvalidArgument(
                f"{self.broker_name}: sync-state set {sorted(chosen)}: must hold the master {master_id}, and at most "
                f"{MEMBERS_MAX} ids from 0 on"
            )
        return replace(self, sync_state_set=chosen, version=self.version + 1)

    def handed_over_to(self, master_id: int, epoch: int, version: int, to_id: int) -> Register:
        """This register after the master of ``epoch``, which acts no more, gave its role to ``to_id``. The set stays.

        Raises:
            NotMaster, StaleRegister: as for :meth:`with_set`.
            InvalidArgument: ``to_id`` is not in the set, or is the master itself.
        """
        self._check_master(master_id, epoch, version)
        if to_id == master_id:
            raise InvalidArgument(f"{self.broker_name}: broker {to_id} is the master already")
        if to_id not in self.sync_state_set:
            raise InvalidArgument(
                f"{self.broker_name}: broker {to_id} is not in sync (sync-state set {sorted(self.sync_state_set)}): "
                "wait until it has caught up, or choose another one"
            )
        return self._next_epoch(to_id, self.sync_state_set, handed_over=True)

    def elected(self, candidate: int, *, unclean_allowed: bool = False) -> Register:
        """This register with ``candidate`` elected. The set stays, the former master included: an election tells
        nothing of who has what, and a set that lost a member by each would soon be one broker, whose death stops all.

        ``unclean_allowed``: what may happen in place of *this* master; so it knows it before it begins.

        Raises:
            InvalidArgument: it is not in the set, so it may lack what was acknowledged.
        """
        if candidate not in self.sync_state_set:
            raise InvalidArgument(
                f"{self.broker_name}: broker {candidate} is not in the sync-state set {sorted(self.sync_state_set)}"
            )
        return replace(self._next_epoch(candidate, self.sync_state_set), unclean_allowed=unclean_allowed)

    def elected_unclean(self, candidate: int) -> Register:
        """This register with ``candidate`` elected from outside the set: what only the set has is given up.

        Raises:
            InvalidArgument: the master counts on it that this does not happen.
        """
        if not self.unclean_allowed:
            raise InvalidArgument(f"{self.broker_name}: epoch {self.epoch} began without enableElectUncleanMaster")
        after = self._next_epoch(candidate, frozenset((candidate,)))
        return replace(after, unclean_epoch=after.epoch)

    def source_of(self, log_epoch: int) -> int:
        """The former master, if it surely has all that the master of this epoch begins with; else ``NOBODY``.

        ``log_epoch``: the newest in the log before this epoch begins there.

        A log knows an epoch from when it has become a beginning of that epoch's master's log, and takes nothing else
        in before it knows a later one. So it must be the epoch just before this one, whose master ``former_id`` was.
        A log of an older epoch may hold what that broker never had: it followed others, or the former master was
        replaced before it began.
        """
        return self.former_id if log_epoch == self.epoch - 1 else NOBODY

    def to_wire(self, coordinator: str) -> coordination_pb2.Register:
        """The message; ``coordinator`` is the id of the store that holds it."""
        return coordination_pb2.Register(**self._fields(), coordinator=coordinator)

    def to_json(self) -> str:
        """The text that the coordinator store keeps."""
        return json.dumps(self._fields(), sort_keys=True)

    def _fields(self) -> dict[str, Any]:
        return {**asdict(self), "sync_state_set": sorted(self.sync_state_set)}

    def _check_master(self, master_id: int, epoch: int, version: int) -> None:
        if (master_id, epoch) != (self.master_id, self.epoch):
            raise NotMaster(
                f"{self.broker_name}: broker {master_id} was master in epoch {epoch}; broker {self.master_id} is, in "
                f"epoch {self.epoch}",
                epoch=self.epoch,
            )
        if version != self.version:
            raise StaleRegister(
                f"{self.broker_name}: the register is at version {self.version}, not {version}: read it again"
            )

    def _next_epoch(self, master_id: int, members: frozenset[int], *, handed_over: bool = False) -> Register:
        return replace(
            self,
            epoch=self.epoch + 1,
            master_id=master_id,
            sync_state_set=members,
            version=self.version + 1,
            former_id=self.master_id,
            handed_over=handed_over,
        )


def new_register(
    cluster: str, broker_name: str, broker_id: int, epoch: int, *, unclean_allowed: bool = False
) -> Register:
    """The register of a group that had none; its log knows epochs up to ``epoch``."""
    return Register(
        cluster=cluster,
        broker_name=broker_name,
        epoch=epoch + 1,
        master_id=broker_id,
        sync_state_set=frozenset((broker_id,)),
        unclean_allowed=unclean_allowed,
    )


def register_of_json(text: str) -> Register:
    """The register in ``text``. Raises ``ValueError`` for anything else."""
    try:
        document = json.loads(text)
        if unknown := document.keys() - {field.name for field in fields(Register)}:
            raise ValueError(f"{', '.join(sorted(unknown))}: a newer release wrote it: upgrade this nameserver")
        register = Register(**{**document, "sync_state_set": frozenset(document["sync_state_set"])})
    except KeyError as error:
        raise ValueError(f"not a register: no {error} in it") from error
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a register: {error}") from error
    for name in ("epoch", "master_id", "version", "former_id", "unclean_epoch"):
        if type(getattr(register, name)) is not int:
            raise ValueError(f"not a register: {name} is {getattr(register, name)!r}")
    if not all(type(member) is int for member in register.sync_state_set):
        raise ValueError("not a register: ids of the set are no numbers")
    return register


def register_of_wire(message: coordination_pb2.Register) -> Register:
    """The register in ``message``. Raises ``ValueError`` if the message holds something else."""
    values = {each.name: getattr(message, each.name) for each in fields(Register)}
    return Register(**{**values, "sync_state_set": frozenset(message.sync_state_set)})
