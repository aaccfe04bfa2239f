"""Covariates of a model that is fitted on some people and applied to others.

A formula is learned on the training rows: levels of text columns, columns that carry nothing. Applied to other rows it
gives the same columns, or says of a row why it cannot: formulaic alone would code a level that training never saw as
the base level, and a column that was constant in training would be ignored whatever its value is later.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from formulaic import Formula, ModelSpec
from formulaic.errors import DataMismatchWarning, FormulaicError
from numpy.typing import NDArray

from pipeline.run.errors import BadInputError

Floats = NDArray[np.float64]

COLLINEAR = 1e-9
"""Share of a centred column's length that must remain after the columns before it are projected out."""


@dataclass(frozen=True, eq=False)
class CovariateColumns:
    """Columns of a formula as learned on training rows; the intercept is left to the model that uses them.

    Parameters
    ----------
    formula : str
    spec : formulaic.ModelSpec or None
        None for a formula without covariates.
    names : tuple of str
        Columns kept.
    dropped : mapping of str to str
        Columns left out, each with the reason.
    levels : mapping of str to frozenset
        Values that training knows, of variables coded by level and of those that were constant.
    """

    formula: str
    spec: ModelSpec | None
    names: tuple[str, ...]
    dropped: Mapping[str, str]
    levels: Mapping[str, frozenset[Any]]

    @classmethod
    def of(cls, formula: str, training: pd.DataFrame) -> CovariateColumns:
        """Learn the columns on training rows; rows with a missing covariate do not count.

        Parameters
        ----------
        formula : str
            Right-hand side, e.g. ``age + sex``; empty or ``1`` for none.
        training : pandas.DataFrame

        Raises
        ------
        BadInputError
            If the formula cannot be read or names a column that is not there.
        """
        if formula.strip() in ("", "1"):
            return cls(formula, None, (), {}, {})
        variables = variables_of(formula, training)
        known = training.loc[training[variables].notna().all(axis=1), variables]
        if known.empty:
            return cls(formula, None, (), dict.fromkeys(variables, "no row knows all covariates"), {})
        matrix: Any = Formula(_with_intercept(formula)).get_model_matrix(_as_plain(known), na_action="ignore")
        spec: ModelSpec = matrix.model_spec
        kept, dropped = _independent(matrix)
        coded = {variable for factor in _coded_by_level(spec) for variable in _variables_in(spec, factor)}
        constant = {name for name in variables if len(set(known[name])) == 1}
        levels = {name: frozenset(known[name]) for name in variables if name in coded | constant}
        return cls(formula, spec, kept, dropped, levels)

    def matrix(self, frame: pd.DataFrame) -> tuple[Floats, list[str | None]]:
        """Columns for any rows.

        Returns
        -------
        array, shape (rows, columns)
            NaN in rows that have no value.
        list of str or None
            Why a row has none.
        """
        reasons: list[str | None] = [None] * len(frame)
        if self.spec is None:
            return np.zeros((len(frame), 0)), reasons
        variables = variables_of(self.formula, frame)
        for name in variables:
            for row, value in enumerate(frame[name]):
                if reasons[row] is None and pd.isna(value):
                    reasons[row] = f"{name} is n/a"
                elif reasons[row] is None and name in self.levels and value not in self.levels[name]:
                    reasons[row] = f"{name} {value} is not among those the model was fitted on"
        usable = np.array([reason is None for reason in reasons], dtype=bool)
        columns = np.full((len(frame), len(self.names)), np.nan)
        if usable.any():
            with warnings.catch_warnings():
                warnings.simplefilter("error", DataMismatchWarning)
                made: Any = self.spec.get_model_matrix(_as_plain(frame.loc[usable, variables]), na_action="ignore")
            columns[usable] = pd.DataFrame(made)[list(self.names)].to_numpy(float)
        return columns, reasons


def variables_of(formula: str, frame: pd.DataFrame) -> list[str]:
    """Columns that a formula reads, in the order of the table.

    Raises
    ------
    BadInputError
        If the formula cannot be read or names a column that is not there.
    """
    try:
        required = set(map(str, Formula(_with_intercept(formula)).required_variables))
    except (FormulaicError, SyntaxError, AttributeError) as error:
        raise BadInputError(
            f"covariates '{formula}': not a formula ({error}). Write columns joined by +, e.g. age + sex."
        ) from error
    missing = sorted(required - set(frame.columns))
    if missing:
        raise BadInputError(
            f"covariates '{formula}': column {', '.join(missing)} is not among those of the scans. Take it out, or add "
            f"it to the input; there are {', '.join(map(str, frame.columns))}."
        )
    return [name for name in frame.columns if name in required]


def refuse_label(formula: str, hidden: Sequence[str], where: str) -> None:
    """Refuse a formula that would hand the class of a test participant to a model.

    Raises
    ------
    BadInputError
        Naming the setting and the column.
    """
    for name in hidden:
        if name in Formula(_with_intercept(formula)).required_variables:
            raise BadInputError(
                f"{where} = '{formula}': {name} tells the class of the participants tested, and nothing applied to them "
                "may know it. Take it out; training_covariates may hold it, they are used while fitting only."
            )


def _with_intercept(formula: str) -> str:
    return f"1 + {formula}" if formula.strip() else "1"


def _as_plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Text as objects and numbers as floats, whatever extension type a table came with."""
    return frame.astype({name: float if pd.api.types.is_numeric_dtype(frame[name]) else object for name in frame})


def _coded_by_level(spec: ModelSpec) -> list[str]:
    return [str(name) for name, (kind, _) in spec.encoder_state.items() if kind.value == "categorical"]


def _variables_in(spec: ModelSpec, factor: str) -> set[str]:
    wanted = [variables for name, variables in spec.factor_variables.items() if str(name) == factor]
    return {str(variable) for variables in wanted for variable in variables}


def _independent(matrix: pd.DataFrame) -> tuple[tuple[str, ...], dict[str, str]]:
    """Columns that add to the intercept and those before them."""
    kept: list[str] = []
    dropped: dict[str, str] = {}
    basis = np.full((len(matrix), 1), 1 / np.sqrt(len(matrix)))
    for name in [str(column) for column in matrix.columns if column != "Intercept"]:
        column = matrix[name].to_numpy(float)
        centred = column - column.mean()
        length = float(np.linalg.norm(centred))
        if length <= COLLINEAR * max(float(np.linalg.norm(column)), 1e-300):
            dropped[name] = "constant"
            continue
        rest = centred / length
        for _ in range(2):  # Gram-Schmidt twice keeps the basis orthogonal to rounding
            rest = rest - basis @ (basis.T @ rest)
        left = float(np.linalg.norm(rest))
        if left <= COLLINEAR:
            dropped[name] = "follows from the other covariates"
            continue
        basis = np.column_stack([basis, rest / left])
        kept.append(name)
    return tuple(kept), dropped
