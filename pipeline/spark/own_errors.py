"""Errors of ours that Spark passes on: of their own class, and told in a line.

Our sources run in other processes, so Spark knows their errors as the text of a traceback, somewhere in its own
message. :func:`install` has pyspark make them what they are: an error is of Spark's class and of ours, and says what
Spark tried, our class, cause and remedy. Spark's whole text is in ``error.getMessage()``.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

from penstock.proto import errors
from penstock.proto.errors import PenstockError

_OWN_ERROR = re.compile(r"penstock\.proto\.errors\.(\w+): (.*?)(?= SQLSTATE|\n|$)")
_TRIED = re.compile(r"\A(\[\w[\w.]*\][^\n]{0,300}?):?\s*(?:Traceback|\n|\Z)|\A([^\n]{0,120})")
_HOOK = "recover_python_exception"
"""What pyspark calls with each error that it has made of Java's, or a server's."""


def own_error(error: BaseException) -> PenstockError | None:
    """The error of ours that Spark passes on as the text of a worker's traceback; None if there is none in it."""
    if isinstance(error, PenstockError):
        return getattr(error, "ours", error)
    return _named(str(error))


def install() -> None:
    """Have pyspark raise errors of our sources as such, and queries tell of them so; once, in this process."""
    from pyspark.errors.exceptions import captured
    from pyspark.sql.streaming.query import StreamingQuery

    modules = [captured]
    with contextlib.suppress(ImportError):  # without grpcio-status there is no Spark Connect
        from pyspark.errors.exceptions import connect

        modules.append(connect)
    for module in modules:
        recover = getattr(module, _HOOK, None)
        if recover is not None and not hasattr(recover, "penstock"):
            setattr(module, _HOOK, _recovering(recover))
    if not hasattr(StreamingQuery.exception, "penstock"):
        StreamingQuery.exception = _telling(StreamingQuery.exception)


def _telling(exception: Any) -> Any:
    """``StreamingQuery.exception``, whose errors pass no hook."""
    recover = _recovering(lambda error: error)

    def told(query: Any) -> Any:
        error = exception(query)
        return None if error is None else recover(error)

    told.penstock = True  # type: ignore[attr-defined]
    return told


def _recovering(recover: Any) -> Any:
    def recovered(error: Any) -> Any:
        text = str(error)
        ours = _named(text)
        return recover(error) if ours is None else _as_ours(error, ours, text)

    recovered.penstock = True  # type: ignore[attr-defined]
    return recovered


def _as_ours(error: Any, ours: PenstockError, text: str) -> Any:
    """``error``, of its class and that of ``ours``; as it is where Python cannot make it so."""
    kind, tried = type(ours), _TRIED.match(text)
    told = f"{(tried[1] or tried[2] or '').strip() if tried else ''}: {kind.__name__}: {ours.message}".lstrip(": ")
    made = type(type(error).__name__, (type(error), kind), {"__str__": lambda _: told, "__module__": kind.__module__})
    try:
        error.__class__ = made
    except TypeError:
        return error
    error.ours, error.message, error.details = ours, ours.message, ours.details
    return error


def _named(text: str) -> PenstockError | None:
    found = _OWN_ERROR.findall(text)
    if not found:
        return None
    name, message = found[-1]
    kind = getattr(errors, name, PenstockError)
    made: PenstockError = kind.__new__(kind)
    PenstockError.__init__(made, message.strip())
    return made
