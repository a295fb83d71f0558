"""The name under which pip knows this package. The name ``penstock`` is taken there; ``import penstock.…`` is ours.

Of two distributions in one environment each keeps its files: ours has no ``penstock/__init__.py``, the other has.
"""

from __future__ import annotations

import functools
from importlib import metadata

DISTRIBUTION = "penstock-mq"


@functools.cache
def version() -> str:
    """The installed version, which is looked for once."""
    return metadata.version(DISTRIBUTION)
