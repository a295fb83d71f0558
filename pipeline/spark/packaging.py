"""All that executors need and their Python lacks, in one file that Spark ships to them.

An archive holds Penstock's pipelines and the packages that they need, in the versions of this environment, as a folder
for the module path. It has no interpreter, since links to one break on other machines, and no pyspark, since Spark puts
its own on the path. Kernels are in it as compiled for this processor; others compile theirs again. So the machines
need a Python of the same minor version, the same libc, and nothing else.

The versions are those that the metadata of the installed packages name. What the archive holds is then proved: an
interpreter that sees nothing but the archive, the standard library and pyspark imports every module of the pipelines.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from penstock.proto.distribution import DISTRIBUTION
from penstock.proto.errors import ConfigError

FOLDER = "penstock-packages"
"""What the archive is unpacked as, in the directory where an executor runs."""
_SUFFIXES = (".tar.gz", ".tgz")  # by which Spark knows how to unpack
_PLAIN_PATH = re.compile(r"[\w./+~@-]+", re.ASCII)
_EXTRA = "spark"
_OF_SPARK = ("pyspark", "py4j")
_DATA_SOURCES = ("pyspark_penstock", "pyspark_penstock_store")
_FIRST_COMPONENT = "pipeline"
_COMPONENT = re.compile(r"\bpenstock\.([a-z]+)")
_REQUIRED = re.compile(r"\s*([\w.-]+)[^;]*(?:;(.*))?", re.DOTALL)
_WANTED_EXTRA = re.compile(r"\bextra\s*==\s*[\"']([\w.-]+)[\"']")
_LEFT_OUT = frozenset({".pxd", ".pyx", ".h", ".hpp", ".a"})
_IMPORTS_EVERYTHING = """
import importlib, pkgutil, penstock.pipeline as pipeline
for each in pkgutil.walk_packages(pipeline.__path__, "penstock.pipeline."):
    importlib.import_module(each.name)
"""


@dataclass(frozen=True, slots=True)
class Packed:
    """An archive, and the words of ``spark-submit`` that ship it."""

    file: Path
    bytes: int
    packages: int
    python: str

    @property
    def settings(self) -> dict[str, str]:
        """For ``--conf``, or the argument ``conf`` of :func:`penstock.pipeline.session`."""
        return {
            "spark.archives": f"{self.file}#{FOLDER}",
            "spark.executorEnv.PYTHONPATH": f"./{FOLDER}",
            "spark.pyspark.python": self.python,
        }

    @property
    def words(self) -> str:
        """The same for a shell."""
        return " ".join(f"--conf {shlex.quote(f'{key}={value}')}" for key, value in self.settings.items())


def package(file: Path, progress: Callable[[str], None] = lambda _: None) -> Packed:
    """Write the archive; a file of that name is replaced when the new one is whole. ``progress`` hears each step.

    Raises ConfigError: Spark would not find, or not unpack, a file of that name; a package's files are not known; or
    what was gathered cannot be imported.
    """
    if not file.name.endswith(_SUFFIXES):
        raise ConfigError(f"{file}: Spark unpacks {' and '.join(_SUFFIXES)}: give the archive such a name")
    if not _PLAIN_PATH.fullmatch(str(file.resolve())):
        raise ConfigError(f"{file}: Spark takes the path for an address: one of letters, digits and ./_+-~@ only")
    if not file.parent.is_dir():
        raise ConfigError(f"{file}: there is no directory {file.parent}: make it first")
    packages = _packages()
    with tempfile.TemporaryDirectory(prefix="penstock-") as work:
        gathered = Path(work) / FOLDER
        gathered.mkdir()
        progress(f"gathering {len(packages)} packages")
        _gather_own(gathered)
        for each in packages:
            _gather(each, gathered)
        progress("importing everything from the archive, and compiling kernels")
        _prove(gathered, Path(work))
        progress("writing the archive")
        fresh = file.with_name(f"{file.name}.tmp")
        try:
            with tarfile.open(fresh, "w:gz", compresslevel=1) as archive:
                for entry in sorted(gathered.iterdir()):
                    archive.add(entry, entry.name, filter=_nobodys)
            fresh.replace(file)
        finally:
            fresh.unlink(missing_ok=True)
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return Packed(file.resolve(), file.stat().st_size, len(packages), python)


def _packages() -> list[metadata.Distribution]:
    """What the pipelines need besides Penstock and Spark, as far as it is installed, by name."""
    found: dict[str, metadata.Distribution] = {}
    try:
        waiting = _required(metadata.distribution(DISTRIBUTION), _EXTRA)
    except metadata.PackageNotFoundError as error:
        raise ConfigError(f"{DISTRIBUTION} is not installed here: pip install '{DISTRIBUTION}[{_EXTRA}]'") from error
    while waiting:
        name = waiting.pop()
        if name in found or name in _OF_SPARK:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another system or version of Python; what is needed is missed when all is imported
        waiting |= _required(found[name])
    return [found[name] for name in sorted(found)]


def _required(of: metadata.Distribution, extra: str | None = None) -> set[str]:
    names = set()
    for text in of.requires or ():
        matched = _REQUIRED.match(text)
        assert matched is not None
        name, condition = matched[1], matched[2] or ""
        wanted = _WANTED_EXTRA.search(condition)
        if wanted is None or wanted[1] == extra:
            names.add(re.sub(r"[-_.]+", "-", name).lower())
    return names


def _gather(package: metadata.Distribution, into: Path) -> None:
    """The files of a package but its commands, tests and C headers, with their times, by which bytecode counts."""
    name = package.metadata["Name"]
    if package.files is None:
        raise ConfigError(f"package {name}: its files are not known, as nothing of pip's has installed it")
    for part in package.files:
        if ".." in part.parts or part.is_absolute() or "tests" in part.parts or part.suffix in _LEFT_OUT:
            continue
        source = Path(str(part.locate()))
        if source.is_file():
            target = into / part
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _gather_own(into: Path) -> None:
    """Penstock's components that the pipelines name, and what those name; and where Spark looks for data sources."""
    waiting, seen = {_FIRST_COMPONENT}, set()
    while waiting:
        component = waiting.pop()
        seen.add(component)
        found = importlib.util.find_spec(f"penstock.{component}")
        for folder in (found.submodule_search_locations or ()) if found is not None else ():
            for source in Path(folder).resolve().rglob("*"):
                inside = source.relative_to(Path(folder).resolve())
                if not source.is_file() or "__pycache__" in inside.parts:
                    continue
                target = into / "penstock" / component / inside
                _copy(source, target)
                if source.suffix == ".py":
                    waiting |= set(_COMPONENT.findall(source.read_text())) - seen
    for name in _DATA_SOURCES:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:
            _copy(Path(found.origin), into / f"{name}.py")


def _copy(source: Path, target: Path) -> None:
    """With a time in whole seconds: kernels count as compiled from a file of that very time, also when unpacked."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    at = int(source.stat().st_mtime)
    os.utime(target, (at, at))


def _prove(gathered: Path, work: Path) -> None:
    """Import everything with nothing else on the path, which leaves kernels and bytecode beside the modules."""
    sparks = work / "spark"
    sparks.mkdir()
    for name in _OF_SPARK:
        found = importlib.util.find_spec(name)
        assert found is not None
        for folder in found.submodule_search_locations or ():
            (sparks / name).symlink_to(Path(folder).resolve())
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "NUMBA_", "SPARK_"))}
    done = subprocess.run(
        [sys.executable, "-S", "-c", _IMPORTS_EVERYTHING],
        env=kept | {"PYTHONPATH": os.pathsep.join((str(gathered), str(sparks)))},
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigError(
            f"the archive would not do for executors: {reason}: pip install '{DISTRIBUTION}[{_EXTRA}]' puts right what "
            "is missing here"
        )


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """With no owner of this machine."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
