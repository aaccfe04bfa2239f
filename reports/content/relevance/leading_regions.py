"""The leading regions in numbers: their size, how much of the map they hold, where they stand by each measure."""

from __future__ import annotations

import pandas as pd

from pipeline.regions.ranking import top_groups
from pipeline.run.layout.map_names import map_title
from reports.cautions.headline import leaders, map_shares, ranking, small_regions, voxels_of, weak_in_controls
from reports.page.material import Material
from reports.page.tables import Column, PageTable, numeric, page_table, remark
from reports.read.run_record import RunRecord
from reports.words.numbers import count, fixed, percent

LISTED = 10


def leading_table(material: Material) -> PageTable:
    """The leading regions by density of each leading map: their size, share of the map and place by each measure.

    Small regions that would be among them stand there too, marked.
    """
    run = material.run
    frames = [rows for name in run.main_maps if (rows := _leading_rows(run, name)) is not None]
    linked = pd.concat(frames) if frames else pd.DataFrame(columns=["group"])
    linked = linked.assign(page=linked["group"].map(material.links.region).astype(object))
    sizes = {label: run.group_sizes.get(label, (0, 0)) for label in run.labels}
    said = " and ".join(f"{count(scans, 'scan')} of {count(people, 'participant')} of {label}"
                        for label, (scans, people) in sizes.items())  # fmt: skip
    caption = (
        f"The first {LISTED} regions by density in {run.positive} that may lead, of each map, and among "
        f"them those too small to lead; means over participants, {said}. "
        "Share of the map: sum divided by the absolute sums of all regions. Gain is the mean over true positives, of "
        "as many as have one."
    )
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
    rows["share_positive"], rows["share_negative"] = (map_shares(run, name, label) for label in run.labels)
    rows["density"], rows["density_place"] = density, density.rank(ascending=False)
    gain, _ = ranking(run, name, "gain")
    rows["gain"], rows["gain_place"] = gain, gain.rank(ascending=False)
    values = run.region_values
    hits = values[(values["map"] == name) & (values["outcome"] == "TP") & values["gain"].notna()]
    rows["n_gain"] = hits.groupby("group")["participant_id"].nunique()
    rows["n_gain"] = rows["n_gain"].fillna(0)
    small = small_regions(run)
    weak = weak_in_controls(run, name)
    remarks = (("small: ranked, not in figures", small), ("gain: next to nothing to divide by", weak))
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
        numeric("density", f"Density, {run.positive}"),
        numeric("density_place", "Place by density"),
        numeric("gain", "Gain", fixed),
        numeric("n_gain", "Gain, n", hint="participants with a known gain"),
        numeric("gain_place", "Place by gain"),
        Column("note", "Note", remark),
    )
