"""Key-value configuration: namespace → key → value, kept in one JSON file of RocketMQ's shape.

::

    {"configTable": {"ORDER_TOPIC_CONFIG": {"orders": "broker-a:4;broker-b:4"}}}

A change is acknowledged when the file that holds it is on the disk: written beside the old one, synced, renamed
over it, directory synced. So a power cut leaves the old file or the new one, never a mixture.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

from penstock.proto.errors import ConfigError, Corrupt, InvalidArgument, KeyNotFound, StorageError
from penstock.proto.wire.nameserver_pb2 import KeyValue
from penstock.runtime.whole_files import replace_file

log = logging.getLogger(__name__)

NAME_LENGTH_MAX = 255
VALUE_LENGTH_MAX = 65_536
ENTRIES_MAX = 10_000

Table = dict[str, dict[str, str]]


class KeyValues:
    """The table in memory and its file. One event loop uses it; writing happens in a thread."""

    def __init__(self, path: Path, table: Table) -> None:
        self._path = path
        self._table = table
        self._writing = asyncio.Lock()
        self._is_unsure = False  # the file may have what was told to be refused

    @classmethod
    def open(cls, path: Path) -> KeyValues:
        """The table in the file at ``path``; empty if there is no file.

        Raises:
            Corrupt: the file is not what was written; it is left as it is.
            StorageError: the file cannot be read.
            ConfigError: there is no file, and none could be made.
        """
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            _require_place(path)
            return cls(path, {})
        except NotADirectoryError as error:
            raise ConfigError(f"kvConfigPath {path}: {error.strerror}: choose another path") from error
        except OSError as error:
            raise StorageError(f"{path}: cannot be read: {error.strerror}: see kvConfigPath") from error
        try:
            return cls(path, _decoded(content))
        except (ValueError, RecursionError) as error:
            raise Corrupt(
                f"{path}: key-value configuration is damaged ({error}): restore it from a copy, or move it away to "
                "start with none"
            ) from error

    def get(self, namespace: str, key: str) -> str:
        """The value of ``key``. Raises :class:`KeyNotFound`."""
        try:
            return self._table[namespace][key]
        except KeyError:
            raise KeyNotFound(f"namespace {namespace[:80]!r} has no key {key[:80]!r}") from None

    def list(self, namespace: str) -> list[KeyValue]:
        """The sorted content of ``namespace``; of every namespace if the argument is empty."""
        chosen = self._table if not namespace else {namespace: self._table.get(namespace, {})}
        return [
            KeyValue(namespace=name, key=key, value=value)
            for name, values in sorted(chosen.items())
            for key, value in sorted(values.items())
        ]

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set ``key``. On return it is durable.

        Raises:
            InvalidArgument: a name is blank or too long, the value too long, or the table full.
            StorageError: the file cannot be written; nothing is changed here, though the next start may find it.
        """
        for what, name in (("namespace", namespace), ("key", key)):
            if not name.strip() or len(name) > NAME_LENGTH_MAX:
                raise InvalidArgument(f"{what} of {len(name)} characters: 1..{NAME_LENGTH_MAX} are allowed")
        if len(value) > VALUE_LENGTH_MAX:
            raise InvalidArgument(f"value of {len(value)} characters: at most {VALUE_LENGTH_MAX} are allowed")

        def change(table: Table) -> None:
            table.setdefault(namespace, {})[key] = value
            if sum(map(len, table.values())) > ENTRIES_MAX:
                raise InvalidArgument(f"{ENTRIES_MAX} keys are there already: delete some first")

        await asyncio.shield(self._apply(change))  # a cancelled caller must not leave file and memory different

    async def delete(self, namespace: str, key: str) -> None:
        """Remove ``key`` if it is there. Raises as :meth:`put`."""

        def change(table: Table) -> None:
            values = table.get(namespace, {})
            values.pop(key, None)
            if not values:
                table.pop(namespace, None)

        await asyncio.shield(self._apply(change))

    async def _apply(self, change: Callable[[Table], None]) -> None:
        async with self._writing:
            table = {name: dict(values) for name, values in self._table.items()}
            change(table)
            if table == self._table and not self._is_unsure:
                return
            try:
                await asyncio.to_thread(replace_file, self._path, _encoded(table))
            except OSError as error:
                self._is_unsure = True
                log.error("key-value configuration not written path=%s error=%s", self._path, error)
                raise StorageError(
                    f"{self._path}: cannot be written: {error.strerror}; nothing was changed, but the next start may "
                    "find the change: make it again, or put back what was there"
                ) from error
            self._table, self._is_unsure = table, False


def _require_place(path: Path) -> None:
    """Raise ConfigError at the start if the first change could not make the file and its directories."""
    nearest = next(folder for folder in path.absolute().parents if folder.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(f"kvConfigPath {path}: directory {nearest} is not writable: choose another path")


def _encoded(table: Table) -> bytes:
    return json.dumps({"configTable": table}, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def _decoded(content: bytes) -> Table:
    """The table in ``content``. Raises ValueError, which says what is wrong."""
    document = json.loads(content)
    table = document.get("configTable") if isinstance(document, dict) else None
    if not isinstance(table, dict):
        raise ValueError("no configTable in it")
    for namespace, values in table.items():
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise ValueError(f"namespace {namespace[:80]!r} is not a table of texts")
    _encoded(table)  # what can be read but not written again, half a surrogate pair, is damage too
    return table
