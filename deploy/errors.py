"""What can go wrong with a local cluster; the command line turns each into one line and an exit code."""

from __future__ import annotations


class DeployError(Exception):
    """Something could not be done with the processes of a local cluster. ``str(error)`` says what to do."""

    exit_code = 1


class DeployUsage(DeployError):
    """The request or the directory does not fit: nothing was started or changed."""

    exit_code = 2
