"""The steps of a broker's start before anything is served: port, store, tables."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc.aio
import numpy as np

from penstock.formats.record.layout import Host, decode_record
from penstock.formats.record.properties import decode_properties
from penstock.formats.rocketmq_config import POP_CODES, leftovers
from penstock.proto.errors import ConfigError
from penstock.runtime.channel import new_server
from penstock.runtime.data.port import DataPort
from penstock.runtime.listening import listen
from penstock.runtime.security.access import Doorkeeper

from .config import BrokerConfig, BrokerRole
from .core.feature import Feature
from .core.tables.snapshots import Snapshots
from .core.tables.tables import Tables
from .core.tables.topics import CLEANUP_POLICY, COMPACTION, deleted_topic
from .group.epoch_file import EpochFile
from .group.held_membership import MembershipFile
from .identity import check_identity, write_identity
from .store.config import FlushMode, StoreConfig
from .store.disk import named_errors
from .store.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    """The store and the tables derived from its log, up to date with what was dispatched."""

    store: Store
    tables: Tables
    epochs: EpochFile
    imported: bool  # RocketMQ wrote the tables' files: the log does not have their content yet
    instance: str = field(default_factory=lambda: uuid.uuid4().hex)  # random, of this opening


class Ports(NamedTuple):
    """What a broker listens on."""

    server: grpc.aio.Server
    number: int  # the server's port
    data: DataPort


@contextlib.asynccontextmanager
async def open_ports(config: BrokerConfig, interceptors: Sequence[Any] = ()) -> AsyncIterator[Ports]:
    """Ports that are open already and serve nothing yet, so that one in use ends the start early.

    Raises ConfigError: a port cannot be opened, or its certificate or the users cannot be read.
    """
    identity, access, tls = config.identity, config.security.access(), config.security.transport.server_tls()
    server = new_server([*interceptors, *([] if access is None else [Doorkeeper(access)])], config.limits.calls_max)
    number = listen(server, identity.bind_address, identity.listen_port, "listenPort", tls)
    data = DataPort(access, config.appends.busy_poll_us / 1e6)
    await data.open(identity.bind_address, identity.data_port, "dataPort", tls)
    async with access.following() if access is not None else contextlib.nullcontext():
        try:
            yield Ports(server, number, data)
        finally:
            data.close()
            await server.stop(None)


@contextlib.contextmanager
def open_store(config: BrokerConfig, features: Iterable[type[Feature]]) -> Iterator[Opened]:
    """The broker's store, recovered, and its tables, also those of ``features``.

    An error in the block leaves the store unclean but unlocked.

    Raises:
        ConfigError: a directory cannot be made or used.
        StoreLocked, WrongStore, Corrupt, DiskFull: as they say.
    """
    root, identity = config.store.root, config.identity
    _make_directory(root, "storePathRootDir")
    if config.store.commit_log_path:
        for directory in config.store.log_directories:
            if directory not in config.store.read_only_log_directories:
                _make_directory(Path(directory), "storePathCommitLog")
    try:
        known = check_identity(root, identity.cluster, identity.broker_name)
        MembershipFile(root).check_use(identity.broker_id, is_elected=config.replication.is_elected)
        epochs = EpochFile.open(root, is_new=not known)
        opening = replace(store_config(config), is_unclean_doubtful=_is_unclean_doubtful(config))
        store = Store.open(opening, deletes=deleted_topic)
    except OSError as error:
        raise ConfigError(
            f"storePathRootDir {root}: {error.filename or root}: {error.strerror or error}: let the broker's user read "
            "and write it, or choose another directory"
        ) from error
    try:
        with named_errors(str(root), "loading the tables"):
            _begin_epoch(config, store, epochs)
            more = (table for feature in features for table in feature.tables)
            tables = Tables(more, config.limits, lmq_enable=config.store.lmq_enable)
            opened = _load(config, store, tables, epochs, known=known)
            if not known:
                write_identity(root, identity.cluster, identity.broker_name)
        yield opened
    except BaseException:
        store.close()
        raise


def _make_directory(path: Path, key: str) -> None:
    """Make the last part of ``path`` where it is missing; more would hide a mistyped path behind an empty store."""
    try:
        path.mkdir(exist_ok=True)
    except FileNotFoundError as error:
        if path.parent.is_dir():  # as /proc, which takes none
            raise ConfigError(f"{key} {path}: cannot be made in {path.parent}: choose another directory") from error
        raise ConfigError(
            f"{key} {path}: there is no directory {path.parent} to make it in: make that one, or mend the path"
        ) from error
    except OSError as error:
        raise ConfigError(f"{key} {path}: {error.strerror or error}: choose another directory") from error


def store_config(config: BrokerConfig) -> StoreConfig:
    """The store's part of the broker's configuration, with what the broker's address and role say."""
    return replace(
        config.store,
        store_host=Host.parse(config.advertised_address),
        replicated=config.replication.is_elected or config.replication.role is not BrokerRole.ASYNC_MASTER,
        is_pooled=config.uses_transient_store_pool,
    )


def _is_unclean_doubtful(config: BrokerConfig) -> bool:
    """True if the store, should its last exit be unclean, may lack what a group counts on it for.

    That is what it acknowledged from memory before the machine booted. A store that knows of no group needs no note.
    """
    settings = config.replication
    if not (settings.is_elected and settings.is_sync) or config.store.flush_mode is FlushMode.SYNC_FLUSH:
        return False
    membership = MembershipFile(config.store.root)
    return membership.is_known and membership.has_booted_since()


def _begin_epoch(config: BrokerConfig, store: Store, epochs: EpochFile) -> None:
    """See that the history fits the log; a configured master that lost power, or was killed, begins a new epoch.

    Its log may have lost its end, which a slave has: what is appended in that place now is another epoch's.
    """
    if config.replication.role is BrokerRole.SLAVE or config.replication.is_elected:
        epochs.begin_first()
        return
    store.cut_unfinished()  # a slave that was stopped may have a part of a batch at its end: the rest will not come
    epochs.history.check_leads(store.end_offset, epochs.path)
    if not epochs.history.entries:
        epochs.begin_first()
    elif not store.recovery.clean:  # also where nothing of the newest epoch is left: a slave may have some of it
        epochs.begin(epochs.history.latest + 1, store.end_offset)


def _load(config: BrokerConfig, store: Store, tables: Tables, epochs: EpochFile, *, known: bool) -> Opened:
    started = time.monotonic()
    snapshots = Snapshots(config.store.root / "config", tables, store.flush)
    loaded = snapshots.load(store.min_offset, store.end_offset, log_has_all=known)
    deleted: set[str] = set()
    for result in store.replay(loaded.replay_from):
        deleted |= tables.take(result)
    for topic in deleted:
        if tables.topics.get(topic) is None:
            store.drop_topic(topic)  # recovery may have built its queues again
    if loaded.ahead:
        snapshots.write_anew(store.dispatched_offset)
    log.info(
        "tables loaded topics=%d groups=%d lanes=%d replay_from=%d log_end=%d seconds=%.2f",
        len(tables.topics),
        len(tables.groups),
        len(tables.producers),
        loaded.replay_from,
        store.end_offset,
        time.monotonic() - started,
    )
    if loaded.imported or not known:
        ranges = {
            (topic, queue_id): store.reader.queue_range(topic, queue_id)
            for topic, queue_ids in store.queues().items()
            for queue_id in queue_ids
        }
        for topics, count, text in leftovers(ranges, config.store.root / "config", partial(_tagged, store)):
            log.warning("taken over from RocketMQ topics=%s count=%d: %s", ",".join(topics), count, text)
        for each in tables.topics.values():
            if each.attributes.get(CLEANUP_POLICY) == COMPACTION:
                log.warning(
                    "taken over from RocketMQ topic=%s %s=%s: it is not compacted here, every message is kept until "
                    "retention deletes it: see that consumers bear it, or leave the topic to RocketMQ",
                    *(each.name, CLEANUP_POLICY, COMPACTION),
                )
    return Opened(store, tables, epochs, loaded.imported)


def _tagged(store: Store, topic: str, queue_id: int, start: int, end: int) -> Iterator[tuple[int, Mapping[str, str]]]:
    """See :data:`penstock.formats.rocketmq_config.FindTagged`."""
    offsets = start + np.flatnonzero(np.isin(store.picker.tags_codes(topic, queue_id, start, end), POP_CODES))
    picked = store.picker.sound(store.picker.locate(topic, queue_id, offsets))
    data, at = store.picker.join(picked).data, 0
    for offset, size in zip(picked.offsets.tolist(), picked.sizes.tolist(), strict=True):
        yield offset, decode_properties(decode_record(data[at : at + size]).properties)
        at += size
