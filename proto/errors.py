"""Every error that Penstock raises on purpose, and their codes on the wire.

::

    PenstockError
    ├─ Retryable        try again, perhaps elsewhere; nothing was stored
    │  ├─ BrokerUnavailable · NotMaster · FlowControl · NotEnoughReplicas
    │  ├─ NameserverUnavailable · RouteNotFound
    │  └─ CommitRefused · StaleRegister · CoordinatorUnavailable · NotCurrent
    ├─ OutcomeUnknown   a send that may or may not be stored: FlushTimeout · ReplicaTimeout · LaneForgotten
    ├─ Refused          never stored; trying again unchanged is useless
    │  ├─ InvalidName · InvalidArgument · MessageTooLarge · CorruptBatch · StaleProducer · ChangedBatch
    │  ├─ TopicNotFound · GroupNotFound · TopicExists · MessageNotFound · KeyNotFound
    │  ├─ OffsetOutOfRange · StagedDataGone · LimitReached · TransactionEnded
    │  └─ Unauthorized · Forbidden · WrongCluster
    ├─ DeliveryFailed   what a flush could not deliver
    ├─ DataLoss         messages that a stored position stands for are gone
    ├─ ConfigError      a configuration file or option (exit code 2)
    └─ StorageError
       ├─ StoreLocked · Corrupt (DamagedRecord) · DiskFull · SyncFailed · StoreClosed
       └─ WrongStore

This module alone knows the codes. A server ends a call with the error's gRPC status and puts code and
details into the trailing metadata (``penstock-error-bin``); :func:`from_rpc_error` makes the same error again.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

import grpc
from grpc import StatusCode as Status

from .handshakes import handshake_hint

METADATA_KEY = "penstock-error-bin"
_BY_CODE: dict[int, type[PenstockError]] = {}


class PenstockError(Exception):
    """Base of all. ``str(error)`` names the object, the value seen and what to do; "Do:" goes into the reference."""

    code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False
    grpc_status: ClassVar[Status] = Status.INTERNAL

    def __init_subclass__(
        cls, *, code: int | None = None, status: Status | None = None, retryable: bool | None = None
    ) -> None:
        """What is not given is as in the class above; ``code``: its number on the wire."""
        super().__init_subclass__()
        if code is not None:
            cls.code, _BY_CODE[code] = code, cls
        cls.grpc_status = status or cls.grpc_status
        cls.retryable = cls.retryable if retryable is None else retryable

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message, self.details = message, details


class Retryable(PenstockError, code=10, status=Status.UNAVAILABLE, retryable=True):
    """Not done now; the same request may succeed later or at another broker. Nothing was stored.

    Do: try again, later or elsewhere; clients do so themselves until their time-out.
    """


class BrokerUnavailable(Retryable, code=11):
    """The broker cannot be reached or is shutting down.

    Do: see whether the broker runs and can be reached at the address in the message; then again.
    """


class NotMaster(Retryable, code=12, status=Status.FAILED_PRECONDITION):
    """A write reached a broker that is not the master of its group.

    Do: nothing as a client, it looks up the master by itself; ``Admin.cluster()`` shows all roles.
    """


class FlowControl(Retryable, code=13, status=Status.RESOURCE_EXHAUSTED):
    """A limit of the server is reached for the moment.

    Do: send slower or with fewer clients, or look at what the message names as full.
    """


class NotEnoughReplicas(Retryable, code=14):
    """Fewer in-sync replicas than ``inSyncReplicas`` demands.

    Do: bring slaves back, or see ``inSyncReplicas`` and ``enableAutoInSyncReplicas``.
    """


class NameserverUnavailable(Retryable, code=15):
    """No nameserver of the list answers.

    Do: check the addresses and that a nameserver runs there.
    """


class RouteNotFound(Retryable, code=16):
    """No living broker serves the topic now.

    Do: bring a broker of the topic back; producers and consumers wait for it by themselves.
    """


class CommitRefused(Retryable, code=17, status=Status.FAILED_PRECONDITION):
    """An offset commit for a queue that the consumer does not own (any more).

    Do: nothing: who owns the queue now goes on from the last commit, and some messages come twice.
    """


class StaleRegister(Retryable, code=19, status=Status.ABORTED):
    """A broker group's register changed since it was read: read it again and decide anew.

    Do: nothing: brokers and nameservers read it again by themselves.
    """


class CoordinatorUnavailable(Retryable, code=24):
    """The coordinator store cannot be read or written now; nothing was changed, or nobody knows.

    Do: bring the nameserver with the coordinator, or etcd, back; running shards go on meanwhile.
    """


class NotCurrent(Retryable, code=25):
    """A broker was asked what consumers have committed, and may lack what its group has acknowledged.

    Do: nothing, clients ask again until there is a master; where none comes, bring a broker of the sync-state set back.
    """


class BufferFull(Retryable, code=18, status=Status.RESOURCE_EXHAUSTED):
    """A producer's buffer stayed full for the whole time-out; nothing was accepted.

    Do: produce slower, raise ``buffer_bytes``, or find out why brokers do not take what is there.
    """


class OutcomeUnknown(PenstockError, code=20, status=Status.DEADLINE_EXCEEDED, retryable=True):
    """The send may be stored or not: until its time-out it was repeated as the same message, without an answer.

    Do: give calls more time, since a second ``send`` is another message; look for this one by its key first.
    """


class FlushTimeout(OutcomeUnknown, code=21):
    """Stored; the disk did not confirm in time.

    Do: look at the disk's sync times; ``syncFlushTimeout`` is the limit.
    """


class ReplicaTimeout(OutcomeUnknown, code=22):
    """Stored; the replicas did not confirm in time.

    Do: look at slaves and network; ``slaveTimeout`` is the limit.
    """


class LaneForgotten(OutcomeUnknown, code=23):
    """A batch was sent again, and the broker has forgotten what its producer's lane stored: perhaps this batch too.

    Do: look for the message by its key before sending it anew; raise ``maxProducerLanes`` if it comes often.
    """


class Refused(PenstockError, code=30, status=Status.INVALID_ARGUMENT):
    """Not done and not stored; the request itself must change.

    Do: change the request as the message says.
    """


class InvalidName(Refused, code=31):
    """A topic, group, broker or client name breaks the rules of :mod:`penstock.proto.names`.

    Do: use letters, digits and the other characters that the message lists.
    """


class InvalidArgument(Refused, code=32):
    """A value is out of its range or of the wrong form.

    Do: use a value of the range that the message names.
    """


class MessageTooLarge(Refused, code=33):
    """Body, properties or batch above the limit.

    Do: send less at once, or raise ``maxMessageSize`` and ``body_bytes_max``.
    """


class CorruptBatch(Refused, code=34):
    """A record batch breaks the record layout or a checksum; ``details['index']`` is the first bad record.

    Do: look for a defect of network or memory if it comes again: batches are made by the client.
    """


class StaleProducer(Refused, code=35, status=Status.FAILED_PRECONDITION):
    """A producer epoch older than the newest seen: another instance has taken over.

    Do: end the older instance, or give each a name of its own.
    """


class TopicNotFound(Refused, code=36, status=Status.NOT_FOUND):
    """No such topic, and it may not be created automatically.

    Do: make it, ``penstock topic create``, or mend the name.
    """


class GroupNotFound(Refused, code=37, status=Status.NOT_FOUND):
    """No such consumer group.

    Do: mend the name; consumers make groups by joining, or ``penstock group create``.
    """


class TopicExists(Refused, code=38, status=Status.ALREADY_EXISTS):
    """The topic exists with another shape.

    Do: ``penstock topic update`` changes it.
    """


class MessageNotFound(Refused, code=39, status=Status.NOT_FOUND):
    """No message at that offset or of that id.

    Do: see whether retention has deleted it, or whether id, queue and offset are right.
    """


class OffsetOutOfRange(Refused, code=40, status=Status.OUT_OF_RANGE):
    """An offset outside ``[min, max]`` of its queue.

    Do: use an offset of the range that the message names.
    """


class Unauthorized(Refused, code=41, status=Status.UNAUTHENTICATED):
    """No or wrong credentials.

    Do: give the client credentials that the cluster knows (``PENSTOCK_CREDENTIALS_FILE``).
    """


class Forbidden(Refused, code=42, status=Status.PERMISSION_DENIED):
    """The principal may not do this.

    Do: use another topic or group, or change its permission, as the message says.
    """


class WrongCluster(Refused, code=43, status=Status.FAILED_PRECONDITION):
    """A peer of another cluster or broker group, or a second broker with the same name and id.

    Do: give each broker its own name and id, and ``brokerClusterName`` of its cluster.
    """


class KeyNotFound(Refused, code=44, status=Status.NOT_FOUND):
    """No such key in the key-value configuration.

    Do: mend namespace or key: ``penstock kv list``.
    """


class ClientClosed(Refused, code=45, status=Status.CANCELLED):
    """The producer, consumer or admin was closed; make a new one.

    Do: make a new client; do not close one that other threads still use.
    """


class LimitReached(Refused, code=46, status=Status.RESOURCE_EXHAUSTED):
    """A limit on what clients may make a broker hold; the message names its key. Nothing was changed.

    Do: remove what is not needed any more, ask for less at once, or raise the limit: see the page of limits.
    """


class ChangedBatch(Refused, code=49, status=Status.FAILED_PRECONDITION):
    """A sequence, or a writer's batch, is used again for other messages than it stands for.

    Do: let a repeated batch have the same rows in the same order, or use exactly-once.
    """


class StagedDataGone(Refused, code=48, status=Status.FAILED_PRECONDITION):
    """What an exactly-once writer staged is not there any more, so it can be neither decided nor published.

    Do: start the query again from its checkpoint; raise ``transactionTimeoutMs`` if the data came too late.
    """


class TransactionEnded(Refused, code=51, status=Status.FAILED_PRECONDITION):
    """A transaction was decided otherwise before, as a commit after a rollback, or nobody knows any more how.

    Do: see ``details["state"]``; a message that is still wanted is sent again in another transaction.
    """


class MessageTypeConflict(Refused, code=52):
    """A topic takes messages of one type (``message.type``), and this is another.

    Do: send it as the message says, or to another topic; ``penstock topic update T --type MIXED`` lets it take all.
    """


class InvalidReceipt(Refused, code=55):
    """A receipt of a simple consumer that is none, or that no broker of its group has given out.

    Do: acknowledge with the message that was received, or its ``receipt``, in the group that received it.
    """


class ReceiptExpired(InvalidReceipt, code=56, status=Status.FAILED_PRECONDITION):
    """A receipt of a simple consumer whose time is over, or that was replaced by a change of its time.

    Do: nothing: the message comes again; receive with a longer ``invisible_s``, or ``change_invisible`` in time.
    """


class DataLoss(PenstockError, code=90):
    """Messages that were to be read are not there any more.

    Do: decide whether to go on without them: ``failOnDataLoss=false`` in Spark.
    """


class DeliveryFailed(PenstockError, code=50):
    """A flush ended with messages that are not acknowledged.

    ``refused`` and ``unknown`` list :class:`penstock.client.FailedDelivery` entries (topic, count, error).

    Do: look at ``refused`` (not stored: send again) and ``unknown`` (may be stored).
    """

    def __init__(self, message: str, *, refused: list[Any] | None = None, unknown: list[Any] | None = None) -> None:
        super().__init__(message)
        self.refused, self.unknown = refused or [], unknown or []


class ConfigError(PenstockError, code=60):
    """A configuration file, key, value or option is wrong; nothing was started.

    Do: mend the file, line and key, or the option, that the message names.
    """


class StorageError(PenstockError, code=70):
    """The store cannot do what was asked.

    Do: look at the broker's log and disk.
    """


class StoreLocked(StorageError, code=71):
    """Another process has the store open.

    Do: end the other process, whose id the message has, or use another directory.
    """


class Corrupt(StorageError, code=72):
    """Bytes on disk are not what was written; they are kept for inspection.

    Do: ``penstock store verify`` shows all; restore from a replica, or ``penstock store rebuild``.
    """


class DamagedRecord(Corrupt, code=77):
    """One record of a queue cannot be read.

    ``details``: ``topic``, ``broker_name``, ``queue_id``, ``offset``, and ``next_offset`` to go on from.

    Do: ``seek`` to ``next_offset``, or ``skip_damaged=True``; restore the broker from a replica.
    """


class DiskFull(StorageError, code=73, status=Status.RESOURCE_EXHAUSTED, retryable=True):
    """No space for the next file; nothing was written, reads go on.

    Do: make room, or let retention delete more (``fileReservedTime``).
    """


class SyncFailed(StorageError, code=74):
    """The disk failed a sync; the store acknowledges nothing any more. Fatal.

    Do: replace the disk; the broker has stopped, and its shard has elected another master.
    """


class StoreClosed(StorageError, code=75, status=Status.UNAVAILABLE, retryable=True):
    """The store is closed or closing.

    Do: wait for the broker to start again.
    """


class WrongStore(StorageError, code=76):
    """The directory belongs to another broker, or was written with other file sizes.

    Do: use the directory's own broker, name and file sizes, or an empty directory.
    """


def to_bytes(error: PenstockError) -> bytes:
    """``error`` for :func:`from_bytes` at the other end."""
    return json.dumps({"code": error.code, "message": error.message, "details": error.details}, default=str).encode()


def from_bytes(data: bytes) -> PenstockError:
    """The error that :func:`to_bytes` wrote; a plain :class:`PenstockError` if its code is unknown."""
    document = json.loads(data)
    made = (kind := _BY_CODE.get(document["code"], PenstockError)).__new__(kind)
    PenstockError.__init__(made, document["message"], **document["details"])
    return made


def from_rpc_error(error: grpc.RpcError, peer: str) -> PenstockError:
    """The :class:`PenstockError` that the server at ``peer`` ended the call with.

    A call that broke without the server's word becomes :class:`OutcomeUnknown` after a deadline and
    :class:`BrokerUnavailable` otherwise; the caller decides what that means for what it sent.
    """
    call: Any = error  # what gRPC raises is also the call; its type stubs do not say so
    metadata = dict((call.trailing_metadata() if hasattr(call, "trailing_metadata") else None) or ())
    if METADATA_KEY in metadata:
        return from_bytes(metadata[METADATA_KEY])
    status = call.code() if hasattr(call, "code") else Status.UNKNOWN
    detail = call.details() if hasattr(call, "details") else str(error)
    if status == Status.DEADLINE_EXCEEDED:
        return OutcomeUnknown(f"{peer}: no answer within the time-out", status=status.name)
    told = f"{peer}: {status.name.lower()}: {handshake_hint(str(detail))}{detail}"
    return BrokerUnavailable(told, status=status.name)
