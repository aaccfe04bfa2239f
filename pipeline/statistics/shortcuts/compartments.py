"""Whether relevance gathers where it should not, and more so in one class: ``shortcuts.tsv``.

The unit is the participant: enrichments of their scans are averaged first. 1 is what relevance spread evenly would
give, which no network gives; so what the numbers are to be read against is the same network type on brain masks alone
(``training.control = "binarised"``), and the other class.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.run.config.statistics import StatisticsConfig
from pipeline.run.declared import Table
from pipeline.run.errors import BadInputError
from pipeline.run.tables import read_table
from pipeline.run.work.seeds import generator
from pipeline.statistics.arrays import Floats
from pipeline.statistics.data.inputs import StatisticsInputs
from pipeline.statistics.data.notes import joined, so_many
from pipeline.statistics.groups.members import difference_within
from pipeline.statistics.linear.exchangeability import Exchangeability
from pipeline.statistics.linear.fold_effect import FOLD, model_within_folds
from pipeline.statistics.linear.freedman_lane import freedman_lane
from pipeline.statistics.resampling.bootstrap import bootstrap_intervals
from pipeline.statistics.resampling.correction_family import add_false_discovery_rate
from pipeline.training.control import control_of

AUDIT_COLUMNS = ("scan_id", "map", "compartment", "reference", "share", "voxel_share", "enrichment")

SHORTCUT_COLUMNS = {
    "map": "Relevance map",
    "compartment": "Part of the scan, as in group/relevance_audit.tsv: rim, rim_inside, outside, fluid, dark, vessel, "
    "no_region",
    "reference": "What it is a part of: brain, brain_and_rim or seen",
    "share": "Share of |relevance| of the reference that lies in the compartment; mean over participants",
    "voxel_share": "Its share of voxels; mean over participants",
    "enrichment": "share / voxel_share, per scan, then averaged per participant, then over participants; 1 is "
    "relevance spread evenly over the reference",
    "ci_low": "Lower bound of the interval of enrichment over participants",
    "ci_high": "Upper bound",
    "interval": "BCa or percentile bootstrap interval; none where there is none",
    "enrichment_positive": "Mean over participants of the positive class",
    "enrichment_negative": "Mean over participants of the negative class",
    "difference": "Difference of the classes with the test fold held (mean of the differences within folds, weighted "
    "by n1 n2 / (n1 + n2)); enrichment_positive - enrichment_negative where fold_held is false",
    "fold_held": "Whether the test fold, whose maps come from one network, is held in difference and p",
    "t": "Welch's t; with fold held the same of the model with fold, one residual variance per class",
    "df": "Its degrees of freedom (Welch-Satterthwaite)",
    "p": "Two-sided p of t from permuting participants between classes (within folds, if held), (b+1)/(m+1)",
    "p_fdr": "p adjusted by Benjamini and Hochberg over the family",
    "family": "Tests adjusted together",
    "n_permutations": "Permutations used",
    "exact": "true if these are all permutations there are",
    "n_participants": "Participants",
    "n_scans": "Their scans",
    "n_positive": "Participants of the positive class; someone with scans of both counts where most of them are",
    "n_negative": "Participants of the negative class",
    "control": "none; or what makes this a control run: binarised, shuffled labels",
    "note": "Why there is no value, or what to know of it",
}
SHORTCUTS_TABLE = Table(
    "shortcuts", SHORTCUT_COLUMNS, "map and compartment", "Does relevance gather in places that should not matter?",
)  # fmt: skip


def shortcut_table(inputs: StatisticsInputs) -> pd.DataFrame:
    """One row per map and compartment; columns of `SHORTCUT_COLUMNS`.

    Raises
    ------
    BadInputError
        If the run has no audit, or it lacks a column.
    """
    audit = read_table(inputs.layout.relevance_audit, AUDIT_COLUMNS, ("map", "compartment", "reference"))
    facts = inputs.frame[["scan_id", "participant_id", "target", "fold"]]
    known = audit[list(AUDIT_COLUMNS)].merge(facts, on="scan_id", validate="many_to_one")
    if known.empty:
        raise BadInputError(f"{inputs.layout.relevance_audit}: no scan of this run. Run the regions stage again.")
    settings, rows = inputs.config.statistics, []
    for (map_name, compartment), part in known.groupby(["map", "compartment"], sort=False):
        rng = generator(inputs.seed, "statistics", "shortcuts", str(map_name), str(compartment))
        rows.append(_row(part, settings, rng) | {"map": map_name, "compartment": compartment})
    counts = dict.fromkeys(("n_permutations", "n_positive", "n_negative"), "Int64")
    table = pd.DataFrame(rows).astype(counts).assign(control=control_of(inputs.config))
    return add_false_discovery_rate(table, ["map", "control"], "compartments")[list(SHORTCUT_COLUMNS)]


def _row(part: pd.DataFrame, settings: StatisticsConfig, rng: np.random.Generator) -> dict[str, Any]:
    usable = part[part["enrichment"].notna()]
    row: dict[str, Any] = dict.fromkeys(SHORTCUT_COLUMNS) | dict.fromkeys(("t", "df", "p"), np.nan)
    row |= {"reference": part["reference"].iloc[0]}
    row |= {"n_scans": len(usable), "n_participants": usable["participant_id"].nunique(), "interval": "none"}
    if usable.empty:
        return row | {"note": "no voxels of this kind, or no relevance"}
    people = Exchangeability.participant_means(usable["participant_id"].tolist())
    share, voxels, enrichment = people.reduce(usable[["share", "voxel_share", "enrichment"]].to_numpy(float)).T
    positive = _of_most_scans(usable["target"].to_numpy(float), people)
    found = bootstrap_intervals(
        lambda weights: weights @ enrichment / weights.sum(axis=1),
        positive.astype(int).tolist(), settings.bootstrap_samples, settings.confidence, rng,
    )  # fmt: skip
    row |= {
        "share": float(share.mean()),
        "voxel_share": float(voxels.mean()),
        "enrichment": float(enrichment.mean()),
        "ci_low": float(found.low[0]),
        "ci_high": float(found.high[0]),
        "interval": str(found.method[0]),
        "n_positive": int(positive.sum()),
        "n_negative": int((~positive).sum()),
        "note": joined(
            f"{so_many(len(part) - len(usable), 'scan')} without relevance left out"
            if len(usable) < len(part)
            else None,
            *found.notes,
        ),
    }
    fold = people.groups_of_units(usable["fold"].tolist())
    compared = _difference(enrichment, positive, fold, settings, rng)
    return row | compared | {"note": joined(row["note"], compared.get("note"))}


def _of_most_scans(target: Floats, people: Exchangeability) -> NDArray[np.bool_]:
    """Class of each participant; half and half counts as positive, as in the split."""
    means = people.reduce(target[:, None])[:, 0]
    return np.asarray(means >= 0.5, dtype=bool)


def _difference(
    values: Floats, positive: NDArray[np.bool_], fold: NDArray[np.intp], settings: StatisticsConfig,
    rng: np.random.Generator,
) -> dict[str, Any]:  # fmt: skip
    """Means of the classes, their difference within folds, and its test: that of `groups.comparisons`."""
    if positive.all() or not positive.any():
        return {"note": "one class only: no difference"}
    frame = pd.DataFrame({"_positive": positive.astype(float), FOLD: fold})
    groups = positive.tolist()
    try:
        model = model_within_folds("_positive", "_positive", frame, settings.fold_effect, groups)
        test = freedman_lane(values, model.design, model.exchange, settings.permutations, rng, groups)
    except BadInputError as error:  # the classes follow from fold, or a class has one participant
        return {"note": str(error).replace("_positive", "class")}
    held = fold if model.held else np.zeros_like(fold)
    return {
        "fold_held": model.held,
        "enrichment_positive": float(values[positive].mean()),
        "enrichment_negative": float(values[~positive].mean()),
        "difference": float(difference_within(values[:, None], positive, held, np.ones((1, len(values))))[0, 0]),
        "t": float(test.statistic[0]),
        "df": float(test.df[0]),
        "p": float(test.p[0]),
        "n_permutations": test.n_permutations,
        "exact": test.exact,
        "note": joined(test.problems[0], model.design.note),
    }
