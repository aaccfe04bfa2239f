"""``python -m heatlas``."""

import sys

from heatlas.workflows.interrupts import start

if __name__ == "__main__":
    sys.exit(start())
