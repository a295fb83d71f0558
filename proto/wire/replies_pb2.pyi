from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ListenRequest(_message.Message):
    __slots__ = ("client_id", "position")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    position: int
    def __init__(self, client_id: _Optional[str] = ..., position: _Optional[int] = ...) -> None: ...

class ListenEvent(_message.Message):
    __slots__ = ("push_time_ms",)
    PUSH_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    push_time_ms: int
    def __init__(self, push_time_ms: _Optional[int] = ...) -> None: ...
