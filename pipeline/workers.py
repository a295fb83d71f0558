"""What every Python worker of Spark does at the start of a task."""

from __future__ import annotations

import gc

_OBJECTS_MAX = 5_000
"""A task of ours makes some hundred objects that last until its end."""


def keep_loaded() -> None:
    """Have the collector pass over what is loaded by now, if that is much; call it behind the imports of a task.

    Spark has a worker collect garbage after each task. Looking at every object of the compiler's run time takes a
    tenth of a second, as long as reading ten megabytes does. What a first task loads on its way, and Spark at its end,
    a later one finds here.
    """
    if len(gc.get_objects()) > _OBJECTS_MAX:
        gc.freeze()
