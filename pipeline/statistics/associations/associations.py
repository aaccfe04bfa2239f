"""Correlation of regional relevance with biomarkers over participants, and the primary outcome among them.

Each participant is one point (means over their scans). Participants are permuted (Freedman & Lane 1983) within test
folds and with fold held. A family is all regions, maps and metrics of one biomarker, group of scans and estimator,
which share the permutations; different biomarkers are different questions and are not corrected for each other.

*The primary outcome* is one partial correlation, named in the settings before any result: by default the evidence of
the hippocampus (without an evidence map, its share of the run's first map) with hippocampal volume divided by
intracranial volume, over all classes, with class, test fold and covariates held; where there is no such volume, with
the first other measure that is there (`FALLBACKS`). The choice looks at which columns have values, never at the values.
It is one test, so its p needs no correction; a row of ``associations.tsv`` that asks the same has the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.run.declared import declared
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Flags, Floats, Indices, Resampling
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.members import label_of, members_of
from heatlas.pipeline.statistics.data.values import RelevanceColumns, family_of, joined, kinds_of, stacked, untested
from heatlas.pipeline.statistics.groups.gains import influence_on_r, write_places
from heatlas.pipeline.statistics.groups.subgroups import CLASS
from heatlas.pipeline.statistics.linear.correlation import MatchedTest, Method, matched_test, partial_correlation, ranks
from heatlas.pipeline.statistics.linear.design import Design
from heatlas.pipeline.statistics.linear.fold_effect import FOLD, fold_of_units, model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import TEST_INTERVAL, PermutationTest
from heatlas.pipeline.statistics.linear.permutations import Exchangeability
from heatlas.pipeline.statistics.requested import Biomarker, biomarker_of, own_volume_note
from heatlas.pipeline.statistics.resampling.bootstrap import NO_INTERVAL

PARTIAL: Mapping[str, Method] = {"partial": "pearson", "partial spearman": "spearman"}
METHODS: Mapping[str, Method] = {"pearson": "pearson", "spearman": "spearman", **PARTIAL}
TARGET = "target"
MIN_PARTICIPANTS = 4
"""With three participants a confidence interval spans nearly all correlations."""
SMALL, SHARE = 60, 0.4
SMALL_CLASS = (
    f"fewer than {SMALL} participants of one class, less than {SHARE:.0%} of all: if they vary two or three times as "
    "much as the others, p (6 to 10 % at 5 %), p_fwe and p_fdr (8 to 20 %) are too small"
)
"""Caveat by the sizes of the classes: so few people do not show how much they vary (docs/benchmarks/statistics.md)."""

ASSOCIATIONS_TABLE = declared("associations", __file__)


@dataclass(frozen=True, eq=False)
class ParticipantValues:
    """One row per participant: relevance (participants, columns), biomarker (participants, 1 or groups), nuisance.

    nuisance (participants, q) has the intercept first; `covariates` names its other columns; `note` says what was left
    out. `spreads` (participants,) of 0 and 1: a small class and the others, which keep a spread of their own under
    permutation of Pearson's correlation; None where classes are large or alike in size. `caveat`: what to say where
    they do not.
    """

    relevance: Floats
    biomarker: Floats
    nuisance: Floats
    covariates: tuple[str, ...]
    exchange: Exchangeability
    n_scans: int
    note: str | None
    spreads: Indices | None
    caveat: str | None


def associations_tables(inputs: StatisticsInputs) -> pd.DataFrame:
    settings = inputs.config.statistics
    columns = RelevanceColumns.of(inputs.values, settings.associations.metrics)
    blocks = []
    classes = task_of(inputs.config.cohort).classes
    for name in (*(() if classes else (TARGET, "corrected_gap")), *settings.associations.biomarkers):
        try:
            biomarker = biomarker_of(name, inputs)
        except BadInputError as error:
            blocks.append(untested(ASSOCIATIONS_TABLE, biomarker=name, note=str(error)))
            continue
        for scan_group in settings.associations.scan_groups if classes else ("all",):
            blocks += _of_biomarker(inputs, columns, biomarker, scan_group)
    return stacked(ASSOCIATIONS_TABLE, blocks)


def _of_biomarker(
    inputs: StatisticsInputs, columns: RelevanceColumns, biomarker: Biomarker, scan_group: str
) -> list[pd.DataFrame]:
    """Rows of all estimators for one biomarker in one group of scans."""
    settings = inputs.config.statistics
    members = members_of(inputs, scan_group)
    blocks: list[pd.DataFrame] = []
    points_by_covariates: dict[str, ParticipantValues] = {}  # by covariates
    for estimator in METHODS if settings.covariates.strip() else ("pearson", "spearman"):
        base = {"biomarker": biomarker.name, "scan_group": label_of(inputs, scan_group), "estimator": estimator}
        covariates = settings.covariates if estimator in PARTIAL else ""
        try:
            points = points_by_covariates[covariates] = points_by_covariates.get(covariates) or points_of(
                inputs, columns, biomarker, members, covariates
            )
            # One random stream for all biomarkers and estimators, so that they share permutations.
            rng = generator(inputs.seed, "statistics", "associations", scan_group)
            block = rows_of(points, columns.table, biomarker, estimator, settings, rng)
            if biomarker.name == TARGET and METHODS[estimator] == "pearson":  # which regions follow it most
                alike = points.exchange.even(points.relevance, kinds_of(columns.table))
                influence = influence_on_r(alike, points.biomarker, points.nuisance)
                everyone = np.zeros(len(influence), np.intp)
                write_places(block, "r", influence, everyone, settings.confidence, generator(inputs.seed, "places"))
        except BadInputError as error:
            why = str(error).replace("_biomarker", biomarker.name)
            block = untested(ASSOCIATIONS_TABLE, biomarker=biomarker.name, note=why)
        blocks.append(block.assign(**base).reindex(columns=list(ASSOCIATIONS_TABLE.meanings)))
    return blocks


def points_of(
    inputs: StatisticsInputs, columns: RelevanceColumns, biomarker: Biomarker, members: Flags, covariates: str
) -> ParticipantValues:
    """Participant means of the scans without missing values.

    BadInputError if too few participants remain, or the biomarker is constant or collinear with the covariates.
    """
    if not members.any():
        raise BadInputError("no scan in this group")
    values = biomarker.values[members].reshape(int(members.sum()), -1)
    usable = ~np.isnan(values).all(axis=0)
    # A scan has all volumes or none, except regions without a voxel, which are missing in every scan.
    complete = np.where(np.isnan(values[:, usable]).any(axis=1), np.nan, values[:, usable].sum(axis=1))
    frame = inputs.frame[members].assign(_biomarker=complete).reset_index(drop=True)
    n_known = frame.loc[frame["_biomarker"].notna(), "participant_id"].nunique()
    if n_known < MIN_PARTICIPANTS:
        raise BadInputError(f"{counted(n_known, 'participant')} with a value; at least {MIN_PARTICIPANTS} are needed.")
    others = [term.strip() for term in covariates.split("+") if term.strip() not in ("", biomarker.name)]
    model = model_within_folds(
        " + ".join([*others, "_biomarker"]), "_biomarker", frame, inputs.config.statistics.fold_effect
    )
    design, exchange = model.design, model.exchange.of_rows(model.design.rows)
    nuisance = exchange.reduce(design.nuisance)
    if len(nuisance) < max(MIN_PARTICIPANTS, nuisance.shape[1] + 2):
        raise BadInputError(
            f"{counted(len(nuisance), 'participant', 'is')} too few for {counted(nuisance.shape[1] - 1, 'covariate')}. "
            "Leave covariates out."
        )
    note = (design.note or "").replace("_biomarker", biomarker.name)
    classes = (frame["label"] if "label" in frame else frame["participant_id"].eq("")).to_numpy(object)
    is_small = small_class(exchange.groups_of_units(classes[design.rows].tolist()))
    enough = is_small is not None and is_small.sum() >= nuisance.shape[1] + 2  # for a variance of their own
    return ParticipantValues(
        relevance=exchange.reduce(columns.values[members][design.rows]),
        biomarker=exchange.reduce(values[design.rows]),
        nuisance=nuisance,
        covariates=model.covariates,
        exchange=Exchangeability.free(len(nuisance)).in_blocks(
            fold_of_units(frame.iloc[design.rows], exchange, model.held).tolist()
        ),
        n_scans=len(design.rows),
        note=joined(note, own_volume_note(biomarker.name, frame.iloc[design.rows])),
        spreads=is_small if enough else None,
        caveat=None if is_small is None else SMALL_CLASS,
    )


def small_class(classes: Indices) -> Indices | None:
    """1 for people of a class with few beside the others, else 0; None without one; classes (units,) are 0..C-1."""
    sizes = np.bincount(classes)
    few = len(sizes) > 1 and sizes.min() < min(SMALL, SHARE * sizes.sum())
    return (classes == sizes.argmin()).astype(np.intp) if few else None


def rows_of(
    points: ParticipantValues,
    columns: pd.DataFrame,
    biomarker: Biomarker,
    estimator: str,
    settings: StatisticsConfig,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """Rows of one estimator: all maps, regions and metrics."""
    method = METHODS[estimator]
    of_units = ranks if method == "spearman" else np.asarray
    kinds = kinds_of(columns)
    alike = points.exchange.even(points.relevance, kinds)
    relevance, tested, nuisance = (of_units(values) for values in (alike, points.biomarker, points.nuisance))
    table = columns.assign(
        covariates=", ".join(points.covariates) or None, n_participants=len(relevance), n_scans=points.n_scans
    )
    if biomarker.per_group:
        groups = list(dict.fromkeys(columns["group"]))
        which = columns["group"].map({group: i for i, group in enumerate(groups)}).to_numpy(np.intp)
        permutations = points.exchange.permutations(settings.permutations, rng)
        kind = pd.factorize(pd.Series(kinds))[0]
        matched = matched_test(relevance, tested, which, nuisance, permutations, settings.confidence, kind)
        table = table.assign(n_permutations=len(permutations), exact=permutations.exact, slope=matched.slope)
        test: MatchedTest | PermutationTest = matched
    else:
        names = (biomarker.name, *(f"covariate {i}" for i in range(points.nuisance.shape[1])))
        design = Design(points.biomarker, points.nuisance, np.arange(len(relevance), dtype=np.intp), {}, names, {})
        spreads = None if points.spreads is None or method == "spearman" else points.spreads.tolist()
        test = partial_correlation(
            points.relevance, design, points.exchange, Resampling.orders(settings, rng), method, kinds, spreads
        )
        table = table.assign(n_permutations=test.n_permutations, exact=test.exact, slope=test.coefficients[0])
    if method == "spearman":
        table["slope"] = np.nan
    table = table.assign(
        r=test.partial_r, ci_low=test.low, ci_high=test.high, p=test.p, p_fwe=test.p_fwe, p_fdr=test.p_fdr
    )
    table["interval"] = np.where(np.isnan(test.low), NO_INTERVAL, TEST_INTERVAL)
    table["family"] = family_of(test.p, "regions x maps x metrics")
    mended = method == "pearson" and points.spreads is not None and not biomarker.per_group
    caveat = None if mended else points.caveat
    table["note"] = [joined(problem, points.note, None if problem else caveat) for problem in test.problems]
    return table


AUTO = "auto"
FALLBACKS = ("hippocampus/tiv", "hippocampus", "nwbv", "mmse")
"""What ``biomarker = "auto"`` stands for: the first that any explained scan has; volumes before scores."""
EXCHANGED = "residuals of participants given the covariates (Freedman-Lane)"
PRIMARY_TABLE = declared("primary", __file__)


def primary_tables(inputs: StatisticsInputs) -> pd.DataFrame:
    asked = inputs.config.statistics.primary
    name = asked.map or next(iter((*inputs.values.evidence, *inputs.values.maps)), None)
    usual = "sum" if name in inputs.values.evidence else "share"
    metric = usual if asked.metric == "auto" else asked.metric
    chosen, why = FALLBACKS[0] if asked.biomarker == AUTO else asked.biomarker, None
    try:
        _require_defined(inputs, name)
        biomarker, why = _biomarker(asked.biomarker, inputs)
        chosen = biomarker.name
        row = _row(inputs, str(name), metric, biomarker)
    except BadInputError as error:
        reason = str(error).replace("_biomarker", chosen)
        row = untested(ASSOCIATIONS_TABLE, biomarker=chosen, note=reason).assign(exchanged=None)
    named = {"map": name, "metric": metric, "group": asked.region, "biomarker": chosen}
    row = row.assign(**named, scan_group=label_of(inputs, asked.scan_group), note=joined(why, row["note"].iloc[0]))
    return row[list(PRIMARY_TABLE.meanings)]


def _require_defined(inputs: StatisticsInputs, name: str | None) -> None:
    """Refuse a task, region or map for which there is no such correlation."""
    region = inputs.config.statistics.primary.region
    if not task_of(inputs.config.cohort).classes:
        raise BadInputError("not defined where a number is predicted: there is no class to hold.")
    if region not in inputs.values.groups:
        raise BadInputError(f"the atlas has no bilateral group named {region}. Set statistics.primary.region.")
    if name not in inputs.values.maps:
        raise BadInputError(f"no map named {name} in group/relevance_bilateral.tsv. Set statistics.primary.map.")


def _biomarker(asked: str, inputs: StatisticsInputs) -> tuple[Biomarker, str | None]:
    """The biomarker of the settings, or the first of `FALLBACKS` that has a value, and why it is not the first."""
    if asked != AUTO:
        return biomarker_of(asked, inputs), None
    absent = []
    for name in FALLBACKS:
        try:
            biomarker = biomarker_of(name, inputs)
        except BadInputError as error:
            absent.append(str(error).removesuffix("."))
            continue
        return biomarker, f"{absent[0]}, so {name} takes its place" if absent else None
    raise BadInputError(f"{absent[0]}, nor one of {', '.join(FALLBACKS[1:-1])} or {FALLBACKS[-1]}.")


def _row(inputs: StatisticsInputs, name: str, metric: str, biomarker: Biomarker) -> pd.DataFrame:
    settings = inputs.config.statistics
    asked = settings.primary
    held = [term.strip() for term in settings.covariates.split("+") if term.strip() not in ("", CLASS)]
    covariates = " + ".join([CLASS, *held] if asked.scan_group == "all" else held)
    every = RelevanceColumns.of(inputs.values, (metric,))
    chosen = every.table.index[every.table["map"] == name]  # all regions: folds are brought to one spread by the map
    columns = RelevanceColumns(every.table.loc[chosen].reset_index(drop=True), every.values[:, chosen])
    points = points_of(inputs, columns, biomarker, members_of(inputs, asked.scan_group), covariates)
    rng = generator(inputs.seed, "statistics", "associations", asked.scan_group)  # the permutations of associations
    rows = rows_of(points, columns.table, biomarker, "partial", settings, rng)
    row = rows[rows["group"] == asked.region].reset_index(drop=True)
    within = ", within test folds" if FOLD in points.covariates else ""
    return row.assign(exchanged=EXCHANGED + within)
