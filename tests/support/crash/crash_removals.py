"""Steps of the crash model that take messages away: retention, and the deletion of topics."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.broker.store.recovery.cleaning import HOUR_MS, CleaningRules, choose
from penstock.formats.record.layout import Host
from penstock.proto.names import STATE_TOPIC
from tests.support.crash.simulated_disk import PowerCut
from tests.support.record.encoding import encode_messages

if TYPE_CHECKING:
    from tests.support.crash.crash_model import CrashRun

_HOST = Host.parse("10.0.0.1:10911")
_DELETED = ("orders", "clicks", "clicks", "%LMQ%a")


def interrupted(run: CrashRun, work: Callable[[CrashRun], None]) -> None:
    """Do that, perhaps until the power fails in the middle, or the process ends."""
    if run.chooser.random() < 0.5:
        run.disk.cut_after = run.chooser.randint(0, 20)
    try:
        work(run)
    except PowerCut:
        run.end_unclean(by_cut=run.chooser.random() < 0.5)
    run.disk.cut_after = None


def clean(run: CrashRun) -> None:
    """A round of retention, as the broker does it: the oldest files go, by age or because the disk is full."""
    store, chooser = run.open, run.chooser
    removal = store.removal
    if removal.waiting:
        removal.delete_taken(0.0)
    rules = CleaningRules(
        reserved_ms=chooser.choice((0, 1000, HOUR_MS)),
        delete_hours=frozenset(range(24)),
        files_max=chooser.choice((1, 2, 10)),
    )
    run.disk.used_percent = chooser.choice((50, 80, 88))
    files, percent, now_ms = removal.files(), removal.disk_use().percent, run.clock.wall_ms()
    choice = choose(files, rules, now_ms=now_ms, percent=percent, must_keep=store.dispatched_offset)
    if min(store.flushed_offset, store.checkpointed_offset) < choice.end:
        run.checkpoint()
    safe = min(store.dispatched_offset, store.flushed_offset, store.checkpointed_offset)
    choice = choose(files, rules, now_ms=now_ms, percent=percent, must_keep=safe)
    for file in files[: choice.files]:
        run.slack.taken = max(run.slack.taken, file.end)
        removal.take_out(file.end)
        if chooser.random() < 0.3:
            run.checkpoint()
        removal.delete_taken(chooser.choice((0.0, 0.0, 3600.0)))  # a reader that holds it has an hour
        if not removal.waiting:
            run.minimum = store.min_offset
    for _ in removal.align():
        continue
    run.compare()


def delete_topic(run: CrashRun) -> None:
    """A topic, or a light queue, is deleted, and perhaps made anew before the deletion is dispatched."""
    _append_deletion(run, run.chooser.choice(_DELETED))
    if run.chooser.random() < 0.5:
        run.play_now("append")
    if run.chooser.random() < 0.6:
        run.play_now("sync")
        run.play_now("dispatch")
        run.compare()
    if run.chooser.random() < 0.2:
        run.checkpoint()


def _append_deletion(run: CrashRun, topic: str) -> None:
    """The record that deletes a topic, at the master."""
    run.slack.forgotten.add(topic)
    if run.master is not None:
        _append_deletion(run.open_master(), topic)
        return
    body, tags = json.dumps({"topicName": topic}).encode(), b"TAGS\x01TOPIC_DELETED\x02"
    record = encode_messages(STATE_TOPIC, [body], [tags], born_host=_HOST, born_timestamp_ms=1)
    run.history.append(run.open, STATE_TOPIC, record, queues=1)
    run.messages += 1
