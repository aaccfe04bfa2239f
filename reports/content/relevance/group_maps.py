"""Mean maps of groups and their difference, as they are drawn on the surface and in the glass brain."""

from __future__ import annotations

from dataclasses import replace

from pipeline.run.layout.map_names import map_title
from reports.figures.gallery import Picture
from reports.figures.maps import group_rows
from reports.figures.slices import GROUP_PERCENTILES, BrainImage
from reports.figures.surfaces import GroupMap, draw_group_maps
from reports.page.material import Material
from reports.read.run_record import OUTCOMES, RunRecord, group_name
from reports.words.numbers import count

SPACES = (
    "The surface is fsaverage5 (MNI305 space), inflated; the maps lie in MNI152NLin2009cAsym space, a few millimetres "
    "away, which is not corrected, so these views are for orientation only. A point of the surface shows the mean of "
    "the map within 3 mm of the grey matter's outer border; deep structures such as the hippocampus are not on it. A "
    "point of the glass brain shows the strongest value along the line of sight. L and R are the person's sides."
)
"""What readers should know about the views of `reports.figures.surfaces`."""


def block_title(material: Material, group: str, short: bool = False) -> str:
    """Name of a group, with its scans and people."""
    scans, people = material.run.group_sizes.get(group, (0, 0))
    who = f"of {people}" if short else f"of {count(people, 'person', 'people')}"
    return f"{group_name(group)}: {count(scans, 'scan')} {who}"


def group_in_words(run: RunRecord, group: str) -> str:
    """A group of scans that has a mean map, inside a sentence."""
    label = f"scans labelled {group}" if group in run.labels else f"scans that are {group}"
    return group_name(group) if run.task.is_number else label


def group_map(material: Material, group: str, name: str) -> GroupMap | None:
    """The mean map of a group; None where it cannot be shown, or the group has no scans.

    The colour scale is that of the slices: set on the mean map of the positive class.
    """
    run, path = material.run, material.run.layout.group_map(group, name)
    image = material.image(path) if material.expects_map(group) else None
    if image is None:
        return None
    found = {(of, name): material.group_view(of, name) for of in (*run.map_groups, *OUTCOMES)}
    views = {key: view for key, view in found.items() if view is not None}
    rows = [
        group_rows(views, of, [name], run.map_groups[0], GROUP_PERCENTILES, run.map_unit)
        for of in (run.map_groups, OUTCOMES)
    ]
    row = (rows[0] or rows[1])[0]
    return GroupMap(f"{map_title(name)}, mean of {block_title(material, group)}", image, row.scale, row.unit)


def class_difference(material: Material, name: str) -> GroupMap | None:
    """Mean map of the positive class minus that of the negative one, on the colour scale of both; not tested."""
    groups = material.run.map_groups
    positive, *others = (group_map(material, group, name) for group in groups)
    if positive is None or not others or others[0] is None:
        return None
    image = BrainImage(positive.image.values - others[0].image.values, positive.image.affine)
    title = f"{map_title(name)}, mean of {groups[0]} minus mean of {groups[1]}"
    return GroupMap(title, image, replace(positive.scale, signed=True), positive.unit)


def surface_pictures(material: Material) -> list[Picture]:
    """The leading maps of the positive class on the surface and in the glass brain, and the classes' difference."""
    run, pictures = material.run, []
    for name in run.main_maps:
        mean = group_map(material, run.map_groups[0], name)
        if mean is None:
            continue
        difference = class_difference(material, name)
        shown = [(mean, ("surface", "glass")), *([(difference, ("surface",))] if difference else [])]
        below = f" Below, {difference.title}, which is not tested." if difference else ""
        pictures.append(
            material.gallery.add(
                draw_group_maps(shown, material.backdrop),
                f"surface_{name}",
                f"Cortical surface of both hemispheres, lateral and medial, and glass brain: {mean.title}.{below}",
                f"{mean.title}.{below} Colours as in the mean maps by class, {run.map_unit(name)} per voxel. {SPACES}",
                "png",
            )
        )
    return pictures
