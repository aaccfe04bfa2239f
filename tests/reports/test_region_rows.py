"""Charts of regions and axes: one row that reaches far does not flatten the others, and a scale has three ticks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from reports.figures.gallery import Gallery
from reports.figures.regions import draw_regions
from reports.vector.drawing import Axis


def region_values(factor: float) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frames = [
        pd.DataFrame({
            "scan_id": [f"s{i}" for i in range(10)], "group": f"r{k}", "label": ["AD", "CN"] * 5, "outcome": "TP",
            "sum": rng.uniform(-1, 1, 10) * (factor if k == 3 else 1.0),
        })
        for k in range(8)
    ]  # fmt: skip
    return pd.concat(frames)


def test_a_row_that_reaches_far_is_cut_and_its_values_written():
    regions = [f"r{k}" for k in range(8)]
    values = region_values(40)
    figure, hidden = draw_regions(values, "sum", regions, ("CN", "AD"), "evidence")
    assert max(map(abs, figure.axes[0].get_xlim())) < 1.2
    assert hidden <= 1  # of the other rows
    texts = [text for ax in figure.axes for text in ax.texts]
    assert [round(text.get_position()[1]) for text in texts] == [3]
    own = values.loc[values["group"] == "r3", "sum"]
    assert f"{own.max():.3g}" in texts[0].get_text()


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_rows_of_like_reach_share_the_whole_axis(factor):
    values = region_values(factor)
    figure, _ = draw_regions(values, "sum", [f"r{k}" for k in range(8)], ("CN", "AD"), "evidence")
    assert figure.axes[0].get_xlim()[1] >= np.percentile(values["sum"], 99.5)
    assert not [text for ax in figure.axes for text in ax.texts]


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
