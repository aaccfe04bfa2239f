"""Two people whom the classifier is sure of, for different reasons."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from heatlas.reports.figures.gallery import BLUE, GREY, INK, VERMILION, new_figure

COLOURS, MARKERS = (VERMILION, BLUE), ("o", "s")
NAME_WIDTH = 24  # letters of a region's name on one line of the radar chart


def draw_profiles(profiles: Mapping[str, pd.Series], axis_title: str) -> Figure:
    """The same regions in two people, side by side.

    `profiles`: name of each person to value by region; the same regions in the same order.
    """
    first, second = profiles.values()
    regions = list(first.index)
    figure = new_figure(8.2, 0.25 * len(regions) + 1.2)
    ax = figure.subplots()
    places = np.arange(len(regions))
    ax.hlines(places, first, second, color=GREY, lw=1, alpha=0.6)
    for (name, profile), colour, marker in zip(profiles.items(), COLOURS, MARKERS, strict=True):
        ax.plot(profile, places, marker, color=colour, ms=6, mec="white", mew=0.5, label=name)
    ax.set_yticks(places, regions)
    ax.set_ylim(len(regions) - 0.4, -0.6)
    ax.set_xlabel(axis_title)
    ax.axvline(0, color=INK, lw=0.8)
    ax.grid(axis="y", visible=False)
    ax.legend(loc="lower right")
    return figure


def draw_radar(profiles: Mapping[str, pd.Series]) -> Figure:
    """Fingerprints as radar charts, as in the founding study: each person's regions relative to their strongest."""
    width, height, side, below = 8.2, 7.0, 3.6, 1.9  # inches
    figure = new_figure(width, height)
    figure.set_layout_engine("none")  # which would make room for no label
    box = ((width - side) / 2 / width, below / height, side / width, side / height)
    ax: Any = figure.add_axes(box, projection="polar")
    regions: Sequence[str] = list(next(iter(profiles.values())).index)
    angles = np.linspace(0, 2 * np.pi, len(regions), endpoint=False)
    closed = np.append(angles, angles[0])
    for (name, profile), colour, marker in zip(profiles.items(), COLOURS, MARKERS, strict=True):
        top = float(profile.abs().max()) or 1.0
        values = np.append(profile, profile.iloc[0]) / top
        ax.plot(closed, values, color=colour, lw=1.6, marker=marker, ms=3.5, label=name)
        ax.fill(closed, values, color=colour, alpha=0.13)
    ax.set_xticks(angles, [])
    ax.set_rlim(min(0.0, *(float((p / (float(p.abs().max()) or 1)).min()) for p in profiles.values())), 1.05)
    ax.set_yticks([0.25, 0.5, 0.75, 1], ["", "0.5", "", "1"], fontsize=7)
    for region, angle in zip(regions, angles, strict=True):
        _name_spoke(ax, region, float(angle))
    figure.legend(loc="lower center", ncols=2)
    return figure


def _name_spoke(ax: Any, region: str, angle: float) -> None:
    """Write a region's name along its spoke, where names of neighbours cannot meet; never upside down."""
    left = np.cos(angle) < -1e-9
    ax.text(
        angle, 1.09, textwrap.fill(region, NAME_WIDTH), fontsize=7, rotation=np.rad2deg(angle) - 180 * left,
        rotation_mode="anchor", ha="right" if left else "left", va="center", linespacing=0.95,
    )  # fmt: skip
