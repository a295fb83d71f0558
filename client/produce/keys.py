"""What producers attach to messages: checked bodies and property strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.formats.columns import Column, column_of, with_property
from penstock.formats.record import properties as names
from penstock.formats.record.properties import KEYS, PROPERTIES_ROOM, SHARDING_KEY, TAGS, TRANSIENT_PREFIX
from penstock.proto.errors import InvalidArgument, MessageTooLarge

_REFUSED = names.RESERVED | names.UNKEPT
_UNIQUE = names.UNIQ_KEY + "\x01"
TAGS_CACHED = 10_000


def checked_body(body: object, bytes_max: int) -> bytes:
    """``body`` as bytes. Raises InvalidArgument: not bytes, or empty. MessageTooLarge: more than ``bytes_max``."""
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise InvalidArgument(f"body must be bytes, not {type(body).__name__}: encode text first")
    taken = bytes(body)
    if not taken:
        raise InvalidArgument("body is empty: a message needs at least one byte")
    if len(taken) > bytes_max:
        raise MessageTooLarge(f"body of {len(taken)} bytes: at most {bytes_max} are allowed")
    return taken


def property_bytes(
    tag: str | None,
    keys: Sequence[str] | str | None,
    properties: Mapping[str, str] | None,
    sharding_key: str | None,
    unique_key: str | None = None,
    due_ms: int | None = None,
) -> bytes | None:
    """The property string of one message, ``None`` when it has none. ``due_ms``: when it is to be delivered.

    Raises:
        InvalidArgument: a reserved name, a separator or no text in a name or value, or more bytes than fit.
    """
    # One text and one check over it: a check per item costs more than all else that a message costs.
    text = ""
    pairs = 0
    if tag is not None:
        text = f"{TAGS}\x01{checked_tag(tag)}\x02"
        pairs = 1
    if keys:
        text += f"{KEYS}\x01{keys if type(keys) is str and ' ' not in keys else joined_keys(keys)}\x02"
        pairs += 1
    elif keys is not None and keys != "":
        joined_keys(keys)  # of none
    if unique_key is not None:
        try:
            text += _UNIQUE + unique_key + "\x02"
        except TypeError:
            raise InvalidArgument(f"message_id must be text, not {unique_key!r:.60}") from None
        pairs += 1
    if sharding_key is not None:
        text += f"{SHARDING_KEY}\x01{checked_sharding_key(sharding_key)}\x02"
        pairs += 1
    if due_ms is not None:
        text += f"{names.TIMER_DELIVER_MS}\x01{due_ms}\x02{names.TIMER_OUT_MS}\x01{due_ms}\x02"
        pairs += 2
    if properties:
        try:
            text += "".join([f"{name}\x01{_user_value(name, value)}\x02" for name, value in properties.items()])
        except AttributeError:
            raise no_properties(properties) from None
        pairs += len(properties)
    elif properties is not None and not isinstance(properties, Mapping):
        raise no_properties(properties)
    if not pairs:
        return None
    if text.count("\x01") != pairs or text.count("\x02") != pairs or "\0" in text:
        raise InvalidArgument("tag, keys and properties may not contain the characters 0x00, 0x01 and 0x02")
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        pair = text[text.rfind("\x02", 0, error.start) + 1 : text.find("\x02", error.start)]
        name, _, value = pair.partition("\x01")
        raise _no_text(f"property {name!r}", value, error) from error
    if len(encoded) > PROPERTIES_ROOM:
        raise InvalidArgument(
            f"properties take {len(encoded)} bytes: at most {PROPERTIES_ROOM} are allowed "
            f"({names.PROPERTIES_BYTES_MAX} in a record, of which {names.MARK_ROOM} are the producer's)"
        )
    return encoded


def no_properties(given: object) -> InvalidArgument:
    return InvalidArgument(f"properties must be a mapping of texts to texts, not {given!r:.60}")


def _no_text(what: str, value: str, error: UnicodeEncodeError) -> InvalidArgument:
    return InvalidArgument(f"{what} {value!r:.60}: not valid Unicode text: {error.reason}")


class EncodedTags(dict[str, bytes]):
    """The property strings of messages with a tag and nothing else, made when first asked for."""

    def __missing__(self, tag: str) -> bytes:
        encoded = property_bytes(tag, None, None, None)
        assert encoded is not None
        if len(self) >= TAGS_CACHED:
            self.clear()
        self[tag] = encoded
        return encoded


def _user_value(name: object, value: object) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"a property name must be non-empty text, not {name!r:.60}")
    if name in _REFUSED or name.startswith(TRANSIENT_PREFIX):
        raise _refused(name)
    if not isinstance(value, str):
        raise InvalidArgument(f"property {name!r} must be text, not {type(value).__name__}")
    return value


def _refused(name: str) -> InvalidArgument:
    if name == names.TRANSACTION_PREPARED:
        return InvalidArgument(
            f"property {name!r} is the system's mark of a message in a transaction: leave it out, and send by "
            "TransactionProducer.transaction()"
        )
    if name == names.TIMER_DELETED_KEY:
        return InvalidArgument(f"property {name!r}: a message is taken back by recall(): leave it out")
    if name in names.UNKEPT:
        return InvalidArgument(
            f"property {name!r} would not delay the message here: use send, send_async, send_oneway or send_batch"
        )
    return InvalidArgument(f"property {name!r} is reserved: give tag, keys and sharding_key as arguments")


def checked_tag(tag: object) -> str:
    """``tag`` if it can be stored, and is no expression. One with spaces around is found by SQL92 or ``*`` alone."""
    text = _text("tag", tag)
    if "||" in text or text.isspace():
        raise InvalidArgument(f"tag {text!r}: blank, or with ||, which separates tags in subscriptions")
    return text


def checked_sharding_key(key: object) -> str:
    return _text("sharding key", key)


def joined_keys(keys: Sequence[str] | str) -> str:
    """Keys as their property holds them: one space between."""
    items = [keys] if isinstance(keys, str) else keys
    try:
        for key in items:
            if names.KEY_SEPARATOR in _text("key", key):
                raise InvalidArgument(f"key {key!r}: keys are separated by spaces, so it may hold none")
    except TypeError:
        raise InvalidArgument(f"keys must be text or a list of texts, not {keys!r:.60}") from None
    return names.KEY_SEPARATOR.join(items)


def _text(what: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidArgument(f"{what} must be non-empty text, not {value!r:.60}")
    return value


def _encoded(what: str, text: str) -> bytes:
    if "\0" in text or "\x01" in text or "\x02" in text:
        raise InvalidArgument(f"{what} {text!r:.60} may not contain the characters 0x00, 0x01 and 0x02")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _no_text(what, text, error) from None


def property_column(count: int, tags: Any, keys: Any, sharding_keys: Column | None) -> Column | None:
    """The property strings of ``count`` messages; ``tags`` and ``keys`` for all, or a sequence with one for each.

    Raises:
        InvalidArgument: lengths that differ, or texts that break the rules of :func:`property_bytes`.
    """
    column: Column | None = None
    if isinstance(tags, str):
        column = Column.repeated(b"%b\x01%b\x02" % (TAGS.encode(), _encoded("tag", checked_tag(tags))), count)
    elif tags is not None:
        try:
            checked = {tag: b"" if tag is None else _encoded("tag", checked_tag(tag)) for tag in set(tags)}
        except TypeError:
            raise InvalidArgument(
                f"tags must be one text for all, or a text or None for each, not {tags!r:.60}"
            ) from None
        column = _with(column, TAGS, Column.of([checked[tag] for tag in tags]), count)
    if isinstance(keys, str):
        column = _with(column, KEYS, Column.repeated(_encoded("key", joined_keys(keys)), count), count)
    elif keys is not None:
        column = _with(column, KEYS, key_column("key", keys), count)
    if sharding_keys is not None:
        column = _with(column, SHARDING_KEY, sharding_keys, count)
    if column is not None and count and int(column.lengths.max()) > PROPERTIES_ROOM:
        index = int(np.argmax(column.lengths))
        raise InvalidArgument(f"properties of message {index} take more than {PROPERTIES_ROOM} bytes")
    return column


def key_column(what: str, keys: Any) -> Column:
    """Texts, one per message (or lists of them, or an array), as UTF-8; ``None`` and empty ones are none.

    Raises:
        InvalidArgument: something else, or a separator in one.
    """
    if isinstance(keys, str):
        raise InvalidArgument(f"{what}s {keys!r:.60}: must be a list with a text for each message")
    if isinstance(keys, np.ndarray) and keys.dtype.kind in "US":
        keys = _encoded_array(what, keys) if keys.dtype.kind == "U" else keys
        column = column_of(keys)
    elif hasattr(keys, "buffers") or hasattr(keys, "combine_chunks"):
        column = column_of(keys)
    else:
        try:
            column = Column.of([_key_text(what, key) for key in keys])
        except (TypeError, AttributeError):
            raise InvalidArgument(f"{what}s must be texts, one per message, not {keys!r:.60}") from None
    if bool((column.data <= 2).any()):
        raise InvalidArgument(f"a {what} may not contain the characters 0x00, 0x01 and 0x02")
    return column


def _key_text(what: str, key: Any) -> bytes:
    if key is None:
        return b""
    text = key if isinstance(key, str) else joined_keys(key)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _no_text(what, text, error) from None


def _encoded_array(what: str, texts: Any) -> Any:
    try:
        return np.strings.encode(texts, "utf-8")
    except UnicodeEncodeError as error:
        raise _no_text(what, str(error.object), error) from None


def _with(base: Column | None, name: str, values: Column, count: int) -> Column:
    if len(values) != count:
        raise InvalidArgument(f"{len(values)} values of {name} for {count} messages: give one for each")
    return with_property(base, name, values)
