"""Where images and maps differ: by region, with a scatter of both, and voxel by voxel.

By region, what differs in the images stands beside what the network used, for the leading map. By voxel, each source
has a sentence, slices, the surface and its clusters.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import nibabel as nib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.regions.maps import load_whole
from heatlas.pipeline.run.config.images import is_mni
from heatlas.pipeline.run.errors import BadInputError
from heatlas.pipeline.statistics.data.values import MEASURES
from heatlas.pipeline.statistics.images.differences import (
    BOTH,
    DIFFERS_ONLY,
    NEITHER,
    UNKNOWN,
    USED_ONLY,
    VERDICTS,
)
from heatlas.reports.content.relevance.maps import spaces
from heatlas.reports.figures.gallery import BLUE, GREY, INK, ORANGE, VERMILION, Picture, new_figure
from heatlas.reports.figures.maps import GroupMap, draw_group_maps
from heatlas.reports.figures.slices import BrainImage, ColourScale
from heatlas.reports.frame.material import Material
from heatlas.reports.frame.tables import PageTable, columns_of, page_table
from heatlas.reports.questions.question import CLEAR, Question, Verdict, first_few, rows_where
from heatlas.reports.questions.views import CI
from heatlas.reports.read.run_files import TABLES
from heatlas.reports.read.run_record import RunRecord
from heatlas.reports.words.numbers import (
    count,
    interval,
    is_missing,
    listing,
    mid_sentence,
    number,
    sentence_case,
    shortened,
)
from heatlas.reports.words.sentences import Words
from heatlas.reports.words.wording import covariates_in_words, worded

WORDS = Words(__file__)

NAME = "image_differences"
NAMED = 6  # regions named of each kind
_COLUMNS_OF_REGIONS = ("group", "difference", *CI, "hedges_g", "t", "p_fwe", "evidence_g", "evidence_p_fwe", "verdict")
_LEAD_OF_REGIONS = (
    "The scans that the network saw are compared between {positive} and {negative} without any network, region by "
    "region, and beside it stands how the evidence of {map} differs, tested in the same way. What differs need not be "
    "used. Intensity is the mean of the image that the network sees, in standard deviations over the brain; volume "
    "change is the mean log-Jacobian of the registration, the size of the brain left out. People are the units; "
    "family-wise p is over the regions of the image, and of the map, each; maps are compared within test folds. Held "
    "constant: {covariates}. A difference that is not significant is not shown to be absent, and a network may combine "
    "regions of which none alone is significant."
)


def rows_of_leader(run: RunRecord) -> pd.DataFrame:
    """Rows of the leading map; of the first map of the table, where the leading one is not in it."""
    table = run.tables[NAME]
    of_leader = table[table["map"] == run.leading_map]
    return of_leader if len(of_leader) else table[table["map"] == table["map"].iloc[0]]


def regions_in_words(rows: pd.DataFrame) -> str:
    """Which regions differ and are used, differ only, or are used only, clearest first.

    Examples
    --------
    >>> rows = pd.DataFrame({"group": ["Hippocampus", "Amygdala", "Putamen"], "t": [-5.0, 3.0, 1.0],
    ...     "verdict": ["differs and is used", "differs, not used", "neither"], "evidence_t": [4.0, 1.0, 0.0]})
    >>> regions_in_words(rows)
    '1 region differs and is used: hippocampus. 1 region differs without being used clearly: amygdala. No region is used without differing clearly.'
    """  # noqa: E501
    sentences = []
    for kind, verb, other, by in (
        (BOTH, "{} and {} used", "differs and is used", "t"),
        (DIFFERS_ONLY, "{} without being used clearly", "differs without being used clearly", "t"),
        (USED_ONLY, "{1} used without differing clearly", "is used without differing clearly", "evidence_t"),
    ):
        of_kind = rows[rows["verdict"] == kind]
        if of_kind.empty:
            sentences.append(f"No region {other}.")
            continue
        order = of_kind[by].abs().sort_values(ascending=False, kind="stable").index
        names = [mid_sentence(name) for name in of_kind.loc[order, "group"]]
        forms = ("differs", "is") if len(names) == 1 else ("differ", "are")
        sentences.append(f"{count(len(names), 'region')} {verb.format(*forms)}: {first_few(names, NAMED)}.")
    return " ".join(sentences)


def agreement(run: RunRecord, measure: str, name: str) -> str:
    """The rank correlation of images and map, in a sentence; empty where there is none."""
    rows = rows_where(run, "image_agreement", "r", measure=measure, map=name)
    if rows.empty:
        return ""
    row = rows.iloc[0]
    bounds = interval(row["ci_low"], row["ci_high"], 2, run.config.statistics.confidence)
    return WORDS.say("agreement", row=row, bounds=bounds)


def verdict_on_regions(run: RunRecord) -> Verdict | None:
    """The answer of the section, of the first measure of the images."""
    if not run.has(NAME):  # a table without rows is not kept
        return None
    rows = rows_of_leader(run)
    measure, name = rows["measure"].iloc[0], rows["map"].iloc[0]
    of_measure = rows[rows["measure"] == measure]
    what = f"{worded(measure).capitalize()} of the images; {map_title(name)}."
    return Verdict(regions_in_words(of_measure), f"{what} {agreement(run, measure, name)}")


def build_regions(material: Material) -> Mapping[str, Any]:
    """A block per measure: the sentence, the picture of both, and the table."""
    run = material.run
    rows = rows_of_leader(run)
    name = rows["map"].iloc[0]
    held = rows["covariates"].dropna()
    lead = _LEAD_OF_REGIONS.format(
        positive=run.positive, negative=run.negative, map=map_title(name),
        covariates=covariates_in_words(held.iloc[0]) if len(held) else "nothing",
    )  # fmt: skip
    blocks = []
    for measure, of_measure in rows.groupby("measure", sort=False):
        text = f"{regions_in_words(of_measure)} {agreement(run, str(measure), name)}"
        blocks.append({
            "title": worded(measure).capitalize(), "said": text, "figure": _figure_of_regions(material, of_measure),
            "table": _table_of_regions(material, of_measure),
        })  # fmt: skip
    return {"lead": lead, "blocks": blocks}


def _figure_of_regions(material: Material, rows: pd.DataFrame) -> Picture | None:
    known = rows[rows["hedges_g"].notna() & rows["evidence_g"].notna()]
    if known.empty:
        return None
    run, measure, title = material.run, worded(known["measure"].iloc[0]), map_title(known["map"].iloc[0])
    counts = [f"{number((known['verdict'] == kind).sum())} {kind}" for kind in VERDICTS[:4]]
    people = (
        f"{number(known['n_positive'].iloc[0])} {run.positive}, {number(known['n_negative'].iloc[0])} {run.negative}"
    )
    return material.gallery.add(
        draw_differences(known, f"{measure} of the images: Hedges' g", f"{title}: Hedges' g of the evidence"
                         if known["map"].iloc[0] in run.evidence_maps else f"{title}: Hedges' g"),
        f"image_differences_{known['measure'].iloc[0]}",
        WORDS.say("regions_alt", regions=len(known), counts=counts),
        WORDS.say("regions_caption", measure=measure, run=run, title=title, people=people, CLEAR=CLEAR, counts=counts),
    )  # fmt: skip


def _table_of_regions(material: Material, rows: pd.DataFrame) -> PageTable:
    run = material.run
    least = np.fmin(rows["p_fwe"], rows["evidence_p_fwe"])
    shown = rows.assign(least=least, size=-rows["hedges_g"].abs()).sort_values(["least", "size"], kind="stable")
    shown = shown.assign(group_page=shown["group"].map(material.links.region).astype(object))
    titles = {"evidence_g": "Map: Hedges' g", "evidence_p_fwe": "Map: corrected p (family-wise)"}
    file = TABLES[NAME].path(run.layout).relative_to(run.layout.root).as_posix()
    caption = WORDS.say(
        "regions_table",
        measure=worded(rows["measure"].iloc[0]),
        name=rows["map"].iloc[0],
        tests=TABLES[NAME].tests,
        file=file,
    )
    return page_table(shown, columns_of(run, NAME, _COLUMNS_OF_REGIONS, **titles), caption, len(shown))


LOOKS = {
    BOTH: (VERMILION, "o"),
    DIFFERS_ONLY: (BLUE, "s"),
    USED_ONLY: (ORANGE, "^"),
    NEITHER: (GREY, "."),
    UNKNOWN: (GREY, "x"),
}
MOST_NAMES = 24
OTHERS_NAMED = 4
_LINE = 0.045  # height of a line of names, as a share of the axis
_LONGEST = 30


def draw_differences(rows: pd.DataFrame, across: str, up: str) -> Figure:
    """One point per region at ``hedges_g`` and ``evidence_g``, coloured by ``verdict``, with names."""
    figure = new_figure(7.2, 5.2)
    ax = figure.subplots()
    ax.axhline(0, color=GREY, lw=0.8)
    ax.axvline(0, color=GREY, lw=0.8)
    for kind, (colour, marker) in LOOKS.items():
        of_kind = rows[rows["verdict"] == kind]
        if len(of_kind):
            ax.scatter(of_kind["hedges_g"], of_kind["evidence_g"], s=34, color=colour, marker=marker, label=kind)
    x, y = rows["hedges_g"].to_numpy(float), rows["evidence_g"].to_numpy(float)
    ax.set_xlim(*_with_room(x, 0.36))
    ax.set_ylim(*_with_room(y, 0.08))
    for place, height in _heights(rows, *ax.get_ylim()).items():
        right = x[place] >= 0
        ax.annotate(
            shortened(str(rows["group"].iloc[place]), _LONGEST), (x[place], y[place]),
            xytext=(x[place] + (0.02 if right else -0.02) * np.ptp(ax.get_xlim()), height), fontsize=7.5, color=INK,
            ha="left" if right else "right", va="center",
            arrowprops={"arrowstyle": "-", "color": GREY, "lw": 0.5, "shrinkA": 0, "shrinkB": 2},
        )  # fmt: skip
    ax.set_xlabel(across)
    ax.set_ylabel(up)
    figure.legend(loc="outside lower center", ncols=4)
    return figure


def named(rows: pd.DataFrame) -> list[int]:
    """Places of the regions that get a name: those with a finding, largest first, and the outermost of the others."""
    reach = np.hypot(rows["hedges_g"].to_numpy(float), rows["evidence_g"].to_numpy(float))
    found = ~rows["verdict"].isin([NEITHER, UNKNOWN]).to_numpy(bool)
    order = np.argsort(-reach, kind="stable")
    chosen = [int(k) for k in order if found[k]][:MOST_NAMES]
    others = [int(k) for k in order if not found[k]][: min(OTHERS_NAMED, MOST_NAMES - len(chosen))]
    return chosen + others


def _heights(rows: pd.DataFrame, low: float, high: float) -> dict[int, float]:
    """Height of each name: that of its point, moved so that names of one side do not overlap."""
    found: dict[int, float] = {}
    x, y = rows["hedges_g"].to_numpy(float), rows["evidence_g"].to_numpy(float)
    for side in (x >= 0, x < 0):
        members = sorted((k for k in named(rows) if side[k]), key=lambda k: y[k])
        wanted = np.array([y[k] for k in members])
        step = _LINE * (high - low)
        lowest = low + step / 2
        for place in range(len(members)):
            wanted[place] = max(wanted[place], lowest)
            lowest = wanted[place] + step
        above = high - step / 2
        for place in reversed(range(len(members))):
            wanted[place] = min(wanted[place], above)
            above = wanted[place] - step
        found |= dict(zip(members, wanted.tolist(), strict=True))
    return found


def _with_room(values: np.ndarray, share: float) -> tuple[float, float]:
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    room = share * max(high - low, 0.1)
    return low - room, high + room


IMAGE_DIFFERENCES = Question.read(WORDS, "image-differences", draw=build_regions, answer=verdict_on_regions)


TESTS, CLUSTERS = "voxel_tests", "voxel_clusters"
_NAMED = 4
_LEAD_OF_VOXELS = (
    "People of {positive} against {negative} in every voxel, in the images that the "
    "network saw, without any network, and in the map. Values were smoothed to {fwhm} mm and averaged over the scans "
    "of a person; people are permuted ({permutations} times; for the map within test folds), and p is family-wise over "
    "all voxels, by threshold-free cluster enhancement (TFCE), and by the largest |t| beside it. A cluster says that "
    "there is a difference somewhere in it, not in each of its voxels."
)
_COLUMNS_OF_VOXELS = ("cluster", "group", "x_mm", "y_mm", "z_mm", "t", "p_fwe", "p_fwe_tfce", "volume_mm3", "regions")


def source_in_words(source: object) -> str:
    """What was tested, for readers."""
    return f"{worded(source)} of the images" if source in MEASURES else f"the map of {map_title(str(source))}"


def voxels_in_words(run: RunRecord, row: Mapping[Hashable, Any]) -> str:
    """How much differs in one source, and where."""
    what = source_in_words(row["source"])
    if is_missing(row["t"]):
        return f"{what[0].upper()}{what[1:]}: not tested. {row['note']}"
    n = int(row["n_higher"] + row["n_lower"])
    if not n:
        return WORDS.say("voxels_in_words", first=what[0].upper(), rest=what[1:], CLEAR=CLEAR, row=row)
    clusters = rows_where(run, CLUSTERS, source=row["source"])
    if len(clusters):
        clusters = clusters.loc[clusters["t"].abs().sort_values(ascending=False, kind="stable").index]
    names = [mid_sentence(group) for group in dict.fromkeys(clusters["group"] if len(clusters) else ())][:_NAMED]
    where = f", first at {listing(names)}" if names else ""
    sides = f"{number(row['n_lower'])} lower and {number(row['n_higher'])} higher in {run.positive}"
    return f"{what[0].upper()}{what[1:]}: {number(n)} of {count(int(row['n_voxels']), 'voxel')} ({sides}){where}."


def verdict_on_voxels(run: RunRecord) -> Verdict | None:
    """The answer of the section."""
    if not run.has(TESTS):
        return None
    said = [voxels_in_words(run, row) for row in run.tables[TESTS].to_dict("records")]
    return Verdict(" ".join(said), f"Family-wise p below {CLEAR:g} by TFCE.")


def build_voxels(material: Material) -> Mapping[str, Any]:
    """A block per source."""
    run = material.run
    tests = run.tables[TESTS]
    known = tests[tests["t"].notna()]
    first = tests.iloc[0]
    lead = _LEAD_OF_VOXELS.format(
        positive=run.positive, negative=run.negative, fwhm=number(first["fwhm_mm"]),
        permutations=number(tests["n_permutations"].max()),
    )  # fmt: skip
    blocks = []
    for row in tests.to_dict("records"):
        noted = "" if is_missing(row["t"]) or is_missing(row["note"]) else f" {sentence_case(str(row['note']))}."
        there = not is_missing(row["t"]) and row["n_higher"] + row["n_lower"] > 0
        blocks.append({
            "title": source_in_words(row["source"]), "said": f"{voxels_in_words(run, row)}{noted}",
            "figure": _figure_of_voxels(material, row) if there else None, "of_images": row["source"] in MEASURES,
            "table": _table_of_voxels(material, str(row["source"])),
        })  # fmt: skip
    folder = run.layout.voxel_map("any", "t").parent.relative_to(run.layout.root).as_posix()
    shown = any(block["figure"] for block in blocks)
    return {
        "lead": lead, "blocks": blocks, "folder": folder if len(known) else "", "spaces": spaces(run) if shown else "",
    }  # fmt: skip


def _figure_of_voxels(material: Material, row: Mapping[Hashable, Any]) -> Picture | None:
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
        f"Voxels that differ on slices{', in a glass brain and on the cortical surface' * mni}. "
        + voxels_in_words(run, row),
        WORDS.say("voxels_caption", title=title, CLEAR=CLEAR, people=people, held=held, run=run, row=row),
        "png",
    )


def _table_of_voxels(material: Material, source: str) -> PageTable | None:
    run = material.run
    clusters = rows_where(run, CLUSTERS, source=source)
    if clusters.empty:
        return None
    clusters = clusters.assign(group_page=clusters["group"].map(material.links.region).astype(object))
    file = TABLES[CLUSTERS].path(run.layout).relative_to(run.layout.root).as_posix()
    caption = f"Clusters and further peaks, {source_in_words(source)} ({file}). {TABLES[CLUSTERS].tests}"
    return page_table(clusters, columns_of(run, CLUSTERS, _COLUMNS_OF_VOXELS), caption, 40)


VOXELWISE = Question.read(
    WORDS, "voxelwise", draw=build_voxels, applies=lambda run: run.has(TESTS), answer=verdict_on_voxels
)
