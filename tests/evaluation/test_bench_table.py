"""Rows and verdicts of the bench, its intervals, and maps that cannot be made."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.stats import spearmanr

from heatlas.pipeline.cohort.people.splits import Fold, Split
from heatlas.pipeline.cohort.records import Scan
from heatlas.pipeline.evaluation.bench import scan_job
from heatlas.pipeline.evaluation.bench.judging import CohortMaps, Extent, Judge, class_difference, densities
from heatlas.pipeline.evaluation.bench.part import with_shifts_of_first
from heatlas.pipeline.evaluation.bench.scan_job import SHIFTED
from heatlas.pipeline.evaluation.bench.table import evaluation_table, shift_curve
from heatlas.pipeline.evaluation.bench.verdicts import distractor_table, verdict_table
from heatlas.pipeline.evaluation.cohorts import PLANTED as COPIES
from heatlas.pipeline.evaluation.cohorts import Distractor, JudgedCohort, Truth
from heatlas.pipeline.evaluation.scores.accuracy import participant_interval
from heatlas.pipeline.evaluation.scores.faithfulness import Faithfulness
from heatlas.pipeline.evaluation.scores.localisation import rank_correlation
from heatlas.pipeline.evaluation.scores.map_scores import ScanMasks, map_row, score_map, set_scores
from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.statistics import EvaluationConfig
from heatlas.pipeline.run.errors import BadInputError, UsageError
from heatlas.pipeline.run.layout.run_layout import EvaluationLayout

# Rows and verdicts of the bench from sums over regions that are known.

GROUPS = tuple(f"group {letter}" for letter in "abcdefghijklmnopqrst")
PLANTED = GROUPS[:2]
UNUSED = GROUPS[2]
PEOPLE = tuple((f"sub-{i:02d}", "AD" if i % 2 else "CN", i // 6) for i in range(12))


def cohort(truth: Truth | None) -> JudgedCohort:
    scans = tuple(Scan(name, None, f"I{name[4:]}", None, label=label) for name, label, _ in PEOPLE)
    folds = []
    for index in (0, 1):
        test = tuple(name for name, _, fold in PEOPLE if fold == index)
        folds.append(Fold(index, tuple(name for name, _, fold in PEOPLE if fold != index), (), test))
    layout = EvaluationLayout(Path("run"))
    return JudgedCohort("run", layout, scans, Split(tuple(folds)), load_config(), None, truth, scans, scans)  # type: ignore[arg-type]


def rows(values: dict[tuple[str, str], dict[str, np.ndarray]], **columns: float) -> CohortMaps:
    """Sums by (network, map) and class; a class that is missing has no map."""
    scores, sums = [], {}
    random = np.random.default_rng(1)
    for (network, name), by_class in values.items():
        for person, label, fold in PEOPLE:
            scan = f"I{person[4:]}"
            known = label in by_class
            row = {"network": network, "map": name, "scan_id": scan, "fold": fold, "undefined": not known}
            logit = np.nan if network == "none" else 1.0 if label == "AD" else -1.0
            scores.append({**row, "logit": logit, "rim": 0.5, "marker": np.nan, "spearman_real": 0.0} | columns)
            if known:
                noise = 0.01 * random.standard_normal(len(GROUPS))
                sums.setdefault((network, name), {})[scan] = by_class[label] + noise
    return CohortMaps(pd.DataFrame(scores), sums, np.full(len(GROUPS), 2.0), GROUPS, {"m": "method-m"})


def at(names: tuple[str, ...], value: float = 1.0) -> np.ndarray:
    return value * np.isin(GROUPS, names).astype(float)


NOTHING = at(())
TRUTH = Truth(
    PLANTED, {f"I{i:02d}": float(i) for i in range(12)}, (Distractor("unused", "both classes", UNUSED, frozenset()),)
)
FINDS = {"AD": at(PLANTED), "CN": NOTHING}


def test_a_map_that_finds_what_was_planted_passes() -> None:
    found = rows({("real", "m"): FINDS, ("shuffled-1", "m"): {"AD": NOTHING, "CN": NOTHING}, ("untrained", "m"): FINDS})
    table = evaluation_table(cohort(TRUTH), found)
    real = table[table["network"] == "real"].iloc[0]
    assert (real["hits_difference"], real["auroc_difference"], real["n_planted"]) == (2.0, 1.0, 2)
    assert real["balanced_accuracy"] == 1.0
    verdict = verdict_table(table).iloc[0]
    assert (verdict["finds"], verdict["follows_parameters"], verdict["marks_unused"]) == ("yes", "yes", "no")
    assert verdict["verdict"].startswith("finds planted disease; tells real from shuffled labels")
    assert verdict["numbers"].startswith("2 of 2 planted groups in the first 10, AUROC 1.00; shuffled labels: ")


@pytest.mark.parametrize(
    ("shuffled", "told"),
    [({"AD": NOTHING, "CN": NOTHING}, "yes"), (FINDS, "no")],
    ids=["nothing with shuffled labels", "the same with shuffled labels"],
)
def test_what_is_found_with_labels_that_say_nothing_fails(shuffled, told) -> None:
    apart = at(GROUPS[5:17], 0.01)  # whatever a shuffled network shows differs in groups that were not planted
    shuffled = {label: values + (apart if told == "yes" and label == "AD" else 0) for label, values in shuffled.items()}
    found = rows({("real", "m"): FINDS, ("shuffled-1", "m"): shuffled, ("untrained", "m"): FINDS})
    assert verdict_table(evaluation_table(cohort(TRUTH), found)).iloc[0]["tells_labels"] == told


def test_a_map_without_a_network_tells_no_labels_and_follows_no_parameters() -> None:
    verdict = verdict_table(evaluation_table(cohort(TRUTH), rows({("none", "scanDifference"): FINDS}))).iloc[0]
    assert (verdict["finds"], verdict["tells_labels"], verdict["follows_parameters"]) == ("yes", "no", "no")
    assert not verdict["passed"]


@pytest.mark.parametrize(("unused", "marked"), [(0.2, False), (0.8, True)])
def test_a_change_that_both_classes_have_is_not_to_be_marked(unused, marked) -> None:
    both = {label: values + at((UNUSED,), unused) for label, values in FINDS.items()}
    found = rows({("real", "m"): both})
    table = evaluation_table(cohort(TRUTH), found)
    assert table["unused_ratio"].iloc[0] == pytest.approx(unused, abs=0.05)
    assert verdict_table(table).iloc[0]["marks_unused"] == ("yes" if marked else "no")
    distractors = distractor_table(cohort(TRUTH), found).set_index("kind")
    assert distractors.loc["both classes", "marked"] == marked
    assert not distractors.loc["rim", "marked"]


def test_scans_without_a_map_are_counted_and_say_nothing() -> None:
    """A map that could not be made is no map of zeros; one that is 0 everywhere is."""
    found = rows({("real", "m"): {"AD": at(PLANTED)}})
    table = evaluation_table(cohort(TRUTH), found).iloc[0]
    assert (table["n_scans"], table["n_undefined"], table["n_no_map"]) == (12, 6, 6)
    assert np.isnan(table["hits_difference"])
    assert table["hits_mean"] == 2.0  # of the patients, who have maps
    sums = {**found.sums["real", "m"]}
    for person, label, _ in PEOPLE:
        if label == "CN":
            sums[f"I{person[4:]}"] = NOTHING
    table = evaluation_table(cohort(TRUTH), dataclasses.replace(found, sums={("real", "m"): sums})).iloc[0]
    assert (table["n_undefined"], table["n_no_map"], table["hits_difference"]) == (6, 0, 2.0)
    none = evaluation_table(cohort(TRUTH), dataclasses.replace(found, sums={})).iloc[0]
    assert none["n_no_map"] == 12
    assert none[["hits_mean", "hits_difference", "unused_ratio", "dose_response"]].isna().all()


def test_a_scan_without_a_map_is_left_out_of_doses_and_ratios() -> None:
    whole = rows({("real", "m"): FINDS})
    scan = "I" + next(person[4:] for person, label, _ in PEOPLE if label == "AD")
    sums = {key: values for key, values in whole.sums["real", "m"].items() if key != scan}
    left = evaluation_table(cohort(TRUTH), dataclasses.replace(whole, sums={("real", "m"): sums})).iloc[0]
    others = [f"I{person[4:]}" for person, label, _ in PEOPLE if label == "AD" and f"I{person[4:]}" != scan]
    assert TRUTH.severity is not None
    dose = [TRUTH.severity[key] for key in others]
    planted = np.isin(GROUPS, PLANTED)
    assert left["dose_response"] == pytest.approx(spearmanr(dose, [sums[key][planted].sum() for key in others])[0])
    sizes = np.abs([sums[key] / 2 for key in others])
    ratio = sizes[:, np.isin(GROUPS, [UNUSED])].mean() / sizes[:, planted].mean()
    assert left["unused_ratio"] == pytest.approx(ratio)


def test_iou_and_box_accuracy_are_of_the_set_of_maps() -> None:
    """From the curves of each scan; maps without positive values are counted, not 0."""
    found = rows({("real", "m"): FINDS})
    mask = np.zeros((6, 6, 6), bool)
    mask[1:3, 1:4, 2:5] = True
    keys = [f"I{person[4:]}" for person, label, _ in PEOPLE if label == "AD"]
    maps = [np.where(mask, 1.0, np.linspace(0, 0.7, 6)[n] * (np.arange(216).reshape(mask.shape) % 2)) for n in range(6)]
    scored = pd.DataFrame([score_map(one if n else -one - 1, mask) for n, one in enumerate(maps)]).assign(scan_id=keys)
    scores = found.scores.merge(scored, on="scan_id", how="left")
    scores["no_positive"] = (scores["scan_id"] == keys[0]).astype(float)
    row = evaluation_table(cohort(TRUTH), dataclasses.replace(found, scores=scores)).iloc[0]
    assert row["n_no_positive"] == 1
    assert row["f1"] == pytest.approx(scored["f1"].iloc[1:].mean())
    assert {name: row[name] for name in ("iou", "ba")} == pytest.approx(set_scores(scored.iloc[1:], keys[1:]))
    assert row["iou"] > scored["iou_0.5"].iloc[1:].mean()


def test_without_a_truth_labels_are_judged_by_the_likeness_of_maps() -> None:
    found = rows({("real", "m"): FINDS, ("shuffled-1", "m"): FINDS, ("untrained", "m"): FINDS}, spearman_real=0.9)
    verdict = verdict_table(evaluation_table(cohort(None), found)).iloc[0]
    assert (verdict["finds"], verdict["tells_labels"], verdict["follows_parameters"]) == ("not known", "no", "no")


def test_a_map_that_is_even_everywhere_ranks_as_chance() -> None:
    found = rows({("none", "uniform"): {"AD": NOTHING + 2, "CN": NOTHING + 2}})
    for sums in found.sums.values():
        for scan in sums:
            sums[scan] = np.full(len(GROUPS), 2.0)  # type: ignore[index]
    row = evaluation_table(cohort(TRUTH), found).iloc[0]
    assert np.isnan(row["auroc_difference"])
    assert (row["auroc_mean"], row["hits_mean"]) == (0.5, 1.0)


def test_every_row_has_the_same_columns_whatever_the_network() -> None:
    found = rows({("real", "m"): FINDS, ("shuffled-1", "m"): FINDS, ("none", "edges"): FINDS})
    table = evaluation_table(cohort(TRUTH), found)
    assert len(table) == 3
    assert table[["hits_difference", "auroc_mean", "rim", "n_scans"]].notna().all(axis=None)


def test_class_differences_are_hedges_g_with_fold_held() -> None:
    """By least squares on the class and the folds, column by column."""
    random = np.random.default_rng(4)
    values, fold = random.standard_normal((20, 6)), np.repeat([0, 1], 10)
    values[fold == 1] *= 3
    positive = np.tile([True, False, False, True, False], 4)
    design = np.stack([positive, fold == 0, fold == 1], axis=1).astype(float)
    slopes, squares = np.linalg.lstsq(design, values, rcond=None)[:2]
    expected = (1 - 3 / (4 * 17 - 1)) * slopes[0] / np.sqrt(squares / 17)  # the correction to three digits
    assert hedges_g(values, positive, fold) == pytest.approx(expected, rel=1e-3)


def test_scores_of_one_map_by_hand() -> None:
    brain = np.zeros((10, 10, 10), bool)
    brain[1:9, 1:9, 1:9] = True
    labels = np.zeros(brain.shape, int)
    labels[4:6, 4:6, 4:6] = 7
    places = ScanMasks.of(brain, labels, (7,), 3.0)
    inside = np.where(labels == 7, 2.0, 0.0).astype(np.float32)
    row = map_row(inside, places, inside, structure=True)
    assert (row["undefined"], row["auroc_voxels"], row["energy"], row["rim"], row["outside"]) == (False, 1, 1, 0, 0)
    assert (row["spearman_real"], row["ssim_real"]) == (pytest.approx(1), pytest.approx(1))
    even = map_row(np.ones(brain.shape, np.float32), places, None, structure=False)
    assert (even["auroc_voxels"], even["rim"]) == (0.5, pytest.approx(1))
    assert even["energy"] == pytest.approx(8 / 512)
    assert even["outside"] == pytest.approx(1 - 512 / 1000)


def test_shares_of_small_and_large_regions_by_hand() -> None:
    """Regions of 1, 2, 3 (the middle one), 4 and 8 voxels in the brain, which leaves a voxel of the largest out."""
    labels = np.zeros((4, 5, 6), int)
    flat = labels.reshape(-1)
    for number, (start, size) in {9: (0, 1), 2: (10, 2), 7: (20, 3), 4: (30, 4), 3: (40, 9)}.items():
        flat[start : start + size] = number
    brain = np.ones(labels.shape, bool)
    brain.reshape(-1)[40] = False
    values = np.full(labels.shape, -1.0, np.float32)
    for number, value in {9: 5.0, 2: 2.0, 7: 1.0, 4: 1.0, 3: 0.5}.items():
        values[labels == number] = value
    row = map_row(values, ScanMasks.of(brain, labels, (2, 3, 4, 7, 9), 1.0), None, structure=False)
    assert row["energy"] == 1
    assert (row["energy_small"], row["energy_large"]) == (pytest.approx(9 / 20), pytest.approx(8 / 20))
    even = map_row(np.ones(labels.shape, np.float32), ScanMasks.of(brain, labels, (2, 9), 1.0), None, structure=False)
    assert (even["energy_small"], even["energy_large"]) == (pytest.approx(1 / 119), pytest.approx(2 / 119))
    one = map_row(values, ScanMasks.of(brain, labels, (3,), 1.0), None, structure=False)
    assert np.isnan([one["energy_small"], one["energy_large"]]).all()  # type: ignore[list-item]
    assert one["energy"] == pytest.approx(4 / 20)


@pytest.mark.parametrize("broken", [0.0, np.nan, np.inf], ids=["zero", "NaN", "infinite"])
def test_a_map_of_nothing_is_undefined(broken) -> None:
    brain = np.ones((7, 7, 7), bool)
    row = map_row(
        np.full(brain.shape, broken, np.float32), ScanMasks.of(brain, np.ones(brain.shape, int), (), 2.0), None, False
    )
    assert row["undefined"] is True
    assert all(np.isnan(value) for name, value in row.items() if name != "undefined")


def test_rank_correlation_of_a_constant_is_not_known() -> None:
    assert np.isnan(rank_correlation(np.ones(5), np.arange(5.0)))


def test_masked_recognition_has_an_interval_over_people() -> None:
    """Six positive scans: an increase in two of them is a third, and moves in steps of a sixth."""
    found = rows({("real", "m"): FINDS})
    positive = [f"I{name[4:]}" for name, label, _ in PEOPLE if label == "AD"]
    ai = dict(zip(positive, [100.0, 100.0, 0.0, 0.0, 0.0, 0.0], strict=True))
    scores = found.scores.assign(ai=found.scores["scan_id"].map(ai), ad=10.0, ag=0.0)
    table = evaluation_table(cohort(None), dataclasses.replace(found, scores=scores))
    row = table.iloc[0]
    assert (row["n_seen"], row["ai"]) == (6, pytest.approx(100 / 3))
    assert 0 <= row["ai_low"] < 100 / 3 < row["ai_high"] <= 100
    assert np.isnan(row["ad_low"])  # all alike: an interval without width would claim certainty


@pytest.mark.parametrize(("asked", "thorough"), [(0, 6), (1, 2), (2, 4)])
def test_how_many_scans_are_judged_thoroughly(asked, thorough, monkeypatch) -> None:
    monkeypatch.setattr("heatlas.pipeline.evaluation.bench.judging.controls_of", lambda *_: None)
    config = load_config(overrides={"evaluation": {"scans": asked}})
    judge = Judge(dataclasses.replace(cohort(None), config=config), (), Extent(), None)
    assert (len(judge._thorough), len(judge._first)) == (thorough, 2)


def test_where_a_number_is_predicted_regions_are_ranked_by_their_slope_on_it() -> None:
    """The first group rises by 9 per standard deviation of age, the second falls by 1, within two folds."""
    whole = cohort(None)
    ages = {scan.scan_id: float(55 + 3 * n) for n, scan in enumerate(whole.scans)}
    scans = tuple(dataclasses.replace(scan, label=str(ages[scan.scan_id])) for scan in whole.scans)
    config = load_config(overrides={"cohort": {"target": "age"}})
    judged = dataclasses.replace(whole, scans=scans, config=config)
    z = np.array([*ages.values()])
    z = (z - z.mean()) / z.std()
    noise = np.random.default_rng(5).standard_normal((12, 20))
    slopes = np.array([9.0, -1.0, *np.zeros(18)])
    values = z[:, None] * slopes + noise
    sums = {("real", "m"): {scan.scan_id: 2 * row for scan, row in zip(scans, values, strict=True)}}
    scores = pd.DataFrame(
        {"network": "real", "map": "m", "scan_id": [*ages], "fold": 0, "undefined": False, "logit": 1.0}
    )
    found = CohortMaps(scores, sums, np.full(20, 2.0), GROUPS, {"m": "method-m"})
    assert judged.positive == scans
    row = evaluation_table(judged, found).iloc[0]
    assert row["first_groups"].split("; ")[0] == GROUPS[0]
    assert np.isnan(row["balanced_accuracy"])
    table = densities(judged, found, "real", "m", set(ages))
    g = class_difference(table, paired=False)
    fold = np.array([judged.fold_of(scan) for scan in scans])
    held = np.column_stack([z, fold == 0, fold == 1]).astype(float)
    fit, residual, *_ = np.linalg.lstsq(held, values, rcond=None)
    freedom = 12 - 3
    correction = 1 - 3 / (4 * freedom - 1)  # the usual approximation of the exact one
    np.testing.assert_allclose(g, correction * fit[0] / np.sqrt(residual / freedom), rtol=2e-3)


def test_the_curve_of_shifts_is_a_mean_over_people_with_their_interval() -> None:
    """By the true network alone, in rising order; people without a map are left out."""
    asked = dataclasses.replace(cohort(None).config, evaluation=EvaluationConfig(shifts=(4, 8, 0)))
    judged = dataclasses.replace(cohort(None), config=asked)
    found = rows({("real", "m"): FINDS, ("shuffled-1", "m"): FINDS})
    values = np.linspace(0.2, 0.8, len(PEOPLE))
    for shift, factor in ((0, 0.0), (4, 1.0)):
        both = np.where(np.arange(2 * len(PEOPLE)) < len(PEOPLE), np.tile(1 - factor * values, 2), -9.0)
        found.scores[f"correlation_{shift}"], found.scores[f"cosine_{shift}"] = both, both / 2
        found.scores[f"in_place_{shift}"] = 0.1
        found.scores[f"lost_{shift}"] = 0.0
    found.scores.loc[0, "correlation_4"] = np.nan
    found.scores.loc[0, "lost_4"] = 0.012
    found.scores[["correlation_8", "cosine_8", "in_place_8"]] = np.nan
    found.scores["lost_8"] = 0.05
    table = shift_curve(judged, found)
    assert table["shift"].tolist() == [0, 4, 8]
    assert table["method"].tolist() == ["method-m"] * 3
    assert table["n_participants"].tolist() == [12, 11, 0]
    assert table["lost"].tolist() == pytest.approx([0, 0.001, 0.05])
    assert pd.isna(table.loc[0, "note"])
    assert table.loc[1, "note"].startswith("1 of 12 participants have no value: more than 0.1 % of the brain leaves")
    assert table.loc[2, "note"].startswith("12 of 12 ")
    assert table.loc[2, "correlation":"in_place_high"].isna().all()
    table = table[table["shift"] < 8]
    assert table["correlation"].tolist() == pytest.approx([1, np.mean(1 - values[1:])])
    assert table["cosine"].tolist() == pytest.approx([0.5, np.mean(1 - values[1:]) / 2])
    assert table.loc[0, ["correlation_low", "correlation_high"]].isna().all()  # all alike: nothing to draw from
    low, high = table.loc[1, ["correlation_low", "correlation_high"]]
    assert (1 - values[1:]).min() < low < table.loc[1, "correlation"] < high < (1 - values[1:]).max()
    assert shift_curve(judged, rows({("real", "m"): FINDS})).empty  # faithfulness was not asked


def test_maps_of_moved_scans_are_made_for_the_cohort_of_the_table_alone() -> None:
    """Of planted copies no curve is written, so none is made; all else that is asked of them stays."""
    config = dataclasses.replace(cohort(None).config, evaluation=EvaluationConfig(shift=2, shifts=(0, 4), samples=3))
    asked = dataclasses.replace(cohort(None), config=config)
    planted = dataclasses.replace(asked, name=COPIES)
    first, second = with_shifts_of_first([(asked, Extent()), (planted, Extent(shuffles=1))])
    assert first == (asked, Extent())
    assert (second[0].name, second[1]) == (COPIES, Extent(shuffles=1))
    assert second[0].config.evaluation == EvaluationConfig(shift=2, samples=3)
    assert with_shifts_of_first([(planted, Extent())]) == [(planted, Extent())]  # the table is of the planted copies
    scores = rows({("real", "m"): FINDS})
    for name in (*SHIFTED, "lost"):
        scores.scores[f"{name}_0"] = scores.scores[f"{name}_4"] = 0.0
    assert set(shift_curve(planted, scores)["cohort"]) == {COPIES}


# Bootstrap interval of participants: draws in which a statistic does not exist.


def mean_of_few(values: np.ndarray, has: np.ndarray) -> float:
    """Mean of those who have a value; NaN of nobody."""
    return float(values[has > 0].mean()) if (has > 0).any() else float("nan")


def test_draws_without_a_value_are_left_out_and_do_not_count_as_0() -> None:
    values, has = np.array([5.0, 6.0, 7.0, 8.0, 9.0, 9.5]), np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    low, high = participant_interval((values, has), mean_of_few, 2000, 0)
    assert (low, high) == (5.0, 6.0)  # 9 % of the draws have nobody, which as 0 would be the lower bound


def test_no_interval_where_most_draws_have_no_value() -> None:
    values = np.arange(20.0)

    def rarely(drawn: np.ndarray) -> float:
        return float(drawn.mean()) if drawn.max() < 15 else float("nan")

    assert np.isnan(participant_interval((values,), rarely, 500, 0)).all()


def test_without_gaps_it_is_scipys() -> None:
    values = np.random.default_rng(0).normal(size=30)
    wanted = stats.bootstrap((values,), np.mean, n_resamples=500, method="BCa", random_state=np.random.default_rng(3))
    assert participant_interval((values,), np.mean, 500, 3) == pytest.approx(tuple(wanted.confidence_interval))


# What the bench does with a map that cannot be made of one network or one volume: the others go on.

VOLUME = torch.rand(1, 1, 4, 5, 6, generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=[UsageError, BadInputError])
def refused(request, monkeypatch) -> type[Exception]:
    def refuse(*_: object) -> None:
        raise request.param("integrated-gradients: completeness error")

    monkeypatch.setattr(scan_job, "attribute_all", refuse)
    return request.param


def asked() -> Any:
    return SimpleNamespace(names=("one", "two"), target="AD", start="logit", build=lambda _: None, stage_in=lambda _: 0)


def loaded() -> Any:
    return SimpleNamespace(model=None, classes=["CN", "AD"], input=SimpleNamespace(box=None))


def test_a_map_that_is_refused_is_a_row_that_says_why(refused) -> None:
    rows = list(scan_job._answers("shuffled-1", asked(), loaded(), None, VOLUME, {"fold": 1}))
    assert [(row.name, row.values, row.facts["fold"]) for row in rows] == [("one", None, 1), ("two", None, 1)]
    assert all(row.facts["note"] == "integrated-gradients: completeness error" for row in rows)


def test_scores_that_need_another_map_are_not_known_where_it_is_refused(refused) -> None:
    network = SimpleNamespace(load=lambda _: loaded(), reference=lambda _: None)
    task: Any = SimpleNamespace(explanations=(asked(),), networks=(SimpleNamespace(network=network),), atlas=None)
    one = scan_job.OneMap("real", "two", VOLUME[0, 0], {})
    again = scan_job._made_again(one, task, torch.device("cpu"))
    found = Faithfulness(lambda v: v.flatten(1).mean(1), VOLUME[0, 0], torch.ones(4, 5, 6).long()).scores(
        VOLUME[0, 0], again
    )
    assert math.isnan(found["adcc"])
    assert math.isnan(found["max_sensitivity"])
    assert 0 < found["insertion"] < 1


def test_every_shift_has_columns_and_a_map_that_stays_is_worth_what_it_has_in_place() -> None:
    """The brain has two voxels to spare on every side; 3 push a part of it out, so nothing is compared."""
    settings = EvaluationConfig(shift=1, shifts=(0, 2, 3))
    scan = torch.rand((8, 9, 10), generator=torch.Generator().manual_seed(6))
    within = torch.zeros(scan.shape, dtype=torch.bool)
    within[2:-2, 2:-2, 2:-2] = True
    moving = scan_job._moved(lambda x: x**2, scan, scan**2, within, settings)
    names = (*scan_job.SHIFTED, "lost")
    assert set(moving) == {"shift_correlation", *(f"{name}_{shift}" for name in names for shift in (0, 2, 3))}
    assert [moving[f"lost_{shift}"] for shift in (0, 2)] == [0, 0]
    assert moving["lost_3"] == pytest.approx(1 - 3 * 4 * 5 / (4 * 5 * 6))
    assert all(math.isnan(moving[f"{name}_3"]) for name in scan_job.SHIFTED)
    assert math.isnan(scan_job._moved(lambda x: x, scan, scan, within, EvaluationConfig(shift=3))["shift_correlation"])
    for name in ("shift_correlation", "correlation_0", "correlation_2", "cosine_2", "in_place_0"):
        assert moving[name] == pytest.approx(1), name
    assert moving["in_place_2"] < 0.9
    values = scan**2
    stays = scan_job._moved(lambda _: values, scan, values, within, settings)
    assert stays["correlation_2"] == stays["in_place_2"] == moving["in_place_2"]
    assert scan_job._moved(lambda x: x, scan, values, within, EvaluationConfig()) == {}
