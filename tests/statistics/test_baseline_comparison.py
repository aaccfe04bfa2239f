"""Networks against simple predictors: brute force, verdicts, and what is said of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from heatlas.pipeline.cohort.people.tasks import Task, task_of
from heatlas.pipeline.run.config.files import load_config
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.statistics.performance.baselines import MEAN, areas_after_exchange, baselines_tables
from heatlas.reports.questions.baselines import against_baselines

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
class Run:
    """What the sentence reads of a run."""

    tables: dict[str, pd.DataFrame]
    task: Task = TASK

    def has(self, name: str) -> bool:
        return name in self.tables


@pytest.mark.parametrize(
    ("untrained", "verdict", "said"),
    [
        (0.72, "no better than", " They are no better than a network that was never trained, its weights drawn at "
         "random (0.76 against 0.72)."),
        (0.60, "better than", ""),
        (0.80, "worse than", None),
    ],
)  # fmt: skip
def test_networks_that_do_not_beat_an_untrained_one_say_so(untrained: float, verdict: str, said: str | None) -> None:
    """Once: where the untrained network is the best simple predictor, the first sentence says it."""
    table = pd.DataFrame({
        "baseline": ["regions", "untrained"], "metric": "auc_within_folds", "estimate": [0.79, untrained],
        "network": 0.76, "verdict": ["no better than", verdict],
    })  # fmt: skip
    best = "ridge regression on mean and spread of intensity in each region of the atlas"
    if said is None:
        best, said = "ridge regression on what an untrained network makes of the image", ""
    words = "no better than" if untrained < 0.79 else "worse than"
    assert against_baselines(Run({"baselines": table})) == (
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
