"""Whose store a directory is: ``penstockIdentity.json`` in the store root names cluster and broker group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from penstock.proto.errors import WrongStore
from penstock.runtime.whole_files import DAMAGES, damage, replace_file

FILE_NAME: Final = "penstockIdentity.json"


def check_identity(root: Path, cluster: str, broker_name: str) -> bool:
    """True if the store at ``root`` is known to be this broker group's, false if nobody's name is on it.

    Read before the store is opened, so that another's store is not touched at all.

    Raises WrongStore: it belongs to another cluster or broker group, or the file is damaged.
    """
    path = root / FILE_NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        owner = (str(document["cluster"]), str(document["name"]))
    except FileNotFoundError:
        return False
    except DAMAGES as error:
        raise WrongStore(
            f"{path}: damaged ({damage(error)}); make sure that the store is {cluster}/{broker_name}'s and delete the "
            "file",
            path=str(path),
        ) from error
    if owner != (cluster, broker_name):
        raise WrongStore(
            f"{root}: the store belongs to {owner[0]}/{owner[1]}, this broker is {cluster}/{broker_name}: "
            "set brokerClusterName and brokerName, or another storePathRootDir",
            path=str(root),
        )
    return True


def write_identity(root: Path, cluster: str, broker_name: str) -> None:
    """Put the broker group's name on the store; durable on return."""
    replace_file(root / FILE_NAME, json.dumps({"cluster": cluster, "name": broker_name}).encode())
