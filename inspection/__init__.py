"""Looks at store directories, of Penstock and of RocketMQ, without a broker and without writing to them.

:func:`list_store` finds the files; :func:`verify`, :func:`summarize`, :class:`StoreQuery`, :func:`dump` and
:func:`rebuild` read them. Imported lazily by whoever needs it: the kernels load Numba.
"""

from .directory import StoreDirectory, list_store
from .dump import dump
from .messages import message_document
from .query import StoreQuery
from .rebuild import rebuild
from .summary import summarize
from .verify import Verification, verify

__all__ = [
    "StoreDirectory",
    "StoreQuery",
    "Verification",
    "dump",
    "list_store",
    "message_document",
    "rebuild",
    "summarize",
    "verify",
]
