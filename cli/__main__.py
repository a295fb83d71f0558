"""``python -m penstock.cli`` is the command ``penstock``."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
