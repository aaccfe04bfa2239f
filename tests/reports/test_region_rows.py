"""Charts of regions and axes: one row that reaches far does not flatten the others, and a scale has three ticks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from heatlas.reports.figures.gallery import Gallery
from heatlas.reports.figures.regions import draw_regions
from heatlas.reports.vector.drawing import Axis


def region_values(factor: float) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frames = [
        pd.DataFrame(
            dict(scan_id=[f"s{i}" for i in range(10)], group=f"r{k}", label=["AD", "CN"] * 5, outcome="TP")
            | dict(sum=rng.uniform(-1, 1, 10) * (factor if k == 3 else 1.0))
        )
        for k in range(8)
    ]
    return pd.concat(frames)


def test_the_axis_is_logarithmic_where_one_row_reaches_far_and_shows_every_value():
    regions = [f"r{k}" for k in range(8)]
    values = region_values(40)
    figure, said = draw_regions(values, "sum", regions, ("CN", "AD"), "evidence")
    axes = figure.axes[0]
    assert axes.get_xscale() == "symlog"
    low, high = axes.get_xlim()
    assert low <= values["sum"].min()
    assert high >= values["sum"].max()
    assert said == "The axis is linear from −1 to 1, and logarithmic beyond."
    to_pixels = axes.transData.transform
    others = to_pixels([(1.0, 0), (-1.0, 0)])[:, 0]
    assert (others[0] - others[1]) > 0.4 * axes.bbox.width  # the other rows are not crushed


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_rows_of_like_reach_share_the_whole_axis(factor):
    values = region_values(factor)
    figure, _ = draw_regions(values, "sum", [f"r{k}" for k in range(8)], ("CN", "AD"), "evidence")
    assert figure.axes[0].get_xscale() == "linear"
    assert figure.axes[0].get_xlim()[1] >= np.percentile(values["sum"], 99.5)


def test_every_axis_has_three_ticks():
    rng = np.random.default_rng(1)
    for low, size, about in zip(rng.normal(size=300), rng.lognormal(0, 4, 300), rng.integers(1, 6, 300), strict=True):
        axis = Axis(low, low + size, 0, 100)
        ticks = axis.ticks(int(about))
        assert 3 <= len(ticks) <= 12
        assert low - 1e-6 * size <= ticks[0] < ticks[-1] <= low + size * (1 + 1e-6)


def test_small_charts_of_matplotlib_have_three_ticks(tmp_path):
    figure = Figure(figsize=(1.2, 1.0))
    axes = figure.subplots()
    axes.plot([0.02, 0.98], [11, 29])
    Gallery(tmp_path).add(figure, "small", "", "")
    for ticks, (low, high) in ((axes.get_xticks(), axes.get_xlim()), (axes.get_yticks(), axes.get_ylim())):
        assert sum(low <= tick <= high for tick in ticks) >= 3
