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
from penstock.proto.wire import pop_pb2 as wire

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

    receipts: list[wire.Receipts]
    places: Sequence[int]
    """Of each delivery: where the broker's answer has its status."""

    @property
    def asked(self) -> int:
        """How many statuses the broker's answer has."""
        return sum(len(each.offsets) for each in self.receipts)

    @classmethod
    def of_one(cls, first: Receipt, offsets: Sequence[int]) -> Self:
        """Those of one queue and check point, as ``first`` is; the offsets ascend."""
        made = wire.Receipts(
            topic=first.topic,
            queue_id=first.queue_id,
            check_point=first.check_point,
            epoch=first.epoch,
            visible_ms=first.visible_ms,
        )
        made.offsets.extend(offsets)
        return cls([made], range(len(offsets)))

    @classmethod
    def of(cls, deliveries: Iterable[Receipt]) -> Self:
        """Those of one queue and check point by ascending offset; one that comes twice is asked for once."""
        found: dict[Receipt, dict[int, list[int]]] = {}  # by the first of them, without its offset
        count = 0
        for each in deliveries:
            found.setdefault(each._replace(offset=0), {}).setdefault(each.offset, []).append(count)
            count += 1
        places, receipts, place = [0] * count, [], 0
        for first, offsets in found.items():
            ascending = sorted(offsets)
            for offset in ascending:
                for index in offsets[offset]:
                    places[index] = place
                place += 1
            receipts += cls.of_one(first, ascending).receipts
        return cls(receipts, places)


def told_of(asked: Sequence[Together], statuses: Sequence[wire.ReceiptStatus]) -> list[list[bool]]:
    """For each delivery True if it was in order, by a broker's answer to all of these.

    Raises:
        PenstockError: it has not a status for each.
    """
    if not statuses:
        return [[True] * len(each.places) for each in asked]
    total = sum(each.asked for each in asked)
    if len(statuses) != total:
        raise PenstockError(f"the broker has {len(statuses)} answers to {total} receipts")
    told, start = [], 0
    for each in asked:
        told.append([statuses[start + place] == wire.RECEIPT_OK for place in each.places])
        start += each.asked
    return told


async def changed(
    brokers: Brokers,
    broker_name: str,
    group: str,
    handles: Sequence[Receipt],
    invisible_ms: int,
    timeout_s: float,
    *,
    are_given_back: bool = False,
    keeps_receipts: bool = False,
) -> tuple[wire.ChangeInvisibleReply, list[bool]]:
    """What the broker group says when these deliveries of its are to come again so long from now; True: each that will.

    ``are_given_back``: their client never had them, so they come at once and count as no try. ``keeps_receipts``: the
    handles are good until then; otherwise they are void.

    Raises:
        PenstockError: it could not be asked, or refused.
    """
    asked = Together.of(handles)
    request = wire.ChangeInvisibleRequest(
        group=group,
        receipts=asked.receipts,
        invisible_ms=invisible_ms,
        is_given_back=are_given_back,
        keeps_receipts=keeps_receipts,
    )
    content, take = request.SerializeToString(), wire.ChangeInvisibleReply.FromString
    reply = await brokers.at_data_port(broker_name, Method.CHANGE_INVISIBLE, content, take, timeout_s)
    return reply, told_of([asked], reply.statuses)[0]
