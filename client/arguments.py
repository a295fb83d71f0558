"""What users pass, refused where it comes in: later it would end a thread that they do not see."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, Final, SupportsIndex

from penstock.proto.errors import ConfigError, InvalidArgument, PenstockError

from .message import MessageQueue, MessageView

OFFSET_MAX: Final = (1 << 63) - 1
LEVEL_MAX: Final = (1 << 31) - 1
_QUEUE_ID_MAX: Final = (1 << 31) - 1


def wrong(name: str, value: object, allowed: str, kind: type[PenstockError] = ConfigError) -> PenstockError:
    """The error that names an argument, its value and what is allowed."""
    return kind(f"{name}={reprlib.repr(value)}: must be {allowed}")


def whole(
    name: str, value: object, least: int, most: int | None = None, kind: type[PenstockError] = ConfigError
) -> int:
    """``value``, a whole number of that range. Raises ``kind`` for anything else; True is no number."""
    # A look at a protocol takes microseconds, so not of what everybody passes.
    if type(value) is int or (isinstance(value, SupportsIndex) and not isinstance(value, bool)):
        number = value.__index__()
        if least <= number and (most is None or number <= most):
            return number
    raise wrong(name, value, f"a whole number, {f'{least} or more' if most is None else f'{least}..{most}'}", kind)


def offset(name: str, value: object) -> int:
    """``value``, an offset. Raises InvalidArgument for anything else."""
    return whole(name, value, 0, OFFSET_MAX, InvalidArgument)


def seconds(name: str, value: Any, most_s: float, *, has_zero: bool = False) -> float:
    """``value``, a length of time up to ``most_s``. Raises ConfigError for anything else."""
    return number(name, value, most_s, "seconds", has_zero=has_zero)


def number(name: str, value: Any, most: float, unit: str, *, has_zero: bool = False) -> float:
    """``value``, a number of that unit up to ``most``. Raises ConfigError for anything else; NaN is no number."""
    is_number = isinstance(value, (int, float, Real)) and not isinstance(value, bool)  # NumPy's are Real
    if is_number and (value > 0 or (has_zero and value == 0)) and value <= most:
        return float(value)
    raise wrong(name, value, f"a number, {'0 or more' if has_zero else 'above 0'} and at most {most:g} {unit}")


def flag(name: str, value: object, kind: type[PenstockError] = ConfigError) -> bool:
    """``value``, True or False, also NumPy's. Raises ``kind`` for anything else: None is no answer."""
    if value is True or value is False:
        return value
    import numpy as np  # not at the top: this is loaded with the package, which comes without it

    if isinstance(value, np.bool_):
        return bool(value)
    raise wrong(name, value, "True or False", kind)


def several(name: str, value: Any, what: str, kind: type[PenstockError] = InvalidArgument) -> list[Any]:
    """The items of ``value``. Raises ``kind`` for what is no list, or is one thing: a text, bytes, a mapping."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, bytearray, memoryview, Mapping)):
        raise wrong(name, value, what, kind)
    return list(value)


def client_id(value: object) -> str:
    """``value``, a client id. Raises ConfigError for anything else."""
    if isinstance(value, str) and value and value.isprintable():  # half of a surrogate pair is not
        return value
    raise wrong("client_id", value, "printable text")


def queues(value: Any) -> list[MessageQueue]:
    """``value``, queues. Raises InvalidArgument for anything else."""
    return [queue(each) for each in several("queues", value, "a list of MessageQueue")]


def queue(value: Any) -> MessageQueue:
    """``value``, a queue, or a tuple of its parts. Raises InvalidArgument for anything else."""
    parts = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(parts) == 3 and isinstance(parts[0], str) and isinstance(parts[1], str):
        name = f"queue_id of topic {parts[0][:100]} at broker {parts[1][:100]}"
        return MessageQueue(parts[0], parts[1], whole(name, parts[2], 0, _QUEUE_ID_MAX, InvalidArgument))
    raise wrong("queue", value, "a MessageQueue: topic, broker name, queue id", InvalidArgument)


def messages(value: Any) -> Iterable[MessageView]:
    """``value``, a message that was received or several. Raises InvalidArgument for anything else."""
    what = "a message that was received, or a list of such"
    found = [value] if isinstance(value, MessageView) else several("message", value, what)
    for each in found:
        if not isinstance(each, MessageView):
            raise wrong("message", each, what, InvalidArgument)
    return found
