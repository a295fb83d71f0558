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


def compile_kernels(progress: Progress = lambda *_: None, others: Sequence[tuple[str, str]] = ()) -> None:
    """Make all kernels ready: seconds at the first start on a machine, a fifth of a second afterwards.

    ``others`` are the steps of other components: a name to show, and a module whose import compiles its kernels.
    ``progress`` hears each step before it begins, and the end.
    """
    steps = [*((module.rpartition(".")[2], module) for module in _MODULES), *others]
    for done, (name, module) in enumerate(steps):
        progress(name, done, len(steps))
        import_module(module)
    progress("", len(steps), len(steps))
