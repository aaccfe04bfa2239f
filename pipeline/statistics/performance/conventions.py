"""Which way of feeding a network fits its answers best, and whether the declared one is clearly worse than another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

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
    lost = np.column_stack([lost, by_guessing(truth, measure)])
    gain, random = lost[:, :1] - lost, generator(seed, "conventions")
    tests = [sign_flip_test(one, np.ones_like(one), FLIPS, random) for one in (gain[:, :-1], gain[:, -1:])]
    with np.errstate(invalid="ignore"):
        bounds, _ = mean_intervals(lost, 1 - LEVEL)
    error, low, high = lost.mean(axis=0), np.maximum(bounds.low, 0), bounds.high
    frame = CONVENTIONS_TABLE.frame().reindex(range(len(names) + 1))
    frame["convention"] = [*names, "mean of the others" if measure == MAE else "chance"]
    frame["kind"] = ["declared", *["other"] * (len(names) - 1), "guess"]
    frame["measure"], frame["n_participants"], frame["gain"] = measure, len(truth), gain.mean(axis=0)
    if measure == MAE:
        frame["estimate"], frame["ci_low"], frame["ci_high"] = error, low, high
    else:
        frame["estimate"], frame["ci_low"], frame["ci_high"] = 1 - error, np.maximum(1 - high, 0), 1 - low
    frame["p"] = np.concatenate([one.p for one in tests])
    frame["p_fwe"] = [*tests[0].p_fwe, np.nan]
    return frame.iloc[np.argsort(np.nan_to_num(error, nan=np.inf), kind="stable")].reset_index(drop=True)


def verdict(table: pd.DataFrame) -> str:
    """What a table of `conventions_table` says of the declared convention, in a sentence."""
    rows = {kind: part for kind, part in table.groupby("kind", sort=False)}
    own, guess, others = rows["declared"].iloc[0], rows["guess"].iloc[0], rows["other"]
    better = others[others["gain"] > 0]
    clear = better[better["p_fwe"] <= LEVEL]
    if len(better):
        one = (clear if len(clear) else better).iloc[0]
        numbers = f"{one['convention']} ({one['estimate']:.2f} against {own['estimate']:.2f}, p = {one['p_fwe']:.2g}"
        known = "another convention is clearly better" if len(clear) else "cannot be told apart: the best is"
        return f"{known}{':' * bool(len(clear))} {numbers} after all comparisons)"
    if guess["gain"] >= 0 or not guess["p"] <= LEVEL:
        return "cannot be told apart: the network is not shown to know more than a guess, however it is fed"
    alike = int((others["p_fwe"] > LEVEL).sum())
    return (
        "fed as it was trained: no other convention is better, and the network knows more than a guess; "
        f"{alike} of {len(others)} others are not clearly worse"
    )
