"""Features and covariates of models that are fitted on some participants and applied to others.

*Features* are per scan and bilateral group. A model applied to the participants of a test fold is fitted on those
outside it; scans outside the contrast (MCI) get the model of the fold that tests their participant, or one of all.

*Covariates*: the coding of a formula (levels of text columns, constant columns) is learned on the training rows; other
rows get the same columns, or a reason why not. formulaic alone would code an unseen level as the reference level, and
ignore a column that was constant in training.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from formulaic import Formula
from formulaic.errors import FormulaicError

from heatlas.pipeline.cohort.cells.values import code_text
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.arrays import Flags, Floats
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.members import first_visits
from heatlas.pipeline.statistics.data.values import RelevanceValues
from heatlas.pipeline.statistics.linear import design

Mask = Flags

VOLUME = "volume"
"""Source name of the volumes; other sources are named by their map."""
NO_FOLD = "all"
"""Fold of scans outside all test folds; their model is fitted on all participants with a label."""


@dataclass(frozen=True, eq=False)
class RegionFeatures:
    """One source of features (scans, groups), NaN where missing: densities of a map, or volumes in mm3 (`VOLUME`)."""

    source: str
    groups: tuple[str, ...]
    values: Floats


@dataclass(frozen=True, eq=False)
class FoldedScans:
    """Scans with a label and scans outside the contrast, each with the fold whose model is applied to it.

    `first` marks the first labelled scan of each participant, which models are fitted on: repeated scans are not
    independent, and a mean over scans varies less than the single scans that a model is applied to.
    """

    frame: pd.DataFrame
    fold: tuple[str, ...]
    labelled: Mask
    first: Mask
    sources: tuple[RegionFeatures, ...]

    @classmethod
    def of(cls, inputs: StatisticsInputs) -> FoldedScans:
        scans = inputs.all_scans
        frame, labelled = scans.frame, scans.labelled
        labelled_frame = frame[labelled]
        people = zip(labelled_frame["participant_id"], labelled_frame["fold"], strict=True)
        fold_of = {person: str(int(fold)) for person, fold in people}
        fold_of |= {name: str(fold.index) for fold in inputs.split.folds for name in fold.test}
        fold_names = tuple(fold_of.get(person, NO_FOLD) for person in frame["participant_id"])
        first = frame["scan_id"].isin(first_visits(labelled_frame)["scan_id"]).to_numpy(bool)
        return cls(frame, fold_names, labelled, labelled & first, tuple(region_features(scans.values, inputs.volumes)))

    @property
    def folds(self) -> list[str]:
        return sorted(set(self.fold), key=lambda name: (name == NO_FOLD, len(name), name))

    def tested(self, fold: str) -> Mask:
        """Scans to which the model of a fold is applied."""
        return np.array([name == fold for name in self.fold], dtype=bool)

    def training(self, fold: str) -> Mask:
        """First labelled scans of the participants outside a fold."""
        return self.first & ~self.tested(fold)


def region_features(values: RelevanceValues, volumes: pd.DataFrame) -> list[RegionFeatures]:
    """Densities of every map, and volumes if the run measured them (a group's is n/a if one of its regions is)."""
    sources = [RegionFeatures(name, values.groups, values.densities[:, i]) for i, name in enumerate(values.maps)]
    of_scans = volumes[volumes["scan_id"].isin(values.scans["scan_id"]) & volumes["group"].notna()]
    if len(of_scans):
        mm3 = of_scans["volume_mm3"].astype(float)
        regions = of_scans.assign(known=mm3.fillna(0.0), unknown=mm3.isna())
        table = regions.pivot_table("known", "scan_id", "group", aggfunc="sum")
        lacking = regions.pivot_table("unknown", "scan_id", "group", aggfunc="max").fillna(0) > 0
        table = table.mask(lacking).reindex(list(values.scans["scan_id"]))
        groups = [name for name in values.groups if name in table.columns]
        groups += sorted(set(table.columns) - set(groups))
        sources.append(RegionFeatures(VOLUME, tuple(groups), table[groups].to_numpy(float)))
    return sources


_OF_CLASS = ("label", "target", "diagnosis", "progression", "course")
TELL_THE_CLASS = (*_OF_CLASS, "logit_negative", "logit_positive", "probability", "predicted", "outcome", "fold")
"""Columns that contain or derive from the class of a scan."""

_OTHERS = "everything_else"


@dataclass(frozen=True, eq=False)
class CovariateColumns:
    """Columns of a formula as learned on training rows, without the intercept.

    `variables` of the table that it uses; `names` of the columns kept; those `dropped`, each with the reason; `levels`
    seen in training, of variables coded by level and constant ones. `spec` is None if no covariate is left.
    """

    formula: str
    variables: tuple[str, ...]
    names: tuple[str, ...]
    dropped: Mapping[str, str]
    levels: Mapping[str, frozenset[Any]]
    spec: Any

    @classmethod
    def of(cls, formula: str, training: pd.DataFrame, without: Collection[str] = ()) -> CovariateColumns:
        """Learn the columns of a right-hand side, e.g. ``age + sex``, on training rows without a missing covariate.

        Terms of the columns `without` are left out. BadInputError if the formula cannot be used or names a missing
        column.
        """
        terms, variables = _read(formula, list(map(str, training.columns)))
        terms = [term for term in terms if not set(design.columns_of(term, variables)) & set(without)]
        variables = tuple(
            name for name in variables if any(name in design.columns_of(term, variables) for term in terms)
        )
        table = _plain(training, variables)
        unknown = [name for name in variables if table[name].isna().all()]
        terms = [term for term in terms if not set(design.columns_of(term, variables)) & set(unknown)]
        variables = tuple(name for name in variables if name not in unknown)
        dropped = dict.fromkeys(unknown, "unknown for all participants")
        complete = table.loc[table[list(variables)].notna().all(axis=1), list(variables)]
        if not terms or complete.empty:
            return cls(formula, variables, (), dropped, {}, None)
        try:
            matrix: Any = Formula(["1", *terms]).get_model_matrix(
                complete, na_action="ignore", context=dict(design.ARITHMETIC)
            )
        except (FormulaicError, ValueError, TypeError) as error:
            reason = str(error).splitlines()[0]
            raise BadInputError(f"formula {formula!r}: cannot be evaluated ({reason}). Correct it.") from error
        spec = matrix.model_spec
        kept, redundant = _independent(pd.DataFrame(matrix))
        constant = [name for name in variables if len(set(complete[name])) == 1]
        coded = _coded_by_level(spec) | set(constant)
        levels = {name: frozenset(complete[name]) for name in variables if name in coded}
        dropped |= dict.fromkeys(constant, "constant") | redundant
        return cls(formula, variables, kept, dropped, levels, spec)

    def matrix(self, frame: pd.DataFrame) -> tuple[Floats, list[str | None]]:
        """Columns for any rows.

        Returns (rows, columns). NaN in rows with a missing or unseen value. the reason for each such row.
        """
        table = _plain(frame, self.variables)
        reasons: list[str | None] = [next(iter(why.values()), None) for why in self.unknown(frame)]
        columns = np.full((len(frame), len(self.names)), np.nan)
        usable = np.array([reason is None for reason in reasons], dtype=bool)
        if self.names and usable.any():
            made: Any = self.spec.get_model_matrix(table[usable], na_action="ignore", context=dict(design.ARITHMETIC))
            columns[usable] = pd.DataFrame(made)[list(self.names)].to_numpy(float)
            for row in np.flatnonzero(usable & ~np.isfinite(columns).all(axis=1)).tolist():
                reasons[row] = f"{self.formula} has no finite value"
                columns[row] = np.nan
        return columns, reasons

    def unknown(self, frame: pd.DataFrame) -> list[dict[str, str]]:
        """For each row, the variables that are missing, or have a value that training never saw, with the reason."""
        table, reasons = _plain(frame, self.variables), [dict[str, str]() for _ in range(len(frame))]
        for name in self.variables:
            for row, value in enumerate(table[name]):
                if pd.isna(value):
                    reasons[row][name] = f"{name} is n/a"
                elif name in self.levels and value not in self.levels[name]:
                    reasons[row][name] = f"{name} {code_text(value)} was not seen in training"
        return reasons


def refuse_class(formula: str, contrast_column: str, columns: Sequence[str], setting: str) -> None:
    """Refuse a formula that contains the class of the participants a model is applied to, naming the setting."""
    leaking = [name for name in _read(formula, list(columns))[1] if name in TELL_THE_CLASS or name == contrast_column]
    if leaking:
        raise BadInputError(
            f"{setting} = '{formula}': {leaking[0]} contains the class of the test participants, which models "
            "applied to them must not use. Remove it from the formula."
        )


def _read(formula: str, columns: list[str]) -> tuple[list[Any], tuple[str, ...]]:
    """Terms without the intercept, and the columns of the table that they use, in the order of the table."""
    if formula.strip() in ("", "1"):
        return [], ()
    if "~" in formula:
        raise BadInputError(f"formula {formula!r}: covariates have no left-hand side. Remove everything up to ~.")
    try:  # `split_terms` needs a tested term; in front, since at the end it would complete ``age +``
        _, covariates, named = design.split_terms(f"{_OTHERS} + {formula}", _OTHERS, [*columns, _OTHERS])
    except BadInputError as error:
        raise BadInputError(str(error).replace(f"{_OTHERS} + ", "").replace(f", {_OTHERS}", "")) from error
    return [term for term in covariates if term.degree], tuple(name for name in columns if name in named)


def _plain(frame: pd.DataFrame, variables: Sequence[str]) -> pd.DataFrame:
    """Numbers as floats and text as str, whatever the types of the table; unknown values are missing."""
    table = {}
    for name in variables:
        column = frame[name]
        if pd.api.types.is_numeric_dtype(column) and name not in design.ALWAYS_CATEGORIES:
            table[name] = column.astype(float).where(np.isfinite(column.astype(float)))
        elif pd.api.types.is_numeric_dtype(column):
            table[name] = column.astype(float).map(code_text, na_action="ignore").astype(object)
        else:
            table[name] = column.astype(object).map(str, na_action="ignore").astype(object)
    return pd.DataFrame(table, columns=list(variables), index=frame.index).reset_index(drop=True)


def _coded_by_level(spec: Any) -> set[str]:
    """Variables in factors that are coded by level."""
    factors = {str(name) for name, (kind, _) in spec.encoder_state.items() if kind.value == "categorical"}
    return {
        str(variable)
        for factor, variables in spec.factor_variables.items()
        if str(factor) in factors
        for variable in variables
    }


def _independent(matrix: pd.DataFrame) -> tuple[tuple[str, ...], dict[str, str]]:
    """Columns that are linearly independent of the intercept and of those before them."""
    kept: list[str] = []
    dropped: dict[str, str] = {}
    basis = np.full((len(matrix), 1), 1 / np.sqrt(len(matrix)))
    for name in [str(column) for column in matrix.columns if column != "Intercept"]:
        direction = design.new_direction(matrix[name].to_numpy(float), basis)
        if direction is None:
            constant = np.ptp(matrix[name].to_numpy(float)) == 0
            dropped[name] = "constant" if constant else "collinear with the other covariates"
            continue
        basis = np.column_stack([basis, direction])
        kept.append(name)
    return tuple(kept), dropped
