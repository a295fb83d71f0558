"""How far the replicas of each broker group are from being level."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.bench.health import broker_statuses
from penstock.deploy import NodeState
from penstock.judge.conditions import Window
from penstock.proto.wire.broker_pb2 import BrokerStatus
from penstock.proto.wire.common_pb2 import Role

from .watching import Sample

LATE_NS = 1_000_000_000
"""A broker that is silent for longer is not ready, whatever keeps it."""


def behind(states: Sequence[NodeState], *, quiet: bool = False) -> list[str]:
    """What keeps the shards from being whole: no master, or a replica that is not in sync, by name.

    ``quiet``: nobody sends any more; every replica must have, and have dispatched, all of its master's log.
    """
    answers = broker_statuses([state.node.address for state in states])
    told = []
    for shard in sorted({state.node.broker_name for state in states}):
        members = [(s, a) for s, a in zip(states, answers, strict=True) if s.node.broker_name == shard]
        told += _behind_in(shard, members, quiet=quiet)
    return told


def _behind_in(shard: str, members: Sequence[tuple[NodeState, BrokerStatus | None]], *, quiet: bool) -> list[str]:
    masters = [answer for _, answer in members if answer is not None and answer.role == Role.MASTER]
    if not masters:
        return [f"{shard} has no master"]
    master = max(masters, key=lambda answer: answer.epoch)
    in_sync = {replica.broker_id for replica in master.replicas if replica.in_sync}
    told = []
    for state, answer in members:
        if answer is None:
            told.append(f"{state.node.name} {'does not answer' if state.is_alive else 'has ended'}")
        elif answer.role == Role.MASTER and answer is not master:
            told.append(f"{state.node.name} still is master, of epoch {answer.epoch}")
        elif answer is not master and state.node.broker_id not in in_sync:
            told.append(f"{state.node.name} is not in sync")
        elif quiet and answer.dispatched_offset < master.max_offset:
            missing = master.max_offset - answer.dispatched_offset
            told.append(f"{state.node.name} is {missing} bytes behind {shard}'s master")
    return told


def quiet_ends(states: Sequence[NodeState]) -> dict[str, int]:
    """The end of each shard's log up to which it is confirmed."""
    answers = broker_statuses([state.node.address for state in states])
    ends: dict[str, int] = {}
    for state, answer in zip(states, answers, strict=True):
        if answer is not None and answer.role == Role.MASTER:
            ends[state.node.broker_name] = answer.confirm_offset
    return ends


def able_stretches(
    samples: Sequence[Sample],
    windows: Sequence[Window],
    needed: int,
    nameservers: Sequence[str],
    *,
    start_ns: int,
    end_ns: int,
) -> list[Window]:
    """The times in which a shard had ``needed`` brokers that answered and had everything known to be confirmed.

    ``samples``: looks at all brokers, one after the other. A broker that answers late on a busy machine is as ready as
    it was; one that was killed, frozen or is silent for longer is not. Times in which a nameserver was away too do not
    count: there may be nobody then to elect a master.
    """
    found = []
    without = [window for window in windows if any(name in window.target.split(", ") for name in nameservers)]
    for shard in sorted({sample.shard for sample in samples}):
        mine = [sample for sample in samples if sample.shard == shard]
        brokers = len({sample.name for sample in mine})
        start = end = confirmed = 0
        answers: dict[str, Sample] = {}
        for at in range(0, len(mine), brokers):
            look = mine[at : at + brokers]
            answers |= {each.name: each for each in look if each.role}
            able = sum(_is_ready(each, answers.get(each.name), confirmed) for each in look) >= needed
            able &= start_ns <= look[0].at_ns and look[-1].at_ns < end_ns
            able &= not any(window.start_ns <= look[0].at_ns < window.end_ns for window in without)
            if able:
                start, end = start or look[-1].at_ns, look[0].at_ns
            if start and end > start and (not able or at + brokers >= len(mine)):
                found.append(Window("able", shard, start, end))
            start = start if able else 0
            confirmed = max([confirmed, *(each.confirm_offset for each in look)])
    return found


def _is_ready(now: Sample, answer: Sample | None, confirmed: int) -> bool:
    """True if the broker's last ``answer`` says that it has what is confirmed, and still stands."""
    if answer is None or answer.max_offset < confirmed:
        return False
    return answer is now or (now.pid == answer.pid != 0 and now.at_ns - answer.at_ns < LATE_NS)
