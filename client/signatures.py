"""Signatures that several functions share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def taking(
    method: Callable[Concatenate[Any, P], object],
) -> Callable[[Callable[..., R]], Callable[Concatenate[Any, P], R]]:
    """A decorator: what it decorates has the parameters of ``method``, for callers, editors and type checkers.

    So a function that passes its arguments on need not name them; without a docstring it has that of ``method``.
    """

    def decorate(passing: Callable[..., R]) -> Callable[Concatenate[Any, P], R]:
        answer = inspect.signature(passing).return_annotation
        made = functools.update_wrapper(passing, method, assigned=() if passing.__doc__ else ("__doc__",), updated=())
        signature = inspect.signature(method).replace(return_annotation=answer)  # not what ``method`` answers
        made.__signature__ = signature  # type: ignore[attr-defined]
        return made

    return decorate
