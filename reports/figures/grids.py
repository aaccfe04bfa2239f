"""Grids: shares by depth, rank correlations of methods, and AggAtt; and maps of moved scans by shift.

AggAtt shows mean maps of the best, the usual and the worst grids of every method, from the arrays of the bench.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from heatlas.pipeline.evaluation.grids.aggregated import EDGES
from heatlas.reports.figures.gallery import BLUE, GREY, INK, ORANGE, VERMILION, Gallery, house_style, new_figure, warm
from heatlas.reports.words.numbers import fixed

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


LOOKS = {"GridPG": (BLUE, "o"), "DiFull": (VERMILION, "s"), "DiPart": (ORANGE, "^")}
PER_ROW, CELL = 4, 0.25


def draw_depth_curves(curves: pd.DataFrame) -> Figure:
    """Share by relative depth, with intervals: a panel per method, a curve per setting, dashed what is chance.

    `curves`: columns ``method``, ``title``, ``setting``, ``depth``, ``share``, ``ci_low``, ``ci_high`` and ``chance``;
    deeper rows of a method later.
    """
    panels = list(curves.groupby("method", sort=False))
    columns, rows = min(len(panels), PER_ROW), -(-len(panels) // PER_ROW)
    figure = new_figure(2.2 * columns + 0.8, 1.9 * rows + 0.8)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    legend = {}
    for ax, (_, own) in zip(axes, panels, strict=False):
        for chance in own["chance"].unique():
            ax.axhline(chance, color=GREY, lw=1, ls="--")
        for setting, curve in own.groupby("setting", sort=False):
            colour, marker = LOOKS[str(setting)]
            errors = np.vstack([curve["share"] - curve["ci_low"], curve["ci_high"] - curve["share"]]).clip(min=0)
            legend[str(setting)] = ax.errorbar(
                curve["depth"], curve["share"], np.nan_to_num(errors), color=colour, marker=marker, ms=4, lw=1.3,
                elinewidth=1, capsize=2,
            )  # fmt: skip
        ax.set_title(own["title"].iloc[0], fontsize=7.5)
        ax.set(xlim=(-0.06, 1.06), ylim=(-0.03, 1.06), xticks=[0, 0.5, 1])
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    figure.supxlabel("relative depth", fontsize=9)
    figure.supylabel("share in the scan explained", fontsize=9)
    figure.legend(list(legend.values()), list(legend), loc="outside upper center", ncols=len(legend))
    return figure


def draw_agreement(matrix: pd.DataFrame) -> Figure:
    """Rank correlations of shares, -1 to 1, each map by each other one.

    `matrix`: square, rows and columns named alike.
    """
    values, names = matrix.to_numpy(float), list(matrix.index)
    side = CELL * len(names) + 2.2
    figure = new_figure(side + 0.6, side)
    ax = figure.subplots()
    image = ax.imshow(values, cmap="RdBu_r", vmin=-1, vmax=1)
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if abs(value) > 0.6 else INK
        ax.text(column, row, fixed(value, 1), ha="center", va="center", fontsize=6, color=colour)
    ax.set_xticks(range(len(names)), names, rotation=90, fontsize=6.5)
    ax.set_yticks(range(len(names)), names, fontsize=6.5)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    figure.colorbar(image, ax=ax, label="rank correlation of shares", shrink=0.5)
    return figure


def draw_shift_curves(curves: pd.DataFrame) -> Figure:
    """Likeness of the maps of moved scans by shift, with intervals, a panel per map; dashed, maps that stay in place.

    `curves`: columns ``map``, ``title``, ``shift``, ``correlation``, ``correlation_low``, ``correlation_high`` and
    ``in_place``, in rising order of shifts.
    """
    panels = list(curves.groupby("map", sort=False))
    columns, rows = min(len(panels), PER_ROW), -(-len(panels) // PER_ROW)
    figure = new_figure(2.2 * columns + 0.8, 1.9 * rows + 0.8)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    for ax, (_, own) in zip(axes, panels, strict=False):
        middle = own["correlation"]
        errors = np.vstack([middle - own["correlation_low"], own["correlation_high"] - middle]).clip(min=0)
        ax.axhline(0, color=GREY, lw=0.6)
        ax.plot(own["shift"], own["in_place"], color=GREY, lw=1, ls="--")
        ax.errorbar(own["shift"], middle, np.nan_to_num(errors), color=BLUE, marker="o", ms=4, lw=1.3, capsize=2)
        ax.set_title(own["title"].iloc[0], fontsize=7.5)
        ax.set(ylim=(min(-0.06, float(curves["correlation"].min()) - 0.06), 1.06))
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    figure.supxlabel("shift along the diagonal, voxels", fontsize=9)
    figure.supylabel("correlation of maps", fontsize=9)
    return figure
