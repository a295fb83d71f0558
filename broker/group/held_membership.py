"""``penstockMembership.json`` in the store root: what the store knows of its place in an elected group.

::

    {"coordinator": "5f0c…", "broker_id": 1, "boot": "8d2a…"}

``coordinator``: the coordinator store that governs the group; another one knows nothing of what was acknowledged.
``boot``: of the machine when the store was last in use; another one means that unsynced pages may be gone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from penstock.proto.errors import Corrupt, WrongStore
from penstock.runtime.clock import boot_id
from penstock.runtime.whole_files import DAMAGES, damage, replace_file

FILE_NAME: Final = "penstockMembership.json"


@dataclass(frozen=True, slots=True)
class Membership:
    """The file's content; empty for a store that never had one."""

    coordinator: str = ""
    broker_id: int = -1
    boot: str = ""


class MembershipFile:
    """Reads and writes the file of one store; event loop only."""

    def __init__(self, root: Path) -> None:
        """Raises :class:`Corrupt` when the file is damaged."""
        self._path = root / FILE_NAME
        self.held = Membership()
        try:
            fields = json.loads(self._path.read_text(encoding="utf-8"))
            self.held = Membership(str(fields["coordinator"]), int(fields["broker_id"]), str(fields["boot"]))
        except FileNotFoundError:
            return
        except DAMAGES as error:
            raise Corrupt(
                f"{self._path}: damaged ({damage(error)}): restore it, or delete it, and this broker counts as one "
                "that may have lost messages until it has caught up with a master",
                path=str(self._path),
            ) from error

    @property
    def is_known(self) -> bool:
        """True if the store knows that it is a member."""
        return bool(self.held.coordinator)

    def has_booted_since(self) -> bool:
        """True if the machine has booted since the store was last in use."""
        return self.held.boot != boot_id()

    def check_use(self, broker_id: int, *, is_elected: bool) -> None:
        """Raises WrongStore: a member's store is used outside its group, where nobody elects it, or by another id."""
        if not self.is_known:
            return
        if not is_elected:
            raise WrongStore(
                f"{self._path}: the store is a member's of a group that elects its masters, and a master that is not "
                "elected may act beside another: set enableControllerMode = true; to have no elections any more, "
                "delete the file in every store of the group",
                path=str(self._path),
            )
        self._check_id(broker_id)

    def check(self, coordinator: str, broker_id: int) -> None:
        """Refuse to be governed by another coordinator store than before (empty: one without a register), or under
        another id.

        Raises WrongStore: says which, and what to do.
        """
        if not self.is_known:
            return
        self._check_id(broker_id)
        if self.held.coordinator != coordinator:
            other = (
                f"that of a nameserver is {coordinator}"
                if coordinator
                else "that of a nameserver has no register of it"
            )
            raise WrongStore(
                f"{self._path}: the group is governed by coordinator store {self.held.coordinator}, and {other}, so it "
                "knows nothing of the group's epochs: restore the former one, or delete the file "
                "in every store of the group to begin anew under this one",
                path=str(self._path),
            )

    def _check_id(self, broker_id: int) -> None:
        if self.held.broker_id != broker_id:
            raise WrongStore(
                f"{self._path}: the store is broker {self.held.broker_id}'s, this one has brokerId={broker_id}: set it "
                "back, or use another storePathRootDir; if this is a copy, delete the file in it",
                path=str(self._path),
            )

    def hold(self, coordinator: str, broker_id: int) -> None:
        """Note the place in the group; durable on return."""
        wanted = Membership(coordinator, broker_id, boot_id())
        if wanted != self.held:
            self._write(wanted)

    def note_boot(self) -> None:
        """The store has everything again: nothing of it hangs on what was lost at an earlier boot."""
        if self.is_known and self.has_booted_since():
            self._write(replace(self.held, boot=boot_id()))

    def _write(self, wanted: Membership) -> None:
        replace_file(self._path, json.dumps(asdict(wanted)).encode())
        self.held = wanted
