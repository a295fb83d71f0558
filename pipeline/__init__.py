"""Spark jobs and data sources over topics and stored logs; needs the extra ``penstock-mq[spark]`` and Java 17.

:func:`register` makes ``format("penstock_store")`` and ``format("penstock")`` known to a session that the caller made;
:func:`session` makes one with the settings that these sources want. :func:`topic` reads what is wanted of a topic,
:func:`decoded` and :func:`encoded` make columns of bodies with a schema and such bodies of columns, and :func:`behind`
and :func:`lag` tell how far a running query is behind. Everything else runs through ``penstock pipeline NAME``. Names
are loaded when first used: importing this package imports no Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .schemas.bodies import decoded as decoded
    from .schemas.bodies import encoded as encoded
    from .spark.registration import register as register
    from .spark.sessions import session as session
    from .topics.read.frames import topic as topic
    from .topics.read.lag import behind as behind
    from .topics.read.lag import lag as lag

_PLACES = {
    "behind": ".topics.read.lag",
    "decoded": ".schemas.bodies",
    "encoded": ".schemas.bodies",
    "lag": ".topics.read.lag",
    "register": ".spark.registration",
    "session": ".spark.sessions",
    "topic": ".topics.read.frames",
}

__all__ = ["behind", "decoded", "encoded", "lag", "register", "session", "topic"]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .requirements import require_spark

    require_spark()
    return getattr(importlib.import_module(place, __name__), name)
