"""What sections say first: each verdict from small tables, on both sides of every line it draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from printed_pages import REMEDY, glossary_page

from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.declared import column_of as declared_column
from heatlas.pipeline.run.layout.folder import RunInput
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.statistics.associations.volume_association import ADJUSTED
from heatlas.reports.content.relevance.founding import _by_chance, _hippocampus
from heatlas.reports.content.relevance.volume import interval_against_p
from heatlas.reports.content.run.cohort import _split, flow
from heatlas.reports.figures.gallery import Gallery
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import columns_of
from heatlas.reports.page.sections import _several_networks
from heatlas.reports.questions.clinical import ASSOCIATIONS, NORMS, PROGRESSION
from heatlas.reports.questions.comparisons import COMPARISONS
from heatlas.reports.questions.findings import Estimate, leaders, map_shares, small_regions, smaller_shares
from heatlas.reports.questions.question import by_ranks, difference_in_words
from heatlas.reports.questions.shortcuts import SHORTCUTS, _gathered_outside, facts
from heatlas.reports.questions.subgroups import HARMONISATION, SUBGROUPS
from heatlas.reports.questions.trust import AGREEMENT, mean_rank_correlation
from heatlas.reports.questions.views import View, show_view
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.region_pages.results import associations_by_group
from heatlas.reports.words.wording import GLOSSARY, OWN, hippocampal_source, linked, worded

FOLDER = Path("nowhere")


def record(tables: dict[str, pd.DataFrame], models: int = 0, **sections: dict[str, object]) -> RunRecord:
    """A run that has only these tables."""
    config = load_config(
        overrides={"attribution": {"betas": [0.0, 1.0]}, "registration": {"resolution_mm": 2.0}, **sections}
    )
    described = {fold: {"fold": fold} for fold in range(models)}
    return RunRecord(RunLayout(FOLDER), config, RunInput(FOLDER, "default"), tables, {}, {}, described, {})


def relevance(sums: dict[str, tuple[float, float]], voxels: dict[str, int]) -> dict[str, pd.DataFrame]:
    """Two scans of one participant of AD with these sums by region, and their predictions."""
    rows = [
        dict(participant_id="sub-1", scan_id=f"I{scan}", map="lrpB000", group=group, n_voxels=voxels[group], sum=value)
        | dict(density=value / voxels[group], gain=np.nan)
        for group, values in sums.items()
        for scan, value in enumerate(values)
    ]
    predictions = [
        {
            "participant_id": "sub-1",
            "scan_id": f"I{scan}",
            "label": "AD",
            "outcome": "TP",
            "probability": 0.9,
            "fold": 0,
        }
        for scan in (0, 1)
    ]
    return {"relevance_bilateral": pd.DataFrame(rows), "predictions": pd.DataFrame(predictions)}


SIZES = {"Optic chiasm": 9, "Hippocampus": 900, "Thalamus": 1000}


def test_a_small_region_keeps_its_place_and_leads_nothing():
    run = record(relevance({"Optic chiasm": (9, 9), "Hippocampus": (90, 90), "Thalamus": (50, 50)}, SIZES))
    means = pd.Series({"Optic chiasm": 1.0, "Hippocampus": 0.1, "Thalamus": 0.05})
    found = leaders(run, means, "lrpB000", "density", 2)
    assert small_regions(run) == {"Optic chiasm": 9}
    assert found.regions == ("Hippocampus", "Thalamus")
    assert "optic chiasm (9 voxels, number 1)" in found.sentence
    assert leaders(run, means, "lrpB000", "sum", 1).regions == ("Optic chiasm",)
    assert leaders(run, means[["Optic chiasm"]], "lrpB000", "density", 2).regions == ("Optic chiasm",)


def test_fewest_voxels_follow_the_resolution():
    tables = relevance({"Optic chiasm": (9, 9)}, {"Optic chiasm": 72})
    assert small_regions(record(tables)) == {}
    assert small_regions(record(tables, registration={"resolution_mm": 1.0})) == {"Optic chiasm": 72}


def test_gain_over_next_to_nothing_leads_nothing():
    compared = dict(comparison="AD/CN", map="lrpB000", metric="density", group=["Hippocampus", "Thalamus"])
    compared = pd.DataFrame(compared | dict(mean_second=[0.5, 0.01], floor=0.05))
    run = record({**relevance({"Hippocampus": (1, 1), "Thalamus": (1, 1)}, SIZES), "group_comparisons": compared})
    gains = pd.Series({"Thalamus": 90.0, "Hippocampus": 3.0})
    assert leaders(run, gains, "lrpB000", "gain", 1).regions == ("Hippocampus",)
    assert leaders(run, gains, "lrpB000", "density", 1).regions == ("Thalamus",)


def test_shares_of_the_map_are_read_from_the_comparison_of_the_classes():
    table = compared(0.2).assign(mean_first=[0.5, 0.25, 7.0, 8.0], mean_second=[0.4, 0.125, 5.0, 6.0])
    others = table.assign(comparison="TP/FN", mean_first=9.0)
    run = record({"group_comparisons": pd.concat([table, others])})
    assert map_shares(run, "lrpB000", "AD").to_dict() == {"Hippocampus": 0.5, "Thalamus": 0.25}
    assert map_shares(run, "lrpB000", "CN").to_dict() == {"Hippocampus": 0.4, "Thalamus": 0.125}
    assert map_shares(record({}), "lrpB000", "AD").empty


def compared(p_share: float) -> pd.DataFrame:
    rows = [("share", "Hippocampus", 0.2, p_share, 1.5), ("share", "Thalamus", -0.1, 0.6, -0.4),
            ("density", "Hippocampus", 1.0, 0.001, 3.0), ("density", "Thalamus", 1.0, 0.002, 2.0)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["metric", "group", "difference", "p_fwe", "hedges_g"])
    return table.assign(comparison="AD/CN", map="lrpB000", n_first=15, n_second=14)


def test_ranks_are_named_where_they_disagree_with_means():
    table = compared(0.2).assign(superiority=[0.81, 0.4, 0.9, 0.9], p_fwe_ranks=[0.004, 0.5, 0.001, 0.2])
    run = record({"group_comparisons": table})
    share, density = table[table["metric"] == "share"], table[table["metric"] == "density"]
    start = " By ranks, which no single person's value can move: "
    assert by_ranks("AD", "CN", share) == f"{start}also hippocampus (AD above CN in 81 % of pairs)."
    assert by_ranks("AD", "CN", density) == f"{start}not thalamus."
    assert by_ranks("AD", "CN", share.assign(p_fwe_ranks=share["p_fwe"])) == ""
    assert by_ranks("AD", "CN", compared(0.2)) == ""  # a table of an earlier version
    assert f"{start}also hippocampus" in COMPARISONS.answered(run).grounds


def test_groups_differ_by_their_share_of_the_map_first():
    none = COMPARISONS.answered(record({"group_comparisons": compared(0.2)}))
    assert none.answer == "In none of 2 regions does the share of the map differ after correction."
    assert "0 of 2 regions with a corrected p (family-wise, largest statistic) below 0.05 (smallest: p" in none.grounds
    assert "By density it is 2 of 2" in none.grounds
    some = COMPARISONS.answered(record({"group_comparisons": compared(0.01)}))
    assert some.answer == "Of the map of AD, more in hippocampus (g 1.50)."
    assert "15 participants of AD against 14 of CN" in some.grounds
    assert COMPARISONS.answered(record({})) is None


def test_leading_regions_with_a_smaller_share_in_the_positive_class_are_told():
    regions = ("Thalamus", "Hippocampus")
    table = compared(0.01)
    assert smaller_shares(record({"group_comparisons": table}), "lrpB000", regions) == ""
    less = table.assign(p_fwe=0.01)
    said = smaller_shares(record({"group_comparisons": less}), "lrpB000", regions)
    assert "thalamus (g −0.40) holds a smaller share of the map in AD than in CN" in said
    assert smaller_shares(record({"group_comparisons": less}), "lrpB000", ("Hippocampus",)) == ""
    assert smaller_shares(record({}), "lrpB000", regions) == ""


@pytest.mark.parametrize(
    ("low", "high", "p", "said"),
    [
        (-0.81, -0.09, 0.25, "LRP β=0 has an interval without 0 but a corrected p not below 0.05: intervals"),
        (0.18, 0.74, 0.25, "LRP β=0 has an interval without 0 but a corrected p not below 0.05: intervals"),
        (-0.5, 0.1, 0.01, "LRP β=0 has an interval with 0 but a corrected p below 0.05: intervals"),
        (-0.5, 0.1, 0.25, ""),
        (-0.81, -0.09, 0.01, ""),
        (float("nan"), float("nan"), 0.01, ""),
        (-0.81, -0.09, float("nan"), ""),
    ],
)
def test_an_interval_that_seems_to_contradict_its_p_is_explained(low, high, p, said):
    text = interval_against_p([("LRP β=0", Estimate(-0.3, low, high, 13, 15, p_fdr=p))])
    assert text.startswith(said)
    assert bool(text) == bool(said)


def test_both_maps_are_named_where_both_intervals_seem_to_contradict_their_p():
    both = [(name, Estimate(-0.3, -0.8, -0.1, 13, 15, p_fdr=0.2)) for name in ("LRP β=0", "LRP β=1")]
    assert interval_against_p(both).startswith("LRP β=0 and LRP β=1 have intervals without 0 but")


def test_overlap_between_values_of_beta_has_its_yardstick_from_the_table():
    rows = pd.DataFrame(
        {"between": ["betas", "folds"], "metric": "density", "scans": "all", "overlap_chance": [0.149, 0.5]}
    )
    assert _by_chance(record({"ranking_agreement": rows})) == ", 15 % is what random rankings share"
    assert _by_chance(record({})) == ""


def test_correlations_are_told_within_a_class_only():
    rows = dict(scan_group=["all", "AD"], map="lrpB000", metric="density", biomarker="mmse", estimator="pearson")
    rows = pd.DataFrame(rows | dict(group="Hippocampus", r=[-0.9, -0.3], p_fwe=[0.001, 0.4], n_participants=[30, 15]))
    found = ASSOCIATIONS.answered(record({"associations": rows}))
    assert found.answer == "Not shown within a class."
    assert "within AD: 0 of 1 correlation" in found.grounds
    assert "r\xa0=\xa0−0.30, n = 15" in found.grounds
    assert ASSOCIATIONS.answered(record({"associations": rows[:1]})) is None


@pytest.mark.parametrize(
    ("p", "answer"),
    [(0.012, "Yes, within a class and in some regions."),
     (0.013, "Within a class, some correlations are significant, but so few may be chance in 4 sets of tests.")],
)  # fmt: skip
def test_correlations_of_many_measures_and_estimators_are_corrected_over_these_too(p, answer):
    rows = dict(scan_group="AD", map="lrpB000", metric="density", biomarker=["mmse", "mmse", "tau", "tau"])
    rows |= dict(estimator=["pearson", "spearman"] * 2, group="Hippocampus", r=-0.5, p_fwe=[p, 0.4, 0.5, 0.6])
    rows = pd.DataFrame(rows | dict(n_participants=15))
    assert ASSOCIATIONS.answered(record({"associations": rows})).answer == answer


@pytest.mark.parametrize(
    ("p", "answer"),
    [
        (0.058, "None of the 2 comparisons that could be made finds a difference after correction. Among so"),
        (0.01, "It works better or worse in women and men than in others."),
    ],
)
def test_subgroups_are_named_with_n_and_what_survives(p, answer):
    rows = pd.DataFrame({
        "variable": ["sex", "sex", "site", "site", "mmse"], "level": ["F", "M", 990, 991, None],
        "metric": ["balanced_accuracy"] * 3 + [None, None],  # a whole subgroup, and a variable, without any measure
        "estimate": [1.0, 0.87, np.nan, np.nan, np.nan], "rest": [0.87, 1.0, np.nan, np.nan, np.nan],
        "p_fdr": [p, p, np.nan, np.nan, np.nan], "n_participants": [15, 16, 4, 3, 0],
    })  # fmt: skip
    found = SUBGROUPS.answered(record({"fairness": rows}))
    assert found.answer.startswith(answer)
    assert "2 subgroups by sex, n = 15 to 16; 2 more have too few people" in found.grounds
    assert f"women, 1.00 against 0.87, corrected p\xa0=\xa00.0{str(p)[3:].ljust(2, '0')}" in found.grounds


def test_a_difference_in_sensitivity_alone_is_told():
    rows = pd.DataFrame({"variable": "sex", "level": "F", "metric": ["balanced_accuracy", "sensitivity"]}).assign(
        estimate=[0.8, 0.6], rest=[0.85, 0.95], p_fdr=[0.4, 0.02], n_participants=15
    )
    found = SUBGROUPS.answered(record({"fairness": rows}))
    assert found.answer == "It works better or worse in women than in others."
    assert "After correction: women, sensitivity 0.60 against 0.95, corrected p\xa0=\xa00.020." in found.grounds


@pytest.mark.parametrize(
    ("people", "events", "p", "answer"),
    [(5, 4, 0.03, "Cannot be answered with n = 5 people with MCI and 4 conversions."),
     (40, 4, 0.03, "Cannot be answered with n = 40 people with MCI and 4 conversions."),
     (40, 12, 0.03, "Better than guessing."), (40, 12, 0.2, "Not shown.")],
)  # fmt: skip
def test_progression_begins_with_whether_it_can_be_answered(people, events, p, answer):
    rows = pd.DataFrame([{"predictor": "model", "measure": "concordance", "estimate": 0.7, "ci_low": 0.5,
                          "ci_high": 0.9, "p": p, "n_participants": people, "n_events": events,
                          "event": "AD at any visit"}])  # fmt: skip
    found = PROGRESSION.answered(record({"progression": rows}))
    assert found.answer.startswith(answer)
    assert f"n = {people}, {events} conversions (AD at any visit)" in found.grounds
    assert "uncorrected p" in found.grounds


@pytest.mark.parametrize(
    ("beyond", "shift", "answer"),
    [
        (0.04, 0.0, "Controls score as the norms predict."),
        (0.2, 0.0, "The norms do not fit well in the tails."),
        (0.04, -0.1, "The norms do not fit well at the centre."),
        (0.2, -0.1, "The norms do not fit well in the tails and at the centre."),
    ],
)
def test_norms_fit_by_the_scores_of_controls(beyond, shift, answer):
    rows = pd.DataFrame({"fold": "all", "source": "lrpB000", "group": ["A", "B"], "n_controls": 60}).assign(
        mean_z=[0.1 + shift, -0.4 + shift], beyond=beyond
    )
    kinds = pd.DataFrame({"source": "lrpB000", "k": [1, 2, 3], "chosen": [True, False, False], "n_participants": 15})
    found = NORMS.answered(record({"w_calibration": rows, "subtype_numbers": kinds}))
    assert found.answer.startswith(answer)
    centre, furthest = ("−0.25", "−0.50") if shift else ("−0.15", "−0.40")
    assert f"their mean z is {centre} (0 if they fit), the largest of a region {furthest} (b)" in found.grounds
    assert "No subtypes: one group fits better than 2 to 3 (n = 15 of AD" in found.grounds


def test_sites_are_told_before_and_after_harmonisation():
    rows = pd.DataFrame({"source": ["lrpB000", "volume"], "group": "Cuneus", "effect": "location"}).assign(
        n_participants=30, n_sites=3, fold_held=[True, False], p_fwe_before=[0.5, 0.01], p_fwe_after=[0.9, 0.8]
    )
    rows = pd.concat([rows, rows[:1].assign(effect="scale", p_fwe_before=0.03)])
    found = HARMONISATION.answered(record({"site_effects": rows}))
    assert (
        found.answer == "No effect of the site was found on the leading map. Volumes differ between sites in 1 region."
    )
    assert "n = 30 of 3 sites, test fold held" in found.grounds
    assert "p\xa0=\xa00.010, Cuneus) before, 0 after" in found.grounds
    assert "in spread 1 of 1 region with a corrected p (family-wise, largest statistic) below 0.05" in found.grounds
    others = rows[:1].assign(source="lrpB100", p_fwe_before=0.044, p_fwe_after=0.024)
    beside = HARMONISATION.answered(record({"site_effects": pd.concat([rows, others])})).answer
    assert "Other maps: in 1 region, corrected map by map (clearest: LRP β=1, cuneus" in beside
    assert "family-wise p\xa0=\xa00.044 before, p\xa0=\xa00.024 after" in beside


@pytest.mark.parametrize(("low", "p", "answer"), [
    (1.5, 0.9, "Possibly: there is more relevance than expected in fluid. "
     "Site could not be predicted from the map better than by chance."),
    (0.9, 0.01, "No place is shown to hold more relevance than expected. Site can be predicted from the map."),
    (np.nan, 0.01, "Possibly: there is more relevance than expected in fluid. Site can be predicted from the map."),
])  # fmt: skip
def test_shortcuts_of_the_leading_map(low, p, answer):
    places = pd.DataFrame({"map": ["lrpB000", "gb"], "compartment": "fluid", "enrichment": [1.8, 5.0]}).assign(
        ci_low=[low, 4.0], ci_high=2.0, n_participants=30
    )
    read = pd.DataFrame({"map": ["lrpB000", "lrpB100"], "target": "site", "balanced_accuracy": 0.4}).assign(
        chance=0.33, p_fwe=[p, 0.001], n_participants=30
    )
    found = SHORTCUTS.answered(record({"shortcuts": places, "site_prediction": read}))
    assert found.answer == f"{answer} From other maps: site from LRP β=1 (family-wise corrected p\xa0=\xa00.0010)."
    assert "n = 30" in found.grounds


def test_without_intervals_and_without_more_than_its_share_nothing_is_told():
    places = pd.DataFrame({"map": "lrpB000", "compartment": "fluid", "enrichment": [1.05], "ci_low": np.nan}).assign(
        ci_high=np.nan, n_participants=30
    )
    found = SHORTCUTS.answered(record({"shortcuts": places}))
    assert found.answer == "Whether relevance gathers in some places could not be tested."


@pytest.mark.parametrize(("enrichment", "low", "raised"), [
    (1.8, 1.5, True), (1.8, 0.9, False), (1.05, 1.02, False), (1.8, np.nan, True), (1.05, np.nan, False),
    (0.6, np.nan, False), (np.nan, np.nan, False),
])  # fmt: skip
def test_relevance_where_there_is_no_tissue_is_told_without_an_interval_too(enrichment, low, raised):
    """The same enrichment in all people has no interval: the estimate itself is then what counts."""
    places = pd.DataFrame({"map": "lrpB000", "compartment": "fluid", "enrichment": [enrichment], "ci_low": low}).assign(
        ci_high=low + 1, n_participants=30
    )
    run = record({"shortcuts": places})
    caution, verdict = _gathered_outside(facts(run)), SHORTCUTS.answered(run)
    assert (caution is not None) == raised
    assert verdict.answer.startswith("Possibly") == raised
    if caution is not None:
        assert "fluid (1.8 times its share)" in caution.text
        bounds = "no interval" if np.isnan(low) else "1.5 to 2.5"
        assert f"fluid 1.8 ({bounds}, n = 30)" in verdict.grounds


@pytest.mark.parametrize(("w", "word"), [(0.9, "largely agree"), (0.6, "agree in part"), (0.4, "hardly agree")])
def test_agreement_is_that_of_the_least_agreeing(w, word):
    rows = dict(between=["folds", "betas"], map=["lrpB000", None], metric="density", scans="all", n_rankings=4)
    rows |= dict(n_regions=67, kendall_w=[0.95, w], p=0.001, top=10, overlap=[0.4, 0.8], overlap_chance=0.15)
    rows = pd.DataFrame(rows | dict(n_participants=30))
    found = AGREEMENT.answered(record({"ranking_agreement": rows}))
    assert found.answer == (
        f"Rankings of regions {word}, least between values of β: mean rank correlation {(4 * w - 1) / 3:.2f}. Of the "
        "first 10 regions, networks of different folds (LRP β=0) share 40 % (15 % by chance)."
    )
    assert "networks of different folds (LRP β=0) 0.93, W\xa0=\xa00.95, 4 rankings" in found.grounds


def test_two_rankings_do_not_seem_more_alike_than_five_because_w_depends_on_their_number():
    generator = np.random.default_rng(3)
    for n_rankings in (2, 5):
        ranks = np.array([generator.permutation(30) + 1 for _ in range(n_rankings)])
        spread = ((ranks.sum(axis=0) - ranks.sum(axis=0).mean()) ** 2).sum()
        w = pd.Series([12 * spread / (n_rankings**2 * (30**3 - 30))])
        pairs = np.corrcoef(ranks)[np.triu_indices(n_rankings, 1)].mean()
        assert mean_rank_correlation(w, pd.Series([n_rankings])).iloc[0] == pytest.approx(pairs)


def test_codes_and_sources_are_in_words_on_the_page():
    scans = pd.DataFrame(
        {
            "kept": True,
            "hippocampus_mm3": [5000.0, 5200.0, np.nan],
            "hippocampus_source": ["ADNIMERGE (FreeSurfer)", "Jacobian of the registration, x", "lost"],
        }
    )
    rows = pd.DataFrame([{"biomarker": "hippocampus/tiv", "covariates": "fold, age, sex[T.M]", "r": 0.1, "p_fwe": 0.5,
                          "note": "sex[T.M]: follows from the others"}])  # fmt: skip
    run = record({"scans": scans, "associations": rows})
    assert hippocampal_source(run) == "ADNIMERGE and own, Jacobian of the registration"
    view = View("associations", "Correlations.", ("biomarker", "covariates", "r", "note"), leading=False)
    material = Material(run, Gallery(FOLDER))
    cells = [cell.text for cell in show_view(view, material).table.rows[0]]
    assert cells[:3] == [
        f"hippocampal volume ÷ intracranial volume ({hippocampal_source(run)})",
        "test fold, age, sex",
        "0.10",
    ]
    optional = View("associations", "None.", ("r",), where={"biomarker": ["mmse"]}, optional=True)
    assert show_view(optional, material) is None


@pytest.mark.parametrize(
    ("finding", "kind", "named"),
    [
        ("p_fwe", "family-wise", "family-wise, largest statistic"),
        ("p_fdr", "FDR", "FDR, Benjamini–Hochberg"),
    ],
)
def test_every_corrected_p_says_how(finding, kind, named):
    run = record({"associations": pd.DataFrame({"r": [0.5, 0.1], finding: [0.01, 0.6]})})
    shown = show_view(
        View("associations", "All.", ("r", finding), leading=False, finding=finding), Material(run, Gallery(FOLDER))
    )
    assert shown.sentence == f"1 of 2 tests shown here with a corrected p ({named}) below 0.05."
    assert declared_column(finding, "").title == f"Corrected p ({kind})"


def test_a_difference_within_folds_is_not_that_of_the_means_beside_it():
    assert "not the difference of the two means" in difference_in_words(pd.DataFrame({"fold_held": [True, None]}))
    assert difference_in_words(pd.DataFrame({"fold_held": [False, None]})) == ""


def test_classes_in_the_flow_chart_are_scans():
    assert _split(record({}), pd.DataFrame({"label": ["AD", "CN", "CN"]})) == "scans: AD 1, CN 2"
    assert _split(record({}), pd.DataFrame({"label": []})) == ""
    assert _split(record({}), pd.DataFrame({"label": ["AD", None, "CN", "MCI"]})) == "scans: AD 1, CN 1, other 2"


def test_each_part_of_a_rule_of_inclusion_is_a_box_of_the_flow_chart():
    reasons = [None, None, "empty file", "not included (age >= 60)", "not included (cdr >= 0), as the value is missing"]
    reasons.append("another scan of this session is preferred: I9")
    scans = dict(participant_id=[f"sub-{n}" for n in range(6)], scan_id=[f"I{n}" for n in range(6)], session_id=None)
    scans |= dict(kept=[reason is None for reason in reasons], reason=reasons, label=["CN", "AD", *[None] * 4])
    scans = pd.DataFrame(scans | dict(diagnosis="CN"))
    boxes, said = flow(record({"scans": scans}, cohort={"include": "age >= 60 and cdr >= 0"}))
    assert [(box.title, box.lines[0], box.lost) for box in boxes[:5]] == [
        ("Found", "6 scans of 6 participants", []),
        ("Usable", "5 scans of 5 participants", ["1 scan dropped:", "1 × empty file"]),
        ("age >= 60", "4 scans of 4 participants", ["1 scan not met"]),
        ("cdr >= 0", "3 scans of 3 participants", ["1 scan with a missing value"]),
        ("Kept", "2 scans of 2 participants", ["1 scan dropped:", f"1 × {reasons[5]}"]),
    ]
    assert "age >= 60 4 scans of 4 participants, cdr >= 0 3 scans" in said


def test_several_networks_are_said_to_be_held_apart_in_tests():
    tables = relevance({"Hippocampus": (1, 1)}, SIZES)
    assert "Every test on relevance is adjusted for the fold" in _several_networks(record(tables, models=2)).text
    free = record(tables, models=2, statistics={"fold_effect": False})
    assert "are not adjusted for the fold" in _several_networks(free).text


def test_first_use_of_a_word_leads_to_the_glossary_and_text_stays_text():
    said = linked("<b>relevance</b> and relevance, correction, Out-of-fold; irrelevance")
    assert said.count('href="#term-relevance"') == 1
    assert said.startswith("&lt;b&gt;<a ")
    assert "#term-corrected" in said
    assert "#term-fold" in said
    assert len({term.id for term in GLOSSARY}) == len(GLOSSARY)
    assert all(term.meaning.format(positive="AD", negative="CN", start="logit") for term in GLOSSARY)


def test_the_page_of_words_is_the_reports_glossary() -> None:
    page = Path(__file__).parents[2] / "docs" / "glossary.md"
    assert page.read_text(encoding="utf-8") == glossary_page(), REMEDY


@pytest.mark.parametrize(("last", "said"), [(0.3, "The sign depends on β"), (-0.1, "The sign is the same for every β")])
def test_whether_the_correlation_turns_with_beta_is_told(last, said):
    rows = pd.DataFrame(
        dict(map=["lrpB000", "lrpB100"], volume=ADJUSTED, unit="participant", estimator="pearson", r=[-0.58, last])
        | dict(ci_low=-0.9, ci_high=0.9, p=0.1, p_fdr=0.2, fold_held=True, n_participants=13, n_scans=15)
    )
    text = _hippocampus(record({"volume_association": rows}))
    assert text.startswith(said)
    assert "from −0.58 (β = 0) to" in text
    assert "(β = 1). None is significant after correction (FDR)." in text
    clear = _hippocampus(record({"volume_association": rows.assign(p_fdr=[0.2, 0.01])}))
    assert "survives" not in clear


def test_a_region_page_names_measures_and_covariates_in_words():
    rows = pd.DataFrame({"biomarker": ["own volume/tiv", "cdrsb"], "covariates": "fold, sex[T.M]"}).assign(
        map="lrpB000", group="Hippocampus", metric="density", r=0.5, p_fwe=[0.01, 0.2]
    )
    cells = [
        [cell.text for cell in row] for row in associations_by_group(record({"associations": rows}))["Hippocampus"].rows
    ]
    assert cells[0][:2] == [f"the region's own volume ÷ intracranial volume ({OWN})", "test fold, sex"]
    assert cells[1][0] == "CDRSB"


def test_a_table_that_says_which_p_it_holds_calls_none_uncorrected():
    run = record({})
    assert columns_of(run, "planted_effects", ["p", "p_is"])[0].title == "p"
    assert columns_of(run, "associations", ["p", "p_fwe"])[0].title == "Uncorrected p"
    assert columns_of(run, "shortcuts", ["enrichment_positive"])[0].title == "In AD"
    assert columns_of(run, "region_summary", ["mean_sum"], mean_sum="Sum, {positive}")[0].title == "Sum, AD"
    assert worded("p_fwe_before") == "family-wise, before ComBat"
