"""What Spark's processes load: each that plans is short, and pays again for what it imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.pipeline.spark.daemon import LOAD_NOTHING
from penstock.pipeline.spark.registration import SOURCES
from penstock.pipeline.spark.sessions import SHORT

KERNELS = "penstock.pipeline.columns.part_kernels"


def is_loaded_by(words: str, module: str) -> bool:
    code = f"import sys; {words}; print({module!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.split()[-1] == "True"


@pytest.mark.parametrize("source", [module for module, _ in SOURCES])
def test_a_source_loads_no_kernels_before_it_reads(source: str) -> None:
    assert not is_loaded_by(f"import {source}", "numba")


@pytest.mark.parametrize("module", ["read.stream", "read.starting", "write.sink"])
def test_who_plans_for_topics_loads_no_kernels(module: str) -> None:
    assert not is_loaded_by(f"import penstock.pipeline.topics.{module}", "numba")


def test_workers_of_tasks_find_kernels_loaded_and_nothing_that_starts_threads() -> None:
    words = "from penstock.pipeline.spark.daemon import load; load()"
    assert is_loaded_by(words, KERNELS)
    assert not is_loaded_by(words, "pyarrow")


def test_workers_of_a_short_session_load_none_ahead() -> None:
    words = f"import os; os.environ[{LOAD_NOTHING!r}] = '1'; from penstock.pipeline.spark.daemon import load; load()"
    assert not is_loaded_by(words, "numba")
    assert f"spark.executorEnv.{LOAD_NOTHING}" in SHORT
