"""Receipt handles: the cluster's receipts (``proto/receipts.py``) as clients hold them, and as brokers take and
change them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

from penstock.client import PenstockError
from penstock.gateway.v2.wire.definition_pb2 import Code
from penstock.proto.data_frames import Method
from penstock.proto.errors import InvalidReceipt
from penstock.proto.names import RETRY_PREFIX
from penstock.proto.receipts import Receipt
from penstock.proto.wire.pop_pb2 import (
    RECEIPT_OK,
    ChangeInvisibleReply,
    ChangeInvisibleRequest,
    Receipts,
    ReceiptStatus,
)

from ..brokers import Brokers
from ..status import Refusal

_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


def receipt_of(handle: str, group: str, topic: str) -> Receipt:
    """What a handle says of a delivery to ``group`` of a message of ``topic``, which may come by the retry topic.

    Raises:
        Refusal: INVALID_RECEIPT_HANDLE, it is none, or another group's or topic's.
    """
    try:
        found = Receipt.parse(handle)
    except InvalidReceipt as error:
        raise Refusal(Code.INVALID_RECEIPT_HANDLE, f"INVALID_RECEIPT_HANDLE: {error.message}") from None
    numbers = (found.offset, found.check_point, found.epoch, found.visible_ms)
    if found.group != group or found.queue_id > _INT32_MAX or max(numbers) > _INT64_MAX:
        raise Refusal(Code.INVALID_RECEIPT_HANDLE, f"INVALID_RECEIPT_HANDLE: it is none of group {group}")
    if found.topic not in (topic, RETRY_PREFIX + group):
        raise Refusal(Code.INVALID_RECEIPT_HANDLE, f"INVALID_RECEIPT_HANDLE: it is of another topic than {topic}")
    return found


class Together(NamedTuple):
    """Deliveries of one broker group and consumer group as brokers take them: those of one check point as one."""

    receipts: list[Receipts]
    places: list[int]
    """Of each delivery: where the broker's answer has its status."""

    @classmethod
    def of(cls, deliveries: Iterable[Receipt]) -> Self:
        """Those of one queue and check point by ascending offset; one that comes twice is asked for once."""
        found: dict[tuple[str, int, int, int, int], dict[int, list[int]]] = {}
        count = 0
        for _, topic, _, queue_id, offset, *given in deliveries:
            check_point, epoch, visible_ms = given
            offsets = found.setdefault((topic, queue_id, check_point, epoch, visible_ms), {})
            offsets.setdefault(offset, []).append(count)
            count += 1
        places, receipts, place = [0] * count, [], 0
        for (topic, queue_id, check_point, epoch, visible_ms), offsets in found.items():
            ascending = sorted(offsets)
            for offset in ascending:
                for index in offsets[offset]:
                    places[index] = place
                place += 1
            made = Receipts(topic=topic, queue_id=queue_id, check_point=check_point, epoch=epoch, visible_ms=visible_ms)
            made.offsets.extend(ascending)
            receipts.append(made)
        return cls(receipts, places)

    def told(self, statuses: Sequence[ReceiptStatus]) -> list[ReceiptStatus]:
        """The status of each delivery, by the broker's answer.

        Raises:
            PenstockError: it has not one for each.
        """
        if not statuses:
            return [RECEIPT_OK] * len(self.places)
        asked = sum(len(each.offsets) for each in self.receipts)
        if len(statuses) != asked:
            raise PenstockError(f"the broker has {len(statuses)} answers to {asked} receipts")
        return [statuses[place] for place in self.places]


async def changed(
    brokers: Brokers, broker_name: str, group: str, handles: Sequence[Receipt], invisible_ms: int, timeout_s: float
) -> tuple[ChangeInvisibleReply, list[ReceiptStatus]]:
    """What the broker group says when these deliveries of its are to come again so long from now, and of each.

    Raises:
        PenstockError: it could not be asked, or refused.
    """
    asked = Together.of(handles)
    request = ChangeInvisibleRequest(group=group, receipts=asked.receipts, invisible_ms=invisible_ms)
    content, take = request.SerializeToString(), ChangeInvisibleReply.FromString
    reply = await brokers.at_data_port(broker_name, Method.CHANGE_INVISIBLE, content, take, timeout_s)
    return reply, asked.told(reply.statuses)
