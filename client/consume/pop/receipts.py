"""What is told to brokers by receipts: many of them in one call at each broker group."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from penstock.proto.data_frames import Method
from penstock.proto.errors import InvalidReceipt, ReceiptExpired
from penstock.proto.receipts import Receipt
from penstock.proto.wire import pop_pb2 as wire
from penstock.proto.wire.pop_pb2_grpc import PopStub

from ...cluster import Calls, Service

POP: Service = PopStub
CALL_MAX: Final = 1024
"""Receipts of one call."""


class Settling:
    """Calls of one consumer about what it has received. Thread-safe."""

    def __init__(self, calls: Calls, group: str) -> None:
        self._calls = calls
        self._group = group

    def acknowledge(self, receipts: Sequence[Receipt], timeout_s: float) -> None:
        """Be done with these messages. Raises as :meth:`~penstock.client.SimpleConsumer.ack`."""

        def ask(broker_name: str, parts: list[wire.Receipts]) -> wire.AcknowledgeReply:
            content = wire.AcknowledgeRequest(group=self._group, receipts=parts).SerializeToString()
            take = wire.AcknowledgeReply.FromString
            return self._calls.at_data_port(broker_name, Method.ACKNOWLEDGE, content, take, timeout_s)

        self._each(receipts, ask)

    def forward(self, receipts: Sequence[Receipt], timeout_s: float) -> None:
        """Make dead letters of these messages. Raises likewise."""

        def ask(broker_name: str, parts: list[wire.Receipts]) -> Any:
            request = wire.ForwardRequest(group=self._group, receipts=parts)
            return self._calls.at_master(broker_name, "ForwardToDeadLetters", request, timeout_s, service=POP)

        self._each(receipts, ask)

    def change(self, receipt: Receipt, invisible_ms: int, timeout_s: float) -> Receipt:
        """Have a message come again at another time; its new receipt. Raises likewise."""

        def ask(broker_name: str, parts: list[wire.Receipts]) -> wire.ChangeInvisibleReply:
            request = wire.ChangeInvisibleRequest(group=self._group, receipts=parts, invisible_ms=invisible_ms)
            content, take = request.SerializeToString(), wire.ChangeInvisibleReply.FromString
            return self._calls.at_data_port(broker_name, Method.CHANGE_INVISIBLE, content, take, timeout_s)

        (answer,) = self._each([receipt], ask)
        if answer.check_point < 0:
            raise ReceiptExpired(
                f"{_named([receipt])}: it was acknowledged before, or a change whose answer was lost let it come again",
                receipts=[receipt.text()],
            )
        return receipt._replace(check_point=answer.check_point, epoch=answer.epoch, visible_ms=answer.visible_ms)

    def give_back(self, receipts: Sequence[Receipt], timeout_s: float) -> None:
        """Have messages come again at once that nobody has begun with; those whose time is over do by themselves."""

        def ask(broker_name: str, parts: list[wire.Receipts]) -> wire.ChangeInvisibleReply:
            request = wire.ChangeInvisibleRequest(group=self._group, receipts=parts, is_given_back=True)
            content, take = request.SerializeToString(), wire.ChangeInvisibleReply.FromString
            return self._calls.at_data_port(broker_name, Method.CHANGE_INVISIBLE, content, take, timeout_s)

        with contextlib.suppress(ReceiptExpired):
            self._each(receipts, ask)

    def _each(self, receipts: Sequence[Receipt], ask: Callable[[str, list[wire.Receipts]], Any]) -> list[Any]:
        """The answers; one error for all receipts that were refused."""
        foreign = [each for each in receipts if each.group != self._group]
        if foreign:
            raise InvalidReceipt(
                f"receipt of group {foreign[0].group}: this consumer is of group {self._group}: "
                "acknowledge in the group that received the message"
            )
        answers = []
        expired: list[Receipt] = []
        unknown: list[Receipt] = []
        for broker_name, some in _calls(receipts):
            answer = ask(broker_name, _parts(some))
            answers.append(answer)
            for receipt, status in zip(some, answer.statuses, strict=False):
                if status == wire.RECEIPT_EXPIRED:
                    expired.append(receipt)
                elif status != wire.RECEIPT_OK:
                    unknown.append(receipt)
        if unknown:
            raise InvalidReceipt(
                f"{_named(unknown)}: no such receipt was given out", receipts=[each.text() for each in unknown]
            )
        if expired:
            raise ReceiptExpired(
                f"{_named(expired)}: its time is over, or was changed: the message comes again",
                receipts=[each.text() for each in expired],
            )
        return answers


def _calls(receipts: Iterable[Receipt]) -> Iterator[tuple[str, list[Receipt]]]:
    """Receipts of one broker group each, without repetitions, in the order in which a request names them."""
    by_broker: dict[str, list[Receipt]] = {}
    for receipt in dict.fromkeys(receipts):
        by_broker.setdefault(receipt.broker_name, []).append(receipt)
    for broker_name, found in by_broker.items():
        found.sort(key=_part_of)
        for start in range(0, len(found), CALL_MAX):
            yield broker_name, found[start : start + CALL_MAX]


def _part_of(receipt: Receipt) -> tuple[Any, ...]:
    return receipt.topic, receipt.queue_id, receipt.check_point, receipt.epoch, receipt.visible_ms, receipt.offset


def _parts(receipts: Iterable[Receipt]) -> list[wire.Receipts]:
    parts: list[wire.Receipts] = []
    last: tuple[Any, ...] = ()
    for receipt in receipts:
        *part, offset = _part_of(receipt)
        if tuple(part) != last:
            topic, queue_id, check_point, epoch, visible_ms = last = tuple(part)
            parts.append(
                wire.Receipts(
                    topic=topic, queue_id=queue_id, check_point=check_point, epoch=epoch, visible_ms=visible_ms
                )
            )
        parts[-1].offsets.append(offset)
    return parts


def _named(receipts: Sequence[Receipt]) -> str:
    first = receipts[0]
    place = f"topic {first.topic}, queue {first.queue_id} of {first.broker_name}, offset {first.offset}"
    more = f" and of {len(receipts) - 1} others" if len(receipts) > 1 else ""
    return f"receipt of group {first.group}, {place}{more}"
