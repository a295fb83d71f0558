"""Ops: records that say which halves are decided, in RocketMQ's form, and how, in a property of their own.

An op has the tag ``d`` and the halves' queue offsets as its body. Its property :data:`~penstock.proto.names.
DECISION_PROPERTY` divides the body into stretches, in order: a letter for what was decided, and how many halves.

| Letter | Halves |
|---|---|
| ``C`` | committed: posted into their topics |
| ``c`` | committed, by a later record of theirs, which is a ``C`` of the same op |
| ``R`` | rolled back |
| ``P`` | parked: posted into ``names.PARKED_TOPIC`` |
| ``p`` | parked, by a later record of theirs |
| ``K`` | stored anew, because a producer is asked about them |
| ``N`` | stored anew, because their log file is about to go |

An op of RocketMQ has no such property: its halves are committed, rolled back, or stored anew.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.formats.record.form import RecordForm
from penstock.formats.record.layout import Record
from penstock.formats.record.properties import TAGS, WAIT, decode_properties, encode_properties
from penstock.formats.record.reposting.halves import read_offsets, write_offsets
from penstock.proto import names
from penstock.proto.wire import transactions_pb2 as wire

Longs = np.ndarray[Any, np.dtype[np.int64]]

TAG: Final = "d"
_OFFSET_BYTES_MAX: Final = 20
_STATES: Final = {
    "C": wire.COMMITTED,
    "c": wire.COMMITTED,
    "R": wire.ROLLED_BACK,
    "P": wire.PARKED,
    "p": wire.PARKED,
    "K": wire.RENEWED,
    "N": wire.RENEWED,
}
_STRETCHES: Final = re.compile(r"(?:[CcRPpKN][0-9]{1,9})+")
_STRETCH: Final = re.compile(r"([CcRPpKN])([0-9]+)")


class Stretch(NamedTuple):
    """Halves of an op that are decided alike; the letter is one of those above."""

    letter: str
    offsets: Longs

    @property
    def state(self) -> int:
        """What the halves are from now on, a ``HalfState``."""
        return _STATES.get(self.letter, wire.ENDED)


def op_record(stretches: list[Stretch], form: RecordForm) -> bytes:
    """The record of an op, for the queue of ops; ``form``: of that topic."""
    offsets = np.concatenate([stretch.offsets for stretch in stretches])
    body = np.empty(len(offsets) * _OFFSET_BYTES_MAX, np.uint8)
    size = int(write_offsets(offsets, body))
    how = "".join(f"{stretch.letter}{len(stretch.offsets)}" for stretch in stretches)
    properties = encode_properties({WAIT: "true", TAGS: TAG, names.DECISION_PROPERTY: how})
    return form.encode(body[:size].tobytes(), properties)


def read_op(record: Record) -> list[Stretch]:
    """What an op says; empty for a record that says nothing of halves."""
    properties = decode_properties(record.properties)
    if properties.get(TAGS) != TAG:
        return []
    offsets = np.empty(record.body.count(b",") + 1, np.int64)
    offsets = offsets[: int(read_offsets(np.frombuffer(record.body, np.uint8), offsets))]
    how = properties.get(names.DECISION_PROPERTY, "")
    if not _STRETCHES.fullmatch(how):
        return [Stretch("", offsets)]
    stretches, at = [], 0
    for letter, count in _STRETCH.findall(how):
        stretches.append(Stretch(letter, offsets[at : at + int(count)]))
        at += int(count)
    return [*stretches, *([Stretch("", offsets[at:])] if at < len(offsets) else [])]
