"""How good the prediction is: by the networks of the run, beside simple predictors, and in another cohort."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import expit

from heatlas.pipeline.cohort.applied import ASKED_OF_IMAGE
from heatlas.pipeline.cohort.people.tasks import NUMBER, SEVERAL_CLASSES, TWO_CLASSES, task_of
from heatlas.pipeline.cohort.records import OLDEST_AGE
from heatlas.pipeline.run.errors import HeatlasError
from heatlas.pipeline.run.layout.bundle_layout import open_bundle
from heatlas.pipeline.run.layout.folder import read_run_config
from heatlas.pipeline.run.layout.run_layout import RunLayout
from heatlas.pipeline.statistics.normative.shared_norms import MEANS_ALONE
from heatlas.pipeline.statistics.performance.baselines import ALIKE, BETTER, MEAN, WORSE
from heatlas.pipeline.statistics.performance.classification import ALL_FOLDS
from heatlas.pipeline.training.baselines.stage import BASELINES as PREDICTORS
from heatlas.pipeline.training.baselines.stage import UNTRAINED
from heatlas.reports.questions.question import ANY_TASK, Answer, Caution, Check, Headline, Question, Verdict
from heatlas.reports.questions.views import CI, N
from heatlas.reports.read.run_files import APPLIED_OF, PREDICTIONS_OF, TABLES, read_sound
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

_PREDICTORS = {predictor.name: predictor for predictor in PREDICTORS}
_MEASURES = {"auc_within_folds": "area under the curve, within folds", "mae": "mean absolute error"}
_OVER_CLASSES = "mean over classes of the "


@dataclass(frozen=True)
class Rivals:
    """The best simple predictor by its first measure, and an untrained network by the same."""

    best: pd.Series
    untrained: pd.Series | None
    several_classes: bool
    predicted: str  # column


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
    return Rivals(
        best, None if untrained.empty else untrained.iloc[0], run.task.kind.name == SEVERAL_CLASSES, run.task.column
    )


def baselines_in_words(rivals: Rivals, sentence: str = "against_the_best") -> str:
    """What the networks add to the best baseline, in a sentence or the end of one.

    And in another, that they do not beat an untrained network, where they do not.
    """
    row, untrained = rivals.best, rivals.untrained
    baseline = str(row["baseline"])
    known = _PREDICTORS.get(baseline)
    compared = WORDS.say(
        sentence,
        row=row,
        joined="and" if row["verdict"] == BETTER else "but",
        rival=f"ridge regression on {known.in_words(rivals.predicted)}" if known else baseline,
        over=_OVER_CLASSES * rivals.several_classes,
        measure=_MEASURES[row["metric"]],
    )
    if untrained is None or baseline == UNTRAINED or untrained["verdict"] == BETTER:
        return compared
    return WORDS.say("against_untrained", compared=compared, untrained=untrained)


LEARNED, NO_MORE, UNCLEAR = "learned", "no more than a simple predictor", "unclear"


def judge_learning(low: float, chance: float, against_simple: str = "") -> str:
    """Whether networks learned: by the lower end of their interval, then against the best simple predictor.

    An interval that touches chance, or is not known, shows nothing.

    Examples
    --------
    >>> judge_learning(0.69, 0.5), judge_learning(0.69, 0.5, BETTER), judge_learning(0.69, 0.5, ALIKE)
    ('learned', 'learned', 'no more than a simple predictor')
    >>> judge_learning(0.5, 0.5, BETTER), judge_learning(float("nan"), 0.5)
    ('unclear', 'unclear')
    """
    if not low > chance:
        return UNCLEAR
    return LEARNED if against_simple in ("", BETTER) else NO_MORE


@dataclass(frozen=True)
class Learning:
    """Whether the networks of a run learned, and the measure of all folds that shows it."""

    verdict: str
    row: pd.Series
    measured: str  # the measure, its interval and chance

    @property
    def is_unclear(self) -> bool:
        return self.verdict == UNCLEAR


def learning_of(run: RunRecord) -> Learning | None:
    """Balanced accuracy against chance; of a number R² or, where that is not clear, r. None where it is not known.

    A few large errors can make the interval of R² wide in few people whose order is predicted well.
    """
    kind = run.task.kind.name
    table = PREDICTIONS_OF[kind].replace("predictions", "performance")
    if run.without_labels or not run.has(table):
        return None
    rows = run.tables[table]
    rows = rows[rows["fold"].astype(str) == ALL_FOLDS].set_index("metric", drop=False)
    name = "r2" if kind == NUMBER else BALANCED
    if name not in rows.index or is_missing(rows["estimate"][name]):
        return None
    if kind == NUMBER and not rows["ci_low"]["r2"] > 0 and "r" in rows.index and rows["ci_low"]["r"] > 0:
        name = "r"
    row, rivals = rows[rows["metric"] == name].iloc[0], rivals_of(run)
    chance = 0.0 if kind == NUMBER else 1 / len(run.task.outputs)
    span = interval(row["ci_low"], row["ci_high"], 2, run.config.statistics.confidence)
    words = {"r2": "measured_number", "r": "measured_order"}.get(name, "measured")
    measured = WORDS.say(words, row=row, span=span, chance=chance)
    against = "" if rivals is None else str(rivals.best["verdict"])
    return Learning(judge_learning(row["ci_low"], chance, against), row, measured)


BALANCED = "balanced_accuracy"
_TASK_WORDS = {TWO_CLASSES: "two", SEVERAL_CLASSES: "several", NUMBER: "number"}


def learning_in_words(run: RunRecord) -> str:
    """Whether the networks learned, in the sentence that the report begins with; empty where it is not known."""
    found = learning_of(run)
    if found is None:
        return ""
    rivals = None if found.is_unclear else rivals_of(run)
    return WORDS.say(
        f"{_TASK_WORDS[run.task.kind.name]}_{'unclear' if found.is_unclear else 'learned'}",
        run=run,
        classes=[run.in_words(name) for name in run.task.classes[::-1]],
        found=found,
        against="." if rivals is None else baselines_in_words(rivals, "against"),
    )


def networks_guess(run: RunRecord) -> bool:
    """Whether it is known that the networks are not shown to predict better than chance."""
    found = learning_of(run)
    return found is not None and found.is_unclear


def run_of_networks(run: RunRecord) -> RunRecord | None:
    """What the run that the networks are from measured of them, by its own settings; None where it is not readable.

    An export of a run holds none, but a sentence on whether they learned (`learned_elsewhere`).
    """
    layout = RunLayout(Path(run.config.training.networks_of))
    if not layout.config.is_file():
        return None
    try:
        config = read_run_config(layout)
        names = (PREDICTIONS_OF[task_of(config.cohort).kind.name].replace("predictions", "performance"), "baselines")
        paths = {name: TABLES[name].path(layout) for name in names}
        tables = {name: read_sound(name, path, config) for name, path in paths.items() if path.is_file()}
    except HeatlasError:
        return None
    return replace(run, layout=layout, config=config, tables=tables)


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
            compared=baselines_in_words(rivals),
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
        else "The networks are not shown to beat a simple predictor.",
        "Maps show what these networks used, not the best that the images can tell.",
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
    found = learning_of(run)
    if found is None:
        return Answer("Not known: the statistics have not been run yet.")
    answer = answer_on_learning(found)
    if run.task.classes:
        return answer
    table = run.tables["performance_number"]
    rows = table[table["fold"].astype(str) == ALL_FOLDS].set_index("metric")
    return replace(answer, more=WORDS.say("number_predicted", rows=rows["estimate"]))


def answer_on_learning(found: Learning) -> Answer:
    """The first card of the summary: the measure in large type only where it lies above chance."""
    text = WORDS.say("not_above_chance" if found.is_unclear else "above_chance")
    figure = NOT_ABOVE_CHANCE if found.is_unclear else fixed(found.row["estimate"])
    return Answer(text, figure, WORDS.say("learning_caption", found=found))


NOT_ABOVE_CHANCE, NO_FINDING = "Not above chance", "No finding"
GUESSING = "The networks may be guessing, so their maps say nothing."


NUMBER_PERFORMANCE = Question.read(
    WORDS, "number-performance", tasks=frozenset({NUMBER}), headline=Headline(("scans",), _how_predicted)
)
CLASSES_PERFORMANCE = Question.read(WORDS, "classes-performance", tasks=frozenset({SEVERAL_CLASSES}))

REPEATS = Question.read(WORDS, "repeats", tasks=ANY_TASK)


def learned_elsewhere(run: RunRecord) -> str:
    """Whether networks that were applied learned, as the run that they are from or its export says; else empty."""
    origin = run_of_networks(run)
    if origin is not None:
        return learning_in_words(origin)
    try:
        bundle = open_bundle(Path(run.config.training.networks_of))
    except HeatlasError:
        return ""
    return "" if bundle is None else str(bundle.summary.get("learned", ""))


_SEX = {"F": "women", "M": "men"}


def beside_controls(run: RunRecord) -> str:
    """Where the answer to the only scan stands among those to controls, in sentences; empty where it is not known."""
    if not run.has("w_answers") or len(run.tables["w_answers"]) != 1:
        return ""
    row, task = run.tables["w_answers"].iloc[0], run.task
    if is_missing(row["sd"]):
        return "" if is_missing(row["note"]) else WORDS.say("no_norm", row=row)
    scans = run.tables["scans"]
    scan = scans[scans["scan_id"] == row["scan_id"]].iloc[0]
    middle, low, high = expit(row["mean"] + np.array([0, -1, 1]) * row["sd"])
    options = " and ".join(option for name, option in ASKED_OF_IMAGE.items() if is_missing(scan[name]))

    def said(sentence: str, who: str = "") -> str:
        return WORDS.say(
            sentence, who=who, run=run, row=row, far=abs(row["w"]), above="above" if row["w"] >= 0 else "below",
            difference=abs(row["answer"] - row["mean"]), men=_SEX.get(str(scan["sex"])), age=scan["age"],
            or_more=" or more" * bool(scan["age"] == OLDEST_AGE), middle=middle, low=low, high=high,
            options=options,
        )  # fmt: skip

    of_task = "norm_of_number" if task.is_number else "norm_of_classes"
    if not is_missing(row["covariates"]):
        return said("norm_of_age" if tells_age(run) else of_task, said(f"{of_task}_alike"))
    told = said(of_task, said(f"{of_task}_all"))
    few = MEANS_ALONE in str(row["note"]) or not options
    return f"{told} {said('norm_of_few' if few else 'norm_if_told')}"


def tells_age(run: RunRecord) -> bool:
    """Whether the networks predict age."""
    return run.task.is_number and run.task.column.lower() == "age"


def _what_networks_say(run: RunRecord) -> Answer:
    """What the networks say of people without a label, for the summary."""
    rows, task = run.applied, run.task
    if rows is None:
        return Answer("Not known: no scan has been predicted yet.")
    answer, shown, what = "probability", number, f"probability of {run.positive}"
    if task.is_number:
        answer, shown, what = "prediction", partial(fixed, decimals=1), f"predicted {task.column}"
    people = rows.groupby("participant_id")[[answer, f"{answer}_sd"]].mean()
    first, sd = people.iloc[0][answer], people.iloc[0][f"{answer}_sd"]
    caption = f"{what}, mean over {count(int(rows['n_networks'].max()), 'network')}"
    if len(people) == 1:
        spread = "" if is_missing(sd) else f", with a standard deviation over the networks of {shown(sd)}"
        beside = beside_controls(run)
        is_told = tells_age(run) and run.tables["scans"]["age"].notna().all()
        text = f"The {what} is {shown(first)}{spread}. {beside}".strip()
        return Answer(text if is_told else f"{text} {WORDS.say('no_label')}", shown(first), caption)
    middle = people[answer].median()
    if task.is_number:
        low, high = people[answer].min(), people[answer].max()
        text = WORDS.say("many_without_number", participants=len(people), run=run, middle=middle, low=low, high=high)
    else:
        above = int((people[answer] > 0.5).sum())
        text = WORDS.say("many_without_label", participants=len(people), above=above, run=run, middle=middle)
    return Answer(text, shown(middle), f"median {caption}")


def _is_applied(run: RunRecord) -> bool:
    """Whether networks of another run predicted people without labels, or the table that says so is damaged."""
    return run.without_labels and (run.applied is not None or APPLIED_OF[run.task.kind.name] in run.unreadable)


APPLIED = Question.read(
    WORDS,
    "applied",
    tasks=ANY_TASK,
    applies=_is_applied,
    headline=Headline(tuple(dict.fromkeys(APPLIED_OF.values())), _what_networks_say),
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
