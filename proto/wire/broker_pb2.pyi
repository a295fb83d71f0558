from penstock.proto.wire import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SendStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEND_OK: _ClassVar[SendStatus]
    FLUSH_DISK_TIMEOUT: _ClassVar[SendStatus]
    FLUSH_SLAVE_TIMEOUT: _ClassVar[SendStatus]
    SLAVE_NOT_AVAILABLE: _ClassVar[SendStatus]
SEND_OK: SendStatus
FLUSH_DISK_TIMEOUT: SendStatus
FLUSH_SLAVE_TIMEOUT: SendStatus
SLAVE_NOT_AVAILABLE: SendStatus

class AppendHeader(_message.Message):
    __slots__ = ("topic", "producer_id", "producer_epoch", "lane", "sequence", "count", "no_wait", "timeout_ms", "writer", "run", "again", "later")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    NO_WAIT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    LATER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    producer_id: int
    producer_epoch: int
    lane: int
    sequence: int
    count: int
    no_wait: bool
    timeout_ms: int
    writer: str
    run: str
    again: bool
    later: int
    def __init__(self, topic: _Optional[str] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., lane: _Optional[int] = ..., sequence: _Optional[int] = ..., count: _Optional[int] = ..., no_wait: bool = ..., timeout_ms: _Optional[int] = ..., writer: _Optional[str] = ..., run: _Optional[str] = ..., again: bool = ..., later: _Optional[int] = ...) -> None: ...

class AppendReceipt(_message.Message):
    __slots__ = ("physical_offset", "store_timestamp_ms", "queue_ids", "queue_offsets", "status", "duplicate", "epoch", "record_sizes")
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECORD_SIZES_FIELD_NUMBER: _ClassVar[int]
    physical_offset: int
    store_timestamp_ms: int
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    queue_offsets: _containers.RepeatedScalarFieldContainer[int]
    status: SendStatus
    duplicate: bool
    epoch: int
    record_sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, physical_offset: _Optional[int] = ..., store_timestamp_ms: _Optional[int] = ..., queue_ids: _Optional[_Iterable[int]] = ..., queue_offsets: _Optional[_Iterable[int]] = ..., status: _Optional[_Union[SendStatus, str]] = ..., duplicate: bool = ..., epoch: _Optional[int] = ..., record_sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class Filter(_message.Message):
    __slots__ = ("kind", "expression")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ALL: _ClassVar[Filter.Kind]
        TAG: _ClassVar[Filter.Kind]
        SQL92: _ClassVar[Filter.Kind]
    ALL: Filter.Kind
    TAG: Filter.Kind
    SQL92: Filter.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    kind: Filter.Kind
    expression: str
    def __init__(self, kind: _Optional[_Union[Filter.Kind, str]] = ..., expression: _Optional[str] = ...) -> None: ...

class FetchHeader(_message.Message):
    __slots__ = ("group", "client_id", "topics", "max_bytes", "max_bytes_per_queue", "max_wait_ms", "verify", "broadcasting", "in_order")
    class Topic(_message.Message):
        __slots__ = ("topic", "queue_ids", "offsets", "filter", "ends", "epoch")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
        OFFSETS_FIELD_NUMBER: _ClassVar[int]
        FILTER_FIELD_NUMBER: _ClassVar[int]
        ENDS_FIELD_NUMBER: _ClassVar[int]
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        topic: str
        queue_ids: _containers.RepeatedScalarFieldContainer[int]
        offsets: _containers.RepeatedScalarFieldContainer[int]
        filter: Filter
        ends: _containers.RepeatedScalarFieldContainer[int]
        epoch: int
        def __init__(self, topic: _Optional[str] = ..., queue_ids: _Optional[_Iterable[int]] = ..., offsets: _Optional[_Iterable[int]] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ..., ends: _Optional[_Iterable[int]] = ..., epoch: _Optional[int] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_PER_QUEUE_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    BROADCASTING_FIELD_NUMBER: _ClassVar[int]
    IN_ORDER_FIELD_NUMBER: _ClassVar[int]
    group: str
    client_id: str
    topics: _containers.RepeatedCompositeFieldContainer[FetchHeader.Topic]
    max_bytes: int
    max_bytes_per_queue: int
    max_wait_ms: int
    verify: bool
    broadcasting: bool
    in_order: bool
    def __init__(self, group: _Optional[str] = ..., client_id: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[FetchHeader.Topic, _Mapping]]] = ..., max_bytes: _Optional[int] = ..., max_bytes_per_queue: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., verify: bool = ..., broadcasting: bool = ..., in_order: bool = ...) -> None: ...

class FetchReply(_message.Message):
    __slots__ = ("results", "suggested_broker_id", "epoch")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        FOUND: _ClassVar[FetchReply.Status]
        NO_NEW_MESSAGE: _ClassVar[FetchReply.Status]
        OFFSET_TOO_SMALL: _ClassVar[FetchReply.Status]
        OFFSET_OVERFLOW: _ClassVar[FetchReply.Status]
        NO_MATCHED_MESSAGE: _ClassVar[FetchReply.Status]
        QUEUE_NOT_FOUND: _ClassVar[FetchReply.Status]
        DAMAGED: _ClassVar[FetchReply.Status]
        TRUNCATED: _ClassVar[FetchReply.Status]
    FOUND: FetchReply.Status
    NO_NEW_MESSAGE: FetchReply.Status
    OFFSET_TOO_SMALL: FetchReply.Status
    OFFSET_OVERFLOW: FetchReply.Status
    NO_MATCHED_MESSAGE: FetchReply.Status
    QUEUE_NOT_FOUND: FetchReply.Status
    DAMAGED: FetchReply.Status
    TRUNCATED: FetchReply.Status
    class Result(_message.Message):
        __slots__ = ("topic_index", "queue_id", "status", "next_offset", "min_offset", "max_offset", "bytes", "count", "problem")
        TOPIC_INDEX_FIELD_NUMBER: _ClassVar[int]
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        STATUS_FIELD_NUMBER: _ClassVar[int]
        NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
        MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
        MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        PROBLEM_FIELD_NUMBER: _ClassVar[int]
        topic_index: int
        queue_id: int
        status: FetchReply.Status
        next_offset: int
        min_offset: int
        max_offset: int
        bytes: int
        count: int
        problem: str
        def __init__(self, topic_index: _Optional[int] = ..., queue_id: _Optional[int] = ..., status: _Optional[_Union[FetchReply.Status, str]] = ..., next_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., bytes: _Optional[int] = ..., count: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    SUGGESTED_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[FetchReply.Result]
    suggested_broker_id: int
    epoch: int
    def __init__(self, results: _Optional[_Iterable[_Union[FetchReply.Result, _Mapping]]] = ..., suggested_broker_id: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("config", "auto", "update")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    AUTO_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    config: _common_pb2.TopicConfig
    auto: bool
    update: bool
    def __init__(self, config: _Optional[_Union[_common_pb2.TopicConfig, _Mapping]] = ..., auto: bool = ..., update: bool = ...) -> None: ...

class TopicName(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class TopicConfigs(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicConfig]
    def __init__(self, topics: _Optional[_Iterable[_Union[_common_pb2.TopicConfig, _Mapping]]] = ...) -> None: ...

class GroupName(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class GroupConfigs(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[_common_pb2.GroupConfig]
    def __init__(self, groups: _Optional[_Iterable[_Union[_common_pb2.GroupConfig, _Mapping]]] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("client_id", "claimed", "subscriptions", "broadcasting")
    class SubscriptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    BROADCASTING_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    claimed: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicQueues]
    subscriptions: _containers.ScalarMap[str, str]
    broadcasting: bool
    def __init__(self, client_id: _Optional[str] = ..., claimed: _Optional[_Iterable[_Union[_common_pb2.TopicQueues, _Mapping]]] = ..., subscriptions: _Optional[_Mapping[str, str]] = ..., broadcasting: bool = ...) -> None: ...

class GroupDescription(_message.Message):
    __slots__ = ("config", "generation", "members", "committed")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    config: _common_pb2.GroupConfig
    generation: int
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    committed: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicOffsets]
    def __init__(self, config: _Optional[_Union[_common_pb2.GroupConfig, _Mapping]] = ..., generation: _Optional[int] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., committed: _Optional[_Iterable[_Union[_common_pb2.TopicOffsets, _Mapping]]] = ...) -> None: ...

class CommitOffsetsRequest(_message.Message):
    __slots__ = ("group", "client_id", "session_id", "offsets", "force", "epoch")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    group: str
    client_id: str
    session_id: int
    offsets: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicOffsets]
    force: bool
    epoch: int
    def __init__(self, group: _Optional[str] = ..., client_id: _Optional[str] = ..., session_id: _Optional[int] = ..., offsets: _Optional[_Iterable[_Union[_common_pb2.TopicOffsets, _Mapping]]] = ..., force: bool = ..., epoch: _Optional[int] = ...) -> None: ...

class CommitOffsetsReply(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicQueues]
    def __init__(self, refused: _Optional[_Iterable[_Union[_common_pb2.TopicQueues, _Mapping]]] = ...) -> None: ...

class QueryOffsetsRequest(_message.Message):
    __slots__ = ("group", "queues")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    group: str
    queues: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicQueues]
    def __init__(self, group: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[_common_pb2.TopicQueues, _Mapping]]] = ...) -> None: ...

class QueryOffsetsReply(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[_common_pb2.TopicOffsets]
    def __init__(self, offsets: _Optional[_Iterable[_Union[_common_pb2.TopicOffsets, _Mapping]]] = ...) -> None: ...

class QueueRange(_message.Message):
    __slots__ = ("queue_id", "min_offset", "max_offset", "last_store_timestamp_ms")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_STORE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    min_offset: int
    max_offset: int
    last_store_timestamp_ms: int
    def __init__(self, queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., last_store_timestamp_ms: _Optional[int] = ...) -> None: ...

class QueueRanges(_message.Message):
    __slots__ = ("topic", "ranges")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    ranges: _containers.RepeatedCompositeFieldContainer[QueueRange]
    def __init__(self, topic: _Optional[str] = ..., ranges: _Optional[_Iterable[_Union[QueueRange, _Mapping]]] = ...) -> None: ...

class SearchOffsetRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "timestamp_ms", "upper")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    timestamp_ms: int
    upper: bool
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., upper: bool = ...) -> None: ...

class QueueOffset(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class ConsumerRequest(_message.Message):
    __slots__ = ("join", "claim", "release", "heartbeat", "reclaim")
    class Join(_message.Message):
        __slots__ = ("group", "client_id", "subscriptions", "concurrent", "broadcasting", "lock_ms")
        class SubscriptionsEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: Filter
            def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Filter, _Mapping]] = ...) -> None: ...
        GROUP_FIELD_NUMBER: _ClassVar[int]
        CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
        SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
        CONCURRENT_FIELD_NUMBER: _ClassVar[int]
        BROADCASTING_FIELD_NUMBER: _ClassVar[int]
        LOCK_MS_FIELD_NUMBER: _ClassVar[int]
        group: str
        client_id: str
        subscriptions: _containers.MessageMap[str, Filter]
        concurrent: bool
        broadcasting: bool
        lock_ms: int
        def __init__(self, group: _Optional[str] = ..., client_id: _Optional[str] = ..., subscriptions: _Optional[_Mapping[str, Filter]] = ..., concurrent: bool = ..., broadcasting: bool = ..., lock_ms: _Optional[int] = ...) -> None: ...
    class Reclaim(_message.Message):
        __slots__ = ("queues", "left_ms")
        QUEUES_FIELD_NUMBER: _ClassVar[int]
        LEFT_MS_FIELD_NUMBER: _ClassVar[int]
        queues: _common_pb2.TopicQueues
        left_ms: int
        def __init__(self, queues: _Optional[_Union[_common_pb2.TopicQueues, _Mapping]] = ..., left_ms: _Optional[int] = ...) -> None: ...
    JOIN_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    RECLAIM_FIELD_NUMBER: _ClassVar[int]
    join: ConsumerRequest.Join
    claim: _common_pb2.TopicQueues
    release: _common_pb2.TopicQueues
    heartbeat: _common_pb2.Empty
    reclaim: ConsumerRequest.Reclaim
    def __init__(self, join: _Optional[_Union[ConsumerRequest.Join, _Mapping]] = ..., claim: _Optional[_Union[_common_pb2.TopicQueues, _Mapping]] = ..., release: _Optional[_Union[_common_pb2.TopicQueues, _Mapping]] = ..., heartbeat: _Optional[_Union[_common_pb2.Empty, _Mapping]] = ..., reclaim: _Optional[_Union[ConsumerRequest.Reclaim, _Mapping]] = ...) -> None: ...

class ConsumerEvent(_message.Message):
    __slots__ = ("joined", "members", "granted", "reset", "heartbeat", "mismatch")
    class Joined(_message.Message):
        __slots__ = ("session_id", "heartbeat_interval_ms")
        SESSION_ID_FIELD_NUMBER: _ClassVar[int]
        HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
        session_id: int
        heartbeat_interval_ms: int
        def __init__(self, session_id: _Optional[int] = ..., heartbeat_interval_ms: _Optional[int] = ...) -> None: ...
    class Members(_message.Message):
        __slots__ = ("generation", "client_ids")
        GENERATION_FIELD_NUMBER: _ClassVar[int]
        CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
        generation: int
        client_ids: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, generation: _Optional[int] = ..., client_ids: _Optional[_Iterable[str]] = ...) -> None: ...
    class Granted(_message.Message):
        __slots__ = ("topic", "queue_id", "committed_offset", "min_offset", "max_offset")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
        MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
        MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
        topic: str
        queue_id: int
        committed_offset: int
        min_offset: int
        max_offset: int
        def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., committed_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ...) -> None: ...
    class Mismatch(_message.Message):
        __slots__ = ("topic", "expression", "other_client_id", "other_expression")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        EXPRESSION_FIELD_NUMBER: _ClassVar[int]
        OTHER_CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
        OTHER_EXPRESSION_FIELD_NUMBER: _ClassVar[int]
        topic: str
        expression: str
        other_client_id: str
        other_expression: str
        def __init__(self, topic: _Optional[str] = ..., expression: _Optional[str] = ..., other_client_id: _Optional[str] = ..., other_expression: _Optional[str] = ...) -> None: ...
    class Reset(_message.Message):
        __slots__ = ("topic", "queue_id", "offset")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        topic: str
        queue_id: int
        offset: int
        def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...
    JOINED_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    MISMATCH_FIELD_NUMBER: _ClassVar[int]
    joined: ConsumerEvent.Joined
    members: ConsumerEvent.Members
    granted: ConsumerEvent.Granted
    reset: ConsumerEvent.Reset
    heartbeat: _common_pb2.Empty
    mismatch: ConsumerEvent.Mismatch
    def __init__(self, joined: _Optional[_Union[ConsumerEvent.Joined, _Mapping]] = ..., members: _Optional[_Union[ConsumerEvent.Members, _Mapping]] = ..., granted: _Optional[_Union[ConsumerEvent.Granted, _Mapping]] = ..., reset: _Optional[_Union[ConsumerEvent.Reset, _Mapping]] = ..., heartbeat: _Optional[_Union[_common_pb2.Empty, _Mapping]] = ..., mismatch: _Optional[_Union[ConsumerEvent.Mismatch, _Mapping]] = ...) -> None: ...

class BrokerStatus(_message.Message):
    __slots__ = ("identity", "role", "epoch", "pid", "min_offset", "max_offset", "flushed_offset", "confirm_offset", "dispatched_offset", "replicas", "store_path", "flush_mode", "broker_role", "started_timestamp_ms", "lag_bytes", "version", "is_following", "not_following_because", "gave_up", "sync_state_set", "is_elected", "is_learner", "is_acting", "coordination_trouble")
    class Replica(_message.Message):
        __slots__ = ("broker_id", "written_offset", "flushed_offset", "lag_bytes", "in_sync", "learner")
        BROKER_ID_FIELD_NUMBER: _ClassVar[int]
        WRITTEN_OFFSET_FIELD_NUMBER: _ClassVar[int]
        FLUSHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
        LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
        IN_SYNC_FIELD_NUMBER: _ClassVar[int]
        LEARNER_FIELD_NUMBER: _ClassVar[int]
        broker_id: int
        written_offset: int
        flushed_offset: int
        lag_bytes: int
        in_sync: bool
        learner: bool
        def __init__(self, broker_id: _Optional[int] = ..., written_offset: _Optional[int] = ..., flushed_offset: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., in_sync: bool = ..., learner: bool = ...) -> None: ...
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DISPATCHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    STORE_PATH_FIELD_NUMBER: _ClassVar[int]
    FLUSH_MODE_FIELD_NUMBER: _ClassVar[int]
    BROKER_ROLE_FIELD_NUMBER: _ClassVar[int]
    STARTED_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IS_FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    NOT_FOLLOWING_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    GAVE_UP_FIELD_NUMBER: _ClassVar[int]
    SYNC_STATE_SET_FIELD_NUMBER: _ClassVar[int]
    IS_ELECTED_FIELD_NUMBER: _ClassVar[int]
    IS_LEARNER_FIELD_NUMBER: _ClassVar[int]
    IS_ACTING_FIELD_NUMBER: _ClassVar[int]
    COORDINATION_TROUBLE_FIELD_NUMBER: _ClassVar[int]
    identity: _common_pb2.BrokerIdentity
    role: _common_pb2.Role
    epoch: int
    pid: int
    min_offset: int
    max_offset: int
    flushed_offset: int
    confirm_offset: int
    dispatched_offset: int
    replicas: _containers.RepeatedCompositeFieldContainer[BrokerStatus.Replica]
    store_path: str
    flush_mode: str
    broker_role: str
    started_timestamp_ms: int
    lag_bytes: int
    version: str
    is_following: bool
    not_following_because: str
    gave_up: str
    sync_state_set: _containers.RepeatedScalarFieldContainer[int]
    is_elected: bool
    is_learner: bool
    is_acting: bool
    coordination_trouble: str
    def __init__(self, identity: _Optional[_Union[_common_pb2.BrokerIdentity, _Mapping]] = ..., role: _Optional[_Union[_common_pb2.Role, str]] = ..., epoch: _Optional[int] = ..., pid: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., flushed_offset: _Optional[int] = ..., confirm_offset: _Optional[int] = ..., dispatched_offset: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[BrokerStatus.Replica, _Mapping]]] = ..., store_path: _Optional[str] = ..., flush_mode: _Optional[str] = ..., broker_role: _Optional[str] = ..., started_timestamp_ms: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., version: _Optional[str] = ..., is_following: bool = ..., not_following_because: _Optional[str] = ..., gave_up: _Optional[str] = ..., sync_state_set: _Optional[_Iterable[int]] = ..., is_elected: bool = ..., is_learner: bool = ..., is_acting: bool = ..., coordination_trouble: _Optional[str] = ...) -> None: ...

class TransferMasterRequest(_message.Message):
    __slots__ = ("to_broker_id",)
    TO_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    to_broker_id: int
    def __init__(self, to_broker_id: _Optional[int] = ...) -> None: ...

class TransferMasterReply(_message.Message):
    __slots__ = ("epoch", "former_broker_id")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FORMER_BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    former_broker_id: int
    def __init__(self, epoch: _Optional[int] = ..., former_broker_id: _Optional[int] = ...) -> None: ...

class QueryMessagesRequest(_message.Message):
    __slots__ = ("topic", "key", "max_count", "begin_timestamp_ms", "end_timestamp_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MAX_COUNT_FIELD_NUMBER: _ClassVar[int]
    BEGIN_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    END_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    max_count: int
    begin_timestamp_ms: int
    end_timestamp_ms: int
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., max_count: _Optional[int] = ..., begin_timestamp_ms: _Optional[int] = ..., end_timestamp_ms: _Optional[int] = ...) -> None: ...

class ViewMessageRequest(_message.Message):
    __slots__ = ("physical_offset",)
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    physical_offset: int
    def __init__(self, physical_offset: _Optional[int] = ...) -> None: ...

class MessageRecords(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, records: _Optional[_Iterable[bytes]] = ...) -> None: ...
