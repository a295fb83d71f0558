"""Compile every kernel once, with somebody told how far it is.

A kernel is compiled when its module is imported, for the one signature that it names, or loaded from Numba's cache.
The cache is ``__pycache__`` beside the module or, where that may not be written, the user's cache directory
(``NUMBA_CACHE_DIR`` overrules both). It knows the processor, so a directory may be shared between machines. What
it does not know is in :mod:`.freshness`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

_MODULES = (
    "penstock.formats.intrinsics.crc",
    "penstock.formats.intrinsics.text",
    "penstock.formats.record.kernels.record_crc",
    "penstock.formats.record.kernels.scanning",
    "penstock.formats.record.kernels.encoding",
    "penstock.formats.record.kernels.placing",
    "penstock.formats.record.kernels.sealing",
    "penstock.formats.record.lights",
    "penstock.formats.record.reposting.timers",
    "penstock.formats.record.sharding",
    "penstock.formats.record.reposting.retries",
    "penstock.formats.record.reposting.halves",
    "penstock.formats.record.reposting.pops",
    "penstock.formats.record.replies",
)

Progress = Callable[[str, int, int], None]
"""Called with what is compiled next, how many steps are done, and how many there are."""


def compile_kernels(progress: Progress | None = None, others: Sequence[tuple[str, Callable[[], object]]] = ()) -> None:
    """Make all kernels ready: seconds at the first start on a machine, a fifth of a second afterwards.

    ``others`` are the steps of other components: a name to show, and a call that compiles (importing a module whose
    kernels name their signatures is enough). ``progress`` hears each step before it begins, and the end.
    """
    steps: list[tuple[str, Callable[[], object]]] = [
        (name.rpartition(".")[2], lambda name=name: import_module(name)) for name in _MODULES
    ]
    steps += others
    for done, (name, compile_step) in enumerate(steps):
        if progress is not None:
            progress(name, done, len(steps))
        compile_step()
    if progress is not None:
        progress("", len(steps), len(steps))
