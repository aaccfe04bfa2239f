"""Performance of the classifier in each subgroup, and its difference from all other participants.

All metrics are over scans, each participant with all of theirs, as in ``performance.tsv``. The difference between a
subgroup and the rest counts every participant once. It is taken within test folds, whose networks differ in quality,
and tested by permuting membership between participants of the same fold and class
(`pipeline.statistics.performance.subgroup_difference`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.run.columns import Form, described
from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.run.declared import Inference, Table
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.members import COURSE, LEVEL_IS, Levels, subgroup_levels
from heatlas.pipeline.statistics.data.notes import joined
from heatlas.pipeline.statistics.data.values import participant_codes, participant_means
from heatlas.pipeline.statistics.linear.fold_effect import FOLD, several_folds
from heatlas.pipeline.statistics.linear.freedman_lane import TEST_INTERVAL
from heatlas.pipeline.statistics.performance.classification import weighted_auc
from heatlas.pipeline.statistics.performance.subgroup_difference import (
    METRICS,
    Answers,
    Difference,
    subgroup_difference,
)
from heatlas.pipeline.statistics.resampling.bootstrap import (
    FLAT,
    INTERVAL_OF_PERFORMANCE,
    LOGIT,
    NO_INTERVAL,
    ratio,
    scaled_intervals,
    with_exact_shares,
)
from heatlas.pipeline.statistics.resampling.correction_family import benjamini_hochberg

FAIRNESS_METRICS = METRICS
FLAT_ERROR = "no test: participants do not differ in what the metric counts"
FEW, FEWER_SCANS = 30, 1.25
UNEVEN = (
    f"fewer than {FEW} participants of a class {{where}} the subgroup, with fewer scans each than the others: if their "
    "scans agree better, p of difference is too small (8 to 17 % at 5 %)"
)
"""Caveat by design: shares of one scan vary more than those of many, and few of them do not show by how much.

No studentised statistic tried mends it: with variances of each side, or shares that keep their side's spread under
permutation, sensitivity is as far off or further (docs/benchmarks/statistics.md).
"""

FAIRNESS_COLUMNS = {
    "variable": "Variable that defines the subgroups",
    "level": LEVEL_IS,
    "metric": "balanced_accuracy, sensitivity, specificity or auc, over scans; n/a for a suppressed subgroup",
    "estimate": "Value in the subgroup",
    "ci_low": "Lower bound of the interval of estimate over participants, with all their scans",
    "ci_high": "Upper bound of the interval of estimate",
    "interval": INTERVAL_OF_PERFORMANCE,
    "rest": "Value in all other participants with a known level",
    "difference": "Mean of the differences within test folds, weighted by n1 n2 / (n1 + n2) participants, each counted "
    "once (their scans averaged); of auc, from pairs of participants of one fold. estimate - rest with one network and "
    "one scan per person",
    "difference_low": "Lower bound of the interval of difference",
    "difference_high": "Upper bound of the interval of difference",
    "difference_interval": "permutation: made with the critical value of the permuted t, so it excludes 0 exactly "
    "where p is at most 1 - confidence; none",
    "p": "Two-sided p of difference, studentised, from permuting membership between participants of the same fold and "
    "class, (b+1)/(m+1)",
    "p_fdr": "p adjusted for the false discovery rate over the subgroups and metrics of the variable "
    "(Benjamini-Hochberg)",
    **described("family"),
    "n_participants": "Participants of the subgroup",
    **described("n_scans"),
    "n_positive": "Participants of the subgroup with scans of the positive class; n/a if suppressed",
    "n_negative": "Participants of the subgroup with scans of the negative class; n/a if suppressed",
    **described("n_permutations"),
    "note": "Why there is no value, what was suppressed, or a caveat",
}
FAIRNESS_TABLE = Table(
    "fairness", FAIRNESS_COLUMNS, "subgroup and metric", "Does the classifier work equally well in all subgroups?",
    forms={"level": Form.TEXT},
    inference=Inference("secondary", "all subgroups and measures of one variable"),
)  # fmt: skip
_NUMBERS = ("estimate", "ci_low", "ci_high", "rest", "difference", "difference_low", "difference_high", "p", "p_fdr")


def fairness_tables(inputs: StatisticsInputs) -> pd.DataFrame:
    """Table ``fairness``: a row per variable, level and metric."""
    settings = inputs.config.statistics
    frame = inputs.frame
    blocks = [pd.DataFrame(columns=list(FAIRNESS_COLUMNS))]
    for variable in settings.subgroups.variables:
        if variable == COURSE:  # the class itself
            continue
        try:
            levels = subgroup_levels(inputs, variable).of_rows(np.arange(len(frame)))
        except BadInputError as error:
            blocks.append(_blank(variable, None, str(error)))
            continue
        blocks.append(_of_variable(inputs, levels, frame))
    table = pd.concat(blocks[1:] or blocks, ignore_index=True)
    return table[list(FAIRNESS_COLUMNS)]


def _of_variable(inputs: StatisticsInputs, levels: Levels, frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of one variable, with p adjusted over them."""
    settings, variable = inputs.config.statistics, levels.variable
    minimum = settings.subgroups.minimum_participants
    known = levels.of_scan.notna().to_numpy(bool)
    blocks = []
    for level in levels.names:
        members = levels.members(level)
        n_participants, n_scans = frame.loc[members, "participant_id"].nunique(), int(members.sum())
        if n_participants < minimum:
            note = f"suppressed: {counted(n_participants, 'participant')}, fewer than {minimum}"
            block = _blank(variable, level, note)
        else:
            # One random stream per variable, so that two complementary subgroups have the same p.
            rng = generator(inputs.seed, "statistics", "fairness", variable)
            block = _of_level(frame[known].reset_index(drop=True), members[known], settings, rng)
            block = block.assign(variable=variable, level=level)
            block["note"] = [joined(note, levels.note) for note in block["note"]]
        blocks.append(block.assign(n_participants=n_participants, n_scans=n_scans))
    table = pd.concat(blocks, ignore_index=True)
    table["p_fdr"] = benjamini_hochberg(table["p"].to_numpy(float))
    n_tests = int(table["p"].notna().sum())
    return table.assign(family=f"{n_tests} subgroups x metrics: {variable}" if n_tests else "none")


def _of_level(
    frame: pd.DataFrame, members: NDArray[np.bool_], settings: StatisticsConfig, rng: np.random.Generator
) -> pd.DataFrame:
    """Rows of one subgroup against the rest of the frame."""
    codes, names = participant_codes(frame["participant_id"].tolist())
    target = frame["target"].to_numpy(float)
    predicted = frame["outcome"].isin(["TP", "FP"]).to_numpy().astype(float)
    probability = frame["probability"].to_numpy(float)
    right = (target == predicted).astype(float)
    inside = participant_means(members.astype(float), codes) > 0.5

    def of_weights(weights: Floats) -> Floats:
        """Metrics of weighted participants, shape (draws, metrics)."""
        of_scans = weights[:, codes]
        sensitivity = ratio(of_scans @ (right * target), of_scans @ target)
        specificity = ratio(of_scans @ (right * (1 - target)), of_scans @ (1 - target))
        auc = weighted_auc(target, probability, of_scans)
        return np.stack([(sensitivity + specificity) / 2, sensitivity, specificity, auc], axis=1)

    is_inside = inside.astype(float)[None]
    estimate, rest = of_weights(is_inside)[0], of_weights(1 - is_inside)[0]
    has = {1: participant_means(target, codes) > 0, 0: participant_means(target, codes) < 1}
    fold = pd.factorize(frame[FOLD])[0].astype(np.intp) if several_folds(frame, settings.fold_effect) else 0 * codes
    answers = Answers.of(codes, fold, target, right, probability)
    tested = subgroup_difference(answers, inside, settings.permutations, rng, settings.confidence)

    def of_members(weights: Floats) -> Floats:
        everyone = np.zeros((len(weights), len(names)))
        everyone[:, inside] = weights
        return of_weights(everyone)

    strata = has[1][inside].astype(np.intp)
    found = scaled_intervals(
        of_members, strata, [LOGIT] * len(METRICS), settings.bootstrap_samples, settings.confidence, rng
    )
    counts = {of_class: int((inside & has[of_class]).sum()) for of_class in (1, 0)}
    shares = {1: (float(estimate[1]), counts[1]), 2: (float(estimate[2]), counts[0])}  # sensitivity, specificity
    found = with_exact_shares(found, shares, settings.confidence)
    notes = [
        joined(
            _note(estimate[i], rest[i], tested, i),
            _caveat(answers, inside, i),
            FLAT if flat and found.method[i] == NO_INTERVAL else None,
        )
        for i, flat in enumerate(found.flat)
    ]
    table = pd.DataFrame(
        {
            "metric": FAIRNESS_METRICS, "estimate": estimate, "ci_low": found.low, "ci_high": found.high,
            "interval": found.method, "rest": rest, "difference": tested.difference, "difference_low": tested.low,
            "difference_high": tested.high,
            "difference_interval": np.where(np.isnan(tested.low), NO_INTERVAL, TEST_INTERVAL), "p": tested.p,
            "n_positive": counts[1], "n_negative": counts[0], "n_permutations": tested.n_permutations,
            "note": np.array(notes, dtype=object),
        }
    )  # fmt: skip
    return _suppressed(table, counts, settings.subgroups.minimum_participants)


def _suppressed(table: pd.DataFrame, counts: Mapping[int, int], minimum: int) -> pd.DataFrame:
    """Remove metrics based on fewer participants of a class than the minimum."""
    few = [name for name, of_class in (("positive", 1), ("negative", 0)) if 0 < counts[of_class] < minimum]
    for name in few:
        spared = "specificity" if name == "positive" else "sensitivity"
        rows = (table["metric"] != spared) & table["estimate"].notna()
        table.loc[rows, [column for column in _NUMBERS if column in table]] = np.nan
        table.loc[rows, ["interval", "difference_interval"]] = NO_INTERVAL
        table.loc[rows, "note"] = f"suppressed: fewer than {minimum} participants of the {name} class"
    return table


def _note(value: float, rest: float, tested: Difference, metric: int) -> str | None:
    for side, where in ((value, "in"), (rest, "outside")):
        if np.isnan(side):
            return f"a class that the metric needs has no scan {where} the subgroup"
    if np.isnan(tested.difference[metric]):
        return "no fold has scans of the classes that the metric needs both in and outside the subgroup"
    if tested.difference[metric] == 0 and np.isnan(tested.p[metric]) and tested.n_permutations:
        return f"difference: {FLAT_ERROR}"
    if np.isnan(tested.p[metric]):
        return "the subgroup is the same as a fold, so it cannot be distinguished from the network"
    return None


def _caveat(answers: Answers, inside: NDArray[np.bool_], metric: int) -> str | None:
    """`UNEVEN` where a class that the metric needs has few people with few scans on one side."""
    for of_class in {"sensitivity": (1,), "specificity": (0,)}.get(METRICS[metric], (0, 1)):
        scans = answers.scans[of_class]
        for where, side in (("in", inside), ("outside", ~inside)):
            own, others = scans[side & (scans > 0)], scans[~side & (scans > 0)]
            if 0 < len(own) < FEW and len(others) and FEWER_SCANS * own.mean() < others.mean():
                return UNEVEN.format(where=where)
    return None


def _blank(variable: str, level: str | None, note: str) -> pd.DataFrame:
    row: dict[str, object] = dict.fromkeys(FAIRNESS_COLUMNS)
    row |= dict.fromkeys(_NUMBERS, np.nan) | dict.fromkeys(("n_participants", "n_scans", "n_permutations"), 0)
    row |= {"variable": variable, "level": level, "note": note, "family": "none"}
    return pd.DataFrame([row | {"interval": NO_INTERVAL, "difference_interval": NO_INTERVAL}])
