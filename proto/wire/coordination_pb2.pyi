from penstock.proto.wire import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Register(_message.Message):
    __slots__ = ("cluster", "broker_name", "epoch", "master_id", "sync_state_set", "version", "former_id", "handed_over", "unclean_epoch", "unclean_allowed", "coordinator")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MASTER_ID_FIELD_NUMBER: _ClassVar[int]
    SYNC_STATE_SET_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FORMER_ID_FIELD_NUMBER: _ClassVar[int]
    HANDED_OVER_FIELD_NUMBER: _ClassVar[int]
    UNCLEAN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    UNCLEAN_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    epoch: int
    master_id: int
    sync_state_set: _containers.RepeatedScalarFieldContainer[int]
    version: int
    former_id: int
    handed_over: bool
    unclean_epoch: int
    unclean_allowed: bool
    coordinator: str
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., epoch: _Optional[int] = ..., master_id: _Optional[int] = ..., sync_state_set: _Optional[_Iterable[int]] = ..., version: _Optional[int] = ..., former_id: _Optional[int] = ..., handed_over: bool = ..., unclean_epoch: _Optional[int] = ..., unclean_allowed: bool = ..., coordinator: _Optional[str] = ...) -> None: ...

class RegisterQuery(_message.Message):
    __slots__ = ("identity",)
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    identity: _common_pb2.BrokerIdentity
    def __init__(self, identity: _Optional[_Union[_common_pb2.BrokerIdentity, _Mapping]] = ...) -> None: ...

class RegisterCreation(_message.Message):
    __slots__ = ("identity", "epoch")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    identity: _common_pb2.BrokerIdentity
    epoch: int
    def __init__(self, identity: _Optional[_Union[_common_pb2.BrokerIdentity, _Mapping]] = ..., epoch: _Optional[int] = ...) -> None: ...

class SyncStateSetChange(_message.Message):
    __slots__ = ("identity", "epoch", "version", "sync_state_set")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SYNC_STATE_SET_FIELD_NUMBER: _ClassVar[int]
    identity: _common_pb2.BrokerIdentity
    epoch: int
    version: int
    sync_state_set: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, identity: _Optional[_Union[_common_pb2.BrokerIdentity, _Mapping]] = ..., epoch: _Optional[int] = ..., version: _Optional[int] = ..., sync_state_set: _Optional[_Iterable[int]] = ...) -> None: ...

class MasterHandOver(_message.Message):
    __slots__ = ("identity", "epoch", "version", "to_broker_id")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TO_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    identity: _common_pb2.BrokerIdentity
    epoch: int
    version: int
    to_broker_id: int
    def __init__(self, identity: _Optional[_Union[_common_pb2.BrokerIdentity, _Mapping]] = ..., epoch: _Optional[int] = ..., version: _Optional[int] = ..., to_broker_id: _Optional[int] = ...) -> None: ...
