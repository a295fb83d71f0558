"""Committed offsets where light queues are on: RocketMQ keeps all of them in a file of another name then.

``lmqConsumerOffset.json`` is ``consumerOffset.json`` with one more table, ``lmqOffsetTable``, from topic and group, as
there, to one number. It has the groups whose names begin with ``%LMQ%``, whose topics have one queue.
Source: RocketMQ ``LmqConsumerOffsetManager``, which ``enableLmq`` alone chooses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from penstock.formats.rocketmq_config import OFFSETS_FILE, OFFSETS_FILE_WITH_LIGHTS, read_table
from penstock.proto.names import LIGHT_PREFIX

from .offsets import Offsets
from .table import json_entries

_LIGHTS: Final = "lmqOffsetTable"


class LightOffsets(Offsets):
    """As :class:`Offsets`; of those groups RocketMQ reads the second table alone, and the first has all here."""

    file_name = OFFSETS_FILE_WITH_LIGHTS

    def load(self, document: Mapping[str, Any], log_end: int) -> None:
        lights = {key: {"0": offset} for key, offset in document.get(_LIGHTS, {}).items()}
        super().load(document, log_end)
        super().load({"offsetTable": lights}, log_end)

    def import_from(self, directory: Path) -> None:
        """Take those of a RocketMQ that had no light queues, if it is now that they are switched on."""
        if not self.pairs():
            self.load({"offsetTable": read_table(directory / OFFSETS_FILE, "offsetTable")}, 0)

    def pieces(self) -> Iterator[str]:
        yield from super().pieces()
        yield f",\n\t{json.dumps(_LIGHTS)}:{{"
        lights = [(group, topic) for group, topic in self.pairs() if group.startswith(LIGHT_PREFIX)]
        yield from json_entries(
            (f"{topic}@{group}", offset) for group, topic in lights if (offset := self.get(group, topic, 0)) >= 0
        )
        yield "}"
