"""Whom a nameserver elects, told as reports at moments.

``register epoch=3 master=0 set=0,1,2``, then ``at 0.05: 1 2:end=900 0:acting``: what members have said just then. A
plain number is a slave that hears no master, of log epoch 3, with 100 bytes and priority 10.
"""

from __future__ import annotations

from typing import Any

from penstock.nameserver.election.elections import Elections, MemberReport
from penstock.proto.register import Register


def decided(lines: list[str]) -> list[str]:
    """What is decided at each moment."""
    watched, register, found = Elections(), _register(""), []
    for line in lines:
        if line.startswith("register"):
            register = _register(line)
            continue
        moment, _, told = line.partition(":")
        unclean_allowed = moment.endswith(" unclean")
        now = float(moment.split()[1])
        reports = [_report(each, now) for each in told.split()]
        choice = watched.decide(register, reports, now, unclean_allowed=unclean_allowed)
        answer = "nobody" if choice is None else f"{choice.candidate}{' unclean' if choice.is_unclean else ''}"
        found.append(f"at {now:.2f}: {answer}")
    return found


def _register(line: str) -> Register:
    given = {"epoch": "3", "master": "0", "set": "0,1,2"} | dict(word.split("=") for word in line.split()[1:])
    members = frozenset(int(each) for each in given["set"].split(","))
    return Register(
        cluster="c",
        broker_name="a",
        epoch=int(given["epoch"]),
        master_id=int(given["master"]),
        sync_state_set=members,
        former_id=9,
    )


def _report(told: str, now: float) -> MemberReport:
    number, _, words = told.partition(":")
    fields: dict[str, Any] = {"heard_at": now, "epoch": 0, "log_epoch": 3, "end_offset": 100, "priority": 10}
    fields |= {"hears_master": False, "is_acting": False}
    for word in filter(None, words.split(",")):
        name, _, value = word.partition("=")
        match name:
            case "acting":
                fields |= {"epoch": 3, "hears_master": True, "is_acting": True}
            case "hears":
                fields["hears_master"] = True
            case "doubtful":
                fields["is_doubtful"] = True
            case "begins":
                fields["epoch"] = int(value)
            case "heard":
                fields["heard_at"] = float(value)
            case _:
                fields[{"log": "log_epoch", "end": "end_offset", "priority": "priority"}[name]] = int(value)
    return MemberReport(broker_id=int(number), **fields)
