"""The epochs of a store's log, where the store says."""

from __future__ import annotations

import logging

from penstock.formats.directory import EPOCHS
from penstock.formats.epochs import Epoch, decode
from penstock.proto.errors import Corrupt

from .files import open_file_system
from .model import Store

log = logging.getLogger(__name__)


def epochs_of(store: Store) -> tuple[Epoch, ...] | None:
    """Each master's epoch and where its part of the log begins, oldest first; None where the store does not say."""
    file_system, root = open_file_system(store.root)
    path = f"{root}/{EPOCHS}"
    try:
        with file_system.open_input_file(path) as file:
            return decode(file.read(), path)
    except FileNotFoundError:
        return None
    except Corrupt as error:
        log.warning("epochs are not known path=%s error=%s", path, error)
        return None
