"""What Spark on this machine starts from, kept in the user's cache directory, so that a short job is soon done.

A start loads some ten thousand Java classes out of three hundred jars, and Spark puts its Python packages, in archives
of which Python keeps no bytecode, before those that are installed: each of its processes compiles them anew. So there
is a folder that Java takes for Spark's home: links to the installed one's, without those archives, and beside them
``classes.jsa``, the loaded classes as Java maps them into memory ("class data sharing"). Java looks itself whether the
archive is of this Java and these jars, and loads from the jars if not.

Who has named a ``SPARK_HOME``, or another Python for the workers, starts as Spark does.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..requirements import java_program

_LINKED = ("bin", "jars", "conf", "sbin")
_CLASSES = "classes.jsa"
_STARTS = 2
"""Counts ways to start: one that has Java load other classes begins with none kept."""
_QUIET = "-Xlog:disable"  # of what it cannot keep Java would tell standard output, class by class
_KEEPING_S_MAX = 120.0


def spark_home() -> Path | None:
    """The folder to start from; None where Spark is to start by itself, or nothing can be kept."""
    pythons = {os.environ.get(name, sys.executable) for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    java = java_program()
    if java is None or "SPARK_HOME" in os.environ or pythons != {sys.executable}:
        return None
    from pyspark.find_spark_home import _find_spark_home

    installed = Path(_find_spark_home())
    program = Path(java).resolve()
    known = (_STARTS, installed, (installed / "jars").stat().st_mtime_ns, program, program.stat().st_mtime_ns)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "spark"
    folder = cache / hashlib.sha256(repr(known).encode()).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _LINKED:
            if (installed / name).exists():
                with contextlib.suppress(FileExistsError):
                    (folder / name).symlink_to(installed / name)
    except OSError:  # as for users without a home
        return None
    return folder


def java_options(folder: Path, *, keeps: bool) -> str:
    """What has Java start with the folder's classes; if there are none yet and ``keeps``, write them when it ends.

    Drafts of processes that have ended without :func:`keep_classes` go.
    """
    for draft in folder.glob("*.draft"):
        if not Path("/proc", draft.stem).exists():
            draft.unlink(missing_ok=True)
    if (folder / _CLASSES).exists():
        return f"{_QUIET} {shlex.quote(f'-XX:SharedArchiveFile={folder / _CLASSES}')}"
    if not keeps:
        return ""
    draft = _draft(folder)
    draft.touch()  # by which keep_classes knows; Java writes it anew
    return f"{_QUIET} {shlex.quote(f'-XX:ArchiveClassesAtExit={draft}')}"


def keep_classes(show: Callable[[str], None]) -> None:
    """End the Java that this process has started with ``keeps``, and keep the classes that it has loaded.

    Nothing, if it was not started so. ``show`` is told before it takes some seconds. Folders of Sparks that are gone
    go, too. Whoever is interrupted meanwhile keeps nothing.
    """
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    folder = spark_home()
    if gateway is None or folder is None or not (draft := _draft(folder)).exists():
        return
    show("keeping what Spark has loaded: later jobs start in half the time")
    try:
        gateway.shutdown()
        gateway.proc.stdin.close()
        if gateway.proc.wait(_KEEPING_S_MAX) == 0 and draft.exists() and draft.stat().st_size:
            draft.replace(folder / _CLASSES)
    except (OSError, subprocess.TimeoutExpired):  # the next job tries again
        gateway.proc.kill()
    finally:
        SparkContext._gateway = SparkContext._jvm = None
        draft.unlink(missing_ok=True)
    for other in folder.parent.iterdir():
        if not (other / "jars").exists():
            shutil.rmtree(other, ignore_errors=True)


def _draft(folder: Path) -> Path:
    return folder / f"{os.getpid()}.draft"
