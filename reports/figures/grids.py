"""AggAtt: mean maps of the best, the usual and the worst grids of every method, drawn from the arrays of the bench."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from heatlas.pipeline.evaluation.grids.aggregated import EDGES
from heatlas.reports.figures.gallery import Gallery
from heatlas.reports.figures.style import house_style, warm

FORMS = ("svg", "png")
COLUMN, ROW = 1.25, 1.35
"""Inches of one picture."""
MIDDLE = 2
"""The bin of which one grid is shown as an example: 5 to 50 %."""


def draw_aggregated(arrays: Path, folder: Path) -> None:
    """Draw one figure per setting from `pipeline.evaluation.grids.aggregated`; files ``aggregated_<setting>``.

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
    bins, rows = len(EDGES) - 1, len(own["names"])
    figure = Figure(figsize=(COLUMN * (bins + 1) + 0.6, ROW * rows + 0.5), layout="constrained")
    axes = figure.subplots(rows, bins + 1, squeeze=False)
    for row, name in enumerate(own["names"].tolist()):
        limit = float(own["limits"][row]) or 1.0
        pictures = [own["examples"][row, MIDDLE], *own["means"][row]]
        labels = ["example", *(f"{share:.2f}" for share in own["shares"][row])]
        for one, picture, label in zip(axes[row], pictures, labels, strict=True):
            one.imshow(picture.T, origin="lower", cmap=warm(), vmin=0, vmax=limit, interpolation="nearest")
            for side, line in zip(picture.shape, (one.axvline, one.axhline), strict=True):
                line(side / 2 - 0.5, color="white", linewidth=0.6)
            one.set(xticks=[], yticks=[])
            one.grid(False)
            one.set_xlabel(label, fontsize=7)
        axes[row, 0].set_ylabel(f"{name}\nstage {own['stages'][row]}, n = {own['counts'][row]}", fontsize=6)
    for column in range(bins):
        axes[0, column + 1].set_title(f"{EDGES[column]}-{EDGES[column + 1]} %", fontsize=8)
    figure.suptitle(f"{setting}: mean maps by rank of the grid; below each, its mean share", fontsize=9)
    return figure
