from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Resolution(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNRESOLVED: _ClassVar[Resolution]
    COMMIT: _ClassVar[Resolution]
    ROLLBACK: _ClassVar[Resolution]

class HalfState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPEN: _ClassVar[HalfState]
    COMMITTED: _ClassVar[HalfState]
    ROLLED_BACK: _ClassVar[HalfState]
    PARKED: _ClassVar[HalfState]
    RENEWED: _ClassVar[HalfState]
    ENDED: _ClassVar[HalfState]
UNRESOLVED: Resolution
COMMIT: Resolution
ROLLBACK: Resolution
OPEN: HalfState
COMMITTED: HalfState
ROLLED_BACK: HalfState
PARKED: HalfState
RENEWED: HalfState
ENDED: HalfState

class HalfRange(_message.Message):
    __slots__ = ("offset", "count", "epoch")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    offset: int
    count: int
    epoch: int
    def __init__(self, offset: _Optional[int] = ..., count: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class EndRequest(_message.Message):
    __slots__ = ("group", "halves", "resolution", "is_answer")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HALVES_FIELD_NUMBER: _ClassVar[int]
    RESOLUTION_FIELD_NUMBER: _ClassVar[int]
    IS_ANSWER_FIELD_NUMBER: _ClassVar[int]
    group: str
    halves: _containers.RepeatedCompositeFieldContainer[HalfRange]
    resolution: Resolution
    is_answer: bool
    def __init__(self, group: _Optional[str] = ..., halves: _Optional[_Iterable[_Union[HalfRange, _Mapping]]] = ..., resolution: _Optional[_Union[Resolution, str]] = ..., is_answer: bool = ...) -> None: ...

class EndReply(_message.Message):
    __slots__ = ("states",)
    class States(_message.Message):
        __slots__ = ("state", "count")
        STATE_FIELD_NUMBER: _ClassVar[int]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        state: HalfState
        count: int
        def __init__(self, state: _Optional[_Union[HalfState, str]] = ..., count: _Optional[int] = ...) -> None: ...
    STATES_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedCompositeFieldContainer[EndReply.States]
    def __init__(self, states: _Optional[_Iterable[_Union[EndReply.States, _Mapping]]] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("client_id", "groups", "answers")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    groups: _containers.RepeatedScalarFieldContainer[str]
    answers: bool
    def __init__(self, client_id: _Optional[str] = ..., groups: _Optional[_Iterable[str]] = ..., answers: bool = ...) -> None: ...

class ProducerEvent(_message.Message):
    __slots__ = ("joined", "check")
    class Joined(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Check(_message.Message):
        __slots__ = ("offsets", "times", "records", "group")
        OFFSETS_FIELD_NUMBER: _ClassVar[int]
        TIMES_FIELD_NUMBER: _ClassVar[int]
        RECORDS_FIELD_NUMBER: _ClassVar[int]
        GROUP_FIELD_NUMBER: _ClassVar[int]
        offsets: _containers.RepeatedScalarFieldContainer[int]
        times: _containers.RepeatedScalarFieldContainer[int]
        records: bytes
        group: str
        def __init__(self, offsets: _Optional[_Iterable[int]] = ..., times: _Optional[_Iterable[int]] = ..., records: _Optional[bytes] = ..., group: _Optional[str] = ...) -> None: ...
    JOINED_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    joined: ProducerEvent.Joined
    check: ProducerEvent.Check
    def __init__(self, joined: _Optional[_Union[ProducerEvent.Joined, _Mapping]] = ..., check: _Optional[_Union[ProducerEvent.Check, _Mapping]] = ...) -> None: ...

class ProducerGroupName(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class ProducerMember(_message.Message):
    __slots__ = ("client_id", "answers")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    answers: bool
    def __init__(self, client_id: _Optional[str] = ..., answers: bool = ...) -> None: ...

class ProducerMembers(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[ProducerMember]
    def __init__(self, members: _Optional[_Iterable[_Union[ProducerMember, _Mapping]]] = ...) -> None: ...
