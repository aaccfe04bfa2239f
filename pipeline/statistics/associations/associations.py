"""Relevance of every region against biomarkers, over participants.

Each participant is one point: the mean over their scans of relevance, biomarker and covariates. Participants are
permuted (Freedman & Lane 1983; within test folds, and fold held, since each fold's maps come from their own network),
the same way for all regions, maps and metrics, so that the largest correlation of each permutation gives family-wise p
values. A family is everything that is tested for one biomarker, one group of scans and one estimator; different
biomarkers are different questions and are not corrected for each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.cohort.people.tasks import task_of
from pipeline.run.config.statistics import StatisticsConfig
from pipeline.run.declared import Table
from pipeline.run.errors import BadInputError
from pipeline.run.work.seeds import generator
from pipeline.statistics.arrays import Floats
from pipeline.statistics.associations.biomarkers import Biomarker, biomarker_of, own_volume_note
from pipeline.statistics.associations.correlation import spearman_interval, weighted_partial_correlation
from pipeline.statistics.associations.matched import matched_test
from pipeline.statistics.data.inputs import StatisticsInputs
from pipeline.statistics.data.notes import joined, so_many
from pipeline.statistics.data.relevance_columns import RelevanceColumns
from pipeline.statistics.groups.members import label_of, members_of
from pipeline.statistics.linear.design import Design
from pipeline.statistics.linear.exchangeability import Exchangeability
from pipeline.statistics.linear.fold_effect import fold_of_units, model_within_folds
from pipeline.statistics.linear.freedman_lane import PermutationTest
from pipeline.statistics.linear.partial_correlation import Method, partial_correlation, ranks
from pipeline.statistics.resampling.bootstrap import NO_INTERVAL, Intervals, bootstrap_intervals
from pipeline.statistics.resampling.correction_family import benjamini_hochberg

METHODS: Mapping[str, Method] = {
    "pearson": "pearson",
    "spearman": "spearman",
    "partial": "pearson",
    "partial spearman": "spearman",
}
PARTIAL = ("partial", "partial spearman")
MIN_PARTICIPANTS = 4
"""With three, every correlation over participants is compatible with anything."""

ASSOCIATIONS_COLUMNS = {
    "biomarker": "Column of scans.tsv or clinical.tsv, quotient of two, or volume; own volume: of the row's own group; "
    "where a number is predicted, target and corrected_gap of predictions.tsv",
    "scan_group": "Scans looked at: all, a class, or TP, FP, TN, FN",
    "estimator": "pearson, spearman; partial: Pearson with the covariates taken out of both; partial spearman: the "
    "same of ranks. Of all the test fold is taken out (of spearman: of the ranks), where covariates names it",
    "covariates": "Columns that were adjusted for: for pearson and spearman the test fold at most; n/a for none",
    "map": "Relevance map; n/a in a row about a biomarker that cannot be used",
    "group": "Bilateral group of regions",
    "metric": "density, sum, gain or share (sum divided by the absolute sums of all regions)",
    "r": "Correlation over participants, each participant's scans averaged first; with fold held, between deviations "
    "from the means of folds; the effect size",
    "ci_low": "Lower bound of the interval over participants",
    "ci_high": "Upper bound of the interval over participants",
    "interval": "BCa or percentile bootstrap over participants; Bonett-Wright (closed) for ranks; none",
    "slope": "Change of relevance per unit of the biomarker, covariates held; n/a for ranks",
    "p": "Two-sided p from permuting participants (within folds, if fold is held; Freedman-Lane), (b+1)/(m+1)",
    "p_fwe": "p corrected for the family by the largest |r| of each permutation",
    "p_fdr": "p adjusted by Benjamini and Hochberg over the family",
    "family": "Tests corrected together",
    "n_participants": "Participants with all values",
    "n_scans": "Their scans",
    "n_permutations": "Permutations used",
    "exact": "true if these are all distinct permutations there are",
    "note": "Why there is no value, what was left out, or what to know of it",
}
ASSOCIATIONS_TABLE = Table(
    "associations", ASSOCIATIONS_COLUMNS, "biomarker, map, region, metric, estimator and group of scans",
    "Does relevance follow clinical measures and volumes?", filled=("n_participants",),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Points:
    """One row per participant.

    Parameters
    ----------
    relevance : array, shape (participants, columns)
    biomarker : array, shape (participants, 1) or (participants, groups)
    nuisance : array, shape (participants, q)
        Intercept, fold and covariates.
    covariates : tuple of str
        Names of what `nuisance` holds beside the intercept.
    exchange : Exchangeability
        Of the rows: free, or within folds.
    n_scans : int
    note : str or None
        What was left out.
    """

    relevance: Floats
    biomarker: Floats
    nuisance: Floats
    covariates: tuple[str, ...]
    exchange: Exchangeability
    n_scans: int
    note: str | None


def associations_tables(inputs: StatisticsInputs) -> pd.DataFrame:
    """Table ``associations``: a row per biomarker, group of scans, estimator, map, bilateral group and metric."""
    settings = inputs.config.statistics
    columns = RelevanceColumns.of(inputs.values, settings.associations.metrics)
    blocks = []
    number = task_of(inputs.config.cohort).is_number
    for name in (*(("target", "corrected_gap") if number else ()), *settings.associations.biomarkers):
        try:
            biomarker = biomarker_of(name, inputs)
        except BadInputError as error:
            blocks.append(_unusable(name, str(error)))
            continue
        for scan_group in ("all",) if number else settings.associations.scan_groups:
            blocks += _of_biomarker(inputs, columns, biomarker, scan_group)
    table = pd.concat(blocks, ignore_index=True) if blocks else pd.DataFrame(columns=list(ASSOCIATIONS_COLUMNS))
    return table[list(ASSOCIATIONS_COLUMNS)]


def _of_biomarker(
    inputs: StatisticsInputs, columns: RelevanceColumns, biomarker: Biomarker, scan_group: str
) -> list[pd.DataFrame]:
    """Blocks of all estimators for one biomarker in one group of scans."""
    settings = inputs.config.statistics
    members = members_of(inputs, scan_group)
    blocks: list[pd.DataFrame] = []
    known: dict[str, Points] = {}  # of the same covariates
    for estimator in METHODS if settings.covariates.strip() else ("pearson", "spearman"):
        base = {"biomarker": biomarker.name, "scan_group": label_of(inputs, scan_group), "estimator": estimator}
        covariates = settings.covariates if estimator in PARTIAL else ""
        try:
            points = known[covariates] = known.get(covariates) or _points(
                inputs, columns, biomarker, members, covariates
            )
            # The same stream for every biomarker and estimator: equal participants are exchanged in equal ways.
            rng = generator(inputs.seed, "statistics", "associations", scan_group)
            block = _block(points, columns.table, biomarker, estimator, settings, rng)
        except BadInputError as error:
            block = _unusable(biomarker.name, str(error).replace("_biomarker", biomarker.name))
        blocks.append(block.assign(**base))
    return blocks


def _points(
    inputs: StatisticsInputs,
    columns: RelevanceColumns,
    biomarker: Biomarker,
    members: NDArray[np.bool_],
    covariates: str,
) -> Points:
    """Means over participants of everything, for the scans with all values.

    Raises
    ------
    BadInputError
        If too few participants remain, or the biomarker is constant or follows from the covariates.
    """
    if not members.any():
        raise BadInputError("no such scan")
    values = biomarker.values[members].reshape(int(members.sum()), -1)
    usable = ~np.isnan(values).all(axis=0)
    # Volumes of regions are known or missing together; those without a voxel are missing everywhere.
    complete = np.where(np.isnan(values[:, usable]).any(axis=1), np.nan, values[:, usable].sum(axis=1))
    frame = inputs.frame[members].assign(_biomarker=complete).reset_index(drop=True)
    n_known = frame.loc[frame["_biomarker"].notna(), "participant_id"].nunique()
    if n_known < MIN_PARTICIPANTS:
        raise BadInputError(f"{so_many(n_known, 'participant')} with a value; at least {MIN_PARTICIPANTS} are needed.")
    others = [term.strip() for term in covariates.split("+") if term.strip() not in ("", biomarker.name)]
    model = model_within_folds(
        " + ".join([*others, "_biomarker"]), "_biomarker", frame, inputs.config.statistics.fold_effect
    )
    design, exchange = model.design, model.exchange.of_rows(model.design.rows)
    nuisance = exchange.reduce(design.nuisance)
    if len(nuisance) < max(MIN_PARTICIPANTS, nuisance.shape[1] + 2):
        raise BadInputError(
            f"{len(nuisance)} participants with all values are too few for {nuisance.shape[1] - 1} covariates. Leave "
            "covariates out."
        )
    note = (design.note or "").replace("_biomarker", biomarker.name)
    return Points(
        relevance=exchange.reduce(columns.values[members][design.rows]),
        biomarker=exchange.reduce(values[design.rows]),
        nuisance=nuisance,
        covariates=model.covariates,
        exchange=Exchangeability.free(len(nuisance)).in_blocks(
            fold_of_units(frame.iloc[design.rows], exchange, model.held).tolist()
        ),
        n_scans=len(design.rows),
        note=joined(note, own_volume_note(biomarker.name, frame.iloc[design.rows])),
    )


def _block(
    points: Points,
    columns: pd.DataFrame,
    biomarker: Biomarker,
    estimator: str,
    settings: StatisticsConfig,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """Rows of all columns of relevance."""
    method = METHODS[estimator]
    of_units = ranks if method == "spearman" else np.asarray
    relevance, tested, nuisance = (of_units(own) for own in (points.relevance, points.biomarker, points.nuisance))
    table = columns.assign(
        covariates=", ".join(points.covariates) or None, n_participants=len(relevance), n_scans=points.n_scans
    )
    if biomarker.per_group:
        groups = list(dict.fromkeys(columns["group"]))
        which = columns["group"].map({group: i for i, group in enumerate(groups)}).to_numpy(np.intp)
        permutations = points.exchange.permutations(settings.permutations, rng)
        result = matched_test(relevance, tested, which, nuisance, permutations)
        table = table.assign(n_permutations=len(permutations), exact=permutations.exact)
        table = table.assign(r=result.partial_r, slope=result.slope, p=result.p, p_fwe=result.p_fwe)
        problems = result.problems
    else:
        which = np.zeros(len(columns), np.intp)
        test = _common_test(points.relevance, points, biomarker.name, method, settings.permutations, rng)
        table = table.assign(n_permutations=test.n_permutations, exact=test.exact)
        table = table.assign(r=test.partial_r, slope=test.coefficients[0], p=test.p, p_fwe=test.p_fwe)
        problems = test.problems
    if method == "spearman":
        table["slope"] = np.nan
    table["p_fdr"] = benjamini_hochberg(table["p"].to_numpy(float))
    n_tests = int(table["p"].notna().sum())
    table["family"] = f"{n_tests} regions x maps x metrics" if n_tests else "none"
    table["note"] = [joined(problem, points.note) for problem in problems]
    return _with_intervals(table, relevance, tested, which, nuisance, method, settings, rng)


def _common_test(
    relevance: Floats, points: Points, name: str, method: Method, m: int, rng: np.random.Generator
) -> PermutationTest:
    """Test one biomarker in all columns."""
    names = (name, *(f"covariate {i}" for i in range(points.nuisance.shape[1])))
    design = Design(points.biomarker, points.nuisance, np.arange(len(relevance), dtype=np.intp), {}, names, {})
    return partial_correlation(relevance, design, points.exchange, m, rng, method)


def _with_intervals(
    table: pd.DataFrame,
    relevance: Floats,
    tested: Floats,
    which: NDArray[np.intp],
    nuisance: Floats,
    method: Method,
    settings: StatisticsConfig,
    rng: np.random.Generator,
) -> pd.DataFrame:
    there = np.flatnonzero(table["r"].notna())
    bounds = Intervals.absent(len(table))
    kind = np.full(len(table), NO_INTERVAL, dtype="<U13")
    if method == "spearman":
        r = table["r"].to_numpy(float)[there]
        n = len(relevance) - nuisance.shape[1] + 1  # a degree of freedom for each column held
        bounds.low[there], bounds.high[there] = spearman_interval(r, n, settings.confidence)
        kind[there] = np.where(np.isnan(bounds.low[there]), NO_INTERVAL, "Bonett-Wright")
    elif len(there):

        def statistic(weights: Floats) -> Floats:
            return weighted_partial_correlation(tested, relevance[:, there], which[there], nuisance, weights)

        strata = [0] * len(relevance)
        found = bootstrap_intervals(statistic, strata, settings.bootstrap_samples, settings.confidence, rng)
        bounds.low[there], bounds.high[there], kind[there] = found.low, found.high, found.method
    return table.assign(ci_low=bounds.low, ci_high=bounds.high, interval=kind)


def _unusable(biomarker: str, why: str) -> pd.DataFrame:
    """One row that says why a biomarker could not be used."""
    blank: dict[str, object] = dict.fromkeys(ASSOCIATIONS_COLUMNS)
    numbers = dict.fromkeys(("r", "ci_low", "ci_high", "slope", "p", "p_fwe", "p_fdr"), np.nan)
    blank |= numbers | {"n_participants": 0, "n_scans": 0, "n_permutations": 0, "exact": False}
    blank |= {"biomarker": biomarker, "family": "none", "interval": NO_INTERVAL, "note": why}
    return pd.DataFrame([blank])
