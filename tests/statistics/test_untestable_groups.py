"""Groups of one fold, values without variance, covariates equal to the group, nobody converts: n/a and why, never a p.

Each test of the stage, as its table calls it, on 40 people in two folds: group and covariate given, one value each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest
from made_up import FAST

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.arrays import Resampling
from heatlas.pipeline.statistics.groups.fairness import _of_level
from heatlas.pipeline.statistics.groups.summaries import _fisher, welch
from heatlas.pipeline.statistics.harmonisation.sites import site_effect
from heatlas.pipeline.statistics.linear.correlation import partial_correlation
from heatlas.pipeline.statistics.linear.fold_effect import model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import freedman_lane
from heatlas.pipeline.statistics.linear.permutations import Exchangeability
from heatlas.pipeline.statistics.normative.subtypes import Subtypes, _compared
from heatlas.pipeline.statistics.progression.cox import Conversions, cox_table
from heatlas.pipeline.statistics.progression.prediction import progression_table
from heatlas.pipeline.statistics.progression.trajectories import change_test
from heatlas.pipeline.statistics.shortcuts import Scans, _difference, _predictions, scaled_within

N = 40
FOLD = np.arange(N) % 2
GROUP = np.arange(N) // 2 % 2 == 0
HALF = np.arange(N) % 2 == 0
VALUES = np.random.default_rng(1).normal(size=N)
COVARIATE = np.random.default_rng(2).normal(size=N)
SETTINGS = FAST.statistics
Found = tuple[Sequence[float], Sequence[object]]
"""P values and what their rows say."""
Test = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Found]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def two_groups(values, group, fold, covariate) -> Found:
    frame = pd.DataFrame({"group": group.astype(float), "fold": fold, "c": covariate})
    model = model_within_folds("c + group", "group", frame, True, group.tolist())
    test = freedman_lane(values, model.design, model.exchange, Resampling(99, rng()), group.tolist())
    return test.p, [test.problems[0] or model.design.note]


def correlation(values, group, fold, covariate) -> Found:
    frame = pd.DataFrame({"x": group.astype(float), "fold": fold, "c": covariate})
    model = model_within_folds("c + x", "x", frame, True)
    test = partial_correlation(values, model.design, model.exchange, Resampling(99, rng()), "pearson")
    return test.p, test.problems


def sites(effect) -> Test:
    def test(values, group, fold, covariate) -> Found:
        frame, names = pd.DataFrame({"fold": fold, "c": covariate}), [f"s{int(one)}" for one in group]
        found, _ = site_effect(effect, values[:, None], names, "c", frame, Resampling(99, rng()), True)
        return found.p, found.problems

    return test


def change(values, group, fold, covariate) -> Found:
    visits = np.stack([np.zeros(len(values)), values], axis=1).ravel()[:, None]
    person, years = np.repeat(np.arange(len(values)), 2), np.tile([0.0, 1.0], len(values))
    found = change_test(
        visits, years, person, np.repeat(group.astype(int), 2), np.repeat(fold, 2), Resampling(99, rng())
    )
    return found.p, found.notes


def shortcuts(values, group, fold, covariate) -> Found:
    row = _difference(values, group, fold, SETTINGS, rng())
    return [row.get("p", np.nan)], [row["note"]]


def fairness(values, group, fold, covariate) -> Found:
    target = np.arange(len(values)) // 4 % 2
    called = np.where(values > 0, "P", "N")
    outcome = [("T" if (one == "P") == bool(true) else "F") + one for one, true in zip(called, target, strict=True)]
    people = np.arange(len(values)).astype(str)
    frame = pd.DataFrame({"participant_id": people, "target": target, "outcome": outcome, "fold": fold})
    table = _of_level(frame.assign(probability=1 / (1 + np.exp(-values))), group, SETTINGS, rng())
    return table["p"].tolist(), table["note"].tolist()


def subtypes(values, group, fold, covariate) -> Found:
    people = tuple(map(str, range(len(values))))
    nothing = np.zeros((len(values), 2))
    one = Subtypes("volume", people, nothing, 1 + group.astype(int), np.ones(len(values)), pd.DataFrame())
    fold_of = dict(zip(people, map(str, fold), strict=True))
    row = _compared(one, "probability", pd.Series(values), fold_of, FAST)
    return [row.get("p", np.nan)], [row["note"]]


def site_prediction(values, group, fold, covariate) -> Found:
    scans = Scans(np.arange(len(values)), group.astype(np.intp), (covariate > 0.5).astype(np.intp))
    rows = _predictions("site", {"lrp": scaled_within(values[:, None], fold)}, scans, SETTINGS, 3)
    return [row.get("p", np.nan) for row in rows], [row["note"] for row in rows]


def welch_alone(values, group, fold, covariate) -> Found:
    row = welch(pd.Series(values[group]), pd.Series(values[~group]))
    return [row["p"]], [row["note"]]


def fisher(values, group, fold, covariate) -> Found:
    row = _fisher(pd.Series((values[group] > 0).astype(float)), pd.Series((values[~group] > 0).astype(float)))
    return [row["p"]], [row["note"]]


def conversions(values, fold, covariate, event) -> Conversions:
    frame = pd.DataFrame({"time": 6.0 + np.arange(len(values)), "event": event, "competing": np.nan, "age": covariate})
    frame = frame.assign(sex="F", mmse=27.0, field_strength=1.5, hippocampus_mm3=values, tiv_mm3=1.0, probability=0.5)
    frame = frame.assign(progression=np.where(event, "pMCI", "sMCI"), networks=fold.astype(str))
    return Conversions(frame, values[:, None, None], ("lrp",), ("region",), {})


def cox(values, group, fold, covariate, event=HALF) -> Found:
    table = cox_table(conversions(values, fold, covariate, event[: len(values)]), SETTINGS, 3)
    rows = table[(table["predictor"] == "relevance") & (table["model"] == "adjusted")]
    return rows[["p", "p_wald", "p_proportional"]].to_numpy(float).ravel(), rows["note"].tolist()


def prediction(values, group, fold, covariate, event=HALF) -> Found:
    table = progression_table(conversions(values, fold, covariate, event[: len(values)]), SETTINGS, 3, 36)
    rows = table[table["predictor"].eq("hippocampus/tiv") & table["measure"].isin(["concordance", "auc"])]
    return rows["p"].tolist(), rows["note"].tolist()


OF_GROUPS: dict[str, Test] = {
    "two groups": two_groups, "correlation": correlation, "location of sites": sites("location"),
    "scale of sites": sites("scale"), "change": change, "shortcuts": shortcuts, "subtypes": subtypes,
}  # fmt: skip
EVERY: dict[str, Test] = OF_GROUPS | {
    "fairness": fairness, "site prediction": site_prediction, "Welch": welch_alone, "Fisher": fisher, "Cox": cox,
    "prediction of conversion": prediction,
}  # fmt: skip


def require_none(test: Test, *data: np.ndarray, said: str = "") -> None:
    """No p, and a reason in every row; a refusal names the reason too."""
    try:
        p, notes = test(*data)
    except BadInputError as error:
        p, notes = [np.nan], [str(error)]
    assert np.isnan(np.asarray(p, float)).all(), p
    assert notes
    assert all(isinstance(note, str) and said in note for note in notes), notes


@pytest.mark.parametrize("name", EVERY)
def test_each_test_has_a_p_where_there_is_nothing_wrong(name: str) -> None:
    assert np.isfinite(np.asarray(EVERY[name](VALUES, GROUP, FOLD, COVARIATE)[0], float)).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("rounding", [0.0, 1e-17])
@pytest.mark.parametrize("name", EVERY)
def test_values_without_variance_have_no_p(name: str, rounding: float) -> None:
    values = 0.3 + 5 * rounding * (np.arange(N) % 3 == 0)
    require_none(EVERY[name], values, GROUP, FOLD, COVARIATE)


@pytest.mark.parametrize("name", sorted(set(EVERY) - {"Welch", "Fisher", "prediction of conversion"}))
def test_values_that_vary_with_the_network_alone_have_no_p(name: str) -> None:
    require_none(EVERY[name], 1.0 + FOLD, GROUP, FOLD, COVARIATE)


@pytest.mark.parametrize("n", [N, 8])
@pytest.mark.parametrize("name", OF_GROUPS)
def test_groups_that_are_folds_cannot_be_told_from_networks_however_few_people(name: str, n: int) -> None:
    require_none(OF_GROUPS[name], VALUES[:n], FOLD[:n] == 0, FOLD[:n], COVARIATE[:n])


@pytest.mark.parametrize("name", ["two groups", "correlation", "location of sites", "scale of sites"])
def test_a_covariate_that_equals_the_group_leaves_nothing_to_test(name: str) -> None:
    require_none(OF_GROUPS[name], VALUES, GROUP, FOLD, GROUP.astype(float), said="collinear")


@pytest.mark.parametrize("name", ["two groups", "change", "shortcuts", "subtypes", "scale of sites", "Welch"])
def test_a_group_of_one_has_no_variance_and_no_p(name: str) -> None:
    require_none(EVERY[name], VALUES, np.arange(N) == 3, FOLD, COVARIATE)


@pytest.mark.parametrize("name", sorted(set(OF_GROUPS) - {"change"} | {"fairness", "Welch", "Fisher"}))
def test_one_group_is_no_comparison(name: str) -> None:
    require_none(EVERY[name], VALUES, np.ones(N, bool), FOLD, COVARIATE)


def test_sites_that_go_with_the_class_cannot_be_exchanged() -> None:
    require_none(site_prediction, VALUES, COVARIATE > 0.5, FOLD, COVARIATE, said="none can change places")


@pytest.mark.parametrize("test", [cox, prediction])
def test_where_all_are_censored_there_is_no_p(test: Callable[..., Found]) -> None:
    p, notes = test(VALUES, GROUP, FOLD, COVARIATE, event=np.zeros(N, bool))
    assert np.isnan(np.asarray(p, float)).all()
    assert all(isinstance(note, str) for note in notes)


def test_a_covariate_that_equals_the_predictor_leaves_no_hazard_to_test() -> None:
    within = VALUES - np.array([VALUES[one == FOLD].mean() for one in (0, 1)])[FOLD]
    within /= np.array([within[one == FOLD].std(ddof=1) for one in (0, 1)])[FOLD]  # both networks have one spread
    p, notes = cox(within, GROUP, FOLD, within)
    assert np.isnan(p).all()
    assert "collinear" in str(notes[0])


def test_with_too_few_permutations_for_any_p_of_5_percent_there_is_no_interval() -> None:
    frame = pd.DataFrame({"group": [1.0, 1, 0, 0]})
    model = model_within_folds("group", "group", frame, True)
    test = freedman_lane(VALUES[:4], model.design, Exchangeability.free(4), Resampling(99, rng()), [1, 1, 0, 0])
    assert test.p[0] >= 1 / 6
    assert test.exact
    assert np.isnan([test.low[0], test.high[0]]).all()


@pytest.mark.parametrize("known", ["all", "one of each network"])
def test_people_alone_with_their_networks_have_no_hazard_of_relevance(known: str) -> None:
    """Nobody can change places: each has networks of their own, or only one of each pair has a known covariate."""
    network = np.arange(N) if known == "all" else np.arange(N) // 2
    covariate = COVARIATE if known == "all" else np.where(np.arange(N) % 2, np.nan, COVARIATE)
    p, notes = cox(VALUES, GROUP, network, covariate, np.arange(N) % 4 < 2)
    assert np.isnan(p).all()
    assert "none can change places" in notes[0]


def test_relevance_is_centred_among_those_whose_covariates_are_known() -> None:
    """The network's level in people who are left out is no part of the test."""
    covariate = np.where(np.arange(N) < 6, np.nan, COVARIATE)
    levels = np.where((np.arange(N) < 6) & (FOLD == 0), 100.0, 0.0)
    event = np.arange(N) % 4 < 2
    one, other = (cox(values, GROUP, FOLD, covariate, event)[0] for values in (VALUES, VALUES + levels))
    np.testing.assert_allclose(one, other, rtol=1e-9)
