"""Networks against simple predictors and other runs: rankings, McNemar, cohorts, norms for new scans."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from made_up import FAST, fast, people, predictions_of
from mci_cohort import inputs_of, relevance_table
from scipy import stats
from scipy.stats import binomtest, friedmanchisquare, hypergeom, t
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from heatlas.pipeline.cohort.people.tasks import Task, task_of
from heatlas.pipeline.regions.effect_size import hedges_g
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.comparison.external import Cohorts, _of_shares, _performance, weighted_g
from heatlas.pipeline.statistics.comparison.rankings import (
    RANKING_AGREEMENT_TABLE,
    Rankings,
    agreement,
    agreement_table,
    kendall_w,
    mean_overlap,
    ranking_agreement_tables,
    rankings_of_run,
    tops,
)
from heatlas.pipeline.statistics.comparison.runs import (
    MCNEMAR_TABLE,
    Run,
    common_scans,
    mcnemar_table,
    run_agreement_table,
    votes,
    with_one_name_per_person,
)
from heatlas.pipeline.statistics.data.values import RelevanceValues
from heatlas.pipeline.statistics.normative.shared_norms import SharedNorms, norm_rows
from heatlas.pipeline.statistics.performance.baselines import MEAN, areas_after_exchange, baselines_tables
from heatlas.pipeline.statistics.stage import ControlNorms
from heatlas.reports.questions.predictions import baselines_in_words, rivals_of

SETTINGS = load_config(overrides={"statistics": {"bootstrap_samples": 500}})
TASK = task_of(SETTINGS.cohort)


@dataclass
class Inputs:
    predictions: pd.DataFrame
    baselines: pd.DataFrame
    seed: int = 1
    config: Config = SETTINGS


def inputs(network: np.ndarray, baseline: np.ndarray, target: np.ndarray, number: bool = False) -> Inputs:
    scans = [f"I{i}" for i in range(len(target))]
    people = [f"sub-{i // 2 if i < 4 else i}" for i in range(len(target))]  # two people have two scans
    own = pd.DataFrame({
        "participant_id": people, "scan_id": scans, "fold": np.arange(len(target)) % 2, "target": target,
        "prediction" if number else "probability": network,
    })  # fmt: skip
    config = load_config(overrides={"cohort": {"target": "age"}, "statistics": {"bootstrap_samples": 500}})
    theirs = pd.DataFrame({"scan_id": scans, "baseline": "regions", "prediction": baseline})
    return Inputs(own, theirs, config=config if number else SETTINGS)


@pytest.fixture(scope="module")
def classes() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    target = (np.arange(60) // 2 % 2).astype(float)
    good = 1 / (1 + np.exp(-(3 * target - 1.5 + rng.standard_normal(60))))
    return target, good, rng.random(60)


def test_a_baseline_that_knows_one_class_alone_has_neither_area_nor_p(classes) -> None:
    target, good, guess = classes
    asked = inputs(good, guess, target)
    asked.baselines = asked.baselines[target == 1]
    table = baselines_tables(asked).query("baseline == 'regions'")
    assert table[["estimate", "difference", "p"]].isna().all(axis=None)
    assert set(table["verdict"]) == {"no better than"}


def test_areas_after_exchange_are_those_of_pairs_counted_one_by_one() -> None:
    rng = np.random.default_rng(0)
    network, baseline = rng.integers(0, 5, (2, 14)).astype(float)  # with ties
    target, fold = (np.arange(14) % 3 == 0).astype(float), np.arange(14) % 2
    exchanged = rng.random((6, 14)) < 0.5
    found = areas_after_exchange(network, baseline, target, fold, exchanged)
    for draw, area in zip(exchanged, found, strict=True):
        score, wins, pairs = np.where(draw, baseline, network), 0.0, 0
        for i in range(14):
            for j in range(14):
                if target[i] == 1 and target[j] == 0 and fold[i] == fold[j]:
                    wins += 1.0 if score[i] > score[j] else 0.5 if score[i] == score[j] else 0.0
                    pairs += 1
        assert area == pytest.approx(wins / pairs, abs=1e-12)


@pytest.mark.parametrize(("swap", "said"), [(False, "better than"), (True, "worse than")])
def test_a_network_that_knows_the_classes_beats_one_that_guesses(classes, swap, said) -> None:
    target, good, guess = classes
    table = baselines_tables(inputs(*((guess, good) if swap else (good, guess)), target))
    table = table[table["baseline"] == "regions"].set_index("metric")
    row, fold = table.loc["auc_within_folds"], np.arange(60) % 2
    for column, score in zip(("estimate", "network"), (good, guess) if swap else (guess, good), strict=True):
        by_hand = [roc_auc_score(target[fold == k], score[fold == k]) for k in (0, 1)]
        pairs = [(target[fold == k] == 1).sum() * (target[fold == k] == 0).sum() for k in (0, 1)]
        assert row[column] == pytest.approx(np.average(by_hand, weights=pairs))
    assert (row["verdict"], row["n_participants"], row["n_scans"]) == (said, 58, 60)
    assert row["p"] < 0.005
    assert row["difference"] == pytest.approx(row["network"] - row["estimate"])
    assert row["difference_low"] < row["difference"] < row["difference_high"]
    right = [((good if swap else guess)[target == k] > 0.5) == (k == 1) for k in (0, 1)]
    assert table.loc["balanced_accuracy", "estimate"] == pytest.approx(np.mean([one.mean() for one in right]))


def test_interval_of_balanced_accuracy_has_the_variance_of_folds_of_few() -> None:
    """Two people of a class in each of ten folds: draws of two of two would have half the variance."""
    target = np.repeat([0.0, 1.0], 20)
    rng = np.random.default_rng(8)
    said = [np.where(rng.random(40) < share, target, 1 - target) for share in (0.8, 0.7)]
    made = inputs(*(0.1 + 0.8 * one for one in said), target)
    made.predictions = made.predictions.assign(participant_id=[f"sub-{i}" for i in range(40)], fold=np.arange(40) % 10)
    made.config = load_config(overrides={"statistics": {"bootstrap_samples": 4000}})
    row = baselines_tables(made).set_index(["baseline", "metric"]).loc[("regions", "balanced_accuracy")]
    gain = (said[0] == target).astype(float) - (said[1] == target)
    pairs = gain.reshape(2, 2, 10)  # class, person of the fold, fold
    parts = 2 * pairs.var(axis=1, ddof=1) / 20**2 / 4  # of a stratum of two, in the mean of both classes
    freedom = parts.sum() ** 2 / (parts**2).sum()
    expected = 2 * t.isf(0.025, freedom) * np.sqrt(parts.sum())
    assert row["difference_high"] - row["difference_low"] == pytest.approx(expected, rel=0.05)


def test_equal_predictions_are_no_difference(classes) -> None:
    target, good, _ = classes
    row = baselines_tables(inputs(good, good, target)).iloc[0]
    assert (row["difference"], row["p"], row["verdict"]) == (0.0, 1.0, "no better than")


def test_numbers_are_compared_with_the_mean_as_well() -> None:
    rng = np.random.default_rng(4)
    age = rng.uniform(60, 90, 60)
    table = baselines_tables(inputs(age + rng.normal(0, 2, 60), age + rng.normal(0, 6, 60), age, number=True))
    rows = table.set_index("baseline")
    assert list(table["metric"].unique()) == ["mae"]
    assert rows.loc["regions", "verdict"] == rows.loc[MEAN, "verdict"] == "better than"
    assert table["baseline"].tolist()[:2] == ["regions", MEAN]  # best first: the smaller error
    fold = np.arange(60) % 2
    wrong = np.abs(age - np.where(fold == 0, age[fold == 1].mean(), age[fold == 0].mean())).mean()
    assert rows.loc[MEAN, "estimate"] == pytest.approx(wrong)


def test_several_classes_are_compared_one_against_the_others() -> None:
    several = ("CN", "MCI", "AD")
    rng = np.random.default_rng(6)
    number = np.arange(90) // 2 % 3
    good, guess = (np.eye(3)[number] * size + rng.random((90, 3)) for size in (1.5, 0.3))
    network, baseline = (one / one.sum(axis=1, keepdims=True) for one in (good, guess))
    made = inputs(network[:, 2], baseline[:, 2], (number == 2).astype(float))
    for table, score in ((made.predictions, network), (made.baselines, baseline)):
        table[[f"probability_{name}" for name in several]] = score
    made.predictions["label"] = [several[k] for k in number]
    made.config = load_config(
        overrides={"cohort": {"classes": list(several)}, "statistics": {"bootstrap_samples": 300}}
    )
    rows = baselines_tables(made).set_index(["baseline", "metric"]).loc["regions"]
    fold = np.arange(90) % 2
    for column, score in (("network", network), ("estimate", baseline)):
        areas = []
        for unit in range(3):
            own = number == unit
            pairs = [own[fold == k].sum() * (~own[fold == k]).sum() for k in (0, 1)]
            by_fold = [roc_auc_score(own[fold == k], score[fold == k, unit]) for k in (0, 1)]
            areas.append(np.average(by_fold, weights=pairs))
        assert rows.loc["auc_within_folds", column] == pytest.approx(np.mean(areas))
        recall = balanced_accuracy_score(number, score.argmax(axis=1))
        assert rows.loc["balanced_accuracy", column] == pytest.approx(recall)
    assert rows.loc["auc_within_folds", "verdict"] == "better than"
    assert rows.loc["auc_within_folds", "p"] < 0.01
    low, high = rows.loc["auc_within_folds", ["difference_low", "difference_high"]]
    assert low < rows.loc["auc_within_folds", "difference"] < high


def test_a_baseline_that_nobody_has_the_columns_of_is_a_row_without_numbers(classes) -> None:
    target, good, guess = classes
    table = baselines_tables(inputs(good, guess, target))
    missing = table[table["estimate"].isna()]
    assert missing["baseline"].tolist() == ["demographics", "volumes", "voxels", "untrained"]
    assert missing["n_participants"].eq(0).all()
    assert missing["verdict"].isna().all()
    assert table["baseline"].tolist()[:2] == ["regions", "regions"]  # the others are there, and first


def test_without_baselines_the_table_has_no_rows(classes) -> None:
    target, good, _ = classes
    made = inputs(good, good, target)
    made.baselines = pd.DataFrame()
    assert baselines_tables(made).empty


@dataclass
class TablesOfRun:
    """What the sentence reads of a run."""

    tables: dict[str, pd.DataFrame]
    task: Task = TASK

    def has(self, name: str) -> bool:
        return name in self.tables


@pytest.mark.parametrize(
    ("untrained", "verdict", "said"),
    [
        (0.72, "no better than", " They are no better than an untrained network (0.76 against 0.72)."),
        (0.60, "better than", ""),
        (0.80, "worse than", None),
    ],
)  # fmt: skip
def test_networks_that_do_not_beat_an_untrained_one_say_so(untrained: float, verdict: str, said: str | None) -> None:
    """Once: where the untrained network is the best simple predictor, the first sentence says it."""
    table = pd.DataFrame({"baseline": ["regions", "untrained"], "metric": "auc_within_folds"}).assign(
        estimate=[0.79, untrained], network=0.76, verdict=["no better than", verdict]
    )
    best = "ridge regression on mean and spread of intensity in each region of the atlas"
    if said is None:
        best, said = "ridge regression on what an untrained network makes of the image", ""
    words = "no better than" if untrained < 0.79 else "worse than"
    assert baselines_in_words(rivals_of(TablesOfRun({"baselines": table}))) == (
        f"The networks are {words} {best}, the best simple predictor on the same folds (area under the curve, within "
        f"folds: 0.76 against {max(untrained, 0.79):.2f}).{said}"
    )


@pytest.mark.slow
def test_predictors_that_are_as_good_differ_in_five_per_cent() -> None:
    rng, found = np.random.default_rng(9), []
    for _ in range(300):
        target = (np.arange(40) // 2 % 2).astype(float)
        both = 1 / (1 + np.exp(-(target - 0.5 + rng.standard_normal((2, 40)))))
        found.append(baselines_tables(inputs(*both, target)).iloc[0]["p"] <= 0.05)
    assert 0.02 <= np.mean(found) <= 0.085


def test_one_person_under_two_names_has_one_vote() -> None:
    scans = people(4, (2,))
    names = [f"sub-ADNI{(2, 131)[s.session_id != 'ses-M000']:03d}S{int(s.participant_id[4:]):04d}" for s in scans]
    predictions = predictions_of(scans).assign(participant_id=names)
    values = RelevanceValues.of(relevance_table(scans, np.zeros(len(scans))), predictions)
    runs = [Run(name, FAST, predictions, values) for name in "ab"]
    assert len(votes(runs[0], common_scans(runs))) == 16
    joined = with_one_name_per_person(runs)
    table = mcnemar_table(joined, common_scans(joined), 0)
    assert table["n_participants"].tolist() == [8]
    assert set(run_agreement_table(joined, common_scans(joined), 0)["n_participants"]) == {8, 4}


@pytest.mark.parametrize("ties", [False, True])
def test_w_is_friedmans_statistic(ties: bool) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(5, 12)) + rng.normal(size=12)
    values = np.round(values) if ties else values
    expected = friedmanchisquare(*values.T).statistic / (5 * 11)
    np.testing.assert_allclose(kendall_w(values), expected)


def test_w_of_two_rankings_is_that_of_their_rank_correlation() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(2, 9))
    rho = pd.DataFrame(values.T).corr("spearman").iloc[0, 1]
    np.testing.assert_allclose(kendall_w(values), (1 + rho) / 2)
    np.testing.assert_allclose(kendall_w(np.stack([values[0], -values[0]])), 0, atol=1e-12)
    assert math.isnan(kendall_w(np.ones((3, 5))))


def test_p_of_w_is_that_of_all_rankings_there_are() -> None:
    """Three rankings of three regions: 216 in all."""
    values = np.array([[1.0, 2, 3], [1, 3, 2], [1, 2, 3]])
    every = [kendall_w(np.array(o, float)) for o in itertools.product(itertools.permutations(range(3)), repeat=3)]
    exact = np.mean(np.array(every) >= kendall_w(values) - 1e-12)
    found = agreement(values, 1, 20_000, np.random.default_rng(2))
    np.testing.assert_allclose(found.p, exact, atol=0.01)


def test_overlap_of_tops_and_what_chance_gives() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 30))
    chosen = tops(np.stack([a, b]), 8)
    common = len(set(np.argsort(-a)[:8]) & set(np.argsort(-b)[:8]))
    np.testing.assert_allclose(mean_overlap(chosen), common / 8)
    found = agreement(np.stack([a, b]), 8, 20_000, rng)
    np.testing.assert_allclose(found.overlap_chance, hypergeom(30, 8, 8).mean() / 8)
    np.testing.assert_allclose(found.overlap_p, hypergeom(30, 8, 8).sf(common - 1), atol=0.012)


def test_overlap_of_three_is_the_mean_of_their_pairs() -> None:
    chosen = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]], bool)
    np.testing.assert_allclose(mean_overlap(chosen), (0.5 + 0.0 + 0.5) / 3)


def test_ties_at_the_top_go_to_the_first_regions() -> None:
    np.testing.assert_array_equal(tops(np.array([[1.0, 3, 3, 3]]), 2), [[False, True, True, False]])


def test_rankings_of_a_run_are_means_over_participants(tmp_path) -> None:
    scans = people()
    hippocampus = np.arange(float(len(scans)))
    inputs = inputs_of(tmp_path, scans, hippocampus)
    sets = {(r.between, r.map, r.metric, r.scans): r for r in rankings_of_run(inputs.values)}
    folds = sets["folds", "gb", "sum", "positive"]
    assert list(folds.values) == ["fold 0", "fold 1"]
    frame = inputs.frame.assign(h=5 + hippocampus)
    ill = frame[frame["target"] == 1]
    assert (folds.n_participants, folds.n_scans) == (8, len(ill))
    both = sets["folds", "gb", "sum", "all"]
    for found, table in ((folds, ill), (both, frame)):
        expected = table[table["fold"] == 1].groupby("participant_id")["h"].mean().mean()
        np.testing.assert_allclose(found.values["fold 1"][0], expected)
    assert list(sets["methods", None, "sum", "all"].values) == ["lrpB000", "gb"]
    assert list(sets["betas", None, "density", "all"].values) == ["lrpB000"]


def test_table_of_a_run_says_what_cannot_be_ranked(tmp_path) -> None:
    scans = people()
    inputs = inputs_of(tmp_path, scans, np.zeros(len(scans)), config=fast())
    table = ranking_agreement_tables(inputs)
    assert list(table.columns) == list(RANKING_AGREEMENT_TABLE.meanings)
    rows = {(row["between"], row["metric"], row["scans"]): row for _, row in table.iterrows()}
    assert rows["betas", "sum", "all"]["note"] == "1 ranking; two are needed"
    density = rows["methods", "density", "all"]
    assert density["note"] == "2 regions with a value in every ranking; three are needed"  # one has no voxel
    total = rows["methods", "sum", "all"]
    assert (total["n_regions"], total["top"], total["overlap"], total["overlap_chance"]) == (3, 3, 1.0, 1.0)


def test_planted_agreement_is_found_and_none_is_not() -> None:
    rng = np.random.default_rng(5)
    common = rng.normal(size=40)
    alike = {f"fold {i}": common + rng.normal(0, 0.5, 40) for i in range(4)}
    apart = {f"fold {i}": rng.normal(size=40) for i in range(4)}
    sets = [Rankings("folds", name, "density", "all", own, 9, 9) for name, own in (("a", alike), ("b", apart))]
    table = agreement_table(iter(sets), FAST.statistics, 3).set_index("map")
    assert table.loc["a", "p"] == table.loc["a", "overlap_p"] == 1 / 200
    assert table.loc["b", "p"] > 0.05
    assert table.loc["a", "overlap"] > 2 * table.loc["a", "overlap_chance"] == 0.5


def run(name: str, wrong: tuple[str, ...] = (), hippocampus: float = 0.0, **changes) -> Run:
    scans = people()
    predictions = predictions_of(scans, wrong).assign(control="none")
    relevance = relevance_table(scans, np.full(len(scans), hippocampus), seed=len(name))
    return Run(name, fast(**changes), predictions, RelevanceValues.of(relevance, predictions))


def test_mcnemar_is_the_binomial_test_over_participants_with_holm() -> None:
    a, b = run("a", ("sub-001",)), run("b", ("sub-002", "sub-003", "sub-004", "sub-005", "sub-006", "sub-007"))
    c = run("c", ("sub-001", "sub-008"))
    runs = [a, b, c]
    scans = common_scans(runs)
    table = mcnemar_table(runs, scans, 3)
    assert list(table.columns) == list(MCNEMAR_TABLE.meanings)
    first = table.iloc[0]
    assert (first["run_a"], first["run_b"], first["n_participants"], first["n_scans"]) == ("a", "b", 16, len(people()))
    cells = first[["both_right", "only_a_right", "only_b_right", "both_wrong"]].tolist()
    assert cells == [9, 6, 1, 0]
    np.testing.assert_allclose(first["p"], binomtest(6, 7).pvalue)
    np.testing.assert_allclose(first["difference"], 15 / 16 - 10 / 16)
    assert first["ci_low"] < first["difference"] < first["ci_high"]
    p = table["p"].to_numpy()
    by_hand = np.empty(3)
    highest = 0.0
    for step, place in enumerate(np.argsort(p, kind="stable")):
        highest = max(highest, min(1.0, (3 - step) * p[place]))
        by_hand[place] = highest
    np.testing.assert_allclose(table["p_holm"], by_hand)


def test_runs_that_err_alike_have_p_of_one() -> None:
    row = mcnemar_table([run("a", ("sub-001",)), run("b", ("sub-001",))], [s.scan_id for s in people()], 3).iloc[0]
    assert row["p"] == row["p_holm"] == 1
    assert row["note"] == "both are right and wrong about the same participants"


def test_a_participant_has_one_vote_and_half_is_decided_by_the_first_session() -> None:
    one = run("a")
    person = one.predictions[one.predictions["participant_id"] == "sub-002"]
    assert len(person) == 2
    first, second = person["scan_id"]
    scans = list(one.predictions["scan_id"])

    def right(*wrong: str) -> bool:
        flawed = one.predictions["outcome"].where(~one.predictions["scan_id"].isin(wrong), "FP")
        return bool(
            votes(dataclasses.replace(one, predictions=one.predictions.assign(outcome=flawed)), scans)["sub-002"]
        )

    assert [right(), right(second), right(first), right(first, second)] == [True, True, False, False]
    three = one.predictions[one.predictions["participant_id"] == "sub-004"]["scan_id"].tolist()
    flawed = one.predictions["outcome"].where(~one.predictions["scan_id"].isin(three[:1]), "FP")
    assert votes(dataclasses.replace(one, predictions=one.predictions.assign(outcome=flawed)), scans)["sub-004"]


def test_scans_that_one_run_lacks_are_left_out_and_counted() -> None:
    a, b = run("a"), run("b")
    b = dataclasses.replace(b, predictions=b.predictions[b.predictions["participant_id"] != "sub-000"])
    scans = common_scans([a, b])
    row = mcnemar_table([a, b], scans, 3).iloc[0]
    assert (row["n_participants"], row["n_scans"], row["n_only_a"], row["n_only_b"]) == (15, len(scans), 1, 0)


def test_runs_of_other_cohorts_or_contrasts_are_refused() -> None:
    a, b = run("a"), run("b")
    with pytest.raises(BadInputError, match="two runs or more"):
        common_scans([a])
    other = dataclasses.replace(FAST.cohort, positive="MCI")
    with pytest.raises(BadInputError, match="b: diagnosis CN against MCI"):
        common_scans([a, run("b", cohort=other)])
    renamed = dataclasses.replace(b, predictions=b.predictions.assign(scan_id="X" + b.predictions["scan_id"]))
    with pytest.raises(BadInputError, match="no scan was predicted by all of a, b"):
        common_scans([a, renamed])
    flipped = dataclasses.replace(b, predictions=b.predictions.assign(target=1 - b.predictions["target"]))
    with pytest.raises(BadInputError, match=r"scan I0 has another target in b than in a"):
        common_scans([a, flipped])
    shuffled = dataclasses.replace(flipped, predictions=flipped.predictions.assign(control="shuffled labels"))
    assert len(common_scans([a, shuffled])) == len(people())
    assert mcnemar_table([a, shuffled], common_scans([a, shuffled]), 3).iloc[0]["control_b"] == "shuffled labels"


def test_rankings_of_runs_use_the_same_scans_and_regions() -> None:
    a, b = run("a", hippocampus=9.0), run("bb", hippocampus=9.0)
    fewer = tuple(name for name in b.values.groups if name != "Empty")
    keep = [b.values.groups.index(name) for name in fewer]
    cut = dataclasses.replace(
        b.values, groups=fewer, sums=b.values.sums[:, :, keep], densities=b.values.densities[:, :, keep]
    )
    table = run_agreement_table([a, dataclasses.replace(b, values=cut)], common_scans([a, b]), 3)
    assert set(table["between"]) == {"runs"}
    assert set(table["rankings"]) == {"a, bb"}
    assert set(table["map"]) == {"lrpB000", "gb"}
    assert table["note"].str.contains("two|three").all()
    whole = run_agreement_table([a, b], common_scans([a, b]), 3).set_index(["map", "metric", "scans"])
    assert whole.loc[("gb", "sum", "all"), "kendall_w"] == 1.0
    assert whole.loc[("gb", "sum", "positive"), "n_participants"] == 8


def test_weighted_g_is_hedges_g_but_for_one_factor() -> None:
    rng = np.random.default_rng(1)
    values, first, block = rng.normal(size=(30, 5)), np.arange(30) % 2 == 0, np.repeat([0, 1, 2], 10)
    ratio = weighted_g(values, first, block, np.ones((1, 30)))[0] / hedges_g(values, first, block)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-12)
    assert ratio[0] == pytest.approx(1 + 3 / (4 * 26 - 1), rel=1e-3)  # Hedges' approximation of his correction


def test_a_weight_of_two_counts_a_person_twice() -> None:
    rng = np.random.default_rng(2)
    values, first, block = rng.normal(size=(12, 3)), np.arange(12) % 3 == 0, np.repeat([0, 1], 6)
    weights = rng.integers(1, 4, 12)
    again = np.repeat(np.arange(12), weights)
    expected = weighted_g(values[again], first[again], block[again], np.ones((1, len(again))))
    np.testing.assert_allclose(weighted_g(values, first, block, weights[None].astype(float)), expected)


def test_a_region_that_does_not_vary_has_no_g() -> None:
    first = np.array([True, True, True, False, False, False])
    found = weighted_g(np.ones((6, 1)), first, np.zeros(6, np.intp), np.ones((1, 6)))
    assert np.isnan(found).all()


def test_shares_differ_as_newcombe_gives_it() -> None:
    found = _of_shares(48, 80, 56, 70, 0.95)  # Newcombe 1998, example (a) with the groups changed: 56/70 - 48/80
    assert found["estimate"] == pytest.approx(-0.2)
    assert (round(found["ci_low"], 4), round(found["ci_high"], 4)) == (-0.3339, -0.0524)
    assert "note" in _of_shares(0, 0, 3, 5, 0.95)


def answers(n: int, patients: int, right: int, seed: int) -> pd.DataFrame:
    """Scans of people, one each, in two folds; `right` patients and all but two controls are called correctly."""
    target = (np.arange(n) < patients).astype(int)
    called = np.where(target == 1, np.arange(n) < right, np.arange(n) < patients + 2)
    outcome = np.where(called, np.where(target == 1, "TP", "FP"), np.where(target == 1, "FN", "TN"))
    probability = np.where(called, 0.6, 0.2) + 0.3 * np.random.default_rng(seed).random(n)
    frame = pd.DataFrame({"participant_id": [f"sub-{i}" for i in range(n)], "target": target, "outcome": outcome})
    return frame.assign(fold=np.arange(n) % 2, probability=probability)


def test_differences_of_cohorts_are_combined_from_the_interval_of_each() -> None:
    run, new = answers(40, 20, 15, 1), answers(20, 8, 7, 2)
    config = load_config(overrides={"statistics": {"bootstrap_samples": 400}})
    sides = [SimpleNamespace(predictions=one, config=config, seed=3) for one in (run, new)]
    rows = pd.DataFrame(_performance(Cohorts(*sides))).set_index("measure")
    by_count = _of_shares(7, 8, 15, 20, 0.95)
    for column in ("estimate", "ci_low", "ci_high"):
        assert rows.loc["sensitivity", column] == pytest.approx(by_count[column])
    assert set(rows["interval"]) == {"Newcombe"}
    perfect = new.assign(probability=0.1 + 0.8 * new["target"])
    area = pd.DataFrame(
        _performance(Cohorts(sides[0], SimpleNamespace(**vars(sides[1]) | {"predictions": perfect})))
    ).set_index("measure")
    row = area.loc["auc"]
    assert row["new"] == 1.0
    low = binomtest(8, 8).proportion_ci(0.95, method="exact").low  # of the smaller class
    assert row["ci_low"] <= row["estimate"] - (1 - low)
    assert row["estimate"] < row["ci_high"] < 1 - row["run"] + 0.5


CONTROLS = pd.DataFrame({"age": np.linspace(60, 80, 12), "sex": ["F", "M"] * 6}).assign(field_strength=1.5)


def norms(values: np.ndarray) -> ControlNorms:
    return ControlNorms("gb", ("Amygdala",), values, CONTROLS, "age + sex + field_strength", 5)


def test_a_scan_of_known_age_and_sex_is_scored_with_them() -> None:
    noise = np.random.default_rng(3).normal(0, 0.1, 12)
    values = (0.5 * CONTROLS["age"] + (CONTROLS["sex"] == "M") + noise).to_numpy()[:, None]
    norm, x, said = norms(values).for_scan(pd.DataFrame({"age": [70.0], "sex": ["M"], "field_strength": [1.5]}))
    assert said is None
    w, _ = norm.scores(np.array([[36.0]]), x)
    assert abs(w[0, 0]) < 3  # 35 for the age, 1 for the sex
    assert norm.freedom[0] == 12 - 3


def test_what_is_not_known_of_a_scan_is_left_out_of_its_norm_and_named() -> None:
    values = np.random.default_rng(4).normal(5, 2, (12, 1))
    unknown = pd.DataFrame({"age": [np.nan], "sex": [None], "field_strength": [np.nan]})
    norm, x, said = norms(values).for_scan(unknown)
    assert said == "norm without age, sex (age is n/a; sex is n/a)"  # the field is the same in all: nothing is lost
    w, z = norm.scores(np.array([[9.0]]), x)
    expected = (9.0 - values.mean()) / values.std(ddof=1)
    assert w[0, 0] == pytest.approx(expected)
    t = expected / np.sqrt(1 + 1 / 12)  # Crawford & Garthwaite 2006
    assert z[0, 0] == pytest.approx(stats.norm.isf(stats.t.sf(t, 11)))


def test_an_exported_norm_gives_the_scores_of_its_controls_without_covariates() -> None:
    values = np.random.default_rng(5).normal(5, 2, (12, 1))
    unknown = pd.DataFrame({"age": [np.nan] * 12, "sex": [None] * 12})
    shared = SharedNorms("gb", norm_rows("gb", ["Amygdala"], values, unknown))
    facts = pd.DataFrame({"age": [np.nan], "sex": [None], "field_strength": [np.nan]})
    wanted, found = (one.for_scan(facts) for one in (norms(values), shared))
    for ours, theirs in zip(
        wanted[0].scores(np.array([[9.0]]), wanted[1]), found[0].scores(np.array([[9.0]]), found[1]), strict=True
    ):
        np.testing.assert_allclose(theirs, ours)
