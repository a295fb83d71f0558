"""RocketMQ's message trace: what clients tell of each message, as text in the messages of a trace topic.

A trace message's body is a row of contexts. Each ends with 0x02; its fields are separated by 0x01, the first one is its
kind. KEYS of the message are the ids and keys of the messages told of, so that a query by key finds it.

| Kind | Fields |
|---|---|
| Pub | time, region, group, topic, message id, tags, keys, store host, body bytes, cost, type, offset id, success |
| SubBefore | time, region, group, request id, message id, tries before, keys |
| SubAfter | request id, message id, cost, success, keys, code, time, group |
| EndTransaction | time, region, group, topic, message id, tags, keys, store host, type, transaction id, state, check |
| Recall | time, region, group, topic, message id, success |

Times are ms since 1970 UTC, costs ms, truths ``true`` and ``false``; check: a broker had asked. Of Pub, older clients
leave the offset id out, and some add the sender's address; of SubAfter, older ones leave out everything from the keys
on.
Source: RocketMQ ``TraceDataEncoder``, ``TraceBean``, ``MessageType``, ``ConsumeReturnType``.

>>> encoded(SubBefore(1700000000000, REGION, "g", "R1", "ID1", 2, "k"))
'SubBefore\\x011700000000000\\x01DefaultRegion\\x01g\\x01R1\\x01ID1\\x012\\x01k\\x02'
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, get_type_hints

from .record.properties import KEY_SEPARATOR

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER"
"""The producer group of traces."""
REGION: Final = "DefaultRegion"
"""What RocketMQ's brokers call the only region that there is."""
FIELD_SEPARATOR: Final = "\x01"
CONTEXT_END: Final = "\x02"

MESSAGE_LENGTH_MAX: Final = 64 * 1024
"""Characters, of up to four bytes, of a trace message that holds several contexts."""
KEYS_LENGTH_MAX: Final = 4 * 1024
"""The same of its keys; of a message with more keys the first ones count."""
_FIELDS_MAX: Final = 20
_DIGITS_MAX: Final = 18


class MessageType(enum.IntEnum):
    """What kind of message a producer has sent."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


class ReturnCode(enum.IntEnum):
    """How a listener came back."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class Pub(NamedTuple):
    """A producer's send of one message has ended."""

    timestamp_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tags: str
    keys: str
    store_host: str
    body_bytes: int
    cost_ms: int
    message_type: int
    offset_message_id: str
    success: bool
    client_host: str = ""


class SubBefore(NamedTuple):
    """A consumer begins with a message; the request id is that of its :class:`SubAfter`."""

    timestamp_ms: int
    region: str
    group: str
    request_id: str
    message_id: str
    retry_times: int
    keys: str = ""


class SubAfter(NamedTuple):
    """A consumer has come to an end with a message."""

    request_id: str
    message_id: str
    cost_ms: int
    success: bool
    keys: str = ""
    code: int = 0
    timestamp_ms: int = 0
    group: str = ""


class EndTransaction(NamedTuple):
    """A producer has decided about a message that was sent in a transaction."""

    timestamp_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    tags: str
    keys: str
    store_host: str
    message_type: int
    transaction_id: str
    state: str  # COMMIT_MESSAGE, ROLLBACK_MESSAGE
    from_check: bool


class Recall(NamedTuple):
    """A producer wanted a message back before its time."""

    timestamp_ms: int
    region: str
    group: str
    topic: str
    message_id: str
    success: bool

    @property
    def keys(self) -> str:
        """None are told."""
        return ""


Context = Pub | SubBefore | SubAfter | EndTransaction | Recall


def encoded(context: Context) -> str:
    if isinstance(context, Pub):
        # By itself: of the contexts there are most of these, and this takes a third of the time.
        at_ms, region, group, topic, message_id, tags, keys, store, size, cost_ms, kind, offset_id, success, client = (
            context
        )
        return (
            f"Pub\x01{at_ms}\x01{region}\x01{group}\x01{topic}\x01{message_id}\x01{tags}\x01{keys}\x01{store}\x01{size}"
            f"\x01{cost_ms}\x01{kind:d}\x01{offset_id}\x01{'true' if success else 'false'}"
            f"{FIELD_SEPARATOR if client else ''}{client}\x02"
        )
    texts = [("true" if field else "false") if isinstance(field, bool) else str(field) for field in context]
    return FIELD_SEPARATOR.join((type(context).__name__, *texts)) + CONTEXT_END


def place(kind: type[Context], field: str) -> int:
    """The number of a field in a context of that kind; the kind itself is 0."""
    return kind._fields.index(field) + 1


def decode(body: bytes) -> list[Context]:
    """The contexts of a trace message, in their order. Unknown kinds, and what cannot be read, are left out."""
    found: list[Context] = []
    for text in body.decode("utf-8", "replace").split(CONTEXT_END):
        kind, *fields = text.split(FIELD_SEPARATOR, _FIELDS_MAX)
        known = _KINDS.get(kind)
        if known is None:
            continue
        try:
            found.append(_read(*known, ["" if field == "null" else field for field in fields]))
        except ValueError:  # another program's, or cut off: the others count all the same
            continue
    return found


def packed(contexts: Iterable[Context]) -> Iterator[tuple[bytes, list[str], int]]:
    """Body, keys, and number of contexts of the trace messages that tell of ``contexts``, each within the limits."""
    texts: list[str] = []
    keys: dict[str, None] = {}
    size = key_size = 0
    for context in contexts:
        text, message_id, own = encoded(context), context.message_id, context.keys
        room = len(message_id) + len(own) + 2
        if texts and (size + len(text) > MESSAGE_LENGTH_MAX or key_size + room > KEYS_LENGTH_MAX):
            yield _message(texts, keys)
            texts, keys, size, key_size = [], {}, 0, 0
        texts.append(text)
        keys[message_id] = None
        if own:
            if room > KEYS_LENGTH_MAX:
                own = own[: max(KEYS_LENGTH_MAX - len(message_id) - 1, 0)].rpartition(KEY_SEPARATOR)[0]
            keys.update(dict.fromkeys(own.split(KEY_SEPARATOR)))
        size += len(text)
        key_size += room
    if texts:
        yield _message(texts, keys)


def _message(texts: list[str], keys: dict[str, None]) -> tuple[bytes, list[str], int]:
    return "".join(texts).encode(), [key for key in keys if key], len(texts)


def _number(text: str) -> int:
    if len(text) > _DIGITS_MAX:
        raise ValueError(text)
    return int(text)


def _truth(text: str) -> bool:
    return text.strip().lower() == "true"


def _read(kind: type[Context], least: int, fields: list[str]) -> Context:
    """The context of that kind, of which ``least`` fields have to be there; those behind them may be."""
    if len(fields) < least:
        raise ValueError(f"{kind.__name__} of {len(fields)} fields")
    if kind is Pub and len(fields) <= _OFFSET_ID + 1:
        fields.insert(_OFFSET_ID, "")
        fields += ["true"] * (_OFFSET_ID + 2 - len(fields))
    make: Callable[..., Context] = kind
    return make(*(read(text) for read, text in zip(_TYPES[kind], fields, strict=False)))


_OFFSET_ID: Final = Pub._fields.index("offset_message_id")
_KINDS: Final[dict[str, tuple[type[Context], int]]] = {
    kind.__name__: (kind, least)
    for kind, least in ((Pub, 11), (SubBefore, 6), (SubAfter, 4), (EndTransaction, 12), (Recall, 6))
}
"""The kinds, with how many of their fields even old clients tell."""
_OF_TYPE: Final[dict[type, Callable[[str], Any]]] = {int: _number, bool: _truth, str: str}
_TYPES: Final = {kind: [_OF_TYPE[found] for found in get_type_hints(kind).values()] for kind, _ in _KINDS.values()}
