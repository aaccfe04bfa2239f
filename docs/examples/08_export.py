"""
Share networks without scans
============================

The folder holds weights, settings, the mean of the controls and a model card, and no image of a person. ``heatlas
apply`` takes it in place of the run.
"""

import tempfile
from pathlib import Path

import pandas as pd

import heatlas

folder = heatlas.export("../../demo/run", Path(tempfile.mkdtemp()) / "networks")
files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
sizes = [(path.relative_to(folder).as_posix(), round(path.stat().st_size / 1e6, 3)) for path in files]
pd.DataFrame(sizes, columns=["file", "MB"])

# %%
# The model card begins:
print("\n".join((folder / "docs" / "README.md").read_text().splitlines()[:12]))
