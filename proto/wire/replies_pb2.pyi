from penstock.proto.wire import common_pb2 as _common_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListenRequest(_message.Message):
    __slots__ = ("open", "look_back", "heartbeat")
    class Open(_message.Message):
        __slots__ = ("client_id", "position")
        CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
        POSITION_FIELD_NUMBER: _ClassVar[int]
        client_id: str
        position: int
        def __init__(self, client_id: _Optional[str] = ..., position: _Optional[int] = ...) -> None: ...
    OPEN_FIELD_NUMBER: _ClassVar[int]
    LOOK_BACK_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    open: ListenRequest.Open
    look_back: int
    heartbeat: _common_pb2.Empty
    def __init__(self, open: _Optional[_Union[ListenRequest.Open, _Mapping]] = ..., look_back: _Optional[int] = ..., heartbeat: _Optional[_Union[_common_pb2.Empty, _Mapping]] = ...) -> None: ...

class ListenEvent(_message.Message):
    __slots__ = ("records", "push_time_ms")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    PUSH_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    push_time_ms: int
    def __init__(self, records: _Optional[bytes] = ..., push_time_ms: _Optional[int] = ...) -> None: ...
