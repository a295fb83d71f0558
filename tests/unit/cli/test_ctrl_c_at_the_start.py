"""Ctrl-C before a command has begun ends it, and says nothing."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

INTERRUPTED_WHILE_LOADING = """
import os, runpy, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
signal.signal(signal.SIGINT, {handler})
sys.argv = ["penstock", "version"]
runpy.run_module("penstock.cli", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("handler", "code"),
    [("signal.default_int_handler", -signal.SIGINT), ("signal.SIG_IGN", 0)],
    ids=["as usual", "nohup"],
)
def test_ctrl_c_while_a_command_is_loaded_leaves_no_traceback(handler: str, code: int) -> None:
    command = [sys.executable, "-c", INTERRUPTED_WHILE_LOADING.format(handler=handler)]
    ended = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (code, b"")
