"""Whether what the literature found on grids holds for a network: one claim, one paired difference, one answer.

A claim says that one method, setting and stage has larger shares than another, than chance, or about the same. The
participant in the target's cell is the unit: their grids are averaged, and the interval draws participants.

Source: Rao, Böhle & Schiele 2022.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from heatlas.pipeline.attribution.titles import method_title
from heatlas.pipeline.evaluation.scores.accuracy import DRAWS, participant_interval
from heatlas.pipeline.run.errors import BadInputError
from heatlas.studies.grids.grid_scores import LARGEST, Setting
from heatlas.studies.grids.layout import Kind
from heatlas.studies.tables import declared

BY_CONSTRUCTION = "by construction"
NEAR = 0.1
"""Difference of shares below which two are about the same."""
GRIDS_TABLE = declared("grids", LARGEST=LARGEST)

DIRECTIONS_TABLE = declared("grid_directions", NEAR=NEAR)

At = Literal["input", "last"]
KIND_OF: Mapping[Setting, Kind] = {"GridPG": "needle", "DiFull": "corner", "DiPart": "corner"}
"""Kind of grid in which a setting is asked first."""


@dataclass(frozen=True)
class Side:
    """Shares of one method in one setting: at the input, or at the last other stage in the table."""

    setting: Setting
    method: str
    at: At = "input"
    kind: Kind | None = None

    def __str__(self) -> str:
        return f"{self.setting}, {self.kind or KIND_OF[self.setting]}, {self.method}, {self.at}"


Other = Side | Literal["chance", "1"]


@dataclass(frozen=True)
class Claim:
    """`larger` has larger shares than `smaller`, or with `near` about the same; with `constructed` it cannot fail."""

    name: str
    larger: Other
    smaller: Other
    near: bool = False
    constructed: bool = False


def claims(kernels: Sequence[int], pooled: bool) -> tuple[Claim, ...]:
    """What Rao et al. found, for methods under the names of `studies.grids.studies`.

    `kernels`: of the smoothing study, in ascending order; the literature recommends the last but one. `pooled`: whether
    the network pools its last map globally; some claims are about such networks only.
    """
    ixg, intgrad, cam, focus = "input-x-gradient", "integrated-gradients", "grad-cam", "lrp focus"
    smooth = [f"smooth-{name} kernel={kernels[-2:][0]}" for name in (ixg, intgrad)]
    widest = f"smooth-{intgrad} kernel={kernels[-1]}"
    last = Side("GridPG", cam, "last")
    backward = ("gradient", "guided-backpropagation", ixg, intgrad)
    claimed = [
        Claim(f"At the input {_name_in_sentence(name)} is near chance", Side("GridPG", name), "chance", True)
        for name in backward
    ]
    claimed += [
        Claim(f"{method_title(name)} improves with depth", Side("GridPG", name, "last"), Side("GridPG", name))
        for name in (ixg, intgrad)
    ]
    claimed += [
        Claim(f"At the last stage {_name_in_sentence(name)} is like Grad-CAM", Side("GridPG", name, "last"), last, True)
        for name in (ixg, intgrad)
    ]
    claimed += [
        Claim("LRP-Focus is better than IxG at the input", Side("GridPG", focus), Side("GridPG", ixg)),
        Claim("LRP-Focus is better than chance at the input", Side("GridPG", focus), "chance"),
        Claim("LRP-Focus is better than chance at the last stage", Side("GridPG", focus, "last"), "chance"),
        Claim("LRP needs a γ of .1 and more", Side("GridPG", "lrp composite gamma=0.25"),
              Side("GridPG", "lrp composite gamma=0.01")),
        Claim("Smoothing helps IntGrad", Side("GridPG", smooth[1]), Side("GridPG", intgrad)),
        Claim("Smoothing helps IxG (in the literature without batch normalisation only)", Side("GridPG", smooth[0]),
              Side("GridPG", ixg)),
        Claim("IntGrad at the input, smoothed most, beats Grad-CAM at the last stage", Side("GridPG", widest), last),
        Claim("Smoothing costs some locality", Side("DiFull", intgrad), Side("DiFull", smooth[1])),
    ]  # fmt: skip
    for name in (*backward, "layer-cam", focus):
        title, constructed = f"{method_title(name)} marks only what the head sees", name in (focus, backward[1])
        claimed.append(Claim(title, Side("DiFull", name), "1", True, constructed))
    claimed += [
        Claim("Grad-CAM marks what the head cannot see", Side("DiFull", ixg), Side("DiFull", cam, "last")),
        Claim("Grad-CAM is worse in DiFull than in GridPG", last, Side("DiFull", cam, "last")),
        Claim("Occlusion marks only what the head sees", Side("DiFull", "occlusion"), "1", True),
        Claim("Occlusion is better than RISE", Side("DiFull", "occlusion"), Side("DiFull", "rise")),
        Claim(
            "DiPart is like DiFull at the last stage", Side("DiPart", ixg, "last"), Side("DiFull", ixg, "last"), True
        ),
        Claim("DiPart loses locality towards the input", Side("DiPart", ixg, "last"), Side("DiPart", ixg)),
        Claim("Grad-CAM at the input is below chance", "chance", Side("GridPG", cam)),
        Claim("Four cells are harder than two", Side("GridPG", focus, kind="pair"), Side("GridPG", focus)),
    ]
    if pooled:
        claimed += [
            Claim(f"At the last stage {_name_in_sentence(name)} is even", Side("GridPG", name, "last"), "chance", True)
            for name in ("gradient", "guided-backpropagation")
        ]
    return tuple(claimed)


def _name_in_sentence(method: str) -> str:
    title = method_title(method)
    return title[:1].lower() + title[1:]


def by_participant(made: pd.DataFrame, participants: Mapping[int, str], column: str = "share") -> pd.Series:
    """Mean of a column over the grids of each participant in the target's cell; an undefined map counts as 0."""
    people = made["scan"].astype(int).map(participants)
    return made[column].astype(float).fillna(0).groupby(people).mean()


def summary_of_grids(scores: pd.DataFrame, participants: Mapping[int, str], seed: int = 0) -> pd.DataFrame:
    """Mean scores per setting, kind of grid, method and stage: `GRIDS_TABLE` without what the network is like.

    Undefined maps count as 0, so that a method gains nothing by having none. `scores`: from `grid_scores`.
    """
    rows = []
    places = ["setting", "kind", "method", "stage"]
    for key, part in scores.groupby(places, sort=False, dropna=False):
        made, notes = part[part["grid"].notna()], part["note"].dropna()
        row = {**dict(zip(places, key, strict=True)), "depth": part["depth"].iloc[0], "cells": part["cells"].iloc[0]}
        row |= {"n_participants": 0, "n_grids": len(made), "n_undefined": int(made["undefined"].sum())}
        if len(made):
            each = by_participant(made, participants)
            low, high = participant_interval((each.to_numpy(float),), np.mean, DRAWS, seed)
            row |= {"n_participants": len(each), "share": each.mean(), "ci_low": low, "ci_high": high}
            top = by_participant(made, participants, "top_share")
            gain = participant_interval(((top - each).to_numpy(float),), np.mean, DRAWS, seed)
            row |= {"chance": made["chance"].mean(), "top_share": top.mean()}
            row |= dict(zip(("top_gain_low", "top_gain_high"), gain, strict=True))
        rows.append({**row, "note": notes.iloc[0] if len(notes) else None})
    return GRIDS_TABLE.frame(rows)


def directions(
    scores: pd.DataFrame, participants: Mapping[int, str], asked: Sequence[Claim], seed: int = 0
) -> pd.DataFrame:
    """A row per claim: the paired difference with its interval, and whether the claim holds; without the cohort."""
    made = scores[scores["grid"].notna()]
    unknown = set(made["scan"].astype(int)) - set(participants)
    if unknown:
        raise BadInputError(f"directions: scan {min(unknown)} has no participant; give the participant of every scan.")
    return DIRECTIONS_TABLE.frame(_row(made, participants, claim, seed) for claim in asked)


def _row(made: pd.DataFrame, participants: Mapping[int, str], claim: Claim, seed: int) -> dict[str, object]:
    row: dict[str, object] = {"claim": claim.name, "larger": str(claim.larger), "smaller": str(claim.smaller)}
    row |= {"expected": "near" if claim.near else "larger", "n_participants": 0, "holds": None}
    owners = {place: _of(made, side) for place, side in (("larger", claim.larger), ("smaller", claim.smaller))}
    first = next(rows for rows in owners.values() if rows is not None)
    shares = []
    for side, rows_of_side in zip((claim.larger, claim.smaller), owners.values(), strict=True):
        if rows_of_side is None:
            fixed = first.assign(fixed=1.0 if side == "1" else first["chance"].astype(float))
            shares.append(by_participant(fixed, participants, "fixed"))
        else:
            shares.append(by_participant(rows_of_side, participants))
    paired = pd.concat(shares, axis=1).dropna()
    if not len(paired):
        return row
    each = (paired.iloc[:, 0] - paired.iloc[:, 1]).to_numpy(float)
    low, high = participant_interval((each,), np.mean, DRAWS, seed)
    holds = _holds(each, low, high, claim.near)
    if claim.constructed and holds == "yes":
        holds = BY_CONSTRUCTION
    row |= {"n_participants": len(each), "difference": float(each.mean()), "holds": holds}
    return row | {"ci_low": low, "ci_high": high}


def _holds(each: np.ndarray, low: float, high: float, near: bool) -> str:
    """The answer; where all participants have the same difference, there is no interval and the difference decides."""
    if np.isnan(low):
        if len(each) < 3 or np.ptp(each) > 1e-6:
            return "open"
        low = high = float(each[0])
    if near:
        return "yes" if low > -NEAR and high < NEAR else "no" if high < -NEAR or low > NEAR else "open"
    return "yes" if low > 0 else "no" if high < 0 else "open"


def _of(made: pd.DataFrame, side: Other) -> pd.DataFrame | None:
    if isinstance(side, str):
        return None
    kind = side.kind or KIND_OF[side.setting]
    of_method = made[(made["setting"] == side.setting) & (made["kind"] == kind) & (made["method"] == side.method)]
    stages = sorted({stage for stage in of_method["stage"].unique() if (stage == 0) == (side.at == "input")})
    return of_method[of_method["stage"] == stages[-1]] if stages else of_method.iloc[:0]
