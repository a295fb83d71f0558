from penstock.proto.wire import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Epoch(_message.Message):
    __slots__ = ("epoch", "start_offset")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    start_offset: int
    def __init__(self, epoch: _Optional[int] = ..., start_offset: _Optional[int] = ...) -> None: ...

class ReplicaReport(_message.Message):
    __slots__ = ("hello", "ack", "commits", "leaving")
    class Hello(_message.Message):
        __slots__ = ("identity", "epochs", "end_offset", "store_instance", "tail_bytes", "tail_crc", "learner", "syncs")
        IDENTITY_FIELD_NUMBER: _ClassVar[int]
        EPOCHS_FIELD_NUMBER: _ClassVar[int]
        END_OFFSET_FIELD_NUMBER: _ClassVar[int]
        STORE_INSTANCE_FIELD_NUMBER: _ClassVar[int]
        TAIL_BYTES_FIELD_NUMBER: _ClassVar[int]
        TAIL_CRC_FIELD_NUMBER: _ClassVar[int]
        LEARNER_FIELD_NUMBER: _ClassVar[int]
        SYNCS_FIELD_NUMBER: _ClassVar[int]
        identity: _common_pb2.BrokerIdentity
        epochs: _containers.RepeatedCompositeFieldContainer[Epoch]
        end_offset: int
        store_instance: str
        tail_bytes: int
        tail_crc: int
        learner: bool
        syncs: bool
        def __init__(self, identity: _Optional[_Union[_common_pb2.BrokerIdentity, _Mapping]] = ..., epochs: _Optional[_Iterable[_Union[Epoch, _Mapping]]] = ..., end_offset: _Optional[int] = ..., store_instance: _Optional[str] = ..., tail_bytes: _Optional[int] = ..., tail_crc: _Optional[int] = ..., learner: bool = ..., syncs: bool = ...) -> None: ...
    class Ack(_message.Message):
        __slots__ = ("epoch", "written_offset", "flushed_offset", "stamp")
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        WRITTEN_OFFSET_FIELD_NUMBER: _ClassVar[int]
        FLUSHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
        STAMP_FIELD_NUMBER: _ClassVar[int]
        epoch: int
        written_offset: int
        flushed_offset: int
        stamp: int
        def __init__(self, epoch: _Optional[int] = ..., written_offset: _Optional[int] = ..., flushed_offset: _Optional[int] = ..., stamp: _Optional[int] = ...) -> None: ...
    class Commits(_message.Message):
        __slots__ = ("group", "offsets")
        GROUP_FIELD_NUMBER: _ClassVar[int]
        OFFSETS_FIELD_NUMBER: _ClassVar[int]
        group: str
        offsets: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicOffsets]
        def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[_common_pb2.TopicOffsets, _Mapping]]] = ...) -> None: ...
    class Leaving(_message.Message):
        __slots__ = ("code", "message")
        CODE_FIELD_NUMBER: _ClassVar[int]
        MESSAGE_FIELD_NUMBER: _ClassVar[int]
        code: int
        message: str
        def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    hello: ReplicaReport.Hello
    ack: ReplicaReport.Ack
    commits: ReplicaReport.Commits
    leaving: ReplicaReport.Leaving
    def __init__(self, hello: _Optional[_Union[ReplicaReport.Hello, _Mapping]] = ..., ack: _Optional[_Union[ReplicaReport.Ack, _Mapping]] = ..., commits: _Optional[_Union[ReplicaReport.Commits, _Mapping]] = ..., leaving: _Optional[_Union[ReplicaReport.Leaving, _Mapping]] = ...) -> None: ...

class ReplicationHeader(_message.Message):
    __slots__ = ("epoch", "start_offset", "confirm_offset", "end_offset", "stamp", "welcome")
    class Welcome(_message.Message):
        __slots__ = ("identity", "epochs", "start_offset", "segment_bytes", "flush_acknowledged", "tail_bytes", "tail_crc", "sync", "min_offset")
        IDENTITY_FIELD_NUMBER: _ClassVar[int]
        EPOCHS_FIELD_NUMBER: _ClassVar[int]
        START_OFFSET_FIELD_NUMBER: _ClassVar[int]
        SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
        FLUSH_ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
        TAIL_BYTES_FIELD_NUMBER: _ClassVar[int]
        TAIL_CRC_FIELD_NUMBER: _ClassVar[int]
        SYNC_FIELD_NUMBER: _ClassVar[int]
        MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
        identity: _common_pb2.BrokerIdentity
        epochs: _containers.RepeatedCompositeFieldContainer[Epoch]
        start_offset: int
        segment_bytes: int
        flush_acknowledged: bool
        tail_bytes: int
        tail_crc: int
        sync: bool
        min_offset: int
        def __init__(self, identity: _Optional[_Union[_common_pb2.BrokerIdentity, _Mapping]] = ..., epochs: _Optional[_Iterable[_Union[Epoch, _Mapping]]] = ..., start_offset: _Optional[int] = ..., segment_bytes: _Optional[int] = ..., flush_acknowledged: bool = ..., tail_bytes: _Optional[int] = ..., tail_crc: _Optional[int] = ..., sync: bool = ..., min_offset: _Optional[int] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    start_offset: int
    confirm_offset: int
    end_offset: int
    stamp: int
    welcome: ReplicationHeader.Welcome
    def __init__(self, epoch: _Optional[int] = ..., start_offset: _Optional[int] = ..., confirm_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., stamp: _Optional[int] = ..., welcome: _Optional[_Union[ReplicationHeader.Welcome, _Mapping]] = ...) -> None: ...
