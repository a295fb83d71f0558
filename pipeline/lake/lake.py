"""The lake: Parquet files of archived messages, and one manifest per log file, which alone says what counts.

::

    messages/dt=2026-03-01/broker=broker-a/00000000001073741824-00003-<run>.parquet
    manifests/broker-a/00000000001073741824.json

Beside these the job ``lag`` keeps its rows, in ``lag/``: see :mod:`.lag.files`.

A manifest is written last, as a whole, when the files it names are on the disk, so that what a killed job leaves behind
(there, and in ``_staging``, which may be deleted while no job runs) is seen by nobody; archiving the file again
replaces it. Its fields: ``version``, ``broker``, ``segment``, ``startPhysicalOffset``, ``endPhysicalOffset``,
``fileBytes``, ``sealed``, ``rows``, ``recordBytes``, ``damages``, ``firstStoreTimestamp``, ``lastStoreTimestamp`` (ms),
``crc32`` (of the bytes of that range), ``headCrc32`` and ``tailCrc32`` (of its first and last 4 KiB, by which a log
file is known again without reading it whole), ``queues`` (topic, queue id, messages, first and last offset), ``files``
(path in the lake, bytes), ``fileCrc32`` (of each of these), ``archivedAt`` (ms), ``epochs`` (each with the position at
which it begins, of the masters that wrote the range; null where the store does not say), and ``replaced`` (files of
manifests that stood here before, and when they were replaced, ms): queries may still read these, so a later run removes
them.

A body that cannot be decompressed is in the lake as it was stored, and ``damages`` counts its message.

In a lake of topics (the job ``archive-topic``) a manifest stands for one run's messages of one broker: ``segment`` is
its number, ``fileBytes`` and ``crc32`` are 0, the other checksums of a log null, and the range reaches from its first
record to behind its last one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import quote

from pyarrow import fs

from penstock.proto.errors import ConfigError, Corrupt

from ..stores.files import open_file_system

VERSION = 3
_PATTERN = re.compile(r"[\[\]{}*?\\]")
"""What Spark takes for a pattern in a path."""
_END = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What the lake holds of one log file; see the module's text."""

    broker: str
    segment: int
    startPhysicalOffset: int
    endPhysicalOffset: int
    fileBytes: int
    sealed: bool
    rows: int
    recordBytes: int
    damages: int
    firstStoreTimestamp: int | None
    lastStoreTimestamp: int | None
    crc32: int
    queues: tuple[tuple[str, int, int, int, int], ...]
    files: tuple[tuple[str, int], ...]
    fileCrc32: tuple[int, ...]
    archivedAt: int
    headCrc32: int | None = None
    tailCrc32: int | None = None
    epochs: tuple[tuple[int, int], ...] | None = None
    replaced: tuple[tuple[str, int], ...] = ()
    version: int = VERSION

    @property
    def of_topics(self) -> bool:
        """Whether it is of messages that were read over the network, so that there is no log file."""
        return self.fileBytes == 0

    @property
    def name(self) -> str:
        """Where it lies in the lake."""
        return manifest_name(self.broker, self.segment)

    def may_replace(self, former: Manifest) -> bool:
        """Whether the lake loses nothing if it stands where ``former`` did: it has the same files, or more of the log.

        A manifest of topics stands for one run, and is never replaced.
        """
        if (self.endPhysicalOffset, self.sealed) == (former.endPhysicalOffset, former.sealed):
            return self.files == former.files
        reaches = self.endPhysicalOffset >= former.endPhysicalOffset and self.sealed >= former.sealed
        return reaches and not former.of_topics


class Lake:
    """A lake at a path or URI; it need not exist yet."""

    def __init__(self, root: str) -> None:
        self.files, self.path = open_file_system(root.rstrip("/"))
        self.root = root.rstrip("/") if "://" in root else self.path  # the same in every process

    def mark_name(self, job: str) -> str:
        """What brokers call the archive that ``job`` keeps here, unless told otherwise; each lake has its own."""
        place = f"file://{self.path}" if isinstance(self.files, fs.LocalFileSystem) else self.root
        return f"{job}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"

    def require(self) -> None:
        """Nothing, if there is a lake.

        Raises:
            ConfigError: there is none.
        """
        if self.files.get_file_info(f"{self.path}/manifests").type != fs.FileType.Directory:
            raise ConfigError(f"{self.root}: no lake: it has no directory manifests; make one with the job archive")

    def manifests(self) -> list[Manifest]:
        """All manifests, by broker and position.

        Raises:
            Corrupt: a file is no manifest.
        """
        selector = fs.FileSelector(f"{self.path}/manifests", recursive=True, allow_not_found=True)
        found = []
        for info in self.files.get_file_info(selector):
            name = info.base_name.removesuffix(".json")
            if info.type == fs.FileType.File and name.isdecimal() and info.base_name.endswith(".json"):
                found.append(self._load(info.path))
        return sorted(found, key=lambda manifest: (manifest.broker, manifest.segment))

    def standing(self, name: str) -> Manifest | None:
        """The manifest of this name as it is now; None where there is none.

        Raises:
            Corrupt: the file is no manifest.
        """
        path = f"{self.path}/{name}"
        return self._load(path) if self.files.get_file_info(path).type == fs.FileType.File else None

    def _load(self, path: str) -> Manifest:
        with self.files.open_input_file(path) as file:
            text = file.read()
        try:
            document: dict[str, Any] = json.loads(text)
            if int(document["version"]) != VERSION:
                raise Corrupt(f"{path}: a manifest of version {document['version']}, this program knows {VERSION}")
            document["queues"] = tuple(tuple(queue) for queue in document["queues"])
            document["files"] = tuple((str(name), int(size)) for name, size in document["files"])
            document["fileCrc32"] = tuple(map(int, document["fileCrc32"]))
            if document["epochs"] is not None:
                document["epochs"] = tuple((int(epoch), int(start)) for epoch, start in document["epochs"])
            document["replaced"] = tuple((str(name), int(at)) for name, at in document["replaced"])
            if len(document["fileCrc32"]) != len(document["files"]):
                raise ValueError("it has not one checksum for each file")
            return Manifest(**document)
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(
                f"{path}: no manifest of a lake: {error}; delete it and archive the log file again"
            ) from error

    def commit(self, manifest: Manifest) -> bool:
        """Write a manifest, whole or not at all; False, with nothing written, where one stands that it may not replace.

        Files of the one that it replaces stay, told in ``replaced``, until :meth:`sweep_replaced`. What stands there is
        asked for immediately before, for pyarrow has neither a conditional put nor a rename that refuses. So two jobs
        that commit the same manifest within these milliseconds do not see each other, and the later one holds: have one
        job at a time archive a broker.
        """
        folder = manifest.name.rpartition("/")[0]
        self.files.create_dir(f"{self.path}/{folder}", recursive=True)
        former = self.standing(manifest.name)
        if former is not None and not manifest.may_replace(former):
            return False
        if former is not None and former.files != manifest.files:
            old = tuple((name, manifest.archivedAt) for name, _ in former.files)
            manifest = replace(manifest, replaced=(*former.replaced, *old))
        draft = f"{folder}/.{manifest.segment:020d}.{manifest.archivedAt}"
        with self.files.open_output_stream(f"{self.path}/{draft}") as file:
            file.write(json.dumps(asdict(manifest)).encode())
        self.sync(draft)
        self.move(draft, manifest.name)
        return True

    def move(self, name: str, to: str) -> None:
        """Give a file another name, in place of what has it; directories are made, and the name is on the disk then."""
        parent = to.rpartition("/")[0]
        self.files.create_dir(f"{self.path}/{parent}", recursive=True)
        self.files.move(f"{self.path}/{name}", f"{self.path}/{to}")
        while parent:
            self.sync(parent)
            parent = parent.rpartition("/")[0]
        self.sync("")

    def sync(self, name: str) -> None:
        """Have the disk keep a file or a directory's names: retention deletes what a manifest says is here.

        Object stores keep what they have taken.
        """
        if not isinstance(self.files, fs.LocalFileSystem):
            return
        handle = os.open(f"{self.path}/{name}", os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def paths_of(self, manifests: Iterable[Manifest]) -> list[str]:
        """The Parquet files, as Spark takes them: signs of patterns in the lake's path stand for themselves."""
        prefix = _PATTERN.sub(r"\\\g<0>", self.root if "://" in self.root else f"file://{self.root}")
        return [f"{prefix}/{name}" for manifest in manifests for name, _ in manifest.files]

    def require_files(self, manifests: Iterable[Manifest]) -> None:
        """Nothing, if the files that these manifests name are there with the bytes that they should have.

        Raises:
            Corrupt: one is not.
        """
        named = [(manifest, name, size) for manifest in manifests for name, size in manifest.files]
        infos = self.files.get_file_info([f"{self.path}/{name}" for _, name, _ in named])
        for (manifest, name, size), info in zip(named, infos, strict=True):
            wrong = wrong_size(info, size)
            if wrong:
                raise Corrupt(
                    f"{self.root}/{name}: {wrong}: restore it, or delete {self.root}/{manifest.name} and archive again"
                )

    def sweep(self, name: str, age_s: float) -> None:
        """Remove the directories in a folder that nobody has written to for so long."""
        selector = fs.FileSelector(f"{self.path}/{name}", allow_not_found=True)
        for info in self.files.get_file_info(selector):
            old = info.mtime is not None and time.time() - info.mtime.timestamp() > age_s
            if old and info.type == fs.FileType.Directory:
                with contextlib.suppress(OSError):  # another job may sweep too
                    self.files.delete_dir(info.path)

    def sweep_replaced(self, age_s: float) -> None:
        """Remove the files that were replaced so long ago, and have their manifests forget them."""
        due = (time.time() - age_s) * 1000
        for manifest in self.manifests():
            kept = tuple((name, at) for name, at in manifest.replaced if at > due)
            if kept != manifest.replaced:
                self.delete(name for name, at in manifest.replaced if at <= due)
                self.commit(replace(manifest, replaced=kept))

    def delete(self, names: Iterable[str]) -> None:
        """Remove files that no manifest names any more."""
        for name in names:
            try:
                self.files.delete_file(f"{self.path}/{name}")
            except FileNotFoundError:
                continue


def wrong_size(info: fs.FileInfo, size: int) -> str:
    """What is wrong with a file that has to have so many bytes; nothing where it is empty."""
    if info.type != fs.FileType.File:
        return "the file is missing"
    return "" if info.size == size else f"the file has {info.size} bytes where its manifest says {size}"


def folder_name(broker: str) -> str:
    """A broker's name as part of a path, written as Spark does."""
    return quote(broker, safe=" ")


def manifest_name(broker: str, segment: int) -> str:
    """Where in the lake the manifest of a broker's log file lies."""
    return f"manifests/{folder_name(broker)}/{segment:020d}.json"


def watermark(manifests: list[Manifest], broker: str, log_start: int) -> int:
    """The first byte of the broker's log that is not archived, from ``log_start`` (its first one) on."""
    return reach(
        ((one.startPhysicalOffset, one.endPhysicalOffset) for one in manifests if one.broker == broker), log_start
    )


def reach(ranges: Iterable[tuple[int, int]], start: int) -> int:
    """The first position at or behind ``start`` that none of these ranges has."""
    return next(holes([*ranges, (_END, _END)], start))[0]


def holes(ranges: Iterable[tuple[int, int]], start: int) -> Iterator[tuple[int, int]]:
    """What none of these ranges has, from ``start`` up to the last one."""
    for first, end in sorted(ranges):
        if first > start:
            yield start, first
        start = max(start, end)
