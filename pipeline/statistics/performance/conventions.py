"""Which way of feeding a network fits its answers best, and whether the declared one is clearly worse than another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.resampling.means import mean_intervals, sign_flip_test

CONVENTIONS_TABLE = declared("conventions", __file__)
MAE, AUC = "mean absolute error", "area under the curve"
FLIPS, LEVEL = 9999, 0.05


def losses(answers: Floats, truth: Floats, measure: str) -> Floats:
    """What each person adds to the error of each convention, (people, conventions); the mean over people is the error.

    Of a number it is the distance from the truth. Of two classes, 0 and 1, it is the share of the other class that a
    person stands on the wrong side of, weighted so that both classes count alike: the mean is 1 - AUC.

    >>> one = np.array([[0.1, 0.4, 0.35, 0.8]])
    >>> losses(one, np.array([0.0, 0.0, 1.0, 1.0]), AUC).mean(axis=0).tolist()  # 3 of 4 pairs are in order
    [0.25]
    """
    if measure == MAE:
        return np.asarray(np.abs(answers - truth).T)
    found = np.empty(answers.T.shape)
    for own in (0.0, 1.0):
        mine, theirs = answers[:, truth == own], answers[:, truth != own]
        sign = np.sign(theirs[:, None, :] - mine[:, :, None]) * (2 * own - 1)
        found[truth == own] = ((sign + 1) / 2).mean(axis=2).T * len(truth) / (2 * mine.shape[1])
    return found


def by_guessing(truth: Floats, measure: str) -> Floats:
    """The same (people,) of a predictor without an image: the mean of the others, or chance."""
    if measure == MAE:
        return np.asarray(np.abs(truth - (truth.sum() - truth) / (len(truth) - 1)))
    return np.asarray(len(truth) / (4 * np.where(truth == 1, (truth == 1).sum(), (truth == 0).sum())))


def conventions_table(names: Sequence[str], answers: Floats, truth: Floats, measure: str, seed: int) -> pd.DataFrame:
    """Rows of `CONVENTIONS_TABLE`, the best first, and the guess.

    `names`: of the conventions, the declared one first. `answers`: (conventions, people). `truth`: (people,). Each
    convention is compared with the declared one by sign flips over people, and p_fwe is against the largest of all.
    """
    lost = losses(np.where(np.isfinite(answers), answers, np.nan), truth, measure)
    if measure == AUC:
        lost[:, ~np.isfinite(answers).all(axis=1)] = np.nan
    lost = np.column_stack([lost, by_guessing(truth, measure)])
    random = generator(seed, "conventions")
    gain = lost[:, :1] - lost[:, 1:]
    family = sign_flip_test(gain[:, :-1], np.ones_like(gain[:, :-1]), FLIPS, random)
    guess = sign_flip_test(gain[:, -1:], np.ones_like(gain[:, -1:]), FLIPS, random)
    with np.errstate(invalid="ignore"):
        bounds, _ = mean_intervals(lost, 1 - LEVEL)
    estimate, low, high = lost.mean(axis=0), np.maximum(bounds.low, 0), bounds.high
    if measure == AUC:
        estimate, low, high = 1 - estimate, np.clip(1 - high, 0, 1), np.clip(1 - low, 0, 1)
    frame = CONVENTIONS_TABLE.frame().reindex(range(len(names) + 1))
    frame["convention"] = [*names, "mean of the others" if measure == MAE else "chance"]
    frame["kind"] = ["declared", *["other"] * (len(names) - 1), "guess"]
    frame["measure"], frame["n_participants"] = measure, len(truth)
    frame["estimate"], frame["ci_low"], frame["ci_high"] = estimate, low, high
    frame["difference"] = estimate - estimate[0]
    frame["p"] = [np.nan, *family.p, *guess.p]
    frame["p_fwe"] = [np.nan, *family.p_fwe, np.nan]
    order = np.argsort(rankdata(np.where(np.isfinite(lost.mean(axis=0)), lost.mean(axis=0), np.inf)), kind="stable")
    return frame.iloc[order].reset_index(drop=True)


def verdict(table: pd.DataFrame) -> str:
    """What a table of `conventions_table` says of the declared convention, in a sentence."""
    declared_row = table[table["kind"] == "declared"].iloc[0]
    guess = table[table["kind"] == "guess"].iloc[0]
    best = table[table["kind"] != "guess"].iloc[0]
    smaller_is_better = declared_row["measure"] == MAE

    def beats(row: pd.Series, other: pd.Series) -> bool:
        return bool((row["estimate"] < other["estimate"]) == smaller_is_better and row["estimate"] != other["estimate"])

    clear = table[(table["kind"] == "other") & (table["p_fwe"] <= LEVEL)]
    better = clear[[beats(row, declared_row) for _, row in clear.iterrows()]]
    if len(better):
        one = better.iloc[0]
        return (
            f"another convention is clearly better: {one['convention']} ({one['estimate']:.2f} against "
            f"{declared_row['estimate']:.2f}, p = {one['p_fwe']:.2g} after all comparisons)"
        )
    if beats(best, declared_row):
        return (
            f"cannot be told apart: {best['convention']} has {best['estimate']:.2f} and the declared convention "
            f"{declared_row['estimate']:.2f}, which {declared_row['n_participants']} people may do by chance"
        )
    if not beats(declared_row, guess) or not guess["p"] <= LEVEL:
        return "cannot be told apart: the network is not shown to know more than a guess, however it is fed"
    alike = int(((table["kind"] == "other") & (table["p_fwe"] > LEVEL)).sum())
    return (
        "fed as it was trained: no other convention is better, and the network knows more than a guess; "
        f"{alike} of {(table['kind'] == 'other').sum()} others are not clearly worse"
    )
