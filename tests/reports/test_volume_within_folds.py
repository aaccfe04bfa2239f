"""Relevance against atrophy as the report tells it: what is drawn is what r is of, and the answer is a word."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from run_factory import RunPlan, make_run

from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.run.tables import read_table, write_table
from heatlas.pipeline.statistics.associations.volume_association import UNITS
from heatlas.reports.content.relevance.volume import build, draw_volume_scatter, participant_points, volume_estimate
from heatlas.reports.content.run.summary import summarise
from heatlas.reports.frame.material import Material
from heatlas.reports.read.run_record import read_run
from heatlas.reports.words.numbers import p_value


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunLayout:
    """A run with enough true positives for fold to be held, whose networks differ in scale."""
    layout = make_run(tmp_path_factory.mktemp("volume") / "run", RunPlan(betas=(0.0, 1.0), people=12))
    return layout


@pytest.mark.parametrize("name", ["lrpB000", "gb"])
def test_the_points_drawn_are_those_that_r_is_of(run, name):
    record = read_run(run)
    estimate, points = volume_estimate(record, name), participant_points(record, name)
    assert estimate.fold_held
    assert np.corrcoef(points["volume"], points["relevance"])[0, 1] == pytest.approx(estimate.value, abs=1e-9)
    assert points.mean().abs().max() < 1e-9
    figure = draw_volume_scatter(
        {"A": points, "B": points}, {"A": "", "B": ""}, {"A": "logits", "B": "relevance"}, "volume", ["A"]
    )
    ends = figure.axes[0].lines[0].get_xydata()
    slope = (ends[1, 1] - ends[0, 1]) / (ends[1, 0] - ends[0, 0])
    assert slope == pytest.approx(estimate.value * points["relevance"].std() / points["volume"].std())
    assert figure.axes[0].get_ylabel().endswith("minus the mean of the test fold")
    assert "minus" not in figure.axes[1].get_xlabel()


def test_false_positives_stand_beside_the_true_ones_on_the_same_axes(run):
    """Figure 8 of the founding study has both."""
    record = read_run(run)
    table, name = record.tables["volume_points"], "lrpB000"
    table = table[table["map"] == name]
    assert set(table["outcome"]) == {"TP", "FP"}
    people = table.groupby(["outcome", "participant_id"])[["hippocampus_per_tiv", "relevance_sum", "fold"]].mean()
    base = people.loc["TP"].groupby("fold").mean()
    expected = people.loc["FP"]
    points = participant_points(record, name, "FP")
    for column, of_table in (("volume", "hippocampus_per_tiv"), ("relevance", "relevance_sum")):
        less = base.loc[expected["fold"], of_table].to_numpy()
        assert points[column].tolist() == pytest.approx((expected[of_table] - less).tolist(), rel=1e-9)
    own = participant_points(record, name)
    figure = draw_volume_scatter({"A": own}, {"A": ""}, {"A": "logits"}, "volume", ["A"], {"A": points})
    filled, opened = figure.axes[0].collections
    np.testing.assert_allclose(opened.get_offsets(), points[["volume", "relevance"]])
    assert len(filled.get_offsets()) == len(own)
    assert len(opened.get_facecolors()) == 0
    caption = build(Material.of(run))["scatter"].caption
    assert f"open, {len(points)} false positives" in caption


def test_points_are_as_they_are_where_fold_is_not_held(run):
    path = run.statistics("volume_association")
    before = path.read_bytes()
    try:
        write_table(path, read_table(path).assign(fold_held=False))
        record = read_run(run)
        assert participant_points(record, "lrpB000")["volume"].min() > 0
        content = build(Material.of(run))
        assert "within test folds" not in content["lead"] + content["scatter"].caption + content["table"].caption
    finally:
        path.write_bytes(before)


def test_the_table_of_every_analysis_says_what_its_units_mean(run):
    table = read_run(run).tables["volume_association"]
    shown = set(table.loc[table["r"].notna(), "unit"])
    caption = build(Material.of(run))["all"].caption
    assert {unit for unit in UNITS if f"Unit {unit}: " in caption} == shown
    assert shown >= {"participant", "scan"}


def test_section_says_that_r_is_within_test_folds(run):
    content = build(Material.of(run))
    for text in (content["lead"], content["scatter"].caption, content["scatter"].alt, content["curve"].caption,
                 content["table"].caption, content["all"].caption):  # fmt: skip
        assert "within test folds" in text


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("headline", "guided", "answer"),
    [
        ((-0.6, 0.2), (0.5, 0.1), "No clear correlation. "),
        ((-0.6, 0.01), (-0.5, 0.2), "Yes. "),
        ((0.6, 0.01), (0.5, 0.2), "No: the opposite"),
        ((-0.6, 0.01), (0.5, 0.02), "The maps contradict each other. "),
        ((-0.6, 0.2), (0.5, 0.02), "No clear correlation by the headline map. "),
    ],
)
def test_agreement_with_atrophy_is_answered_by_what_survives_correction(run, headline, guided, answer):
    path = run.statistics("volume_association")
    before = path.read_bytes()
    try:
        table = read_table(path)
        for name, (r, p_fdr) in {"lrpB000": headline, "gb": guided}.items():
            table.loc[table["map"] == name, ["r", "p", "p_fdr"]] = [r, 0.004, p_fdr]
        write_table(path, table)
        card = next(one for one in summarise(read_run(run)).answers if one.question == "Does it agree with atrophy?")
    finally:
        path.write_bytes(before)
    assert card.text.startswith(answer)
    assert "0.004" not in (card.text + card.more).replace("\xa0", " ")
    assert card.more.count("within test folds") == 2
    for _, p_fdr in (headline, guided):
        assert f"{p_value(p_fdr)}, FDR-corrected over the maps)" in card.more
    assert ("disagree in the sign" in card.more) == (headline[0] * guided[0] < 0)


@pytest.mark.parametrize(("g", "p", "told"), [(-1.82, 0.004, True), (-1.82, 0.4, False), (1.82, 0.004, False)])
def test_a_smaller_share_in_the_hippocampus_stands_beside_the_agreement_with_atrophy(run, g, p, told):
    found = read_run(run)
    table = found.tables["group_comparisons"].copy()
    here = (table["map"] == "lrpB000") & (table["metric"] == "share") & (table["comparison"] == "AD/CN")
    table.loc[here, "p_fwe"] = 1.0
    table.loc[here & (table["group"] == "Hippocampus"), ["difference", "hedges_g", "p_fwe"]] = [g / 1000, g, p]
    table[["hedges_g_low", "hedges_g_high"]] = [-2.5, -1.0]
    cards = summarise(replace(found, tables={**found.tables, "group_comparisons": table})).answers
    card = next(one for one in cards if one.question == "Does it agree with atrophy?")
    said = "hippocampus (g −1.82 [−2.50 to −1.00]) holds a smaller share of the map in AD than in CN"
    assert (said in card.text) == told
    assert ("smaller share" in card.text) == told
