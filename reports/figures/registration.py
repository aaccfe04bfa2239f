"""Registration quality at a glance."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from reports.figures.style import BLUE, INK, VERMILION, new_figure
from reports.words.numbers import shortened


def draw_registration(quality: pd.DataFrame, outlying: pd.Series) -> Figure:
    """Every scan by overlap and correlation with the template brain.

    `quality`: columns ``dice`` and ``correlation``. `outlying`: scans to mark.
    """
    figure = new_figure(5.2, 3.2)
    ax = figure.subplots()
    good, bad = quality[~outlying], quality[outlying]
    ax.scatter(good["dice"], good["correlation"], s=22, color=BLUE, alpha=0.8, label=f"as expected, n = {len(good)}")
    if len(bad):
        label = f"to be looked at, n = {len(bad)}"
        ax.scatter(bad["dice"], bad["correlation"], s=46, color=VERMILION, marker="X", label=label)
        for row in bad.head(8).itertuples():
            name, place = shortened(row.participant_id, 30), (row.dice, row.correlation)
            ax.annotate(name, place, xytext=(6, 3), textcoords="offset points", fontsize=7, color=INK)
    ax.set_xlabel("Dice overlap of brain masks (scan and template)")
    ax.set_ylabel("correlation with template")
    ax.legend(loc="best")
    return figure
