"""What every Python worker of Spark does once."""

from __future__ import annotations

import gc
import os

_done_by = 0


def keep_loaded() -> None:
    """Have the collector pass over what is loaded by now; call it behind the imports of a task.

    Spark has a worker collect garbage after each task. Looking at every object of the compiler's run time takes a
    tenth of a second, as long as reading ten megabytes does.
    """
    global _done_by
    if _done_by != os.getpid():
        _done_by = os.getpid()
        gc.freeze()
