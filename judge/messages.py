"""I1, I2, I3, I7, I12: which messages are there, how often, and whether they are what was sent."""

from __future__ import annotations

import numpy as np

from .conditions import Conditions
from .history import Events, History, Op, Outcome
from .identity import Flags, contains, find, first_of_each, message_ids, places, queue_numbers
from .verdict import EXAMPLES_MAX, Verdict, verdict

LOSS_WINDOW_NS = 2_000_000_000
"""``async`` and ``flush`` may lose what was acknowledged so shortly before a fault."""


def lost(history: History, conditions: Conditions) -> Verdict:
    """I1: each acknowledged send is read at its place at the end.

    In the modes that wait for no replica, what was acknowledged during a fault or shortly before it may be missing,
    as long as it is the end of its queue's acknowledged messages of that time.
    """
    sent, read = history.sends(Outcome.OK), history.of(Op.READ)
    if not len(read):
        return verdict("I1", len(sent), ["nothing was read at the end"] if len(sent) else [], count=len(sent))
    missing, excused = _missing(sent, read, conditions)
    note = f"{excused} messages of mode {conditions.mode} were lost at the fault, as it allows" if excused else ""
    elsewhere = contains(message_ids(missing), message_ids(read))
    examples = [
        f"{_message(event)} was acknowledged at {history.place_name(event)}"
        + (f", log position {event['position']}" if event["position"] >= 0 else "")
        + (": it lies elsewhere" if moved else ": it is not there")
        for event, moved in zip(missing[:EXAMPLES_MAX], elsewhere, strict=False)
    ]
    return verdict("I1", len(sent), examples, count=len(missing), note=note)


def lost_messages(history: History, conditions: Conditions) -> Events:
    """The acknowledged sends that I1 misses."""
    return _missing(history.sends(Outcome.OK), history.of(Op.READ), conditions)[0]


def _missing(sent: Events, read: Events, conditions: Conditions) -> tuple[Events, int]:
    """What is not at its place, and how many more are excused."""
    if not len(read):
        return sent, 0
    found, at = find(places(sent), places(read))
    same = found & (message_ids(sent) == message_ids(read)[at])
    excused = np.zeros(len(sent), dtype=np.bool_)
    if conditions.mode in ("async", "flush"):
        excused = _is_excused(sent, same, conditions)
    return sent[~same & ~excused], int(excused.sum())


def _is_excused(sent: Events, present: Flags, conditions: Conditions) -> Flags:
    """Missing ones of a fault's time behind which nothing of their queue and epoch is left."""
    excused = np.zeros(len(sent), dtype=np.bool_)
    for window in conditions.windows:
        excused |= (sent["end_ns"] >= window.start_ns - LOSS_WINDOW_NS) & (sent["end_ns"] < window.end_ns)
    excused &= ~present
    tenures = (queue_numbers(sent) << 32) | sent["epoch"].astype(np.int64)
    for tenure in np.unique(tenures[excused]).tolist():
        mine = tenures == tenure
        last = sent["offset"][mine & present].max(initial=-1)
        excused[mine] &= sent["offset"][mine] > last
    return excused


def phantoms(history: History) -> Verdict:
    """I2: what was read was sent in this run, and was not refused."""
    seen = history.of(Op.READ, Op.RECEIVE)
    sends = history.of(Op.SEND)
    ids = message_ids(seen)
    possible = contains(ids, message_ids(sends[sends["outcome"] != Outcome.REFUSED]))
    refused = contains(ids, message_ids(sends[sends["outcome"] == Outcome.REFUSED]))
    phantom = ~possible & (refused | ~_invoked(history, seen))
    wrong = seen[phantom]
    examples = [
        f"{_message(event)}, read at {history.place_name(event)}, " + ("was refused" if no else "was never sent")
        for event, no in zip(wrong[:EXAMPLES_MAX], refused[phantom], strict=False)
    ]
    return verdict("I2", len(seen), examples, count=len(wrong))


def _invoked(history: History, seen: Events) -> Flags:
    """Whether the sequence was reserved: a sender that was killed left no outcome of its last messages."""
    found = np.zeros(len(seen), dtype=np.bool_)
    reserved = history.of(Op.INVOKE)
    for stream in np.unique(reserved["stream"]):
        mine = np.sort(reserved[reserved["stream"] == stream], order="sequence")
        chosen = np.flatnonzero(seen["stream"] == stream)
        at = np.searchsorted(mine["sequence"], seen["sequence"][chosen], side="right") - 1
        block = mine[np.maximum(at, 0)]
        end = block["sequence"] + block["offset"]
        found[chosen] = (at >= 0) & (seen["sequence"][chosen] < end)
    return found


def one_value(history: History) -> Verdict:
    """I3: a place holds the same message for everybody and at all times."""
    seen = history.of(Op.READ, Op.RECEIVE)
    events = np.concatenate([seen, history.sends(Outcome.OK)])
    here, ids = places(events), message_ids(events)
    order = np.argsort(here, kind="stable")
    here, ids = here[order], ids[order]
    together = here[1:] == here[:-1]
    wrong = np.flatnonzero(together & (ids[1:] != ids[:-1]))
    examples = [
        f"{history.place_name(events[first])} holds {_message(events[first])} and {_message(events[second])}"
        for first, second in zip(order[wrong][:EXAMPLES_MAX], order[wrong + 1][:EXAMPLES_MAX], strict=True)
    ]
    return verdict("I3", len(here) - int(together.sum()), examples, count=len(wrong))


def duplicates(history: History, conditions: Conditions) -> Verdict:
    """I7: nothing is stored twice, and delivered again is only what a fault kept from being committed."""
    read = history.of(Op.READ)
    read = read[first_of_each(places(read))]
    stored_again = ~first_of_each(message_ids(read))
    twice = read[stored_again]
    examples = [f"{_message(event)} is stored again at {history.place_name(event)}" for event in twice[:EXAMPLES_MAX]]
    received = history.of(Op.RECEIVE)
    received = received[np.argsort(received["end_ns"], kind="stable")]
    again = received[~first_of_each(places(received))]
    allowed = conditions.duplicates_allowed
    surplus = max(len(again) - allowed, 0)
    if surplus:
        examples = [
            f"{_message(event)} was delivered again from {history.place_name(event)}" for event in again[:EXAMPLES_MAX]
        ] + examples
    note = f"{len(again)} delivered again, {allowed} allowed"
    return verdict("I7", len(received), examples, count=len(twice) + surplus, note=note)


def wrong_bytes(history: History) -> Verdict:
    """I12: the body that arrived has the checksum of the body that was sent."""
    seen, sent = history.of(Op.READ, Op.RECEIVE), history.of(Op.SEND)
    if not len(sent):
        return verdict("I12", len(seen), [])
    found, at = find(message_ids(seen), message_ids(sent))
    damaged = found & (seen["crc"] != sent["crc"][at])
    wrong = np.flatnonzero(damaged)
    examples = [
        f"{_message(seen[index])} at {history.place_name(seen[index])}: checksum {seen['crc'][index]:#010x}, "
        f"sent with {sent['crc'][at[index]]:#010x}"
        for index in wrong[:EXAMPLES_MAX].tolist()
    ]
    return verdict("I12", len(seen), examples, count=len(wrong))


def undelivered(history: History) -> Events:
    """Acknowledged sends that no member of the group ever received, though they are there."""
    sent = history.sends(Outcome.OK)
    here = places(sent)
    delivered = contains(here, places(history.of(Op.RECEIVE)))
    return sent[~delivered & contains(here, places(history.of(Op.READ)))]


def _message(event: np.void) -> str:
    return f"message {event['stream']}.{event['sequence']}"
