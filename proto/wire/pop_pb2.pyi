from penstock.proto.wire import broker_pb2 as _broker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReceiptStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECEIPT_OK: _ClassVar[ReceiptStatus]
    RECEIPT_EXPIRED: _ClassVar[ReceiptStatus]
    RECEIPT_UNKNOWN: _ClassVar[ReceiptStatus]
RECEIPT_OK: ReceiptStatus
RECEIPT_EXPIRED: ReceiptStatus
RECEIPT_UNKNOWN: ReceiptStatus

class ReceiveHeader(_message.Message):
    __slots__ = ("group", "client_id", "subscriptions", "max_messages", "max_bytes", "invisible_ms", "max_wait_ms", "begin", "attempt_id")
    class Begin(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        LAST: _ClassVar[ReceiveHeader.Begin]
        FIRST: _ClassVar[ReceiveHeader.Begin]
    LAST: ReceiveHeader.Begin
    FIRST: ReceiveHeader.Begin
    class Subscription(_message.Message):
        __slots__ = ("topic", "filter", "queue_ids")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        FILTER_FIELD_NUMBER: _ClassVar[int]
        QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
        topic: str
        filter: _broker_pb2.Filter
        queue_ids: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, topic: _Optional[str] = ..., filter: _Optional[_Union[_broker_pb2.Filter, _Mapping]] = ..., queue_ids: _Optional[_Iterable[int]] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    client_id: str
    subscriptions: _containers.RepeatedCompositeFieldContainer[ReceiveHeader.Subscription]
    max_messages: int
    max_bytes: int
    invisible_ms: int
    max_wait_ms: int
    begin: ReceiveHeader.Begin
    attempt_id: str
    def __init__(self, group: _Optional[str] = ..., client_id: _Optional[str] = ..., subscriptions: _Optional[_Iterable[_Union[ReceiveHeader.Subscription, _Mapping]]] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., invisible_ms: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., begin: _Optional[_Union[ReceiveHeader.Begin, str]] = ..., attempt_id: _Optional[str] = ...) -> None: ...

class ReceiveReply(_message.Message):
    __slots__ = ("results", "check_point", "epoch", "received_ms", "visible_ms")
    class Result(_message.Message):
        __slots__ = ("topic", "queue_id", "bytes", "count", "redelivered")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        REDELIVERED_FIELD_NUMBER: _ClassVar[int]
        topic: str
        queue_id: int
        bytes: int
        count: int
        redelivered: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., bytes: _Optional[int] = ..., count: _Optional[int] = ..., redelivered: _Optional[_Iterable[int]] = ...) -> None: ...
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    CHECK_POINT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_MS_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ReceiveReply.Result]
    check_point: int
    epoch: int
    received_ms: int
    visible_ms: int
    def __init__(self, results: _Optional[_Iterable[_Union[ReceiveReply.Result, _Mapping]]] = ..., check_point: _Optional[int] = ..., epoch: _Optional[int] = ..., received_ms: _Optional[int] = ..., visible_ms: _Optional[int] = ...) -> None: ...

class Receipts(_message.Message):
    __slots__ = ("topic", "queue_id", "check_point", "epoch", "visible_ms", "offsets")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    CHECK_POINT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    check_point: int
    epoch: int
    visible_ms: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., check_point: _Optional[int] = ..., epoch: _Optional[int] = ..., visible_ms: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class AcknowledgeRequest(_message.Message):
    __slots__ = ("group", "receipts")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    group: str
    receipts: _containers.RepeatedCompositeFieldContainer[Receipts]
    def __init__(self, group: _Optional[str] = ..., receipts: _Optional[_Iterable[_Union[Receipts, _Mapping]]] = ...) -> None: ...

class AcknowledgeReply(_message.Message):
    __slots__ = ("statuses",)
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[ReceiptStatus]
    def __init__(self, statuses: _Optional[_Iterable[_Union[ReceiptStatus, str]]] = ...) -> None: ...

class ChangeInvisibleRequest(_message.Message):
    __slots__ = ("group", "receipts", "invisible_ms", "is_given_back", "keeps_receipts")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    IS_GIVEN_BACK_FIELD_NUMBER: _ClassVar[int]
    KEEPS_RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    group: str
    receipts: _containers.RepeatedCompositeFieldContainer[Receipts]
    invisible_ms: int
    is_given_back: bool
    keeps_receipts: bool
    def __init__(self, group: _Optional[str] = ..., receipts: _Optional[_Iterable[_Union[Receipts, _Mapping]]] = ..., invisible_ms: _Optional[int] = ..., is_given_back: bool = ..., keeps_receipts: bool = ...) -> None: ...

class ChangeInvisibleReply(_message.Message):
    __slots__ = ("statuses", "check_point", "epoch", "visible_ms")
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    CHECK_POINT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedScalarFieldContainer[ReceiptStatus]
    check_point: int
    epoch: int
    visible_ms: int
    def __init__(self, statuses: _Optional[_Iterable[_Union[ReceiptStatus, str]]] = ..., check_point: _Optional[int] = ..., epoch: _Optional[int] = ..., visible_ms: _Optional[int] = ...) -> None: ...

class ForwardRequest(_message.Message):
    __slots__ = ("group", "receipts")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    group: str
    receipts: _containers.RepeatedCompositeFieldContainer[Receipts]
    def __init__(self, group: _Optional[str] = ..., receipts: _Optional[_Iterable[_Union[Receipts, _Mapping]]] = ...) -> None: ...

class PopGroup(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class PopDescription(_message.Message):
    __slots__ = ("pops", "in_flight", "queues")
    class Queue(_message.Message):
        __slots__ = ("topic", "queue_id", "committed", "next", "in_flight")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        COMMITTED_FIELD_NUMBER: _ClassVar[int]
        NEXT_FIELD_NUMBER: _ClassVar[int]
        IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
        topic: str
        queue_id: int
        committed: int
        next: int
        in_flight: int
        def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., committed: _Optional[int] = ..., next: _Optional[int] = ..., in_flight: _Optional[int] = ...) -> None: ...
    POPS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    pops: bool
    in_flight: int
    queues: _containers.RepeatedCompositeFieldContainer[PopDescription.Queue]
    def __init__(self, pops: bool = ..., in_flight: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[PopDescription.Queue, _Mapping]]] = ...) -> None: ...
