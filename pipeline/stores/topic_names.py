"""Topics and queues that no store of a frame has: most likely typed wrong, and a query for them would find nothing.

A topic without a queue may have records all the same: its queues are gone after it was deleted, or were lost; and one
that its broker knows may simply be empty. So a topic is refused if in each store

* no queue has a directory of its name, and the broker's ``topics.json``, where it is there, does not list it;
* if the store is closed, the log holds none of its records: :mod:`.accounting` gives them to other topics' queues, or,
  where that leaves files open, a scan of some hundred megabytes at most says so;
* if it is open, it has queues or a ``topics.json`` at all.

Numbers of queues are refused in the same way, if all stores are closed. Otherwise there is a warning. Dead letters,
retries and what brokers need for themselves come into being when there is
something for them: not to have them is no mistake. With ``useConsumeQueue=false``, where queues count for nothing,
nothing is looked at.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence, Set
from typing import Any

import pyarrow as pa
from pyarrow import fs

from penstock.formats.directory import BATCH_QUEUE, CONSUME_QUEUE
from penstock.proto.errors import ConfigError, StorageError
from penstock.proto.names import DLQ_PREFIX, LIGHT_PREFIX, RETRY_PREFIX, SYSTEM_PREFIX, is_system_topic
from penstock.runtime.nearest import hint

from .files import open_file_system
from .model import Store
from .options import SOURCE, StoreOptions
from .scan.accounting import account_for
from .scan.planning import plan_splits

log = logging.getLogger(__name__)

SCAN_BYTES_MAX = 256 << 20
"""Half a second of work, before a query that would find nothing."""
QUEUES_MAX = 1 << 16
"""Of one topic that are believed to be configured."""


def require_topics(stores: Sequence[Store], options: StoreOptions) -> None:
    """Raises ConfigError if a wanted topic is in none of the stores; warns of one that is not seen and may be there."""
    missing = {topic for topic in options.topics if not _comes_when_needed(topic)}
    if not missing or not options.use_consume_queue:
        return
    known: set[str] = set()
    nameless: list[Store] = []
    for store in stores:
        names = known_queues(store.root)
        known |= names.keys()
        if missing <= known:
            return
        nameless += [] if names else [store]
    missing -= known
    topic = min(missing)
    roots = ", ".join(store.root for store in stores)
    near = hint(topic, known)
    if all(_has_none(store, missing) or (store.is_open and store not in nameless) for store in stores):
        raise ConfigError(
            f"{SOURCE}: there is no topic {topic!r} in {roots}{near}: no queue or topics.json has the name, nor "
            "a record of a closed store; set useConsumeQueue to false to read without looking for it"
        )
    log.warning("no queue of the topic was found topic=%s%s stores=%s", topic, near, roots)


def require_queue_ids(stores: Sequence[Store], options: StoreOptions) -> None:
    """Raises ConfigError if all stores are closed, and no wanted topic has a queue of a wanted number."""
    if not options.use_consume_queue or any(store.is_open for store in stores):
        return
    if any(_comes_when_needed(topic) for topic in options.topics):
        return
    known: set[int] = set()
    for store in stores:
        queues = known_queues(store.root)
        known.update(*(queues.get(topic, ()) for topic in options.topics or queues))
    missing = set(options.queue_ids) - known
    if missing and all(_has_none(store, set(options.topics), missing) for store in stores):
        of, roots = ", ".join(options.topics) or "any topic", ", ".join(store.root for store in stores)
        raise ConfigError(
            f"{SOURCE}: there is no queue {min(missing)} of {of} in {roots}: there are {_listed(known)}; set "
            "useConsumeQueue to false to read without looking for it"
        )


def _listed(numbers: set[int]) -> str:
    """The numbers in order, with neighbours as ranges."""
    ordered = sorted(numbers)
    starts = [number for number in ordered if number - 1 not in numbers]
    ends = [number for number in ordered if number + 1 not in numbers]
    pairs = zip(starts, ends, strict=True)
    return ", ".join(f"{low}" if low == high else f"{low} to {high}" for low, high in pairs) or "none"


def _comes_when_needed(topic: str) -> bool:
    prefixes = DLQ_PREFIX, RETRY_PREFIX, LIGHT_PREFIX
    return topic.startswith(prefixes) or topic.lower().startswith(SYSTEM_PREFIX) or is_system_topic(topic)


def known_queues(root: str) -> dict[str, set[int]]:
    """The queues of each topic that have directories, or that the broker's ``topics.json`` lists."""
    file_system, path = open_file_system(root)
    found: dict[str, set[int]] = {}
    for folder in (CONSUME_QUEUE, BATCH_QUEUE):
        selector = fs.FileSelector(f"{path}/{folder}", recursive=True, allow_not_found=True)
        for info in file_system.get_file_info(selector):
            topic, _, queue = str(info.path)[len(f"{path}/{folder}/") :].partition("/")
            if info.type == fs.FileType.Directory:
                found.setdefault(topic, set()).update({int(queue)} if queue.isdecimal() else ())
    for topic, entry in _configured(root).items():
        counts = [entry.get(name) for name in ("readQueueNums", "writeQueueNums")] if isinstance(entry, dict) else []
        most = max((count for count in counts if isinstance(count, int)), default=0)
        found.setdefault(topic, set()).update(range(min(most, QUEUES_MAX)))
    return found


def _configured(root: str) -> dict[str, Any]:
    """The entries of the broker's ``topics.json``; none, and perhaps a warning, where it cannot be read."""
    file_system, path = open_file_system(root)
    try:
        with file_system.open_input_file(f"{path}/config/topics.json") as file:
            return dict(json.loads(file.read())["topicConfigTable"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("topic configuration not read path=%s/config/topics.json error=%s", root, error)
        return {}


def _has_none(store: Store, topics: set[str], queue_ids: Set[int] = frozenset()) -> bool:
    """True if the closed store certainly has no record of the topics (of any, without one) and queues."""
    if store.is_open or store.gaps:
        return False
    from .scan.messages import read_split  # with its kernels, which most queries do not need here

    try:
        counted = account_for(store, store.files, lambda file: False)
        covered = set(counted[0].covered(open_file_system(store.root)[0])) if counted is not None else set()
        left = [file for file in store.files if file not in covered]
        if sum(file.end for file in left) > SCAN_BYTES_MAX:
            return False
        options = StoreOptions(roots=(store.root,), topics=tuple(topics), queue_ids=tuple(queue_ids), verify="none")
        schema = pa.schema([pa.field("physicalOffset", pa.int64(), nullable=False)])
        splits = [split for split in plan_splits(store, options) if split.file in left]
        return not any(batch.num_rows for split in splits for batch in read_split(split, options, schema))
    except StorageError as error:  # damage, or a file that is gone: the query will name it, if it matters there
        log.warning("topics not looked for store=%s error=%s", store.root, error)
        return False
