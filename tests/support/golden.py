"""The golden message stores of ``tests/golden``: written by RocketMQ 5.3.3, with what RocketMQ itself reads from them.

``tests/golden/README.md`` says what each set holds and what the keys of ``expected.json`` mean.
"""

from __future__ import annotations

import functools
import gzip
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def unpack(name: str, directory: Path, *, only: Sequence[str] = ()) -> Path:
    """Unpack the set's store into ``directory`` (made if absent) and return it, which is the store root.

    ``only``: first path components to unpack, as ``("commitlog", "consumequeue")``; all of ``normal`` takes 41 MB.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(GOLDEN / name / "store.tar.gz") as archive:
        members = [
            member for member in archive.getmembers() if not only or Path(member.name).parts[:1] in {(o,) for o in only}
        ]
        archive.extractall(directory, members, filter="data")
    return directory


@functools.cache
def log_files(name: str) -> dict[int, bytes]:
    """The CommitLog files of the set by their start offset, in order."""
    found: dict[int, bytes] = {}
    with tarfile.open(GOLDEN / name / "store.tar.gz") as archive:
        for member in archive.getmembers():
            path = Path(member.name)
            if member.isfile() and "commitlog" in path.parts:
                file = archive.extractfile(member)
                assert file is not None
                found[int(path.name)] = file.read()
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
