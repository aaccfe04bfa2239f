"""The test fold as a nuisance of every test on relevance that compares people across folds.

Relevance of different test folds comes from different networks, whose maps differ in scale: everyone of a fold shares
what their network does. If a covariate is unbalanced over folds (a scanner that most participants of one fold came
through), the difference between networks passes for an effect of the covariate. So fold is a factor of the model, and
participants change places within their fold only, which also leaves each fold its own spread.

Held by `fold_effect` of ``[statistics]`` (on by default) where there are several folds. Volumes, and other measures
that no network made, do not go through here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pipeline.run.errors import BadInputError
from pipeline.statistics.arrays import Floats, Indices
from pipeline.statistics.data.values import participant_means
from pipeline.statistics.linear.design import PARTICIPANT, Design, design_of
from pipeline.statistics.linear.exchangeability import Exchangeability

FOLD = "fold"
MIN_FREEDOM = 5
"""Residual degrees of freedom that must be left with fold in the model; with fewer, the test is made without it."""
NOT_HELD = "left out: too few participants ({} in {} folds of two or more), so networks may pass for what is tested"


@dataclass(frozen=True, eq=False)
class FoldModel:
    """A model with or without fold, ready for `pipeline.statistics.linear.freedman_lane`.

    Parameters
    ----------
    design : Design
        Its ``dropped`` says where fold was left out for want of participants.
    exchange : Exchangeability
        For the rows of the table: participants, within folds if fold is held.
    held : bool
        Whether fold is in the model.
    """

    design: Design
    exchange: Exchangeability
    held: bool

    @property
    def covariates(self) -> tuple[str, ...]:
        """Names of the columns held, fold by one name, without the intercept."""
        own = self.design.names[self.design.tested.shape[1] :]
        names = [FOLD if name.startswith(f"{FOLD}[") else name for name in own if name not in ("Intercept", "1")]
        return tuple(dict.fromkeys(names))


def several_folds(frame: pd.DataFrame, hold: bool) -> bool:
    """Whether fold is to be held: it is asked for and there are several."""
    return hold and FOLD in frame.columns and len(frame[FOLD].dropna().unique()) > 1


def model_within_folds(
    formula: str, term: str, frame: pd.DataFrame, hold: bool, variance_groups: Sequence[Any] | None = None
) -> FoldModel:
    """Model matrix with fold as a factor, and exchange within folds.

    Parameters
    ----------
    formula, term : str
        As of `design_of`, without fold.
    frame : pandas.DataFrame
        One row per scan with ``participant_id``, or one per participant without.
    hold : bool
        Setting ``statistics.fold_effect``.
    variance_groups : sequence, optional
        One per row, if the statistic is to be studentised: each group must keep a degree of freedom.

    Raises
    ------
    BadInputError
        If the formula cannot be used, or what is tested follows from fold: then it cannot be told from the networks.
    """
    if PARTICIPANT in frame.columns:
        exchange = Exchangeability.participant_means(frame[PARTICIPANT].tolist())
    else:
        exchange = Exchangeability.free(len(frame))
    if not several_folds(frame, hold):
        return FoldModel(design_of(formula, term, frame), exchange, False)
    try:
        held, problem = design_of(f"{FOLD} + {formula}", term, frame), None
        if _enough(held, exchange, variance_groups):
            return FoldModel(held, exchange.in_blocks(frame[FOLD].tolist()), True)
    except BadInputError as error:  # of the formula itself, or what is tested follows from fold
        problem = error
    plain = design_of(formula, term, frame)
    rows = frame.iloc[plain.rows]
    if rows[FOLD].nunique() < 2:
        return FoldModel(plain, exchange, False)
    units, folds = _company(rows, exchange.of_rows(plain.rows))
    if problem and folds > 1 and units - len(plain.names) - (folds - 1) >= MIN_FREEDOM:
        raise problem
    said = {**plain.dropped, FOLD: NOT_HELD.format(units, folds)}
    return FoldModel(dataclasses.replace(plain, dropped=said), exchange, False)


def fold_of_units(frame: pd.DataFrame, exchange: Exchangeability, held: bool) -> Indices:
    """Fold 0..F-1 of each participant (that of most of their scans); all 0 where fold is not held."""
    if not held:
        return np.zeros(exchange.n_participants, np.intp)
    return exchange.groups_of_units(frame[FOLD].tolist())


def fold_of_participants(frame: pd.DataFrame, hold: bool, columns: int) -> tuple[Indices, str | None]:
    """Fold 0..F-1 of each participant of a table, for estimates within folds; all 0, and why, if fold cannot be held.

    Parameters
    ----------
    frame : pandas.DataFrame
        One row per scan.
    hold : bool
    columns : int
        Coefficients beside those of folds, the intercept among them.
    """
    exchange = Exchangeability.participant_means(frame[PARTICIPANT].tolist())
    nothing = fold_of_units(frame, exchange, False)
    if not several_folds(frame, hold):
        return nothing, None
    units, folds = _company(frame, exchange)
    if folds < 2 or units - columns - (folds - 1) < MIN_FREEDOM:
        return nothing, f"{FOLD}: {NOT_HELD.format(units, folds)}"
    return fold_of_units(frame, exchange, True), None


def centred_within(values: Floats, fold: Indices) -> Floats:
    """Values less the mean of their fold (of those known); shape (units, ...) as given."""
    centred: Floats = values - participant_means(values, fold)[fold]
    return centred


def _company(frame: pd.DataFrame, exchange: Exchangeability) -> tuple[int, int]:
    """Participants who share their fold with another, and folds with two or more."""
    sizes = np.bincount(fold_of_units(frame, exchange, True))
    return int(sizes[sizes > 1].sum()), int((sizes > 1).sum())


def _enough(design: Design, exchange: Exchangeability, variance_groups: Sequence[Any] | None) -> bool:
    """Whether fold is in the model, enough degrees of freedom are left, and at least one in each variance group."""
    if not any(name.startswith(f"{FOLD}[") for name in design.names):
        return False
    own = exchange.of_rows(design.rows)
    basis = np.linalg.qr(own.reduce(np.column_stack([design.nuisance, design.tested])))[0]
    if len(basis) - basis.shape[1] < MIN_FREEDOM:
        return False
    if variance_groups is None:
        return True
    groups = own.groups_of_units([variance_groups[row] for row in design.rows])
    return bool((np.bincount(groups, weights=1 - (basis**2).sum(axis=1)) >= 1).all())
