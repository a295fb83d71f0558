"""The session that a job runs in: the caller's master, and the settings that our sources want.

Nothing here names a master or an amount of memory: ``spark-submit``, ``SPARK_REMOTE``, ``spark-defaults.conf`` or the
caller's ``conf`` do. The recommended settings are defaults: what is set already stays, and a session that runs
already is not touched.

On this machine (``local``, ``local[n]``, and where nothing names a master) Python workers come from a process of ours
and are spoken to over Unix domain sockets, in a directory that only this user can open. Over TCP each task waits 40 ms:
Java sends its head in two parts and holds the second back until the first is acknowledged, which the worker's kernel
puts off. Files of checkpoints are written through Hadoop's ``FileSystem``: its ``FileContext`` starts programs (chmod,
readlink) for each, 35 of the 50 ms that one takes, and on local files neither is safer: both look whether there is such
a file, and rename. Java reads Arrow's batches without a check per value, an eighth of its work on each row of our
sources; a Python function that makes Arrow arrays of raw memory must make them right. ``conf`` may say otherwise, of
the checks by ``spark.driver.extraJavaOptions`` with ``-Darrow.enable_unsafe_memory_access=false``, which counts more.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import socket
import sys
import tempfile
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.proto.errors import ConfigError
from penstock.runtime.memory import KEEPING_VARIABLES

from ..requirements import require_java, require_spark
from .registration import register
from .starting import java_options, spark_home

_MASTER_SETTING = re.compile(r"^\s*spark\.master\s*[\s=:]\s*(\S+)", re.MULTILINE)
"""A line of ``spark-defaults.conf``, which is a file of Java properties."""
_MASTER = re.compile(r"yarn|local(\[(\d+|\*)(, *\d+)?\])?|local-cluster\[[^\]]+\]|[\w+.-]+://.+")
CONNECT_PORT = 15002
CONNECT_TIMEOUT_S = 5.0
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_SOCKET_FOLDER_CHARACTERS_MAX = 61
"""Spark's own limit: the path of a socket has some hundred characters at most."""
_UNCHECKED_READS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
_SHORT_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Compiling fast, and no threads that collect beside the work."""
SHORT_MARK = "spark.penstock.short"
SHORT = {
    SHORT_MARK: "true",
    "spark.executorEnv.PENSTOCK_WORKERS_LOAD_NOTHING": "1",  # see .daemon
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.default.parallelism": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For some megabytes: one task a stage, planned once, and no Java written and compiled for a query."""
_LOOKS_WITH = "PYSPARK_DRIVER_PYTHON"
"""The Python in which Java looks for installed sources when the first one is registered, a second's work; if there is
no such program it looks for none."""
RECOMMENDED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
_LOCALLY = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
"""All may be changed in a running session."""


def session(
    app_name: str = "penstock",
    *,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    is_short: bool = False,
) -> Any:
    """A ``SparkSession`` with the sources of Penstock registered; the running one, if there is one.

    ``master`` and ``remote`` (a Connect server) only where the surroundings do not name one. A new session logs how far
    its streams are behind, see :mod:`penstock.pipeline.topics.read.lag`.

    ``is_short``: its work is over in seconds. On this machine Java then compiles fast instead of well, there is no web
    page, each stage has one task, and what Java loads may be kept for the next start, see
    :func:`.starting.keep_classes`. Our sources are registered by whoever reads them, and Spark looks for no others.
    Raises ConfigError: pyspark is not installed; the place is wrong, see :func:`require_place`; or, without a Connect
    server, there is no usable Java.
    """
    require_spark()
    server = remote or os.environ.get("SPARK_REMOTE")
    is_remote = server is not None
    require_place((conf or {}).get("spark.master") if master is None else master, server)
    if not is_remote:
        require_java()
    from pyspark.sql import SparkSession

    # Workers with the same packages as this process, if nothing says that they have another Python.
    os.environ.setdefault("PYSPARK_PYTHON", (conf or {}).get("spark.pyspark.python", sys.executable))
    is_new = SparkSession.getActiveSession() is None
    is_local = not is_remote and _is_local(master or _master_elsewhere(conf or {}))
    builder: Any = SparkSession.builder
    builder = builder.appName(app_name)
    if remote is not None:
        builder = builder.remote(remote)
    elif master is not None:
        builder = builder.master(master)
    starts_here = is_new and is_local
    for name, value in {**(_started_with(is_short=is_short) if starts_here else {}), **(conf or {})}.items():
        builder = builder.config(name, value)
    with _start_of_java(is_short=is_short) if starts_here else contextlib.nullcontext():
        spark = builder.getOrCreate()
    if is_new:
        for name, value in (RECOMMENDED | (_LOCALLY if is_local else {})).items():
            if name not in (conf or {}) and (is_remote or not spark.sparkContext.getConf().contains(name)):
                spark.conf.set(name, value)
        if not is_remote:  # a Connect client would hold a stream of answers open for it
            from ..topics.read.lag import LagLog

            spark.streams.addListener(LagLog())
    if not (is_short and starts_here):
        register(spark)
    return spark


def reads_here(spark: Any) -> bool:
    """True if the session was started for little work, which the driver then does itself."""
    return bool(spark.conf.get(SHORT_MARK, "false") == "true")


def require_place(master: str | None, remote: str | None) -> None:
    """Nothing, if these name one place where Spark may run: one that is waited for in vain is told within seconds.

    Raises ConfigError: both are given, one is no name of Spark's, or nobody listens where the Connect server should.
    """
    if master is not None and remote is not None:
        raise ConfigError(f"master is {master!r} and remote {remote!r}: a session runs in one place, name one of them")
    if master is not None and not _MASTER.fullmatch(master):
        raise ConfigError(
            f"master is {master!r}: expected local, local[4], local[*], spark://host:7077, yarn, or k8s://https://host"
        )
    if remote is None or _is_local(remote):  # a Connect server that pyspark starts
        return
    try:
        url = urllib.parse.urlsplit(remote)
        host, port = url.hostname, url.port or CONNECT_PORT
    except ValueError:
        host = None
    if host is None or url.scheme != "sc":
        raise ConfigError(f"remote is {remote!r}: expected a Connect server as sc://host or sc://host:{CONNECT_PORT}")
    if any(os.environ.get(name) for name in _PROXIES):  # through which the server may be reached, if not from here
        return
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ConfigError(
            f"remote is {remote!r}: no Connect server answers at {host}:{port} ({error}): correct the address, or "
            "start one there with sbin/start-connect-server.sh"
        ) from error


def _master_elsewhere(conf: Mapping[str, str]) -> str | None:
    """The master that settings or the surroundings name, None if that cannot be told; Spark's default is this machine.

    Source: Spark's ``SparkSubmitArguments``. What Java was started with is known only when it runs.
    """
    if "spark.master" in conf:
        return conf["spark.master"]
    if "PYSPARK_GATEWAY_PORT" in os.environ or "PYSPARK_SUBMIT_ARGS" in os.environ:
        return None
    if "SPARK_CONF_DIR" in os.environ:
        folder = Path(os.environ["SPARK_CONF_DIR"])
    else:
        from pyspark.find_spark_home import _find_spark_home

        folder = Path(_find_spark_home()) / "conf"
    defaults = folder / "spark-defaults.conf"
    named = _MASTER_SETTING.findall(defaults.read_text()) if defaults.exists() else []
    return named[-1] if named else os.environ.get("MASTER", "local[*]")


def _is_local(master: str | None) -> bool:
    return (master or "").partition("[")[0] == "local"


@contextlib.contextmanager
def _start_of_java(*, is_short: bool) -> Iterator[None]:
    """Have Spark's launcher start Java from our home of Spark, with our options before those that settings name.

    Java's C allocator keeps large buffers. Else each batch of Arrow is fresh pages in about every other session: a
    twelfth of Java's work on a read.
    """
    options = [_UNCHECKED_READS]
    home = spark_home()
    if is_short:
        options.append(_SHORT_JAVA)
    if home is not None:
        options.append(java_options(home, keeps=is_short))
    names = ("SPARK_SUBMIT_OPTS", "SPARK_HOME", _LOOKS_WITH, *KEEPING_VARIABLES)
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: value for name, value in KEEPING_VARIABLES.items() if name not in os.environ})
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join(filter(None, [*options, before["SPARK_SUBMIT_OPTS"]]))
    if home is not None:
        os.environ["SPARK_HOME"] = str(home)
        if is_short:
            os.environ[_LOOKS_WITH] = "none"
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _started_with(*, is_short: bool) -> dict[str, str]:
    """Settings that count from the start of a session on this machine."""
    settings = {"spark.python.daemon.module": "penstock.pipeline.spark.daemon"}
    if is_short:
        settings |= SHORT
    folder = tempfile.mkdtemp(prefix="penstock-")  # for this user alone: over these sockets Spark asks for no secret
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if len(folder) <= _SOCKET_FOLDER_CHARACTERS_MAX:
        settings |= {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": folder}
    return settings
