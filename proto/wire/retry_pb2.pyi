from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class SendBackRequest(_message.Message):
    __slots__ = ("group", "topic", "queue_id", "offsets", "delay_levels", "reconsume_times", "max_reconsume_times", "producer_id", "sequence", "again")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    DELAY_LEVELS_FIELD_NUMBER: _ClassVar[int]
    RECONSUME_TIMES_FIELD_NUMBER: _ClassVar[int]
    MAX_RECONSUME_TIMES_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue_id: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    delay_levels: _containers.RepeatedScalarFieldContainer[int]
    reconsume_times: _containers.RepeatedScalarFieldContainer[int]
    max_reconsume_times: int
    producer_id: int
    sequence: int
    again: bool
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ..., delay_levels: _Optional[_Iterable[int]] = ..., reconsume_times: _Optional[_Iterable[int]] = ..., max_reconsume_times: _Optional[int] = ..., producer_id: _Optional[int] = ..., sequence: _Optional[int] = ..., again: bool = ...) -> None: ...

class SendBackReply(_message.Message):
    __slots__ = ("later", "dead", "gone")
    LATER_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    later: int
    dead: int
    gone: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, later: _Optional[int] = ..., dead: _Optional[int] = ..., gone: _Optional[_Iterable[int]] = ...) -> None: ...
