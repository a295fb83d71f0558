"""The name under which pip knows this package. The name ``penstock`` is taken there; ``import penstock.…`` is ours.

Of two distributions in one environment each keeps its files: ours has no ``penstock/__init__.py``, the other has.
"""

from __future__ import annotations

from importlib import metadata

DISTRIBUTION = "penstock-mq"


def version() -> str:
    """The installed version."""
    return metadata.version(DISTRIBUTION)
