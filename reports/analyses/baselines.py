"""Whether the networks add anything to simple predictors: the sentence, the verdict and the warning."""

from __future__ import annotations

import pandas as pd

from heatlas.pipeline.cohort.people.tasks import SEVERAL_CLASSES
from heatlas.pipeline.statistics.performance.baselines import ALIKE, BETTER, MEAN, WORSE
from heatlas.pipeline.training.baselines.records import BASELINES, UNTRAINED
from heatlas.reports.analyses.verdicts import Verdict
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import fixed, interval, p_value

SEES = {one.name: one.sees for one in BASELINES}
IN_WORDS = {"auc_within_folds": "area under the curve, within folds", "mae": "mean absolute error"}


def best_baseline(run: RunRecord) -> pd.Series | None:
    """Row of the best baseline by its first measure; None where there is none. The mean is no rival of its own."""
    if not run.has("baselines"):
        return None
    rows = run.tables["baselines"]
    rows = rows[rows["metric"].isin(list(IN_WORDS)) & (rows["baseline"] != MEAN) & rows["estimate"].notna()]
    return None if rows.empty else rows.sort_values("estimate", ascending=run.task.is_number, kind="stable").iloc[0]


def in_words(name: object) -> str:
    """What a baseline is, for readers."""
    return f"ridge regression on {SEES[str(name)]}" if str(name) in SEES else str(name)


def comparison(run: RunRecord) -> str:
    """What the networks add to the best baseline, in a sentence; empty where there is none.

    And in another, that they do not beat an untrained network, where they do not.
    """
    row = best_baseline(run)
    if row is None:
        return ""
    several = "mean over classes of the " if run.task.kind.name == SEVERAL_CLASSES else ""
    said = (
        f"The networks are {row['verdict']} {in_words(row['baseline'])}, the best simple predictor on the same folds "
        f"({several}{IN_WORDS[row['metric']]}: {fixed(row['network'])} against {fixed(row['estimate'])})."
    )
    rows = run.tables["baselines"]
    rows = rows[(rows["baseline"] == UNTRAINED) & (rows["metric"] == row["metric"]) & rows["estimate"].notna()]
    if rows.empty or row["baseline"] == UNTRAINED or (untrained := rows.iloc[0])["verdict"] == BETTER:
        return said
    return (
        f"{said} They are {untrained['verdict']} a network that was never trained, its weights drawn at random "
        f"({fixed(untrained['network'])} against {fixed(untrained['estimate'])})."
    )


def verdict(run: RunRecord) -> Verdict | None:
    """The answer of the section; the best baseline was chosen on the same people, which favours it."""
    row = best_baseline(run)
    if row is None:
        return None
    said = {
        BETTER: "Yes: they are better than every simple predictor.",
        ALIKE: "Not shown: they are no better than the best simple predictor.",
        WORSE: "No: a simple predictor is better.",
    }[str(row["verdict"])]
    grounds = (
        f"{comparison(run)} Difference {fixed(row['difference'])} "
        f"({interval(row['difference_low'], row['difference_high'])}, {p_value(row['p'])}). The best of the simple "
        "predictors was chosen on the same people, which favours it a little."
    )
    return Verdict(said, grounds)
