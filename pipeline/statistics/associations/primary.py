"""The primary outcome: one partial correlation over participants, named in the settings before any result.

By default the evidence of the hippocampus (without an evidence map, its share of the run's first map) with hippocampal
volume divided by intracranial volume, over the participants of all classes, with the class, the test fold and the
covariates held. Images that enter registered bring no volume of the hippocampus: then the first other measure that is
there (`FALLBACKS`). The choice looks at which columns have values, never at the values, so it is still made before any
result. The correlation, its permutations and its interval are those of `associations`: a row of
``associations.tsv`` that asks the same has the same numbers. It is one test, so its p needs no correction.
"""

from __future__ import annotations

import pandas as pd

from heatlas.pipeline.cohort.people.tasks import task_of
from heatlas.pipeline.run.declared import Inference, Table
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.associations.associations import ASSOCIATIONS_COLUMNS, points_of, rows_of, unusable
from heatlas.pipeline.statistics.associations.biomarkers import Biomarker, biomarker_of
from heatlas.pipeline.statistics.associations.main_effects import CLASS
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.members import label_of, members_of
from heatlas.pipeline.statistics.data.notes import joined
from heatlas.pipeline.statistics.data.values import RelevanceColumns
from heatlas.pipeline.statistics.linear.fold_effect import FOLD

AUTO = "auto"
FALLBACKS = ("hippocampus/tiv", "hippocampus", "nwbv", "mmse")
"""What ``biomarker = "auto"`` stands for: the first that any explained scan has; volumes before scores."""
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
    chosen, why = FALLBACKS[0] if asked.biomarker == AUTO else asked.biomarker, None
    try:
        _require_defined(inputs, name)
        biomarker, why = _biomarker(asked.biomarker, inputs)
        chosen = biomarker.name
        row = _row(inputs, str(name), metric, biomarker)
    except BadInputError as error:
        row = unusable(chosen, str(error).replace("_biomarker", chosen)).assign(exchanged=None)
    named = {"map": name, "metric": metric, "group": asked.region, "biomarker": chosen}
    row = row.assign(**named, scan_group=label_of(inputs, asked.scan_group), note=joined(why, row["note"].iloc[0]))
    return row[list(PRIMARY_COLUMNS)]


def _require_defined(inputs: StatisticsInputs, name: str | None) -> None:
    """Refuse a task, region or map for which there is no such correlation."""
    region = inputs.config.statistics.primary.region
    if task_of(inputs.config.cohort).is_number:
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
            found = biomarker_of(name, inputs)
        except BadInputError as error:
            absent.append(str(error).removesuffix("."))
            continue
        return found, f"{absent[0]}, so {name} takes its place" if absent else None
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
