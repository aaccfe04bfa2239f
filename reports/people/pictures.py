"""Pictures of single scans on the page of a participant, drawn by the run and only read here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.statistics.normative.controls import ControlGroup
from heatlas.reports.analyses.findings import small_regions
from heatlas.reports.figures.gallery import Picture, shown_in
from heatlas.reports.figures.maps import CUTS, FAINT, MAPS, REGIONS
from heatlas.reports.figures.slices import SMOOTHED_MM
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.overviews import FLICKER
from heatlas.reports.frame.tables import Column, PageTable, numeric, page_table
from heatlas.reports.people.regions import measure_of, regions_of_scans
from heatlas.reports.read.people import ParticipantRecords
from heatlas.reports.words.numbers import count, fixed, is_missing, listing, mid_sentence, percent, shortened

_SCALE = (
    "Colours run from the 90th to the 99.5th percentile of the scan's own map, purple to yellow above 0 and blue to "
    "white below"
)


@dataclass(frozen=True)
class Portrait:
    """One scan's maps on its own brain."""

    smoothed: Picture
    unsmoothed: Picture | None
    regions: PageTable | None  # those that are numbered, with the person's place among controls


def portraits_of(material: Material, people: ParticipantRecords, visits: pd.DataFrame) -> list[Portrait]:
    """The scans' relevance on their own brains; empty where the run keeps no maps of single scans."""
    if not material.run.keeps_single_maps:  # a picture of an earlier setting may still lie there
        return []
    found = [_portrait(material, people, row) for row in visits.to_dict("records")]
    return [one for one in found if one is not None]


def _portrait(material: Material, people: ParticipantRecords, row: Mapping[Any, Any]) -> Portrait | None:
    run, files, name = material.run, material.run.files_of(row), _name_of(row)
    content = material.picture(files.portrait)
    if content is None:
        return None
    maps, groups = shown_in(content, MAPS) or run.main_maps, shown_in(content, REGIONS)
    titles, leading = listing([map_title(one) for one in maps]), mid_sentence(map_title(maps[0]))
    numbered = "; ".join(f"{place} {shortened(group)}" for place, group in enumerate(groups, start=1))
    what = "evidence" if maps[0] in run.evidence_maps else "density"
    why = "those named above" if run.leads_with_evidence else "those with the highest density"
    of_page = regions_of_scans(run).get(str(row["scan_id"]))
    outdated = maps[0] != run.leading_map or of_page is None or groups != of_page.named
    again = " This picture is older than the numbers of this page; the command that made this run draws it again."
    smoothed = Picture(
        "", material.address(files.portrait), f"{len(CUTS)} slices of {name} with relevance: {titles}.",
        f"{name}: {titles} on this person's own brain in template space, smoothed with a Gaussian of "
        f"{SMOOTHED_MM:g} mm (full width at half maximum) for this picture only. {_SCALE}. The second row has every "
        f"region in the colour of its {what} by {leading}; less than {percent(FAINT, 0)} of the largest is not drawn. "
        f"Outlined, {why}: {numbered}. Left is left.{again if outdated else ''}", *_size_of(content),
    )  # fmt: skip
    raw = material.picture(files.unsmoothed_portrait)
    unsmoothed = None if raw is None else Picture(
        "", material.address(files.unsmoothed_portrait), f"{len(CUTS)} slices of {name}, not smoothed: {titles}.",
        f"{name}: the same maps as they are. {_SCALE}.", *_size_of(raw),
    )  # fmt: skip
    table = _numbered(material, people, row, groups) if groups and not outdated else None
    return Portrait(smoothed, unsmoothed, table)


def _numbered(
    material: Material, people: ParticipantRecords, row: Mapping[Any, Any], groups: tuple[str, ...]
) -> PageTable | None:
    """The numbered regions of a scan, with its place among controls."""
    run, name = material.run, material.run.leading_map
    wide, controls = people.values(name), people.controls(name, str(row["participant_id"]))
    if row["scan_id"] not in wide.index:
        return None
    scan, measure, small = wide.loc[row["scan_id"]].reindex(list(groups)), measure_of(run, name), small_regions(run)
    table = pd.DataFrame({"place": range(1, len(groups) + 1), "group": groups, "value": scan.to_numpy()})
    table["page"] = pd.Series([material.links.region(group) for group in groups], dtype=object)
    table["size"] = pd.Series([f"only {count(small[one], 'voxel')}" if one in small else None for one in groups])
    columns = [Column("place", "In the picture"), Column("group", "Region", link="page"),
               numeric("value", measure.title, measure.form)]  # fmt: skip
    caption = f"The numbered regions of {_name_of(row)}"
    if controls is not None:
        table["mean"] = controls.mean.reindex(list(groups)).to_numpy()
        table["score"] = controls.scores(scan).reindex(list(groups)).to_numpy()
        table["below"] = _below(controls, scan)
        columns += [numeric("mean", f"Mean of {run.negative}", measure.form),
                    numeric("score", "Standard deviations from it", fixed),
                    Column("below", "Controls below")]  # fmt: skip
        caption += f", beside {controls.who} (this person is not among them)"
    if table["size"].notna().any():
        columns.append(Column("size", "Small region"))
    return page_table(table, tuple(columns), f"{caption}.")


def _name_of(row: Mapping[Any, Any]) -> str:
    """Participant and session, as a reader sees them."""
    return f"{shortened(row['participant_id'])}{'' if is_missing(row['session_id']) else ' ' + str(row['session_id'])}"


def _below(controls: ControlGroup, scan: pd.Series) -> list[str]:
    """How many controls have less than a scan, by region of the scan."""
    known = controls.values.reindex(columns=scan.index).notna().sum()
    below = controls.values.reindex(columns=scan.index).lt(scan, axis=1).sum()
    return [f"{below[group]} of {known[group]}" for group in scan.index]


def viewers_of(material: Material, visits: pd.DataFrame) -> list[tuple[str, str]]:
    """Name of each scan that has a viewer page, and its address from the page of the participant."""
    if not material.run.keeps_single_maps:
        return []
    files = [material.run.files_of(row) for row in visits.to_dict("records")]
    return [(f.name, quote(f.viewer.relative_to(f.root).as_posix())) for f in files if f.viewer.is_file()]


def overview_of(material: Material, row: Mapping[str, Any]) -> Picture | None:
    """The registered scan under the contours of the template."""
    path = material.run.files_of(row).overview
    content = material.picture(path)
    if content is None:
        return None
    name = _name_of(row)
    return Picture(
        "", material.address(path), f"Nine slices of {name} under the contours of the template.",
        f"{name}: orange, the template's brain mask; blue, its white matter. Where the scan's own edges follow the "
        f"lines, the registration is good. L and R are the person's sides.{FLICKER}", *_size_of(content),
        material.template_overview,
    )  # fmt: skip


def _size_of(content: bytes) -> tuple[int, bool, int]:
    """Width, that the page need not be dark around it, and height, from the IHDR chunk, which comes first."""
    return int.from_bytes(content[16:20], "big"), False, int.from_bytes(content[20:24], "big")
