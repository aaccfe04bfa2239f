"""Read a run in a notebook: ``heatlas.open("demo/run").evidence("Hippocampus")``; see docs/notebook.md."""

from reports.read.open_run import OpenRun, open_run

open = open_run
__all__ = ["OpenRun", "open"]
