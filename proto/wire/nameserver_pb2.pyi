from penstock.proto.wire import common_pb2 as _common_pb2
from penstock.proto.wire import coordination_pb2 as _coordination_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BrokerReport(_message.Message):
    __slots__ = ("registration", "heartbeat", "topic_changes")
    class Registration(_message.Message):
        __slots__ = ("identity", "role", "epoch", "topics", "auto_create_topics", "store_instance", "end_offset", "candidacy")
        IDENTITY_FIELD_NUMBER: _ClassVar[int]
        ROLE_FIELD_NUMBER: _ClassVar[int]
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        TOPICS_FIELD_NUMBER: _ClassVar[int]
        AUTO_CREATE_TOPICS_FIELD_NUMBER: _ClassVar[int]
        STORE_INSTANCE_FIELD_NUMBER: _ClassVar[int]
        END_OFFSET_FIELD_NUMBER: _ClassVar[int]
        CANDIDACY_FIELD_NUMBER: _ClassVar[int]
        identity: _common_pb2.BrokerIdentity
        role: _common_pb2.Role
        epoch: int
        topics: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicConfig]
        auto_create_topics: bool
        store_instance: str
        end_offset: int
        candidacy: BrokerReport.Candidacy
        def __init__(self, identity: _Optional[_Union[_common_pb2.BrokerIdentity, _Mapping]] = ..., role: _Optional[_Union[_common_pb2.Role, str]] = ..., epoch: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[_common_pb2.TopicConfig, _Mapping]]] = ..., auto_create_topics: bool = ..., store_instance: _Optional[str] = ..., end_offset: _Optional[int] = ..., candidacy: _Optional[_Union[BrokerReport.Candidacy, _Mapping]] = ...) -> None: ...
    class Candidacy(_message.Message):
        __slots__ = ("epoch", "log_epoch", "hears_master", "is_acting", "priority", "is_doubtful")
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        LOG_EPOCH_FIELD_NUMBER: _ClassVar[int]
        HEARS_MASTER_FIELD_NUMBER: _ClassVar[int]
        IS_ACTING_FIELD_NUMBER: _ClassVar[int]
        PRIORITY_FIELD_NUMBER: _ClassVar[int]
        IS_DOUBTFUL_FIELD_NUMBER: _ClassVar[int]
        epoch: int
        log_epoch: int
        hears_master: bool
        is_acting: bool
        priority: int
        is_doubtful: bool
        def __init__(self, epoch: _Optional[int] = ..., log_epoch: _Optional[int] = ..., hears_master: bool = ..., is_acting: bool = ..., priority: _Optional[int] = ..., is_doubtful: bool = ...) -> None: ...
    class Heartbeat(_message.Message):
        __slots__ = ("end_offset", "confirm_offset", "role", "epoch", "candidacy")
        END_OFFSET_FIELD_NUMBER: _ClassVar[int]
        CONFIRM_OFFSET_FIELD_NUMBER: _ClassVar[int]
        ROLE_FIELD_NUMBER: _ClassVar[int]
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        CANDIDACY_FIELD_NUMBER: _ClassVar[int]
        end_offset: int
        confirm_offset: int
        role: _common_pb2.Role
        epoch: int
        candidacy: BrokerReport.Candidacy
        def __init__(self, end_offset: _Optional[int] = ..., confirm_offset: _Optional[int] = ..., role: _Optional[_Union[_common_pb2.Role, str]] = ..., epoch: _Optional[int] = ..., candidacy: _Optional[_Union[BrokerReport.Candidacy, _Mapping]] = ...) -> None: ...
    class TopicChanges(_message.Message):
        __slots__ = ("updated", "removed")
        UPDATED_FIELD_NUMBER: _ClassVar[int]
        REMOVED_FIELD_NUMBER: _ClassVar[int]
        updated: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicConfig]
        removed: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, updated: _Optional[_Iterable[_Union[_common_pb2.TopicConfig, _Mapping]]] = ..., removed: _Optional[_Iterable[str]] = ...) -> None: ...
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_CHANGES_FIELD_NUMBER: _ClassVar[int]
    registration: BrokerReport.Registration
    heartbeat: BrokerReport.Heartbeat
    topic_changes: BrokerReport.TopicChanges
    def __init__(self, registration: _Optional[_Union[BrokerReport.Registration, _Mapping]] = ..., heartbeat: _Optional[_Union[BrokerReport.Heartbeat, _Mapping]] = ..., topic_changes: _Optional[_Union[BrokerReport.TopicChanges, _Mapping]] = ...) -> None: ...

class BrokerDirective(_message.Message):
    __slots__ = ("shard", "heartbeat_interval_ms", "register")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    shard: ShardView
    heartbeat_interval_ms: int
    register: _coordination_pb2.Register
    def __init__(self, shard: _Optional[_Union[ShardView, _Mapping]] = ..., heartbeat_interval_ms: _Optional[int] = ..., register: _Optional[_Union[_coordination_pb2.Register, _Mapping]] = ...) -> None: ...

class ShardMember(_message.Message):
    __slots__ = ("broker_id", "address", "role", "end_offset", "confirm_offset", "data_port")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    address: str
    role: _common_pb2.Role
    end_offset: int
    confirm_offset: int
    data_port: int
    def __init__(self, broker_id: _Optional[int] = ..., address: _Optional[str] = ..., role: _Optional[_Union[_common_pb2.Role, str]] = ..., end_offset: _Optional[int] = ..., confirm_offset: _Optional[int] = ..., data_port: _Optional[int] = ...) -> None: ...

class ShardView(_message.Message):
    __slots__ = ("cluster", "broker_name", "epoch", "members", "auto_create_topics")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    AUTO_CREATE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    epoch: int
    members: _containers.RepeatedCompositeFieldContainer[ShardMember]
    auto_create_topics: bool
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., epoch: _Optional[int] = ..., members: _Optional[_Iterable[_Union[ShardMember, _Mapping]]] = ..., auto_create_topics: bool = ...) -> None: ...

class QueueData(_message.Message):
    __slots__ = ("broker_name", "read_queues", "write_queues", "perm")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    PERM_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    read_queues: int
    write_queues: int
    perm: int
    def __init__(self, broker_name: _Optional[str] = ..., read_queues: _Optional[int] = ..., write_queues: _Optional[int] = ..., perm: _Optional[int] = ...) -> None: ...

class TopicRoute(_message.Message):
    __slots__ = ("topic", "exists", "queues", "shards", "attributes", "absent")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    exists: bool
    queues: _containers.RepeatedCompositeFieldContainer[QueueData]
    shards: _containers.RepeatedCompositeFieldContainer[ShardView]
    attributes: _containers.ScalarMap[str, str]
    absent: _containers.RepeatedCompositeFieldContainer[QueueData]
    def __init__(self, topic: _Optional[str] = ..., exists: bool = ..., queues: _Optional[_Iterable[_Union[QueueData, _Mapping]]] = ..., shards: _Optional[_Iterable[_Union[ShardView, _Mapping]]] = ..., attributes: _Optional[_Mapping[str, str]] = ..., absent: _Optional[_Iterable[_Union[QueueData, _Mapping]]] = ...) -> None: ...

class ShardName(_message.Message):
    __slots__ = ("broker_name",)
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    def __init__(self, broker_name: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("add_topics", "remove_topics")
    ADD_TOPICS_FIELD_NUMBER: _ClassVar[int]
    REMOVE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    add_topics: _containers.RepeatedScalarFieldContainer[str]
    remove_topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, add_topics: _Optional[_Iterable[str]] = ..., remove_topics: _Optional[_Iterable[str]] = ...) -> None: ...

class RouteUpdate(_message.Message):
    __slots__ = ("routes",)
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    routes: _containers.RepeatedCompositeFieldContainer[TopicRoute]
    def __init__(self, routes: _Optional[_Iterable[_Union[TopicRoute, _Mapping]]] = ...) -> None: ...

class RouteQuery(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class ClusterView(_message.Message):
    __slots__ = ("shards", "absent")
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[ShardView]
    absent: _containers.RepeatedCompositeFieldContainer[ShardView]
    def __init__(self, shards: _Optional[_Iterable[_Union[ShardView, _Mapping]]] = ..., absent: _Optional[_Iterable[_Union[ShardView, _Mapping]]] = ...) -> None: ...

class TopicNames(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class KeyValue(_message.Message):
    __slots__ = ("namespace", "key", "value")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: str
    value: str
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class KeyQuery(_message.Message):
    __slots__ = ("namespace", "key")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: str
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class KeyValues(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[KeyValue]
    def __init__(self, values: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ...) -> None: ...
