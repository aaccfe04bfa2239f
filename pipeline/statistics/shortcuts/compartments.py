"""Whether relevance concentrates where it should not, and differently between classes: ``shortcuts.tsv``.

The unit is the participant (scans averaged first). An enrichment of 1 is relevance spread evenly, which no network
gives; the numbers are to be compared with those of the same type of network on brain masks alone (``training.control =
"binarised"``), and between the classes.

The interval of the mean comes from flipping the signs of participants' differences from 1 (an even spread); it excludes
1 exactly where such a test would reject. The difference of the classes, its p and its interval come from one model with
the test fold held, as in `pipeline.statistics.groups.comparisons`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from heatlas.pipeline.regions.audit import RELEVANCE_AUDIT_TABLE
from heatlas.pipeline.run.columns import described
from heatlas.pipeline.run.config.statistics import StatisticsConfig
from heatlas.pipeline.run.declared import Inference, Table
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.plain_text import counted
from heatlas.pipeline.run.work.seeds import generator
from heatlas.pipeline.statistics.arrays import Floats
from heatlas.pipeline.statistics.data.inputs import StatisticsInputs
from heatlas.pipeline.statistics.data.notes import joined
from heatlas.pipeline.statistics.linear.exchangeability import Exchangeability
from heatlas.pipeline.statistics.linear.fold_effect import EVEN, FOLD, model_within_folds
from heatlas.pipeline.statistics.linear.freedman_lane import TEST_INTERVAL, freedman_lane
from heatlas.pipeline.statistics.resampling.bootstrap import NO_INTERVAL
from heatlas.pipeline.statistics.resampling.correction_family import add_false_discovery_rate
from heatlas.pipeline.statistics.resampling.means import FEW_VALUES, VERY_SKEWED, sign_flip_test, skewed_and_few
from heatlas.pipeline.training.control import control_of

SIGN_FLIPS = "sign flips"
ALIKE = "no interval: the same in all participants"
SKEWED = (
    f"enrichment is skewed (above {VERY_SKEWED:g}) in fewer than {FEW_VALUES} participants: the interval is too narrow"
)
AUDIT_COLUMNS = ("scan_id", "map", "compartment", "reference", "share", "voxel_share", "enrichment")

SHORTCUT_COLUMNS = {
    **described("map"),
    "compartment": "Part of the scan, as in group/relevance_audit.tsv: rim, rim_inside, outside, fluid, dark, vessel, "
    "no_region",
    "reference": "Voxels that share and voxel_share refer to: brain, brain_and_rim or seen",
    "share": "Share of the reference's |relevance| that lies in the compartment; mean over participants",
    "voxel_share": "Share of the reference's voxels that lie in the compartment; mean over participants",
    "enrichment": "share / voxel_share per scan, averaged over each participant's scans, then over participants; 1 "
    "is relevance spread evenly over the reference",
    "ci_low": "Lower bound of the interval of enrichment over participants; it excludes 1 exactly where flipping the "
    "signs of their differences from 1 rejects an even spread",
    **described("ci_high"),
    "interval": "Kind of interval: sign flips (Hall's t, made with the critical value of the flips) or none",
    "enrichment_positive": "Mean enrichment over participants of the positive class",
    "enrichment_negative": "Mean enrichment over participants of the negative class",
    "difference": "enrichment_positive - enrichment_negative; if fold_held, the mean of the differences within test "
    f"folds, weighted by n1 n2 / (n1 + n2), {EVEN}",
    "difference_low": "Lower bound of the interval of difference",
    "difference_high": "Upper bound of the interval",
    "difference_interval": "permutation: made with the critical value of the permuted t, so it excludes 0 exactly "
    "where p is at most 1 - confidence; none",
    "fold_held": "Whether difference and p are adjusted for the test fold (each fold's maps come from its own network)",
    "t": "Welch's t; if fold_held, from a model with fold and one residual variance per class",
    "df": "Degrees of freedom of t (Welch-Satterthwaite)",
    "p": "Two-sided p of t from permuting participants between the classes (within test folds if fold_held), each "
    "class keeping its standard deviation; (b+1)/(m+1)",
    **described("p_fdr", "family", "n_permutations", "exact", "n_participants", "n_scans"),
    "n_positive": "Participants of the positive class; one with scans of both classes belongs to that of most scans",
    "n_negative": "Participants of the negative class",
    "control": "Kind of control run: binarised or shuffled labels; none for an ordinary run",
    **described("note"),
}
SHORTCUTS_TABLE = Table(
    "shortcuts", SHORTCUT_COLUMNS, "map and compartment", "Does relevance concentrate where it should not?",
    inference=Inference("exploratory", "all compartments of one map"),
)  # fmt: skip


def shortcut_table(inputs: StatisticsInputs) -> pd.DataFrame:
    """Table ``shortcuts``: a row per map and compartment; BadInputError if the audit or a column is missing."""
    audit = RELEVANCE_AUDIT_TABLE.read(inputs.layout, AUDIT_COLUMNS)
    facts = inputs.frame[["scan_id", "participant_id", "target", "fold"]]
    known = audit[list(AUDIT_COLUMNS)].merge(facts, on="scan_id", validate="many_to_one")
    if known.empty:
        raise BadInputError(
            f"{RELEVANCE_AUDIT_TABLE.path(inputs.layout)}: no scan of this run. Run the regions stage again."
        )
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
    # Ties count as positive, as in the split.
    positive = np.asarray(people.reduce(usable[["target"]].to_numpy(float))[:, 0] >= 0.5, dtype=bool)
    mean, note = _mean(enrichment, settings, rng)
    row |= mean | {
        "share": float(share.mean()),
        "voxel_share": float(voxels.mean()),
        "n_positive": int(positive.sum()),
        "n_negative": int((~positive).sum()),
        "note": joined(
            f"{counted(len(part) - len(usable), 'scan')} without relevance left out"
            if len(usable) < len(part)
            else None,
            note,
        ),
    }
    fold = people.groups_of_units(usable["fold"].tolist())
    compared = _difference(enrichment, positive, fold, settings, rng)
    return row | compared | {"note": joined(row["note"], compared.get("note"))}


def _mean(values: Floats, settings: StatisticsConfig, rng: np.random.Generator) -> tuple[dict[str, Any], str | None]:
    """Mean enrichment of participants with its interval, and a caveat."""
    row = {"enrichment": float(values.mean()), "ci_low": np.nan, "ci_high": np.nan, "interval": NO_INTERVAL}
    if np.ptp(values) <= 1e-12 * np.abs(values).max():
        return row, ALIKE
    from_even = (values - 1.0)[:, None]
    test = sign_flip_test(from_even, np.ones_like(from_even), settings.permutations, rng, settings.confidence)
    low, high = 1.0 + float(test.low[0]), 1.0 + float(test.high[0])
    if np.isnan(low) or np.isnan(high):
        return row, f"no interval: {counted(len(values), 'participant', 'is')} too few"
    skewed = skewed_and_few(test.skewness, len(values))[0]
    return row | {"ci_low": low, "ci_high": high, "interval": SIGN_FLIPS}, SKEWED if skewed else None


def _difference(
    values: Floats, positive: NDArray[np.bool_], fold: NDArray[np.intp], settings: StatisticsConfig,
    rng: np.random.Generator,
) -> dict[str, Any]:  # fmt: skip
    """Means of the classes, their difference within folds, and its test, as in `groups.comparisons`."""
    if positive.all() or not positive.any():
        return {"note": "only one class: no difference"}
    frame = pd.DataFrame({"_positive": positive.astype(float), FOLD: fold})
    groups, means = positive.tolist(), (float(values[positive].mean()), float(values[~positive].mean()))
    try:
        model = model_within_folds("_positive", "_positive", frame, settings.fold_effect, groups)
        test = freedman_lane(
            values, model.design, model.exchange, settings.permutations, rng, groups, confidence=settings.confidence
        )
    except BadInputError as error:  # the classes are collinear with fold, or a class has one participant
        return {"note": str(error).replace("_positive", "class")}
    return {
        "fold_held": model.held,
        "enrichment_positive": means[0],
        "enrichment_negative": means[1],
        "difference": float(test.estimate[0]) if np.isfinite(test.estimate[0]) else means[0] - means[1],
        "difference_low": float(test.low[0]),
        "difference_high": float(test.high[0]),
        "difference_interval": NO_INTERVAL if np.isnan(test.low[0]) else TEST_INTERVAL,
        "t": float(test.statistic[0]),
        "df": float(test.df[0]),
        "p": float(test.p[0]),
        "n_permutations": test.n_permutations,
        "exact": test.exact,
        "note": joined(test.problems[0], model.design.note),
    }
