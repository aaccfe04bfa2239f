"""Formulas over a table, as read by formulaic, with two differences.

``hippocampus_mm3/tiv_mm3`` is the ratio of two columns, as is usual in the field; in R's grammar it would be a nested
factor. And a formula is restricted to arithmetic: formulaic evaluates text in braces or ``I(...)`` as Python, so a
formula from an untrusted configuration could run any code. Anything else than arithmetic on columns and calls of
`FUNCTIONS` is refused before evaluation.

formulaic was chosen over patsy: it is maintained, supports pandas 3, and statsmodels has moved to it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from formulaic import Formula
from formulaic.errors import FormulaicError
from formulaic.parser.types import Term

from heatlas.pipeline.run.errors import BadInputError

FUNCTIONS = ("I", "C", "log", "log1p", "log10", "sqrt", "exp", "center", "scale", "poly", "bs", "cr", "Treatment")
"""Functions allowed in a formula: I and C as in R, logarithm, square root, exponential, and formulaic's transforms."""
ARITHMETIC = {"log": np.log, "log1p": np.log1p, "log10": np.log10, "sqrt": np.sqrt, "exp": np.exp}
_QUOTIENT = re.compile(r"(?<![\w`{./])([A-Za-z_]\w*)\s*/\s*([A-Za-z_]\w*)(?![\w`}(/])")
_ALLOWED_NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.Load, ast.Call, ast.keyword, ast.operator,
    ast.unaryop, ast.Tuple, ast.List,
)  # fmt: skip


@dataclass(frozen=True)
class Terms:
    """Terms of a formula: tested, covariates, and the columns of the table that they name, tested ones first."""

    tested: tuple[Term, ...]
    nuisance: tuple[Term, ...]
    columns: tuple[str, ...]


def split_terms(formula: str, term: str, columns: Sequence[str]) -> Terms:
    """Parse a formula such as ``age + sex + site`` and find the tested term in it.

    A left-hand side (``relevance ~``) is ignored. BadInputError if the formula cannot be parsed, names an unknown
    column, calls a function that is not allowed or has no intercept, or if the term is missing or part of an
    interaction.
    """
    terms, wanted = _terms(formula, columns), [part for part in _terms(term, columns) if part.degree]
    if not any(part.degree == 0 for part in terms):
        raise BadInputError(f"formula {formula!r}: models without an intercept are not supported. Remove 0 or -1.")
    tested = tuple(part for part in terms if part in wanted)
    if not wanted or len(tested) < len(wanted):
        known = ", ".join(str(part) for part in terms if part.degree)
        raise BadInputError(f"formula {formula!r}: has no term {term!r}; its terms are {known}.")
    nuisance = tuple(part for part in terms if part not in wanted)
    for part in tested:
        for other in nuisance:
            if set(part.factors) < set(other.factors):
                raise BadInputError(
                    f"formula {formula!r}: {term} cannot be tested with {other}, since its coefficient depends "
                    f"on how the other factor is coded. Test {other}, or leave it out of the formula."
                )
    used = dict.fromkeys(name for part in (*tested, *nuisance) for name in columns_of(part, columns))
    return Terms(tested, nuisance, tuple(used))


def columns_of(term: Term, columns: Sequence[str]) -> tuple[str, ...]:
    """Columns of the table that a term refers to."""
    needed = {name for factor in term.factors for name in _names(str(factor), columns) or ()}
    return tuple(name for name in columns if name in needed)


def _terms(formula: str, columns: Sequence[str]) -> list[Term]:
    known = set(columns)

    def quotient(match: re.Match[str]) -> str:
        return f"{{{match[1]}/{match[2]}}}" if {match[1], match[2]} <= known else match[0]

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
        unknown = sorted(names - known)
        if unknown:
            raise BadInputError(
                f"formula {formula!r}: the table has no column {unknown[0]!r}; it has {', '.join(columns)}."
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
