"""Every call of the disk seam fails once, the first, the second, …; afterwards the store is as after any crash.

On the simulated disk, so that each number of each kind takes milliseconds, and the failure can be followed by a
power cut. What fails must be told: by an error, or by a line in the log.
"""

from __future__ import annotations

import contextlib
import errno
import logging

import pytest

from penstock.proto.errors import PenstockError
from tests.support.broker.stepped_store import stepped_stores
from tests.support.crash.crash_model import CrashRun
from tests.support.crash.crash_steps import Step

KINDS = (
    "open",
    "create",
    "allocate",
    "map",
    "sync",
    "sync_directory",
    "sync_all",
    "pwrite",
    "pread",
    "truncate",
    "zero",
    "size",
    "list",
    "make_directories",
    "mkdir",
    "unlink",
    "rename",
    "remove_tree",
)
NEED_NO_SPACE = ("open", "map", "pread", "size", "list", "unlink", "remove_tree")
SCENARIO = [
    "append",
    "sync",
    "dispatch",
    "marked",
    "append",
    "sync",
    "dispatch",
    "checkpoint",
    "append",
    "roll",
    "marked",
    "sync",
    "background",
    "dispatch",
    "append",
    "sync",
    "roll",
    "append",
    "sync",
    "dispatch",
    "checkpoint",
    "marked",
    "sync",
    "close",
    "append",
    "sync",
    "kill",
    "append",
    "marked",
    "sync",
    "dispatch",
    "lose_derived",
    "append",
    "sync",
    "checkpoint",
]
SEED = 4
FAILURES_MAX = 400


def _scenario(kind: str, nth: int, code: int, ending: str, times: int = 1) -> tuple[bool, bool]:
    """Play it with that failure, and ``times - 1`` more behind it, then end and recover.

    Returns whether the call failed, and whether an error told of it.
    """
    history = CrashRun(SEED)
    history.chooser.seed(SEED)
    history.disk.fail_kind, history.disk.fail_nth, history.disk.fail_code = kind, nth, code
    history.disk.fail_times = times
    told = False
    with stepped_stores(), contextlib.closing(history):
        try:
            for number, name in enumerate(SCENARIO):
                history.play(Step(name, 1000 + number))
        except (PenstockError, OSError) as error:
            assert isinstance(error, PenstockError), f"an error without a name: {error!r}"
            told = True
        failed = history.disk.calls >= nth
        history.disk.fail_kind = ""
        history._gone()
        if ending == "cut":
            history._power_cut()
        else:
            history.disk = history.disk.kill()
        history.finish()
    return failed, told


@pytest.mark.parametrize(
    ("kind", "code", "ending", "times"),
    [
        *(pytest.param(kind, errno.EIO, "cut", 1, id=f"{kind}-EIO") for kind in KINDS),
        *(
            pytest.param(kind, errno.ENOSPC, "kill", 1, id=f"{kind}-ENOSPC")
            for kind in KINDS
            if kind not in NEED_NO_SPACE
        ),
        # What a write leaves behind is to be taken back, and that fails as well.
        pytest.param("pwrite", errno.EIO, "cut", 2, id="pwrite-twice-EIO"),
        pytest.param("pwrite", errno.ENOSPC, "kill", 2, id="pwrite-twice-ENOSPC"),
    ],
)
def test_after_any_failed_call_the_store_holds_what_it_acknowledged(
    kind: str, code: int, ending: str, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    for nth in range(1, FAILURES_MAX):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            failed, told = _scenario(kind, nth, code, ending, times)
        if not failed:
            return
        assert told or caplog.records, f"nobody was told that call {nth} failed"
    raise AssertionError("the scenario never passed untouched")
