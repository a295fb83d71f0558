from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class RecallRequest(_message.Message):
    __slots__ = ("topic", "unique_key", "due_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_KEY_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    unique_key: str
    due_ms: int
    def __init__(self, topic: _Optional[str] = ..., unique_key: _Optional[str] = ..., due_ms: _Optional[int] = ...) -> None: ...

class RecallReply(_message.Message):
    __slots__ = ("in_time",)
    IN_TIME_FIELD_NUMBER: _ClassVar[int]
    in_time: bool
    def __init__(self, in_time: bool = ...) -> None: ...
