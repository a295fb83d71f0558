"""The storage engine: append, dispatch, read, recover. No asyncio, no gRPC."""

from .config import FlushMode, StoreConfig
from .disk import Disk
from .results import (
    AppendResult,
    DispatchResult,
    MarkedBatch,
    ReadResult,
    ReadStatus,
    RecoveryReport,
)
from .store import Store

__all__ = [
    "AppendResult",
    "Disk",
    "DispatchResult",
    "FlushMode",
    "MarkedBatch",
    "ReadResult",
    "ReadStatus",
    "RecoveryReport",
    "Store",
    "StoreConfig",
]
