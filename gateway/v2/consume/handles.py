"""Receipt handles: the cluster's receipts (``proto/receipts.py``) as clients hold them, and as brokers take and
change them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.gateway.v2.wire.definition_pb2 import Code
from penstock.proto.data_frames import Method
from penstock.proto.errors import InvalidReceipt
from penstock.proto.names import RETRY_PREFIX
from penstock.proto.receipts import Receipt
from penstock.proto.wire.pop_pb2 import ChangeInvisibleReply, ChangeInvisibleRequest, Receipts

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


def receipts_of(deliveries: Iterable[Receipt]) -> list[Receipts]:
    """Deliveries of one broker group and consumer group as brokers take them, one for each, in their order."""
    return [
        Receipts(
            topic=each.topic,
            queue_id=each.queue_id,
            check_point=each.check_point,
            epoch=each.epoch,
            visible_ms=each.visible_ms,
            offsets=[each.offset],
        )
        for each in deliveries
    ]


async def changed(
    brokers: Brokers, broker_name: str, group: str, handles: Sequence[Receipt], invisible_ms: int, timeout_s: float
) -> ChangeInvisibleReply:
    """What the broker group says when these deliveries of its are to come again so long from now.

    Raises:
        PenstockError: it could not be asked, or refused.
    """
    request = ChangeInvisibleRequest(group=group, receipts=receipts_of(handles), invisible_ms=invisible_ms)
    content, take = request.SerializeToString(), ChangeInvisibleReply.FromString
    return await brokers.at_data_port(broker_name, Method.CHANGE_INVISIBLE, content, take, timeout_s)
