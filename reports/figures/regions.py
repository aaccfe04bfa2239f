"""Region metrics: the leading regions with the distribution of scans behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from heatlas.reports.figures.gallery import GREY, INK, OUTCOME_COLOURS, OUTCOME_MARKERS, class_colours, new_figure
from heatlas.reports.words.numbers import LONGEST_REGION, count, number, shortened

_LETTER = 0.07  # inches that a letter of a region's name takes, on average
POINTS_UP_TO = 60  # scans per group up to which each is drawn as a point; above, the box alone


def draw_regions(
    values: pd.DataFrame, metric: str, regions: Sequence[str], labels: Sequence[str], axis_title: str
) -> tuple[Figure, str]:
    """Leading regions, best on top: boxes and points by class (left), mean and quartiles by outcome (right).

    `values`: one row per scan and region of one map: ``group``, ``label``, ``outcome`` and `metric`. `metric`: column
    drawn. `regions`: bilateral groups in the order to draw. `axis_title`: with units. Returns the figure
    and what to say of its axis: where a few regions reach far beyond the others, it is logarithmic there; without such
    regions a few extreme values may lie outside.
    """
    width, height = 9.2, 0.27 * len(regions) + 1.3
    figure = new_figure(width, height)
    figure.set_layout_engine("none")  # would measure all text twice; only the names of the regions vary
    beside = [shortened(region, LONGEST_REGION) for region in regions]
    names = _LETTER * max(map(len, beside)) + 0.15
    place = {"left": names / width, "right": 1 - 0.1 / width, "bottom": 0.75 / height, "top": 1 - 0.25 / height}
    panels = 2 if values["outcome"].notna().any() else 1
    axes = figure.subplots(1, panels, sharey=True, sharex=True, squeeze=False, gridspec_kw={**place, "wspace": 0.06})[0]
    left = axes[0]
    handles = _by_label(left, values, metric, regions, labels)
    if panels == 2:
        handles += _by_outcome(axes[1], values, metric, regions)
        axes[1].tick_params(axis="y", length=0)
    left.set_yticks(range(len(regions)), beside)
    left.set_ylim(len(regions) - 0.4, -0.6)
    shown = values[values["group"].isin(regions) & values[metric].notna()]
    linear = _linear_part(shown, metric)
    if linear is None:
        hidden = _limit_axis(left, shown[metric])
        said = f"{count(hidden, 'extreme value')} outside the axis." if hidden else ""
    else:
        left.set_xscale("symlog", linthresh=linear, linscale=LINEAR_SHARE)
        left.set_xticks(_ticks(shown[metric], linear), minor=False)
        left.set_xticks([], minor=True)
        left.xaxis.set_major_formatter(lambda value, _: number(value, 1))
        said = f"The axis is linear from −{number(linear, 1)} to {number(linear, 1)}, and logarithmic beyond."
    for ax in axes:
        ax.set_xlabel(axis_title)
        ax.grid(axis="y", visible=False)
        ax.axvline(1 if metric == "gain" else 0, color=INK, lw=0.8)
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), columnspacing=1.4)
    return figure, said


def _by_label(
    ax: Axes, values: pd.DataFrame, metric: str, regions: Sequence[str], labels: Sequence[str]
) -> list[Artist]:
    colours = dict.fromkeys(labels, GREY) | class_colours(labels[0], labels[-1])
    handles: list[Artist] = []
    jitter = np.random.default_rng(0)
    offsets = (-0.19, 0.19) if len(labels) == 2 else np.linspace(-0.3, 0.3, len(labels) + 2)[1:-1]
    for offset, label in zip(offsets, labels, strict=True):
        rows = values[(values["label"] == label) & values[metric].notna()]
        by_region = {name: rows.loc[rows["group"] == name, metric].to_numpy() for name in regions}
        there = [(place, by_region[name]) for place, name in enumerate(regions) if len(by_region[name])]
        n = int(values.loc[values["label"] == label, "scan_id"].nunique())
        handles.append(Patch(facecolor=colours[label], alpha=0.45, label=f"{label}, n = {count(n, 'scan')}"))
        if not there:
            continue
        _boxes(ax, [data for _, data in there], np.array([place + offset for place, _ in there]), colours[label])
        if n <= POINTS_UP_TO:
            x = np.concatenate([data for _, data in there])
            y = np.concatenate([np.full(len(data), place + offset) for place, data in there])
            spread = jitter.uniform(-0.1, 0.1, len(y))
            ax.plot(x, y + spread, "o", ms=2.6, alpha=0.75, color=colours[label], mew=0, rasterized=True)
    ax.set_title("by class")
    return handles


def _boxes(ax: Axes, samples: Sequence[np.ndarray], places: np.ndarray, colour: str) -> None:
    """Quartiles, median and whiskers of up to 1.5 times the quartiles' distance; four strokes, however many boxes."""
    low, middle, high = (np.array([np.quantile(data, q) for data in samples]) for q in (0.25, 0.5, 0.75))
    reach = 1.5 * (high - low)
    bounds = zip(samples, low - reach, high + reach, strict=True)
    ends = np.array([(data[data >= lowest].min(), data[data <= highest].max()) for data, lowest, highest in bounds])
    corners = [
        [(a, y - 0.15), (b, y - 0.15), (b, y + 0.15), (a, y + 0.15)] for a, b, y in zip(low, high, places, strict=True)
    ]
    boxes = Path.make_compound_path(*(Path([*four, four[0]], closed=True) for four in corners))
    ax.add_patch(PathPatch(boxes, facecolor=to_rgba(colour, 0.45), edgecolor=INK, linewidth=0.6))
    whiskers = _strokes(np.r_[ends[:, 0], high], np.tile(places, 2), np.r_[low, ends[:, 1]], np.tile(places, 2))
    tips = _strokes(ends.T.ravel(), np.tile(places - 0.07, 2), ends.T.ravel(), np.tile(places + 0.07, 2))
    ax.add_patch(PathPatch(Path.make_compound_path(whiskers, tips), fill=False, edgecolor=INK, linewidth=0.7))
    ax.add_patch(PathPatch(_strokes(middle, places - 0.15, middle, places + 0.15), fill=False, edgecolor=INK, lw=1))


def _strokes(x: np.ndarray, y: np.ndarray, to_x: np.ndarray, to_y: np.ndarray) -> Path:
    """Separate straight lines as one path, where a collection would write an element for each."""
    points = np.stack([np.column_stack([x, y]), np.column_stack([to_x, to_y])], axis=1).reshape(-1, 2)
    return Path(points, np.tile([Path.MOVETO, Path.LINETO], len(x)))


def _by_outcome(ax: Axes, values: pd.DataFrame, metric: str, regions: Sequence[str]) -> list[Artist]:
    handles: list[Artist] = []
    for offset, outcome in zip((-0.27, -0.09, 0.09, 0.27), ("TP", "FN", "TN", "FP"), strict=True):
        rows = values[(values["outcome"] == outcome) & values["group"].isin(regions)]
        n = int(rows["scan_id"].nunique())
        style: dict[str, Any] = {
            "color": OUTCOME_COLOURS[outcome],
            "marker": OUTCOME_MARKERS[outcome],
            "ls": "none",
            "ms": 4,
        }
        handles.append(Line2D([], [], label=f"{outcome}, n = {n}", **style))
        if not n:
            continue
        by_region = rows.groupby("group")[metric]
        low, high, means = (
            table.reindex(list(regions))
            for table in (by_region.quantile(0.25), by_region.quantile(0.75), by_region.mean())
        )
        places = np.arange(len(regions)) + offset
        known = (low.notna() & high.notna()).to_numpy()
        quartiles = _strokes(low.to_numpy()[known], places[known], high.to_numpy()[known], places[known])
        ax.add_patch(PathPatch(quartiles, fill=False, edgecolor=OUTCOME_COLOURS[outcome], lw=1.2, alpha=0.7))
        ax.plot(means, places, mec="white", mew=0.4, **style)
    ax.set_title("by outcome: mean, quartiles")
    return handles


CRUSHING, AT_MOST = 4.0, 0.25
LINEAR_SHARE = 2.0  # decades of the logarithmic part that the linear part is as wide as, on each side


def _linear_part(shown: pd.DataFrame, metric: str) -> float | None:
    """Where an axis turns logarithmic, as a few regions reach so far that the others would be flat on a linear one.

    They reach `CRUSHING` times as far from 0 as the median region. None without any, or where they are more than
    `AT_MOST` of all, which then are no exceptions.
    """
    reach = shown.groupby("group")[metric].agg(lambda values: values.abs().max())
    far = reach > CRUSHING * reach.median()
    if not far.any() or far.mean() > AT_MOST:
        return None
    return float(f"{reach[~far].max():.1g}")


def _ticks(values: pd.Series, linear: float) -> list[float]:
    """0, the ends of the linear part, and powers of ten and their triples beyond, as far as there are values."""
    sizes = [linear, *(factor * 10.0**power for power in range(-30, 30) for factor in (1, 3))]
    sizes = sorted(size for size in sizes if size == linear or size > 2 * linear)
    below, above = -float(values.min()), float(values.max())
    return [*(-size for size in sizes[::-1] if size <= below), 0.0, *(size for size in sizes if size <= above)]


def _limit_axis(ax: Axes, shown: pd.Series) -> int:
    """Keep a few extreme values from flattening the rest; returns how many are hidden."""
    if shown.empty:
        return 0
    low, high = np.percentile(shown, [0.5, 99.5])
    margin = 0.04 * ((high - low) or 1.0)
    low, high = min(low, 0.0) - margin, max(high, 0.0) + margin
    ax.set_xlim(low, high)
    return int(((shown < low) | (shown > high)).sum())
