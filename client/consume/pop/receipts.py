"""What is told to brokers by receipts: many of them in one call at each broker group."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from penstock.proto.data_frames import Method
from penstock.proto.errors import InvalidReceipt, ReceiptExpired
from penstock.proto.receipts import Receipt, refusal
from penstock.proto.wire import pop_pb2 as wire
from penstock.proto.wire.pop_pb2_grpc import PopStub

from ...cluster import Calls, Service

POP: Service = PopStub
CALL_MAX: Final = 1024
"""Receipts of one call."""


class Lot(NamedTuple):
    """What receipts of one queue have in common that were given out together; a request names lots in this order."""

    topic: str
    queue_id: int
    check_point: int
    epoch: int
    visible_ms: int
    group: str
    broker_name: str

    @classmethod
    def of(cls, receipt: Receipt) -> Self:
        group, topic, broker_name, queue_id, _, check_point, epoch, visible_ms = receipt
        return cls(topic, queue_id, check_point, epoch, visible_ms, group, broker_name)

    def receipt(self, offset: int) -> Receipt:
        topic, queue_id, check_point, epoch, visible_ms, group, broker_name = self
        return Receipt(group, topic, broker_name, queue_id, offset, check_point, epoch, visible_ms)


Lots = Mapping[Lot, Sequence[int]]
"""Receipts: the offsets of each lot, in any order, perhaps repeated. No object is made for each."""


class Settling:
    """Calls of one consumer about what it has received. Thread-safe."""

    def __init__(self, calls: Calls, group: str) -> None:
        self._calls = calls
        self._group = group

    # ``void``: what was handed in with the receipts and cannot be one. It is told when the others are done with.

    def acknowledge(self, receipts: Lots, timeout_s: float, void: Sequence[object] = ()) -> None:
        """Be done with these messages. Raises as :meth:`~penstock.client.SimpleConsumer.ack`."""

        def ask(broker_name: str, parts: list[wire.Receipts]) -> wire.AcknowledgeReply:
            content = wire.AcknowledgeRequest(group=self._group, receipts=parts).SerializeToString()
            take = wire.AcknowledgeReply.FromString
            return self._calls.at_data_port(broker_name, Method.ACKNOWLEDGE, content, take, timeout_s)

        self._each(receipts, ask, void)

    def forward(self, receipts: Lots, timeout_s: float, void: Sequence[object] = ()) -> None:
        """Make dead letters of these messages. Raises likewise."""

        def ask(broker_name: str, parts: list[wire.Receipts]) -> Any:
            request = wire.ForwardRequest(group=self._group, receipts=parts)
            return self._calls.at_master(broker_name, "ForwardToDeadLetters", request, timeout_s, service=POP)

        self._each(receipts, ask, void)

    def change(self, receipt: Receipt, invisible_ms: int, timeout_s: float) -> Receipt:
        """Have a message come again at another time; its new receipt. Raises likewise."""

        (answer,) = self._change({Lot.of(receipt): (receipt.offset,)}, timeout_s, invisible_ms=invisible_ms)
        if answer.check_point < 0:
            raise ReceiptExpired(
                f"{_named([receipt])}: it was acknowledged before, or a change whose answer was lost let it come again",
                receipts=[receipt.text()],
            )
        return receipt._replace(check_point=answer.check_point, epoch=answer.epoch, visible_ms=answer.visible_ms)

    def give_back(self, receipts: Lots, timeout_s: float, void: Sequence[object] = ()) -> None:
        """Have messages come again at once that nobody has begun with; those whose time is over do by themselves."""

        with contextlib.suppress(ReceiptExpired):
            self._change(receipts, timeout_s, void, is_given_back=True)

    def _change(self, lots: Lots, timeout_s: float, void: Sequence[object] = (), **how: Any) -> list[Any]:
        def ask(broker_name: str, parts: list[wire.Receipts]) -> wire.ChangeInvisibleReply:
            request = wire.ChangeInvisibleRequest(group=self._group, receipts=parts, **how)
            content, take = request.SerializeToString(), wire.ChangeInvisibleReply.FromString
            return self._calls.at_data_port(broker_name, Method.CHANGE_INVISIBLE, content, take, timeout_s)

        return self._each(lots, ask, void)

    def _each(self, lots: Lots, ask: Callable[[str, list[wire.Receipts]], Any], void: Sequence[object]) -> list[Any]:
        """The answers; one error for all that was refused, the void included."""
        foreign = [lot for lot in lots if lot.group != self._group]
        own = {lot: lots[lot] for lot in lots if lot.group == self._group} if foreign else lots
        answers = []
        expired: list[Receipt] = []
        unknown: list[Receipt] = []
        for broker_name, some in _calls(own):
            answer = ask(broker_name, [_part(lot, offsets) for lot, offsets in some])
            answers.append(answer)
            if not answer.statuses:
                continue
            receipts = (lot.receipt(offset) for lot, offsets in some for offset in offsets)
            for receipt, status in zip(receipts, answer.statuses, strict=False):
                if status == wire.RECEIPT_EXPIRED:
                    expired.append(receipt)
                elif status != wire.RECEIPT_OK:
                    unknown.append(receipt)
        unknown += (lot.receipt(offset) for lot in foreign for offset in lots[lot])
        if void or unknown:
            if void:
                reason = refusal(void[0])
            elif foreign:
                reason = (
                    f"receipt of group {foreign[0].group}: this consumer is of group {self._group}: "
                    "acknowledge in the group that received the message"
                )
            else:
                reason = f"{_named(unknown)}: no such receipt was given out"
            raise InvalidReceipt(reason, receipts=[*void, *(each.text() for each in unknown)])
        if expired:
            raise ReceiptExpired(
                f"{_named(expired)}: its time is over, or was changed: the message comes again",
                receipts=[each.text() for each in expired],
            )
        return answers


def _calls(lots: Lots) -> Iterator[tuple[str, list[tuple[Lot, list[int]]]]]:
    """Receipts of one broker group each, without repetitions, in the order in which a request names them."""
    by_broker: dict[str, list[tuple[Lot, list[int]]]] = {}
    for lot in sorted(lots):
        by_broker.setdefault(lot.broker_name, []).append((lot, sorted(set(lots[lot]))))
    for broker_name, found in by_broker.items():
        some: list[tuple[Lot, list[int]]] = []
        room = CALL_MAX
        for lot, offsets in found:
            rest = offsets
            while rest:
                some.append((lot, rest[:room]))
                rest, room = rest[room:], room - len(some[-1][1])
                if not room:
                    yield broker_name, some
                    some, room = [], CALL_MAX
        if some:
            yield broker_name, some


def _part(lot: Lot, offsets: list[int]) -> wire.Receipts:
    topic, queue_id, check_point, epoch, visible_ms, _, _ = lot
    return wire.Receipts(
        topic=topic,
        queue_id=queue_id,
        check_point=check_point,
        epoch=epoch,
        visible_ms=visible_ms,
        offsets=offsets,
    )


def _named(receipts: Sequence[Receipt]) -> str:
    first = receipts[0]
    place = f"topic {first.topic}, queue {first.queue_id} of {first.broker_name}, offset {first.offset}"
    more = f" and of {len(receipts) - 1} others" if len(receipts) > 1 else ""
    return f"receipt of group {first.group}, {place}{more}"
