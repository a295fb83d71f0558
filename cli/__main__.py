"""``python -m penstock.cli`` is the command ``penstock``."""

import signal
import sys


def run() -> int:
    """Run the command line of this process; the exit code.

    Ctrl-C while Python is still loading it just ends the process: there is nothing to clean up, and the import that it
    interrupts would end in a traceback, or in another error.
    """
    former = signal.getsignal(signal.SIGINT)
    if former is signal.default_int_handler:  # else it is ignored, as behind nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .main import main

    signal.signal(signal.SIGINT, former)
    return main()


if __name__ == "__main__":
    sys.exit(run())
