"""What one consumer tells of the messages that it gets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from penstock.formats.record.properties import KEYS, ORIGIN_MESSAGE_ID, UNIQ_KEY
from penstock.formats.record.unique_key import new_unique_key
from penstock.formats.trace import REGION, ReturnCode, SubAfter, SubBefore

from ..consume.push.outcomes import ConsumeResult, Listener, is_success
from ..message import MessageView
from .tracer import CONTEXTS_MAX, Tracer


def traced_id(message: MessageView) -> str:
    """The id under which a message's story is told; its copies in retry topics have the same."""
    found = message.all_properties
    return found.get(UNIQ_KEY) or found.get(ORIGIN_MESSAGE_ID) or message.offset_message_id


class _Seen(NamedTuple):
    message_id: str
    retry_times: int
    keys: str


class _Begun(NamedTuple):
    """Messages that were handed out together."""

    seen: list[_Seen]
    request_id: str
    began_s: float


class ConsumeTrace:
    """Tells when a consumer begins with messages, and how it comes to an end with them."""

    def __init__(self, tracer: Tracer, group: str) -> None:
        self.tracer = tracer
        self._group = group
        self._handed: list[_Begun] = []  # by polls, and not processed yet; the polling thread's

    def listener(self, listener: Listener, timeout_s: float) -> Listener:
        """A listener that does as ``listener``, and tells of it. ``timeout_s``: what comes back later has failed."""

        def traced(item: Any) -> Any:
            begun = self._begin(item if isinstance(item, list) else (item,))
            if begun is None:
                return listener(item)
            code = ReturnCode.EXCEPTION
            try:
                outcome = listener(item)
                code = _code_of(outcome)
                return outcome
            finally:
                is_late = time.monotonic() - begun.began_s > timeout_s
                self._end(begun, ReturnCode.TIME_OUT if is_late else code)

        return traced

    def handed_out(self, messages: Sequence[MessageView]) -> None:
        begun = self._begin(messages)
        if begun is not None:
            self._handed.append(begun)
            while sum(len(each.seen) for each in self._handed) > CONTEXTS_MAX and len(self._handed) > 1:
                self._handed.pop(0)  # whoever never commits has no end to tell of

    def settled(self, *, success: bool) -> None:
        """Everything that polls have returned is processed, or is not and comes again."""
        handed, self._handed = self._handed, []
        for begun in handed:
            self._end(begun, ReturnCode.SUCCESS if success else ReturnCode.FAILED)

    def _begin(self, messages: Iterable[MessageView]) -> _Begun | None:
        seen = [
            _Seen(message_id, message.reconsume_times, message.all_properties.get(KEYS, ""))
            for message in messages
            if self.tracer.sample.has(message_id := traced_id(message)) and message.topic != self.tracer.topic
        ]
        if not seen:
            return None
        begun = _Begun(seen, new_unique_key(), time.monotonic())
        at_ms, group = time.time_ns() // 1_000_000, self._group
        self.tracer.take(
            len(seen),
            lambda: [
                SubBefore(at_ms, REGION, group, begun.request_id, each.message_id, each.retry_times, each.keys)
                for each in seen
            ],
        )
        return begun

    def _end(self, begun: _Begun, code: ReturnCode) -> None:
        cost_ms = int((time.monotonic() - begun.began_s) * 1000)
        at_ms, group, success = time.time_ns() // 1_000_000, self._group, code is ReturnCode.SUCCESS
        self.tracer.take(
            len(begun.seen),
            lambda: [
                SubAfter(begun.request_id, each.message_id, cost_ms, success, each.keys, code, at_ms, group)
                for each in begun.seen
            ],
        )


def _code_of(outcome: object) -> ReturnCode:
    if is_success(outcome):
        return ReturnCode.SUCCESS
    return ReturnCode.FAILED if outcome is ConsumeResult.RETRY_LATER else ReturnCode.RETURN_NULL
