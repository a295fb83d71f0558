"""The checks of Hello and of Welcome: may a slave follow a master, and from where.

Two logs of one broker group may only be joined when the slave's is the beginning of the master's. How far they are
the same, their epochs tell (:func:`common_end`), and the last bytes before that place prove it:

| The logs agree | The slave |
|---|---|
| up to the slave's end | goes on there |
| less far, but as far as the slave knows anything acknowledged | cuts its log to that place |
| less far than that, with a master that has everything acknowledged on replicas | changes nothing, and says so |
| less far than that, with one elected since that promises no more than its own log | cuts it, and reports the range |
| less far than that, but its group has had an unclean election since | cuts it, and reports the range |
| only in front of the master's minimum | starts over from that minimum |
| in no epoch, or their bytes differ where the epochs are the same | changes nothing, and says so |
"""

from __future__ import annotations

import enum
import zlib

from penstock.proto.errors import InvalidArgument, NotMaster, WrongCluster, WrongStore
from penstock.proto.wire import common_pb2

from .epochs import EpochHistory, common_end
from .frames import TAIL_BYTES_MAX, Hello, Welcome, epochs_of
from .interfaces import ReplicaLog, SlaveLog

ADDRESS_LENGTH_MAX = 255
INSTANCE_LENGTH_MAX = 64


def name_of(identity: common_pb2.BrokerIdentity) -> str:
    """A broker as messages call it."""
    return f"{identity.broker_name}:{identity.broker_id}"


def is_empty(log: ReplicaLog) -> bool:
    """True if the log holds no byte, wherever it begins."""
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
    """Refuse a peer unless it is another member of the same broker group.

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


class Joining(enum.Enum):
    """How a slave's log becomes the beginning of its master's."""

    GO_ON = enum.auto()  # it is
    BEGIN = enum.auto()  # it is empty and begins where the master's does
    CUT = enum.auto()
    START_OVER = enum.auto()


def starting_offset(hello: Hello, own: common_pb2.BrokerIdentity, epochs: EpochHistory, log: ReplicaLog) -> int:
    """Where the stream to this slave begins: up to there its log is the beginning of this one.

    The master's minimum for an empty slave, and for one that agrees only with what this log no longer has.

    Raises:
        WrongCluster: the slave is no other member of this broker group.
        NotMaster: the slave has seen a later epoch than this master's.
        WrongStore: nobody can say how far its log is the beginning of this one.
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
    if hello.tail_bytes > min(TAIL_BYTES_MAX, end):
        raise InvalidArgument(f"{slave}: tail of {hello.tail_bytes} bytes, at most {TAIL_BYTES_MAX} are compared")
    if end == 0:
        return log.min_offset
    common = _agreed_end(epochs, log.end_offset, theirs, end)
    if common is None:
        raise _diverged(slave, end, log.end_offset, "and no epoch is the same as one of the master's")
    if common < log.min_offset:
        return log.min_offset
    if common == end and _tail_differs(log, end, hello.tail_bytes, hello.tail_crc):
        start = end - hello.tail_bytes
        raise _diverged(slave, end, log.end_offset, f"and its bytes from {start} on are not the master's")
    return common


def check_welcome(
    welcome: Welcome,
    own: common_pb2.BrokerIdentity,
    epochs: EpochHistory,
    log: SlaveLog,
    *,
    master_end: int,
    sync: bool,
    unclean_epoch: int = 0,
) -> Joining:
    """What a slave has to do to follow this master. Changes nothing.

    ``sync``: this slave promises, as master, that what is confirmed is on replicas. ``unclean_epoch``: in that one the
    group's register gave up what only its sync-state set had.

    Raises:
        WrongCluster: the peer is no other member of this broker group.
        NotMaster: this slave has seen a later epoch.
        WrongStore: its files have another size, or following it would cut off what this slave knows acknowledged, or
            what alone tells of older state.
        InvalidArgument: it would begin where the two logs do not agree.
    """
    check_peer(own, welcome.identity)
    master, start, end = f"master {name_of(welcome.identity)}", welcome.start_offset, log.end_offset
    if welcome.segment_bytes != log.segment_bytes:
        raise WrongStore(
            f"{master} writes log files of {welcome.segment_bytes} bytes, this slave of "
            f"{log.segment_bytes}: set mappedFileSizeCommitLog to the same value and start with an empty store"
        )
    if not 0 <= welcome.tail_bytes <= TAIL_BYTES_MAX:
        raise InvalidArgument(f"{master}: tail of {welcome.tail_bytes} bytes, at most {TAIL_BYTES_MAX} are compared")
    theirs = epochs_of(welcome)
    if theirs.latest < epochs.latest:
        raise NotMaster(
            f"{master} is master of epoch {theirs.latest}, this slave has seen {epochs.latest}", epoch=epochs.latest
        )
    if is_empty(log):
        if start < 0 or start % log.segment_bytes:
            raise InvalidArgument(f"{master} begins at {start}: that is no file's start")
        return Joining.BEGIN
    common = _agreed_end(theirs, master_end, epochs, end)
    is_given_up = epochs.latest < unclean_epoch <= theirs.latest
    if start == end and common == end:
        return Joining.GO_ON
    if common is None:
        raise _diverged(f"slave {name_of(own)}", end, master_end, "and no epoch is the same as one of the master's")
    if start > common and start % log.segment_bytes == 0 and start <= master_end:
        _check_acknowledged(welcome, own, log, common, sync=sync, is_given_up=is_given_up)
        return Joining.START_OVER
    if not log.min_offset <= start <= common:
        raise InvalidArgument(
            f"{master} begins at {start}, this slave's log ends at {end} and is the same up to {common}"
        )
    if _tail_differs(log, start, welcome.tail_bytes, welcome.tail_crc):
        raise _diverged(f"slave {name_of(own)}", end, master_end, f"and its bytes below {start} are not the master's")
    _check_acknowledged(welcome, own, log, start, sync=sync, is_given_up=is_given_up)
    if log.min_offset > welcome.min_offset and not log.keeps_state(start):
        raise WrongStore(
            f"slave {name_of(own)}: cut at {start}, its log would begin at {log.min_offset}, and neither it nor the "
            f"files in config would tell of topics, groups and offsets from before, which the log of {master} from "
            f"{welcome.min_offset} on does: empty the store, and it is copied whole"
        )
    return Joining.CUT


def _agreed_end(epochs: EpochHistory, end: int, slaves: EpochHistory, slaves_end: int) -> int | None:
    """The end of what a master's and a slave's log share. A log without a history counts as a beginning."""
    if epochs.entries and slaves.entries:
        return common_end(epochs, end, slaves, slaves_end)
    return slaves_end if slaves_end <= end else None


def _check_acknowledged(
    welcome: Welcome,
    own: common_pb2.BrokerIdentity,
    log: SlaveLog,
    agreed: int,
    *,
    sync: bool,
    is_given_up: bool,
) -> None:
    """Refuse to give up acknowledged bytes if this group promises to keep them, or if nobody has been elected.

    A master whose own log lost its end, or is empty because its disk is a new one, must not take the last copy along.
    """
    elected = agreed > 0 and any(entry.start_offset == agreed for entry in welcome.epochs)
    if agreed >= log.confirm_offset or is_given_up or (elected and not (sync or welcome.sync)):
        return
    master = f"master {name_of(welcome.identity)} of epoch {epochs_of(welcome).latest}"
    raise WrongStore(
        f"slave {name_of(own)} has [{agreed}, {log.confirm_offset}) as acknowledged, {master} has "
        "something else there, or nothing; nothing was cut off. Keep both stores: this slave's has what was "
        "acknowledged; wiping it gives that up and makes it follow this master",
        agreed=agreed,
        acknowledged=log.confirm_offset,
    )


def _tail_differs(log: ReplicaLog, end: int, tail_bytes: int, tail_crc: int) -> bool:
    """True if the log's bytes before ``end`` have another CRC. False if the log has them no longer."""
    start = end - tail_bytes
    if tail_bytes == 0 or start < log.min_offset:
        return False
    view = log.read_bytes(start, tail_bytes)
    return len(view) != tail_bytes or zlib.crc32(view) != tail_crc


def _diverged(slave: str, slave_end: int, master_end: int, how: str) -> WrongStore:
    return WrongStore(
        f"{slave} has another history: its log ends at {slave_end} {how}; nothing was changed. Keep both stores for "
        f"inspection; wiping the slave's makes it follow this master, whose log ends at {master_end}",
        slave_end=slave_end,
        master_end=master_end,
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 64 else text[:61] + "...")
