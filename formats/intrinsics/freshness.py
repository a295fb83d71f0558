"""Throw away cached kernels that were compiled with older sources.

Numba's cache knows the content of a kernel's own file, not of the files whose kernels were compiled into it. After an
upgrade that repairs, say, the bounds of :mod:`.scanning`, the cached kernel of :mod:`.placing` would go on with the
old ones, and so would one that holds a constant of a module without kernels. So each cache directory holds a stamp of
all sources that its kernels may contain (:func:`sources`).
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit

from penstock.proto.errors import ConfigError

_STAMP = "penstock-kernels.stamp"
_FORMATS = Path(__file__).parents[1]
_SAYS_SO = b"Frozen into kernels"


def drop_stale_kernels(module_file: str) -> None:
    """Called with the file of a module with kernels before they are declared (:func:`.kernel.kernel` does).

    Deletes the kernels beside which an older stamp (or none) lies. Two processes may do it at once: the loser
    compiles again.

    Raises:
        ConfigError: there is no directory that Numba may keep kernels in.
    """
    directory = _cache_directory(module_file)
    if directory is None:
        return
    stamp = directory / _STAMP
    fresh = _digest(_component(Path(module_file)))
    try:
        if stamp.read_text() == fresh:
            return
    except (OSError, UnicodeDecodeError):
        pass  # no stamp yet, or not ours: both mean stale
    for index in directory.glob("*.nb[ic]"):
        index.unlink(missing_ok=True)
    written = directory / f"{_STAMP}.{os.getpid()}"
    written.write_text(fresh)
    written.replace(stamp)


def _cache_directory(module_file: str) -> Path | None:
    """Where Numba keeps the kernels of that file; None when it does not compile at all (NUMBA_DISABLE_JIT)."""
    made: dict[str, Any] = {}
    exec(compile("def probe(): pass", module_file, "exec"), made)  # noqa: S102  a function that lives in that file
    try:
        stats = getattr(njit(cache=True)(made["probe"]), "stats", None)
    except RuntimeError as error:
        raise ConfigError(
            f"no directory for compiled kernels: neither {Path(module_file).parent} nor this user's cache directory "
            "may be written; name one in the environment variable NUMBA_CACHE_DIR"
        ) from error
    return None if stats is None else Path(stats.cache_path)


def _component(module: Path) -> Path:
    """The folder of the component that the module belongs to: the outermost that is a package."""
    folder = module.parent
    while (folder.parent / "__init__.py").exists():
        folder = folder.parent
    return folder


def sources(component: Path) -> dict[Path, bytes]:
    """What a component's kernels may contain: the formats, and its own sources with kernels or that say so."""
    found = {path: path.read_bytes() for path in sorted(_FORMATS.rglob("*.py"))}
    for path in sorted(component.rglob("*.py")):
        source = path.read_bytes()
        if any(word in source for word in (b"numba", b"@kernel(", _SAYS_SO)):
            found[path] = source
    return found


@cache
def _digest(component: Path) -> str:
    found = hashlib.sha256()
    for path, source in sources(component).items():
        found.update(path.name.encode() + b"\0" + source)
    return found.hexdigest()
