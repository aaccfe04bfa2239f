"""The leading regions in numbers: size, share of the map, and place by each measure."""

from __future__ import annotations

import pandas as pd

from pipeline.regions.ranking import top_groups
from pipeline.run.layout.map_names import map_title
from reports.analyses.verdicts import rows_where
from reports.cautions.headline import leaders, map_shares, ranking, small_regions, voxels_of, weak_in_controls
from reports.page.material import Material
from reports.page.tables import Column, PageTable, numeric, page_table, remark
from reports.read.run_record import RunRecord
from reports.words.numbers import count, fixed, percent

LISTED = 10


def leading_table(material: Material) -> PageTable:
    """The leading regions of each leading map by density; small regions that would be among them are marked."""
    run = material.run
    frames = [rows for name in run.main_maps if (rows := _leading_rows(run, name)) is not None]
    linked = pd.concat(frames) if frames else pd.DataFrame(columns=["group"])
    linked = linked.assign(page=linked["group"].map(material.links.region).astype(object))
    sizes = {label: run.group_sizes[label] for label in run.map_groups if label in run.group_sizes}
    said = " and ".join(
        f"{count(scans, 'scan')} of {count(people, 'participant')} ({label})"
        for label, (scans, people) in sizes.items()
    )
    caption = (
        f"The {LISTED} leading regions of each map by density{'' if run.task.is_number else f' in {run.positive}'} "
        f"and the regions among them that are too small to lead; means over participants, {said}."
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


def _leading_columns(run: RunRecord) -> tuple[Column, ...]:
    return (
        Column("title", "Map"),
        Column("group", "Region", link="page"),
        numeric("voxels", "Voxels"),
        numeric("voxel_share", "Share of voxels", lambda x: percent(x, 1)),
        numeric("share_positive", f"Share of the map, {run.positive}", lambda x: percent(x, 1)),
        numeric("share_negative", f"Share of the map, {run.negative}", lambda x: percent(x, 1)),
        numeric("density", "Density" if run.task.is_number else f"Density, {run.positive}"),
        numeric("density_place", "Place by density"),
        numeric("gain", "Gain", fixed),
        numeric("n_gain", "Gain, n", hint="participants with a known gain"),
        numeric("gain_place", "Place by gain"),
        Column("note", "Note", remark),
    )
