"""Every call of the disk seam fails once, the first, the second, …; afterwards the store is as after any crash.

On the simulated disk, so that each number of each kind takes milliseconds, and the failure can be followed by a
power cut. What fails must be told: by an error, or by a line in the log.
"""

from __future__ import annotations

import contextlib
import copy
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
NEVER = 1 << 30
OPENING_LAST = ("close", "lose_derived")
"""Steps whose last deed is to open the store."""


class _Play(CrashRun):
    """The scenario up to some step. While nothing fails it is copied where a store is opened, for others to go on from.

    So what comes before a failure, most of the work, is not done again for each.
    """

    def __init__(self, kind: str, code: int, times: int) -> None:
        super().__init__(SEED)
        self.chooser.seed(SEED)
        self.disk.fail_kind, self.disk.fail_nth, self.disk.fail_code = kind, NEVER, code
        self.disk.fail_times = times
        self.next = 0  # step
        self.copies: list[_Play] = []

    def _open(self) -> None:
        if self.disk.fail_nth == NEVER and SCENARIO[self.next - 1] in OPENING_LAST:
            self.keep_copy()
        super()._open()

    def keep_copy(self) -> None:
        """Keep one of how all is now, while no store is open."""
        copies, self.copies = self.copies, []
        self.copies = [*copies, copy.deepcopy(self)]

    def go_on(self) -> None:
        """Play all that is left."""
        if self.next:
            self._open()
        while self.next < len(SCENARIO):
            self.next += 1
            self.play(Step(SCENARIO[self.next - 1], 1000 + self.next - 1))

    def end(self, ending: str) -> None:
        """The process is gone, or all is; then recover."""
        self.disk.fail_kind = ""
        self._gone()
        if ending == "cut":
            self._power_cut()
        else:
            self.disk = self.disk.kill()
        self.finish()

    def copy_before(self, nth: int) -> _Play:
        """A copy of the last one that was made before that call."""
        return copy.deepcopy(next(each for each in reversed(self.copies) if each.disk.calls < nth))


def _fail(play: _Play, nth: int, ending: str) -> bool:
    """Have that call fail, then end and recover; true if an error told of it."""
    play.disk.fail_nth = nth
    told = False
    with stepped_stores(), contextlib.closing(play):
        try:
            play.go_on()
        except (PenstockError, OSError) as error:
            assert isinstance(error, PenstockError), f"an error without a name: {error!r}"
            told = True
        assert play.disk.calls >= nth
        play.end(ending)
    return told


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
    untouched = _Play(kind, code, times)
    untouched.keep_copy()
    with stepped_stores(), contextlib.closing(untouched):
        untouched.go_on()
        calls = untouched.disk.calls
        untouched.end(ending)
    for nth in range(1, calls + 1):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            told = _fail(untouched.copy_before(nth), nth, ending)
        assert told or caplog.records, f"nobody was told that call {nth} failed"
