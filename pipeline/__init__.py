"""Spark jobs and data sources over topics and stored logs; needs the extra ``penstock-mq[spark]`` and Java 17.

:func:`register` makes ``format("penstock_store")`` and ``format("penstock")`` known to a session that the caller made;
:func:`session` makes one with the settings that these sources want. Everything else runs through
``penstock pipeline NAME``. Names are loaded when first used: importing this package imports no Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .spark.registration import register as register
    from .spark.sessions import session as session

_PLACES = {"register": ".spark.registration", "session": ".spark.sessions"}

__all__ = ["register", "session"]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .requirements import require_spark

    require_spark()
    return getattr(importlib.import_module(place, __name__), name)
