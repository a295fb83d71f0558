"""Whether a slave may follow a master, and from where: the checks of Hello, and of Welcome.

Two logs of one broker group may only be joined when the slave's is the beginning of the master's. Three things
say that it is not: it ends beyond the master's end, its epochs part from the master's before its end, or its
last bytes differ from the master's at the same place.
"""

from __future__ import annotations

import zlib

from penstock.proto.errors import InvalidArgument, NotMaster, WrongCluster, WrongStore
from penstock.proto.wire import common_pb2

from .epochs import EpochHistory, common_end
from .frames import TAIL_BYTES_MAX, Hello, Welcome, epochs_of
from .interfaces import ReplicaLog

ADDRESS_LENGTH_MAX = 255
INSTANCE_LENGTH_MAX = 64


def name_of(identity: common_pb2.BrokerIdentity) -> str:
    """A broker as messages call it."""
    return f"{identity.broker_name}:{identity.broker_id}"


def is_empty(log: ReplicaLog) -> bool:
    """Whether the log holds no byte, wherever it begins."""
    return log.min_offset == log.end_offset


def tail_of(log: ReplicaLog, end: int) -> tuple[int, int]:
    """Length and CRC-32 of the last bytes below ``end``, of one file and at most 64 KiB."""
    if end <= log.min_offset:
        return 0, 0
    file_start = (end - 1) // log.segment_bytes * log.segment_bytes
    start = max(file_start, log.min_offset, end - TAIL_BYTES_MAX)
    view = log.read_bytes(start, end - start)
    assert len(view) == end - start, f"read {len(view)} of {end - start} bytes at {start}"
    return len(view), zlib.crc32(view)


def check_peer(own: common_pb2.BrokerIdentity, peer: common_pb2.BrokerIdentity) -> None:
    """Refuse a peer that is no other member of the same broker group.

    Raises:
        WrongCluster: with what differs.
    """
    if peer.cluster != own.cluster:
        raise WrongCluster(
            f"{name_of(own)} belongs to cluster {own.cluster!r}, its peer {_shown(name_of(peer))} to "
            f"{_shown(peer.cluster)}: check brokerClusterName and the address"
        )
    if peer.broker_name != own.broker_name:
        raise WrongCluster(
            f"{name_of(own)} was asked to replicate with {_shown(name_of(peer))} of another broker group: "
            "check brokerName and the address"
        )
    if peer.broker_id == own.broker_id:
        raise WrongCluster(f"two brokers call themselves {name_of(own)}: give one of them another brokerId")
    if peer.broker_id < 0:
        raise InvalidArgument(f"broker id {peer.broker_id} of {_shown(peer.broker_name)}: must not be negative")


def starting_offset(hello: Hello, own: common_pb2.BrokerIdentity, epochs: EpochHistory, log: ReplicaLog) -> int:
    """Where the stream to this slave begins.

    An empty slave begins at the master's minimum, any other where its own log ends.

    Raises:
        WrongCluster: the slave is no other member of this broker group.
        NotMaster: the slave has seen a later epoch than this master's.
        WrongStore: its log is no beginning of this one, or ends before this one's minimum.
        InvalidArgument: the hello contradicts itself.
    """
    check_peer(own, hello.identity)
    slave, end = f"slave {name_of(hello.identity)}", hello.end_offset
    if not hello.identity.address or len(hello.identity.address) > ADDRESS_LENGTH_MAX:
        raise InvalidArgument(f"{slave}: its address must have 1..{ADDRESS_LENGTH_MAX} characters")
    if len(hello.store_instance) > INSTANCE_LENGTH_MAX:
        raise InvalidArgument(f"{slave}: its store instance must have at most {INSTANCE_LENGTH_MAX} characters")
    theirs = epochs_of(hello)
    if theirs.latest > epochs.latest:
        raise NotMaster(
            f"{slave} has seen epoch {theirs.latest}, this master's is {epochs.latest}: another master has been",
            epoch=theirs.latest,
        )
    if end == 0:
        return log.min_offset
    if end < log.min_offset:
        raise WrongStore(
            f"{slave} ends at {end}, before the master's minimum {log.min_offset}: wipe the slave's store, "
            "it will start over from there",
            slave_end=end,
            master_min=log.min_offset,
        )
    if end > log.end_offset:
        raise _diverged(slave, end, log.end_offset, f"beyond the master's end {log.end_offset}")
    if theirs.entries and epochs.entries:
        common = common_end(epochs, log.end_offset, theirs, end)
        if common is None or common < end:
            where = "nowhere" if common is None else f"only up to {common}"
            raise _diverged(slave, end, log.end_offset, f"and agrees with the master's epochs {where}")
    _check_tail(hello, slave, log)
    return end


def check_welcome(welcome: Welcome, own: common_pb2.BrokerIdentity, log: ReplicaLog) -> None:
    """The slave's side: refuse a master that does not fit.

    Raises:
        WrongCluster: the peer is no other member of this broker group.
        WrongStore: its files have another size.
        InvalidArgument: it would begin elsewhere than this log ends.
    """
    check_peer(own, welcome.identity)
    if welcome.segment_bytes != log.segment_bytes:
        raise WrongStore(
            f"master {name_of(welcome.identity)} writes log files of {welcome.segment_bytes} bytes, this slave of "
            f"{log.segment_bytes}: set mappedFileSizeCommitLog to the same value and start with an empty store"
        )
    start = welcome.start_offset
    if is_empty(log):
        if start < 0 or start % log.segment_bytes:
            raise InvalidArgument(f"master {name_of(welcome.identity)} begins at {start}: that is no file's start")
    elif start != log.end_offset:
        raise InvalidArgument(
            f"master {name_of(welcome.identity)} begins at {start}, this slave's log ends at {log.end_offset}"
        )


def _check_tail(hello: Hello, slave: str, log: ReplicaLog) -> None:
    if hello.tail_bytes > min(TAIL_BYTES_MAX, hello.end_offset):
        raise InvalidArgument(f"{slave}: tail of {hello.tail_bytes} bytes, at most {TAIL_BYTES_MAX} are compared")
    start = hello.end_offset - hello.tail_bytes
    if hello.tail_bytes == 0 or start < log.min_offset:
        return
    view = log.read_bytes(start, hello.tail_bytes)
    if len(view) != hello.tail_bytes or zlib.crc32(view) != hello.tail_crc:
        raise _diverged(slave, hello.end_offset, log.end_offset, f"and its bytes from {start} on are not the master's")


def _diverged(slave: str, slave_end: int, master_end: int, how: str) -> WrongStore:
    return WrongStore(
        f"{slave} has another history: its log ends at {slave_end} {how}; nothing was copied. Keep both stores for "
        f"inspection; wiping the slave's makes it follow this master, whose log ends at {master_end}",
        slave_end=slave_end,
        master_end=master_end,
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 64 else text[:61] + "...")
