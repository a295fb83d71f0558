"""The small files beside the log: checkpoint, epochs, topic configuration."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.formats.checkpoint import CHECKPOINT_BYTES, FIELDS_BYTES, Standard, decode_own
from penstock.formats.directory import ABORT, CHECKPOINT, CONFIG, EPOCHS, OWN_CHECKPOINT
from penstock.formats.epochs import Epoch, decode
from penstock.proto.errors import Corrupt, WrongStore

from .files import Unreadable, read_whole
from .findings import Findings


def load_checkpoint(root: Path, findings: Findings) -> Standard | None:
    """The store's checkpoint, or None if it cannot be read. Tells ``findings`` what is wrong with it."""
    path = root / CHECKPOINT
    if not path.exists():
        findings.problem(path, None, "missing: recovery after a crash has to begin at the log's first file")
        return None
    try:
        data = read_whole(path, 1 << 20)
    except Unreadable as error:
        findings.problem(path, None, str(error).partition(": ")[2])
        return None
    fields = Standard.decode(data) if len(data) >= FIELDS_BYTES else None
    if not data and (root / ABORT).exists():
        findings.note(path, None, "empty: the broker has not written its first checkpoint yet")
        return Standard()
    if len(data) != CHECKPOINT_BYTES:
        findings.problem(path, None, f"the file has {len(data)} bytes, a checkpoint has {CHECKPOINT_BYTES}")
    for position, (name, value) in enumerate((fields._asdict() if fields else {}).items()):
        if value < 0:
            findings.problem(path, 8 * position, f"{name} is {value}")
    return fields


def is_left_by_rocketmq(root: Path, checkpoint: Standard) -> bool:
    """True if Penstock has never worked on the store, or RocketMQ since: its ``checkpoint`` is not the one noted."""
    path = root / OWN_CHECKPOINT
    try:
        return not path.exists() or decode_own(read_whole(path, 1 << 20), checkpoint, str(path)).positions is None
    except (Unreadable, WrongStore):
        return False


def load_epochs(root: Path, findings: Findings) -> tuple[Epoch, ...]:
    """Which master wrote which part of the log; empty where no master was ever elected."""
    path = root / EPOCHS
    if not path.exists():
        return ()
    try:
        return decode(read_whole(path, 1 << 20), str(path))
    except Unreadable as error:
        findings.problem(path, None, str(error).partition(": ")[2])
    except Corrupt as error:
        findings.problem(path, None, str(error).removeprefix(f"{path}: "))
    return ()


def load_topics(root: Path, findings: Findings) -> frozenset[str] | None:
    """Names of the configured topics; None where no configuration says so."""
    path = root / CONFIG / "topics.json"
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
