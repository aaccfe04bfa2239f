"""Evidence of regions in logits: the figure and the table of the leading map, where it is an evidence map."""

from __future__ import annotations

from typing import Any

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.regions.ranking import top_groups
from heatlas.pipeline.regions.tables import ALL
from heatlas.reports.analyses.findings import (
    Leaders,
    evidence_differences,
    leaders,
    leading_evidence,
    place_columns,
    ranking,
    sum_error,
    voxels_of,
)
from heatlas.reports.content.relevance.headline import regions_that_differ
from heatlas.reports.figures.gallery import Picture
from heatlas.reports.figures.regions import draw_regions
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import Column, PageTable, numeric, page_table
from heatlas.reports.read.run_files import TABLES
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import count, fixed, listing, p_cell, signed

TOP = 25  # regions of the figure


def evidence_block(material: Material) -> dict[str, Any]:
    """What evidence is, the figure of the leading regions, and the table of all of them."""
    run, name = material.run, material.run.leading_map
    what = f"the predicted {run.task.column}" if run.task.is_number else f"{run.task.explained}"
    missed = sum_error(run, name)
    off = "" if missed is None else f": {missed.in_words}"
    meaning = (
        f"{regions_that_differ(run)} Evidence is what a region adds to the evidence for {what}, compared with controls "
        f"of the training part of the scan's network, in {run.evidence_unit}: the sum of {map_title(name)} over the "
        "region. It is signed, and all regions and the unlabelled rest add up to the evidence of the scan less that of "
        f"its reference, up to the error that group/evidence.tsv has of each scan{off}."
    )
    return {
        "title": f"Evidence, {map_title(name)}", "meaning": meaning.strip(), "figure": _figure(material, name),
        "table": _table(material, name),
    }  # fmt: skip


def _shown(run: RunRecord, name: str) -> tuple[Leaders, str]:
    """The regions of the figure and how they are ranked: by Hedges' g, or by the mean without two classes."""
    found = leading_evidence(run, name, TOP)
    if found.regions:
        return found, f"Hedges' g between {run.positive} and {run.negative}, within test folds"
    means, scans = ranking(run, name, "sum")
    return leaders(run, means, name, "evidence", TOP), f"mean evidence over participants ({scans})"


def _figure(material: Material, name: str) -> Picture | None:
    run = material.run
    found, ranked = _shown(run, name)
    if not found.regions:
        return None
    values = run.region_values
    values = values[values["map"] == name]
    labels = (ALL,) if run.task.is_number else tuple(reversed(run.task.outputs))
    figure, axis = draw_regions(values, "sum", found.regions, labels, f"evidence ({run.evidence_unit})")
    scans, people = values["scan_id"].nunique(), values["participant_id"].nunique()
    title = map_title(name)
    return material.gallery.add(
        figure,
        f"region-evidence_{name}",
        f"{title}, evidence in {count(len(found.regions), 'region')}. First: {listing(found.regions[:5])}.",
        f"{title}: evidence in the {len(found.regions)} leading bilateral groups, ranked by {ranked}. Boxes are "
        "quartiles over scans, whiskers reach 1.5 times their range. "
        f"{count(scans, 'scan')} of {count(people, 'participant')} in all.{' ' * bool(axis)}{axis}{found.sentence}",
    )


def _table(material: Material, name: str) -> PageTable | None:
    """Every region: mean evidence of the classes, their difference with its interval, Hedges' g, corrected p."""
    run = material.run
    tested = evidence_differences(run, name)
    if tested.empty:
        means, scans = ranking(run, name, "sum")
        if means.empty:
            return None
        rows = pd.DataFrame({"group": top_groups(means, len(means))})
        rows["mean"] = rows["group"].map(means)
        columns = [numeric("mean", f"Evidence, {run.evidence_unit}", signed)]
        caption = f"Mean evidence over participants ({scans}), largest first."
    else:
        rows = tested.reset_index()
        columns = [
            numeric("mean_first", f"{run.positive}, logits", signed),
            numeric("mean_second", f"{run.negative}, logits", signed),
            numeric("difference", "Difference, logits", signed), numeric("ci_low", "from", signed),
            numeric("ci_high", "to", signed), numeric("hedges_g", "Hedges' g", fixed),
            numeric("hedges_g_low", "from", fixed), numeric("hedges_g_high", "to", fixed),
            numeric("p_fwe", "Corrected p (family-wise)", p_cell), *place_columns(tested),
        ]  # fmt: skip
        first = tested.iloc[0]
        caption = (
            f"Evidence of {count(int(first['n_first']), 'participant')} of {run.positive} and "
            f"{int(first['n_second'])} of {run.negative}, largest Hedges' g first; "
            f"{100 * run.config.statistics.confidence:g} % intervals. Difference, g and their intervals are within "
            f"test folds. {TABLES['group_comparisons'].tests}"
        )
    rows = rows.assign(
        page=rows["group"].map(material.links.region).astype(object), voxels=rows["group"].map(voxels_of(run))
    )
    return page_table(
        rows,
        (Column("group", "Region", link="page"), *columns, numeric("voxels", "Voxels")),
        f"{map_title(name)}. {caption}",
    )
