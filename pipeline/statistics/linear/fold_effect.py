"""The test fold as a covariate of every test on relevance that compares participants across folds.

Maps of different test folds come from different networks and differ in scale. Where a covariate is unbalanced over
folds (a scanner used mostly in one), the difference between networks would pass for an effect of the covariate. So fold
is a factor of the model, participants are permuted within folds, and each fold's values are multiplied so that they
spread as those of all folds (`Exchangeability.even`). Volumes and other measures without a network are not adjusted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.statistics.arrays import Floats, Indices
from heatlas.pipeline.statistics.data.values import participant_means
from heatlas.pipeline.statistics.linear.design import PARTICIPANT, Design, design_of
from heatlas.pipeline.statistics.linear.permutations import Exchangeability

FOLD = "fold"
MIN_FREEDOM = 5
"""Residual degrees of freedom below which the test is made without fold, and of a level to have its own variance."""
MOST_GROUPS = 8
"""Levels of a factor that may have a variance each; 8 take 9 s for 68 columns and 10,000 permutations, 3 take 1 s."""
ROUNDING = 1e-12
"""Deviation from a mean, relative to the largest value, that is no variation."""
ONE_VARIANCE = "F takes one variance for all levels ({}); if they differ in spread and size, p may be too small"
NOT_HELD = "left out: too few participants ({} in {} of two or more); networks may confound the test"


@dataclass(frozen=True, eq=False)
class FoldModel:
    """A model with or without fold, ready for `pipeline.statistics.linear.freedman_lane`.

    `exchange` is for the rows of the table: participants, within folds if fold is in the model (`held`). The design's
    ``dropped`` says if fold was left out for lack of participants.
    """

    design: Design
    exchange: Exchangeability
    held: bool

    @property
    def covariates(self) -> tuple[str, ...]:
        """Names of the covariates, with fold as one name, without the intercept."""
        columns = self.design.names[self.design.tested.shape[1] :]
        names = [FOLD if name.startswith(f"{FOLD}[") else name for name in columns if name not in ("Intercept", "1")]
        return tuple(dict.fromkeys(names))


def with_variances(model: FoldModel, labels: Sequence[Any], name: str) -> tuple[FoldModel, list[Any] | None]:
    """Levels of a tested factor as groups of one residual variance each, for a studentised F.

    `labels` has the level of each row of the table. None for a t, which is studentised anyway, and where levels are
    many or one of them is small; the model's note then says so.
    """
    if model.design.tested.shape[1] == 1:
        return model, None
    rows = model.design.rows
    freedom = _freedom(model.design, model.exchange, [labels[row] for row in rows])
    if len(freedom) <= MOST_GROUPS and freedom.min() >= MIN_FREEDOM:
        return model, list(labels)
    few = f"a level with fewer than {MIN_FREEDOM} degrees of freedom"
    why = ONE_VARIANCE.format(f"more than {MOST_GROUPS} levels" if len(freedom) > MOST_GROUPS else few)
    dropped = {**model.design.dropped, name: why}
    return dataclasses.replace(model, design=dataclasses.replace(model.design, dropped=dropped)), None


def several_folds(frame: pd.DataFrame, hold: bool) -> bool:
    """Whether to adjust for fold: requested, and there are several."""
    return hold and FOLD in frame.columns and len(frame[FOLD].dropna().unique()) > 1


def model_within_folds(
    formula: str, term: str, frame: pd.DataFrame, hold: bool, variance_groups: Sequence[Any] | None = None
) -> FoldModel:
    """Model matrix with fold as a factor, and permutation within folds.

    `frame` has one row per scan with ``participant_id``, or one per participant without; `hold` is the setting
    ``statistics.fold_effect``; each variance group (one per row) must keep a degree of freedom. BadInputError if the
    formula cannot be used, or the tested term is collinear with fold.
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
    except BadInputError as error:  # the formula is unusable, or the tested term is collinear with fold
        problem = error
    plain = design_of(formula, term, frame)
    rows = frame.iloc[plain.rows]
    if rows[FOLD].nunique() < 2:
        return FoldModel(plain, exchange, False)
    units, folds = _usable_folds(rows, exchange.of_rows(plain.rows))
    enough = units - len(plain.names) - (folds - 1) >= MIN_FREEDOM
    if problem and folds > 1 and (enough or _is_of_folds(plain, exchange.of_rows(plain.rows), rows)):
        raise problem
    dropped = {**plain.dropped, FOLD: NOT_HELD.format(units, counted(folds, "fold"))}
    return FoldModel(dataclasses.replace(plain, dropped=dropped), exchange, False)


def fold_of_units(frame: pd.DataFrame, exchange: Exchangeability, held: bool) -> Indices:
    """Fold 0..F-1 of each participant (that of most of their scans); all 0 if not adjusted for fold."""
    if not held:
        return np.zeros(exchange.n_participants, np.intp)
    return exchange.groups_of_units(frame[FOLD].tolist())


def fold_of_participants(frame: pd.DataFrame, hold: bool) -> tuple[Indices, str | None]:
    """Fold 0..F-1 of each participant (of rows of scans), to hold beside an intercept and one other coefficient.

    All 0, with the reason, if that is not possible.
    """
    exchange = Exchangeability.participant_means(frame[PARTICIPANT].tolist())
    nothing = fold_of_units(frame, exchange, False)
    if not several_folds(frame, hold):
        return nothing, None
    units, folds = _usable_folds(frame, exchange)
    if folds < 2 or units - 2 - (folds - 1) < MIN_FREEDOM:
        return nothing, f"{FOLD}: {NOT_HELD.format(units, counted(folds, 'fold'))}"
    return fold_of_units(frame, exchange, True), None


def centred_within(values: Floats, fold: Indices) -> Floats:
    """Values minus the mean of their fold (of known values), without rounding errors; shape (units, ...) as given."""
    centred = values - participant_means(values, fold)[fold]
    size = np.abs(np.nan_to_num(values)).max(axis=0, initial=0.0)
    result: Floats = np.where(np.abs(centred) <= ROUNDING * size, 0.0, centred)
    return result


def _is_of_folds(design: Design, units: Exchangeability, frame: pd.DataFrame) -> bool:
    """Whether the tested columns are the same in all participants of each fold, as if the networks made them."""
    tested, fold = units.reduce(design.tested), fold_of_units(frame, units, True)
    return not centred_within(tested, fold).any()


def _usable_folds(frame: pd.DataFrame, exchange: Exchangeability) -> tuple[int, int]:
    """Number of participants in folds with two or more, and number of such folds."""
    sizes = np.bincount(fold_of_units(frame, exchange, True))
    return int(sizes[sizes > 1].sum()), int((sizes > 1).sum())


def _enough(design: Design, exchange: Exchangeability, groups: Sequence[Any] | None) -> bool:
    """Whether fold is in the model and leaves enough degrees of freedom, with at least one in each variance group."""
    if not any(name.startswith(f"{FOLD}[") for name in design.names):
        return False
    freedom = _freedom(design, exchange, [0] * len(design.rows))
    if freedom.sum() < MIN_FREEDOM - ROUNDING * len(design.rows):
        return False
    return groups is None or bool((_freedom(design, exchange, [groups[row] for row in design.rows]) >= 1).all())


def _freedom(design: Design, exchange: Exchangeability, groups: Sequence[Any]) -> Floats:
    """Residual degrees of freedom of each group (groups,); `groups` has one per row of the design."""
    units = exchange.of_rows(design.rows)
    basis = np.linalg.qr(units.reduce(np.column_stack([design.nuisance, design.tested])))[0]
    freedom: Floats = np.bincount(units.groups_of_units(groups), weights=1 - (basis**2).sum(axis=1)).astype(float)
    return freedom
