"""Mean relevance maps by class and by outcome (figures 1 and 2 of the founding study), and on the cortical surface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from heatlas.atlases.labels import load_atlas
from heatlas.atlases.templates import configured_grid
from heatlas.pipeline.attribution.titles import map_title
from heatlas.pipeline.run.config.images import axes_of, is_mni
from heatlas.pipeline.run.config.settings import RegistrationConfig
from heatlas.pipeline.run.errors import HeatlasError
from heatlas.reports.figures.gallery import OUTCOME_NAMES, Picture
from heatlas.reports.figures.maps import GroupMap, MapRow, Outlined, draw_group_maps, draw_map_grid, group_rows
from heatlas.reports.figures.portraits import Tile, coronal_slice, draw_mosaic
from heatlas.reports.figures.slices import (
    HIPPOCAMPAL_CUTS,
    MAP_CUTS,
    PERSON_PERCENTILES,
    SMOOTHED_MM,
    BrainImage,
    Cut,
    smoothed,
    view_of,
    without_giants,
)
from heatlas.reports.frame.material import Material
from heatlas.reports.questions.question import ANY_TASK, Question
from heatlas.reports.read.run_record import OUTCOMES, RunRecord, group_name
from heatlas.reports.vector.drawing import fitted
from heatlas.reports.viewer.component import LOWER, group_viewer
from heatlas.reports.words.numbers import (
    LONGEST_CLASS,
    LONGEST_IN_TITLE,
    count,
    fixed,
    listing,
    mid_sentence,
    number,
    shortened,
)
from heatlas.reports.words.sentences import Words

WORDS = Words(__file__)


def spaces(run: RunRecord) -> str:
    """What readers should know about the views of `reports.figures.maps`."""
    if not is_mni(run.layout.space):
        return f"No surface and no glass brain: both are drawn in MNI space, and the maps lie in {run.layout.space}."
    return _SPACES.format(space=run.layout.space)


_SPACES = (
    "Surfaces and glass brains are for orientation only. The surface is fsaverage5 (MNI305 space), inflated; the maps "
    "lie in {space} space, a few millimetres away, which is not corrected. A point of the surface shows the mean of "
    "the map within 3 mm of the grey matter's outer border; deep structures such as the hippocampus are not on it, "
    "and the flat medial wall is not cortex. A "
    "point of the glass brain shows the strongest value along the line of sight. L and R are the person's sides."
)


def block_title(material: Material, group: str, short: bool = False) -> str:
    """Name of a group, with its scans and people."""
    scans, people = material.run.group_sizes.get(group, (0, 0))
    who = f"of {people}" if short else f"of {count(people, 'person', 'people')}"
    return f"{group_name(group)}: {count(scans, 'scan')} {who}"


def group_in_words(run: RunRecord, group: str) -> str:
    """A group of scans that has a mean map, inside a sentence."""
    label = f"scans labelled {group}" if group in run.labels else f"scans that are {group}"
    return label if run.task.classes else group_name(group)


def group_map(material: Material, group: str, name: str) -> GroupMap | None:
    """The mean map of a group, smoothed; None where it cannot be shown, or the group has no scans.

    The colour scale is that of the slices: set on the mean map of the positive class.
    """
    run, path = material.run, material.run.layout.group_map(group, name)
    image = material.image(path) if material.expects_map(group) else None
    if image is None:
        return None
    found = {(of, name): material.group_view(of, name) for of in (*run.map_groups, *OUTCOMES)}
    views = {key: view for key, view in found.items() if view is not None}
    classes = run.map_groups
    rows = [group_rows(views, of, [name], classes, run.map_unit) for of in (run.map_groups, OUTCOMES)]
    row = (rows[0] or rows[1])[0]
    title = f"{map_title(name)}, mean of {block_title(material, group)}"
    return GroupMap(title, smoothed(image, inside=material.brain), row.scale, row.unit)


def class_difference(material: Material, name: str) -> GroupMap | None:
    """Mean map of the positive class minus that of the negative one, smoothed, on a scale of its own; not tested."""
    groups = material.run.map_groups
    positive, *others = (group_map(material, group, name) for group in groups)
    if positive is None or not others or others[0] is None:
        return None
    image = BrainImage(positive.image.values - others[0].image.values, positive.image.affine)
    named = [shortened(material.run.in_words(group), LONGEST_IN_TITLE) for group in groups[:2]]
    means = " minus ".join(f"mean of {name}" for name in named)
    title = f"{map_title(name)}, {means}"
    scale = replace(view_of(image, (), material.brain).scale(PERSON_PERCENTILES), signed=True)
    return GroupMap(title, image, scale, positive.unit)


def surface_pictures(material: Material) -> list[Picture]:
    """The main maps of the positive class on the surface and in the glass brain, and differences not on the index."""
    run, pictures = material.run, []
    for name in run.main_maps if is_mni(run.layout.space) else ():
        mean = group_map(material, run.map_groups[0], name)
        if mean is None:
            continue
        # That of the leading map is on the index.
        difference = None if name == run.leading_map else class_difference(material, name)
        shown = [(mean, ("surface", "glass")), *([(difference, ("surface",))] if difference else [])]
        below = f" Below, {difference.title}, which is not tested." if difference else ""
        pictures.append(
            material.gallery.add(
                draw_group_maps(shown, material.backdrop),
                f"surface_{name}",
                f"Cortical surface of both hemispheres, lateral and medial, and glass brain: {mean.title}.{below}",
                f"{mean.title}.{below} Colours as in the mean maps by class, {run.map_unit(name)} per voxel.",
                "png",
            )
        )
    return pictures


MOST_TILES = 60


def mosaic(material: Material) -> Picture | None:
    """The first map in the picture of each participant's surest scan, ordered by class and probability.

    Shows at most `MOST_TILES` people, evenly spaced in this order. None without classes or maps of single scans.
    """
    run, name = material.run, material.run.leading_map
    shown = material.shows_people and run.keeps_single_maps and bool(run.task.classes)
    if not shown or not run.has("predictions", "scans"):
        return None
    scans = run.explained.drop(columns=["participant_id", "session_id"], errors="ignore").merge(
        run.tables["scans"][["scan_id", "participant_id", "session_id"]], on="scan_id"
    )
    scans = scans.assign(place=scans["label"].map({label: k for k, label in enumerate(run.labels)}))
    scans = scans.sort_values(["place", "probability"], ascending=[True, False], kind="stable")
    scans = scans.drop_duplicates("participant_id")
    drawn = scans.iloc[np.unique(np.linspace(0, len(scans) - 1, min(len(scans), MOST_TILES)).round().astype(int))]
    tiles = []
    for row in drawn.to_dict("records"):
        portrait = material.picture(run.files_of(row).portrait)
        if portrait is not None:
            captions = (f"{row['label']}, {fixed(row['probability'], 2)}", fitted(str(row["participant_id"]), 150, 11))
            tiles.append(Tile(captions, coronal_slice(portrait)))
    if not tiles:
        return None
    part = f" of {count(len(scans), 'participant')}" if len(tiles) < len(scans) else ""
    return material.gallery.add_png(
        draw_mosaic(tiles),
        f"individual-maps_{name}",
        f"One coronal slice of the individual maps of {count(len(tiles), 'participant')}.",
        WORDS.say("mosaic_caption", participants=len(tiles), part=part, run=run, SMOOTHED_MM=SMOOTHED_MM),
    )


def build(material: Material) -> Mapping[str, Any]:
    """The leading map by class, the viewer and single people; below, other methods, outcomes and surfaces."""
    run, first, others, viewer = material.run, [], [], None
    groups = [name for name in (*run.map_groups, *OUTCOMES) if name in run.group_sizes]
    if run.keeps_mean_maps and material.group_views:
        by_class = {name: picture for name in run.main_maps if (picture := _of_classes(material, name)) is not None}
        first = [picture for name, picture in by_class.items() if name == run.leading_map]
        more = [picture for name, picture in by_class.items() if name != run.leading_map]
        pictures = [*more, _by_class(material), _by_outcome(material), *surface_pictures(material)]
        others, viewer = [picture for picture in pictures if picture is not None], group_viewer(material)
    return {
        "question": f"Each map answers the same question for every scan: what in this image {run.task.words.supports}?",
        "figures": first,
        "others": others,
        "spaces": spaces(run) if others else "",
        "mosaic": mosaic(material),
        "single": run.keeps_single_maps,
        "components": [] if viewer is None else [viewer],
        "empty": listing([OUTCOME_NAMES.get(name, name) for name in groups if not run.group_sizes[name][0]]),
        "missing": material.missing_maps(groups, run.map_names),
        "kept": run.config.attribution.keep_maps,
    }


def _grid(
    material: Material, file: str, groups: Sequence[str], names: Sequence[str], cuts: Sequence[Cut], caption: str,
    alone: bool = False,
) -> Picture | None:  # fmt: skip
    """A figure of mean maps: a row per method, a block of slices per group; None where there is no map.

    `alone`: of one method, whose slices then stand in two lines.
    """
    run, first, methods = material.run, material.run.map_groups[0], listing([map_title(name) for name in names])
    rows = group_rows(material.group_views, groups, names, run.map_groups, run.map_unit)
    if not rows:
        return None
    titles = [block_title(material, group, short=len(groups) > 2) for group in groups]
    caption += WORDS.say(
        "colours", SMOOTHED_MM=SMOOTHED_MM, whom=group_in_words(run, first), LOWER=LOWER, run=run,
        axes=axes_of(run.layout.space),
    )  # fmt: skip
    missing = material.missing_maps(groups, names)
    caption += f" {missing}" if missing else ""
    lost = [name for name in names if material.expects_map(first) and not material.has_map(first, name)]
    if lost:
        caption += WORDS.say("lost_map", first=first, lost=[map_title(name) for name in lost])
    rows = [replace(row, title="") for row in rows] if alone else rows
    lines = 2 if alone else 1
    figure = draw_map_grid(rows, titles, cuts, material.backdrop, material.gallery.density, lines=lines)
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
    caption = WORDS.say("by_outcome")
    file, names = "bohle2019-02_mean-maps_by-outcome", material.run.main_maps
    return _grid(material, file, groups, names, HIPPOCAMPAL_CUTS[1:], caption) if groups else None


def _of_classes(material: Material, name: str) -> Picture | None:
    """One main map by class, in more slices than the figure of all methods; of the outcomes without classes."""
    groups = [group for group in (*material.run.map_groups, *OUTCOMES) if material.expects_map(group)]
    groups = [group for group in groups if group in material.run.map_groups] or groups[:1]
    caption = f"{map_title(name)}, mean maps of {listing([group_in_words(material.run, group) for group in groups])}."
    return _grid(material, f"bohle2019-01b_overview_{name}", groups, [name], MAP_CUTS, caption, alone=True)


def difference_pictures(material: Material, differ: Sequence[str], tested: int) -> tuple[list[Picture], str]:
    """The classes' difference of the leading map in slices, and on the surface; and what is shown.

    Of the regions that `differ`, among those `tested`, the first `OUTLINED` that are no giants are outlined. Without a
    map of both classes, the mean map of the first group.
    """
    run, name = material.run, material.run.leading_map
    difference = class_difference(material, name)
    shown = difference or group_map(material, run.map_groups[0], name)
    if shown is None:
        return [], ""
    ends = ("", "")
    if difference:
        more, less = (f"more in {shortened(run.in_words(group), LONGEST_CLASS)}" for group in run.map_groups[:2])
        ends = (less, more)
        colours = WORDS.say("difference_colours", SMOOTHED_MM=SMOOTHED_MM)
        what = f"the mean map of {' minus that of '.join(map(run.in_words, run.map_groups[:2]))}"
    else:
        colours = f"Blue, where there is any, is relevance that {run.task.words.opposes}."
        what = f"the mean map of {group_in_words(run, run.map_groups[0])}"
    view = view_of(shown.image, MAP_CUTS, material.brain)
    row, add = MapRow("", shown.scale, shown.unit, [view], ends), material.gallery.add
    outlined, named = regions_outlined(run.config.regions.atlas, run.config.registration, differ)
    grid = draw_map_grid(
        [row], [shown.title], (*HIPPOCAMPAL_CUTS, ("axial", 8.0)), material.backdrop, material.gallery.density,
        outlined, lines=2,
    )  # fmt: skip
    lines = f" White lines: {_lines_in_words(named, len(differ))}." if named else ""
    lines = " No region is outlined, since none differs." if tested and not differ else lines
    return [
        add(
            grid, f"summary_slices_{name}", f"Brain slices: {shown.title}.",
            f"{shown.title}. {colours}{lines} Slices at {axes_of(run.layout.space)} x, y, z in mm; left is left."
            + f" {spaces(run)}" * (not is_mni(run.layout.space)),
            "png",
        ),
        *([add(
            draw_group_maps([(shown, ("surface",))], material.backdrop), f"summary_surface_{name}",
            f"Cortical surface: {shown.title}.",
            WORDS.say("surface_caption"), "png",
        )] if is_mni(run.layout.space) else []),
    ], what  # fmt: skip


OUTLINED = 3  # regions at most


def _lines_in_words(named: Sequence[str], differ: int) -> str:
    """The regions outlined, and how many differ, where these are more.

    >>> _lines_in_words(["Hippocampus", "Amygdala"], 2), _lines_in_words(["Hippocampus"], 2)
    ('hippocampus and amygdala, which differ', 'hippocampus, of the 2 regions that differ')
    """
    said = listing([mid_sentence(group) for group in named])
    if differ > len(named):
        return f"{said}, of the {number(differ)} regions that differ"
    return f"{said}, which {'differs' if differ == 1 else 'differ'}"


def regions_outlined(
    atlas_name: str, registration: RegistrationConfig, groups: Sequence[str]
) -> tuple[Outlined | None, list[str]]:
    """Labels of an atlas and the body of each label to outline, left and right together; and what is outlined.

    None, and nothing, without the atlas.
    """
    try:
        atlas = load_atlas(atlas_name, configured_grid(registration))
    except HeatlasError:
        return None, []
    named = without_giants(atlas, groups)[:OUTLINED]
    bodies = {label: place for place, group in enumerate(named, 1) for label in atlas.regions.groups.get(group, ())}
    return (BrainImage(atlas.labels, np.asarray(atlas.grid.affine)), bodies), named


MAPS = Question.read(WORDS, "maps", draw=build, tasks=ANY_TASK)
