"""A batch of messages as the framed message that carries it: records are laid out in the very bytes that gRPC sends."""

from __future__ import annotations

import ctypes
import functools
import time

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from penstock.proto import frames
from penstock.proto.errors import MessageTooLarge

from ..columns import Column, Listed, Repeated
from .kernels import encode_batch, encoded_bytes
from .layout import Host
from .properties import PROPERTIES_BYTES_MAX

_WRITABLE = 0x200  # PyBUF_WRITE
NOWHERE = np.empty(0, np.int64)
"""The addresses of bodies that lie end to end."""
_NOTHING = np.empty(0, np.uint8)
_memory_at = ctypes.pythonapi.PyMemoryView_FromMemory
_memory_at.restype = ctypes.py_object
_memory_at.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]


def marked(properties: Column | None, mark: bytes, count: int) -> Column:
    """The property strings of ``count`` records, the first one with the producer's ``mark`` in front."""
    if isinstance(properties, Repeated):
        ends = np.arange(1, count + 1, dtype=np.int64) * len(properties.value) + len(mark)
        return Column(np.frombuffer(mark + properties.value * count, np.uint8), ends)
    first = np.frombuffer(mark, dtype=np.uint8)
    if properties is None:
        return Column(first, np.full(count, len(mark), dtype=np.int64))
    return Column(np.concatenate([first, properties.data]), properties.ends + len(mark))


def frame_batch(
    header: Message,
    bodies: Column,
    properties: Column,
    *,
    topic: str,
    queue_ids: npt.NDArray[np.int32],
    sys_flag: int,
    born_host: Host,
) -> bytes:
    """``header`` and one record per message, born now; offsets and the storing host are the broker's to fill in.

    ``sys_flag`` says by its STORE_HOST_V6 bit how much room that host needs.
    """
    encoded_topic, host = topic_bytes(topic), host_bytes(born_host)
    addresses = bodies.addresses if isinstance(bodies, Listed) else NOWHERE
    size = encoded_bytes(
        len(queue_ids), int(bodies.ends[-1]), len(properties.data), len(encoded_topic), sys_flag, len(host)
    )
    message, address = frames.allocate(header, size)
    written = encode_batch(
        np.frombuffer(_memory_at(address, size, _WRITABLE), dtype=np.uint8),
        _NOTHING if len(addresses) else bodies.data,
        addresses,
        bodies.ends,
        properties.data,
        properties.ends,
        encoded_topic,
        queue_ids,
        sys_flag,
        0,
        time.time_ns() // 1_000_000,
        host,
    )
    if written < 0:
        index = -1 - written
        raise MessageTooLarge(
            f"message {index} of the batch cannot be laid out: its properties take {properties.lengths[index]} bytes, "
            f"at most {PROPERTIES_BYTES_MAX} are allowed",
            index=int(index),
        )
    if written != size:  # or what was in that memory before would be sent
        raise AssertionError(f"{written} bytes of records where {size} were counted")
    return message


@functools.lru_cache(maxsize=256)
def topic_bytes(topic: str) -> npt.NDArray[np.uint8]:
    """The name as kernels take it."""
    return np.frombuffer(topic.encode(), np.uint8)


@functools.lru_cache(maxsize=256)
def host_bytes(host: Host) -> npt.NDArray[np.uint8]:
    """The address as kernels take it."""
    return np.frombuffer(host.encode(), np.uint8)


def record_sizes(
    bodies: Column, properties: Column, *, topic: str, sys_flag: int, born_host: Host
) -> npt.NDArray[np.int64]:
    """The size of each record of such a batch."""
    fixed = encoded_bytes(1, 0, 0, len(topic_bytes(topic)), sys_flag, len(host_bytes(born_host)))
    sizes: npt.NDArray[np.int64] = bodies.lengths + properties.lengths + fixed
    return sizes
