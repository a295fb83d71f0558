"""Which groups pop, and how far their ops are done with: a table derived from state records.

| Tag | Body |
|---|---|
| ``POP_GROUP`` | ``{"group": g}``: its messages are given out by ops, from here on. One with ``"again"`` says so of a group that has ops before it, of which those below ``"cuts"``, by queue, count no more |
| ``POP_DONE`` | ``{"ops": offset, "position": p, "held": q}``: the first op that is needed and its place in the log; the log is needed from ``q`` on, or not at all (0) |
| ``OFFSETS`` | of :mod:`...core.tables.offsets`; with ``"by": "POP"`` it says what the ops have said. Another one that moves a group's offset, and a reset, void what ops before it said of that queue: an administrator has set it. One with ``"again"`` voids nothing |
| ``GROUP_DELETED``, ``TOPIC_DELETED`` | void likewise what was said of the group, or topic |
"""  # noqa: E501  a table

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from ...core.tables.groups import GROUP_DELETED
from ...core.tables.offsets import AGAIN, OFFSETS, RESET, offset_records
from ...core.tables.table import LOADED, StateRecord, Table, json_entries
from ...core.tables.topics import TOPIC_DELETED

POP_GROUP: Final = "POP_GROUP"
POP_DONE: Final = "POP_DONE"
BY: Final = "by"
POP: Final = "POP"
ROWS_PER_RECORD: Final = 4096  # each names a topic and a group: no record outgrows the body limit

R = TypeVar("R")

Key = tuple[str, str, int]
"""Group, topic, queue id; an empty name stands for all, and the queue is -1 then."""


class PopTable(Table):
    """Event loop only. ``on_moved(group, topic, queue_id)`` is called when what was said of it is void."""

    file_name = "popGroups.json"
    kinds = frozenset({POP_GROUP, POP_DONE, OFFSETS, GROUP_DELETED, TOPIC_DELETED})

    def __init__(self) -> None:
        super().__init__()
        self.on_moved: Callable[[str, str, int], None] = lambda group, topic, queue_id: None
        self.ops = 0
        self.position = 0
        self.held = 0
        self.groups: dict[str, int] = {}  # -> position of the record
        self._done_at = LOADED
        self._offsets: dict[Key, tuple[int, int]] = {}  # -> offset, position of the record
        self._cuts: dict[Key, int] = {}  # -> position behind which ops count

    def known(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset of a group that pops, as this table was told; None: never."""
        found = self._offsets.get((group, topic, queue_id))
        return None if found is None else found[0]

    def cut(self, group: str, topic: str, queue_id: int) -> int:
        """Ops of the queue below this position of the log count no more."""
        cuts = self._cuts
        keys = ((group, topic, queue_id), (group, "", -1), ("", topic, -1))
        return max(cuts.get(key, LOADED) for key in keys)

    def apply(self, position: int, kind: str, document: Mapping[str, Any]) -> None:
        if position < self.base:
            return
        if kind == POP_GROUP:
            self._enter(position, str(document["group"]), document)
        elif kind == POP_DONE:
            if position > self._done_at:
                self._done(position, int(document["ops"]), int(document["position"]), int(document["held"]))
        elif kind == OFFSETS:
            self._take(position, document)
        else:
            self._void(position, str(document.get("groupName", "")), str(document.get("topicName", "")))

    def repeated(self, position: int) -> Iterator[StateRecord]:
        older = [group for group, held in self.groups.items() if held < position]
        offsets, cuts = _by_group(self._offsets, older), _by_group(self._cuts, {"", *older})
        for group in older:
            yield from self._group_records(group, offsets[group], [*cuts[""], *cuts[group]])
        if self.ops and self._done_at < position:
            yield POP_DONE, {"ops": self.ops, "position": self.position, "held": self.held}

    def load(self, document: Mapping[str, Any], log_end: int) -> None:
        self.ops, self.position, self.held = (int(document[name]) for name in ("ops", "position", "held"))
        self._done_at = LOADED
        self.groups = {str(group): LOADED for group in document["groups"]}
        self._offsets = {_key(text): (int(offset), LOADED) for text, offset in document["offsets"].items()}
        self._cuts = {_key(text): int(cut) for text, cut in document["cuts"].items() if int(cut) < log_end}

    def pieces(self) -> Iterator[str]:
        yield f'\t"ops":{self.ops},\n\t"position":{self.position},\n\t"held":{self.held},\n\t"groups":{{'
        yield from json_entries((group, 1) for group in list(self.groups))
        yield '},\n\t"offsets":{'
        yield from json_entries((_text(key), offset) for key, (offset, _) in list(self._offsets.items()))
        yield '},\n\t"cuts":{'
        yield from json_entries((_text(key), cut) for key, cut in list(self._cuts.items()))
        yield "}"

    def _group_records(self, group: str, known: Sequence[Key], cut: Sequence[Key]) -> Iterator[StateRecord]:
        """All that is said of a group: what a log had before these records says nothing to who hears of it only now.

        ``known``, ``cut``: where it has offsets, and cuts, which may be gone when their record is made.
        """
        for part in _parts(cut) or [[]]:
            if group in self.groups:
                cuts = {_text(key): self._cuts[key] for key in part if key in self._cuts}
                yield POP_GROUP, {"group": group, AGAIN: True} | ({"cuts": cuts} if cuts else {})
        for keys in _parts(known):
            offsets: dict[str, dict[int, int]] = {}
            for _, topic, queue_id in keys:
                if (offset := self.known(group, topic, queue_id)) is not None:
                    offsets.setdefault(topic, {})[queue_id] = offset
            yield from offset_records(group, offsets, **{BY: POP})

    def _enter(self, position: int, group: str, document: Mapping[str, Any]) -> None:
        if position <= self.cut(group, "", -1):
            return
        if group not in self.groups and not document.get(AGAIN):
            # A former group of that name, whose deletion says nothing to who has not heard of it, has ops here, too.
            self._cuts[group, "", -1] = position - 1
        self.groups[group] = position
        for text, cut in document.get("cuts", {}).items():
            key = _key(text)
            self._cuts[key] = max(self._cuts.get(key, LOADED), int(cut))
        self.changes += 1

    def _done(self, position: int, ops: int, op_position: int, held: int) -> None:
        self.ops, self.position, self.held, self._done_at = ops, op_position, held, position
        self._cuts = {key: cut for key, cut in self._cuts.items() if cut >= op_position}
        self.changes += 1

    def _take(self, position: int, document: Mapping[str, Any]) -> None:
        group = str(document["group"])
        if group not in self.groups:
            return
        is_known = document.get(BY) == POP or bool(document.get(AGAIN))
        for topic, queues in document["offsets"].items():
            for text, offset in queues.items():
                key = group, str(topic), int(text)
                known, at = self._offsets.get(key, (-1, LOADED - 1))
                if position <= max(at, self.cut(*key)):
                    continue
                self._offsets[key] = int(offset), position
                self.changes += 1
                if document.get(RESET) or (int(offset) != known and not is_known):
                    self._cuts[key] = position
                    self.on_moved(*key)

    def _void(self, position: int, group: str, topic: str) -> None:
        of_group = [key for key in self._offsets if group in ("", key[0]) and topic in ("", key[1])]
        for key in of_group:
            if self._offsets[key][1] < position:
                del self._offsets[key]
        if group and self.groups.get(group, position) < position:
            del self.groups[group]
        elif not of_group:
            return
        key = group, topic, -1
        self._cuts[key] = max(self._cuts.get(key, LOADED), position)
        self.changes += 1
        self.on_moved(*key)


def _by_group(keys: Iterable[Key], groups: Iterable[str]) -> dict[str, list[Key]]:
    """The keys of each of these groups."""
    found: dict[str, list[Key]] = {group: [] for group in groups}
    for key in keys:
        if key[0] in found:
            found[key[0]].append(key)
    return found


def _parts(rows: Sequence[R]) -> list[Sequence[R]]:
    """As many at once as one record holds."""
    return [rows[start : start + ROWS_PER_RECORD] for start in range(0, len(rows), ROWS_PER_RECORD)]


def _text(key: Key) -> str:
    return "@".join((key[1], str(key[2]), key[0]))


def _key(text: str) -> Key:
    topic, queue_id, group = text.split("@")
    return group, topic, int(queue_id)
