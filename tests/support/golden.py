"""The golden message stores of ``tests/golden``: written by RocketMQ 5.3.3, with what RocketMQ itself reads from them.

``tests/golden/README.md`` says what each set holds and what the keys of ``expected.json`` mean.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

GOLDEN = Path(__file__).parent.parent / "golden"

SETS = (
    "normal",
    "crashed",
    "direct",
    "direct-crc",
    "direct-ext",
    "direct-trimmed",
    "multi-queue",
    "ha/classic/master",
    "ha/classic/slave",
    "ha/controller/broker-1",
    "ha/controller/broker-2",
)


@functools.cache
def expected(name: str) -> Any:
    """What RocketMQ reads from the set: its ``expected.json``. Shared by all callers, so not to be changed."""
    with gzip.open(GOLDEN / name / "expected.json.gz") as file:
        return json.load(file)


@functools.cache
def settings(name: str) -> Any:
    """The configuration values that open the set: its ``settings.json``."""
    return json.loads((GOLDEN / name / "settings.json").read_bytes())


class _Member(NamedTuple):
    """A file or directory of a store."""

    path: str  # below the root, behind its directory's
    modified_s: float
    content: bytes | None  # of a file; most of ``normal`` are zeros at the ends of files, which are left out
    size: int


@functools.cache
def _members(name: str) -> list[_Member]:
    """All that is in the set's store. Tests unpack two hundred stores, and each tells its archive by its own."""
    found = []
    with tarfile.open(GOLDEN / name / "store.tar.gz") as archive:
        for member in archive:
            file = archive.extractfile(member)  # None of a directory
            content = None if file is None else file.read().rstrip(b"\0")
            found.append(_Member(os.path.normpath(member.name), member.mtime, content, member.size))
    return found


def unpack(name: str, directory: Path, *, only: Sequence[str] = ()) -> Path:
    """Unpack the set's store into ``directory`` (made if absent) and return it, which is the store root.

    ``only``: first path components to unpack, as ``("commitlog", "consumequeue")``; all of ``normal`` takes 41 MB.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for path, modified_s, content, size in _members(name):
        if only and path.partition("/")[0] not in only:
            continue
        target = f"{directory}/{path}"
        if content is None:
            os.makedirs(target, exist_ok=True)
            continue
        with open(target, "wb") as file:
            file.write(content.ljust(size, b"\0"))
        os.utime(target, (modified_s, modified_s))
    return directory


@functools.cache
def log_files(name: str) -> dict[int, bytes]:
    """The CommitLog files of the set by their start offset, in order."""
    found = {
        int(Path(path).name): content.ljust(size, b"\0")
        for path, _, content, size in _members(name)
        if content is not None and "commitlog" in Path(path).parts
    }
    return dict(sorted(found.items()))


def records(name: str) -> list[tuple[dict[str, Any], bytes]]:
    """Every record that RocketMQ finds in the set: what it reads from it, and its bytes."""
    files = log_files(name)
    size = len(next(iter(files.values())))
    found = []
    for message in expected(name)["messages"]:
        start, at = divmod(message["physicalOffset"], size)
        found.append((message, files[start * size][at : at + message["totalSize"]]))
    return found


def variants() -> list[dict[str, Any]]:
    """The damaged copies of the set ``crashed``."""
    found: list[dict[str, Any]] = json.loads((GOLDEN / "crashed" / "variants.json").read_text())
    return found


def damage(root: Path, steps: Sequence[Mapping[str, Any]]) -> None:
    """Apply patches as ``variants.json`` has them: ``zero``, ``hex``, ``truncate``, ``delete``."""
    for step in steps:
        path = root / step["file"]
        if step.get("delete"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif "truncate" in step:
            with path.open("ab") as file:
                file.truncate(step["truncate"])
        else:
            data = bytes(step["zero"]) if "zero" in step else bytes.fromhex(step["hex"])
            with path.open("r+b") as file:
                file.seek(step["offset"])
                file.write(data)
