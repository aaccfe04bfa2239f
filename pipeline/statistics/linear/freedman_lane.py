"""Permutation test of a linear model's term for many columns of values at once (Freedman & Lane 1983).

The model is ``y = X b + Z g + error`` with tested columns X and nuisance columns Z. Residuals ``e`` of y on Z are
permuted, added to the fit of Z, and the full model is fitted again. With an orthonormal basis ``[Qz, Qx]`` of
``[Z, X]`` the fit of Z drops out, and of a permuted data set only

    signal = |Qx' P e|^2,    nuisance = |Qz' P e|^2,    partial R^2 = signal / (|e|^2 - nuisance)

is needed. Permuting the rows of the basis instead of those of the data gives the inverse permutation, which is drawn
equally often, so one matrix product serves a chunk of permutations and all columns; factors among the covariates need
no product (`pipeline.statistics.linear.homoscedastic`). t and F are increasing functions of partial R^2 with the same
degrees of freedom in every column, so largest |t| and largest R^2 come from the same column. Directions of Qz that no
permutation moves (the constant; with blocks, what is constant within them) are left out: e has nothing along them,
before and after. Groups with variances of their own: `pipeline.statistics.linear.studentised`. Memory: the
permutations, 4 bytes x m x units, and `CHUNK_BYTES` for each of some arrays, whatever m is.

Considered and not used: `nilearn.mass_univariate.permuted_ols` (t only, no repeated scans, no exact enumeration, one
permutation at a time; the oracle of the tests), `scipy.stats.permutation_test` (no covariates), statsmodels (none).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.run.errors import BadInputError
from pipeline.statistics.arrays import Floats
from pipeline.statistics.linear.design import Design, new_direction
from pipeline.statistics.linear.exchangeability import TIE_TOLERANCE, Exchangeability, Permutations, p_value
from pipeline.statistics.linear.homoscedastic import HomoscedasticModel
from pipeline.statistics.linear.studentised import StudentisedModel
from pipeline.statistics.resampling.correction_family import benjamini_hochberg

CHUNK_BYTES = 2_000_000
"""Size of the largest array of a chunk of permutations; near that of a core's cache is fastest."""
NO_SPREAD = 1e-12
"""Residual variance, relative to the variance about the mean, below which a column counts as explained."""


@dataclass(frozen=True, eq=False)
class LinearModel:
    """A design in the units of analysis, as orthonormal bases.

    Parameters
    ----------
    tested : array, shape (units, k)
        Orthonormal basis of the tested columns, residualised for the nuisance columns.
    nuisance : array, shape (units, q)
        Orthonormal basis of the nuisance columns.
    to_coefficients : array, shape (k, k)
        Coefficients of the tested columns = this @ coordinates in ``tested``.
    alike : array of int, shape (units,)
        Equal for units with equal model rows (and variance group).
    df : int
        Residual degrees of freedom.
    stays : array of bool, shape (q,)
        Nuisance directions that no permutation moves.
    groups : array of int, shape (units,), or None
        Variance group of each unit.
    """

    tested: Floats
    nuisance: Floats
    to_coefficients: Floats
    alike: NDArray[np.intp]
    df: int
    stays: NDArray[np.bool_]
    groups: NDArray[np.intp] | None = None

    @classmethod
    def of(
        cls,
        design: Design,
        exchange: Exchangeability,
        variance_groups: Sequence[Any] | None = None,
        transform: Callable[[Floats], Floats] = np.asarray,
    ) -> LinearModel:
        """Reduce a design to the units of an exchange scheme.

        Parameters
        ----------
        design : Design
        exchange : Exchangeability
            For the rows of the design (not of the table).
        variance_groups : sequence, optional
            Group of each row of the design.
        transform : callable, optional
            Applied to the columns in the units of analysis, e.g. ranks.

        Raises
        ------
        BadInputError
            If nothing of the tested term is left in these units, or no residual degrees of freedom are.
        """
        term = ", ".join(design.names[: design.tested.shape[1]])
        if exchange.scheme == "within" and not exchange.n_participants:
            raise BadInputError(f"term {term}: no participant has several scans, so there is no change to test.")
        tested, nuisance = (transform(exchange.reduce(part)) for part in (design.tested, design.nuisance))
        basis = np.empty((len(tested), 0))
        # What no permutation moves comes first, then factors: so the directions of each are of their own making.
        moves = ~exchange.stays(nuisance)
        distinct = np.array([len(np.unique(column)) for column in nuisance.T], dtype=np.intp)
        for column in nuisance.T[np.lexsort([distinct, moves])]:
            direction = new_direction(column, basis) if np.any(column) else None
            basis = basis if direction is None else np.column_stack([basis, direction])
        q = basis.shape[1]
        for column in tested.T:
            direction = new_direction(column, basis) if np.any(column) else None
            if direction is None:
                raise BadInputError(
                    f"term {term}: cannot be told from the covariates once each participant's scans are "
                    f"{'centred' if exchange.scheme == 'within' else 'averaged'}. Test it another way or leave it out."
                )
            basis = np.column_stack([basis, direction])
        df = len(tested) - basis.shape[1] - exchange.absorbed
        if df < 1:
            raise BadInputError(
                f"term {term}: {len(tested)} {exchange.unit} are too few for {basis.shape[1] + exchange.absorbed} "
                "coefficients. Leave covariates out, e.g. site."
            )
        own = basis[:, q:]
        groups = None if variance_groups is None else exchange.groups_of_units(variance_groups)
        rows = np.column_stack([tested, nuisance] + ([] if groups is None else [groups]))
        scale = np.abs(rows).max(axis=0)
        rounded = np.round(rows / np.where(scale > 0, scale, 1.0), 12)
        alike = np.unique(rounded, axis=0, return_inverse=True)[1].ravel()
        to_coefficients = np.asarray(np.linalg.inv(own.T @ tested), dtype=float)
        return cls(own, basis[:, :q], to_coefficients, alike, df, exchange.stays(basis[:, :q]), groups)

    @property
    def moving_nuisance(self) -> Floats:
        """Nuisance directions that a permutation can move."""
        return self.nuisance[:, ~self.stays]


@dataclass(frozen=True, eq=False)
class PermutationTest:
    """Result for every column of values; arrays have shape (columns,), NaN where there is no test.

    Parameters
    ----------
    estimate, standard_error : array
        Coefficient of the tested column in the units of values per unit of that column, and its standard error; NaN
        for a term of several columns.
    coefficients : array, shape (k, columns)
        Coefficients of all tested columns.
    statistic : array
        Signed t for one tested column, F for several.
    p, p_fwe, p_fdr : array
        Two-sided: uncorrected; family-wise over the columns, by the largest statistic of each permutation; false
        discovery rate over the columns (Benjamini & Hochberg).
    partial_r : array
        Partial correlation of values and tested column, signed; for several columns the square root of partial R^2.
    df : array
        Residual degrees of freedom (with variance groups Welch-Satterthwaite's).
    df_tested : int
        k.
    n_units : int
        Participants or rows that the test is on.
    n_permutations : int
    exact : bool
        True if these are all distinct permutations there are. Without covariates p is then exact; with covariates
        their estimated coefficients leave it approximate, as in every such test.
    problems : tuple of (str or None)
        Why a column has no test.
    """

    estimate: Floats
    standard_error: Floats
    coefficients: Floats
    statistic: Floats
    p: Floats
    p_fwe: Floats
    p_fdr: Floats
    partial_r: Floats
    df: Floats
    df_tested: int
    n_units: int
    n_permutations: int
    exact: bool
    problems: tuple[str | None, ...]


def freedman_lane(
    values: Floats,
    design: Design,
    exchange: Exchangeability,
    m: int,
    rng: np.random.Generator,
    variance_groups: Sequence[Any] | None = None,
) -> PermutationTest:
    """Test the tested term of a design in every column of values.

    Parameters
    ----------
    values : array, shape (rows of the table,) or (rows of the table, columns)
    design : Design
    exchange : Exchangeability
        For the rows of the table.
    m : int
        Random permutations; the same ones for every column.
    rng : numpy.random.Generator
    variance_groups : sequence, optional
        One per row of the table: groups with residual variances of their own, for a studentised statistic. For a
        comparison of groups, the groups.

    Returns
    -------
    PermutationTest

    Raises
    ------
    BadInputError
        If the design cannot be tested in the units of the exchange scheme (see `LinearModel.of`), or a variance group
        is too small to have a variance.
    """
    own = exchange.of_rows(design.rows)
    groups = None if variance_groups is None else np.asarray(variance_groups, dtype=object)[design.rows]
    model = LinearModel.of(design, own, None if groups is None else groups.tolist())
    columns = np.asarray(values, float).reshape(len(values), -1)[design.rows]
    return permutation_test(own.reduce(columns), model, own.permutations(m, rng, model.alike.tolist()))


def permutation_test(values: Floats, model: LinearModel, permutations: Permutations) -> PermutationTest:
    """The test for given permutations.

    Parameters
    ----------
    values : array, shape (units, columns)
        In the units of the model; NaN columns and columns without residual variance have no test.
    model : LinearModel
    permutations : Permutations
        Of the rows of the model.
    """
    lacking = len(values) - np.count_nonzero(np.isfinite(values), axis=0)
    known = np.where(np.isfinite(values), values, 0.0) if lacking.any() else values
    residuals = known - model.nuisance @ (model.nuisance.T @ known)
    norms = np.linalg.norm(residuals, axis=0)
    problems = _problems(known, lacking, norms, len(permutations))
    usable = np.array([problem is None for problem in problems], bool)
    if not usable.all():
        residuals, norms = residuals[:, usable], norms[usable]
    residuals /= norms
    coefficients = np.full((model.tested.shape[1], values.shape[1]), np.nan)
    coefficients[:, usable] = model.to_coefficients @ (model.tested.T @ residuals) * norms
    r_squared = ((model.tested.T @ residuals) ** 2).sum(axis=0)
    if model.groups is None:
        null: HomoscedasticModel | StudentisedModel = HomoscedasticModel(model.tested, model.moving_nuisance, model.df)
    else:
        null = StudentisedModel(model.tested, model.nuisance, model.groups, model.stays)
    measured = null.size(np.arange(len(values))[None], residuals)[0]
    statistic, df = null.reported(residuals)
    threshold = measured * (1 - TIE_TOLERANCE)
    single, largest = null.tally(permutations.rows, residuals, threshold, CHUNK_BYTES)
    family = len(permutations) - np.searchsorted(np.sort(largest), threshold, side="left")
    result: dict[str, Floats] = {
        "statistic": statistic,
        "df": df,
        "partial_r": np.sqrt(np.clip(r_squared, 0, 1)),
        "p": p_value(single, len(permutations), permutations.exact),
        "p_fwe": p_value(family, len(permutations), permutations.exact),
    }
    k = model.tested.shape[1]
    if k == 1:
        result["estimate"] = coefficients[0, usable]
        with np.errstate(divide="ignore", invalid="ignore"):
            result["standard_error"] = np.where(statistic == 0, np.nan, coefficients[0, usable] / statistic)
        result["partial_r"] = result["partial_r"] * np.sign(statistic)
    full = {name: np.full(values.shape[1], np.nan) for name in ("estimate", "standard_error", *result)}
    for name, column in result.items():
        full[name][usable] = column
    return PermutationTest(
        **full,
        coefficients=coefficients,
        p_fdr=benjamini_hochberg(full["p"]),
        df_tested=k,
        n_units=len(values),
        n_permutations=len(permutations),
        exact=permutations.exact,
        problems=tuple(problems),
    )


def _problems(known: Floats, lacking: NDArray[np.intp], norms: Floats, n_permutations: int) -> list[str | None]:
    """Why a column cannot be tested, from its values, the number it lacks, and the norm of its residuals."""
    if n_permutations < 2:
        return ["there is one permutation only, so nothing can be exchanged"] * known.shape[1]
    constant = np.ptp(known, axis=0) <= NO_SPREAD * np.abs(known).max(axis=0, initial=0.0)
    explained = norms**2 <= NO_SPREAD * len(known) * known.var(axis=0)
    reasons = (
        (lacking > 0, [f"no value in {count} of {len(known)}" for count in lacking]),
        (constant, ["the same value everywhere"] * len(norms)),
        (explained, ["fully explained by the covariates"] * len(norms)),
    )
    return [next((said[i] for holds, said in reasons if holds[i]), None) for i in range(len(norms))]
