"""From a formula and a table to a full-rank model matrix, recording every row and column left out.

The formula is evaluated on scans; means over a participant's scans (`pipeline.statistics.linear.permutations`) come
after: who was scanned once at 1.5 T and once at 3 T counts half for each.

formulaic reads formulas, with two differences: ``hippocampus_mm3/tiv_mm3`` is the ratio of two columns (in R a nested
factor), and anything else than arithmetic on columns and calls of `FUNCTIONS` is refused, since formulaic evaluates
text in braces or ``I(...)`` as Python. It was chosen over patsy: it is maintained and supports pandas 3.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from formulaic import Formula
from formulaic.errors import FormulaicError
from formulaic.parser.types import Term

from heatlas.pipeline.cohort.cells.values import code_text
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted, did_you_mean, nearest
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices

FUNCTIONS = ("I", "C", "log", "log1p", "log10", "sqrt", "exp", "center", "scale", "poly", "bs", "cr", "Treatment")
"""Functions allowed in a formula: I and C as in R, logarithm, square root, exponential, and formulaic's transforms."""
ARITHMETIC = {"log": np.log, "log1p": np.log1p, "log10": np.log10, "sqrt": np.sqrt, "exp": np.exp}
_QUOTIENT = re.compile(r"(?<![\w`{./])([A-Za-z_]\w*)\s*/\s*([A-Za-z_]\w*)(?![\w`}(/])")
_ALLOWED_LEAVES = (ast.Constant, ast.Name, ast.Load, ast.keyword, ast.operator, ast.unaryop)
_ALLOWED_NODES = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Call, ast.Tuple, ast.List, *_ALLOWED_LEAVES)


def split_terms(
    formula: str, term: str, columns: Sequence[str]
) -> tuple[tuple[Term, ...], tuple[Term, ...], tuple[str, ...]]:
    """Parse a formula such as ``age + sex + site`` and find the tested term in it; a left-hand side is ignored.

    Gives the tested terms, the covariates, and the columns of the table that they name, tested ones first.

    BadInputError if it cannot be parsed, names an unknown column or function, has no intercept, or if the term is
    missing or part of an interaction.
    """
    terms, wanted = _terms(formula, columns), [part for part in _terms(term, columns) if part.degree]
    if not any(part.degree == 0 for part in terms):
        raise BadInputError(f"formula {formula!r}: models without an intercept are not supported. Remove 0 or -1.")
    tested = tuple(part for part in terms if part in wanted)
    if not wanted or len(tested) < len(wanted):
        terms_there = ", ".join(str(part) for part in terms if part.degree)
        raise BadInputError(f"formula {formula!r}: has no term {term!r}; its terms are {terms_there}.")
    nuisance = tuple(part for part in terms if part not in wanted)
    for part in tested:
        for other in nuisance:
            if set(part.factors) < set(other.factors):
                raise BadInputError(
                    f"formula {formula!r}: {term} cannot be tested with {other}, since its coefficient depends "
                    f"on how the other factor is coded. Test {other}, or leave it out of the formula."
                )
    used = dict.fromkeys(name for part in (*tested, *nuisance) for name in columns_of(part, columns))
    return tested, nuisance, tuple(used)


def columns_of(term: Term, columns: Sequence[str]) -> tuple[str, ...]:
    """Columns of the table that a term refers to."""
    needed = {name for factor in term.factors for name in _names(str(factor), columns) or ()}
    return tuple(name for name in columns if name in needed)


def _terms(formula: str, columns: Sequence[str]) -> list[Term]:
    there = set(columns)

    def quotient(match: re.Match[str]) -> str:
        return f"{{{match[1]}/{match[2]}}}" if {match[1], match[2]} <= there else match[0]

    try:
        terms = list(Formula(_QUOTIENT.sub(quotient, formula.split("~", 1)[-1])))
    except (FormulaicError, SyntaxError, ValueError, TypeError, AttributeError) as error:
        raise BadInputError(f"formula {formula!r}: cannot be read ({str(error).splitlines()[0]}).") from error
    if not all(isinstance(term, Term) for term in terms):
        raise BadInputError(f"formula {formula!r}: has several parts; one is expected. Remove |.")
    for factor in (str(factor) for term in terms if term.degree for factor in term.factors):
        names = _names(factor, columns)
        if names is None:
            raise BadInputError(
                f"formula {formula!r}: {factor} is not arithmetic on columns. Allowed are + - * / ** and "
                f"{', '.join(FUNCTIONS)}."
            )
        unknown = sorted(names - there)
        if unknown:
            raise BadInputError(
                f"formula {formula!r}: the table has no column {unknown[0]!r}."
                f"{did_you_mean(nearest(unknown[0], columns))} It has {', '.join(columns)}."
            )
    return terms


def _names(factor: str, columns: Sequence[str]) -> set[str] | None:
    """Columns in a factor, including those inside transforms; None if the factor is not arithmetic."""
    if factor in columns:
        return {factor}
    quoted = re.findall(r"`([^`]*)`", factor)
    try:
        nodes = list(ast.walk(ast.parse(re.sub(r"`[^`]*`", "1", factor).strip(), mode="eval")))
    except SyntaxError:
        return None
    functions = [node.func for node in nodes if isinstance(node, ast.Call)]
    if not all(isinstance(node, _ALLOWED_NODES) for node in nodes):
        return None
    if not all(isinstance(function, ast.Name) and function.id in FUNCTIONS for function in functions):
        return None
    called = set(map(id, functions))
    return {*quoted, *(node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in called)}


PARTICIPANT = "participant_id"
ONE_PER_PERSON = ("sex", "apoe4")
"""Columns that cannot have two values in one participant."""
_IDENTITY = ("participant_id", "session_id", "fold")
ALWAYS_CATEGORIES = ("site", "sex", "diagnosis", "label", "field_strength", *_IDENTITY)
"""Columns whose numbers are category codes."""
POOLED = "(few)"
"""Level that replaces levels with one participant."""
NEVER_POOLED = ("fold",)
"""Columns whose levels with one participant are left out, not merged: networks of small folds are still different."""
NO_NORM = 1e-8
"""Residual norm of a unit column, given the others, below which it is collinear."""


@dataclass(frozen=True, eq=False)
class Design:
    """A full-rank model matrix and what was left out of it.

    `tested` (rows, k); `nuisance` (rows, q), intercept first; `rows` are positions in the table of the rows without a
    missing value. `missing`: rows lost per column; a row with two missing values counts in both. `names` are those of
    the columns of ``tested``, then of ``nuisance``. `dropped`: columns, levels and participants that were left out or
    merged, each with the reason.
    """

    tested: Floats
    nuisance: Floats
    rows: Indices
    missing: Mapping[str, int]
    names: tuple[str, ...]
    dropped: Mapping[str, str]

    @property
    def note(self) -> str | None:
        """What was left out, for a table; None if nothing was."""
        notes = [f"{counted(n, 'row')} without {column}" for column, n in self.missing.items() if n]
        notes += [f"{name}: {reason}" for name, reason in self.dropped.items()]
        return "; ".join(notes) or None


def design_of(formula: str, term: str, frame: pd.DataFrame) -> Design:
    """Model matrix of a formula over a table of scans or participants.

    Text and yes/no columns and `ALWAYS_CATEGORIES` are factors; with ``participant_id``, sizes of levels are counted in
    participants, otherwise in rows. Missing values are NaN, None, infinite or ``n/a``. BadInputError if the formula
    cannot be used (`split_terms`), the tested term is unknown, constant or collinear with the covariates, or too few
    rows remain. Problems with covariates alone are recorded in ``dropped``.
    """
    of_term, others, columns = split_terms(formula, term, [str(name) for name in frame.columns])
    participants = frame[PARTICIPANT] if PARTICIPANT in frame else pd.Series(np.arange(len(frame)), index=frame.index)
    dropped: dict[str, str] = {}
    table = pd.DataFrame({name: _clean(frame[name], name) for name in columns})
    for name in ONE_PER_PERSON:
        if name in table:
            table[name] = _without_contradictions(table[name], participants, dropped)
    tested_columns = {name for part in of_term for name in columns_of(part, columns)}
    unknown = [name for name in columns if table[name].isna().all()]
    for name in unknown:
        if name in tested_columns:
            raise BadInputError(
                f"column {name}: no known value, so {term} cannot be tested. Fill it or choose another column."
            )
        dropped[name] = "no known value in any row; left out of the model"
    covariates = [part for part in others if not set(columns_of(part, columns)) & set(unknown)]
    table = table.drop(columns=unknown)
    missing = {str(name): int(n) for name, n in table.isna().sum().items() if n}
    rows = np.flatnonzero(~table.isna().any(axis=1).to_numpy(bool)).astype(np.intp)
    table, people = table.iloc[rows], participants.iloc[rows]
    table, lost = _merge_rare_levels(table, people, tested_columns, dropped)
    if lost.any():
        table, rows = table.loc[~lost], rows[~lost]
    if not len(table):
        counts = ", ".join(f"{name} ({n})" for name, n in missing.items())
        raise BadInputError(f"formula {formula!r}: no row has all values; missing in {counts or 'an empty table'}.")
    tested, nuisance = _columns(of_term, covariates, table, formula)
    whole = pd.concat([tested, nuisance], axis=1).to_numpy(float)
    finite = np.isfinite(whole).all(axis=1)
    for name, lacking in zip([*tested.columns, *nuisance.columns], (~np.isfinite(whole)).sum(axis=0), strict=True):
        if lacking:
            missing[str(name)] = int(lacking)
    if not finite.any():
        raise BadInputError(f"formula {formula!r}: no row has a finite value of {', '.join(missing)}.")
    return _full_rank(tested.loc[finite], nuisance.loc[finite], rows[finite], missing, dropped, term)


def _clean(column: pd.Series, name: str) -> pd.Series:
    """A numeric or text column, with NaN for missing and infinite values."""
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        numbers = column.astype(float).replace([np.inf, -np.inf], np.nan)
        if name not in ALWAYS_CATEGORIES:
            return numbers
        column = numbers.map(code_text, na_action="ignore")
    text = column.astype(object).map(lambda value: str(value).strip(), na_action="ignore")
    cleaned = text.where(text.notna() & ~text.isin(["n/a", "", "nan", "None", "<NA>"]), np.nan).astype(object)
    if name in ALWAYS_CATEGORIES or not cleaned.notna().any():
        return cleaned
    numbers = pd.to_numeric(cleaned, errors="coerce")  # a text column that is numeric except for ``n/a``
    return numbers.astype(float) if bool((numbers.notna() == cleaned.notna()).all()) else cleaned


def _without_contradictions(column: pd.Series, participants: pd.Series, dropped: dict[str, str]) -> pd.Series:
    """The column without the values of participants who have several different ones; they are named."""
    values = column.groupby(participants.to_numpy()).nunique()
    for person in values.index[values > 1]:
        stated = sorted(map(str, column[(participants == person).to_numpy()].dropna().unique()))
        dropped[str(person)] = (
            f"{column.name} is {' and '.join(stated)}; treated as unknown, so these scans are left out"
        )
    return column.mask(participants.isin(values.index[values > 1]).to_numpy())


def _merge_rare_levels(
    table: pd.DataFrame, people: pd.Series, tested: set[str], dropped: dict[str, str]
) -> tuple[pd.DataFrame, Flags]:
    """Covariate levels with one participant: several are merged, a single one is left out with its rows.

    A level with one participant is fitted perfectly and carries no information.
    """
    table, lost = table.copy(), np.zeros(len(table), bool)
    for name in table.columns:
        if pd.api.types.is_numeric_dtype(table[name]):
            continue
        counts = people.groupby(table[name].to_numpy()).nunique()
        rare = list(counts.index[counts == 1])
        if len(counts) == 1 and name not in tested:
            dropped[str(name)] = f"{counts.index[0]} in all rows; left out of the model"
        elif name in tested or not rare or len(counts) == 1:
            continue
        elif len(rare) == len(counts):
            dropped[str(name)] = "each level has one participant, so it cannot be adjusted for; left out of the model"
            table[name] = POOLED
        elif len(rare) == 1 or name in NEVER_POOLED:
            is_rare = table[name].isin(rare).to_numpy(bool)
            dropped[f"{name}={', '.join(map(str, rare))}"] = (
                f"one participant {'only' if len(rare) == 1 else 'each'}; {counted(int(is_rare.sum()), 'row')} left out"
            )
            lost |= is_rare
        else:
            merged = ", ".join(map(str, rare))
            dropped[f"{name}={merged}"] = "one participant each; merged into one level"
            table[name] = table[name].where(~table[name].isin(rare), POOLED)
    return table, lost


def _columns(
    tested: Sequence[Term], nuisance: Sequence[Term], table: pd.DataFrame, formula: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Columns of the model matrix that belong to the tested terms, and all others."""
    try:
        matrix = Formula([*nuisance, *tested]).get_model_matrix(table, na_action="ignore", context=dict(ARITHMETIC))
    except (FormulaicError, ValueError, TypeError) as error:
        raise BadInputError(f"formula {formula!r}: cannot be evaluated ({str(error).splitlines()[0]}).") from error
    frame = pd.DataFrame(np.asarray(matrix, float), columns=[str(name) for name in matrix.columns])
    tested_columns = {int(i) for term, where in matrix.model_spec.term_indices.items() if term in tested for i in where}
    is_tested = np.array([i in tested_columns for i in range(frame.shape[1])], bool)
    return frame.loc[:, is_tested], frame.loc[:, ~is_tested]


def _full_rank(
    tested: pd.DataFrame,
    nuisance: pd.DataFrame,
    rows: Indices,
    missing: Mapping[str, int],
    dropped: dict[str, str],
    term: str,
) -> Design:
    """Leave out columns that are constant or collinear with those before them."""
    basis = np.empty((len(rows), 0))
    kept: dict[str, Floats] = {}
    reasons: dict[str, str] = {}
    for name, values in [*nuisance.items(), *tested.items()]:
        column = values.to_numpy(float)
        direction = new_direction(column, basis)
        if direction is not None:
            basis = np.column_stack([basis, direction])
            kept[str(name)] = column
        elif np.ptp(column) <= NO_NORM * np.abs(column).max():
            reasons[str(name)] = "constant; left out"
        else:
            reasons[str(name)] = f"collinear with {', '.join(kept)}; left out"
    names = tuple(str(name) for name in tested.columns if str(name) in kept)
    if not names:
        why = "; ".join(f"{name} is {reasons[str(name)].removesuffix('; left out')}" for name in tested.columns)
        raise BadInputError(f"term {term}: cannot be tested: {why or 'one level only'} ({counted(len(rows), 'row')}).")
    covariates = tuple(str(name) for name in nuisance.columns if str(name) in kept)
    return Design(
        np.column_stack([kept[name] for name in names]),
        np.column_stack([kept[name] for name in covariates]),
        rows,
        missing,
        names + covariates,
        dropped | reasons,
    )


def new_direction(column: Floats, basis: Floats) -> Floats | None:
    """Part of a column (rows,) orthogonal to an orthonormal basis (rows, q), as a unit vector; None if there is none.

    With an intercept the first vector is constant: the remainder is compared with the column's variation, not its mean.
    """
    norm = float(np.linalg.norm(column))
    if norm == 0:
        return None
    rest = column / norm
    if basis.shape[1]:
        centred = rest - basis[:, 0] * (basis[:, 0] @ rest)
        spread = float(np.linalg.norm(centred))
        if spread <= NO_NORM:
            return None
        rest = centred / spread
        for _ in range(2):  # twice is enough (Giraud et al. 2005)
            rest = rest - basis @ (basis.T @ rest)
    left = float(np.linalg.norm(rest))
    return None if left <= NO_NORM else rest / left
