"""Mean relevance maps by class and by outcome (figures 1 and 2 of the founding study)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.run.layout.map_names import map_title
from reports.content.relevance.group_maps import block_title, group_in_words, surface_pictures
from reports.figures.gallery import Picture
from reports.figures.maps import MapRow, draw_map_grid, group_rows
from reports.figures.slices import GROUP_PERCENTILES, HIPPOCAMPAL_CUTS, OVERVIEW_CUTS, Cut
from reports.figures.style import OUTCOME_NAMES
from reports.page.material import Material
from reports.read.run_record import OUTCOMES
from reports.viewer.of_run import group_viewer
from reports.words.numbers import listing


def build(material: Material) -> Mapping[str, Any]:
    """Mean maps by class of every method; of the leading ones also by outcome, in axial slices and on the surface."""
    run = material.run
    groups, figures, viewer = [name for name in (*run.map_groups, *OUTCOMES) if name in run.group_sizes], [], None
    if run.keeps_mean_maps and material.group_views:
        made = [_by_class(material), *_overviews(material), *surface_pictures(material), _by_outcome(material)]
        figures, viewer = [picture for picture in made if picture is not None], group_viewer(material)
    asked = f"raises the predicted {run.task.column}" if run.task.is_number else f"speaks for {run.task.explained}"
    return {
        "question": f"Each map answers the same question for every scan: what in this image {asked}?",
        "figures": figures,
        "components": [] if viewer is None else [viewer],
        "empty": listing([OUTCOME_NAMES.get(name, name) for name in groups if not run.group_sizes[name][0]]),
        "missing": material.missing_maps(groups, run.map_names),
        "kept": run.config.attribution.keep_maps,
    }


def _grid(
    material: Material, file: str, groups: Sequence[str], names: Sequence[str], cuts: Sequence[Cut], caption: str
) -> Picture | None:
    """A figure of mean maps: a row per method, a block of slices per group; None where there is no map."""
    run, first, methods = material.run, material.run.map_groups[0], listing([map_title(name) for name in names])
    rows = group_rows(material.group_views, groups, names, first, GROUP_PERCENTILES, run.map_unit)
    if not rows:
        return None
    titles = [block_title(material, group, short=len(groups) > 2) for group in groups]
    against = f"lowers {run.task.column}" if run.task.is_number else f"speaks against {run.task.explained}"
    caption += (
        f" Colours run from the 50th to the 99.5th percentile of the absolute mean map of {group_in_words(run, first)} "
        "by the same method, inside the brain; weaker relevance is not drawn. Blue, where there is any, is relevance "
        f"that {against}. Slices at MNI x, y, z in mm; left is left."
    )
    missing = material.missing_maps(groups, names)
    caption += f" {missing}" if missing else ""
    lost = [name for name in names if material.expects_map(first) and not material.has_map(first, name)]
    if lost:
        caption += (
            f" The {first} map is missing for {listing([map_title(name) for name in lost])}: colours there are set on "
            "the first map of the row."
        )
    figure = draw_map_grid(rows, titles, cuts, material.backdrop, material.gallery.density)
    return material.gallery.add(
        figure, file, f"Brain slices with mean maps, {listing(titles)}, one row for each of {methods}.", caption, "png"
    )


def _by_class(material: Material) -> Picture | None:
    run = material.run
    caption = f"Mean maps of {listing([group_in_words(run, group) for group in run.map_groups])}, for each method."
    return _grid(
        material, "bohle2019-01_mean-maps_by-class", run.map_groups, run.ordered_maps, HIPPOCAMPAL_CUTS, caption
    )


def _by_outcome(material: Material) -> Picture | None:
    groups = [group for group in OUTCOMES if material.expects_map(group)]
    caption = (
        "Mean maps by outcome of the classification: true positives (TP), false positives (FP), true negatives (TN) "
        "and false negatives (FN)."
    )
    file, names = "bohle2019-02_mean-maps_by-outcome", material.run.main_maps
    return _grid(material, file, groups, names, HIPPOCAMPAL_CUTS[1:], caption) if groups else None


def _overviews(material: Material) -> list[Picture]:
    """The leading maps in eight axial slices, of the first group that has scans, even if its map is lost."""
    run, pictures = material.run, []
    group = next((name for name in (*run.map_groups, *OUTCOMES) if material.expects_map(name)), None)
    for name in run.main_maps:
        if group is None or not material.has_map(group, name):
            continue
        view, title = material.group_views[group, name], f"{map_title(name)}, mean of {block_title(material, group)}"
        row = MapRow(group, view.scale(GROUP_PERCENTILES), f"{run.map_unit(name)} per voxel", [view])
        pictures.append(
            material.gallery.add(
                draw_map_grid([row], [title], OVERVIEW_CUTS, material.backdrop, material.gallery.density),
                f"bohle2019-01b_overview_{name}",
                f"Eight axial brain slices: {title}.",
                f"{title}, in axial slices from the temporal lobes to the vertex; colours as in the first figure.",
                "png",
            )
        )
    return pictures
