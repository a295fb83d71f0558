"""The small files beside the log: checkpoint, epochs, topic configuration."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import NamedTuple

from penstock.proto.errors import Corrupt
from penstock.replication.epochs import Epoch, decode

from .files import Unreadable, read_whole
from .findings import Findings

CHECKPOINT_BYTES = 4096
CHECKPOINT_FIELDS = (
    *("physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp"),
    *("master_flushed_offset", "confirm_phy_offset"),
)
_CHECKPOINT = struct.Struct(">5q")


class CheckpointFields(NamedTuple):
    """RocketMQ's ``checkpoint``: store times up to which the files were flushed, and two log positions."""

    physic_msg_timestamp: int
    logics_msg_timestamp: int
    index_msg_timestamp: int
    master_flushed_offset: int
    confirm_phy_offset: int


def decode_checkpoint(data: bytes) -> CheckpointFields | None:
    """The fields; None if there are too few bytes."""
    return CheckpointFields(*_CHECKPOINT.unpack_from(data)) if len(data) >= _CHECKPOINT.size else None


def load_checkpoint(root: Path, findings: Findings) -> CheckpointFields | None:
    """The checkpoint of the store, None if there is none that can be read; says what is wrong with it."""
    path = root / "checkpoint"
    if not path.exists():
        findings.problem(path, None, "missing: recovery after a crash has to begin at the log's first file")
        return None
    try:
        data = read_whole(path, 1 << 20)
    except Unreadable as error:
        findings.problem(path, None, str(error).partition(": ")[2])
        return None
    fields = decode_checkpoint(data)
    if not data and (root / "abort").exists():
        findings.note(path, None, "empty: the broker has not written its first checkpoint yet")
        return CheckpointFields(0, 0, 0, 0, 0)
    if len(data) != CHECKPOINT_BYTES:
        findings.problem(path, None, f"the file has {len(data)} bytes, a checkpoint has {CHECKPOINT_BYTES}")
    for position, (name, value) in enumerate((fields._asdict() if fields else {}).items()):
        if value < 0:
            findings.problem(path, 8 * position, f"{name} is {value}")
    return fields


def load_epochs(root: Path, findings: Findings) -> tuple[Epoch, ...]:
    """Which master wrote which part of the log; empty where no master was ever elected."""
    path = root / "epochFileCheckpoint"
    if not path.exists():
        return ()
    try:
        return decode(read_whole(path, 1 << 20), str(path)).entries
    except Unreadable as error:
        findings.problem(path, None, str(error).partition(": ")[2])
    except Corrupt as error:
        findings.problem(path, None, str(error).removeprefix(f"{path}: "))
    return ()


def load_topics(root: Path, findings: Findings) -> frozenset[str] | None:
    """Names of the configured topics; None where no configuration says so."""
    path = root / "config" / "topics.json"
    if not path.exists():
        return None
    try:
        document = json.loads(read_whole(path))
        return frozenset(document["topicConfigTable"])
    except Unreadable as error:
        findings.problem(path, None, str(error).partition(": ")[2])
    except json.JSONDecodeError as error:
        findings.problem(path, error.pos, f"not JSON: {error.msg}")
    except (UnicodeDecodeError, KeyError, TypeError):
        findings.problem(path, None, "not a topic configuration: it has no topicConfigTable")
    return None
