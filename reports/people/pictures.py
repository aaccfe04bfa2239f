"""Pictures of single scans on the page of a participant, drawn by the run and only read here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import pandas as pd

from pipeline.run.layout.map_names import map_title
from reports.cautions.findings import small_regions
from reports.figures.gallery import Picture
from reports.page.material import Material
from reports.people.portrait import CUTS, OUTLINED
from reports.words.numbers import count, is_missing, listing, shortened

FLICKER = " Point at the picture or tap it, and it alternates with the template."


def portraits_of(material: Material, visits: pd.DataFrame) -> list[Picture]:
    """The scans' relevance on their own brains; empty where the run keeps no maps of single scans."""
    run = material.run
    if not run.keeps_single_maps:  # a picture of an earlier setting may still lie there
        return []
    pictures, small = [], small_regions(run) if run.has("relevance") else {}
    for row in visits.to_dict("records"):
        path = run.files_of(row).portrait
        content = material.picture(path)
        if content is None:
            continue
        groups = run.densest_groups.get(str(row["scan_id"]), ())[:OUTLINED]
        name = _name_of(row)
        titles = listing([map_title(map_name) for map_name in run.main_maps])
        outlined = "; ".join(
            f"{place} {shortened(group)}{_size(small, group)}" for place, group in enumerate(groups, start=1)
        )
        pictures.append(
            Picture(
                "", material.address(path), f"{len(CUTS)} slices of {name} with relevance: {titles}.",
                f"{name}: {titles} (rows) on this person's own brain in template space. Colours run from the 90th to "
                f"the 99.5th percentile of the scan's own map, purple to yellow above 0 and blue to white "
                f"below; not smoothed. Outlined, the regions with the highest density "
                f"(relevance per voxel; the text above names the largest sums) of {map_title(run.main_maps[0])}: "
                f"{outlined}. Left is left.", *_size_of(content),
            )
        )  # fmt: skip
    return pictures


def _name_of(row: Mapping[Any, Any]) -> str:
    """Participant and session, as a reader sees them."""
    return f"{shortened(row['participant_id'])}{'' if is_missing(row['session_id']) else ' ' + str(row['session_id'])}"


def _size(small: Mapping[str, int], group: str) -> str:
    """How few voxels a small region has, to stand after its name."""
    return f" (only {count(small[group], 'voxel')})" if group in small else ""


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
