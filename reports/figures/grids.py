"""AggAtt: mean maps of the best, the usual and the worst grids of every method, drawn from the arrays of the bench."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pipeline.evaluation.grids.aggregated import EDGES
from reports.figures.gallery import Gallery
from reports.figures.style import house_style, warm

FORMS = ("svg", "png")
COLUMN, ROW = 1.25, 1.35
"""Inches of one picture."""


def draw_aggregated(arrays: Path, folder: Path) -> None:
    """Draw one figure per setting from `pipeline.evaluation.bench.grid_pictures`; files ``aggregated_<setting>``.

    Each picture is a grid seen along its last axis, the explained cell at the lower left; positive values summed. All
    pictures of a method share one scale.
    """
    with np.load(arrays, allow_pickle=False) as file:
        values = {name: file[name] for name in file.files}
    gallery = Gallery(folder, FORMS)
    for setting in dict.fromkeys(values["settings"].tolist()):
        own = {name: one[values["settings"] == setting] for name, one in values.items()}
        with house_style():
            figure = _figure(own, setting)
            gallery.add(
                figure, f"aggregated_{setting}", f"Mean maps of {len(own['names'])} methods in {setting} grids",
                "Best grids at the left, worst at the right.",
            )  # fmt: skip


def _figure(own: Mapping[str, NDArray], setting: str) -> Figure:  # type: ignore[type-arg]
    bins = len(EDGES) - 1
    rows = len(own["names"])
    figure = Figure(figsize=(COLUMN * bins + 1.6, ROW * rows + 0.5), layout="constrained")
    axes = figure.subplots(rows, bins, squeeze=False)
    for row, name in enumerate(own["names"].tolist()):
        limit = float(own["limits"][row]) or 1.0
        for column in range(bins):
            one = axes[row, column]
            mean = own["means"][row, column]
            one.imshow(mean.T, origin="lower", cmap=warm(), vmin=0, vmax=limit, interpolation="nearest")
            for middle, line in ((mean.shape[0], one.axvline), (mean.shape[1], one.axhline)):
                line(middle / 2 - 0.5, color="white", linewidth=0.6)
            one.set_xticks([])
            one.set_yticks([])
            one.grid(False)
            one.set_xlabel(f"{own['shares'][row, column]:.2f}", fontsize=7)
            if row == 0:
                one.set_title(f"{EDGES[column]}-{EDGES[column + 1]} %", fontsize=8)
        axes[row, 0].set_ylabel(f"{name}\nstage {int(own['stages'][row])}, n = {int(own['counts'][row])}", fontsize=7)
    figure.suptitle(f"{setting}: mean maps by rank of the grid; below each, its mean share", fontsize=9)
    return figure
