"""Read a run in a notebook: ``heatlas.open("demo/run").evidence("Hippocampus")``; see docs/notebook.md."""

from reports.read.open_run import OpenRun, open_run

open = open_run
__all__ = ["OpenRun", "open"]

if __name__ == "__main__":  # python -m heatlas
    import sys

    from workflows.interrupts import start

    sys.exit(start())
