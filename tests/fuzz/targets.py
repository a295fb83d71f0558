"""What is fuzzed: functions that take any bytes, and let only the errors through that they promise."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from penstock.broker.config import load_broker_config
from penstock.broker.core.tables.producers import mark_of
from penstock.broker.store.filter.condition_kernels import DAMAGED, NO, YES
from penstock.broker.store.filter.conditions import Condition
from penstock.formats import checkpoint, epochs, trace
from penstock.formats.record.compression import decompress
from penstock.formats.record.kernels import ROW, PlaceStatus, place_batch, scan
from penstock.formats.record.layout import Host, Record, decode_record, encode_record
from penstock.formats.record.producer_mark import mark_property
from penstock.formats.record.properties import decode_properties, encode_properties
from penstock.nameserver.config import load_nameserver_config
from penstock.proto import frames
from penstock.proto.errors import (
    ConfigError,
    Corrupt,
    CorruptBatch,
    InvalidArgument,
    MessageTooLarge,
    Unauthorized,
    WrongStore,
)
from penstock.proto.wire import broker_pb2, pipeline_pb2, replication_pb2
from penstock.runtime.security.signatures import AUTHORIZATION, DATE_TIME, claim_of
from tests.support import golden

TOPIC = b"orders"
HEADERS = (
    broker_pb2.AppendHeader,
    broker_pb2.FetchHeader,
    broker_pb2.FetchReply,
    pipeline_pb2.StageHeader,
    replication_pb2.ReplicaReport,
    replication_pb2.ReplicationHeader,
)


@dataclass(frozen=True, slots=True)
class Target:
    """``check(data)`` raises where something is wrong; ``seeds`` are where the search begins."""

    check: Callable[[bytes], None]
    seeds: Sequence[bytes]
    bytes_max: int = 4096


def _record(data: bytes) -> None:
    """The decoder in Python and the kernel take the same bytes for a record, and read the same in it."""
    rows = np.empty(1, ROW)
    count, end, _ = scan(np.frombuffer(data, np.uint8), 0, len(data), -1, False, rows)
    try:
        record = decode_record(data)
    except Corrupt:
        assert count == 0, "the kernel reads what the decoder refuses"
        return
    assert count == 1, "the kernel refuses what the decoder reads"
    row = rows[0]
    assert (row["queue_id"], row["queue_offset"], row["body_size"]) == (
        *(record.queue_id, record.queue_offset),
        len(record.body),
    )
    assert data[end - len(record.properties) : end] == record.properties
    decode_properties(record.properties)
    with contextlib.suppress(InvalidArgument):
        again = decode_record(encode_record(record))
        assert (again.body, again.properties, again.queue_offset) == (
            *(record.body, record.properties),
            record.queue_offset,
        )


def _batch(data: bytes) -> None:
    """What is placed reads back as records of its topic; of what is refused nothing is left in the log."""
    log = np.zeros(len(data) + 64, np.uint8)
    offsets, seen = np.zeros(8, np.int64), np.zeros(8, np.int64)
    touched, touched_offsets = np.zeros(8, np.int32), np.zeros(8, np.int64)
    host = np.frombuffer(Host.parse("10.0.0.1:10911").encode(), np.uint8)
    topic = np.frombuffer(TOPIC, np.uint8)
    with contextlib.suppress(CorruptBatch, MessageTooLarge):
        mark_of(memoryview(data))
    status, _, count, _ = place_batch(
        *(np.frombuffer(data, np.uint8), log, 0, 0, 1_700_000_000_000, host, topic, offsets, 1, seen),
        *(4096, touched, touched_offsets, -1, False),
    )
    if status != PlaceStatus.OK:
        assert not log.any(), "refused, and bytes are left"
        assert not offsets.any(), "refused, and queue offsets are used up"
        return
    rows = np.empty(count + 1, ROW)
    found, end, _ = scan(log, 0, len(data), 0, True, rows)
    assert (found, end) == (count, len(data))
    assert offsets.sum() == count


def _properties(data: bytes) -> None:
    """What is decoded encodes to what decodes the same."""
    found = decode_properties(data)
    with contextlib.suppress(InvalidArgument):
        assert decode_properties(encode_properties(found)) == found


def _trace(data: bytes) -> None:
    """What is read of a trace message is written as what is read the same."""
    found = trace.decode(data)
    assert trace.decode("".join(map(trace.encoded, found)).encode()) == found
    assert sum(count for _, _, count in trace.packed(found)) == len(found)


def _frame(data: bytes) -> None:
    for header_type in HEADERS:
        with contextlib.suppress(InvalidArgument):
            header, body = frames.unpack(data, header_type)
            again, same = frames.unpack(frames.pack(header, body), header_type)
            assert (again, bytes(same)) == (header, bytes(body))


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="penstock-fuzz-")


def _configuration(data: bytes) -> None:
    path = Path(_folder().name, "any.conf")
    path.write_bytes(data)
    path.chmod(0o600)
    for load in (load_broker_config, load_nameserver_config):
        with contextlib.suppress(ConfigError):
            load(path)


@cache
def _judged() -> tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], list[int], list[int]]:
    """Records with properties that conditions are asked of."""
    kinds = [{}, {"a": "1"}, {"a": "-2.5e3", "b": "x"}, {"a": "true", "b": "é", "TAGS": "t"}, {"a": "9" * 30}]
    encoded = [encode_record(Record(topic="orders", body=b"x", properties=encode_properties(each))) for each in kinds]
    starts = list(itertools.accumulate(map(len, encoded), initial=0))[:-1]
    return np.frombuffer(b"".join(encoded), np.uint8), starts, [len(each) for each in encoded]


def _condition(data: bytes) -> None:
    """A condition is refused, or says of each record that it fits or does not."""
    try:
        condition = Condition(data.decode("utf-8", "replace"))
    except InvalidArgument:
        return
    log, positions, sizes = _judged()
    verdicts = condition.judge(log, np.array(positions, np.int64), np.array(sizes, np.int32))
    assert len(verdicts) >= 1
    assert set(verdicts.tolist()) <= {YES, NO}, f"of whole records none is {DAMAGED}"


def _small_files(data: bytes) -> None:
    with contextlib.suppress(Corrupt):
        found = epochs.decode(data, "epochs")
        assert epochs.decode(epochs.encode(found), "epochs") == found
    if len(data) >= checkpoint.FIELDS_BYTES:
        with contextlib.suppress(WrongStore):
            checkpoint.decode_own(data, checkpoint.Standard.decode(data), "own")


def _compressed(data: bytes) -> None:
    if data:
        flags = (data[0] & 7) << 8 | (data[0] >> 3 & 1)
        with contextlib.suppress(Corrupt, MessageTooLarge):
            assert len(decompress(data[1:], flags, 1 << 16)) <= 1 << 16


def _signature(data: bytes) -> None:
    header, _, date = data.decode("utf-8", "replace").partition("\n")
    with contextlib.suppress(Unauthorized):
        claim_of(((AUTHORIZATION, header), (DATE_TIME, date)), 1_700_000_000.0).is_proven_by("secret")


def _records_of_golden() -> list[bytes]:
    found = []
    for name in ("direct", "normal"):
        for start, data in golden.log_files(name).items():
            for message in golden.expected(name)["messages"][:40]:
                at = message["physicalOffset"] - start
                if 0 <= at < len(data):
                    found.append(data[at : at + int.from_bytes(data[at : at + 4], "big")])
    return [each for each in found if len(each) <= 2048]


def _batches() -> list[bytes]:
    mark = mark_property(1, 2, 3, 4, 1)
    kinds = ({"topic": "orders"}, {"topic": "orders", "properties": mark}, {"topic": "other"})
    single = [encode_record(Record(body=b"body", **each)) for each in kinds]  # type: ignore[arg-type]
    return [*single, single[0] * 3, b""]


CONDITIONS = (
    "a > 1 AND b = 'x' OR NOT (a BETWEEN -1 AND 2.5)",
    "a IS NULL OR b IS NOT NULL",
    "b IN ('x', 'y') AND b NOT IN ('z')",
    "a = TRUE AND a <> FALSE",
    "b CONTAINS 'x' OR b STARTSWITH 'y' OR b NOT ENDSWITH 'z'",
    "-a + 1 * 2 / 3 - 4 >= 1e5",
)
SETTINGS = (
    b"brokerClusterName = DefaultCluster\nbrokerName=a\nbrokerId:0\nflushDiskType = SYNC_FLUSH\n",
    b"# x\n! y\nlistenPort = 10911\nfileReservedTime=72\ndeleteWhen=04\nstorePathCommitLog=/a,/b\n",
    b"namesrvAddr=127.0.0.1:9876;127.0.0.1:9877\r\ntls.server.mode=enforcing\r\n",
    b'innerClientAuthenticationCredentials={"accessKey":"a","secretKey":"b"}\nauthenticationEnabled=true\n',
    b"enableDLegerCommitLog=true\nignoreUnsupported=enableDLegerCommitLog\nmessageDelayLevel=1s 5s\n",
    b"enableControllerInNamesrv=true\ncontrollerType=ETCD\netcdEndpoints=127.0.0.1:2379\n",
)
SIGNATURE = "MQv2-HMAC-SHA1 Credential=a/b, SignedHeaders=x-mq-date-time, Signature=" + "0" * 40

TRACES = (
    trace.Pub(1, "r", "g", "t", "ID", "a", "k l", "10.0.0.1:1", 2, 3, 0, "OFF", True),
    trace.SubBefore(1, "r", "g", "R", "ID", 0, "k"),
    trace.SubAfter("R", "ID", 2, False, "k", 4, 1, "g"),
    trace.EndTransaction(1, "r", "g", "t", "ID", "", "", "", 2, "T", "COMMIT_MESSAGE", False),
    trace.Recall(1, "r", "g", "t", "ID", True),
)

TARGETS = {
    "record": Target(_record, _records_of_golden()),
    "batch": Target(_batch, _batches()),
    "properties": Target(_properties, [b"TAGS\x01a\x02KEYS\x01b c\x02", mark_property(1, 2, 3, 4, 5, 6)]),
    "trace": Target(_trace, [trace.encoded(each).encode() for each in TRACES]),
    "frame": Target(_frame, [frames.pack(each(), b"body") for each in HEADERS]),
    "configuration": Target(_configuration, SETTINGS),
    "condition": Target(_condition, [each.encode() for each in CONDITIONS], 512),
    "small_files": Target(
        _small_files, [epochs.encode([epochs.Epoch(1, 0), epochs.Epoch(2, 100)]), bytes(4096), b"penstock" * 40]
    ),
    "compressed": Target(_compressed, [bytes([0x0B]) + b"\x78\x9c\x03\x00\x00\x00\x00\x01", b"\x0a", b"\x09x"]),
    "signature": Target(_signature, [f"{SIGNATURE}\n20231114T221320Z".encode()], 512),
}
