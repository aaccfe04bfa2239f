"""Regions by how they differ in the images and in a map: one scatter."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from heatlas.pipeline.statistics.images.differences import BOTH, DIFFERS_ONLY, NEITHER, UNKNOWN, USED_ONLY
from heatlas.reports.figures.gallery import BLUE, GREY, INK, ORANGE, VERMILION, new_figure
from heatlas.reports.words.numbers import shortened

LOOKS = {
    BOTH: (VERMILION, "o"),
    DIFFERS_ONLY: (BLUE, "s"),
    USED_ONLY: (ORANGE, "^"),
    NEITHER: (GREY, "."),
    UNKNOWN: (GREY, "x"),
}
MOST_NAMES = 24
OTHERS_NAMED = 4
_LINE = 0.045  # height of a line of names, as a share of the axis
_LONGEST = 30


def draw_differences(rows: pd.DataFrame, across: str, up: str) -> Figure:
    """One point per region at ``hedges_g`` and ``evidence_g``, coloured by ``verdict``, with names."""
    figure = new_figure(7.2, 5.2)
    ax = figure.subplots()
    ax.axhline(0, color=GREY, lw=0.8)
    ax.axvline(0, color=GREY, lw=0.8)
    for kind, (colour, marker) in LOOKS.items():
        own = rows[rows["verdict"] == kind]
        if len(own):
            ax.scatter(own["hedges_g"], own["evidence_g"], s=34, color=colour, marker=marker, label=kind)
    x, y = rows["hedges_g"].to_numpy(float), rows["evidence_g"].to_numpy(float)
    ax.set_xlim(*_with_room(x, 0.36))
    ax.set_ylim(*_with_room(y, 0.08))
    for place, height in _heights(rows, *ax.get_ylim()).items():
        right = x[place] >= 0
        ax.annotate(
            shortened(str(rows["group"].iloc[place]), _LONGEST), (x[place], y[place]),
            xytext=(x[place] + (0.02 if right else -0.02) * np.ptp(ax.get_xlim()), height), fontsize=7.5, color=INK,
            ha="left" if right else "right", va="center",
            arrowprops={"arrowstyle": "-", "color": GREY, "lw": 0.5, "shrinkA": 0, "shrinkB": 2},
        )  # fmt: skip
    ax.set_xlabel(across)
    ax.set_ylabel(up)
    figure.legend(loc="outside lower center", ncols=4)
    return figure


def named(rows: pd.DataFrame) -> list[int]:
    """Places of the regions that get a name: those with a finding, largest first, and the outermost of the others."""
    reach = np.hypot(rows["hedges_g"].to_numpy(float), rows["evidence_g"].to_numpy(float))
    found = ~rows["verdict"].isin([NEITHER, UNKNOWN]).to_numpy(bool)
    order = np.argsort(-reach, kind="stable")
    chosen = [int(k) for k in order if found[k]][:MOST_NAMES]
    others = [int(k) for k in order if not found[k]][: min(OTHERS_NAMED, MOST_NAMES - len(chosen))]
    return chosen + others


def _heights(rows: pd.DataFrame, low: float, high: float) -> dict[int, float]:
    """Height of each name: that of its point, moved so that names of one side do not overlap."""
    found: dict[int, float] = {}
    x, y = rows["hedges_g"].to_numpy(float), rows["evidence_g"].to_numpy(float)
    for side in (x >= 0, x < 0):
        own = sorted((k for k in named(rows) if side[k]), key=lambda k: y[k])
        wanted = np.array([y[k] for k in own])
        step = _LINE * (high - low)
        lowest = low + step / 2
        for place in range(len(own)):
            wanted[place] = max(wanted[place], lowest)
            lowest = wanted[place] + step
        above = high - step / 2
        for place in reversed(range(len(own))):
            wanted[place] = min(wanted[place], above)
            above = wanted[place] - step
        found |= dict(zip(own, wanted.tolist(), strict=True))
    return found


def _with_room(values: np.ndarray, share: float) -> tuple[float, float]:
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    room = share * max(high - low, 0.1)
    return low - room, high + room
