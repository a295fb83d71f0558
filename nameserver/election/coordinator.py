"""The coordinator store as the nameserver uses it, and its embedded form: one file, synced at each change.

The file, ``controllerStorePath``::

    {"coordinator": "5f0c…", "registers": {"broker-a": {"epoch": 3, "master_id": 1, …}}}

``coordinator`` is a random id, made with the file: brokers refuse to be governed by another one. The file beside it,
``<name>.lock``, is locked while a nameserver has the store: two that elect from one file would be two coordinators.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import uuid
from pathlib import Path
from typing import Protocol

from penstock.proto.errors import ConfigError, CoordinatorUnavailable, Corrupt, StorageError
from penstock.proto.register import Register, register_of_json
from penstock.runtime.whole_files import DAMAGES, damage, replace_file

log = logging.getLogger(__name__)


class CoordinatorStore(Protocol):
    """Registers by broker group, with linearizable reads and compare-and-set."""

    async def id(self) -> str:
        """The store's random id; the same for as long as its content lives."""
        ...

    async def read(self, broker_name: str) -> Register | None:
        """The group's register as it is now, or None.

        Raises:
            CoordinatorUnavailable: the store does not answer, or what it holds is not a register.
        """
        ...

    async def replace(self, before: Register | None, after: Register) -> bool:
        """Replace ``before`` (None: no register) by ``after``, durably. Returns False if another register is there.

        Raises:
            CoordinatorUnavailable: the change may have been made or not.
        """
        ...

    async def close(self) -> None:
        """Close files and connections."""
        ...


class CoordinatorFile:
    """The store in one file, for one nameserver. Event loop only; writing happens in a thread."""

    def __init__(self, path: Path, lock: int, coordinator: str, registers: dict[str, Register]) -> None:
        self._path = path
        self._lock = lock  # descriptor of the locked file beside it; given back by close
        self._coordinator = coordinator
        self._registers = registers
        self._is_unsure = False  # the file has what no answer told: nothing is told before it has the registers again
        self._writing = asyncio.Lock()

    @classmethod
    def open(cls, path: Path) -> CoordinatorFile:
        """The store in the file at ``path``; a missing file is made, with a new id.

        Raises:
            Corrupt: the file is damaged; it is left as it is.
            ConfigError: it cannot be made, or another nameserver has it.
            StorageError: it cannot be read.
        """
        lock = _locked(path)
        try:
            return cls._opened(path, lock)
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    def _opened(cls, path: Path, lock: int) -> CoordinatorFile:
        try:
            content = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            store = cls(path, lock, uuid.uuid4().hex, {})
            try:
                replace_file(path, store._encoded({}))
            except OSError as error:
                raise ConfigError(
                    f"controllerStorePath {path}: cannot be made: {error.strerror}: choose another path"
                ) from error
            log.info("coordinator store made path=%s id=%s", path, store._coordinator)
            return store
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"controllerStorePath {path}: cannot be read: {error}") from error
        try:
            document = json.loads(content)
            registers = {
                str(name): register_of_json(json.dumps(fields)) for name, fields in document["registers"].items()
            }
            coordinator = document["coordinator"]
            if not isinstance(coordinator, str) or not coordinator:
                raise ValueError("no id")
            if any(name != register.broker_name for name, register in registers.items()):
                raise ValueError("a register under another name than its own")
        except DAMAGES as error:
            raise Corrupt(
                f"{path}: the coordinator's file is damaged ({damage(error)}): restore it from a copy; without it, who "
                "was master last and who has everything acknowledged is not known",
                path=str(path),
            ) from error
        return cls(path, lock, coordinator, registers)

    async def id(self) -> str:
        return self._coordinator

    async def read(self, broker_name: str) -> Register | None:
        if self._is_unsure:
            await asyncio.shield(self._write_again())
        return self._registers.get(broker_name)

    async def replace(self, before: Register | None, after: Register) -> bool:
        # A cancelled caller must not leave file and memory different.
        return await asyncio.shield(self._replace(before, after))

    async def close(self) -> None:
        async with self._writing:
            os.close(self._lock)

    async def _replace(self, before: Register | None, after: Register) -> bool:
        async with self._writing:
            if self._registers.get(after.broker_name) != before:
                return False
            await self._write({**self._registers, after.broker_name: after})
            return True

    async def _write_again(self) -> None:
        async with self._writing:
            if self._is_unsure:
                await self._write(self._registers)

    async def _write(self, registers: dict[str, Register]) -> None:
        """Have these in the file, and then here. Raises CoordinatorUnavailable: a start may find them all the same."""
        content = self._encoded(registers)
        try:
            await asyncio.to_thread(replace_file, self._path, content)
        except OSError as error:
            self._is_unsure = self._is_unsure or self._has(content)
            log.error("coordinator's file not written path=%s error=%s", self._path, error)
            raise CoordinatorUnavailable(f"{self._path}: cannot be written: {error.strerror}") from error
        self._registers, self._is_unsure = registers, False

    def _has(self, content: bytes) -> bool:
        """True if the file has it, durably or not."""
        try:
            return self._path.read_bytes() == content
        except OSError:
            return False

    def _encoded(self, registers: dict[str, Register]) -> bytes:
        document = {
            "coordinator": self._coordinator,
            "registers": {name: json.loads(register.to_json()) for name, register in sorted(registers.items())},
        }
        return json.dumps(document, indent=1).encode() + b"\n"


def _locked(path: Path) -> int:
    """A descriptor that holds the lock of the coordinator's file.

    Raises:
        ConfigError: another nameserver has it, or the lock's file cannot be made.
    """
    name = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(
            f"controllerStorePath {path}: cannot be made: {error.strerror}: choose another path"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ConfigError(
            f"controllerStorePath {path}: another nameserver has it open (lock {name}): give each nameserver a path of "
            "its own, or use etcd where several nameservers must elect"
        ) from error
    return descriptor
