"""The primary outcome: one partial correlation over participants, named in the settings before any result.

By default the evidence of the hippocampus (without an evidence map, its share of the run's first map) with hippocampal
volume divided by intracranial volume, over the participants of all classes, with the class, the test fold and the
covariates held. The correlation, its permutations and its interval are those of `associations`: a row of
``associations.tsv`` that asks the same has the same numbers. It is one test, so its p needs no correction.
"""

from __future__ import annotations

import pandas as pd

from pipeline.cohort.people.tasks import task_of
from pipeline.run.declared import Inference, Table
from pipeline.run.errors import BadInputError
from pipeline.run.work.seeds import generator
from pipeline.statistics.associations.associations import ASSOCIATIONS_COLUMNS, points_of, rows_of, unusable
from pipeline.statistics.associations.biomarkers import biomarker_of
from pipeline.statistics.associations.main_effects import CLASS
from pipeline.statistics.data.inputs import StatisticsInputs
from pipeline.statistics.data.relevance_columns import RelevanceColumns
from pipeline.statistics.groups.members import label_of, members_of
from pipeline.statistics.linear.fold_effect import FOLD

EXCHANGED = "residuals of participants given the covariates (Freedman-Lane)"
_SAME = (
    "map", "metric", "group", "biomarker", "scan_group", "covariates", "r", "ci_low", "ci_high", "interval", "slope",
    "p", "n_participants", "n_scans", "n_permutations", "exact", "note",
)  # fmt: skip
PRIMARY_COLUMNS = {name: ASSOCIATIONS_COLUMNS[name] for name in _SAME} | {
    "map": "Relevance map: as [statistics.primary] map says, or the first evidence map of the run, or its first map",
    "metric": "density, sum (of an evidence map: evidence in logits), gain or share (sum divided by the absolute sums "
    "of all regions)",
    "biomarker": "What relevance is correlated with: a column, a ratio of two columns, or a volume",
    "scan_group": "Scans included: all (with the class held), a class, or TP, FP, TN, FN",
    "covariates": "Covariates held, with fold for the test fold; n/a if there is no value",
    "p": "Two-sided permutation p over participants, (b+1)/(m+1)",
    "exchanged": "What a permutation exchanges",
}
PRIMARY_TABLE = Table(
    "primary", PRIMARY_COLUMNS, "run", "What is the answer to the primary question, named before any result?",
    filled=("metric", "group", "biomarker", "scan_group", "n_participants"),
    inference=Inference("primary", "this one test"),
)  # fmt: skip


def primary_tables(inputs: StatisticsInputs) -> pd.DataFrame:
    """Table ``primary``: one row, with the reason in its note if it cannot be computed."""
    asked = inputs.config.statistics.primary
    name = asked.map or next(iter((*inputs.values.evidence, *inputs.values.maps)), None)
    usual = "sum" if name in inputs.values.evidence else "share"
    metric = usual if asked.metric == "auto" else asked.metric
    try:
        row = _row(inputs, name, metric)
    except BadInputError as error:
        row = unusable(asked.biomarker, str(error).replace("_biomarker", asked.biomarker)).assign(exchanged=None)
    named = {"map": name, "metric": metric, "group": asked.region, "biomarker": asked.biomarker}
    return row.assign(**named, scan_group=label_of(inputs, asked.scan_group))[list(PRIMARY_COLUMNS)]


def _row(inputs: StatisticsInputs, name: str | None, metric: str) -> pd.DataFrame:
    settings = inputs.config.statistics
    asked = settings.primary
    if task_of(inputs.config.cohort).is_number:
        raise BadInputError("not defined where a number is predicted: there is no class to hold.")
    if asked.region not in inputs.values.groups:
        raise BadInputError(f"the atlas has no bilateral group named {asked.region}. Set statistics.primary.region.")
    if name not in inputs.values.maps:
        raise BadInputError(f"no map named {name} in group/relevance_bilateral.tsv. Set statistics.primary.map.")
    biomarker = biomarker_of(asked.biomarker, inputs)
    held = [term.strip() for term in settings.covariates.split("+") if term.strip() not in ("", CLASS)]
    covariates = " + ".join([CLASS, *held] if asked.scan_group == "all" else held)
    every = RelevanceColumns.of(inputs.values, (metric,))
    chosen = every.table.index[(every.table["map"] == name) & (every.table["group"] == asked.region)]
    column = RelevanceColumns(every.table.loc[chosen].reset_index(drop=True), every.values[:, chosen])
    points = points_of(inputs, column, biomarker, members_of(inputs, asked.scan_group), covariates)
    rng = generator(inputs.seed, "statistics", "associations", asked.scan_group)  # the permutations of associations
    row = rows_of(points, column.table, biomarker, "partial", settings, rng)
    within = ", within test folds" if FOLD in points.covariates else ""
    return row.assign(exchanged=EXCHANGED + within)
