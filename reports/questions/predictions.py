"""How good the prediction is: by the networks of the run, beside simple predictors, and in another cohort."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from heatlas.pipeline.cohort.people.tasks import NUMBER, SEVERAL_CLASSES
from heatlas.pipeline.statistics.performance.baselines import ALIKE, BETTER, MEAN, WORSE
from heatlas.pipeline.training.baselines.stage import BASELINES as PREDICTORS
from heatlas.pipeline.training.baselines.stage import UNTRAINED
from heatlas.reports.questions.question import ANY_TASK, Answer, Caution, Check, Headline, Question, Verdict
from heatlas.reports.questions.views import CI, N
from heatlas.reports.read.run_files import PREDICTIONS_OF
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import (
    count,
    fixed,
    interval,
    is_missing,
    number,
)
from heatlas.reports.words.sentences import Words

WORDS = Words(__file__)

_SEES = {predictor.name: predictor.sees for predictor in PREDICTORS}
_MEASURES = {"auc_within_folds": "area under the curve, within folds", "mae": "mean absolute error"}
_OVER_CLASSES = "mean over classes of the "


@dataclass(frozen=True)
class Rivals:
    """The best simple predictor by its first measure, and an untrained network by the same."""

    best: pd.Series
    untrained: pd.Series | None
    several_classes: bool


def rivals_of(run: RunRecord) -> Rivals | None:
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
    said = WORDS.say(
        "against_the_best",
        row=row,
        rival=f"ridge regression on {_SEES[baseline]}" if baseline in _SEES else baseline,
        over=_OVER_CLASSES * rivals.several_classes,
        measure=_MEASURES[row["metric"]],
    )
    if untrained is None or baseline == UNTRAINED or untrained["verdict"] == BETTER:
        return said
    return WORDS.say("against_untrained", said=said, untrained=untrained)


def against_baselines(run: RunRecord) -> str:
    """What the networks add to the best baseline, for the summary; empty where there is none."""
    rivals = rivals_of(run)
    return "" if rivals is None else _compared(rivals)


def _beats_them(rivals: Rivals) -> Verdict:
    """The best baseline was chosen on the same people, which favours it."""
    row = rivals.best
    said = {
        BETTER: "Yes: they are better than every simple predictor.",
        ALIKE: "Not shown: they are no better than the best simple predictor.",
        WORSE: "No: a simple predictor is better.",
    }[str(row["verdict"])]
    return Verdict(
        said,
        WORDS.say(
            "baselines_grounds",
            compared=_compared(rivals),
            row=row,
            interval=interval(row["difference_low"], row["difference_high"]),
        ),
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


BASELINES = Question.read(
    WORDS,
    "baselines",
    facts=rivals_of,
    answer=_beats_them,
    cautions=(Check("not-better", _not_better, ("baselines",)),),
    tasks=ANY_TASK,
)


_MEASURED = ("fold", "metric", "estimate", *CI, *N)


def _how_predicted(run: RunRecord) -> Answer:
    """How well a number is predicted, or several classes are told apart, for the summary."""
    name = PREDICTIONS_OF[run.task.kind.name].replace("predictions", "performance")
    if not run.has(name):
        return Answer("Not known: the statistics have not been run yet.")
    table = run.tables[name]
    rows = table[table["fold"] == "all"].set_index("metric")
    level = run.config.statistics.confidence
    best = rows.loc[run.task.kind.score]
    span = interval(best["ci_low"], best["ci_high"], 2, level)
    people = f"This rests on {count(int(str(best['n_participants'])), 'participant')}."
    if not run.task.classes:
        text = WORDS.say(
            "number_predicted",
            run=run,
            best=best,
            span=span,
            of_mean=rows.loc["mae_of_mean", "estimate"],
            r=rows.loc["r", "estimate"],
            people=people,
            against_baselines=against_baselines(run),
        ).strip()
        return Answer(text, fixed(best["estimate"]), "mean absolute error")
    text = WORDS.say(
        "classes_told_apart",
        told=run.task.outputs,
        run=run,
        best=best,
        span=span,
        chance=1 / len(run.task.outputs),
        people=people,
    )
    return Answer(text, fixed(best["estimate"]), "balanced accuracy over all classes")


NUMBER_PERFORMANCE = Question.read(
    WORDS, "number-performance", tasks=frozenset({NUMBER}), headline=Headline(("scans",), _how_predicted)
)
CLASSES_PERFORMANCE = Question.read(WORDS, "classes-performance", tasks=frozenset({SEVERAL_CLASSES}))

REPEATS = Question.read(WORDS, "repeats", tasks=ANY_TASK)


def _what_networks_say(run: RunRecord) -> Answer:
    """What the networks say of people without a label, for the summary."""
    if not run.has("predictions_applied"):
        return Answer("Not known: no scan has been predicted yet.")
    rows = run.tables["predictions_applied"]
    people = rows.groupby("participant_id")[["probability", "probability_sd"]].mean()
    first = people.iloc[0]
    caption = f"probability of {run.positive}, mean over {count(int(rows['n_networks'].max()), 'network')}"
    if len(people) == 1:
        spread = "" if is_missing(first["probability_sd"]) else (
            f", with a standard deviation over the networks of {number(first['probability_sd'])}"
        )  # fmt: skip
        text = f"The probability of {run.positive} is {number(first['probability'])}{spread}."
        text += " Whether it is right cannot be said: there is no label."
        return Answer(text, number(first["probability"]), caption)
    above, middle = int((people["probability"] > 0.5).sum()), people["probability"].median()
    text = WORDS.say("many_without_label", participants=len(people), above=above, run=run, middle=middle)
    return Answer(text, number(middle), f"median {caption}")


APPLIED = Question.read(
    WORDS,
    "applied",
    applies=lambda run: run.without_labels,
    headline=Headline(("predictions_applied",), _what_networks_say),
)
"""In place of all others, where networks were applied to people without labels."""


OTHER_SHARE = 0.1
"""Difference in the share of the positive class above which it is named."""


@dataclass(frozen=True)
class TwoCohorts:
    """The measures in which a run and this cohort are compared."""

    rows: pd.DataFrame
    leading_map: str
    positive: str
    negative: str
    confidence: float
    from_another_run: bool  # whether its networks answered for labelled people of this cohort
    has_evidence: bool

    def measure(self, name: str, **where: str) -> pd.Series | None:
        """A measure over all people unless a class is named; None where it has no value."""
        rows = self.rows
        for column, value in {"measure": name, "label": "all", **where}.items() if len(rows) else ():
            rows = rows[rows[column] == value]
        return None if rows.empty or is_missing(rows["estimate"].iloc[0]) else rows.iloc[0]

    def span(self, row: pd.Series) -> str:
        return interval(row["ci_low"], row["ci_high"], 2, self.confidence)


def two_cohorts(run: RunRecord) -> TwoCohorts:
    return TwoCohorts(
        run.tables.get("external_validation", pd.DataFrame()), run.leading_map, run.positive, run.negative,
        run.config.statistics.confidence, bool(run.config.training.networks_of) and not run.without_labels,
        bool(run.evidence_maps),
    )  # fmt: skip


def _holds_elsewhere(cohorts: TwoCohorts) -> Verdict | None:
    """Whether the networks are as good here as where they come from, and whether the classes differ in like regions."""
    area = cohorts.measure("auc")
    if area is None:
        return None
    answer = "Not told apart: the networks are about as good here as where they come from, or too few people to say."
    if area["ci_high"] < 0:
        answer = "No: the networks are less accurate here than where they come from."
    elif area["ci_low"] > 0:
        answer = "The networks are more accurate here than where they come from."
    grounds = WORDS.say("areas", area=area, span=cohorts.span(area))
    regions = cohorts.measure("rank_correlation", map=cohorts.leading_map)
    if regions is not None:
        grounds += WORDS.say("regions_correlate", regions=regions, span=cohorts.span(regions), cohorts=cohorts)
    return Verdict(answer, grounds)


def _differences(cohorts: TwoCohorts) -> list[str]:
    """How the cohorts differ, in sentences; empty where nothing is known to."""
    said = []
    share, level = cohorts.measure("share_positive"), cohorts.measure("probability_less_share")
    if share is not None and abs(share["estimate"]) > OTHER_SHARE:
        said.append(WORDS.say("other_share", share=share, cohorts=cohorts))
    if level is not None and (level["ci_low"] > 0 or level["ci_high"] < 0):
        said.append(WORDS.say("other_level", level=level))
    images = cohorts.measure("intensity", label=cohorts.negative)
    if images is not None and images["estimate"] > images["by_chance"]:
        said.append(WORDS.say("other_images", cohorts=cohorts, images=images))
    return said


def _other_cohort(cohorts: TwoCohorts) -> Caution | None:
    """Networks of another run: how the cohorts differ, and that the controls of maps are in sample."""
    if not cohorts.from_another_run:
        return None
    controls = WORDS.say("controls_in_sample")
    differences = _differences(cohorts)
    text = " ".join([*differences, *[controls] * cohorts.has_evidence])
    title = "The cohorts differ." if differences else "Controls are those of the other cohort."
    return Caution("serious" if differences else "note", title, text, "external") if text else None


EXTERNAL = Question.read(
    WORDS, "external", facts=two_cohorts, answer=_holds_elsewhere, cautions=(Check("other-cohort", _other_cohort),)
)
