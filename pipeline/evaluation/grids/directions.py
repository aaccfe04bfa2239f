"""Whether what the literature found on grids holds for a network: one claim, one paired difference, one answer.

A claim says that one method, setting and stage has larger shares than another on the same grids, or than chance. The
participant in the target's cell is the unit: their grids are averaged, and the interval draws participants.

Source: Rao, Böhle & Schiele 2022.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from pipeline.evaluation.grids.settings import Setting
from pipeline.evaluation.scores.intervals import participant_interval
from pipeline.run.errors import BadInputError

DIRECTION_COLUMNS: Mapping[str, str] = {
    "claim": "What the literature found, in short",
    "larger": "Setting, method and stage that should have the larger shares",
    "smaller": "Setting, method and stage that should have the smaller ones, or chance",
    "n_participants": "Participants in the target's cell; each counts once",
    "difference": "Mean difference of shares over participants; undefined maps have the share 0",
    "ci_low": "Lower bound of its 95 % bootstrap interval over participants",
    "ci_high": "Upper bound",
    "holds": "yes or no, where the interval leaves out 0; open, where it does not; n/a, where a method has no scores",
}
"""Columns of the table of directions, and what they mean."""

Depth = Literal["input", "last"]


@dataclass(frozen=True)
class Side:
    """Scores of one method in one setting: at the input, or at the last other stage in the table."""

    setting: Setting
    method: str
    depth: Depth = "input"

    def __str__(self) -> str:
        return f"{self.setting}, {self.method}, {self.depth}"


@dataclass(frozen=True)
class Claim:
    """`larger` has larger shares than `smaller`; None is chance."""

    name: str
    larger: Side | None
    smaller: Side | None


def claims(smooth: str = "smooth-integrated-gradients") -> tuple[Claim, ...]:
    """What Rao et al. found, for methods under the names of `pipeline.evaluation.grids.studies`.

    Parameters
    ----------
    smooth : str
        Name of smoothed integrated gradients, with its kernel.
    """
    ixg, intgrad, cam = "input-x-gradient", "integrated-gradients", "grad-cam"
    return (
        Claim("IxG improves with depth", Side("GridPG", ixg, "last"), Side("GridPG", ixg)),
        Claim("IntGrad improves with depth", Side("GridPG", intgrad, "last"), Side("GridPG", intgrad)),
        Claim("LRP-Focus is better than IxG at the input", Side("GridPG", "lrp focus"), Side("GridPG", ixg)),
        Claim("LRP needs a γ of .1 and more", Side("GridPG", "lrp composite gamma=0.25"),
              Side("GridPG", "lrp composite gamma=0.01")),
        Claim("Smoothing helps IntGrad", Side("GridPG", smooth), Side("GridPG", intgrad)),
        Claim("Grad-CAM marks what the head cannot see", Side("GridPG", cam, "last"), Side("DiFull", cam, "last")),
        Claim("IxG marks only what the head sees", Side("DiFull", ixg), Side("DiFull", cam, "last")),
        Claim("DiPart loses locality towards the input", Side("DiPart", ixg, "last"), Side("DiPart", ixg)),
        Claim("Occlusion is better than RISE", Side("DiFull", "occlusion"), Side("DiFull", "rise")),
        Claim("Grad-CAM at the input is below chance", None, Side("GridPG", cam)),
    )  # fmt: skip


def directions(
    scores: pd.DataFrame, participants: Mapping[int, str], asked: Sequence[Claim], draws: int = 2000, seed: int = 0
) -> pd.DataFrame:
    """A row per claim: the paired difference with its interval, and whether the claim holds.

    Parameters
    ----------
    scores : pandas.DataFrame
        Of `pipeline.evaluation.grids.grid_scores.grid_scores`, of one network.
    participants : mapping of int to str
        Participant of each scan.
    asked : sequence of Claim
    draws, seed : int

    Returns
    -------
    pandas.DataFrame
        `DIRECTION_COLUMNS`.

    Raises
    ------
    BadInputError
        For a scan without a participant.
    """
    made = scores[scores["grid"].notna()]
    unknown = set(made["scan"].astype(int)) - set(participants)
    if unknown:
        raise BadInputError(f"directions: scan {min(unknown)} has no participant; give the participant of every scan.")
    return pd.DataFrame([_row(made, participants, one, draws, seed) for one in asked], columns=list(DIRECTION_COLUMNS))


def _row(made: pd.DataFrame, participants: Mapping[int, str], claim: Claim, draws: int, seed: int) -> dict[str, object]:
    sides = [_shares(made, side) for side in (claim.larger, claim.smaller)]
    paired = pd.concat(sides, axis=1, keys=["larger", "smaller"]).dropna()
    names = {"claim": claim.name, "larger": str(claim.larger or "chance"), "smaller": str(claim.smaller or "chance")}
    if not len(paired):
        return {**names, "n_participants": 0, "holds": None}
    scan_of = made.drop_duplicates("grid").set_index("grid")["scan"].astype(int)
    people = scan_of.loc[paired.index].map(participants)
    each = (paired["larger"] - paired["smaller"]).groupby(people).mean().to_numpy(float)
    low, high = participant_interval((each,), np.mean, draws, seed)
    found = float(each.mean())
    return {
        **names, "n_participants": len(each), "difference": found, "ci_low": low, "ci_high": high,
        "holds": "yes" if low > 0 else "no" if high < 0 else "open",
    }  # fmt: skip


def _shares(made: pd.DataFrame, side: Side | None) -> pd.Series:
    """Share of each grid, by its number; those of chance where no side is given."""
    if side is None:
        return made.drop_duplicates("grid").set_index("grid")["chance"].astype(float)
    own = made[(made["setting"] == side.setting) & (made["method"] == side.method)]
    stages = [stage for stage in own["stage"].unique() if (stage == 0) == (side.depth == "input")]
    own = own[own["stage"] == stages[-1]] if stages else own.iloc[:0]
    return own.set_index("grid")["share"].astype(float).fillna(0)
