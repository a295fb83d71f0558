"""SendMessage of messages that have nothing unusual about them: the calls of one round of the event loop share a batch.

Requests laid end to end are one request, since protobuf joins what is repeated. So many callers cost one look at their
messages, one batch and one receipt, and no task or object for each. A call that cannot go along goes alone, by
:meth:`.sending.Sending.send`, which also says what is wrong with it.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import math
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from penstock.client import CorruptBatch, MessageTooLarge, PenstockError
from penstock.client.aio import AsyncProducer
from penstock.gateway.http2.call import Call
from penstock.gateway.http2.frames import Code, Status
from penstock.gateway.v2.wire.definition_pb2 import NORMAL
from penstock.proto.errors import MessageTypeConflict
from penstock.runtime.turns import begin

from ..brokers import Brokers
from ..callers import Caller
from ..clients import Client, Clients
from ..names import resource_in, topic_of
from ..status import Refusal
from .plain import MESSAGES_MAX, PlainSend, answers, read, survey
from .sending import STORED, Sending, entry, response

log = logging.getLogger(__name__)

BATCH_BYTES: Final = 192 * 1024
"""Of the requests of several calls: with what is stored besides they fit a producer's batch."""
CALLS_MAX: Final = 256
"""Of a batch: they are answered in one turn."""
DEADLINE_S_MIN: Final = 0.5
"""A call that has less time goes alone: the others would have no more."""
ODD_MAX: Final = 8
"""With so many calls of a batch that cannot go along, none of it does."""

_OF_ONE: Final = (CorruptBatch, MessageTooLarge, MessageTypeConflict)
"""One message may be the reason that none of its batch is stored."""


class _Asked(NamedTuple):
    """A call that goes along."""

    call: Call
    caller: Caller
    client: Client
    messages: int
    """How many it has."""


class _Batch:
    """Calls that are sent together."""

    def __init__(self, topic: bytes) -> None:
        self.topic = topic
        """As all of its calls name it."""
        self.asked: list[_Asked] = []
        self.messages = 0
        self.bytes = 0  # of the requests

    def takes(self, messages: int, size: int) -> bool:
        return (
            self.bytes + size <= BATCH_BYTES
            and len(self.asked) < CALLS_MAX
            and self.messages + messages <= MESSAGES_MAX
        )

    def add(self, asked: _Asked) -> None:
        self.asked.append(asked)
        self.messages += asked.messages
        self.bytes += len(asked.call.request)


class Together:
    """Event loop only."""

    def __init__(self, brokers: Brokers, producer: AsyncProducer, sending: Sending, clients: Clients) -> None:
        self._brokers = brokers
        self._producer = producer
        self._sending = sending
        self._clients = clients
        self._open: dict[tuple[bytes, str, int], _Batch] = {}  # by what all calls of one have in common
        self._batches: list[_Batch] = []  # of this round, in their order

    def take(self, caller: Caller, call: Call) -> bool:
        """True if the call is answered with others, without a task of its own. Raises Refusal: too many clients."""
        request = call.request
        count, topic = survey(request)
        if count < 0 or caller.deadline_s < DEADLINE_S_MIN:
            return False
        client = self._clients.heard(caller)
        # Within a batch no caller's time is less than half of another's.
        common = topic, caller.namespace, math.frexp(caller.deadline_s)[1]
        batch = self._open.get(common)
        if batch is None or not batch.takes(count, len(request)):
            if not self._batches:
                asyncio.get_running_loop().call_soon(self._send_all)
            batch = self._open[common] = _Batch(topic)
            self._batches.append(batch)
        batch.add(_Asked(call, caller, client, count))
        return True

    def _send_all(self) -> None:
        batches, self._batches = self._batches, []
        self._open.clear()
        for batch in batches:
            begin(self._send(batch))

    async def _send(self, batch: _Batch) -> None:
        asked = batch.asked
        try:
            topic = await self._open_topic(batch)
            asked = [each for each in asked if not each.call.is_over]
            plain = _read(asked) if topic is not None else None
            if topic is None or plain is None or not self._is_sent(topic, asked, plain):
                _leave(asked)
        except asyncio.CancelledError:  # the gateway ends
            for each in asked:
                each.call.break_off(Code.CANCEL)
        except Exception:  # noqa: BLE001  logged, and told to all
            _fail(asked)

    async def _open_topic(self, batch: _Batch) -> str | None:
        """The cluster's name of the topic; None: no topic that takes normal messages."""
        resource = resource_in(batch.topic)
        if resource is None:
            return None
        try:
            topic = topic_of(resource, batch.asked[0].caller.namespace)
            takes = NORMAL in self._sending.types_of(topic, await self._brokers.route(topic))
        except (PenstockError, Refusal):
            return None
        return topic if takes else None

    def _is_sent(self, topic: str, asked: list[_Asked], plain: PlainSend) -> bool:
        """True if all are on their way, and will be answered; False: none is, since each has to go alone."""
        try:
            for each in asked:
                self._clients.publishes(each.client, topic)
            timeout_s = min(each.caller.timeout_s for each in asked)
            on_end = functools.partial(_on_end, asked, plain)
            return self._producer.send_columns(topic, plain.bodies, plain.properties, on_end, timeout_s=timeout_s)
        except (PenstockError, Refusal):
            return False


def _read(asked: list[_Asked]) -> PlainSend | None:
    """The messages of these calls, but for those of calls that are sent away to go alone; None: all should go."""
    for _ in range(ODD_MAX):
        if not asked:
            return None
        hosts = {each.caller.host for each in asked}
        request = b"".join([each.call.request for each in asked])
        # Of several callers, a message has to say where it was born.
        plain = read(request, sum(each.messages for each in asked), hosts.pop() if len(hosts) == 1 else "")
        if isinstance(plain, PlainSend):
            return plain
        ends = itertools.accumulate(each.messages for each in asked)
        odd = next(index for index, end in enumerate(ends) if plain < end)
        asked.pop(odd).call.go_alone()
    return None


def _on_end(asked: list[_Asked], plain: PlainSend, sent: Future[Any]) -> None:
    try:
        _tell(asked, plain, sent)
    except Exception:  # noqa: BLE001  likewise
        _fail(asked)


def _tell(asked: list[_Asked], plain: PlainSend, sent: Future[Any]) -> None:
    try:
        stored = sent.result()
    except PenstockError as error:
        if isinstance(error, _OF_ONE) and len(plain.bodies) > 1:
            _leave(asked)  # the others are to be stored
        else:
            _refuse(asked, plain, error)
    else:
        counts = [each.messages for each in asked]
        _finish(asked, answers(plain, counts, stored.queue_offset, STORED[stored.status]))


def _leave(asked: list[_Asked]) -> None:
    for each in asked:
        each.call.go_alone()


def _fail(asked: list[_Asked]) -> None:
    log.exception("calls failed count=%d", len(asked))
    for each in asked:
        each.call.end(Status.INTERNAL, "internal error, see the gateway's log")


def _refuse(asked: list[_Asked], plain: PlainSend, error: PenstockError) -> None:
    ids = iter(plain.message_ids)
    _finish(
        asked,
        (response([entry(next(ids), error) for _ in range(each.messages)]).SerializeToString() for each in asked),
    )


def _finish(asked: list[_Asked], told: Iterable[bytes]) -> None:
    outs = {each.call.out for each in asked}
    for out in outs:
        out.gather()
    try:
        for each, answer in zip(asked, told, strict=True):
            if not each.call.is_over:
                each.call.finish(answer)
    finally:
        for out in outs:
            out.let_go()
