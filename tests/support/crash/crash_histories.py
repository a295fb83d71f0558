"""Playing histories of the crash model, many at once on all processors, and shortening those that fail."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from tests.support.broker.stepped_store import stepped_stores
from tests.support.crash.crash_model import CrashRun
from tests.support.crash.crash_steps import Step, steps_of

STEPS = 14
_SEEDS_AT_ONCE = 50


class Failed(AssertionError):
    """A history after which the store is not what it must be."""


class Played(NamedTuple):
    """What happened in some histories."""

    histories: int = 0
    cuts: int = 0
    recoveries: int = 0

    def and_also(self, other: Played) -> Played:
        """Both together."""
        return Played(*map(sum, zip(self, other, strict=True)))


def run(seed: int, steps: list[Step]) -> CrashRun:
    """Play a history; the steps are those of ``seed``, or some of them.

    Raises:
        Failed: the store is not what it must be.
    """
    history = CrashRun(seed)
    done: list[str] = []
    try:
        with stepped_stores(arena_entries=1 + seed % 3):
            for step in steps:
                done.append(f"{step.name}:{step.seed}")
                history.play(step)
            done.append("end")
            history.finish()
    except Exception as error:
        raise Failed(f"history {seed} failed after {' '.join(done)}: {type(error).__name__}: {error}") from error
    finally:
        history.close()
    return history


def shortest(seed: int, steps: list[Step]) -> list[Step]:
    """The failing history with all those steps left out that its failure does not need."""
    size, reason = len(steps) // 2, why(seed, steps)
    while size:
        start = 0
        while start < len(steps):
            fewer = steps[:start] + steps[start + size :]
            if why(seed, fewer) == reason:
                steps = fewer
            else:
                start += size
        size //= 2
    return steps


def why(seed: int, steps: list[Step]) -> str:
    """How that history fails, without its numbers; empty when it does not."""
    try:
        run(seed, steps)
    except Failed as error:
        return re.sub(r"[0-9]+", "#", repr(error.__cause__))
    return ""


def play(seed: int) -> Played:
    """Play the history with that seed.

    Raises:
        Failed: the store was not what it must be; told of the shortest part of the history that fails in the same way.
    """
    steps = steps_of(seed, STEPS)
    try:
        history = run(seed, steps)
    except Failed as failure:
        fewer = shortest(seed, steps)
        try:
            run(seed, fewer)
        except Failed as error:
            raise error from error.__cause__
        raise AssertionError(f"history {seed} fails at times only") from failure
    return Played(1, history.cuts, history.recoveries)


def play_all(seeds: range) -> Iterator[Played]:
    """Play these histories, each by :func:`play`, in processes of their own.

    Raises:
        Failed: one failed, and ended it.
    """
    parts = [seeds[start : start + _SEEDS_AT_ONCE] for start in range(0, len(seeds), _SEEDS_AT_ONCE)]
    context = multiprocessing.get_context("spawn")  # a fork would take over the threads' locks
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        try:
            yield from pool.map(_play_part, parts)
        except Failed as error:
            raise Failed(f"{error}\n{error.__cause__}") from None  # the cause is the other process's traceback
        finally:
            pool.shutdown(cancel_futures=True)


def _play_part(seeds: range) -> Played:
    logging.disable(logging.CRITICAL)  # recoveries by the thousand
    gc.disable()  # a seventh of the time; between histories it takes little, and keeps the memory warm
    gc.freeze()
    total = Played()
    for seed in seeds:
        total = total.and_also(play(seed))
        gc.collect()
    return total
