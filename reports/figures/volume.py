"""Relevance against volume, and the correlation by beta."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from reports.figures.style import BLUE, GREY, INK, VERMILION, new_figure


def draw_volume_scatter(
    points: Mapping[str, pd.DataFrame], texts: Mapping[str, str], volume_title: str, centred: Collection[str] = ()
) -> Figure:
    """Relevance of the hippocampus against its volume, one panel per map, one point per participant.

    `points`: title of a panel to columns ``volume`` and ``relevance``. `texts`: coefficient, interval, p and n of each
    panel. `volume_title`: with its unit. `centred`: titles of the panels whose values are deviations from the means of
    test folds.
    """
    figure = new_figure(4.3 * len(points), 3.6)
    axes = figure.subplots(1, len(points), squeeze=False)[0]
    for ax, (title, frame) in zip(axes, points.items(), strict=True):
        ax.scatter(frame["volume"], frame["relevance"], s=26, color=VERMILION, alpha=0.8, linewidths=0)
        _fit_line(ax, frame["volume"].to_numpy(float), frame["relevance"].to_numpy(float))
        ax.set_title(f"{title}\n{texts[title]}", fontsize=8.5, fontweight="normal")
        ax.xaxis.set_major_locator(MaxNLocator(4))
        less = "\nminus the mean of the test fold" if title in centred else ""
        ax.set_xlabel(volume_title + less)
        ax.set_ylabel(("susceptibility" if title.startswith("Guided") else "relevance sum, hippocampus") + less)
    return figure


def _fit_line(ax: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Least-squares line, to guide the eye."""
    if len(x) > 2 and np.ptp(x) > 0:
        slope, offset = np.polyfit(x, y, 1)
        ends = np.array([x.min(), x.max()])
        ax.plot(ends, offset + slope * ends, color=INK, lw=1)


def draw_beta_curve(betas: Sequence[float], curves: Mapping[str, pd.DataFrame]) -> Figure:
    """Correlation with volume by beta.

    `curves`: name of a coefficient to columns ``estimate``, ``low``, ``high``, in the order of `betas`.
    """
    figure = new_figure(5.2, 3.2)
    ax = figure.subplots()
    width = 0.012 * (max(betas) - min(betas) or 1)
    for shift, (name, curve), colour, marker in zip((-1, 1), curves.items(), (VERMILION, BLUE), "os", strict=False):
        x = np.asarray(betas) + shift * width
        errors = np.vstack([curve["estimate"] - curve["low"], curve["high"] - curve["estimate"]]).clip(min=0)
        ax.errorbar(x, curve["estimate"], np.nan_to_num(errors), color=colour, marker=marker, ms=5, lw=1.4,
                    elinewidth=1, capsize=2, label=name)  # fmt: skip
    ax.axhline(0, color=GREY, lw=1)
    ax.set_xticks(list(betas))
    ax.set_xlabel("β")
    ax.set_ylabel("correlation with hippocampal volume")
    figure.legend(loc="outside lower center", ncols=2)  # anywhere inside, intervals cross it
    return figure
