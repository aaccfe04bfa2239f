"""Charts of intervals: what their names, captions and figures say, and that they fit the page."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from heatlas.reports.questions.views import IntervalChart, chart_of
from heatlas.reports.vector.charts import BAND, IntervalRow, draw_intervals

SPEC = IntervalChart(("group", "scan_group", "map"), "r", "low", "high", "correlation")
ROWS = dict(group=["Hippocampus", "Amygdala"], scan_group="AD", map=["LRP β=0", "Guided backpropagation"])
ROWS = pd.DataFrame(ROWS | dict(r=[0.5, -0.0224], low=[0.25, -0.0551], high=[0.75, 0.0103], n_participants=[15, 14]))


def test_what_all_rows_share_stands_in_the_caption_only():
    chart, caption = chart_of(ROWS, SPEC, "Within a class.", 0.9)
    assert caption == "Within a class. All rows: AD. Lines are 90 % intervals; the upright one marks 0."
    assert "Hippocampus · LRP β=0<" in chart
    assert " AD" not in chart


def test_one_row_keeps_its_whole_name():
    chart, caption = chart_of(ROWS.head(1), SPEC, "Within a class.", 0.95)
    assert "All rows" not in caption
    assert "Hippocampus · AD · LRP β=0<" in chart


def test_small_estimates_keep_two_digits():
    chart, _ = chart_of(ROWS, SPEC, "", 0.95)
    assert "−0.022 [−0.055, 0.010]" in chart
    assert "0.50 [0.25, 0.75]" in chart


def test_long_names_and_figures_leave_the_chart_as_wide_as_the_page():
    rows = [IntervalRow("A region with a long name · " * 4, "n = 15 and 15", -4.0e-4, -5.5e-4, -2.2e-4)]
    width = re.search(r'viewBox="0 0 (\d+)', draw_intervals(rows, "difference", "alt", 0.0))
    assert width is not None
    assert int(width[1]) <= 916


def test_the_band_of_chance_lies_around_0_and_is_cut_at_neither_end():
    """Its left end was cut where no estimate was below 0: what is as wide on both sides looked one-sided."""
    rows = [
        IntervalRow("Hippocampus", "", 3.0, 2.0, 4.3, by_chance=1.4),
        IntervalRow("Amygdala", "", 0.9, 0.2, 1.8, by_chance=1.4),
    ]
    chart = draw_intervals(rows, "g", "alt", 0.0)
    bands = re.findall(rf'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"[^>]*fill="{BAND}"', chart)
    zeros = [float(x) for x in re.findall(r'd="M([\d.]+) [\d.]+L\1 [\d.]+" stroke="#4a5766"', chart)]
    assert (len(bands), len(zeros)) == (4, 2)  # on a screen and on a phone
    for (left, width), zero in zip(bands, [zeros[0]] * 2 + [zeros[1]] * 2, strict=True):
        assert float(left) + float(width) / 2 == pytest.approx(zero, abs=0.2)
