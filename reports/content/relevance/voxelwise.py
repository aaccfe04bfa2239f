"""Where images and the leading map differ voxel by voxel: a sentence, slices, surface and clusters of each source."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import nibabel as nib
import numpy as np
import pandas as pd

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.regions.maps import load_whole
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.run.template_name import is_mni
from heatlas.pipeline.statistics.data.values import MEASURES
from heatlas.reports.content.relevance.maps import spaces
from heatlas.reports.figures.gallery import Picture
from heatlas.reports.figures.maps import GroupMap, draw_group_maps
from heatlas.reports.figures.slices import BrainImage, ColourScale
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.pages import REGIONS
from heatlas.reports.frame.tables import PageTable, columns_of, page_table
from heatlas.reports.questions.question import CLEAR, Question, Verdict
from heatlas.reports.read.run_files import TABLES
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import (
    count,
    fixed,
    is_missing,
    listing,
    mid_sentence,
    number,
    p_value,
    sentence_case,
)
from heatlas.reports.words.wording import covariates_in_words, worded

TESTS, CLUSTERS = "voxel_tests", "voxel_clusters"
_NAMED = 4
_LEAD = (
    "What the field looks at first: people of {positive} against {negative} in every voxel, in the images that the "
    "network saw, without any network, and in the map. Values were smoothed to {fwhm} mm and averaged over the scans "
    "of a person; people are permuted ({permutations} times; for the map within test folds), and p is family-wise over "
    "all voxels, by threshold-free cluster enhancement (TFCE), and by the largest |t| beside it. A cluster says that "
    "there is a difference somewhere in it, not in each of its voxels."
)
_COLUMNS = ("cluster", "group", "x_mm", "y_mm", "z_mm", "t", "p_fwe", "p_fwe_tfce", "volume_mm3", "regions")


def source_in_words(source: object) -> str:
    """What was tested, for readers."""
    return f"{worded(source)} of the images" if source in MEASURES else f"the map of {map_title(str(source))}"


def sentence(run: RunRecord, row: Mapping[Hashable, Any]) -> str:
    """How much differs in one source, and where."""
    what = source_in_words(row["source"])
    if is_missing(row["t"]):
        return f"{what[0].upper()}{what[1:]}: not tested. {row['note']}"
    n = int(row["n_higher"] + row["n_lower"])
    if not n:
        return (
            f"{what[0].upper()}{what[1:]}: no voxel with a corrected p below {CLEAR:g} (smallest "
            f"{p_value(row['p_fwe_tfce'])})."
        )
    table = run.tables[CLUSTERS] if run.has(CLUSTERS) else pd.DataFrame(columns=["source", "group", "t"])
    own = table[table["source"] == row["source"]]
    order = own["t"].abs().sort_values(ascending=False, kind="stable").index
    names = [mid_sentence(one) for one in dict.fromkeys(own.loc[order, "group"])][:_NAMED]
    where = f", first at {listing(names)}" if names else ""
    sides = f"{number(row['n_lower'])} lower and {number(row['n_higher'])} higher in {run.positive}"
    return f"{what[0].upper()}{what[1:]}: {number(n)} of {count(int(row['n_voxels']), 'voxel')} ({sides}){where}."


def verdict(run: RunRecord) -> Verdict | None:
    """The answer of the section."""
    if not run.has(TESTS) or run.tables[TESTS].empty:
        return None
    said = [sentence(run, row) for row in run.tables[TESTS].to_dict("records")]
    return Verdict(" ".join(said), f"Family-wise p below {CLEAR:g} by TFCE.")


def build(material: Material) -> Mapping[str, Any]:
    """A block per source."""
    run = material.run
    tests = run.tables[TESTS]
    known = tests[tests["t"].notna()]
    first = tests.iloc[0]
    lead = _LEAD.format(
        positive=run.positive, negative=run.negative, fwhm=number(first["fwhm_mm"]),
        permutations=number(tests["n_permutations"].max()),
    )  # fmt: skip
    blocks = []
    for row in tests.to_dict("records"):
        noted = "" if is_missing(row["t"]) or is_missing(row["note"]) else f" {sentence_case(str(row['note']))}."
        there = not is_missing(row["t"]) and row["n_higher"] + row["n_lower"] > 0
        blocks.append({
            "title": source_in_words(row["source"]), "said": f"{sentence(run, row)}{noted}",
            "figure": _figure(material, row) if there else None, "table": _table(material, str(row["source"])),
        })  # fmt: skip
    folder = run.layout.voxel_map("any", "t").parent.relative_to(run.layout.root).as_posix()
    return {"lead": lead, "blocks": blocks, "folder": folder if len(known) else ""}


def _figure(material: Material, row: Mapping[Hashable, Any]) -> Picture | None:
    run, source = material.run, str(row["source"])
    path = run.layout.voxel_map(source, "tThresholded")
    try:
        image: Any = nib.as_closest_canonical(load_whole(path))  # type: ignore[no-untyped-call]
    except (BadInputError, OSError) as error:
        file = path.relative_to(run.layout.root).as_posix()
        material.faults.add(f"{file}: cannot be shown ({type(error).__name__}). Repeat the command that made this run.")
        return None
    values = np.asarray(image.dataobj, np.float32)
    found = np.abs(values[values != 0])
    if not found.size:
        return None
    scale = ColourScale(float(found.min()) * 0.999, max(float(found.max()), float(found.min()) * 1.01), True)
    people = f"{number(row['n_positive'])} {run.positive}, {number(row['n_negative'])} {run.negative}"
    title = f"{source_in_words(source)}, {run.positive} less {run.negative}"
    shown = GroupMap(f"{title[0].upper()}{title[1:]}", BrainImage(values, np.asarray(image.affine)), scale, "t")
    held = "" if is_missing(row["covariates"]) else f", held constant: {covariates_in_words(row['covariates'])}"
    mni = is_mni(run.layout.space)
    return material.gallery.add(
        draw_group_maps([(shown, ("slices", "glass", "surface") if mni else ("slices",))], material.backdrop),
        f"voxelwise_{source}",
        f"Voxels that differ on slices{', in a glass brain and on the cortical surface' * mni}. {sentence(run, row)}",
        f"t of {title}, where the family-wise p by TFCE is below {CLEAR:g}; people: {people}{held}. Warm colours: "
        f"higher in {run.positive}; by the largest |t| alone, |t| must exceed {fixed(row['critical_t'])}. "
        + spaces(run),
        "png",
    )


def _table(material: Material, source: str) -> PageTable | None:
    run = material.run
    if not run.has(CLUSTERS):
        return None
    table = run.tables[CLUSTERS]
    own = table[table["source"] == source]
    if own.empty:
        return None
    own = own.assign(group_page=own["group"].map(material.links.region).astype(object))
    file = TABLES[CLUSTERS].path(run.layout).relative_to(run.layout.root).as_posix()
    caption = f"Clusters and further peaks, {source_in_words(source)} ({file}). {TABLES[CLUSTERS].tests}"
    return page_table(own, columns_of(run, CLUSTERS, _COLUMNS), caption, 40)


VOXELWISE = Question(
    "voxelwise", "Where do images and maps differ, voxel by voxel?", "Voxel by voxel", REGIONS, draw=build,
    requires=(TESTS,), applies=lambda run: run.has(TESTS), answer=verdict,
)  # fmt: skip
