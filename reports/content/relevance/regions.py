"""The leading regions in figures and tables: sum, density, gain (figures 3 to 5 of the founding study), and evidence.

Evidence is in logits, of the leading map where it is an evidence map. Where networks see several kinds of images, a
table says how much relevance lies in each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.regions.packed_atlas import RELEVANCE_CHANNELS_TABLE, shares_of_kinds
from heatlas.pipeline.regions.ranking import METRICS, top_groups
from heatlas.reports.content.run.summary import regions_that_differ
from heatlas.reports.figures.gallery import Picture
from heatlas.reports.figures.regions import draw_regions
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import Column, PageTable, numeric, page_table, worded_columns
from heatlas.reports.questions.comparisons import REGION_MEANS
from heatlas.reports.questions.findings import (
    Leaders,
    evidence_differences,
    leaders,
    leading_evidence,
    map_shares,
    place_columns,
    ranking,
    rule,
    small_regions,
    sum_error,
    voxels_of,
    weak_in_controls,
)
from heatlas.reports.questions.question import ANY_TASK, CLASSES, Caution, Check, Question, rows_where
from heatlas.reports.questions.trust import bench_sentence
from heatlas.reports.read.run_files import TABLES
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.viewer.explorer import region_explorer
from heatlas.reports.words.numbers import LONGEST_IN_TITLE, count, listing, number, shortened, signed
from heatlas.reports.words.sentences import Words

WORDS = Words(__file__)

TOP = 25
FOUNDING_NUMBER = {"sum": 3, "density": 4, "gain": 5}

MEANING = {
    "evidence": "Evidence: what the region adds to the evidence for {positive} compared with controls, in logits: the "
    "sum of an evidence map, signed.",
    "share": "Share of the map: sum divided by the absolute sums of all regions. It does not depend on the strength of "
    "the whole map, so people and classes can be compared.",
    "sum": "Sum: all relevance inside a region. Large regions have large sums.",
    "density": "Density: sum divided by the number of voxels. It shows where relevance is concentrated.",
    "gain": "Gain: sum divided by the mean sum of {negative} of the same test fold. 1 means as much "
    "as in {negative}. Maps differ in strength, so compare the gains of regions with each other.",
}


def build(material: Material) -> Mapping[str, Any]:
    """Evidence of regions where an evidence map leads; then sum, density and gain of the maps of the founding study."""
    run = material.run
    founding = [name for name in run.main_maps if name not in run.evidence_maps]
    blocks = []
    for metric in METRICS if run.task.classes else ("sum", "density"):
        pictures, notes = [], []
        for name in founding:
            picture = _figure(material, name, metric)
            if picture is None:
                notes.append(f"{map_title(name)}: no region has a known {metric}.")
            else:
                pictures.append(picture)
        meaning = MEANING[metric].format(positive=run.positive, negative=run.negative)
        blocks.append({"metric": metric.capitalize(), "meaning": meaning, "figures": pictures, "notes": notes})
    titles = [map_title(name) for name in founding]
    undefined = "Gain compares with a class and is not defined where a number is predicted." * (not run.task.classes)
    lrp = next((name for name in founding if name in run.lrp_names), None)
    return {
        "evidence": evidence_block(material) if run.leads_with_evidence else None,
        "bench": bench_sentence(run, lrp) if lrp is not None else "",
        "blocks": blocks if founding else [], "maps": listing(titles), "rule": rule(run),
        "table": leading_table(material, founding) if founding else None,
        "whole": [whole_table(material, name) for name in founding if run.leads_with_evidence],
        "undefined": undefined * bool(founding), "kinds": kinds_table(material),
    }  # fmt: skip


def _figure(material: Material, map_name: str, metric: str) -> Picture | None:
    run = material.run
    means, ranked_in = ranking(run, map_name, metric)
    if means.empty:
        return None
    found = leaders(run, means, map_name, metric, TOP)
    file = f"bohle2019-0{FOUNDING_NUMBER[metric]}_region-{metric}_{map_name}"
    quantity, ranked = axis_title(map_name, metric, run), f"the mean over participants ({ranked_in})"
    return _boxes(material, map_name, (metric, metric), quantity, found, ranked, file, "Highest")


def _boxes(
    material: Material, name: str, metric: tuple[str, str], quantity: str, found: Leaders, ranked: str, file: str,
    first: str,
) -> Picture:  # fmt: skip
    """Boxes of the leading regions over scans; `metric`: its column and its name, `first`: what the first ones are."""
    run, title, regions = material.run, map_title(name), found.regions
    values = run.region_values
    values = values[values["map"] == name]
    labels = run.task.groups[::-1]
    figure, axis = draw_regions(values, metric[0], regions, labels, quantity)
    scans, people = values["scan_id"].nunique(), values["participant_id"].nunique()
    return material.gallery.add(
        figure, file, f"{title}, {metric[1]} in {count(len(regions), 'region')}. {first}: {listing(regions[:5])}.",
        WORDS.say(
            "boxes_caption", title=title, quantity=metric[1], regions=len(regions), ranked=ranked, scans=scans,
            people=people, axis=f" {axis}" if axis else "", found=found,
        ),
    )  # fmt: skip


def axis_title(map_name: str, metric: str, run: RunRecord) -> str:
    """Name of a metric with its unit."""
    quantity = run.map_unit(map_name)
    return {
        "evidence": quantity,
        "share": f"share of {quantity}",
        "sum": f"{quantity} sum",
        "density": f"{quantity} per voxel",
        "gain": f"sum ÷ mean sum of {shortened(run.negative, LONGEST_IN_TITLE)}",
    }[metric]


LISTED = 10


def leading_table(material: Material, names: Sequence[str]) -> PageTable:
    """The leading regions of each map by density; small regions that would be among them are marked."""
    run = material.run
    frames = [rows for name in names if (rows := _leading_rows(run, name)) is not None]
    linked = pd.concat(frames) if frames else pd.DataFrame(columns=["group"])
    linked = linked.assign(page=linked["group"].map(material.links.region).astype(object))
    sizes = {label: run.group_sizes[label] for label in run.map_groups if label in run.group_sizes}
    said = " and ".join(
        f"{count(scans, 'scan')} of {count(people, 'participant')} ({label})"
        for label, (scans, people) in sizes.items()
    )
    caption = WORDS.say(
        "leading_caption", LISTED=LISTED, in_class=f" in {run.positive}" * bool(run.task.classes), said=said
    )
    if "share_positive" in linked:
        caption += " Share of the map: sum divided by the absolute sums of all regions."
    if "gain" in linked:
        caption += " Gain is the mean over the true positives that have one."
    return page_table(linked, _leading_columns(run), caption)


def _leading_rows(run: RunRecord, name: str) -> pd.DataFrame | None:
    density, _ = ranking(run, name, "density")
    if density.empty:
        return None
    found = leaders(run, density, name, "density", LISTED)
    groups = [group for group in top_groups(density, len(density)) if group in {*found.regions, *found.passed_over}]
    voxels = voxels_of(run)
    rows = pd.DataFrame({"group": groups}).set_index("group")
    rows["title"], rows["voxels"], rows["voxel_share"] = map_title(name), voxels, voxels / voxels.sum()
    if run.has("group_comparisons"):
        rows["share_positive"], rows["share_negative"] = (map_shares(run, name, label) for label in run.labels)
    rows["density"], rows["density_place"] = density, density.rank(ascending=False)
    gain, _ = ranking(run, name, "gain")
    if len(gain):
        rows["gain"], rows["gain_place"] = gain, gain.rank(ascending=False)
        known = rows_where(run, "region_summary", map=name, scan_group="TP")
        rows["n_gain"] = known.set_index("group")["n_gain"] if len(known) else None
    remarks = (
        ("small: ranked, but not in figures", small_regions(run)),
        (f"gain: almost no relevance in {run.negative}", weak_in_controls(run, name)),
    )
    rows["note"] = ["; ".join(said for said, members in remarks if group in members) or None for group in groups]
    return rows.reset_index()


def whole_table(material: Material, name: str) -> PageTable:
    """Sum, density and gain of every region by one map, as in the founding study."""
    run = material.run
    known = {metric: ranking(run, name, metric) for metric in METRICS}
    rows = pd.DataFrame({metric: means for metric, (means, _) in known.items() if len(means)})
    rows = rows.rename_axis("group").reset_index()
    if "density" in rows:
        rows = rows.sort_values("density", ascending=False, kind="stable", na_position="last")
    rows = rows.assign(page=rows["group"].map(material.links.region).astype(object))
    taken = listing([f"{metric}, {scans}" for metric, (means, scans) in known.items() if len(means)])
    columns = worded_columns(WORDS, "whole_table")
    return page_table(rows, columns, f"{map_title(name)}, all regions; means over participants ({taken}).")


def _leading_columns(run: RunRecord) -> tuple[Column, ...]:
    return (
        *worded_columns(WORDS, "leading_columns", run=run),
        numeric("density", f"Density, {run.positive}" if run.task.classes else "Density"),
        *worded_columns(WORDS, "leading_columns_2"),
    )


def build_table(material: Material) -> Mapping[str, Any]:
    """The explorer; without an atlas at hand, or with more than two classes, the table of means."""
    explorer = region_explorer(material)
    if explorer is None:
        return {"components": [], **REGION_MEANS.build(material)}
    lead = WORDS.say("table_lead", material=material)
    return {"lead": lead, "components": [explorer]}


def evidence_block(material: Material) -> dict[str, Any]:
    """What evidence is, the figure of the leading regions, and the table of all of them."""
    run, name = material.run, material.run.leading_map
    missed = sum_error(run, name)
    off = "" if missed is None else f": {missed.in_words}"
    meaning = WORDS.say("evidence_meaning", regions_that_differ=regions_that_differ(run), run=run, name=name, off=off)
    return {
        "title": f"Evidence, {map_title(name)}", "meaning": meaning.strip(), "figure": _evidence_figure(material, name),
        "table": _evidence_table(material, name),
    }  # fmt: skip


def _shown(run: RunRecord, name: str) -> tuple[Leaders, str]:
    """The regions of the figure and how they are ranked: by Hedges' g, or by the mean without two classes."""
    found = leading_evidence(run, name, TOP)
    if found.regions:
        return found, f"Hedges' g between {run.positive} and {run.negative}, within test folds"
    means, scans = ranking(run, name, "sum")
    return leaders(run, means, name, "evidence", TOP), f"mean evidence over participants ({scans})"


def _evidence_figure(material: Material, name: str) -> Picture | None:
    run = material.run
    found, ranked = _shown(run, name)
    if not found.regions:
        return None
    quantity, file = f"evidence ({run.evidence_unit})", f"region-evidence_{name}"
    return _boxes(material, name, ("sum", "evidence"), quantity, found, ranked, file, "First")


def _evidence_table(material: Material, name: str) -> PageTable | None:
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
        columns = [*worded_columns(WORDS, "evidence_table", run=run), *place_columns(tested)]
        first = tested.iloc[0]
        caption = WORDS.say(
            "evidence_caption", first=first, run=run, level=100 * run.config.statistics.confidence, TABLES=TABLES
        )
    rows = rows.assign(
        page=rows["group"].map(material.links.region).astype(object), voxels=rows["group"].map(voxels_of(run))
    )
    return page_table(
        rows,
        (Column("group", "Region", link="page"), *columns, numeric("voxels", "Voxels")),
        f"{map_title(name)}. {caption}",
    )


def kinds_table(material: Material) -> PageTable | None:
    """The share of each kind of image by map and class; None where networks see one."""
    run = material.run
    if not run.config.cohort.further_suffixes or not RELEVANCE_CHANNELS_TABLE.path(run.layout).is_file():
        return None
    scans = run.region_values.drop_duplicates("scan_id").set_index("scan_id")
    labels = {str(scan): str(label) for scan, label in scans["label"].dropna().items()}
    found = shares_of_kinds(RELEVANCE_CHANNELS_TABLE.read(run.layout), labels)
    found = found.assign(title=found["map"].map(map_title))
    columns = worded_columns(WORDS, "kinds_table")
    return page_table(
        found,
        columns,
        WORDS.say("kinds_caption", RELEVANCE_CHANNELS_TABLE=RELEVANCE_CHANNELS_TABLE),
    )


LARGEST_MISS = 0.01
"""Largest accepted error, as a share of the evidence in the median scan."""
LARGE_SAMPLING, SERIOUS_SAMPLING = 0.05, 0.2
"""The same before the control variate."""


def _sums_of_evidence(run: RunRecord) -> Caution | None:
    """A leading map that does not add up, or whose points alone would not."""
    if not run.leads_with_evidence:
        return None
    name, unit = map_title(run.leading_map), run.evidence_unit
    missed = sum_error(run, run.leading_map)
    if missed is not None and missed.share > LARGEST_MISS:
        return Caution.read(WORDS, "sums-of-evidence", name=name, missed=missed, unit=unit)
    drawn = sum_error(run, run.leading_map, "sampling_error")
    if drawn is None or drawn.share <= LARGE_SAMPLING:
        return None
    return Caution.read(
        WORDS,
        "sampling",
        level="serious" if drawn.share > SERIOUS_SAMPLING else "note",
        name=name,
        drawn=drawn,
        unit=unit,
    )


def _gain(run: RunRecord) -> Caution | None:
    titles = []
    for name in (map_name for map_name in run.main_maps if map_name not in run.evidence_maps):  # which have no gain
        values = run.region_values[run.region_values["map"] == name]
        filled = values[values["density"].notna()]
        unknown = filled.loc[filled["gain"].isna(), "group"].nunique()
        if unknown:
            titles.append(f"{map_title(name)}: {number(unknown)} of {count(values['group'].nunique(), 'region')}")
    if not titles:
        return None
    return Caution.read(WORDS, "gain", run=run, titles=titles)


REGIONS = Question.read(
    WORDS,
    "regions",
    draw=build,
    tasks=ANY_TASK,
    cautions=(
        Check("sums", _sums_of_evidence, ("evidence", "relevance_bilateral")),
        Check("gain", _gain, ("relevance_bilateral", "predictions")),
    ),
)
REGION_TABLE = Question.read(WORDS, "region-table", draw=build_table, tasks=CLASSES)
