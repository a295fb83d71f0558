"""One drill from an empty folder to its conditions: steady load, fault, heal, drain, and a look at all that is left."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from penstock.bench.load.crew import finished
from penstock.bench.load.ledger import HEADER
from penstock.bench.load.worker import repeating
from penstock.client import Admin, MessageQueue, PenstockError, PullConsumer
from penstock.judge import tallied
from penstock.judge.conditions import Conditions, Footprint
from penstock.judge.history import Op, Recorder, history_files, read_history
from penstock.proto import names

from .catalogue import COPIES, RECOVERY_LIMIT_MS, Drill
from .lab.inspecting import check_store, compare_logs, error_lines, find_on_disk, footprint
from .lab.lab import Lab, Progress
from .lab.levels import able_stretches, quiet_ends
from .lab.schedule import Shape, Timing, plan_fault
from .lab.watching import POSITION_PAUSE_S, note_positions
from .load import EACH
from .load.popping import INVISIBLE_S
from .load.receiving import POLL_MESSAGES_MAX, read_all

SETTLE_LIMIT_S = 30.0
DRAIN_LIMIT_S = 60.0
COMMIT_INTERVAL_MS = 1500
"""What a slave may lack of the commits: the consumers' interval of 1 s, and the way."""
FAR_MS = 2000
"""More than a commit interval, with what a busy machine adds."""
ABLE_LIMIT_MS = 3000
COMES_AGAIN_S = 4.0
"""What a member gives back comes again after 1 s, and some of it is given back once more; later is 2 s at most."""
RESULT_TIMEOUT_S = 60.0
READER, WATCHER = 0, 1

Before = dict[str, tuple[int, dict[str, float]]]


def run_drill(
    drill: Drill,
    folder: Path,
    *,
    seed: int,
    shape: Shape,
    timing: Timing,
    command: str,
    progress: Progress,
    tell: Progress,
    existing: Path | None,
) -> Conditions:
    """Do ``drill`` and leave history and conditions in ``folder``; ``existing``: with the cluster in that directory.

    Raises:
        DrillFailed, DeployError, PenstockError: the drill could not be done. Everything it started is gone.
    """
    plan = plan_fault(drill.name, seed, shape)
    folder.mkdir(parents=True)
    lab = Lab(
        folder,
        shape,
        timing,
        plan,
        need=drill.need,
        existing=existing,
        progress=progress,
        tell=tell,
    )
    conditions = Conditions(
        drill=drill.name,
        seed=seed,
        mode=shape.mode,
        shards=lab.shards,
        queues=shape.queues,
        command=command,
        recovery_target_ms=drill.target_ms,
        recovery_limit_ms=RECOVERY_LIMIT_MS,
        recovery_why=drill.why_no_limit(shape, elects=lab.elects),
        breaks_delivery=drill.breaks_delivery,
        commit_interval_ms=COMMIT_INTERVAL_MS,
        far_ms=None if drill.need == "network" else FAR_MS,
        settle_limit_s=SETTLE_LIMIT_S + INVISIBLE_S,  # an answer that was lost comes again after that
    )
    if conditions.recovery_why:
        conditions.recovery_limit_ms = conditions.recovery_target_ms = None
    try:
        lab.make()
        _load_and_break(drill, lab, conditions)
        _look_at_what_is_left(drill, lab, conditions)
    finally:
        conditions.leftovers = lab.close()
    conditions.save(folder)
    return conditions


def _load_and_break(drill: Drill, lab: Lab, conditions: Conditions) -> None:
    shape, timing = lab.shape, lab.timing
    with _watched(lab):
        workers = [lab.start_worker("consume", number) for number in range(shape.consumers)]
        workers += [lab.start_worker(role, number) for role in ("work", "pop") for number in range(EACH)]
        workers += [lab.start_worker("produce", number) for number in range(shape.producers)]
        workers.append(lab.start_worker("promise", 0))
        for worker in workers:
            worker.await_ready()
        conditions.began_ns = time.monotonic_ns()
        for worker in workers:
            worker.go()
        lab.wait(timing.steady_s + lab.plan.late_s, "steady load")
        before = _footprints(lab)
        drill.fault(lab)
        healed_s = time.monotonic()
        late = lab.await_level(SETTLE_LIMIT_S)
        lab.wait(timing.after_s, "healed")
        level_s = time.monotonic() - healed_s - timing.after_s
        conditions.unsettled += late
        producers = [worker for name, worker in lab.workers.items() if name.startswith("producer")]
        producers_until_ns = time.monotonic_ns()
        finished(producers, RESULT_TIMEOUT_S)
        lab.phase = "draining"
        drain_s, left = _drain(lab)
        conditions.unsettled += left
        conditions.settled_s = None if late or left else round(level_s + drain_s, 3)
        conditions.footprints = _compared(lab, before)
        consumers = [worker for name, worker in lab.workers.items() if name.startswith("consumer")]
        finished(consumers, RESULT_TIMEOUT_S)
    conditions.ended_ns = time.monotonic_ns()
    conditions.windows = sorted(lab.windows, key=lambda window: window.start_ns)
    conditions.notes += lab.notes
    if drill.breaks_delivery:
        once = shape.consumers * POLL_MESSAGES_MAX + int(shape.rate * COMMIT_INTERVAL_MS / 1000)
        conditions.duplicates_allowed = once * len(lab.windows)
    if drill.is_random:
        conditions.able_limit_ms = ABLE_LIMIT_MS
        copies = COPIES if shape.mode in ("sync", "durable") else 1
        samples = lab.watcher.samples if lab.watcher is not None else []
        times = {"start_ns": conditions.began_ns, "end_ns": producers_until_ns}
        conditions.able = able_stretches(samples, lab.windows, copies, lab.nameserver_names, **times)
    conditions.unsettled += _read_everything(lab)


@contextmanager
def _watched(lab: Lab) -> Iterator[None]:
    with (
        closing(Recorder(lab.history_path("watcher"), WATCHER, "watcher", lab.shards)) as recorder,
        Admin(lab.nameservers) as admin,
        repeating(partial(note_positions, admin, lab.group, lab.topic, lab.shards, recorder), POSITION_PAUSE_S),
    ):
        yield


def _drain(lab: Lab) -> tuple[float, list[str]]:
    """Wait until the group has nothing left; how long that took, and what was left in the end."""
    began = time.monotonic()
    left, is_settled = ["no lag is known"], False
    with Admin(lab.nameservers) as admin:
        while time.monotonic() - began < DRAIN_LIMIT_S:
            left = [
                each for group in (lab.group, lab.orderly_group, lab.pop_group) for each in _left(admin, lab, group)
            ]
            if not left and lab.nameservers_agree():
                if is_settled:
                    return time.monotonic() - began, []
                is_settled = True
                lab.wait(COMES_AGAIN_S, "what was given back comes again")
                continue
            lab.wait(0.1)
    return DRAIN_LIMIT_S, left or ["a nameserver does not know every broker"]


def _left(admin: Admin, lab: Lab, group: str) -> list[str]:
    """What a group has not consumed, and the queues that nobody consumes."""
    try:
        found = admin.group_lag(group)
    except PenstockError as error:
        return [f"the lag of group {group} is not known: {error}"]
    left = [f"{name} does not answer" for name in found.unreachable]
    left += [f"{group}: {q.broker_name} queue {q.queue_id}: {q.lag} messages left" for q in found.queues if q.lag]
    if group != lab.pop_group:  # simple consumers own no queues
        left += [f"{group}: {q.broker_name} queue {q.queue_id}: no owner" for q in found.queues if not q.client_id]
    if not left and len(found.queues) < len(lab.shards) * lab.shape.queues:
        left = [f"{group}: {len(found.queues)} queues are known"]
    return left


def _read_everything(lab: Lab) -> list[str]:
    """Read every queue from its beginning; what was not reached."""
    lab.phase = "reading everything"
    left = []
    with closing(Recorder(lab.history_path("reader"), READER, "reader", lab.shards)) as recorder:
        for topic, op in (
            (lab.topic, Op.READ),
            (names.RETRY_PREFIX + lab.group, Op.RETURNED),
            (names.DLQ_PREFIX + lab.group, Op.DEAD),
            (lab.promises, Op.SHOWN),
        ):
            with Admin(lab.nameservers) as admin:
                if topic != lab.topic and topic not in admin.list_topics():
                    continue  # nothing was given back, or nothing given up
                stats = admin.topic_stats(topic)
            ends = {MessageQueue(topic, q.broker_name, q.queue_id): q.max_offset for q in stats.queues}
            with PullConsumer(lab.nameservers, group="drill-reader", consume_from="first", auto_commit=False) as reader:
                left += read_all(reader, ends, lab.run, lab.shards, recorder, op)
    return left


def _footprints(lab: Lab) -> Before:
    found: Before = {}
    for state in lab.cluster.states():
        if state.pid is None or state.node.is_coordinator:
            continue
        measured = footprint(state.pid, state.store_path)
        if measured is not None:
            found[state.node.name] = (state.pid, measured)
    return found


def _compared(lab: Lab, before: Before) -> list[Footprint]:
    now = _footprints(lab)
    return [
        Footprint(name, before[name][0] == pid, before[name][1], measured)
        for name, (pid, measured) in now.items()
        if name in before
    ]


def _look_at_what_is_left(drill: Drill, lab: Lab, conditions: Conditions) -> None:
    lab.phase = "stopping"
    conditions.unsettled += lab.await_level(SETTLE_LIMIT_S, quiet=True)
    ends = quiet_ends(lab.broker_states())
    masters = {shard: lab.master(shard) for shard in lab.shards if shard in ends}
    states = lab.cluster.states()
    if lab.watcher is not None:
        lab.watcher.stop()
    order = [state.node.name for state in states if not state.node.is_coordinator]  # etcd's exit is not ours to judge
    order.sort(key=lambda name: (name.startswith("nameserver"), name in masters.values()))
    for name in order if lab.owns_cluster else ():
        if lab.state(name).is_alive:
            lab.stop_node(name)
    conditions.stops = lab.stops
    lab.phase = "checking stores"
    brokers = [state for state in states if state.store_path is not None]
    for state in brokers:
        assert state.store_path is not None
        lab.wait(0.0)
        conditions.stores.append(check_store(state.node.name, state.store_path))
    group = lab.group if lab.owns_cluster else None
    for shard, master in masters.items():
        for name in lab.names_of(shard):
            if name != master:
                compared = compare_logs(shard, lab.state(master), lab.state(name), ends[shard], group)
                conditions.logs.append(compared)
    conditions.error_lines = error_lines(states, drill.expected_errors, lab.log_starts)
    conditions.notes += _where_lost_messages_are(lab, conditions)


def _where_lost_messages_are(lab: Lab, conditions: Conditions) -> list[str]:
    """Where the first lost messages are: on some disk after all, or on none, which are two different defects."""
    history = read_history(history_files(lab.folder))
    told = []
    for stream, sequence in tallied(history, conditions).lost[:3]:
        needle = HEADER.pack(lab.run, stream, sequence, 0)[:16]
        holders = find_on_disk(lab.broker_states(), needle)
        where = f"on the disks of {', '.join(holders)}" if holders else "on no disk"
        told.append(f"lost message {stream}.{sequence} is {where}")
    return told


def numbered_folder(parent: Path, name: str) -> Path:
    """``parent/name``, or with the next free number behind it: earlier drills are kept."""
    folder = parent / name
    number = 2
    while folder.exists():
        folder = parent / f"{name}.{number}"
        number += 1
    return folder


def drop_stores(folder: Path) -> None:
    """Delete the data directories of a drill; its history, conditions and logs stay."""
    for store in (folder / "cluster").glob("broker-*/store"):
        shutil.rmtree(store)
