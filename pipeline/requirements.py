"""What the pipelines need beside Penstock's own dependencies, asked for before anything is started."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from penstock.proto.distribution import DISTRIBUTION
from penstock.proto.errors import ConfigError

JAVA_VERSION_MIN = 17
PYARROW_VERSION_MIN = 24  # the first to write Bloom filters
_PACKAGES = ("pyspark", "pyarrow", "pandas", "deltalake")
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')  # 8 was called 1.8


def require_spark() -> None:
    """Raises ConfigError if a package of the extra is missing, or too old."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"pipelines need the package {missing[0]}: pip install '{DISTRIBUTION}[spark]'")
    found = metadata.version("pyarrow")
    if int(found.partition(".")[0]) < PYARROW_VERSION_MIN:
        needed = f"pipelines need pyarrow {PYARROW_VERSION_MIN} or newer, this is {found}"
        raise ConfigError(f"{needed}: pip install '{DISTRIBUTION}[spark]'")


def java_program() -> str | None:
    """The Java that Spark would start, None without one."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def java_version() -> int | None:
    """The major version of the Java that Spark would start, None without one."""
    java = java_program()
    if java is None:
        return None
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found.group(1)) if found else None


def require_java() -> None:
    """Raises ConfigError if this machine has no Java, or one that is too old for Spark 4."""
    version = java_version()
    if version is None:
        raise ConfigError(
            "Spark needs Java 17 or newer and there is none: install default-jre-headless, or set JAVA_HOME"
        )
    if version < JAVA_VERSION_MIN:
        raise ConfigError(f"Spark needs Java 17 or newer, this is Java {version}: set JAVA_HOME to a newer one")
