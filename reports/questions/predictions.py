"""How well a number or several classes are predicted, whether repeats agree, and what networks say without labels."""

from __future__ import annotations

from heatlas.pipeline.cohort.people.tasks import NUMBER, SEVERAL_CLASSES
from heatlas.reports.frame.pages import PERFORMANCE, SUMMARY
from heatlas.reports.questions.baselines import against_baselines
from heatlas.reports.questions.question import ANY_TASK, Answer, Headline, Question
from heatlas.reports.questions.views import CI, N, View
from heatlas.reports.read.run_files import PREDICTIONS_OF
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, fixed, interval, is_missing, listing, number

_MEASURED = ("fold", "metric", "estimate", *CI, *N)

_HOW_PREDICTED = "How good is the prediction?"


def _how_predicted(run: RunRecord) -> Answer:
    """How well a number is predicted, or several classes are told apart, for the summary."""
    name = PREDICTIONS_OF[run.task.kind.name].replace("predictions", "performance")
    if not run.has(name):
        return Answer(_HOW_PREDICTED, "Not known: the statistics have not been run yet.")
    table = run.tables[name]
    rows = table[table["fold"] == "all"].set_index("metric")
    level = run.config.statistics.confidence
    best = rows.loc[run.task.kind.score]
    span = interval(best["ci_low"], best["ci_high"], 2, level)
    people = f"This rests on {count(int(str(best['n_participants'])), 'participant')}."
    if not run.task.classes:
        text = (
            f"Networks predicted {run.task.column} of people {run.in_whom} with a mean absolute error of "
            f"{fixed(best['estimate'])} ({span}), where predicting the mean of all gives "
            f"{fixed(rows.loc['mae_of_mean', 'estimate'])}; the correlation of predicted with true values is "
            f"{fixed(rows.loc['r', 'estimate'])}. {people} {against_baselines(run)}"
        ).strip()
        return Answer(_HOW_PREDICTED, text, fixed(best["estimate"]), "mean absolute error")
    text = (
        f"Networks told {listing(list(run.task.outputs))} apart in people {run.in_whom} with a balanced accuracy "
        f"of {fixed(best['estimate'])} ({span}), where {fixed(1 / len(run.task.outputs))} is guessing. {people}"
    )
    return Answer(_HOW_PREDICTED, text, fixed(best["estimate"]), "balanced accuracy over all classes")


NUMBER_PERFORMANCE = Question(
    "number-performance", "How well is the number predicted?", "Performance", PERFORMANCE,
    "{predicted} "
    "A network should do better than the mean of the target. The gap (predicted minus true) falls with the target "
    "wherever prediction is imperfect; the corrected gap is the gap minus this trend, a line fitted to the other folds "
    "(de Lange & Cole 2020). It uses the true value, so it describes a person and does not measure the prediction.",
    (
        View("performance_number", "Out-of-fold predictions of all folds together.", (*_MEASURED, "note"),
             where={"fold": ["all"]}),
        View("performance_number", "Test participants of each fold.", _MEASURED, shown=40),
    ),
    tasks=frozenset({NUMBER}),
    headline=Headline(_HOW_PREDICTED, ("scans",), _how_predicted),
)  # fmt: skip
CLASSES_PERFORMANCE = Question(
    "classes-performance", "How well are the classes distinguished?", "Performance", PERFORMANCE,
    "{predicted} "
    "The balanced accuracy is the mean over classes of the share of their scans that are recognised.",
    (
        View("performance_classes", "Predictions of all folds together.", _MEASURED, where={"fold": ["all"]}),
        View(
            "confusion", "Scans by true and predicted class, all folds together.",
            ("label", "predicted", "n_scans", "n_participants", "share"), where={"fold": ["all"]}, shown=100,
        ),
    ),
    tasks=frozenset({SEVERAL_CLASSES}),
)  # fmt: skip

REPEATS = Question(
    "repeats", "Does the performance depend on the seed of the training?", "Repeats", PERFORMANCE,
    "Each fold was trained several times with other seeds, on the same registration and the same split. Heatmaps are "
    "those of the first training.",
    (
        View("performance_repeats", "Out-of-fold predictions of each training, mean and standard deviation, and the "
             "mean of folds with an interval that includes training again.",
             ("repeat", "metric", "estimate", *CI, "interval", *N, "note"), shown=40),
    ),
    tasks=ANY_TASK,
)  # fmt: skip

_SAY = "What do the networks say?"


def _what_networks_say(run: RunRecord) -> Answer:
    """What the networks say of people without a label, for the summary."""
    if not run.has("predictions_applied"):
        return Answer(_SAY, "Not known: no scan has been predicted yet.")
    rows = run.tables["predictions_applied"]
    people = rows.groupby("participant_id")[["probability", "probability_sd"]].mean()
    first = people.iloc[0]
    caption = f"probability of {run.positive}, mean over {count(int(rows['n_networks'].max()), 'network')}"
    if len(people) == 1:
        spread = "" if is_missing(first["probability_sd"]) else (
            f", with a standard deviation over the networks of {fixed(first['probability_sd'])}"
        )  # fmt: skip
        text = f"The probability of {run.positive} is {fixed(first['probability'])}{spread}."
        text += " Whether it is right cannot be said: there is no label."
        return Answer(_SAY, text, fixed(first["probability"]), caption)
    above, middle = int((people["probability"] > 0.5).sum()), people["probability"].median()
    text = (
        f"Of {count(len(people), 'participant')}, {number(above)} have a probability of {run.positive} above 0.50; the "
        f"median is {fixed(middle)}. Whether this is right cannot be said: there are no labels of both classes."
    )
    return Answer(_SAY, text, fixed(middle), f"median {caption}")


APPLIED = Question(
    "applied", _SAY, "Predictions", SUMMARY,
    "Every network of the run was asked; none was trained with these people. Logits, probabilities and maps are means "
    "over the networks, and the spread of the probability says how far the networks agree, not how often they are "
    "right. Scores compare each region with the controls of that run.",
    (
        View(
            "predictions_applied", "Each scan, most likely {positive} first.",
            ("participant_id", "session_id", "probability", "probability_sd", "n_networks", "predicted"),
            order=("-probability",), shown=40,
        ),
        View(
            "w_fingerprints", "The regions of each person that deviate most from controls, by map, and by volume where "
            "it was measured.", ("participant_id", "source", "group", "w", "z", "rank"), where={"rank": [1, 2, 3]},
            order=("source", "participant_id", "rank"), shown=40,
        ),
    ),
    requires=("predictions_applied",),
    applies=lambda run: run.without_labels,
    headline=Headline(_SAY, ("predictions_applied",), _what_networks_say),
)  # fmt: skip
"""In place of all others, where networks were applied to people without labels."""
