"""A part of ``heatlas evaluate`` with a table of its own."""

import pandas as pd

from heatlas.pipeline.evaluation.bench.part import Part, Shown
from heatlas.pipeline.run.declared import Table

TABLE = Table(
    "counted", {"label": "Class", "n_scans": "Scans that networks were tested on"}, "label",
    "How many scans were judged?", stage="evaluation",
)  # fmt: skip


def count(bench, cohort):
    labels = pd.Series([scan.label for scan in cohort.scans], name="label")
    TABLE.write(bench.layout, labels.value_counts().rename("n_scans").sort_index().reset_index())
    return []


PART = Part("count", "how many scans are judged", run=count, tables=(TABLE,), shown=(Shown("How many?", "counted"),))
