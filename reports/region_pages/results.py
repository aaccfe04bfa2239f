"""What a region's page says: its first sentences, and its tables.

The lead says whether the classes differ there in the leading map, and which place the region has. The tables are left
and right, clinical measures, and the classes against each other.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.regions.tables import RELEVANCE_TABLE
from heatlas.pipeline.run.errors import HeatlasError
from heatlas.reports.frame.tables import PageTable, columns_of, page_table, worded_columns
from heatlas.reports.questions.findings import (
    Place,
    difference_of,
    evidence_differences,
    map_shares,
    place_of,
    summary_means,
)
from heatlas.reports.questions.question import CLEAR, classes_compared, difference_in_words, folds_held, g_in_words
from heatlas.reports.questions.views import CI, G, rows_in_words
from heatlas.reports.read.run_files import TABLES
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import p_value, signed
from heatlas.reports.words.sentences import Words

WORDS = Words(__file__)


def lead_of(run: RunRecord, group: str) -> str:
    """Whether the classes differ here in the leading map: by evidence, or by share and density."""
    name = run.leading_map
    if run.task.kind.undefined:
        return f"No comparison of classes. {run.task.kind.undefined}"
    if run.leads_with_evidence:
        return _lead_of_evidence(run, group)
    if not run.has("group_comparisons"):
        return "Differences between the classes have not been tested yet."
    share = classes_compared(run, map=name, metric="share", group=group)
    density = classes_compared(run, map=name, metric="density", group=group)
    if density.empty or pd.isna(density["p_fwe"].iloc[0]):
        return f"{map_title(name)}: no difference between the classes could be tested here."
    row, text = density.iloc[0], f"{map_title(name)}: "
    if len(share) and pd.notna(share["p_fwe"].iloc[0]):
        text += f"the share of the map that lies here {_difference(run, share.iloc[0], 'larger')}. By density, which "
        text += "depends on the strength of the whole map, "
    return WORDS.say(
        "lead_of",
        text=text,
        difference=_difference(run, row, "denser"),
        row=row,
        run=run,
        place=_place(run, name, group),
    )


def _lead_of_evidence(run: RunRecord, group: str) -> str:
    """Whether the classes differ here in evidence, in logits, and the place of the region by this difference."""
    rows = evidence_differences(run, run.leading_map)
    title = map_title(run.leading_map)
    place = place_of(run, run.leading_map, group)
    row = rows.loc[[group]].iloc[0] if place is not None else pd.Series({"p_fwe": None})
    if place is None or pd.isna(row["p_fwe"]):
        return f"{title}: no difference of evidence between the classes could be tested here."
    means = [f"{signed(row[column])} logits in {label}" for column, label in
             zip(("mean_first", "mean_second"), run.labels, strict=True)]  # fmt: skip
    return WORDS.say(
        "lead_of_evidence",
        title=title,
        difference=_difference(run, row, "larger"),
        difference_of=difference_of(run, row),
        within=" within folds" if folds_held(rows) else "",
        means=means,
        row=row,
        run=run,
        place=place,
        bounds=_bounds(run, place),
    )


def _bounds(run: RunRecord, place: Place) -> str:
    """Between which places a region lies, to follow its place."""
    return f" ({100 * run.config.statistics.confidence:g} % interval {place.span})" if place.span else ""


def _difference(run: RunRecord, row: pd.Series, more: str) -> str:
    """The difference of the classes in a row of tests, to follow its subject."""
    where = f"is {more} in {run.positive if row['difference'] > 0 else run.negative}"
    said = where if row["p_fwe"] < CLEAR else "is not significantly different between the classes"
    size = f"Hedges' g of {run.positive} against {run.negative} {g_in_words(row)}"
    return f"{said} ({size}, family-wise corrected {p_value(row['p_fwe'])})"


def _place(run: RunRecord, name: str, group: str) -> str:
    """The mean share of the map that lies in the region in the positive class, and its place among the regions."""
    means = map_shares(run, name, run.positive).dropna()
    if group not in means:
        return ""
    place = int((means > means[group]).sum()) + 1
    return WORDS.say("place", mean=means[group], run=run, place=place, means=len(means))


def planted_here(run: RunRecord, group: str) -> str:
    """Whether disease was planted in a group, and its place by density in true positives, as recovery counts it."""
    if not run.planted:
        return ""
    said = f" This is {'one' if group in run.planted else 'none'} of the planted regions"
    name = run.leading_map
    if run.leads_with_evidence:
        ranked = place_of(run, name, group)
        if ranked is None:
            return f"{said}."
        return WORDS.say("planted_by_evidence", said=said, name=name, ranked=ranked, bounds=_bounds(run, ranked))
    density = summary_means(run, name, "density", "TP")
    if group not in density:
        return f"{said}."
    place = int((density > density[group]).sum()) + 1
    return WORDS.say("planted_by_density", said=said, name=name, place=place, density=len(density))


SIDES = ("left", "right")
_READ = ["participant_id", "scan_id", "map", "hemisphere", "group", "n_voxels", "sum"]
_SIDE_COLUMNS = worded_columns(WORDS, "side_columns")
_ASSOCIATED = (
    "biomarker", "scan_group", "estimator", "covariates", "map", "r", *CI, "p", "p_fwe", "p_fdr", "n_participants",
    "note",
)  # fmt: skip
_EFFECTS = ("map", "difference", *CI, *G, "n_first", "n_second", "p", "p_fwe", "p_fdr", "note")
_FIRST_EFFECTS = ("map", *G, "n_first", "n_second", "p_fwe", "note")
_FIRST_ASSOCIATED = ("biomarker", "r", *CI, "p_fwe", "n_participants", "note")
_MEASURES = {"share": "Share of the map", "density": "Density"}
MOST_ASSOCIATIONS, FIRST_ASSOCIATIONS = 24, 6  # rows of a page, and before it is unfolded


def side_means(relevance: pd.DataFrame, predictions: pd.DataFrame) -> pd.DataFrame:
    """Sum and density of each side of every bilateral group, mean over participants.

    `relevance`: rows of ``relevance.tsv``: one per scan, map and region. `predictions`: with ``scan_id`` and ``label``.
    Returns one row per group, map and label, in this order: ``n_participants``; ``density_left``, ``density_right``,
    ``sum_left`` and ``sum_right`` (mean over participants of the mean over their scans).
    """
    keys = ["group", "map", "label"]
    rows = relevance[relevance["hemisphere"].isin(SIDES)].merge(predictions[["scan_id", "label"]], on="scan_id")
    scans = rows.groupby([*keys, "participant_id", "scan_id", "hemisphere"])[["sum", "n_voxels"]].sum()
    scans["density"] = (scans["sum"] / scans["n_voxels"]).where(scans["n_voxels"] > 0)
    people = scans.groupby(level=[*keys, "participant_id", "hemisphere"])[["density", "sum"]].mean().reset_index()
    means = people.pivot_table(index=keys, columns="hemisphere", values=["density", "sum"], aggfunc="mean")
    means.columns = ["_".join(map(str, names)) for names in means.columns]
    counts = rows.groupby(keys)["participant_id"].nunique().rename("n_participants")
    return means.join(counts).reset_index()


def sides_by_group(run: RunRecord) -> Mapping[str, PageTable]:
    """Table of both sides of each bilateral group that has two, for the leading maps; empty before the regions stage.

    A region without a voxel on one side has no density there.
    """
    try:
        relevance = RELEVANCE_TABLE.read(run.layout, _READ)
    except HeatlasError:
        return {}
    if not run.has("predictions"):
        return {}
    means = side_means(relevance[relevance["map"].isin(run.main_maps)], run.tables["predictions"])
    if not {f"density_{side}" for side in SIDES} <= set(means):
        return {}
    place = {name: rank for rank, name in enumerate([*run.main_maps, *run.labels])}
    means = means.assign(title=means["map"].map(map_title), m=means["map"].map(place), c=means["label"].map(place))
    means = means.sort_values(["m", "c"], kind="stable")
    caption = "Each side of the brain alone; means over participants, each person's scans averaged first."
    return {
        str(group): page_table(rows, _SIDE_COLUMNS, caption)
        for group, rows in means.groupby("group", sort=False)
        if rows[["density_left", "density_right"]].notna().all(axis=1).any()
    }


def associations_by_group(run: RunRecord, first: bool = False) -> Mapping[str, PageTable]:
    """Each bilateral group against volumes and clinical measures, clearest first; by share where that was tested.

    `first`: only the leading map within the positive class, where a correlation is not a difference of the classes.
    """
    if not run.has("associations"):
        return {}
    table = run.tables["associations"]
    metric = "share" if (table["metric"] == "share").any() else "density"
    rows = table[(table["metric"] == metric) & table["map"].isin(run.main_maps)]
    if first:
        within = (rows["map"] == run.leading_map) & (rows["scan_group"] == run.positive)
        rows = rows[within & (rows["estimator"] == "partial")]
    rows = rows.assign(size=-rows["r"].abs(), map=rows["map"].map(map_title))
    rows = rows_in_words(rows.sort_values(["p_fwe", "size"], kind="stable", na_position="last"), run)
    columns = columns_of(run, "associations", _FIRST_ASSOCIATED if first else _ASSOCIATED)
    said, shown = ("first_associations", FIRST_ASSOCIATIONS) if first else ("associations_by_group", MOST_ASSOCIATIONS)
    held = rows["covariates"].iloc[0] if first and len(rows) else ""
    caption = WORDS.say(said, measure=_MEASURES[metric], TABLES=TABLES, run=run, held=held)
    return {
        str(group): page_table(of_group, columns, caption, shown)
        for group, of_group in rows.groupby("group", sort=False)
    }


def first_effects_by_group(run: RunRecord) -> Mapping[str, PageTable]:
    """Each bilateral group between the classes in the leading maps: by evidence, or by the share of the map."""
    metrics = {name: "density" if name in run.evidence_maps else "share" for name in run.main_maps}
    table = pd.concat([classes_compared(run, map=name, metric=metric) for name, metric in metrics.items()])
    if table.empty:
        return {}
    titles = {name: f"{map_title(name)}, {'evidence' if name in run.evidence_maps else 'share'}" for name in metrics}
    columns = columns_of(run, "group_comparisons", _FIRST_EFFECTS, n_first=f"{run.positive}, n",
                         n_second=f"{run.negative}, n")  # fmt: skip
    caption = WORDS.say("first_effects", run=run)
    rows = table.assign(map=table["map"].map(titles))
    return {str(group): page_table(found, columns, caption) for group, found in rows.groupby("group", sort=False)}


def effects_by_group(run: RunRecord) -> Mapping[str, list[PageTable]]:
    """Each bilateral group between the classes, in every map: share of the map, then density; where it was tested."""
    found: dict[str, list[PageTable]] = {}
    for metric, title in _MEASURES.items():
        table = classes_compared(run, metric=metric)
        if len(table):
            columns = columns_of(run, "group_comparisons", _EFFECTS)
            rows = table.assign(map=table["map"].map(map_title))
            caption = f"{title}, {run.positive} (first) against {run.negative}, every map."
            caption += f"{difference_in_words(table)} {TABLES['group_comparisons'].tests}"
            for group, of_group in rows.groupby("group", sort=False):
                found.setdefault(str(group), []).append(page_table(of_group, columns, caption))
    return found
