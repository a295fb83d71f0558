from penstock.proto.wire import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StageHeader(_message.Message):
    __slots__ = ("writer", "batch", "key", "chunk", "topic", "count", "coordinator", "keep_ms", "later")
    WRITER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    KEEP_MS_FIELD_NUMBER: _ClassVar[int]
    LATER_FIELD_NUMBER: _ClassVar[int]
    writer: str
    batch: int
    key: str
    chunk: int
    topic: str
    count: int
    coordinator: str
    keep_ms: int
    later: int
    def __init__(self, writer: _Optional[str] = ..., batch: _Optional[int] = ..., key: _Optional[str] = ..., chunk: _Optional[int] = ..., topic: _Optional[str] = ..., count: _Optional[int] = ..., coordinator: _Optional[str] = ..., keep_ms: _Optional[int] = ..., later: _Optional[int] = ...) -> None: ...

class StageReply(_message.Message):
    __slots__ = ("duplicate",)
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    duplicate: bool
    def __init__(self, duplicate: bool = ...) -> None: ...

class LanesRequest(_message.Message):
    __slots__ = ("lanes",)
    class Lane(_message.Message):
        __slots__ = ("topic", "producer_id", "lane")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
        LANE_FIELD_NUMBER: _ClassVar[int]
        topic: str
        producer_id: int
        lane: int
        def __init__(self, topic: _Optional[str] = ..., producer_id: _Optional[int] = ..., lane: _Optional[int] = ...) -> None: ...
    LANES_FIELD_NUMBER: _ClassVar[int]
    lanes: _containers.RepeatedCompositeFieldContainer[LanesRequest.Lane]
    def __init__(self, lanes: _Optional[_Iterable[_Union[LanesRequest.Lane, _Mapping]]] = ...) -> None: ...

class LanesReply(_message.Message):
    __slots__ = ("last_sequences",)
    LAST_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    last_sequences: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, last_sequences: _Optional[_Iterable[int]] = ...) -> None: ...

class WriterName(_message.Message):
    __slots__ = ("writer",)
    WRITER_FIELD_NUMBER: _ClassVar[int]
    writer: str
    def __init__(self, writer: _Optional[str] = ...) -> None: ...

class OpenWriterRequest(_message.Message):
    __slots__ = ("writer", "run", "coordinator", "layout")
    class LayoutEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    WRITER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    writer: str
    run: str
    coordinator: str
    layout: _containers.ScalarMap[str, str]
    def __init__(self, writer: _Optional[str] = ..., run: _Optional[str] = ..., coordinator: _Optional[str] = ..., layout: _Optional[_Mapping[str, str]] = ...) -> None: ...

class WriterState(_message.Message):
    __slots__ = ("exists", "run", "epoch", "decided_batch", "finished", "keys", "coordinator", "layout", "content")
    class LayoutEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BATCH_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    exists: bool
    run: str
    epoch: int
    decided_batch: int
    finished: bool
    keys: _containers.RepeatedCompositeFieldContainer[StagedKey]
    coordinator: str
    layout: _containers.ScalarMap[str, str]
    content: str
    def __init__(self, exists: bool = ..., run: _Optional[str] = ..., epoch: _Optional[int] = ..., decided_batch: _Optional[int] = ..., finished: bool = ..., keys: _Optional[_Iterable[_Union[StagedKey, _Mapping]]] = ..., coordinator: _Optional[str] = ..., layout: _Optional[_Mapping[str, str]] = ..., content: _Optional[str] = ...) -> None: ...

class StagedKey(_message.Message):
    __slots__ = ("key", "chunks")
    class ChunksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    key: str
    chunks: _containers.ScalarMap[str, int]
    def __init__(self, key: _Optional[str] = ..., chunks: _Optional[_Mapping[str, int]] = ...) -> None: ...

class DecideRequest(_message.Message):
    __slots__ = ("writer", "run", "batch", "keys", "content")
    WRITER_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    writer: str
    run: str
    batch: int
    keys: _containers.RepeatedCompositeFieldContainer[StagedKey]
    content: str
    def __init__(self, writer: _Optional[str] = ..., run: _Optional[str] = ..., batch: _Optional[int] = ..., keys: _Optional[_Iterable[_Union[StagedKey, _Mapping]]] = ..., content: _Optional[str] = ...) -> None: ...

class FinishRequest(_message.Message):
    __slots__ = ("writer", "batch")
    WRITER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    writer: str
    batch: int
    def __init__(self, writer: _Optional[str] = ..., batch: _Optional[int] = ...) -> None: ...

class StagedKeys(_message.Message):
    __slots__ = ("writer", "batch", "keys")
    WRITER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    writer: str
    batch: int
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, writer: _Optional[str] = ..., batch: _Optional[int] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class ExpireReply(_message.Message):
    __slots__ = ("decided",)
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    decided: _containers.RepeatedCompositeFieldContainer[StagedKey]
    def __init__(self, decided: _Optional[_Iterable[_Union[StagedKey, _Mapping]]] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("writer", "batch", "chunks")
    class ChunksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    WRITER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    writer: str
    batch: int
    chunks: _containers.ScalarMap[str, int]
    def __init__(self, writer: _Optional[str] = ..., batch: _Optional[int] = ..., chunks: _Optional[_Mapping[str, int]] = ...) -> None: ...

class PublishReply(_message.Message):
    __slots__ = ("records", "duplicate")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    records: int
    duplicate: bool
    def __init__(self, records: _Optional[int] = ..., duplicate: bool = ...) -> None: ...

class TopicPositionsRequest(_message.Message):
    __slots__ = ("topic", "timestamp_ms", "with_timestamp", "epoch")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    WITH_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic: str
    timestamp_ms: int
    with_timestamp: bool
    epoch: int
    def __init__(self, topic: _Optional[str] = ..., timestamp_ms: _Optional[int] = ..., with_timestamp: bool = ..., epoch: _Optional[int] = ...) -> None: ...

class QueuePosition(_message.Message):
    __slots__ = ("queue_id", "min_offset", "max_offset", "mean_record_bytes", "time_offset", "time_matched", "cut_offset")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MEAN_RECORD_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIME_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIME_MATCHED_FIELD_NUMBER: _ClassVar[int]
    CUT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    min_offset: int
    max_offset: int
    mean_record_bytes: int
    time_offset: int
    time_matched: bool
    cut_offset: int
    def __init__(self, queue_id: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., mean_record_bytes: _Optional[int] = ..., time_offset: _Optional[int] = ..., time_matched: bool = ..., cut_offset: _Optional[int] = ...) -> None: ...

class TopicPositions(_message.Message):
    __slots__ = ("topic", "epoch", "queues", "is_master", "created_ms", "log_offset", "removed")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    IS_MASTER_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    epoch: int
    queues: _containers.RepeatedCompositeFieldContainer[QueuePosition]
    is_master: bool
    created_ms: int
    log_offset: int
    removed: _containers.RepeatedCompositeFieldContainer[QueuePosition]
    def __init__(self, topic: _Optional[str] = ..., epoch: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[QueuePosition, _Mapping]]] = ..., is_master: bool = ..., created_ms: _Optional[int] = ..., log_offset: _Optional[int] = ..., removed: _Optional[_Iterable[_Union[QueuePosition, _Mapping]]] = ...) -> None: ...

class ArchiveWatermark(_message.Message):
    __slots__ = ("name", "offset", "force", "updated_timestamp_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    UPDATED_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    offset: int
    force: bool
    updated_timestamp_ms: int
    def __init__(self, name: _Optional[str] = ..., offset: _Optional[int] = ..., force: bool = ..., updated_timestamp_ms: _Optional[int] = ...) -> None: ...

class ArchiveWatermarks(_message.Message):
    __slots__ = ("watermarks",)
    WATERMARKS_FIELD_NUMBER: _ClassVar[int]
    watermarks: _containers.RepeatedCompositeFieldContainer[ArchiveWatermark]
    def __init__(self, watermarks: _Optional[_Iterable[_Union[ArchiveWatermark, _Mapping]]] = ...) -> None: ...
