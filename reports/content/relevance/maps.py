"""Mean relevance maps by class and by outcome (figures 1 and 2 of the founding study)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.run.layout.map_names import map_title
from reports.content.relevance.group_maps import block_title, surface_pictures
from reports.figures.gallery import Picture
from reports.figures.maps import MapRow, draw_map_grid, group_rows, map_unit
from reports.figures.slices import GROUP_PERCENTILES, HIPPOCAMPAL_CUTS, OVERVIEW_CUTS
from reports.figures.style import OUTCOME_NAMES
from reports.page.material import Material
from reports.read.run_record import OUTCOMES
from reports.viewer.of_run import group_viewer
from reports.words.numbers import count, listing

_SCALE = (
    "Colours run from the 50th to the 99.5th percentile of the absolute mean {positive} map of the same method inside "
    "the brain; weaker relevance is not drawn, stronger is saturated. Blue, where present, is relevance against "
    "{positive}. Slices at MNI x, y, z in mm; left is left."
)


def build(material: Material) -> Mapping[str, Any]:
    """Mean maps by class of every map; of the leading ones by outcome, in axial slices and on the surface too."""
    run, views = material.run, material.group_views if material.run.keeps_mean_maps else {}
    empty = [group for group in (*run.labels, *OUTCOMES) if not run.group_sizes.get(group, (0, 0))[0]]
    figures = []
    if views:
        made = [_by_label(material), *_overviews(material), *surface_pictures(material), _by_outcome(material)]
        figures = [picture for picture in made if picture is not None]
    empty_names = listing([OUTCOME_NAMES.get(group, group) for group in empty])
    viewer = group_viewer(material) if views else None
    components = [] if viewer is None else [viewer]
    return {
        "figures": figures,
        "components": components,
        "empty": empty_names,
        "missing": material.missing_maps((*run.labels, *OUTCOMES), run.map_names),
        "kept": run.config.attribution.keep_maps,
    }


def _by_label(material: Material) -> Picture | None:
    run = material.run
    rows = group_rows(material.group_views, run.labels, run.map_names, run.positive, GROUP_PERCENTILES)
    titles = [block_title(material, group) for group in run.labels]
    if not rows:
        return None
    figure = draw_map_grid(rows, titles, HIPPOCAMPAL_CUTS, material.backdrop, material.gallery.density)
    caption = f"Mean maps of scans labelled {run.positive} and {run.negative}, for each method. {_scale(material)}"
    caption += _left_empty(material, run.labels, run.map_names)
    alt = f"Brain slices with mean maps, {listing(titles)}, one row for each of {listing(_titles(run.map_names))}."
    return material.gallery.add(figure, "bohle2019-01_mean-maps_by-class", alt, caption, "png")


def _scale(material: Material) -> str:
    return _SCALE.format(positive=material.run.positive)


def _left_empty(material: Material, groups: Sequence[str], names: Sequence[str]) -> str:
    """The files of maps that should be in a figure and are not, and what its colours are then set on."""
    positive, missing = material.run.positive, material.missing_maps(groups, names)
    lost = [name for name in names if material.expects_map(positive) and not material.has_map(positive, name)]
    said = [
        missing,
        lost
        and f"The {positive} map is missing for {listing(_titles(lost))}: colours there are set on the first map "
        "of the row.",
    ]
    return "".join(f" {sentence}" for sentence in said if sentence)


def _by_outcome(material: Material) -> Picture | None:
    run = material.run
    groups = [group for group in OUTCOMES if material.expects_map(group)]
    cuts = HIPPOCAMPAL_CUTS[1:]
    views = material.group_views
    rows = []
    for name in run.main_maps:
        rows += group_rows(views, groups, [name], run.positive, GROUP_PERCENTILES)
    if not rows:
        return None
    titles = [_short_title(material, group) for group in groups]
    figure = draw_map_grid(rows, titles, cuts, material.backdrop, material.gallery.density)
    caption = (
        "Mean maps by outcome of the classification: true positives (TP), false positives (FP), true "
        "negatives (TN), false negatives (FN). "
        f"{_scale(material)}{_left_empty(material, groups, run.main_maps)}"
    )
    alt = f"Brain slices with mean maps by outcome, {listing(titles)}; rows: {listing(_titles(run.main_maps))}."
    return material.gallery.add(figure, "bohle2019-02_mean-maps_by-outcome", alt, caption, "png")


def _overviews(material: Material) -> list[Picture]:
    """The leading maps of the positive class in eight axial slices; of the first group that has scans, without it.

    No other group stands in for one whose map is lost.
    """
    run, pictures = material.run, []
    for name in run.main_maps:
        group = next((g for g in (*run.labels, *OUTCOMES) if material.expects_map(g)), None)
        if group is None or not material.has_map(group, name):
            continue
        view = material.group_views[group, name]
        row = MapRow(group, view.scale(GROUP_PERCENTILES), f"{map_unit(name)} per voxel", [view])
        title = f"{map_title(name)}, mean of {block_title(material, group)}"
        pictures.append(
            material.gallery.add(
                draw_map_grid([row], [title], OVERVIEW_CUTS, material.backdrop, material.gallery.density),
                f"bohle2019-01b_overview_{name}",
                f"Eight axial brain slices: {title}.",
                f"{title}, in axial slices from the temporal lobes to the vertex; colours as in the mean "
                "maps by class.",
                "png",
            )
        )
    return pictures


def _short_title(material: Material, group: str) -> str:
    scans, people = material.run.group_sizes[group]
    return f"{group}: {count(scans, 'scan')} of {people}"


def _titles(names: Sequence[str]) -> list[str]:
    return [map_title(name) for name in names]
