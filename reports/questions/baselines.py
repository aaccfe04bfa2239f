"""Whether the networks add anything to simple predictors."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from heatlas.pipeline.cohort.people.tasks import SEVERAL_CLASSES
from heatlas.pipeline.statistics.performance.baselines import ALIKE, BETTER, MEAN, WORSE
from heatlas.pipeline.training.baselines.stage import BASELINES as PREDICTORS
from heatlas.pipeline.training.baselines.stage import UNTRAINED
from heatlas.reports.frame.pages import PERFORMANCE
from heatlas.reports.questions.question import ANY_TASK, Caution, Check, Question, Verdict
from heatlas.reports.questions.views import CI, N, View
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import fixed, interval, p_value

_SEES = {predictor.name: predictor.sees for predictor in PREDICTORS}
_MEASURES = {"auc_within_folds": "area under the curve, within folds", "mae": "mean absolute error"}
_OVER_CLASSES = "mean over classes of the "


@dataclass(frozen=True)
class Rivals:
    """The best simple predictor by its first measure, and an untrained network by the same."""

    best: pd.Series
    untrained: pd.Series | None
    several_classes: bool


def facts(run: RunRecord) -> Rivals | None:
    """The best baseline; None where there is none. The mean is no rival of its own."""
    if not run.has("baselines"):
        return None
    rows = run.tables["baselines"]
    rows = rows[rows["metric"].isin(list(_MEASURES)) & (rows["baseline"] != MEAN) & rows["estimate"].notna()]
    if rows.empty:
        return None
    best = rows.sort_values("estimate", ascending=run.task.kind.score_sign < 0, kind="stable").iloc[0]
    untrained = rows[(rows["baseline"] == UNTRAINED) & (rows["metric"] == best["metric"])]
    return Rivals(best, None if untrained.empty else untrained.iloc[0], run.task.kind.name == SEVERAL_CLASSES)


def _compared(rivals: Rivals) -> str:
    """What the networks add to the best baseline, in a sentence.

    And in another, that they do not beat an untrained network, where they do not.
    """
    row, untrained = rivals.best, rivals.untrained
    baseline = str(row["baseline"])
    said = (
        f"The networks are {row['verdict']} "
        f"{f'ridge regression on {_SEES[baseline]}' if baseline in _SEES else baseline}, the best simple predictor on "
        f"the same folds ({_OVER_CLASSES * rivals.several_classes}{_MEASURES[row['metric']]}: {fixed(row['network'])} "
        f"against {fixed(row['estimate'])})."
    )
    if untrained is None or baseline == UNTRAINED or untrained["verdict"] == BETTER:
        return said
    return (
        f"{said} They are {untrained['verdict']} a network that was never trained, its weights drawn at random "
        f"({fixed(untrained['network'])} against {fixed(untrained['estimate'])})."
    )


def against_baselines(run: RunRecord) -> str:
    """What the networks add to the best baseline, for the summary; empty where there is none."""
    rivals = facts(run)
    return "" if rivals is None else _compared(rivals)


def _answer(rivals: Rivals) -> Verdict:
    """The best baseline was chosen on the same people, which favours it."""
    row = rivals.best
    said = {
        BETTER: "Yes: they are better than every simple predictor.",
        ALIKE: "Not shown: they are no better than the best simple predictor.",
        WORSE: "No: a simple predictor is better.",
    }[str(row["verdict"])]
    return Verdict(
        said,
        f"{_compared(rivals)} Difference {fixed(row['difference'])} "
        f"({interval(row['difference_low'], row['difference_high'])}, {p_value(row['p'])}). The best of the simple "
        "predictors was chosen on the same people, which favours it a little.",
    )


def _not_better(rivals: Rivals) -> Caution | None:
    if rivals.best["verdict"] == BETTER:
        return None
    worse = rivals.best["verdict"] == WORSE
    return Caution(
        "serious" if worse else "note",
        "A simple predictor is better than the networks."
        if worse
        else "The networks are not shown to be better than a simple predictor.",
        f"{_compared(rivals)} What their maps show is what these networks used, not the best that the images can tell.",
        "baselines",
    )


BASELINES = Question(
    "baselines", "Do the networks add anything to simple predictors?", "Simple predictors", PERFORMANCE,
    "Ridge regression (logistic for classes) learned from the same people as the network of each fold, and was tested "
    "on the same people. Each predictor sees one thing: age and sex; volumes, where they are known; the mean and the "
    "spread of intensity in each region; the smoothed image. Maps of a network that adds nothing to them may still be "
    "right, but a table of regions would have told as much.",
    (
        View(
            "baselines", "Each predictor against the networks, best first.",
            ("baseline", "metric", "estimate", *CI, "network", "difference", "difference_low", "difference_high", "p",
             "verdict", *N),
        ),
    ),
    facts,
    _answer,
    (Check("not-better", _not_better, ("baselines",)),),
    tasks=ANY_TASK,
)  # fmt: skip
